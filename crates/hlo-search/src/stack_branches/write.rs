//! Writes branches as one: each group of ops becomes one op on stacked values.

use super::find::{Branches, GroupId};
use super::stacked_op::{OperandForm, is_same_everywhere, operand_form, stacked_attrs};
use crate::rewritable::may_lie_otherwise;
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_ir::attrs::{Attrs, DimsAttrs, DotAttrs, ReduceAttrs, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::edit::Builder;
use hlo_ir::names::FixedHash;
use hlo_ir::shape::Dims;
use hlo_ir::{ArrayShape, CompId, InstId, Literal, Module, NumberClass, Opcode, Scalar, Shape};
use indexmap::IndexMap;

/// What a branch's value is sliced out of, and what stands in the place of values of all branches.
pub(super) struct Writer<'m> {
    module: &'m mut Module,
    branches: &'m Branches,
    /// By group, the op on stacked operands.
    stacked: SecondaryMap<GroupId, Option<InstId>>,
    /// Values put beside each other, and one value repeated.
    joined: IndexMap<Vec<InstId>, InstId, FixedHash>,
    picked: IndexMap<(GroupId, usize), InstId, FixedHash>,
    /// Sums of two values, by element type.
    sums: IndexMap<hlo_ir::DType, CompId, FixedHash>,
    /// Groups of parameters that come in as one.
    held: EntitySet<GroupId>,
    /// How many operands each instruction of the program as it was is.
    n_uses: SecondaryMap<InstId, u32>,
}

/// The most values that a sum of branches is followed through.
const MOST_SUMMANDS: usize = 1024;

