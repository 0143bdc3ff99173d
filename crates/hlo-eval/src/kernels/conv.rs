//! `convolution`: both operands are brought to channels-last order, patches of the input become rows of a matrix, and
//! the rest is a matrix product for each group.

use hlo_ir::attrs::{ConvAttrs, WindowDim};
use hlo_ir::{ArrayShape, Dims, Literal};

use super::index::{advance, n_elems, transposed};
use super::number::{MatrixSize, Number, compute_type, converted, finished, typed, with_number};
use super::windows::check_window;
use crate::EvalError;

/// Elements of the patch matrix that are built at a time: about what the caches hold.
const PATCH_ELEMS: usize = 1 << 18;
/// Rows of it that are built at least, as a product of few rows spends its time on the other matrix …
const MIN_ROWS: usize = 64;
/// … unless it would grow beyond this.
const MAX_PATCH_ELEMS: usize = 1 << 24;

/// `convolution` of `lhs` (the input) with `rhs` (the kernel): any order of dims, stride, padding (negative padding cuts
/// off), dilation of both sides, reversal, groups of features or batches. The element type may differ from the operands'.
///
/// # Errors
/// Operands, attributes and result that do not fit each other.
pub(crate) fn convolution(
    lhs: &Literal,
    rhs: &Literal,
    attrs: &ConvAttrs,
    result: &ArrayShape,
) -> Result<Literal, EvalError> {
    let dims = &attrs.dim_labels;
    let input_order = order(dims.input_batch, &dims.input_spatial, dims.input_feature);
    let kernel_order: Dims =
        dims.kernel_spatial.iter().copied().chain([dims.kernel_input_feature, dims.kernel_output_feature]).collect();
    let output_order = order(dims.output_batch, &dims.output_spatial, dims.output_feature);
    let dtype = compute_type(result.dtype, &[lhs.dtype(), rhs.dtype()]);
    let input = transposed(&converted(lhs, dtype), &input_order)?;
    let kernel = transposed(&converted(rhs, dtype), &kernel_order)?;
    if output_order.len() != result.dims.len() {
        return Err(EvalError::invalid(format!("convolution: expected a result of rank {}", output_order.len())));
    }
    let mut output_dims = Dims::new();
    for &dim in &output_order {
        let size = usize::try_from(dim).ok().and_then(|dim| result.dims.get(dim));
        output_dims.push(*size.ok_or_else(|| EvalError::invalid("convolution: an output dim is out of range"))?);
    }
    let plan = Plan::new(input.dims(), kernel.dims(), attrs, &output_dims)?;
    let output = with_number!(dtype, T => {
        let out = plan.run::<T>(typed(&input)?, typed(&kernel)?)?;
        finished(&output_dims, out, result.dtype)
    })?;
    transposed(&output, &inverse(&output_order))
}

fn order(batch: i64, spatial: &[i64], feature: i64) -> Dims {
    std::iter::once(batch).chain(spatial.iter().copied()).chain([feature]).collect()
}

fn inverse(order: &[i64]) -> Dims {
    let at = |dim: i64| order.iter().position(|&x| x == dim).unwrap_or(0) as i64;
    (0..order.len() as i64).map(at).collect()
}

/// Sizes of one convolution in channels-last order.
struct Plan {
    window: Vec<WindowDim>,
    /// Spatial sizes of the input and of the output.
    input_spatial: Dims,
    output_spatial: Dims,
    /// Features of the whole input, of one group of it, and of the whole and one group of the output.
    n_input: usize,
    group_input: usize,
    n_output: usize,
    group_output: usize,
    /// Groups of features and of batches; one of them is 1.
    feature_groups: usize,
    batch_groups: usize,
    /// Batch of the output.
    batch: usize,
}

