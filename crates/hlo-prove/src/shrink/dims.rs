//! Which dims of a program are one index space, and which are parts of others.

use super::atoms::{Atom, Atoms};
use hashbrown::HashMap;
use hlo_ir::attrs::{ConvAttrs, DimsAttrs, GatherAttrs, PadAttrs, ScatterAttrs, SliceAttrs, TupleIndexAttrs};
use hlo_ir::factors::{FactorRole, TensorFactors, find_factors};
use hlo_ir::op::{CalleeEntry, CollectiveRule, CollectiveSource, FactorRule, Flow};
use hlo_ir::{CompId, ConstantValue, InstId, Module, Shape};
use smallvec::SmallVec;

/// The atoms of an array's dims.
pub(super) type LeafDims = SmallVec<[Atom; 4]>;

/// The leaves of each instruction's result.
pub(super) type ModuleDims = HashMap<InstId, Vec<LeafDims>>;

/// A dim that holds elements of another one, without gaps.
struct Piece {
    whole: Atom,
    part: Atom,
    /// Numbers of the whole's elements that become smaller as the whole does: where the part begins, and its size.
    offsets: SmallVec<[i64; 3]>,
}

/// A module, as the dims of its values.
pub(super) struct Reader<'a> {
    module: &'a Module,
    atoms: &'a mut Atoms,
    pieces: &'a mut Pieces,
    dims: ModuleDims,
}

/// All parts of dims.
#[derive(Default)]
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Gives parts and wholes the same minor atoms, and then one divisor. No atom is split after this.
    pub(super) fn settle(&self, atoms: &mut Atoms) {
        // A split of one dim may make others split.
        for _ in 0..MAX_ROUNDS {
            for piece in &self.0 {
                let (_, minor) = piece.cut(atoms);
                let size: i64 = minor.iter().map(|&atom| atoms.size(atom)).product();
                let head = atoms.new_atom(atoms.size(piece.part) / size.max(1));
                let parts: Vec<Atom> = [head].into_iter().chain(minor).collect();
                atoms.unify(&[piece.part], &parts);
            }
        }
        for piece in &self.0 {
            let (major, minor) = piece.cut(atoms);
            let part = atoms.leaves(&[piece.part]);
            let n_major = part.len().saturating_sub(minor.len());
            let size: i64 = minor.iter().map(|&atom| atoms.size(atom)).product();
            match (major.as_slice(), &part[..n_major]) {
                ([whole], heads) if heads.len() < 2 && part.ends_with(&minor) => {
                    for offset in &piece.offsets {
                        atoms.bound(*whole, offset / size.max(1));
                    }
                    if let [head] = heads {
                        atoms.share_divisor(*whole, *head);
                    }
                }
                // Major atoms that are counted together keep their sizes.
                (_, heads) if part.ends_with(&minor) => {
                    atoms.fix(&major);
                    atoms.fix(heads);
                }
                (_, _) => atoms.fix(&[piece.whole, piece.part]),
            }
        }
    }
}

impl Piece {
    /// The whole's atoms: those that the offsets count, and the minor ones of which the part has all positions.
    fn cut(&self, atoms: &mut Atoms) -> (Vec<Atom>, Vec<Atom>) {
        let mut major = atoms.leaves(&[self.whole]);
        let mut size = 1;
        let mut n_minor = 0;
        for &atom in major.iter().rev() {
            let next = size * atoms.size(atom);
            if self.offsets.iter().any(|offset| offset % next != 0) {
                break;
            }
            (size, n_minor) = (next, n_minor + 1);
        }
        let minor = major.split_off(major.len() - n_minor);
        (major, minor)
    }
}

/// How often parts are held against wholes.
const MAX_ROUNDS: usize = 3;

