//! Terms to instructions.

use super::{BridgeError, Region};
use crate::op::{Conv, Op, Unary};
use crate::size::Size;
use crate::term::{TermId, Terms};
use hlo_ir::attrs::{
    Attrs, CompareAttrs, Comparison, ConvAttrs, ConvDims, DimsAttrs, DotAttrs, PadAttrs, PadDim, ReduceAttrs,
    ReshapeAttrs, SliceAttrs, SliceDim, Window, WindowDim, Word,
};
use hlo_ir::edit::Builder;
use hlo_ir::shape::Dims;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Opcode, Scalar, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// Writes an alternative of a region in place of its instructions; gives what stands for each output now. The module is as it was if it
/// does not fit.
///
/// # Errors
/// The alternative needs a value that is computed from what it gives.
pub fn write_alternative(
    module: &mut Module,
    region: &Region,
    terms: &Terms,
    roots: &[TermId],
) -> Result<Vec<InstId>, BridgeError> {
    let mut changed = module.clone();
    let values = add_alternative(&mut changed, region, terms, roots)?;
    let new: Vec<(InstId, InstId)> = region.outputs.iter().map(|output| output.0).zip(values).collect();
    for &(old, inst) in &new {
        // What an output was annotated with stays with its value; an input that is an output already has its own.
        let marks = changed.inst(old).marks.clone();
        if !region.inputs.contains(&inst) && changed.inst(inst).marks.is_none() {
            changed.inst_mut(inst).marks = marks;
        }
    }
    let map: BTreeMap<InstId, InstId> = new.iter().copied().collect();
    let insts: Vec<InstId> = changed.comp(region.comp).insts.clone();
    let made: Vec<InstId> = insts.iter().copied().filter(|i| i.as_u32() as usize >= module.n_inst_slots()).collect();
    for inst in insts {
        if !made.contains(&inst) {
            changed.map_operands(inst, |o| map.get(&o).copied().unwrap_or(o));
            changed.map_control_predecessors(inst, |o| map.get(&o).copied().unwrap_or(o));
        }
    }
    if let Some(&root) = changed.comp(region.comp).root.expand().and_then(|r| map.get(&r)) {
        changed.comp_mut(region.comp).root = Some(root).into();
    }
    changed.restore_order(region.comp).map_err(|i| BridgeError::Circle { inst: changed.inst_name(i).to_string() })?;
    changed.remove_dead(region.comp);
    *module = changed;
    Ok(new.into_iter().map(|(_, inst)| inst).collect())
}

/// Adds the instructions of an alternative beside those of its region; gives the value of each output of the region. Instructions stand in no
/// order until [`Module::restore_order`].
///
/// # Errors
/// A term that no instruction stands for.
pub fn add_alternative(
    module: &mut Module,
    region: &Region,
    terms: &Terms,
    roots: &[TermId],
) -> Result<Vec<InstId>, BridgeError> {
    let mut writer =
        Writer { module, region, terms, built: BTreeMap::new(), joined: BTreeSet::new(), zero: None, sum: None };
    let reachable = terms.reachable(roots);
    writer.joined = joined_concats(terms, roots, &reachable);
    for term in reachable {
        if writer.joined.contains(&term) {
            continue;
        }
        let inst = writer.term(term)?;
        writer.built.insert(term, inst);
    }
    Ok(roots.iter().map(|root| writer.built[root]).collect())
}

struct Writer<'a> {
    module: &'a mut Module,
    region: &'a Region,
    terms: &'a Terms,
    built: BTreeMap<TermId, InstId>,
    /// Concatenations that are part of another one along the same dim.
    joined: BTreeSet<TermId>,
    zero: Option<InstId>,
    sum: Option<CompId>,
}

