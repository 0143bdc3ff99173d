//! Worked examples of local forms. That they mean the same as the whole op is tested in the evaluator.

use super::*;
use crate::Opcode;
use crate::attrs::{
    ConvAttrs, ConvDims, IotaAttrs, PadAttrs, PadDim, ReduceWindowAttrs, ScatterAttrs, Window, WindowDim,
};
use crate::factors::find_factors;
use crate::factors::tests::instruction;
use crate::shape::Dims;

/// The local form if the factor of dim `dim` of the first result is cut into `n`.
fn cut(module: &Module, inst: InstId, dim: usize, n: i64) -> Result<LocalForm, CannotCut> {
    let set = find_factors(module, inst).map_err(CannotCut::NoFactors)?;
    let factor = FactorSet::sole_use(&set.results[0], dim).expect("a dim with one factor").factor;
    let n_shards: Vec<i64> = (0..set.factors.len()).map(|f| if f == factor { n } else { 1 }).collect();
    localize(module, inst, &set, &n_shards)
}

fn reduce_window(rows: i64, window: WindowDim) -> (Module, InstId) {
    let n_windows = window.n_outputs(rows);
    instruction(Opcode::ReduceWindow, &[&[rows, 2], &[]], &[n_windows, 2], |add| {
        let window = Window { dims: vec![window, WindowDim::default()] };
        ReduceWindowAttrs { window, to_apply: Some(add) }.into()
    })
}

#[test]
fn a_window_takes_its_rows_from_the_neighbours_and_zeros_from_outside() {
    // Nine rows on five devices: windows of 4 with stride 2, three rows of padding before the first.
    let window = WindowDim { size: 4, stride: 2, pad_low: 3, ..WindowDim::default() };
    let (module, inst) = reduce_window(9, window);
    let form = cut(&module, inst, 0, 5).expect("a local form");
    let fill = OutsideValue::Identity(Monoid::Add);
    let halo = OperandAdjust::Halo { operand: 0, dim: 0, factor: 0, starts: vec![-3, -1, 1, 3, 5], size: 4, fill };
    assert_eq!(form.before, [halo]);
    assert_eq!((form.operands[0].dims.as_slice(), form.results[0].dims.as_slice()), (&[4, 2][..], &[1, 2][..]));
    let Attrs::ReduceWindow(attrs) = &form.attrs else { panic!("other attributes") };
    assert_eq!(attrs.window.dims[0], WindowDim { pad_low: 0, ..window });
    assert_eq!(form.after, []);
}

#[test]
fn tiles_that_begin_at_different_phases_of_a_dilation_compute_rows_before_them() {
    let window = WindowDim { size: 3, base_dilation: 2, ..WindowDim::default() };
    let (module, inst) = reduce_window(5, window);
    // Seven windows. Tiles of 4 begin two rows apart. Tiles of 3 would begin one and a half apart: the second one computes row 2 too.
    let even = cut(&module, inst, 0, 2).expect("a local form");
    assert_eq!((even.results[0].dims[0], even.after.len()), (4, 0));
    let odd = cut(&module, inst, 0, 3).expect("a local form");
    let fill = OutsideValue::Identity(Monoid::Add);
    let halo = OperandAdjust::Halo { operand: 0, dim: 0, factor: 0, starts: vec![0, 1, 3], size: 3, fill };
    assert_eq!((odd.results[0].dims[0], &odd.before[..]), (4, &[halo][..]));
    assert_eq!(odd.after, [ResultAdjust::Crop { leaf: 0, dim: 0, factor: 0, starts: vec![0, 1, 0], size: 3 }]);
}

#[test]
fn padding_with_holes_keeps_the_holes() {
    let padding = vec![PadDim { low: 1, high: 0, interior: 1 }];
    let (module, inst) = instruction(Opcode::Pad, &[&[4], &[]], &[8], |_| PadAttrs { padding: padding.clone() }.into());
    let form = cut(&module, inst, 0, 2).expect("a local form");
    let fill = OutsideValue::Operand(1);
    let halo = OperandAdjust::Halo { operand: 0, dim: 0, factor: 0, starts: vec![0, 2], size: 2, fill };
    assert_eq!(form.before, [halo]);
    let padding = vec![PadDim { low: 1, high: 0, interior: 1 }];
    assert_eq!(form.attrs, PadAttrs { padding }.into());
}