impl Plan {
    fn new(input: &[i64], kernel: &[i64], attrs: &ConvAttrs, output: &[i64]) -> Result<Plan, EvalError> {
        let misfit = || {
            EvalError::invalid(format!(
                "convolution: input {input:?}, kernel {kernel:?} and output {output:?} (channels last) do not fit"
            ))
        };
        let n_spatial = input.len().checked_sub(2).ok_or_else(misfit)?;
        let window = match attrs.window.dims.as_slice() {
            [] => vec![WindowDim::default(); n_spatial],
            dims => dims.to_vec(),
        };
        if window.len() != n_spatial || kernel.len() != input.len() || output.len() != input.len() {
            return Err(misfit());
        }
        let groups = |count: Option<i64>| usize::try_from(count.unwrap_or(1)).ok().filter(|&n| n > 0);
        let feature_groups = groups(attrs.feature_group_count).ok_or_else(misfit)?;
        let batch_groups = groups(attrs.batch_group_count).ok_or_else(misfit)?;
        let [group_input, n_output] = [kernel[n_spatial] as usize, kernel[n_spatial + 1] as usize];
        let n_input = input[n_spatial + 1] as usize;
        let n_groups = feature_groups.saturating_mul(batch_groups);
        let batch = output[0] as usize;
        let fits = group_input.checked_mul(feature_groups) == Some(n_input)
            && n_output == output[n_spatial + 1] as usize
            && n_output.is_multiple_of(n_groups)
            && batch.checked_mul(batch_groups) == Some(input[0] as usize);
        let spatial_fits = (0..n_spatial).all(|i| {
            let dim = &window[i];
            dim.size == kernel[i] && check_window(dim).is_ok() && dim.n_outputs(input[i + 1]) == output[i + 1]
        });
        if !fits || !spatial_fits {
            return Err(misfit());
        }
        n_elems(output)?;
        Ok(Plan {
            window,
            input_spatial: Dims::from_slice(&input[1..=n_spatial]),
            output_spatial: Dims::from_slice(&output[1..=n_spatial]),
            n_input,
            group_input,
            n_output,
            group_output: n_output / n_groups,
            feature_groups,
            batch_groups,
            batch,
        })
    }

    fn run<T: Number>(&self, input: &[T], kernel: &[T]) -> Result<Vec<T>, EvalError> {
        let n_positions = n_elems(&self.output_spatial)?;
        let mut out = vec![T::ZERO; self.batch * n_positions * self.n_output];
        let taps: Dims = self.window.iter().map(|dim| dim.size).collect();
        let n_taps = n_elems(&taps)?;
        let depth = n_taps * self.group_input;
        if out.is_empty() || depth == 0 {
            return Ok(out);
        }
        // For each output position and tap, where the input pixel stands; computed once for all batches and groups.
        let pixels = self.pixels(&taps, n_positions, n_taps)?;
        let n_pixels = n_elems(&self.input_spatial)?;
        // One row for each batch position and output position, in the order of the output.
        let n_all_rows = self.batch * n_positions;
        let n_rows = (PATCH_ELEMS / depth).max(MIN_ROWS.min(MAX_PATCH_ELEMS / depth)).clamp(1, n_all_rows);
        let mut patches = vec![T::ZERO; n_rows * depth];
        let mut products = vec![T::ZERO; n_rows * self.group_output];
        for group in 0..self.feature_groups * self.batch_groups {
            let (feature_group, batch_group) = (group % self.feature_groups, group / self.feature_groups);
            let weights = self.group_kernel(kernel, group, depth);
            for first in (0..n_all_rows).step_by(n_rows) {
                let rows = first..(first + n_rows).min(n_all_rows);
                for (row, patch) in rows.clone().zip(patches.chunks_exact_mut(depth)) {
                    let image = (batch_group * self.batch + row / n_positions) * n_pixels * self.n_input;
                    let position = row % n_positions;
                    let pixels = &pixels[position * n_taps..(position + 1) * n_taps];
                    self.fill_patch(&input[image..], pixels, feature_group * self.group_input, patch);
                }
                let products = &mut products[..rows.len() * self.group_output];
                products.fill(T::ZERO);
                let size = MatrixSize { m: rows.len(), k: depth, n: self.group_output };
                T::multiply_matrices(size, &patches[..rows.len() * depth], &weights, products);
                let slots = out[first * self.n_output..].chunks_exact_mut(self.n_output);
                for (slot, product) in slots.zip(products.chunks_exact(self.group_output)) {
                    slot[group * self.group_output..][..self.group_output].copy_from_slice(product);
                }
            }
        }
        Ok(out)
    }

