//! Factors of ops with windows: convolution, reduce-window, select-and-scatter.

use super::rules::{WRONG_ATTRS, index, size_at};
use super::*;
use crate::attrs::{Attrs, Comparison, ConvAttrs, WindowDim};
use crate::op::Opcode;
use FactorRole::{Own, Pass, Reduce, Shift, Whole};

/// Whether every window is one element, the one at its own place.
fn is_trivial(window: &WindowDim) -> bool {
    *window == WindowDim { is_reversed: window.is_reversed, ..WindowDim::default() }
}

/// Groups are a major factor of their own: of the features (or the batch) of the input, and of the output features of
/// kernel and result.
pub(super) fn convolution(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Conv(a) = attrs else { return Err(WRONG_ATTRS) };
    let (input, kernel, output) = (b.operand_dims(0)?, b.operand_dims(1)?, b.result_dims()?);
    let d = &a.dim_labels;
    let (n_features, n_batches) = (a.feature_group_count.unwrap_or(1), a.batch_group_count.unwrap_or(1));
    if n_features < 1 || n_batches < 1 || (n_features > 1 && n_batches > 1) {
        return Err(WRONG_ATTRS);
    }
    for (n_groups, dim) in [(n_features, d.input_feature), (n_batches, d.input_batch)] {
        if n_groups > 1 {
            let groups = b.add(n_groups);
            b.operand(0, index(dim)?, groups, Pass);
            b.operand(1, index(d.kernel_output_feature)?, groups, Pass);
            b.result(0, index(d.output_feature)?, groups, Pass);
        }
    }
    b.pass(size_at(output, d.output_batch)?, &[(0, index(d.input_batch)?)], index(d.output_batch)?);
    let contracted = b.add(size_at(kernel, d.kernel_input_feature)?);
    b.operand(0, index(d.input_feature)?, contracted, Reduce(Monoid::Add));
    b.operand(1, index(d.kernel_input_feature)?, contracted, Reduce(Monoid::Add));
    let features = size_at(kernel, d.kernel_output_feature)? / (n_features * n_batches);
    b.pass(features, &[(1, index(d.kernel_output_feature)?)], index(d.output_feature)?);
    for (k, window) in a.window.dims.iter().enumerate() {
        spatial(&mut b, a, k, window, (input, output))?;
    }
    Ok(b.fill(Whole("no other tensor has the dim")))
}

/// A spatial dim goes with the larger of windows and kernel: each shard computes some windows from the rows that they
/// cover, or each adds up the products with some rows of the kernel.
fn spatial(
    b: &mut FactorBuilder<'_>,
    a: &ConvAttrs,
    k: usize,
    window: &WindowDim,
    (input, output): (&[i64], &[i64]),
) -> Result<(), NoFactors> {
    let place = |dims: &crate::shape::Dims| dims.get(k).copied().ok_or(WRONG_ATTRS);
    let d = &a.dim_labels;
    let (from, by, to) = (place(&d.input_spatial)?, place(&d.kernel_spatial)?, place(&d.output_spatial)?);
    let (n_rows, n_windows) = (size_at(input, from)?, size_at(output, to)?);
    let (from, by, to) = (index(from)?, index(by)?, index(to)?);
    if is_trivial(window) && n_rows == n_windows {
        b.pass(n_windows, &[(0, from)], to);
        let kernel = b.add(window.size);
        b.operand(1, by, kernel, Own);
    } else if n_windows >= window.size {
        let windows = b.add(n_windows);
        b.operand(0, from, windows, Shift);
        b.result(0, to, windows, Pass);
        let kernel = b.add(window.size);
        b.operand(1, by, kernel, Whole("every window needs the kernel whole"));
    } else {
        let kernel = b.add(window.size);
        b.operand(0, from, kernel, Shift);
        b.operand(1, by, kernel, Reduce(Monoid::Add));
        let windows = b.add(n_windows);
        b.result(0, to, windows, Whole("the dim goes with the kernel, which is larger"));
    }
    Ok(())
}

/// A dim with windows of one element passes; along others a shard needs the rows that its windows cover.
pub(super) fn reduce_window(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::ReduceWindow(a) = attrs else { return Err(WRONG_ATTRS) };
    let n_inputs = b.operands.len() / 2;
    let is_known = b.monoids(a.to_apply, n_inputs).is_some();
    let results = b.result_dims()?;
    for (dim, &size) in b.operand_dims(0)?.iter().enumerate() {
        if a.window.dims.get(dim).is_none_or(is_trivial) {
            b.pass_dim(size, 0..n_inputs, dim);
        } else if is_known {
            let factor = b.add(results.get(dim).copied().ok_or(WRONG_ATTRS)?);
            (0..n_inputs).for_each(|operand| b.operand(operand, dim, factor, Shift));
            (0..b.results.len()).for_each(|leaf| b.result(leaf, dim, factor, Pass));
        }
    }
    Ok(b.fill(Whole("the reducer is no op with an identity, which stands for rows outside the array")))
}

/// A dim with windows of one element passes; along others a shard needs all rows of the windows that reach into its tile,
/// and their sources. Padding is never selected, and no value of the element type loses against all others: a dim with padding is whole.
pub(super) fn select_and_scatter(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::SelectAndScatter(a) = attrs else { return Err(WRONG_ATTRS) };
    let is_known = b.monoids(a.scatter, 1).is_some() && find_selected(b.module, a.select).is_some();
    for (dim, &size) in b.operand_dims(0)?.iter().enumerate() {
        if a.window.dims.get(dim).is_none_or(is_trivial) {
            b.pass_dim(size, 0..2, dim);
        } else if is_known && a.window.dims.get(dim).is_some_and(|window| window.pad_low == 0 && window.pad_high == 0) {
            let factor = b.add(size);
            b.operand(0, dim, factor, Shift);
            b.operand(1, dim, factor, Shift);
            b.result(0, dim, factor, Pass);
        }
    }
    Ok(b.fill(Whole("rows outside the array might be selected, or the computations are not known")))
}

/// What a select computation picks: the maximum or the minimum; `None` if it compares otherwise.
pub(crate) fn find_selected(module: &Module, select: Option<CompId>) -> Option<Monoid> {
    let comp = module.comp(select?);
    let root = module.inst(comp.root.expand()?);
    let Attrs::Compare(compare) = &root.attrs else { return None };
    let [a, b] = comp.params.as_slice() else { return None };
    let direction = match root.operands.as_slice() {
        [x, y] if (x, y) == (a, b) => compare.direction,
        [x, y] if (x, y) == (b, a) => compare.direction.swapped(),
        _ => return None,
    };
    match direction {
        Comparison::Ge | Comparison::Gt if root.opcode == Opcode::Compare => Some(Monoid::Maximum),
        Comparison::Le | Comparison::Lt if root.opcode == Opcode::Compare => Some(Monoid::Minimum),
        Comparison::Ge | Comparison::Gt | Comparison::Le | Comparison::Lt | Comparison::Eq | Comparison::Ne => None,
    }
}
