//! Attributes on a shard. Every structure is built with all its fields, so that a new attribute must be decided on here.

use super::*;
use crate::attrs::*;

impl Localizer<'_> {
    /// The attributes of the op on a shard.
    pub(super) fn local_attrs(&self) -> Result<Attrs, CannotCut> {
        let result_dims = || self.results.first().map(|a| a.dims.clone()).unwrap_or_default();
        Ok(match &self.instruction.attrs {
            Attrs::Plain => Attrs::Plain,
            // These name dims, kinds and constants, which are those of the whole.
            Attrs::Dims(a) => DimsAttrs { dimensions: a.dimensions.clone() }.into(),
            Attrs::Iota(a) => IotaAttrs { iota_dimension: a.iota_dimension }.into(),
            Attrs::Compare(a) => CompareAttrs { direction: a.direction, order: a.order.clone() }.into(),
            Attrs::Reduce(a) => ReduceAttrs { dimensions: a.dimensions.clone(), to_apply: a.to_apply }.into(),
            Attrs::ReducePrecision(a) => {
                ReducePrecisionAttrs { exponent_bits: a.exponent_bits, mantissa_bits: a.mantissa_bits }.into()
            }
            Attrs::Dot(a) => dot(a),
            Attrs::Sort(a) => {
                let (dimensions, is_stable, to_apply) = (a.dimensions.clone(), a.is_stable, a.to_apply);
                SortAttrs { dimensions, is_stable, to_apply }.into()
            }
            Attrs::TopK(a) => TopKAttrs { k: a.k, largest: a.largest, is_stable: a.is_stable }.into(),
            Attrs::Fft(a) => FftAttrs { fft_type: a.fft_type.clone(), fft_length: a.fft_length.clone() }.into(),
            Attrs::Cholesky(a) => CholeskyAttrs { lower: a.lower }.into(),
            Attrs::TriangularSolve(a) => {
                let (left_side, lower, unit_diagonal) = (a.left_side, a.lower, a.unit_diagonal);
                TriangularSolveAttrs { left_side, lower, unit_diagonal, transpose_a: a.transpose_a.clone() }.into()
            }
            Attrs::BatchNorm(a) => BatchNormAttrs { epsilon: a.epsilon, feature_index: a.feature_index }.into(),
            // The dim that was inferred has another size now.
            Attrs::Reshape(_) => ReshapeAttrs { inferred_dimension: None }.into(),
            Attrs::Slice(a) => SliceAttrs { slice: self.slice_dims(a) }.into(),
            Attrs::DynamicSlice(_) => DynamicSliceAttrs { dynamic_slice_sizes: result_dims() }.into(),
            Attrs::Pad(a) => PadAttrs { padding: self.padding(a) }.into(),
            Attrs::Gather(a) => self.gather_attrs(a),
            Attrs::Scatter(a) => self.scatter_attrs(a),
            Attrs::Conv(a) => self.conv_attrs(a),
            Attrs::ReduceWindow(a) => ReduceWindowAttrs { window: self.window(&a.window), to_apply: a.to_apply }.into(),
            Attrs::SelectAndScatter(a) => {
                let window = self.window(&a.window);
                SelectAndScatterAttrs { window, select: a.select, scatter: a.scatter }.into()
            }
            Attrs::Custom(a) => custom(a).ok_or(CannotCut::NoLocalAttributes(self.instruction.attrs.format()))?,
            // Ops without factors.
            Attrs::Constant(_)
            | Attrs::Parameter(_)
            | Attrs::TupleIndex(_)
            | Attrs::Scan(_)
            | Attrs::Call(_)
            | Attrs::Fusion(_)
            | Attrs::While(_)
            | Attrs::Conditional(_)
            | Attrs::Combining(_)
            | Attrs::Gathering(_)
            | Attrs::Exchanging(_)
            | Attrs::Permuting(_)
            | Attrs::Transfer(_)
            | Attrs::Infeed(_)
            | Attrs::Outfeed(_)
            | Attrs::Rng(_)
            | Attrs::RngBits(_)
            | Attrs::RngState(_)
            | Attrs::Domain(_)
            | Attrs::Async(_)
            | Attrs::CopyStart(_)
            | Attrs::Metadata(_) => {
                return Err(CannotCut::NoLocalAttributes(self.instruction.attrs.format()));
            }
        })
    }

    fn moved(&self, place: usize) -> Option<Moved> {
        self.moved.get(place).copied().flatten()
    }

    /// Dims that shift are cut from the rows that a shard takes; dims taken whole end where the tile does.
    fn slice_dims(&self, attrs: &SliceAttrs) -> Vec<SliceDim> {
        let dims = self.operands.first().map_or(&[][..], |a| &a.dims);
        let of_dim = |(dim, range): (usize, &SliceDim)| match (self.moved(dim), self.cut_operand(0, dim), dims.get(dim))
        {
            (Some(moved), ..) => SliceDim { start: 0, limit: moved.extent, stride: range.stride },
            (None, Some(_), Some(&tile)) => SliceDim { start: 0, limit: tile, stride: range.stride },
            (None, _, _) => *range,
        };
        attrs.slice.iter().enumerate().map(of_dim).collect()
    }

    fn padding(&self, attrs: &PadAttrs) -> Vec<PadDim> {
        let of_dim = |(dim, padding): (usize, &PadDim)| match self.moved(dim) {
            Some(moved) => PadDim { low: moved.low, high: moved.high, interior: padding.interior },
            None => *padding,
        };
        attrs.padding.iter().enumerate().map(of_dim).collect()
    }

    fn window(&self, window: &Window) -> Window {
        let of_dim = |(place, dim): (usize, &WindowDim)| match self.moved(place) {
            Some(moved) => WindowDim {
                size: moved.window.unwrap_or(dim.size),
                stride: dim.stride,
                pad_low: moved.low,
                pad_high: moved.high,
                base_dilation: dim.base_dilation,
                window_dilation: dim.window_dilation,
                is_reversed: dim.is_reversed,
            },
            None => *dim,
        };
        Window { dims: window.dims.iter().enumerate().map(of_dim).collect() }
    }

    /// A dim that is taken whole is taken whole from the tile.
    fn gather_attrs(&self, a: &GatherAttrs) -> Attrs {
        let dims = |shape: Option<&ArrayShape>| shape.map(|a| a.dims.clone()).unwrap_or_default();
        let (whole, tile) = (dims(self.whole.first().copied()), dims(self.operands.first()));
        let sizes = a.slice_sizes.iter().zip(whole.iter().zip(&tile));
        let slice_sizes = sizes.map(|(&size, (&n, &tile))| if size == n { tile } else { size }).collect();
        GatherAttrs {
            offset_dims: a.offset_dims.clone(),
            collapsed_slice_dims: a.collapsed_slice_dims.clone(),
            start_index_map: a.start_index_map.clone(),
            operand_batching_dims: a.operand_batching_dims.clone(),
            start_indices_batching_dims: a.start_indices_batching_dims.clone(),
            index_vector_dim: a.index_vector_dim,
            slice_sizes,
            // Padding of the indices keeps no promise.
            indices_are_sorted: a.indices_are_sorted && !self.has_padding(),
        }
        .into()
    }

    fn scatter_attrs(&self, a: &ScatterAttrs) -> Attrs {
        ScatterAttrs {
            update_window_dims: a.update_window_dims.clone(),
            inserted_window_dims: a.inserted_window_dims.clone(),
            scatter_dims_to_operand_dims: a.scatter_dims_to_operand_dims.clone(),
            input_batching_dims: a.input_batching_dims.clone(),
            scatter_indices_batching_dims: a.scatter_indices_batching_dims.clone(),
            index_vector_dim: a.index_vector_dim,
            // Padding of the indices keeps no promise.
            indices_are_sorted: a.indices_are_sorted && !self.has_padding(),
            unique_indices: a.unique_indices && !self.has_padding(),
            to_apply: a.to_apply,
        }
        .into()
    }

    fn conv_attrs(&self, a: &ConvAttrs) -> Attrs {
        // Groups are the major factor of the kernel's output features.
        let uses = self.set.operands.get(1).and_then(|t| t.get(a.dim_labels.kernel_output_feature as usize));
        let local = |count: i64| match uses.and_then(|uses| uses.first()) {
            Some(groups) if count > 1 => self.tile(groups.factor, groups.size),
            Some(_) | None => count,
        };
        ConvAttrs {
            window: self.window(&a.window),
            dim_labels: a.dim_labels.clone(),
            feature_group_count: a.feature_group_count.map(local),
            batch_group_count: a.batch_group_count.map(local),
            convolution_kind: a.convolution_kind.clone(),
            operand_precision: a.operand_precision.clone(),
            sparsity_config: a.sparsity_config.clone(),
        }
        .into()
    }
}