    /// Input pixel of every output position (slowest) and tap, `None` where it falls on padding or between dilated ones.
    fn pixels(&self, taps: &[i64], n_positions: usize, n_taps: usize) -> Result<Vec<Option<usize>>, EvalError> {
        let mut out = Vec::with_capacity(n_positions.saturating_mul(n_taps));
        let mut position = vec![0i64; taps.len()];
        for _ in 0..n_positions {
            let mut tap = vec![0i64; taps.len()];
            for _ in 0..n_taps {
                out.push(self.pixel(&position, &tap));
                advance(&mut tap, taps);
            }
            advance(&mut position, &self.output_spatial);
        }
        Ok(out)
    }

    fn pixel(&self, position: &[i64], tap: &[i64]) -> Option<usize> {
        let mut pixel = 0usize;
        for (i, dim) in self.window.iter().enumerate() {
            let tap = if dim.is_reversed { dim.size - 1 - tap[i] } else { tap[i] };
            let at = position[i] * dim.stride + tap * dim.window_dilation - dim.pad_low;
            if at < 0 || at % dim.base_dilation != 0 || at / dim.base_dilation >= self.input_spatial[i] {
                return None;
            }
            pixel = pixel * self.input_spatial[i] as usize + (at / dim.base_dilation) as usize;
        }
        Some(pixel)
    }

    /// The row of one output position: one group's features at all taps.
    fn fill_patch<T: Number>(&self, image: &[T], pixels: &[Option<usize>], feature: usize, patch: &mut [T]) {
        for (slot, pixel) in patch.chunks_exact_mut(self.group_input).zip(pixels) {
            match pixel {
                Some(pixel) => {
                    let start = pixel * self.n_input + feature;
                    slot.copy_from_slice(&image[start..start + self.group_input]);
                }
                None => slot.fill(T::ZERO),
            }
        }
    }

