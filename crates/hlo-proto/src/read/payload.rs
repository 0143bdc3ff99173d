//! Attributes that are messages of their own: windows, dim labels, padding, slices, aliases.

use crate::table::*;
use crate::view::View;
use hlo_ir::Dims;
use hlo_ir::attrs::{ConvDims, OperandAlias, PadDim, SliceDim, Window, WindowDim};

pub(crate) fn read_window(view: &View<'_>) -> Window {
    use window_dimension as w;
    let dim = |v: View<'_>| WindowDim {
        size: v.int(w::size),
        stride: v.int(w::stride),
        pad_low: v.int(w::padding_low),
        pad_high: v.int(w::padding_high),
        base_dilation: v.int(w::base_dilation),
        window_dilation: v.int(w::window_dilation),
        is_reversed: v.bool(w::window_reversal),
    };
    Window { dims: view.messages(window::dimensions).map(dim).collect() }
}

pub(crate) fn read_conv_dims(view: &View<'_>) -> ConvDims {
    use convolution_dimension_numbers as c;
    let dims = |field| view.ints(field).collect::<Dims>();
    ConvDims {
        input_batch: view.int(c::input_batch_dimension),
        input_feature: view.int(c::input_feature_dimension),
        input_spatial: dims(c::input_spatial_dimensions),
        kernel_input_feature: view.int(c::kernel_input_feature_dimension),
        kernel_output_feature: view.int(c::kernel_output_feature_dimension),
        kernel_spatial: dims(c::kernel_spatial_dimensions),
        output_batch: view.int(c::output_batch_dimension),
        output_feature: view.int(c::output_feature_dimension),
        output_spatial: dims(c::output_spatial_dimensions),
        unknown: Default::default(),
    }
}

pub(crate) fn read_padding(view: &View<'_>) -> Vec<PadDim> {
    use padding_config_dimension as p;
    let dim = |v: View<'_>| PadDim {
        low: v.int(p::edge_padding_low),
        high: v.int(p::edge_padding_high),
        interior: v.int(p::interior_padding),
    };
    view.messages(padding_config::dimensions).map(dim).collect()
}

pub(crate) fn read_slice(view: &View<'_>, field: Field) -> Vec<SliceDim> {
    use slice_dimensions as s;
    let dim = |v: View<'_>| SliceDim { start: v.int(s::start), limit: v.int(s::limit), stride: v.int(s::stride) };
    view.messages(field).map(dim).collect()
}

pub(crate) fn read_aliases(view: &View<'_>, field: Field) -> Vec<OperandAlias> {
    use output_operand_aliasing as o;
    let alias = |v: View<'_>| OperandAlias {
        output_index: v.ints(o::output_shape_index).collect(),
        operand: v.int(o::operand_index),
        operand_index: v.ints(o::operand_shape_index).collect(),
    };
    view.messages(field).map(alias).collect()
}

pub(crate) fn read_pairs(view: &View<'_>, field: Field) -> Vec<(i64, i64)> {
    let pair = |v: View<'_>| (v.int(source_target::source), v.int(source_target::target));
    view.messages(field).map(pair).collect()
}