impl<'a> Reader<'a> {
    pub(super) fn new(module: &'a Module, atoms: &'a mut Atoms, pieces: &'a mut Pieces) -> Reader<'a> {
        let mut dims = ModuleDims::new();
        for &comp in module.computations() {
            for &inst in &module.comp(comp).insts {
                let mut leaves = Vec::new();
                module.shape(inst).for_each_leaf(&mut |_, leaf| leaves.push(new_leaf(atoms, leaf)));
                dims.insert(inst, leaves);
            }
        }
        Reader { module, atoms, pieces, dims }
    }

    /// The dims of all values; `None` if the module has ops of which it is not known how they become smaller.
    pub(super) fn read(mut self) -> Option<ModuleDims> {
        let has_elements = |shape: &Shape| {
            let mut has = true;
            shape.for_each_leaf(&mut |_, leaf| has &= has_fixed_dims(leaf));
            has
        };
        for &comp in self.module.computations() {
            for &inst in &self.module.comp(comp).insts {
                if !has_elements(self.module.shape(inst)) {
                    return None;
                }
                self.read_inst(inst)?;
            }
        }
        Some(self.dims)
    }

    fn read_inst(&mut self, inst: InstId) -> Option<()> {
        let instruction = self.module.inst(inst);
        let row = instruction.opcode.row();
        match row.flow {
            Flow::Parameter | Flow::ReplicaId | Flow::PartitionId => {}
            Flow::Constant => self.constant(inst),
            Flow::Tuple => {
                let leaves = instruction.operands.iter().flat_map(|operand| self.leaves(*operand)).collect::<Vec<_>>();
                self.same(&leaves, &self.leaves(inst))?;
            }
            Flow::GetTupleElement => {
                let operand = *instruction.operands.first()?;
                let index = usize::try_from(TupleIndexAttrs::of(&instruction.attrs)?.index).ok()?;
                let range = self.module.shapes.element_leaves(self.module.inst(operand).shape, index);
                let leaves = self.leaves(operand).get(range)?.to_vec();
                self.same(&leaves, &self.leaves(inst))?;
            }
            Flow::Identity => {
                let first = self.leaves(*instruction.operands.first()?);
                self.same(&first, &self.leaves(inst))?;
            }
            Flow::Call => self.called(inst, CalleeEntry::Call)?,
            Flow::While => self.called(inst, CalleeEntry::Loop)?,
            Flow::Conditional => self.called(inst, CalleeEntry::Branches)?,
            Flow::Collective(rule) => self.collective(inst, rule)?,
            Flow::AsyncStart(_) | Flow::AsyncUpdate | Flow::AsyncDone => return None,
            Flow::All => self.array_op(inst),
        }
        Some(())
    }

    fn leaves(&self, inst: InstId) -> Vec<LeafDims> {
        self.dims.get(&inst).cloned().unwrap_or_default()
    }

    /// The dims of an array.
    fn array(&self, inst: InstId) -> LeafDims {
        self.dims.get(&inst).and_then(|leaves| leaves.first().cloned()).unwrap_or_default()
    }

    fn same(&mut self, a: &[LeafDims], b: &[LeafDims]) -> Option<()> {
        if a.len() != b.len() {
            return None;
        }
        for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
            self.atoms.unify(&[*a], &[*b]);
        }
        Some(())
    }

    /// A constant of several numbers keeps its size.
    fn constant(&mut self, inst: InstId) {
        let constant = self.module.inst(inst).attrs.as_constant();
        if !matches!(constant, Some(ConstantValue::Array(literal)) if literal.is_splat()) {
            self.fix_all(inst);
        }
    }

    fn fix_all(&mut self, inst: InstId) {
        for dims in self.leaves(inst) {
            self.atoms.fix(&dims);
        }
    }

    fn called(&mut self, inst: InstId, entry: CalleeEntry) -> Option<()> {
        let instruction = self.module.inst(inst);
        for (callee_idx, callee) in self.module.called(inst).into_iter().enumerate() {
            let callee: CompId = callee;
            for (k, &param) in self.module.comp(callee).params.iter().enumerate() {
                let operand = *instruction.operands.get(entry.operand(callee_idx, k))?;
                self.same(&self.leaves(operand), &self.leaves(param))?;
            }
            if entry.returns(callee_idx) {
                let root = self.module.comp(callee).root.expand()?;
                self.same(&self.leaves(root), &self.leaves(inst))?;
            }
        }
        if entry == CalleeEntry::Loop {
            self.same(&self.leaves(*instruction.operands.first()?), &self.leaves(inst))?;
        }
        Some(())
    }

