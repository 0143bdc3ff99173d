//! `dot` and `convolution` in one thread for each element, for the cases that no matrix product takes.

use hlo_ir::attrs::Attrs;
use hlo_ir::{ArrayShape, DType, InstId};
use smallvec::SmallVec;

use super::emitter::{Atom, Element, Emitted, Emitter, Index, Value};
use super::layout::physical_order;
use super::windows::{guarded, input_position, window_dims};
use crate::GpuError;

/// An accumulator of products, in the held type of the result.
struct Products {
    sum: Value,
    held: &'static str,
}

impl Products {
    fn start(e: &mut Emitter<'_>, inst: InstId) -> Result<Products, GpuError> {
        let held = e.ctype(inst, e.leaf_shape(inst, 0)?.dtype)?.held;
        Ok(Products { sum: e.variable(held, &format!("({held})0")), held })
    }

    fn add(&self, e: &mut Emitter<'_>, a: &Value, b: &Value) {
        let (sum, held) = (&self.sum.text, self.held);
        e.line(format!("{sum} = hlo::add({sum}, hlo::multiply(({held}){}, ({held}){}));", a.text, b.text));
    }

    fn finish(self, e: &mut Emitter<'_>, inst: InstId) -> Result<Value, GpuError> {
        let ctype = e.ctype(inst, e.leaf_shape(inst, 0)?.dtype)?;
        let rounded = ctype.rounded(&self.sum.text);
        Ok(if rounded == self.sum.text { self.sum } else { e.constant(ctype.held, &rounded) })
    }
}

pub(super) fn dot(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let Attrs::Dot(attrs) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected contracted dims"));
    };
    let (lhs, rhs) = (e.operand(inst, 0)?, e.operand(inst, 1)?);
    let (lhs_shape, rhs_shape) = (e.leaf_shape(lhs, 0)?, e.leaf_shape(rhs, 0)?);
    let n_batch = attrs.lhs_batch_dims.len();
    let mut result = index.iter().copied();
    let batch: Index = result.by_ref().take(n_batch).collect();
    let mut own = |shape: &ArrayShape, batch_dims: &[i64], contracted: &[i64]| -> Index {
        let at = |dim: usize| {
            let dim = dim as i64;
            if let Some(i) = batch_dims.iter().position(|&d| d == dim) {
                return batch.get(i).copied();
            }
            if contracted.contains(&dim) { Some(Atom::Const(0)) } else { result.next() }
        };
        (0..shape.rank()).map(at).map(|atom| atom.unwrap_or(Atom::Const(0))).collect()
    };
    let mut left = own(lhs_shape, &attrs.lhs_batch_dims, &attrs.lhs_contracting_dims);
    let mut right = own(rhs_shape, &attrs.rhs_batch_dims, &attrs.rhs_contracting_dims);
    // The dim that is fastest in the left operand's memory is the innermost loop.
    let order = physical_order(lhs_shape);
    let mut pairs: SmallVec<[(usize, usize); 4]> = attrs
        .lhs_contracting_dims
        .iter()
        .zip(&attrs.rhs_contracting_dims)
        .map(|(&l, &r)| (l as usize, r as usize))
        .collect();
    pairs.sort_by_key(|&(l, _)| std::cmp::Reverse(order.iter().position(|&dim| dim == l)));
    let sizes: SmallVec<[i64; 4]> = pairs.iter().map(|&(l, _)| lhs_shape.dims[l]).collect();
    // A named algorithm rounds operands first; those at least as exact as `f32` do not.
    let through = match attrs.algorithm.as_str() {
        "dot_bf16_bf16_f32" | "dot_bf16_bf16_bf16" => Some(e.ctype(inst, DType::BF16)?),
        "dot_f16_f16_f32" | "dot_f16_f16_f16" => Some(e.ctype(inst, DType::F16)?),
        _ => None,
    };
    let rounded = |value: Value| match through {
        Some(through) => Value { text: through.rounded(&value.text), depth: value.depth },
        None => value,
    };
    let products = Products::start(e, inst)?;
    e.count_all(&sizes, &mut |e, at| {
        for (&(l, r), &atom) in pairs.iter().zip(at) {
            left[l] = atom;
            right[r] = atom;
        }
        let a = e.value(frame, lhs, 0, &left)?;
        let b = e.value(frame, rhs, 0, &right)?;
        products.add(e, &rounded(a), &rounded(b));
        Ok(())
    })?;
    products.finish(e, inst)
}

pub(super) fn convolution(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let Attrs::Conv(attrs) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected dim labels"));
    };
    let dims = &attrs.dim_labels;
    let (lhs, rhs) = (e.operand(inst, 0)?, e.operand(inst, 1)?);
    let (input, kernel, output) = (e.leaf_shape(lhs, 0)?, e.leaf_shape(rhs, 0)?, e.leaf_shape(inst, 0)?);
    let n_spatial = dims.input_spatial.len();
    let window = window_dims(&attrs.window, n_spatial);
    let fits = input.rank() == n_spatial + 2
        && kernel.rank() == input.rank()
        && output.rank() == input.rank()
        && window.len() == n_spatial
        && !attrs.sparsity_config.0.contains('=');
    if !fits {
        return Err(e.unsupported(inst, "expected dense operands whose ranks fit the dim labels"));
    }
    let n_features = output.dims[dims.output_feature as usize];
    let group_input = kernel.dims[dims.kernel_input_feature as usize];
    let (feature_groups, batch_groups) = (attrs.feature_group_count.unwrap_or(1), attrs.batch_group_count.unwrap_or(1));
    let feature = index[dims.output_feature as usize];
    let (group, _) = e.divide(feature, n_features / (feature_groups * batch_groups).max(1));
    let mut at_input: Index = SmallVec::from_elem(Atom::Const(0), input.rank());
    let mut at_kernel = at_input.clone();
    // Of the two kinds of groups one is single.
    let first_batch =
        if batch_groups > 1 { e.affine(group, output.dims[dims.output_batch as usize], 0) } else { Atom::Const(0) };
    let first_feature = if feature_groups > 1 { e.affine(group, group_input, 0) } else { Atom::Const(0) };
    at_input[dims.input_batch as usize] = e.sum(first_batch, index[dims.output_batch as usize]);
    at_kernel[dims.kernel_output_feature as usize] = feature;
    let taps: SmallVec<[i64; 4]> = window.iter().map(|dim| dim.size).collect();
    let products = Products::start(e, inst)?;
    e.count_all(&taps, &mut |e, taps| {
        let mut conditions = Vec::new();
        for (d, dim) in window.iter().enumerate() {
            let (n, n_outputs) =
                (input.dims[dims.input_spatial[d] as usize], output.dims[dims.output_spatial[d] as usize]);
            let at = index[dims.output_spatial[d] as usize];
            let position = input_position(e, dim, n, n_outputs, (at, taps[d]), &mut conditions);
            at_input[dims.input_spatial[d] as usize] = position;
            at_kernel[dims.kernel_spatial[d] as usize] = taps[d];
        }
        guarded(e, &conditions, |e| {
            e.count(group_input, |e, channel| {
                at_input[dims.input_feature as usize] = e.sum(first_feature, channel);
                at_kernel[dims.kernel_input_feature as usize] = channel;
                let a = e.value(frame, lhs, 0, &at_input)?;
                let b = e.value(frame, rhs, 0, &at_kernel)?;
                products.add(e, &a, &b);
                Ok(())
            })
        })
    })?;
    products.finish(e, inst)
}