/// Concatenations that only another one along the same dim takes, once: the parts of both are written as one concatenation.
fn joined_concats(terms: &Terms, roots: &[TermId], reachable: &[TermId]) -> BTreeSet<TermId> {
    let mut takers: BTreeMap<TermId, Vec<TermId>> = BTreeMap::new();
    for &term in reachable {
        terms.node(term).args.iter().for_each(|&arg| takers.entry(arg).or_default().push(term));
    }
    let is_joined = |term: &TermId| match (&terms.node(*term).op, takers.get(term).map(Vec::as_slice)) {
        (Op::Concat { dim }, Some(&[taker])) if !roots.contains(term) => {
            matches!(&terms.node(taker).op, Op::Concat { dim: other } if other == dim)
        }
        _ => false,
    };
    reachable.iter().copied().filter(is_joined).collect()
}

fn number(size: &Size) -> i64 {
    size.as_number().unwrap_or(0)
}

fn numbers<'s>(sizes: impl IntoIterator<Item = &'s Size>) -> Vec<i64> {
    sizes.into_iter().map(number).collect()
}

impl Writer<'_> {
    fn shape(&self, dims: &[i64]) -> ArrayShape {
        ArrayShape::new(self.region.dtype, dims.iter().copied()).with_row_major()
    }

    fn add(&mut self, opcode: Opcode, dims: &[i64], operands: &[InstId], attrs: impl Into<Attrs>) -> InstId {
        let shape = Shape::Array(self.shape(dims));
        Builder::new(self.module, self.region.comp).add(
            opcode.row().name,
            opcode,
            shape,
            operands.iter().copied(),
            attrs,
        )
    }

    fn zero(&mut self) -> InstId {
        if let Some(zero) = self.zero {
            return zero;
        }
        let literal = Literal::scalar(self.region.dtype, Scalar::Pred(false));
        let zero = Builder::new(self.module, self.region.comp).constant("zero", literal);
        self.zero = Some(zero);
        zero
    }

    fn zeros(&mut self, dims: &[i64]) -> InstId {
        let zero = self.zero();
        self.add(Opcode::Broadcast, dims, &[zero], DimsAttrs::default())
    }

    /// The computation `a + b`.
    fn sum(&mut self) -> CompId {
        if let Some(sum) = self.sum {
            return sum;
        }
        let comp = self.module.add_sum("sum", self.region.dtype);
        self.sum = Some(comp);
        comp
    }

    fn dims(&self, term: TermId) -> Vec<i64> {
        numbers(self.terms.dims(term))
    }

    fn term(&mut self, term: TermId) -> Result<InstId, BridgeError> {
        let node = self.terms.node(term).clone();
        let dims = self.dims(term);
        let arg = |k: usize| node.args[k];
        let args: Vec<InstId> = self.parts(term).iter().map(|a| self.built[a]).collect();
        let of = |dim: u8| Dims::from_slice(&[i64::from(dim)]);
        Ok(match &node.op {
            Op::Input(n) => self.region.inputs[usize::from(*n)],
            Op::Dot(pairs) => {
                let (operand_precision, algorithm) = self.region.precision.clone().unwrap_or_default();
                let left = |pairs: &[(u8, u8)]| pairs.iter().map(|p| i64::from(p.0)).collect();
                let right = |pairs: &[(u8, u8)]| pairs.iter().map(|p| i64::from(p.1)).collect();
                let attrs = DotAttrs {
                    lhs_batch_dims: left(&pairs.batch),
                    rhs_batch_dims: right(&pairs.batch),
                    lhs_contracting_dims: left(&pairs.contract),
                    rhs_contracting_dims: right(&pairs.contract),
                    operand_precision,
                    algorithm,
                    ..DotAttrs::default()
                };
                self.add(Opcode::Dot, &dims, &args, attrs)
            }
            Op::Conv(conv) => {
                let attrs = self.conv_attrs(conv, arg(0), arg(1));
                self.add(Opcode::Convolution, &dims, &args, attrs)
            }
            Op::Add => self.add(Opcode::Add, &dims, &args, Attrs::Plain),
            Op::Multiply => match self.mask_among(term) {
                Some((mask, other)) => {
                    let (mask, zeros) = (self.compared(mask, &dims), self.zeros(&dims));
                    let other = self.built[&other];
                    self.add(Opcode::Select, &dims, &[mask, other, zeros], Attrs::Plain)
                }
                None => self.add(Opcode::Multiply, &dims, &args, Attrs::Plain),
            },
            Op::Scale => {
                let repeated = self.add(Opcode::Broadcast, &dims, &[args[1]], DimsAttrs::default());
                self.add(Opcode::Multiply, &dims, &[args[0], repeated], Attrs::Plain)
            }
            Op::Unary(Unary::Relu) => {
                let zeros = self.zeros(&dims);
                self.add(Opcode::Maximum, &dims, &[args[0], zeros], Attrs::Plain)
            }
            Op::Unary(Unary::Exp) => self.add(Opcode::Exponential, &dims, &args, Attrs::Plain),
            Op::Unary(Unary::Step) | Op::Above => {
                let mask = self.compared(term, &dims);
                self.add(Opcode::Convert, &dims, &[mask], Attrs::Plain)
            }
            Op::Max => self.add(Opcode::Maximum, &dims, &args, Attrs::Plain),
            Op::Transpose(order) => {
                let dimensions = order.iter().map(|&d| i64::from(d)).collect();
                self.add(Opcode::Transpose, &dims, &args, DimsAttrs { dimensions })
            }
            Op::Reshape(_) => self.add(Opcode::Reshape, &dims, &args, ReshapeAttrs::default()),
            Op::Slice { .. } => self.composed_slice(term),
            Op::Pick { dim, place } => {
                let part = self.slice(arg(0), args[0], *dim, i64::from(*place), 1);
                self.add(Opcode::Reshape, &dims, &[part], ReshapeAttrs::default())
            }
            Op::Concat { dim } => self.add(Opcode::Concatenate, &dims, &args, DimsAttrs { dimensions: of(*dim) }),
            Op::Stack { dim } => {
                let mut row = dims.clone();
                row[usize::from(*dim)] = 1;
                let rows: Vec<InstId> =
                    args.iter().map(|&a| self.add(Opcode::Reshape, &row, &[a], ReshapeAttrs::default())).collect();
                self.add(Opcode::Concatenate, &dims, &rows, DimsAttrs { dimensions: of(*dim) })
            }
            Op::Pad { dim, low, high } => {
                let mut padding = vec![PadDim::default(); dims.len()];
                padding[usize::from(*dim)] = PadDim { low: number(low), high: number(high), interior: 0 };
                let zero = self.zero();
                self.add(Opcode::Pad, &dims, &[args[0], zero], PadAttrs { padding })
            }
            Op::Broadcast(new) => {
                let is_new = |d: &usize| new.iter().any(|n| usize::from(n.0) == *d);
                let dimensions = (0..dims.len()).filter(|d| !is_new(d)).map(|d| d as i64).collect();
                self.add(Opcode::Broadcast, &dims, &args, DimsAttrs { dimensions })
            }
            Op::Reduce(over) => {
                let (zero, sum) = (self.zero(), self.sum());
                let dimensions = over.iter().map(|&d| i64::from(d)).collect();
                self.add(Opcode::Reduce, &dims, &[args[0], zero], ReduceAttrs { dimensions, to_apply: Some(sum) })
            }
        })
    }

    /// The operands of a term, those of concatenations that are part of it in their place.
    fn parts(&self, term: TermId) -> Vec<TermId> {
        let is_part = |arg: &TermId| self.joined.contains(arg);
        let args = self.terms.node(term).args.iter();
        args.flat_map(|arg| if is_part(arg) { self.parts(*arg) } else { vec![*arg] }).collect()
    }

    /// The operand of a product that is a mask, and the other one.
    fn mask_among(&self, product: TermId) -> Option<(TermId, TermId)> {
        let args = &self.terms.node(product).args;
        let is_mask = |t: TermId| matches!(self.terms.node(t).op, Op::Unary(Unary::Step) | Op::Above);
        if is_mask(args[1]) { Some((args[1], args[0])) } else { is_mask(args[0]).then(|| (args[0], args[1])) }
    }

    /// Where a mask is one, as truth values.
    fn compared(&mut self, mask: TermId, dims: &[i64]) -> InstId {
        let args: Vec<InstId> = self.terms.node(mask).args.iter().map(|a| self.built[a]).collect();
        let right = args.get(1).copied().unwrap_or_else(|| self.zeros(dims));
        let shape = Shape::Array(ArrayShape::new(DType::Pred, dims.iter().copied()).with_row_major());
        let attrs = CompareAttrs { direction: Comparison::Gt, order: Word::default() };
        Builder::new(self.module, self.region.comp).add("above", Opcode::Compare, shape, [args[0], right], attrs)
    }

    /// A slice, and those that it is taken of, as one.
    fn composed_slice(&mut self, term: TermId) -> InstId {
        let dims = self.dims(term);
        let mut slice: Vec<SliceDim> = dims.iter().map(|&n| SliceDim { start: 0, limit: n, stride: 1 }).collect();
        let mut of = term;
        while let Op::Slice { dim, start, .. } = &self.terms.node(of).op {
            let (at, start) = (usize::from(*dim), number(start));
            (slice[at].start, slice[at].limit) = (slice[at].start + start, slice[at].limit + start);
            of = self.terms.node(of).args[0];
        }
        let inst = self.built[&of];
        self.add(Opcode::Slice, &dims, &[inst], SliceAttrs { slice })
    }

    fn slice(&mut self, of: TermId, inst: InstId, dim: u8, start: i64, size: i64) -> InstId {
        let mut dims = self.dims(of);
        let whole = |&n: &i64| SliceDim { start: 0, limit: n, stride: 1 };
        let mut slice: Vec<SliceDim> = dims.iter().map(whole).collect();
        slice[usize::from(dim)] = SliceDim { start, limit: start + size, stride: 1 };
        dims[usize::from(dim)] = size;
        self.add(Opcode::Slice, &dims, &[inst], SliceAttrs { slice })
    }

    fn conv_attrs(&self, conv: &Conv, x: TermId, w: TermId) -> ConvAttrs {
        let (input, kernel) = (self.dims(x), self.dims(w));
        let windows = conv.windows.iter().enumerate().map(|(s, w)| {
            let [stride, pad_low, base_dilation, window_dilation, out] =
                [&w.stride, &w.low, &w.base, &w.dilation, &w.out].map(number);
            // What the last window needs beyond the input; negative where it ends before it.
            let extent = (kernel[s + 2] - 1) * window_dilation + 1;
            let pad_high = (out - 1) * stride + extent - pad_low - ((input[s + 2] - 1) * base_dilation + 1);
            WindowDim {
                size: kernel[s + 2],
                stride,
                pad_low,
                pad_high,
                base_dilation,
                window_dilation,
                is_reversed: w.is_reversed,
            }
        });
        let spatial: Dims = (2..2 + conv.windows.len() as i64).collect();
        let dim_labels = ConvDims {
            input_batch: 0,
            input_feature: 1,
            input_spatial: spatial.clone(),
            kernel_output_feature: 0,
            kernel_input_feature: 1,
            kernel_spatial: spatial.clone(),
            output_batch: 0,
            output_feature: 1,
            output_spatial: spatial,
            ..ConvDims::default()
        };
        let count = |n: u8| (n > 1).then(|| i64::from(n));
        ConvAttrs {
            window: Window { dims: windows.collect() },
            dim_labels,
            feature_group_count: count(conv.feature_groups),
            batch_group_count: count(conv.batch_groups),
            operand_precision: self.region.precision.clone().unwrap_or_default().0,
            ..ConvAttrs::default()
        }
    }
}
