//! Plans that are known.

use crate::run::{axes, plan, ran};
use hlo_ir::{ArrayShape, DType};
use hlo_mesh::Exchange;
use hlo_spmd::redistribution::{RedistributionRequest, StepKind, plan_redistribution};

/// Bytes and kinds of the steps of a plan, which also runs.
fn steps(dims: &[i64], from: &str, to: &str) -> (u64, Vec<StepKind>) {
    let planned = plan(dims, from, to).unwrap_or_else(|error| panic!("{from} -> {to}: {error}"));
    ran(dims, from, to, &planned);
    assert_eq!(planned.price.bytes, planned.bound_bytes, "{from} -> {to}");
    (planned.price.bytes, planned.steps.iter().map(|step| step.kind).collect())
}

#[test]
fn the_worked_example_is_one_all_to_all() {
    let (from, to) = ("{devices=[2,1,4]<=[4,2]T(1,0)}", "{devices=[1,8,1]<=[8]}");
    assert_eq!(steps(&[16, 16, 16], from, to), (1792, vec![StepKind::Exchange(Exchange::AllToAll)]));
}

#[test]
fn pieces_are_left_out_where_they_are_not_wanted() {
    let (from, to) = ("{devices=[2,1,4]<=[4,2]T(1,0)}", "{devices=[4,2,1]<=[8]}");
    let planned = plan(&[16, 16, 16], from, to).unwrap_or_else(|error| panic!("{error}"));
    assert!(planned.steps.iter().all(|step| step.kind == StepKind::Pieces), "{:?}", planned.steps);
    let (source, target) = (axes(from, 3, 8), axes(to, 3, 8));
    let shape = ArrayShape::new(DType::F32, [16, 16, 16]);
    let request = RedistributionRequest {
        shape: &shape,
        source: &source,
        target: &target,
        monoid: None,
        cluster: None,
        allows_pieces: false,
    };
    let steps = plan_redistribution(&request).unwrap_or_else(|error| panic!("{error}"));
    ran(&[16, 16, 16], from, to, &steps);
    assert_eq!((Some(steps.price), steps.with_pieces), (planned.without_pieces, Some(planned.price)));
}

#[test]
fn rows_over_four_to_all_to_columns_and_to_another_axis() {
    let rows = "{devices=[4,1]<=[4]}";
    assert_eq!(steps(&[16, 64], rows, "{replicated}"), (3072, vec![StepKind::Exchange(Exchange::AllGather)]));
    assert_eq!(steps(&[16, 64], rows, "{devices=[1,4]<=[4]}"), (768, vec![StepKind::Exchange(Exchange::AllToAll)]));
    let (x, y) = ("{mesh['x'=4,'y'=4], [{'x'},{}]}", "{mesh['x'=4,'y'=4], [{'y'},{}]}");
    assert_eq!(steps(&[16, 64], x, y), (1024, vec![StepKind::Exchange(Exchange::Permute)]));
}