    fn collective(&mut self, inst: InstId, rule: CollectiveRule) -> Option<()> {
        let instruction = self.module.inst(inst);
        let operands: Vec<LeafDims> = instruction.operands.iter().flat_map(|o| self.leaves(*o)).collect();
        let results = self.leaves(inst);
        let view = instruction.attrs.collective()?;
        if rule.source == CollectiveSource::Rows || view.is_in_place {
            return None;
        }
        let along = view.dim();
        if operands.len() != results.len() {
            return None;
        }
        for (operand, result) in operands.iter().zip(&results) {
            for (dim, (&a, &b)) in operand.iter().zip(result).enumerate() {
                let is_along = along == Some(dim);
                match (is_along && rule.scatters, is_along && rule.gathers) {
                    (false, false) => self.atoms.unify(&[a], &[b]),
                    (true, false) => self.of_members(a, b),
                    (false, true) => self.of_members(b, a),
                    // What members exchange are tiles of one size; how many there are is seen by no shape.
                    (true, true) => self.atoms.fix(&[a, b]),
                }
            }
        }
        Some(())
    }

    /// A dim that is one tile for each member of a group.
    fn of_members(&mut self, whole: Atom, tile: Atom) {
        let n_members = self.atoms.size(whole) / self.atoms.size(tile).max(1);
        let members = self.atoms.new_fixed(n_members);
        self.atoms.unify(&[whole], &[members, tile]);
    }

    fn array_op(&mut self, inst: InstId) {
        match self.module.inst(inst).opcode.row().factors {
            FactorRule::Slice => self.slice(inst),
            FactorRule::Pad => self.pad(inst),
            FactorRule::Concatenate => self.concatenate(inst),
            FactorRule::DynamicSlice => self.part_of(inst, 0, None),
            FactorRule::DynamicUpdateSlice => {
                let operand = self.module.inst(inst).operands.first().map_or_else(LeafDims::new, |&o| self.array(o));
                for (a, b) in operand.iter().zip(self.array(inst)) {
                    self.atoms.unify(&[*a], &[b]);
                }
                self.part_of(inst, 0, Some(1));
            }
            FactorRule::CustomCall | FactorRule::Structural(_) | FactorRule::Whole(_) => self.keep(inst),
            FactorRule::Elementwise
            | FactorRule::Broadcast
            | FactorRule::Reshape
            | FactorRule::Bitcast
            | FactorRule::BitcastConvert
            | FactorRule::Transpose
            | FactorRule::Reverse
            | FactorRule::Iota
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
            | FactorRule::BatchNorm => self.by_factors(inst),
        }
    }

    /// Keeps the sizes of all operands and results.
    fn keep(&mut self, inst: InstId) {
        self.fix_all(inst);
        for &operand in &self.module.inst(inst).operands {
            self.fix_all(operand);
        }
    }

    /// Dims that pass or are reduced are the op's factors; others keep their sizes.
    fn by_factors(&mut self, inst: InstId) {
        let instruction = self.module.inst(inst);
        let Ok(set) = find_factors(self.module, inst) else { return self.keep(inst) };
        let groups = ConvAttrs::of(&instruction.attrs)
            .is_some_and(|a| a.feature_group_count.unwrap_or(1) > 1 || a.batch_group_count.unwrap_or(1) > 1);
        if groups {
            return self.keep(inst);
        }
        let factors: Vec<Atom> = set.factors.iter().map(|factor| self.atoms.new_atom(factor.size)).collect();
        let operands: Vec<LeafDims> = instruction.operands.iter().map(|&operand| self.array(operand)).collect();
        for (dims, tensor) in operands.iter().zip(&set.operands) {
            self.tensor(dims, tensor, &factors);
        }
        for (dims, tensor) in self.leaves(inst).iter().zip(&set.results) {
            self.tensor(dims, tensor, &factors);
        }
        self.keep_indexed(inst);
    }

    fn tensor(&mut self, dims: &LeafDims, tensor: &TensorFactors, factors: &[Atom]) {
        for (&dim, uses) in dims.iter().zip(tensor) {
            let atoms: Vec<Atom> = uses.iter().filter_map(|one| factors.get(one.factor).copied()).collect();
            let passes = uses.iter().all(|one| match one.role {
                FactorRole::Pass | FactorRole::Reduce(_) | FactorRole::Own => true,
                FactorRole::Whole(_) | FactorRole::Shift => false,
            });
            if passes {
                self.atoms.unify(&[dim], &atoms);
            } else {
                self.atoms.fix(&[dim]);
                self.atoms.fix(&atoms);
            }
        }
    }

