//! Sizes that are no multiple of their tiles, other device orders, partial results, and machines.

use crate::pairs::{Draw, MESHES, drawn_pair, drawn_sharding};
use crate::run::{axes, plan, plan_by_steps, plan_on, ran, text};
use hlo_cluster::Cluster;
use hlo_mesh::Exchange;
use hlo_spmd::redistribution::{RedistributionError, StepKind};

#[test]
fn uneven_sizes_give_the_target_tiles() {
    let mut draw = Draw(3);
    let (mut bound, mut bytes, mut n_pieces) = (0, 0, 0);
    for (mesh, _) in MESHES {
        for _ in 0..150 {
            let dims: Vec<i64> = (0..2).map(|_| 1 + draw.below(13) as i64).collect();
            let (from, to) = drawn_pair(&mut draw, mesh, dims.len());
            let planned = plan(&dims, &from, &to).unwrap_or_else(|error| panic!("{dims:?} {from} -> {to}: {error}"));
            ran(&dims, &from, &to, &planned);
            assert!(planned.price.bytes >= planned.bound_bytes, "{dims:?} {from} -> {to}");
            bound += planned.bound_bytes;
            bytes += planned.price.bytes;
            n_pieces += usize::from(planned.without_pieces.is_none());
        }
    }
    println!("uneven: bound {bound} bytes {bytes}; {n_pieces} with tiles that do not lie on one another");
    assert!(n_pieces > 50, "{n_pieces}");
    assert!((bytes as f64) < 1.5 * bound as f64, "{bytes} {bound}");
}

#[test]
fn devices_in_another_order_take_a_permute_first_or_pieces() {
    let mut draw = Draw(5);
    let (mut bound, mut steps, mut n_apart) = (0, 0, 0);
    for (mesh, dims) in MESHES {
        for _ in 0..40 {
            let n: i64 = mesh.iter().product();
            let ids = draw.shuffled((0..n).map(|id| id.to_string()).collect::<Vec<_>>()).join(",");
            let from = drawn_sharding(&mut draw, mesh, dims.len());
            let to =
                drawn_sharding(&mut draw, mesh, dims.len()).replacen("], [", &format!("], device_ids=({ids}), ["), 1);
            let planned = plan(dims, &from, &to).unwrap_or_else(|error| panic!("{from} -> {to}: {error}"));
            ran(dims, &from, &to, &planned);
            let by_steps = planned.without_pieces.unwrap_or_else(|| panic!("{from} -> {to}: expected steps"));
            assert!(by_steps.bytes >= planned.bound_bytes && planned.price.bytes <= by_steps.bytes, "{from} -> {to}");
            bound += planned.bound_bytes;
            steps += by_steps.bytes;
            n_apart += usize::from(planned.price.bytes > planned.bound_bytes);
        }
    }
    println!("other orders: bound {bound} steps {steps}; {n_apart} of 200 plans above the bound");
}

#[test]
fn steps_alone_run_too() {
    // Launches that take long make steps cheaper than pieces.
    let cluster = Cluster::flat(16, 1e9, 1000.0);
    let mut draw = Draw(9);
    let mut kinds = std::collections::BTreeMap::new();
    for (mesh, dims) in MESHES {
        for turn in 0..60 {
            let from = drawn_sharding(&mut draw, mesh, dims.len());
            let mut to = drawn_sharding(&mut draw, mesh, dims.len());
            if turn % 4 == 0 {
                let n: i64 = mesh.iter().product();
                let ids = draw.shuffled((0..n).map(|id| id.to_string()).collect::<Vec<_>>()).join(",");
                to = to.replacen("], [", &format!("], device_ids=({ids}), ["), 1);
            }
            let planned =
                plan_on(dims, &from, &to, Some(&cluster)).unwrap_or_else(|error| panic!("{from} -> {to}: {error}"));
            ran(dims, &from, &to, &planned);
            planned.steps.iter().for_each(|step| *kinds.entry(step.kind).or_insert(0) += 1);
        }
    }
    println!("{kinds:?}");
    for kind in [
        StepKind::Slice,
        StepKind::Exchange(Exchange::AllGather),
        StepKind::Exchange(Exchange::AllToAll),
        StepKind::Exchange(Exchange::Permute),
    ] {
        assert!(kinds.get(&kind).is_some_and(|&n| n > 20), "{kinds:?}");
    }
}

