//! Attributes that are messages of their own: windows, dim labels, padding, slices, aliases.

use crate::table::*;
use crate::writer::Writer;
use hlo_ir::attrs::{ConvDims, OperandAlias, PadDim, SliceDim, Window};

pub(crate) fn write_window(w: &mut Writer, of: &Window) {
    use window_dimension as d;
    for dim in &of.dims {
        w.message(window::dimensions, |w| {
            w.int(d::size, dim.size);
            w.int(d::stride, dim.stride);
            w.int(d::padding_low, dim.pad_low);
            w.int(d::padding_high, dim.pad_high);
            w.int(d::window_dilation, dim.window_dilation);
            w.int(d::base_dilation, dim.base_dilation);
            w.bool(d::window_reversal, dim.is_reversed);
        });
    }
}

pub(crate) fn write_conv_dims(w: &mut Writer, of: &ConvDims) {
    use convolution_dimension_numbers as c;
    w.int(c::kernel_input_feature_dimension, of.kernel_input_feature);
    w.int(c::kernel_output_feature_dimension, of.kernel_output_feature);
    w.ints(c::kernel_spatial_dimensions, of.kernel_spatial.iter().copied());
    w.int(c::input_batch_dimension, of.input_batch);
    w.int(c::input_feature_dimension, of.input_feature);
    w.int(c::output_batch_dimension, of.output_batch);
    w.int(c::output_feature_dimension, of.output_feature);
    w.ints(c::input_spatial_dimensions, of.input_spatial.iter().copied());
    w.ints(c::output_spatial_dimensions, of.output_spatial.iter().copied());
}

pub(crate) fn write_padding(w: &mut Writer, dims: &[PadDim]) {
    use padding_config_dimension as p;
    for dim in dims {
        w.message(padding_config::dimensions, |w| {
            w.int(p::edge_padding_low, dim.low);
            w.int(p::edge_padding_high, dim.high);
            w.int(p::interior_padding, dim.interior);
        });
    }
}

pub(crate) fn write_slice(w: &mut Writer, field: Field, dims: &[SliceDim]) {
    for dim in dims {
        w.message(field, |w| {
            w.int(slice_dimensions::start, dim.start);
            w.int(slice_dimensions::limit, dim.limit);
            w.int(slice_dimensions::stride, dim.stride);
        });
    }
}

pub(crate) fn write_aliases(w: &mut Writer, field: Field, aliases: &[OperandAlias]) {
    use output_operand_aliasing as o;
    for alias in aliases {
        w.message(field, |w| {
            w.ints(o::output_shape_index, alias.output_index.iter().copied());
            w.int(o::operand_index, alias.operand);
            w.ints(o::operand_shape_index, alias.operand_index.iter().copied());
        });
    }
}

pub(crate) fn write_pairs(w: &mut Writer, field: Field, pairs: &[(i64, i64)]) {
    for &(source, target) in pairs {
        w.message(field, |w| {
            w.int(source_target::source, source);
            w.int(source_target::target, target);
        });
    }
}