    /// Dims that indices point into keep their sizes: indices come from anywhere.
    fn keep_indexed(&mut self, inst: InstId) {
        let instruction = self.module.inst(inst);
        let indexed = match (GatherAttrs::of(&instruction.attrs), ScatterAttrs::of(&instruction.attrs)) {
            (Some(gather), _) => &gather.start_index_map,
            (None, Some(scatter)) => &scatter.scatter_dims_to_operand_dims,
            (None, None) => return,
        };
        let operand = instruction.operands.first().map_or_else(LeafDims::new, |&operand| self.array(operand));
        for dim in indexed.iter().filter_map(|&dim| operand.get(usize::try_from(dim).ok()?)) {
            self.atoms.fix(&[*dim]);
        }
        if let Some(gather) = GatherAttrs::of(&instruction.attrs) {
            for (&dim, &taken) in operand.iter().zip(&gather.slice_sizes) {
                if taken != self.atoms.size(dim) {
                    self.atoms.fix(&[dim]);
                }
            }
        }
    }

    fn piece(&mut self, whole: Atom, part: Atom, offsets: &[i64]) {
        let size = self.atoms.size(part);
        if size == self.atoms.size(whole) && offsets.iter().all(|&offset| offset == 0) {
            self.atoms.unify(&[whole], &[part]);
            return;
        }
        let offsets = offsets.iter().copied().chain([size]).filter(|&offset| offset != 0).collect();
        self.pieces.0.push(Piece { whole, part, offsets });
    }

    fn slice(&mut self, inst: InstId) {
        let instruction = self.module.inst(inst);
        let (Some(attrs), Some(&operand)) = (SliceAttrs::of(&instruction.attrs), instruction.operands.first()) else {
            return self.keep(inst);
        };
        for (range, (whole, part)) in attrs.slice.iter().zip(self.array(operand).into_iter().zip(self.array(inst))) {
            match range.stride {
                1 => self.piece(whole, part, &[range.start]),
                _ => self.atoms.fix(&[whole, part]),
            }
        }
    }

    fn pad(&mut self, inst: InstId) {
        let instruction = self.module.inst(inst);
        let (Some(attrs), Some(&operand)) = (PadAttrs::of(&instruction.attrs), instruction.operands.first()) else {
            return self.keep(inst);
        };
        for (pad, (part, whole)) in attrs.padding.iter().zip(self.array(operand).into_iter().zip(self.array(inst))) {
            match pad.interior == 0 && pad.low >= 0 && pad.high >= 0 {
                true => self.piece(whole, part, &[pad.low, pad.high]),
                false => self.atoms.fix(&[whole, part]),
            }
        }
    }

    fn concatenate(&mut self, inst: InstId) {
        let instruction = self.module.inst(inst);
        let along = DimsAttrs::of(&instruction.attrs).and_then(|attrs| attrs.dimensions.first().copied());
        let mut start = 0;
        for &operand in &instruction.operands {
            for (dim, (part, whole)) in self.array(operand).into_iter().zip(self.array(inst)).enumerate() {
                if along == Some(dim as i64) {
                    self.piece(whole, part, &[start]);
                    start += self.atoms.size(part);
                } else {
                    self.atoms.unify(&[part], &[whole]);
                }
            }
        }
    }

    /// A slice at run time: the result, or the operand that is written, is a part of operand `whole`.
    fn part_of(&mut self, inst: InstId, whole: usize, written: Option<usize>) {
        let operands = &self.module.inst(inst).operands;
        let (Some(&whole), Some(&part)) = (operands.get(whole), written.map_or(Some(&inst), |k| operands.get(k)))
        else {
            return;
        };
        for (whole, part) in self.array(whole).into_iter().zip(self.array(part)) {
            self.piece(whole, part, &[]);
        }
    }
}

/// Whether a leaf's sizes are known, and none is zero.
fn has_fixed_dims(leaf: &Shape) -> bool {
    match leaf {
        Shape::Array(array) | Shape::Buffer(array) => array.dynamic == 0 && array.dims.iter().all(|&size| size > 0),
        Shape::Tuple(_) | Shape::Token | Shape::Opaque => true,
    }
}

fn new_leaf(atoms: &mut Atoms, leaf: &Shape) -> LeafDims {
    match leaf {
        Shape::Array(array) | Shape::Buffer(array) => array.dims.iter().map(|&size| atoms.new_atom(size)).collect(),
        Shape::Tuple(_) | Shape::Token | Shape::Opaque => LeafDims::new(),
    }
}
