//! Integers that count positions of a dim: they become smaller as the dim does.

use super::atoms::{Atom, Atoms, Divisors, gcd};
use super::dims::ModuleDims;
use hashbrown::HashMap;
use hlo_ir::attrs::{IotaAttrs, TupleIndexAttrs};
use hlo_ir::op::{CalleeEntry, FactorRule, Flow};
use hlo_ir::{CompId, ConstantValue, InstId, Literal, Module, NumberClass, Opcode, Scalar, Shape};

/// What the integers of a leaf count: leaves with one unit become smaller by one divisor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Unit(u32);

#[derive(Clone, Debug, Default)]
struct Entry {
    same: Option<Unit>,
    /// The dims whose positions they count.
    counted: Vec<Atom>,
    /// They stay as they are.
    is_plain: bool,
    /// What all constants among them are multiples of.
    common: i64,
}

/// The units of one module's integers.
pub(super) struct Units<'a> {
    module: &'a Module,
    dims: &'a ModuleDims,
    entries: Vec<Entry>,
    /// By instruction and leaf. Floats and truth values have none, nor zeros, which are zeros of any unit.
    of_leaf: HashMap<(InstId, usize), Unit>,
}

/// Ops that give what they take, moved or chosen: all their integers have one unit.
const KEEPING: [Opcode; 19] = [
    Opcode::Add,
    Opcode::Subtract,
    Opcode::Maximum,
    Opcode::Minimum,
    Opcode::Negate,
    Opcode::Abs,
    Opcode::Clamp,
    Opcode::Select,
    Opcode::Compare,
    Opcode::Copy,
    Opcode::Broadcast,
    Opcode::Reshape,
    Opcode::Bitcast,
    Opcode::Transpose,
    Opcode::Reverse,
    Opcode::Slice,
    Opcode::Concatenate,
    Opcode::Pad,
    Opcode::Convert,
];

