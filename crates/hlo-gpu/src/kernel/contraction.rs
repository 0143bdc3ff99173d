//! `dot` and `convolution` in one thread for each element, for the cases that no matrix product takes; and where a
//! convolution's factors lie.

use hlo_ir::Opcode;
use hlo_ir::attrs::{Attrs, ConvAttrs, DotAttrs, WindowDim};
use hlo_ir::{ArrayShape, InstId, Module};
use smallvec::SmallVec;

use super::dtype::CType;
use super::emitter::{Atom, Element, Emitted, Emitter, Index, Value};
use super::windows::{guarded, input_position, window_dims};
use crate::GpuError;

/// Operations of which one element costs a loop.
pub(super) const LOOPS: [Opcode; 6] =
    [Opcode::Reduce, Opcode::ReduceWindow, Opcode::SelectAndScatter, Opcode::Convolution, Opcode::Dot, Opcode::Scatter];

/// An accumulator of products, in the held type of the result.
struct Products {
    sum: Value,
    held: &'static str,
}

impl Products {
    fn start(e: &mut Emitter<'_>, inst: InstId) -> Result<Products, GpuError> {
        let held = CType::of(e.leaf_shape(inst, 0)?.dtype).held;
        Ok(Products { sum: e.variable(held, &format!("{held}()")), held })
    }

    fn add(&self, e: &mut Emitter<'_>, a: &Value, b: &Value) {
        let (sum, held) = (&self.sum.text, self.held);
        e.line(format!("{sum} = hlo::add({sum}, hlo::multiply(({held}){}, ({held}){}));", a.text, b.text));
    }