    /// The kernel's columns of one group, as a dense matrix `[taps × features, outputs]`.
    fn group_kernel<T: Number>(&self, kernel: &[T], group: usize, depth: usize) -> Vec<T> {
        let mut out = Vec::with_capacity(depth * self.group_output);
        for row in kernel.chunks_exact(self.n_output) {
            out.extend_from_slice(&row[group * self.group_output..(group + 1) * self.group_output]);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::strides;
    use super::*;
    use hlo_ir::DType;
    use hlo_ir::attrs::{ConvDims, Window};
    use hlo_ir::float::Complex;

    /// The dims of a convolution whose arrays are `[batch, spatial…, features]` and `[spatial…, inputs, outputs]`.
    fn channels_last(n_spatial: usize) -> ConvDims {
        let n = n_spatial as i64;
        let spatial: Dims = (1..=n).collect();
        ConvDims {
            input_batch: 0,
            input_feature: n + 1,
            input_spatial: spatial.clone(),
            kernel_input_feature: n,
            kernel_output_feature: n + 1,
            kernel_spatial: (0..n).collect(),
            output_batch: 0,
            output_feature: n + 1,
            output_spatial: spatial,
            ..ConvDims::default()
        }
    }

    /// The definition, one element at a time: no order of dims, no matrices.
    fn naive(lhs: &Literal, rhs: &Literal, attrs: &ConvAttrs, result: &ArrayShape) -> Vec<f64> {
        let d = &attrs.dim_labels;
        let at = |lit: &Literal, index: &[i64]| {
            let at: usize = index.iter().zip(strides(lit.dims())).map(|(&i, s)| i as usize * s).sum();
            match lit.convert(DType::F64).get(at) {
                Some(hlo_ir::Scalar::Float(x)) => x,
                other => panic!("{other:?}"),
            }
        };
        let (fg, bg) = (attrs.feature_group_count.unwrap_or(1), attrs.batch_group_count.unwrap_or(1));
        let mut out = Vec::new();
        let mut o = vec![0i64; result.dims.len()];
        let taps: Vec<i64> = attrs.window.dims.iter().map(|w| w.size).collect();
        loop {
            let (n, f) = (o[d.output_batch as usize], o[d.output_feature as usize]);
            let n_out = result.dims[d.output_feature as usize];
            let cg = rhs.dims()[d.kernel_input_feature as usize];
            let mut sum = 0.0;
            let mut tap = vec![0i64; taps.len()];
            loop {
                for c in 0..cg {
                    let mut i = vec![0i64; o.len()];
                    let mut k = vec![0i64; o.len()];
                    i[d.input_batch as usize] = f / (n_out / bg) * result.dims[d.output_batch as usize] + n;
                    i[d.input_feature as usize] = f / (n_out / fg) * cg + c;
                    if bg > 1 {
                        i[d.input_feature as usize] = c;
                    } else {
                        i[d.input_batch as usize] = n;
                    }
                    k[d.kernel_input_feature as usize] = c;
                    k[d.kernel_output_feature as usize] = f;
                    let mut is_inside = true;
                    for (s, w) in attrs.window.dims.iter().enumerate() {
                        k[d.kernel_spatial[s] as usize] = if w.is_reversed { w.size - 1 - tap[s] } else { tap[s] };
                        let y = o[d.output_spatial[s] as usize] * w.stride + tap[s] * w.window_dilation - w.pad_low;
                        let size = lhs.dims()[d.input_spatial[s] as usize];
                        is_inside &= y >= 0 && y % w.base_dilation == 0 && y / w.base_dilation < size;
                        i[d.input_spatial[s] as usize] = y / w.base_dilation;
                    }
                    if is_inside {
                        sum += at(lhs, &i) * at(rhs, &k);
                    }
                }
                if !advance(&mut tap, &taps) {
                    break;
                }
            }
            out.push(sum);
            if !advance(&mut o, &result.dims) {
                return out;
            }
        }
    }

    fn small_ints(dims: &[i64], seed: i64) -> Literal {
        let n = dims.iter().product::<i64>();
        let elems = (0..n).map(|i| ((i * 7919 + seed * 104729) % 13 - 6) as f32).collect();
        Literal::from_elems(dims, elems).unwrap()
    }

    fn check(lhs: &[i64], rhs: &[i64], attrs: &ConvAttrs, dtype: DType) {
        let d = &attrs.dim_labels;
        let mut dims = vec![0; lhs.len()];
        dims[d.output_batch as usize] = lhs[d.input_batch as usize] / attrs.batch_group_count.unwrap_or(1);
        dims[d.output_feature as usize] = rhs[d.kernel_output_feature as usize];
        for (s, w) in attrs.window.dims.iter().enumerate() {
            dims[d.output_spatial[s] as usize] = w.n_outputs(lhs[d.input_spatial[s] as usize]);
        }
        let (lhs, rhs) = (small_ints(lhs, 1).convert(dtype), small_ints(rhs, 2).convert(dtype));
        let result = ArrayShape::new(dtype, dims);
        let want = Literal::from_elems(&result.dims, naive(&lhs, &rhs, attrs, &result)).unwrap().convert(dtype);
        assert_eq!(convolution(&lhs, &rhs, attrs, &result).unwrap(), want, "{attrs:?}");
    }

    fn window(dims: &[WindowDim]) -> Window {
        Window { dims: dims.to_vec() }
    }

    #[test]
    fn agrees_with_the_definition() {
        let w = WindowDim::default();
        let plain = |dims: &[WindowDim], fg, bg| ConvAttrs {
            window: window(dims),
            dim_labels: channels_last(dims.len()),
            feature_group_count: fg,
            batch_group_count: bg,
            ..ConvAttrs::default()
        };
        let odd = WindowDim {
            size: 3,
            stride: 2,
            pad_low: 2,
            pad_high: 1,
            base_dilation: 2,
            window_dilation: 3,
            is_reversed: true,
        };
        let cut = WindowDim { size: 2, pad_low: -1, pad_high: -2, ..w };
        for dtype in [DType::F32, DType::F64, DType::S32, DType::BF16] {
            check(&[2, 7, 9, 4], &[3, 2, 4, 6], &plain(&[odd, cut], None, None), dtype);
            check(&[2, 7, 9, 4], &[3, 2, 2, 6], &plain(&[odd, cut], Some(2), None), dtype);
            check(&[4, 7, 9, 3], &[3, 2, 3, 6], &plain(&[odd, cut], None, Some(2)), dtype);
        }
        check(&[3, 5], &[5, 7], &plain(&[], None, None), DType::F32);
        check(&[1, 5, 6], &[3, 1, 6], &plain(&[WindowDim { size: 3, pad_low: 1, ..w }], Some(6), None), DType::F32);
        check(
            &[2, 4, 5, 6, 3],
            &[2, 3, 2, 3, 2],
            &plain(&[WindowDim { size: 2, ..w }, odd, cut], None, None),
            DType::F32,
        );
    }

    #[test]
    fn order_of_dims_is_free() {
        let attrs = ConvAttrs {
            window: window(&[
                WindowDim { size: 5, pad_high: 1, ..WindowDim::default() },
                WindowDim { size: 2, ..WindowDim::default() },
            ]),
            dim_labels: ConvDims {
                input_batch: 3,
                input_feature: 0,
                input_spatial: Dims::from_slice(&[2, 1]),
                kernel_input_feature: 2,
                kernel_output_feature: 0,
                kernel_spatial: Dims::from_slice(&[1, 3]),
                output_batch: 2,
                output_feature: 1,
                output_spatial: Dims::from_slice(&[0, 3]),
                ..ConvDims::default()
            },
            ..ConvAttrs::default()
        };
        check(&[4, 6, 7, 2], &[3, 5, 4, 2], &attrs, DType::F32);
    }

    #[test]
    fn complex_and_empty_operands() {
        let attrs = ConvAttrs { dim_labels: channels_last(0), ..ConvAttrs::default() };
        let a = Literal::from_elems(&[1, 2], vec![Complex::new(1f32, 2.0), Complex::new(0.0, -1.0)]).unwrap();
        let b = Literal::from_elems(&[2, 1], vec![Complex::new(3f32, -1.0), Complex::new(2.0, 5.0)]).unwrap();
        let out = convolution(&a, &b, &attrs, &ArrayShape::new(DType::C64, [1, 1])).unwrap();
        assert_eq!(out.elems::<Complex<f32>>().unwrap(), [Complex::new(10.0, 3.0)]);

        let (a, b) = (Literal::zeros(DType::F32, &[3, 0]).unwrap(), Literal::zeros(DType::F32, &[0, 2]).unwrap());
        let out = convolution(&a, &b, &attrs, &ArrayShape::new(DType::F32, [3, 2])).unwrap();
        assert_eq!(out.elems::<f32>().unwrap(), [0.0; 6]);
        assert!(convolution(&a, &b, &attrs, &ArrayShape::new(DType::F32, [3, 5])).is_err());
        assert!(convolution(&a, &a, &attrs, &ArrayShape::new(DType::F32, [3])).is_err());
    }
}