#[test]
fn iota_counts_from_its_tile_and_other_dims_are_free() {
    let (module, inst) = instruction(Opcode::Iota, &[], &[7, 3], |_| IotaAttrs { iota_dimension: 0 }.into());
    let along = cut(&module, inst, 0, 2).expect("a local form");
    assert_eq!(along.after, [ResultAdjust::AddOffset { leaf: 0, factor: 0, step: 4 }]);
    let across = cut(&module, inst, 1, 2).expect("a local form");
    assert_eq!((across.after.len(), across.results[0].dims.as_slice()), (0, &[7, 2][..]));
}

#[test]
fn a_cut_names_every_factor_once() {
    let (module, inst) = instruction(Opcode::Iota, &[], &[7], |_| IotaAttrs { iota_dimension: 0 }.into());
    let set = find_factors(&module, inst).expect("factors");
    for n_shards in [&[][..], &[0], &[2, 1]] {
        assert_eq!(localize(&module, inst, &set, n_shards), Err(CannotCut::NotOneCutForEachFactor));
    }
}

#[test]
fn rows_of_a_kernel_are_cut_where_they_divide() {
    let dim_labels = ConvDims {
        input_batch: 0,
        input_spatial: Dims::from_slice(&[1]),
        input_feature: 2,
        kernel_spatial: Dims::from_slice(&[0]),
        kernel_input_feature: 1,
        kernel_output_feature: 2,
        output_batch: 0,
        output_spatial: Dims::from_slice(&[1]),
        output_feature: 2,
        unknown: Default::default(),
    };
    let window = Window { dims: vec![WindowDim { size: 6, ..WindowDim::default() }] };
    let attrs = ConvAttrs { window, dim_labels, ..ConvAttrs::default() };
    // Eight rows, a kernel of six, three windows.
    let operands: [&[i64]; 2] = [&[4, 8, 5], &[6, 5, 7]];
    let (module, inst) = instruction(Opcode::Convolution, &operands, &[4, 3, 7], |_| attrs.clone().into());
    let set = find_factors(&module, inst).expect("factors");
    let rows = FactorSet::sole_use(&set.operands[1], 0).expect("a dim with one factor").factor;
    let local = |n: i64| {
        let n_shards: Vec<i64> = (0..set.factors.len()).map(|f| if f == rows { n } else { 1 }).collect();
        localize(&module, inst, &set, &n_shards)
    };
    let form = local(2).expect("a local form");
    assert_eq!((form.operands[0].dims.as_slice(), form.operands[1].dims.as_slice()), (&[4, 5, 5][..], &[3, 5, 7][..]));
    let Attrs::Conv(attrs) = &form.attrs else { panic!("other attributes") };
    assert_eq!(attrs.window.dims[0].size, 3);
    assert_eq!(local(4), Err(CannotCut::Uneven { factor: rows }));
}

/// A scatter of seven rows of two into nine, cut into `n` along its windows' elements or along its indices.
fn scatter_promises(unique: bool, sorted: bool, along_indices: bool, n: i64) -> (bool, bool) {
    let (module, inst) = instruction(Opcode::Scatter, &[&[9, 2], &[7, 1], &[7, 2]], &[9, 2], |add| {
        ScatterAttrs {
            update_window_dims: Dims::from_slice(&[1]),
            inserted_window_dims: Dims::from_slice(&[0]),
            scatter_dims_to_operand_dims: Dims::from_slice(&[0]),
            index_vector_dim: 1,
            unique_indices: unique,
            indices_are_sorted: sorted,
            to_apply: Some(add),
            ..ScatterAttrs::default()
        }
        .into()
    });
    let set = find_factors(&module, inst).expect("factors");
    let dim = usize::from(!along_indices);
    let factor = FactorSet::sole_use(&set.operands[2], dim).expect("a dim with one factor").factor;
    let n_shards: Vec<i64> = (0..set.factors.len()).map(|f| if f == factor { n } else { 1 }).collect();
    let form = localize(&module, inst, &set, &n_shards).expect("a local form");
    let Attrs::Scatter(attrs) = &form.attrs else { panic!("other attributes") };
    (attrs.unique_indices, attrs.indices_are_sorted)
}

#[test]
fn a_scatter_promises_of_its_indices_what_the_whole_does_unless_there_is_padding() {
    for (unique, sorted) in [(false, false), (false, true), (true, false), (true, true)] {
        assert_eq!(scatter_promises(unique, sorted, false, 2), (unique, sorted));
        assert_eq!(scatter_promises(unique, sorted, true, 7), (unique, sorted));
        assert_eq!(scatter_promises(unique, sorted, true, 2), (false, false), "eight rows, one of them padding");
    }
}