impl<'m> Writer<'m> {
    pub(super) fn new(module: &'m mut Module, branches: &'m Branches) -> Writer<'m> {
        let mut n_uses: SecondaryMap<InstId, u32> = SecondaryMap::new();
        for &inst in &module.comp(branches.comp).insts {
            module.inst(inst).operands.iter().for_each(|&operand| n_uses[operand] += 1);
        }
        Writer {
            n_uses,
            held: EntitySet::new(),
            module,
            branches,
            stacked: SecondaryMap::new(),
            joined: IndexMap::default(),
            picked: IndexMap::default(),
            sums: IndexMap::default(),
        }
    }

    /// Has a group come in as this parameter, which holds the values of all branches.
    pub(super) fn set_stacked(&mut self, group: GroupId, param: InstId) {
        self.stacked[group] = Some(param);
        self.held.insert(group);
    }

    /// The op of a group.
    pub(super) fn stacked(&self, group: GroupId) -> Option<InstId> {
        self.stacked[group]
    }

    /// Writes every group's op, and has what takes a branch's value take a part of it.
    pub(super) fn write(&mut self) {
        let insts: Vec<InstId> = self.module.comp(self.branches.comp).insts.clone();
        for &group in &self.branches.order {
            if self.stacked[group].is_none() {
                let op = self.write_group(group);
                self.stacked[group] = Some(op);
            }
        }
        // The smallest sum that has all branches is written.
        let sums: Vec<InstId> = insts.iter().copied().filter(|&inst| self.write_sum(inst)).collect();
        for inst in insts {
            if sums.contains(&inst) {
                continue;
            }
            for k in 0..self.module.inst(inst).operands.len() {
                let one = self.single(self.module.inst(inst).operands[k]);
                self.module.set_operand(inst, k, one);
            }
        }
    }

    /// The value of an instruction of the program as it was: where it is one branch's, the part of the value of all.
    fn single(&mut self, inst: InstId) -> InstId {
        match self.branches.of[inst] {
            Some((group, branch)) => self.picked(group, branch),
            None => inst,
        }
    }

    fn array(&self, inst: InstId) -> ArrayShape {
        self.module.shape(inst).as_array().cloned().unwrap_or_else(|| ArrayShape::new(hlo_ir::DType::F32, []))
    }

    fn add(&mut self, like: InstId, opcode: Opcode, dims: &[i64], operands: &[InstId], attrs: Attrs) -> InstId {
        let (hint, dtype) = (self.module.inst_name(like).to_string(), self.array(like).dtype);
        let shape = Shape::Array(ArrayShape::new(dtype, dims.iter().copied()).with_row_major());
        let metadata = self.module.inst(like).marks.as_ref().and_then(|marks| marks.metadata.clone());
        let mut builder = Builder::new(self.module, self.branches.comp);
        let new = builder.add(&hint, opcode, shape, operands.iter().copied(), attrs);
        if metadata.is_some() {
            self.module.marks_mut(new).metadata = metadata;
        }
        new
    }

    fn write_group(&mut self, group: GroupId) -> InstId {
        let insts = self.branches.groups[group].clone();
        let first = insts[0];
        if self.module.inst(first).opcode == Opcode::Parameter {
            return self.joined(&insts);
        }
        if let Some(product) = self.write_product_of_one(&insts) {
            return product;
        }
        let n_operands = self.module.inst(first).operands.len();
        let operands: Vec<InstId> = (0..n_operands)
            .map(|k| {
                let theirs: Vec<InstId> = insts.iter().map(|&inst| self.module.inst(inst).operands[k]).collect();
                match operand_form(self.module, first, k) {
                    Some(OperandForm::Same) | None => self.single(theirs[0]),
                    Some(OperandForm::Stacked) => self.value_of_all(&theirs),
                }
            })
            .collect();
        let attrs = stacked_attrs(self.module, first, insts.len());
        let dims = self.with_branches(&insts);
        let opcode = self.module.inst(first).opcode;
        let new = self.add(first, opcode, &dims, &operands, attrs);
        let attributes = self.module.inst(first).marks.as_ref().map(|marks| marks.frontend_attributes.clone());
        if let Some(attributes) = attributes.filter(|attributes| !attributes.is_empty()) {
            self.module.marks_mut(new).frontend_attributes = attributes;
        }
        new
    }

    /// Products that share an operand: the branches are a dim of the other operand alone, and that of no pair of dims.
    fn write_product_of_one(&mut self, insts: &[InstId]) -> Option<InstId> {
        let mut attrs = DotAttrs::of(&self.module.inst(insts[0]).attrs)?.clone();
        let [left, right] = [0, 1].map(|k| insts.iter().map(|&i| self.module.inst(i).operands[k]).collect::<Vec<_>>());
        let shares_left = is_same_everywhere(self.module, &left);
        let is_shared = shares_left != is_same_everywhere(self.module, &right);
        if !is_shared || !attrs.lhs_batch_dims.is_empty() {
            return None;
        }
        let own = self.with_branches(insts);
        if !shares_left {
            attrs.lhs_contracting_dims.iter_mut().for_each(|dim| *dim += 1);
            let operands = [self.value_of_all(&left), self.single(right[0])];
            return Some(self.add(insts[0], Opcode::Dot, &own, &operands, attrs.into()));
        }
        let n_left = self.array(left[0]).rank() - attrs.lhs_contracting_dims.len();
        attrs.rhs_contracting_dims.iter_mut().for_each(|dim| *dim += 1);
        let operands = [self.single(left[0]), self.value_of_all(&right)];
        // The free dims of the left operand, the branches, those of the right one.
        let dims: Vec<i64> = own[1..=n_left].iter().chain(&own[..1]).chain(&own[1 + n_left..]).copied().collect();
        let product = self.add(insts[0], Opcode::Dot, &dims, &operands, attrs.into());
        let dimensions = std::iter::once(n_left).chain((0..dims.len()).filter(|&dim| dim != n_left));
        let attrs = DimsAttrs { dimensions: dimensions.map(|dim| dim as i64).collect() };
        Some(self.add(insts[0], Opcode::Transpose, &own, &[product], attrs.into()))
    }

    /// The dims of the values of all branches as one.
    fn with_branches(&self, insts: &[InstId]) -> Vec<i64> {
        std::iter::once(insts.len() as i64).chain(self.array(insts[0]).dims.iter().copied()).collect()
    }

    /// The values of all branches as one.
    fn value_of_all(&mut self, insts: &[InstId]) -> InstId {
        let group = self.branches.group_of_all(insts).and_then(|group| self.stacked[group]);
        group.unwrap_or_else(|| self.joined(insts))
    }

    fn joined(&mut self, insts: &[InstId]) -> InstId {
        if let Some(&known) = self.joined.get(insts) {
            return known;
        }
        let (first, dims) = (insts[0], self.with_branches(insts));
        let new = match is_same_everywhere(self.module, insts) {
            true => {
                let dimensions = (1..dims.len() as i64).collect();
                let one = self.single(first);
                self.add(first, Opcode::Broadcast, &dims, &[one], DimsAttrs { dimensions }.into())
            }
            false => {
                let row: Vec<i64> = std::iter::once(1).chain(dims[1..].iter().copied()).collect();
                let rows: Vec<InstId> = insts
                    .iter()
                    .map(|&inst| {
                        let inst = self.single(inst);
                        self.add(inst, Opcode::Reshape, &row, &[inst], ReshapeAttrs::default().into())
                    })
                    .collect();
                let attrs = DimsAttrs { dimensions: Dims::from_slice(&[0]) };
                self.add(first, Opcode::Concatenate, &dims, &rows, attrs.into())
            }
        };
        self.joined.insert(insts.to_vec(), new);
        new
    }

    /// The value of one branch.
    fn picked(&mut self, group: GroupId, branch: usize) -> InstId {
        if let Some(&known) = self.picked.get(&(group, branch)) {
            return known;
        }
        let inst = self.branches.groups[group][branch];
        // A parameter that comes in as it did needs not be taken out of what was made of it.
        let is_kept = self.module.inst(inst).opcode == Opcode::Parameter && !self.held.contains(group);
        let Some(of) = self.stacked[group].filter(|_| !is_kept) else { return inst };
        let part = pick(self.module, of, branch);
        self.picked.insert((group, branch), part);
        part
    }

    /// A sum of which the values of all branches are a part, if an instruction is one: they are added up along the branches.
    fn write_sum(&mut self, inst: InstId) -> bool {
        let array = self.array(inst);
        let is_sum = self.module.inst(inst).opcode == Opcode::Add
            && array.dtype.class() == NumberClass::Float
            && may_lie_otherwise(self.module, inst, &self.branches.seen)
            && !self.is_ordered(inst);
        let Some(summands) = self.summands(inst).filter(|_| is_sum && self.branches.of[inst].is_none()) else {
            return false;
        };
        let mut branches: IndexMap<GroupId, InstId, FixedHash> = IndexMap::default();
        for (group, _) in summands.iter().filter_map(|&summand| self.branches.of[summand]) {
            let has_all = |one: &InstId| summands.iter().filter(|&summand| summand == one).count() == 1;
            if let Some(stacked) = self.stacked[group].filter(|_| self.branches.groups[group].iter().all(has_all)) {
                branches.insert(group, stacked);
            }
        }
        if branches.is_empty() {
            return false;
        }
        let (of, groups) = (&self.branches.of, &branches);
        let is_left = |summand: &InstId| of[*summand].is_none_or(|(group, _)| !groups.contains_key(&group));
        let left: Vec<InstId> = summands.iter().copied().filter(is_left).collect();
        let mut terms: Vec<InstId> = branches.values().map(|&stacked| self.sum_of(stacked, inst)).collect();
        for summand in left {
            let term = match self.branches.of[summand] {
                Some((group, branch)) => self.picked(group, branch),
                None => summand,
            };
            terms.push(term);
        }
        let mut terms = terms.into_iter();
        let Some(mut sum) = terms.next() else { return false };
        for term in terms {
            sum = self.add(inst, Opcode::Add, &array.dims, &[sum, term], Attrs::Plain);
        }
        self.module.replace_all_uses(inst, sum);
        true
    }

    /// The sum of all branches' values, in the shape of `like`.
    fn sum_of(&mut self, stacked: InstId, like: InstId) -> InstId {
        let array = self.array(like);
        let sum = self.sum(array.dtype);
        // What is added to it stays as it is, a zero with a sign too.
        let zero = Literal::scalar(array.dtype, Scalar::Float(-0.0));
        let zero = Builder::new(self.module, self.branches.comp).constant("zero", zero);
        let attrs = ReduceAttrs { dimensions: Dims::from_slice(&[0]), to_apply: Some(sum) };
        self.add(like, Opcode::Reduce, &array.dims, &[stacked, zero], attrs.into())
    }

    /// What a tree of sums adds up. Sums that are taken elsewhere too, and those without a branch's value, stay whole.
    fn summands(&self, inst: InstId) -> Option<Vec<InstId>> {
        // In order of the operands, each with whether a branch's value is in it.
        let mut all: Vec<(InstId, bool)> = Vec::new();
        let mut open: Vec<(InstId, Option<usize>)> = vec![(inst, None)];
        while let Some((value, first)) = open.pop() {
            let node = self.module.inst(value);
            match first {
                // What a sum is made of stands behind this place.
                Some(first) => {
                    if value != inst && all[first..].iter().all(|(_, has_branch)| !has_branch) {
                        all.truncate(first);
                        all.push((value, false));
                    }
                }
                None if value == inst || self.is_summed(value) => {
                    open.push((value, Some(all.len())));
                    open.extend(node.operands.iter().rev().map(|&operand| (operand, None)));
                }
                None => all.push((value, self.branches.of[value].is_some())),
            }
            if open.len() + all.len() > MOST_SUMMANDS {
                return None;
            }
        }
        Some(all.into_iter().map(|(value, _)| value).collect())
    }

    /// Whether a sum is taken by another one alone.
    fn is_summed(&self, value: InstId) -> bool {
        let node = self.module.inst(value);
        node.opcode == Opcode::Add
            && self.branches.of[value].is_none()
            && self.n_uses[value] == 1
            && !self.is_ordered(value)
    }

    /// Whether something must have run before.
    fn is_ordered(&self, inst: InstId) -> bool {
        !self.module.inst(inst).control_predecessors().is_empty()
    }

    /// The computation `a + b`.
    fn sum(&mut self, dtype: hlo_ir::DType) -> CompId {
        if let Some(&known) = self.sums.get(&dtype) {
            return known;
        }
        let comp = self.module.add_sum("sum", dtype);
        self.sums.insert(dtype, comp);
        comp
    }
}

/// The value of one branch, out of those of all.
pub(super) fn pick(module: &mut Module, of: InstId, branch: usize) -> InstId {
    let comp = module.inst(of).parent;
    let hint = module.inst_name(of).to_string();
    let Some(array) = module.shape(of).as_array().cloned() else { return of };
    let mut slice: Vec<SliceDim> = array.dims.iter().map(|&n| SliceDim { start: 0, limit: n, stride: 1 }).collect();
    slice[0] = SliceDim { start: branch as i64, limit: branch as i64 + 1, stride: 1 };
    let shape = |dims: Vec<i64>| Shape::Array(ArrayShape::new(array.dtype, dims).with_row_major());
    let row = shape(std::iter::once(1).chain(array.dims[1..].iter().copied()).collect());
    let mut builder = Builder::new(module, comp);
    let part = builder.add(&hint, Opcode::Slice, row, [of], SliceAttrs { slice });
    builder.add(&hint, Opcode::Reshape, shape(array.dims[1..].to_vec()), [part], ReshapeAttrs::default())
}