fn dot(a: &DotAttrs) -> Attrs {
    DotAttrs {
        lhs_batch_dims: a.lhs_batch_dims.clone(),
        lhs_contracting_dims: a.lhs_contracting_dims.clone(),
        rhs_batch_dims: a.rhs_batch_dims.clone(),
        rhs_contracting_dims: a.rhs_contracting_dims.clone(),
        lhs_ragged_dims: a.lhs_ragged_dims.clone(),
        rhs_group_dims: a.rhs_group_dims.clone(),
        operand_precision: a.operand_precision.clone(),
        algorithm: a.algorithm.clone(),
    }
    .into()
}

/// The attributes of a custom call whose leading dims are cut; `None` if they give shapes of operands.
fn custom(a: &CustomAttrs) -> Option<Attrs> {
    let attrs = CustomAttrs {
        window: a.window.clone(),
        dim_labels: a.dim_labels.clone(),
        feature_group_count: a.feature_group_count,
        batch_group_count: a.batch_group_count,
        operand_precision: a.operand_precision.clone(),
        padding_type: a.padding_type.clone(),
        custom_call_target: a.custom_call_target.clone(),
        operand_layout_constraints: None,
        custom_call_has_side_effect: a.custom_call_has_side_effect,
        to_apply: a.to_apply,
        called_computations: a.called_computations.clone(),
        literal: a.literal.clone(),
        output_to_operand_aliasing: a.output_to_operand_aliasing.clone(),
        schedule: a.schedule.clone(),
        api_version: a.api_version.clone(),
    };
    a.operand_layout_constraints.is_none().then(|| attrs.into())
}
