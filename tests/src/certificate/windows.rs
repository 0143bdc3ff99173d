//! Elements of convolutions and window reductions.

use super::field::Number;
use super::ops::{At, index_of, joined, place_of, plus, times};
use super::values::{Stop, Values};
use hlo_ir::attrs::{ConvAttrs, ReduceWindowAttrs, WindowDim};

/// The position in an operand of an element of a window; `None` where it is padding.
fn in_operand(window: &WindowDim, position: i64, tap: i64, n: i64) -> Option<i64> {
    let at = position * window.stride + tap * window.window_dilation - window.pad_low;
    let dilation = window.base_dilation.max(1);
    (at >= 0 && at % dilation == 0 && at / dilation < n).then_some(at / dilation)
}

impl Values<'_> {
    pub(super) fn convolution(&mut self, here: At<'_>, at: i64) -> Result<Number, Stop> {
        let attrs = ConvAttrs::of(&self.programs.module(here.place.frame).inst(here.place.inst).attrs);
        let attrs = attrs.ok_or_else(|| self.unread(here.place, "its dims"))?;
        let (input, kernel) = (self.operand_shape(here, 0)?, self.operand_shape(here, 1)?);
        let labels = &attrs.dim_labels;
        let n_spatial = labels.input_spatial.len();
        let plain = vec![WindowDim::default(); n_spatial];
        let window = if attrs.window.dims.is_empty() { &plain } else { &attrs.window.dims };
        let index = index_of(&here.to.dims, at);
        let (batch, feature) = (index[labels.output_batch as usize], index[labels.output_feature as usize]);
        let (n_features, n_batches) = (attrs.feature_group_count.unwrap_or(1), attrs.batch_group_count.unwrap_or(1));
        let n_output = kernel.dims[labels.kernel_output_feature as usize];
        let group = feature / (n_output / (n_features * n_batches)).max(1);
        let (feature_group, batch_group) = (group % n_features, group / n_features);
        let depth = kernel.dims[labels.kernel_input_feature as usize];
        let mut x = vec![0; input.rank()];
        let mut w = vec![0; kernel.rank()];
        x[labels.input_batch as usize] = batch_group * here.to.dims[labels.output_batch as usize] + batch;
        w[labels.kernel_output_feature as usize] = feature;
        let taps: Vec<i64> = window.iter().map(|dim| dim.size).collect();
        let mut sum = 0;
        'taps: for step in 0..taps.iter().product() {
            let tap = index_of(&taps, step);
            for (k, dim) in window.iter().enumerate() {
                let d = labels.input_spatial[k] as usize;
                let position = index[labels.output_spatial[k] as usize];
                let Some(place) = in_operand(dim, position, tap[k], input.dims[d]) else { continue 'taps };
                x[d] = place;
                let tap = if dim.is_reversed { dim.size - 1 - tap[k] } else { tap[k] };
                w[labels.kernel_spatial[k] as usize] = tap;
            }
            for k in 0..depth {
                x[labels.input_feature as usize] = feature_group * depth + k;
                w[labels.kernel_input_feature as usize] = k;
                let a = self.operand(here, 0, place_of(&input.dims, &x))?;
                let b = self.operand(here, 1, place_of(&kernel.dims, &w))?;
                sum = plus(here.to.dtype, sum, times(here.to.dtype, a, b));
            }
        }
        Ok(sum)
    }

    pub(super) fn reduce_window(&mut self, here: At<'_>, at: i64) -> Result<Number, Stop> {
        let attrs = ReduceWindowAttrs::of(&self.programs.module(here.place.frame).inst(here.place.inst).attrs);
        let attrs = attrs.ok_or_else(|| self.unread(here.place, "its window"))?;
        if self.n_operands(here) != 2 {
            return self.unit(here, at);
        }
        let monoid = self.monoid(here, attrs.to_apply)?;
        let from = self.operand_shape(here, 0)?;
        let index = index_of(&here.to.dims, at);
        let window = &attrs.window.dims;
        let taps: Vec<i64> = window.iter().map(|dim| dim.size).collect();
        let mut total = self.initial(here, 1, monoid)?;
        'taps: for step in 0..taps.iter().product() {
            let tap = index_of(&taps, step);
            let mut x = vec![0; from.rank()];
            for (d, dim) in window.iter().enumerate() {
                let Some(place) = in_operand(dim, index[d], tap[d], from.dims[d]) else { continue 'taps };
                x[d] = place;
            }
            let x = self.operand(here, 0, place_of(&from.dims, &x))?;
            total = Some(joined(monoid, here.to.dtype, total, x));
        }
        total.map_or_else(|| self.operand(here, 1, 0), Ok)
    }
}