impl<'a> Units<'a> {
    pub(super) fn read(module: &'a Module, dims: &'a ModuleDims) -> Option<Units<'a>> {
        let mut units = Units { module, dims, entries: Vec::new(), of_leaf: HashMap::new() };
        for &comp in module.computations() {
            for &inst in &module.comp(comp).insts {
                units.new_units(inst);
            }
        }
        for &comp in module.computations() {
            for &inst in &module.comp(comp).insts {
                units.read_inst(inst, Some(comp) == module.entry())?;
            }
        }
        Some(units)
    }

    fn new_units(&mut self, inst: InstId) {
        let zero = self.constant(inst).is_some_and(|literal| common(literal) == Some(0));
        let mut leaf = 0;
        self.module.shape(inst).for_each_leaf(&mut |_, shape| {
            if is_integer(shape) && !zero {
                self.of_leaf.insert((inst, leaf), Unit(self.entries.len() as u32));
                self.entries.push(Entry::default());
            }
            leaf += 1;
        });
    }

    fn constant(&self, inst: InstId) -> Option<&'a Literal> {
        match self.module.inst(inst).attrs.as_constant()? {
            ConstantValue::Array(literal) => Some(literal),
            ConstantValue::Tuple(_) | ConstantValue::Elided => None,
        }
    }

    fn first_same(&self, unit: Unit) -> Unit {
        let mut unit = unit;
        while let Some(next) = self.entries[unit.0 as usize].same {
            unit = next;
        }
        unit
    }

    fn unit(&self, inst: InstId, leaf: usize) -> Option<Unit> {
        self.of_leaf.get(&(inst, leaf)).map(|&unit| self.first_same(unit))
    }

    fn join(&mut self, a: (InstId, usize), b: (InstId, usize)) {
        let (Some(a), Some(b)) = (self.unit(a.0, a.1), self.unit(b.0, b.1)) else { return };
        if a == b {
            return;
        }
        let (kept, gone) = if a.0 < b.0 { (a, b) } else { (b, a) };
        let gone =
            std::mem::replace(&mut self.entries[gone.0 as usize], Entry { same: Some(kept), ..Entry::default() });
        let entry = &mut self.entries[kept.0 as usize];
        entry.counted.extend(gone.counted);
        entry.is_plain |= gone.is_plain;
        entry.common = gcd(entry.common, gone.common);
    }

    fn entry_mut(&mut self, inst: InstId, leaf: usize) -> Option<&mut Entry> {
        let unit = self.unit(inst, leaf)?;
        self.entries.get_mut(unit.0 as usize)
    }

    fn plain(&mut self, inst: InstId) {
        for leaf in 0..self.module.shape(inst).n_leaves() {
            if let Some(entry) = self.entry_mut(inst, leaf) {
                entry.is_plain = true;
            }
        }
    }

    fn counts(&mut self, inst: InstId, dim: Option<Atom>) {
        if let (Some(entry), Some(dim)) = (self.entry_mut(inst, 0), dim) {
            entry.counted.push(dim);
        }
    }

    fn dim(&self, inst: InstId, dim: usize) -> Option<Atom> {
        self.dims.get(&inst)?.first()?.get(dim).copied()
    }

    fn read_inst(&mut self, inst: InstId, is_entry: bool) -> Option<()> {
        let instruction = self.module.inst(inst);
        let operands = instruction.operands.clone();
        match instruction.opcode.row().flow {
            Flow::Parameter if is_entry => self.plain(inst),
            Flow::Parameter => {}
            Flow::ReplicaId | Flow::PartitionId => self.plain(inst),
            Flow::Constant => match self.constant(inst).map(common) {
                Some(Some(number)) => {
                    if let Some(entry) = self.entry_mut(inst, 0) {
                        entry.common = number;
                    }
                }
                Some(None) | None => self.plain(inst),
            },
            Flow::Tuple => {
                let mut place = 0;
                for operand in operands {
                    for leaf in 0..self.module.shape(operand).n_leaves() {
                        self.join((operand, leaf), (inst, place));
                        place += 1;
                    }
                }
            }
            Flow::GetTupleElement => {
                let operand = *operands.first()?;
                let index = usize::try_from(TupleIndexAttrs::of(&instruction.attrs)?.index).ok()?;
                let range = self.module.shapes.element_leaves(self.module.inst(operand).shape, index);
                for (leaf, of_operand) in range.enumerate() {
                    self.join((operand, of_operand), (inst, leaf));
                }
            }
            Flow::Identity => self.same_leaves(*operands.first()?, inst),
            Flow::Call => self.called(inst, CalleeEntry::Call)?,
            Flow::While => self.called(inst, CalleeEntry::Loop)?,
            Flow::Conditional => {
                self.plain(*operands.first()?);
                self.called(inst, CalleeEntry::Branches)?;
            }
            Flow::Collective(_) | Flow::AsyncStart(_) | Flow::AsyncUpdate | Flow::AsyncDone => {
                self.all_plain(inst);
            }
            Flow::All => self.op(inst),
        }
        Some(())
    }

    fn all_plain(&mut self, inst: InstId) {
        self.plain(inst);
        for operand in self.module.inst(inst).operands.clone() {
            self.plain(operand);
        }
    }

    fn same_leaves(&mut self, a: InstId, b: InstId) {
        for leaf in 0..self.module.shape(a).n_leaves() {
            self.join((a, leaf), (b, leaf));
        }
    }

    fn called(&mut self, inst: InstId, entry: CalleeEntry) -> Option<()> {
        let operands = self.module.inst(inst).operands.clone();
        for (callee_idx, callee) in self.module.called(inst).into_iter().enumerate() {
            let callee: CompId = callee;
            for (k, &param) in self.module.comp(callee).params.iter().enumerate() {
                self.same_leaves(*operands.get(entry.operand(callee_idx, k))?, param);
            }
            if entry.returns(callee_idx) {
                self.same_leaves(self.module.comp(callee).root.expand()?, inst);
            }
        }
        if entry == CalleeEntry::Loop {
            self.same_leaves(*operands.first()?, inst);
        }
        Some(())
    }

    fn op(&mut self, inst: InstId) {
        let instruction = self.module.inst(inst);
        let operands = instruction.operands.clone();
        match instruction.opcode.row().factors {
            FactorRule::Iota => {
                let along = IotaAttrs::of(&instruction.attrs).and_then(|a| usize::try_from(a.iota_dimension).ok());
                let dim = along.and_then(|along| self.dim(inst, along));
                return self.counts(inst, dim);
            }
            FactorRule::DynamicSlice => return self.indexed(inst, &operands[..1], &operands[1..]),
            FactorRule::DynamicUpdateSlice => return self.indexed(inst, &operands[..2], &operands[2..]),
            FactorRule::Elementwise
            | FactorRule::Broadcast
            | FactorRule::Reshape
            | FactorRule::Bitcast
            | FactorRule::BitcastConvert
            | FactorRule::Transpose
            | FactorRule::Reverse
            | FactorRule::Slice
            | FactorRule::Pad
            | FactorRule::Concatenate
            | FactorRule::Dot
            | FactorRule::Convolution
            | FactorRule::Reduce
            | FactorRule::ReduceWindow
            | FactorRule::SelectAndScatter
            | FactorRule::Sort
            | FactorRule::Gather
            | FactorRule::Scatter
            | FactorRule::Cholesky
            | FactorRule::TriangularSolve
            | FactorRule::Fft
            | FactorRule::BatchNorm
            | FactorRule::CustomCall
            | FactorRule::Structural(_)
            | FactorRule::Whole(_) => {}
        }
        if KEEPING.contains(&instruction.opcode) {
            self.keeping(inst, &operands);
        } else if instruction.opcode == Opcode::Multiply
            && let Some(number) = operands.iter().position(|&operand| self.is_number(operand))
        {
            // So many positions for each: the number is of the product's unit, the other factor counts.
            if let Some(&other) = operands.get(1 - number) {
                self.plain(other);
            }
            self.join((operands[number], 0), (inst, 0));
        } else {
            self.all_plain(inst);
        }
    }

    /// All operands have the unit of the result, or of one another. Numbers of positions become no other numbers.
    fn keeping(&mut self, inst: InstId, operands: &[InstId]) {
        let is_number = |shape: &Shape| shape.as_array().is_some_and(|array| is_integer_class(array.dtype.class()));
        let may_become_other = [Opcode::Convert, Opcode::Bitcast].contains(&self.module.inst(inst).opcode);
        let are_all_numbers = operands.iter().chain([&inst]).all(|&inst| is_number(self.module.shape(inst)));
        if may_become_other && !are_all_numbers {
            return self.all_plain(inst);
        }
        let mut last = inst;
        for &operand in operands {
            self.join((last, 0), (operand, 0));
            if self.unit(operand, 0).is_some() {
                last = operand;
            }
        }
    }

    /// Indices count positions of the first operand's dims; the arrays have one unit.
    fn indexed(&mut self, inst: InstId, arrays: &[InstId], indices: &[InstId]) {
        for &array in arrays {
            self.join((inst, 0), (array, 0));
        }
        let is_vector =
            indices.first().is_some_and(|&index| self.module.shape(index).as_array().is_some_and(|a| a.rank() > 0));
        let rank = arrays.first().and_then(|&array| self.module.shape(array).as_array()).map_or(0, |a| a.rank());
        for k in 0..rank {
            // One vector has the indices of all dims.
            let Some(&index) = indices.get(if is_vector { 0 } else { k }) else { continue };
            let dim = arrays.first().and_then(|&array| self.dim(array, k));
            self.counts(index, dim);
            if is_vector {
                self.plain(index);
            }
        }
    }

    /// Whether a value is one number that stands in the module.
    fn is_number(&self, inst: InstId) -> bool {
        let mut inst = inst;
        loop {
            let instruction = self.module.inst(inst);
            if instruction.opcode == Opcode::Constant {
                return self.constant(inst).is_some();
            }
            let passes = [Opcode::Broadcast, Opcode::Reshape, Opcode::Convert, Opcode::Copy];
            match instruction.operands.first() {
                Some(&operand) if passes.contains(&instruction.opcode) => inst = operand,
                Some(_) | None => return false,
            }
        }
    }

    /// Gives dims that are counted by one unit one divisor, and that divisor to what counts them.
    pub(super) fn settle(&self, atoms: &mut Atoms) {
        for entry in self.entries.iter().filter(|entry| entry.same.is_none() && !entry.counted.is_empty()) {
            let mut lists: Vec<Vec<Atom>> = Vec::new();
            for &dim in &entry.counted {
                let mut free = atoms.leaves(&[dim]);
                free.retain(|&leaf| atoms.is_free(leaf));
                if !lists.contains(&free) {
                    lists.push(free);
                }
            }
            if entry.is_plain {
                lists.iter().for_each(|list| atoms.fix(list));
                continue;
            }
            match lists.as_slice() {
                [only] => atoms.bound_product(only, entry.common),
                [first, rest @ ..] if lists.iter().all(|list| list.len() == 1) => {
                    rest.iter().for_each(|list| atoms.share_divisor(first[0], list[0]));
                    atoms.bound_product(first, entry.common);
                }
                _ => lists.iter().for_each(|list| atoms.fix(list)),
            }
        }
    }

    /// By what the integers of a leaf are divided.
    pub(super) fn divisor(&self, inst: InstId, atoms: &mut Atoms, divisors: &Divisors) -> i64 {
        let Some(unit) = self.unit(inst, 0) else { return 1 };
        let entry = &self.entries[unit.0 as usize];
        match entry.counted.first() {
            Some(&dim) if !entry.is_plain => atoms.divisor(&[dim], divisors),
            Some(_) | None => 1,
        }
    }
}

fn is_integer(shape: &Shape) -> bool {
    match shape {
        Shape::Array(array) | Shape::Buffer(array) => is_integer_class(array.dtype.class()),
        Shape::Tuple(_) | Shape::Token | Shape::Opaque => false,
    }
}

fn is_integer_class(class: NumberClass) -> bool {
    match class {
        NumberClass::Signed | NumberClass::Unsigned => true,
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => false,
    }
}

/// The largest number of which all elements are multiples; `None` if some are no integers.
fn common(literal: &Literal) -> Option<i64> {
    let n = if literal.is_splat() { literal.n_elems().min(1) } else { literal.n_elems() };
    (0..n).try_fold(0, |common, k| match literal.get(k)? {
        Scalar::Int(value) => Some(gcd(common, value)),
        Scalar::Uint(value) => Some(gcd(common, i64::try_from(value).ok()?)),
        Scalar::Pred(_) | Scalar::Float(_) | Scalar::Complex(..) => None,
    })
}