#[test]
fn constructed_steps_reach_the_target() {
    let mut draw = Draw(77);
    // Dims that both ends cut by different primes cost gathers; pieces of tiles still come down to the bound.
    let meshes: [(&[i64], &[i64], f64); 3] = [
        (&[4, 4, 8], &[128, 128, 16], 1.5),
        (&[3, 4, 12, 2], &[288, 288], 3.5),
        (&[2, 3, 8, 8], &[384, 384, 384], 3.5),
    ];
    for (mesh, dims, most) in meshes {
        let (mut bound, mut bytes) = (0, 0);
        for turn in 0..40 {
            let (from, to) = drawn_pair(&mut draw, mesh, dims.len());
            let planned = plan_by_steps(dims, &from, &to).unwrap_or_else(|error| panic!("{from} -> {to}: {error}"));
            let steps = planned.without_pieces.unwrap_or_else(|| panic!("{from} -> {to}: expected steps"));
            assert_eq!(planned.price, steps, "{from} -> {to}");
            if turn < 3 && dims.len() < 3 || turn == 0 && dims[2] < 100 {
                ran(dims, &from, &to, &planned);
            }
            bound += planned.bound_bytes;
            bytes += steps.bytes;
        }
        println!("{mesh:?}: steps {:.3} of the bound", bytes as f64 / bound as f64);
        assert!((bytes as f64) < most * bound as f64, "{mesh:?} {bytes} {bound}");
    }
}

#[test]
fn partial_results_are_scattered_where_the_target_is_cut() {
    let kinds = |to: &str| {
        let from = "{mesh['x'=4], [{},{}], unreduced={'x'}}";
        let planned = plan(&[16, 64], from, to).unwrap_or_else(|error| panic!("{to}: {error}"));
        let kinds: Vec<StepKind> = planned.steps.iter().map(|step| step.kind).collect();
        (kinds, planned.price.bytes, planned.bound_bytes)
    };
    // Acceptance of reduce-scatter and all-reduce of 4,096 bytes over 4.
    assert_eq!(kinds("{mesh['x'=4], [{'x'},{}]}"), (vec![StepKind::Exchange(Exchange::ReduceScatter)], 3072, 3072));
    assert_eq!(kinds("{mesh['x'=4], [{},{'x'}]}"), (vec![StepKind::Exchange(Exchange::ReduceScatter)], 3072, 3072));
    assert_eq!(kinds("{mesh['x'=4], [{},{}]}"), (vec![StepKind::Exchange(Exchange::AllReduce)], 6144, 6144));
}

#[test]
fn partial_results_are_reduced_by_the_plans_module() {
    let mut draw = Draw(2);
    for _ in 0..60 {
        let mut dims = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        draw.shuffled(vec!["'x'", "'y'", "'z'"]).into_iter().for_each(|axis| dims[draw.below(4)].push(axis));
        let [a, b, free, partial] = dims.map(|axes| axes.join(","));
        let _ = free;
        let mesh = "mesh['x'=2,'y'=2,'z'=3]";
        let from = format!("{{{mesh}, [{{{a}}},{{{b}}}], unreduced={{{partial}}}}}");
        let to = drawn_sharding(&mut draw, &[2, 2, 3], 2);
        crate::run::reduced(&[12 + draw.below(3) as i64, 12], &from, &to);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let error = |from: &str, to: &str| match plan(&[16, 64], from, to) {
        Ok(planned) => panic!("{from} -> {to}: {}", text(&planned.to_module("m").unwrap_or_else(|e| panic!("{e}")))),
        Err(error) => error,
    };
    let partial = "{mesh['x'=4], [{},{}], unreduced={'x'}}";
    let rows = "{mesh['x'=4], [{'x'},{}]}";
    assert_eq!(error(rows, partial), RedistributionError::Unreduced);
    assert_eq!(error("{mesh['x'=4], [{},{}], manual={'x'}}", rows), RedistributionError::Manual);
    assert_eq!(error(partial, "{mesh['x'=4], device_ids=(1,0,2,3), [{'x'},{}]}"), RedistributionError::Order);
    assert_eq!(plan(&[0, 4], rows, rows).map(|_| ()), Err(RedistributionError::Size { dim: 0, size: 0 }));
    assert_eq!(axes(rows, 2, 4).tiles(), [4, 1]);
}
