//! Instructions to terms.

use super::BridgeError;
use crate::op::{Conv, DimList, Dims, DotDims, Op, Unary, Window};
use crate::size::Size;
use crate::term::{Args, TermId, Terms};
use hlo_ir::attrs::{
    Attrs, CompareAttrs, Comparison, ConvAttrs, DimsAttrs, DotAttrs, PadAttrs, ReduceAttrs, SliceAttrs, Word,
};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{CompId, ConstantValue, DType, InstId, Module, NumberClass, Opcode};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

/// A set of instructions of one computation as terms.
#[derive(Clone, Debug)]
pub struct Region {
    /// The computation.
    pub comp: CompId,
    /// Element type of all its values.
    pub dtype: DType,
    /// Its terms; dims are numbers.
    pub terms: Terms,
    /// The values that it takes, by number of input.
    pub inputs: Vec<InstId>,
    /// The instructions whose values are taken outside, and the terms of these values.
    pub outputs: Vec<(InstId, TermId)>,
    /// Precision of dots and convolutions, alike for all of them.
    pub(super) precision: Option<(Vec<Word>, Word)>,
}

/// Most elements of an array in a region: products of sizes stay whole numbers of 64 bits.
const MOST_ELEMS: i64 = 1 << 40;
/// Most values that a region takes.
const MOST_INPUTS: usize = 120;

/// Reads a region. Constants and broadcasts of scalars that an op's meaning rests on need not be part of it.
///
/// # Errors
/// An instruction that no term stands for, or no value that is taken outside.
pub fn read_region(module: &Module, comp: CompId, insts: &[InstId]) -> Result<Region, BridgeError> {
    let Some(&first) = insts.first() else { return Err(BridgeError::NoResult) };
    let dtype = module.shape(first).as_array().map_or(DType::F32, |a| a.dtype);
    let region =
        Region { comp, dtype, terms: Terms::default(), inputs: Vec::new(), outputs: Vec::new(), precision: None };
    let mut reader = Reader { module, region, known: BTreeMap::new() };
    // Operands stand before users in a computation.
    for &inst in module.comp(comp).insts.iter().filter(|i| insts.contains(i)) {
        let term = reader.instruction(inst)?;
        reader.known.insert(inst, term);
    }
    let Reader { mut region, known, .. } = reader;
    let root = module.comp(comp).root.expand();
    for &inst in module.comp(comp).insts.iter().filter(|i| insts.contains(i)) {
        let takes = |&user: &InstId| module.inst(user).operands.contains(&inst);
        let is_taken = module.comp(comp).insts.iter().filter(|i| !insts.contains(i)).any(takes);
        let is_op = !matches!(region.terms.node(known[&inst]).op, Op::Input(_));
        if is_op && (is_taken || root == Some(inst)) {
            region.outputs.push((inst, known[&inst]));
        }
    }
    if region.outputs.is_empty() { Err(BridgeError::NoResult) } else { Ok(region) }
}

/// Runs of instructions that terms stand for, each of at most `n_ops` terms, in the order of the computation.
pub fn find_regions(module: &Module, comp: CompId, n_ops: usize) -> Vec<Vec<InstId>> {
    let (mut all, mut run): (Vec<Vec<InstId>>, Vec<InstId>) = (Vec::new(), Vec::new());
    for &inst in &module.comp(comp).insts {
        let mut longer = run.clone();
        longer.push(inst);
        let is_read = |insts: &[InstId]| match read_region(module, comp, insts) {
            Ok(region) => Some(region.terms.n_ops(&region.outputs.iter().map(|o| o.1).collect::<Vec<_>>())),
            Err(BridgeError::NoResult) => Some(0),
            Err(_) => None,
        };
        match is_read(&longer) {
            Some(n) if n <= n_ops => run = longer,
            Some(_) => {
                all.push(std::mem::replace(&mut run, vec![inst]));
            }
            // Another element type begins another run; what no term stands for is left out.
            None if is_read(&[inst]).is_some() => all.push(std::mem::replace(&mut run, vec![inst])),
            None => {}
        }
    }
    all.push(run);
    all.retain(|run| read_region(module, comp, run).is_ok());
    all
}

/// Reads an instruction of one opcode.
type Read = for<'m> fn(&mut Reader<'m>, InstId) -> Result<TermId, BridgeError>;