    fn finish(self, e: &mut Emitter<'_>, inst: InstId) -> Result<Value, GpuError> {
        let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
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
    let DotAttrs {
        lhs_batch_dims,
        lhs_contracting_dims,
        rhs_batch_dims,
        rhs_contracting_dims,
        // Only `ragged-dot` has groups, and it is no kernel.
        lhs_ragged_dims: _,
        rhs_group_dims: _,
        // A kernel multiplies at the precision of its sum, which satisfies every precision.
        operand_precision: _,
        // `operand_rounding` follows it.
        algorithm: _,
    } = &**attrs;
    let n_batch = lhs_batch_dims.len();
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
    let mut left = own(lhs_shape, lhs_batch_dims, lhs_contracting_dims);
    let mut right = own(rhs_shape, rhs_batch_dims, rhs_contracting_dims);
    // The dim that is fastest in the left operand's memory is the innermost loop.
    let order = lhs_shape.physical_order();
    let pairs = lhs_contracting_dims.iter().zip(rhs_contracting_dims);
    let mut pairs: SmallVec<[(usize, usize); 4]> = pairs.map(|(&l, &r)| (l as usize, r as usize)).collect();
    pairs.sort_by_key(|&(l, _)| std::cmp::Reverse(order.iter().position(|&dim| dim == l)));
    let sizes: SmallVec<[i64; 4]> = pairs.iter().map(|&(l, _)| lhs_shape.dims[l]).collect();
    let through = attrs.operand_rounding().map(CType::of);
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

/// A convolution whose operands fit its dim labels.
pub(super) struct Convolution<'m> {
    pub attrs: &'m ConvAttrs,
    pub lhs: InstId,
    pub rhs: InstId,
    pub input: &'m ArrayShape,
    pub kernel: &'m ArrayShape,
    pub output: &'m ArrayShape,
    pub window: Vec<WindowDim>,
    /// Input features that an output feature sees.
    pub group_input: i64,
    /// Groups of output features.
    pub n_groups: i64,
}

impl<'m> Convolution<'m> {
    /// The convolution that `inst` is.
    pub(super) fn of(module: &'m Module, inst: InstId) -> Option<Convolution<'m>> {
        let node = module.inst(inst);
        let (Attrs::Conv(attrs), &[lhs, rhs]) = (&node.attrs, node.operands.as_slice()) else { return None };
        let dims = &attrs.dim_labels;
        let (input, kernel) = (module.shape(lhs).as_array()?, module.shape(rhs).as_array()?);
        let output = module.shape(inst).as_array()?;
        let n_spatial = dims.input_spatial.len();
        let window = window_dims(&attrs.window, n_spatial);
        let fits = input.rank() == n_spatial + 2
            && kernel.rank() == input.rank()
            && output.rank() == input.rank()
            && window.len() == n_spatial
            && !attrs.sparsity_config.0.contains('=');
        let group_input = *kernel.dims.get(dims.kernel_input_feature as usize)?;
        // Of the two kinds of groups one is single.
        let n_groups = attrs.feature_group_count.unwrap_or(1) * attrs.batch_group_count.unwrap_or(1);
        let n_groups = n_groups.max(1);
        fits.then_some(Convolution { attrs, lhs, rhs, input, kernel, output, window, group_input, n_groups })
    }

    /// Output features of all groups.
    pub(super) fn n_features(&self) -> i64 {
        self.output.dims[self.attrs.dim_labels.output_feature as usize]
    }

    /// Where the kernel's factor lies, for a feature of the output, the window's taps and an input feature within the group.
    pub(super) fn kernel_index(&self, feature: Atom, taps: &[Atom], channel: Atom) -> Index {
        let dims = &self.attrs.dim_labels;
        let mut at: Index = SmallVec::from_elem(Atom::Const(0), self.kernel.rank());
        at[dims.kernel_output_feature as usize] = feature;
        at[dims.kernel_input_feature as usize] = channel;
        for (&dim, &tap) in dims.kernel_spatial.iter().zip(taps) {
            at[dim as usize] = tap;
        }
        at
    }

    /// Where the input's factor lies, for an index of the output, the group of its feature, the window's taps and an input
    /// feature within the group. It is an element only under the `conditions`.
    pub(super) fn input_index(
        &self,
        e: &mut Emitter<'_>,
        (index, group): (&[Atom], Atom),
        taps: &[Atom],
        channel: Atom,
        conditions: &mut Vec<String>,
    ) -> Index {
        let dims = &self.attrs.dim_labels;
        let mut at: Index = SmallVec::from_elem(Atom::Const(0), self.input.rank());
        let batch = index[dims.output_batch as usize];
        let has_batch_groups = self.attrs.batch_group_count.unwrap_or(1) > 1;
        let (batch, channel) = if has_batch_groups {
            let first = e.affine(group, self.output.dims[dims.output_batch as usize], 0);
            (e.sum(first, batch), channel)
        } else if self.n_groups > 1 {
            let first = e.affine(group, self.group_input, 0);
            (batch, e.sum(first, channel))
        } else {
            (batch, channel)
        };
        at[dims.input_batch as usize] = batch;
        at[dims.input_feature as usize] = channel;
        for (d, dim) in self.window.iter().enumerate() {
            let n = self.input.dims[dims.input_spatial[d] as usize];
            let n_outputs = self.output.dims[dims.output_spatial[d] as usize];
            let own = index[dims.output_spatial[d] as usize];
            at[dims.input_spatial[d] as usize] = input_position(e, dim, n, n_outputs, (own, taps[d]), conditions);
        }
        at
    }
}

pub(super) fn convolution(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let Some(conv) = Convolution::of(e.module, inst) else {
        return Err(e.unsupported(inst, "expected dense operands whose ranks fit the dim labels"));
    };
    let feature = index[conv.attrs.dim_labels.output_feature as usize];
    let (group, _) = e.divide(feature, conv.n_features() / conv.n_groups);
    let taps: SmallVec<[i64; 4]> = conv.window.iter().map(|dim| dim.size).collect();
    let products = Products::start(e, inst)?;
    e.count_all(&taps, &mut |e, taps| {
        let mut conditions = Vec::new();
        // The conditions do not depend on the input feature.
        conv.input_index(e, (index, group), taps, Atom::Const(0), &mut conditions);
        guarded(e, &conditions, |e| {
            e.count(conv.group_input, |e, channel| {
                let at_input = conv.input_index(e, (index, group), taps, channel, &mut Vec::new());
                let a = e.value(frame, conv.lhs, 0, &at_input)?;
                let b = e.value(frame, conv.rhs, 0, &conv.kernel_index(feature, taps, channel))?;
                products.add(e, &a, &b);
                Ok(())
            })
        })
    })?;
    products.finish(e, inst)
}