/// The opcodes that terms stand for. An instruction of any other one ends a region.
const READERS: [(Opcode, Read); 14] = [
    (Opcode::Add, |reader, inst| reader.binary(inst, Op::Add)),
    (Opcode::Multiply, |reader, inst| reader.multiply(inst)),
    (Opcode::Maximum, |reader, inst| reader.maximum(inst)),
    (Opcode::Exponential, |reader, inst| reader.unary(inst, Op::Unary(Unary::Exp))),
    (Opcode::Select, |reader, inst| reader.masked(inst)),
    (Opcode::Dot, |reader, inst| reader.dot(inst)),
    (Opcode::Convolution, |reader, inst| reader.convolution(inst)),
    (Opcode::Transpose, |reader, inst| reader.transpose(inst)),
    (Opcode::Reshape, |reader, inst| {
        let dims = reader.dims(inst)?;
        reader.unary(inst, Op::Reshape(dims))
    }),
    (Opcode::Slice, |reader, inst| reader.slice(inst)),
    (Opcode::Concatenate, |reader, inst| reader.concatenate(inst)),
    (Opcode::Pad, |reader, inst| reader.pad(inst)),
    (Opcode::Broadcast, |reader, inst| reader.broadcast(inst)),
    (Opcode::Reduce, |reader, inst| reader.reduce(inst)),
];

struct Reader<'m> {
    module: &'m Module,
    region: Region,
    known: BTreeMap<InstId, TermId>,
}

impl Reader<'_> {
    fn fail<T>(&self, inst: InstId, why: &'static str) -> Result<T, BridgeError> {
        Err(BridgeError::Unsupported { inst: self.module.inst_name(inst).to_string(), why })
    }

    fn dims(&self, inst: InstId) -> Result<Dims, BridgeError> {
        let array = self.module.shape(inst).as_array().filter(|a| a.dynamic == 0);
        let Some(array) = array else { return self.fail(inst, "no array of fixed dims") };
        let n = array.dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d).filter(|n| (1..=MOST_ELEMS).contains(n)));
        if n.is_none() || array.rank() > 8 {
            return self.fail(inst, "an array without elements, or too large a one");
        }
        Ok(array.dims.iter().map(|&d| Size::number(d)).collect())
    }

    /// The term of an operand: what was read, or an input.
    fn value(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        if let Some(&term) = self.known.get(&inst) {
            return Ok(term);
        }
        let dims = self.dims(inst)?;
        if self.region.inputs.len() >= MOST_INPUTS {
            return self.fail(inst, "too many inputs");
        }
        if self.module.shape(inst).as_array().is_none_or(|a| a.dtype != self.region.dtype) {
            return self.fail(inst, "another element type");
        }
        let term = self.region.terms.input(self.region.inputs.len() as u8, dims);
        self.region.inputs.push(inst);
        self.known.insert(inst, term);
        Ok(term)
    }

    fn add(&mut self, inst: InstId, op: Op, args: &[TermId]) -> Result<TermId, BridgeError> {
        match self.region.terms.add(op, args.iter().copied().collect::<Args>()) {
            Ok(term) => Ok(term),
            Err(_) => self.fail(inst, "operands that the term does not take"),
        }
    }

    /// The scalar that an instruction repeats.
    fn repeated_scalar(&self, inst: InstId) -> Option<InstId> {
        let node = self.module.inst(inst);
        let scalar = *node.operands.first()?;
        let is_scalar = self.module.shape(scalar).as_array().is_some_and(|a| a.rank() == 0);
        (node.opcode == Opcode::Broadcast && is_scalar).then_some(scalar)
    }

    /// Whether an instruction is zero everywhere.
    fn is_zero(&self, inst: InstId) -> bool {
        let inst = self.repeated_scalar(inst).unwrap_or(inst);
        let Attrs::Constant(value) = &self.module.inst(inst).attrs else { return false };
        let ConstantValue::Array(literal) = &**value else { return false };
        let is_one = literal.dims().iter().product::<i64>() == 1;
        is_one && matches!(literal.get(0), Some(hlo_ir::Scalar::Float(x)) if x == 0.0)
    }

    fn instruction(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let node = self.module.inst(inst).clone();
        self.dims(inst)?;
        if !node.control_predecessors().is_empty() {
            return self.fail(inst, "control predecessors");
        }
        let is_of_type = self.module.shape(inst).as_array().is_some_and(|a| a.dtype == self.region.dtype);
        if self.region.dtype.class() != NumberClass::Float || !is_of_type {
            return self.fail(inst, "another element type");
        }
        match READERS.iter().find(|reader| reader.0 == node.opcode) {
            Some((_, read)) => read(self, inst),
            None => self.fail(inst, "an op that no term stands for"),
        }
    }

    fn operand(&self, inst: InstId, k: usize) -> InstId {
        self.module.inst(inst).operands.get(k).copied().unwrap_or(inst)
    }

    /// Operands in both orders.
    fn orders(&self, inst: InstId) -> [(InstId, InstId); 2] {
        let (a, b) = (self.operand(inst, 0), self.operand(inst, 1));
        [(a, b), (b, a)]
    }

    fn unary(&mut self, inst: InstId, op: Op) -> Result<TermId, BridgeError> {
        let x = self.value(self.operand(inst, 0))?;
        self.add(inst, op, &[x])
    }

    /// The attributes of an instruction by their type; of a verified module they are those of the opcode.
    fn attrs<T: Clone>(&self, inst: InstId, of: impl Fn(&Attrs) -> Option<&T>) -> Result<T, BridgeError> {
        match of(&self.module.inst(inst).attrs) {
            Some(attrs) => Ok(attrs.clone()),
            None => self.fail(inst, "attributes of another op"),
        }
    }

    fn multiply(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let is_array = !self.dims(inst)?.is_empty();
        for (x, scalar) in self.orders(inst) {
            if let Some(scalar) = self.repeated_scalar(scalar).filter(|_| is_array) {
                let args = [self.value(x)?, self.value(scalar)?];
                return self.add(inst, Op::Scale, &args);
            }
        }
        self.binary(inst, Op::Multiply)
    }

    fn maximum(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        for (x, zero) in self.orders(inst) {
            if self.is_zero(zero) {
                let x = self.value(x)?;
                return self.add(inst, Op::Unary(Unary::Relu), &[x]);
            }
        }
        self.binary(inst, Op::Max)
    }

    fn transpose(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let attrs = self.attrs(inst, DimsAttrs::of)?;
        self.unary(inst, Op::Transpose(attrs.dimensions.iter().map(|&d| d as u8).collect()))
    }

    fn slice(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let attrs = self.attrs(inst, SliceAttrs::of)?;
        let mut x = self.value(self.operand(inst, 0))?;
        for (dim, s) in attrs.slice.iter().enumerate() {
            if s.stride > 1 {
                return self.fail(inst, "a slice with strides");
            }
            let (start, size) = (Size::number(s.start), Size::number(s.limit - s.start));
            if self.region.terms.dims(x)[dim] != size {
                x = self.add(inst, Op::Slice { dim: dim as u8, start, size }, &[x])?;
            }
        }
        Ok(x)
    }

    fn concatenate(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let attrs = self.attrs(inst, DimsAttrs::of)?;
        let dim = attrs.dimensions.first().map_or(0, |&d| d as u8);
        let operands = self.module.inst(inst).operands.clone();
        let mut x = self.value(self.operand(inst, 0))?;
        for &next in operands.iter().skip(1) {
            let next = self.value(next)?;
            x = self.add(inst, Op::Concat { dim }, &[x, next])?;
        }
        Ok(x)
    }

    fn pad(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let attrs = self.attrs(inst, PadAttrs::of)?;
        let is_plain = attrs.padding.iter().all(|p| p.interior == 0 && p.low >= 0 && p.high >= 0);
        if !is_plain || !self.is_zero(self.operand(inst, 1)) {
            return self.fail(inst, "a padding with gaps, with cuts, or of other values than zero");
        }
        let mut x = self.value(self.operand(inst, 0))?;
        for (dim, p) in attrs.padding.iter().enumerate().filter(|(_, p)| (p.low, p.high) != (0, 0)) {
            let (low, high) = (Size::number(p.low), Size::number(p.high));
            x = self.add(inst, Op::Pad { dim: dim as u8, low, high }, &[x])?;
        }
        Ok(x)
    }

    fn broadcast(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let kept = self.attrs(inst, DimsAttrs::of)?.dimensions;
        let dims = self.dims(inst)?;
        if !kept.windows(2).all(|w| w[0] < w[1]) {
            return self.fail(inst, "a broadcast that turns dims");
        }
        let new = (0..dims.len()).filter(|&d| !kept.contains(&(d as i64)));
        let new: SmallVec<[(u8, Size); 2]> = new.map(|d| (d as u8, dims[d].clone())).collect();
        if new.is_empty() { self.value(self.operand(inst, 0)) } else { self.unary(inst, Op::Broadcast(new)) }
    }

    fn reduce(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let attrs = self.attrs(inst, ReduceAttrs::of)?;
        let is_sum = attrs.to_apply.and_then(|c| find_monoid(self.module, c)) == Some(Monoid::Add);
        let is_one = self.module.inst(inst).operands.len() == 2;
        if !is_sum || !is_one || !self.is_zero(self.operand(inst, 1)) || attrs.dimensions.is_empty() {
            return self.fail(inst, "a reduction other than a sum from zero");
        }
        let mut over: DimList = attrs.dimensions.iter().map(|&d| d as u8).collect();
        over.sort();
        self.unary(inst, Op::Reduce(over))
    }

    fn binary(&mut self, inst: InstId, op: Op) -> Result<TermId, BridgeError> {
        let operands = self.module.inst(inst).operands.clone();
        let args = [self.value(operands[0])?, self.value(operands[1])?];
        self.add(inst, op, &args)
    }

    /// `select(x > 0, y, 0)`: relu's gradient.
    fn masked(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let operands = self.module.inst(inst).operands.clone();
        let compare = self.module.inst(operands[0]).clone();
        let is_above = CompareAttrs::of(&compare.attrs).is_some_and(|c| c.direction == Comparison::Gt);
        if compare.opcode != Opcode::Compare
            || !is_above
            || !self.is_zero(compare.operands[1])
            || !self.is_zero(operands[2])
        {
            return self.fail(inst, "a choice other than by the sign of a value, of another value or zero");
        }
        let x = self.value(compare.operands[0])?;
        let y = self.value(operands[1])?;
        let mask = self.add(inst, Op::Unary(Unary::Step), &[x])?;
        self.add(inst, Op::Multiply, &[y, mask])
    }

    fn precise(&mut self, inst: InstId, precision: &[Word], algorithm: &Word) -> Result<(), BridgeError> {
        // Products change their operands' places, and the words are said by place.
        if precision.windows(2).any(|words| words[0] != words[1]) {
            return self.fail(inst, "another precision for each operand");
        }
        let this = (precision.to_vec(), algorithm.clone());
        match &self.region.precision {
            Some(known) if *known != this => self.fail(inst, "another precision than the region's other products have"),
            Some(_) | None => {
                self.region.precision = Some(this);
                Ok(())
            }
        }
    }

    fn dot(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let attrs = self.attrs(inst, DotAttrs::of)?;
        self.precise(inst, &attrs.operand_precision, &attrs.algorithm)?;
        let pairs = |a: &[i64], b: &[i64]| a.iter().zip(b).map(|(&l, &r)| (l as u8, r as u8)).collect();
        let dims = DotDims {
            batch: pairs(&attrs.lhs_batch_dims, &attrs.rhs_batch_dims),
            contract: pairs(&attrs.lhs_contracting_dims, &attrs.rhs_contracting_dims),
        };
        self.binary(inst, Op::Dot(dims))
    }

    fn convolution(&mut self, inst: InstId) -> Result<TermId, BridgeError> {
        let attrs = self.attrs(inst, ConvAttrs::of)?;
        self.precise(inst, &attrs.operand_precision, &Word::default())?;
        let labels = &attrs.dim_labels;
        let order =
            |a: i64, b: i64, spatial: &[i64]| -> DimList { [a, b].iter().chain(spatial).map(|&d| d as u8).collect() };
        let x_order = order(labels.input_batch, labels.input_feature, &labels.input_spatial);
        let w_order = order(labels.kernel_output_feature, labels.kernel_input_feature, &labels.kernel_spatial);
        let out_order = order(labels.output_batch, labels.output_feature, &labels.output_spatial);
        let dims = self.dims(inst)?;
        let windows = attrs.window.dims.iter().zip(&labels.output_spatial).map(|(w, &d)| Window {
            stride: Size::number(w.stride),
            low: Size::number(w.pad_low),
            base: Size::number(w.base_dilation),
            dilation: Size::number(w.window_dilation),
            out: dims[d as usize].clone(),
            is_reversed: w.is_reversed,
        });
        let groups = |n: Option<i64>| u8::try_from(n.unwrap_or(1)).ok().filter(|n| *n <= 8);
        let (Some(feature_groups), Some(batch_groups)) =
            (groups(attrs.feature_group_count), groups(attrs.batch_group_count))
        else {
            return self.fail(inst, "more than 8 groups");
        };
        let conv = Conv { windows: windows.collect(), feature_groups, batch_groups };
        let operands = self.module.inst(inst).operands.clone();
        let x = self.value(operands[0])?;
        let x = self.turned(inst, x, x_order)?;
        let w = self.value(operands[1])?;
        let w = self.turned(inst, w, w_order)?;
        let result = self.add(inst, Op::Conv(Box::new(conv)), &[x, w])?;
        let place = |d: usize| out_order.iter().position(|&o| usize::from(o) == d).unwrap_or_default() as u8;
        let back: DimList = (0..out_order.len()).map(place).collect();
        self.turned(inst, result, back)
    }

    fn turned(&mut self, inst: InstId, term: TermId, order: DimList) -> Result<TermId, BridgeError> {
        if order.iter().enumerate().all(|(i, &d)| i == usize::from(d)) {
            return Ok(term);
        }
        self.add(inst, Op::Transpose(order), &smallvec![term] as &SmallVec<[TermId; 1]>)
    }
}
