//! Writes branches as one: each group of ops becomes one op on stacked values.

use super::find::{Branches, GroupId, is_same_everywhere};
use super::stacked_op::{OperandForm, operand_form, stacked_attrs};
use cranelift_entity::SecondaryMap;
use hlo_ir::attrs::{Attrs, DimsAttrs, ParameterAttrs, ReduceAttrs, ReshapeAttrs, SliceAttrs, SliceDim};
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
    /// How many operands each instruction of the program as it was is.
    n_uses: SecondaryMap<InstId, u32>,
}

/// The most values that a sum of branches is followed through.
const MOST_SUMMANDS: usize = 64;

impl<'m> Writer<'m> {
    pub(super) fn new(module: &'m mut Module, branches: &'m Branches) -> Writer<'m> {
        let mut n_uses: SecondaryMap<InstId, u32> = SecondaryMap::new();
        for &inst in &module.comp(branches.comp).insts {
            module.inst(inst).operands.iter().for_each(|&operand| n_uses[operand] += 1);
        }
        Writer {
            n_uses,
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
    }

    /// The op of a group.
    pub(super) fn stacked(&self, group: GroupId) -> Option<InstId> {
        self.stacked[group]
    }

    /// Writes every group's op, and has what takes a branch's value take a part of it.
    pub(super) fn write(&mut self) {
        let insts: Vec<InstId> = self.module.comp(self.branches.comp).insts.clone();
        let mut n_met: SecondaryMap<GroupId, usize> = SecondaryMap::new();
        for &inst in &insts {
            let Some((group, _)) = self.branches.of[inst] else { continue };
            n_met[group] += 1;
            // The operands of all branches stand before its last op.
            if n_met[group] == self.branches.groups[group].len() && self.stacked[group].is_none() {
                let op = self.write_group(group);
                self.stacked[group] = Some(op);
            }
        }
        // A sum is written before those that it is made of.
        let sums: Vec<InstId> = insts.iter().rev().copied().filter(|&inst| self.write_sum(inst)).collect();
        for inst in insts {
            if self.branches.of[inst].is_some() || sums.contains(&inst) {
                continue;
            }
            for k in 0..self.module.inst(inst).operands.len() {
                let operand = self.module.inst(inst).operands[k];
                if let Some((group, branch)) = self.branches.of[operand] {
                    let part = self.picked(group, branch);
                    self.module.set_operand(inst, k, part);
                }
            }
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
        let n_operands = self.module.inst(first).operands.len();
        let operands: Vec<InstId> = (0..n_operands)
            .map(|k| {
                let theirs: Vec<InstId> = insts.iter().map(|&inst| self.module.inst(inst).operands[k]).collect();
                match operand_form(self.module, first, k) {
                    Some(OperandForm::Same) | None => theirs[0],
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
                self.add(first, Opcode::Broadcast, &dims, &[first], DimsAttrs { dimensions }.into())
            }
            false => {
                let row: Vec<i64> = std::iter::once(1).chain(dims[1..].iter().copied()).collect();
                let rows: Vec<InstId> = insts
                    .iter()
                    .map(|&inst| {
                        // A value of another group is part of that group's.
                        let inst = match self.branches.of[inst] {
                            Some((group, branch)) if self.stacked[group].is_some() => self.picked(group, branch),
                            Some(_) | None => inst,
                        };
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
        let Some(of) = self.stacked[group] else { return inst };
        let part = pick(self.module, of, branch);
        self.picked.insert((group, branch), part);
        part
    }

    /// A sum of the values of all branches, if an instruction is one: it adds up along the branches.
    fn write_sum(&mut self, inst: InstId) -> bool {
        if self.module.inst(inst).opcode != Opcode::Add || self.branches.of[inst].is_some() {
            return false;
        }
        let array = self.array(inst);
        let Some(mut summands) = self.summands(inst).filter(|_| array.dtype.class() == NumberClass::Float) else {
            return false;
        };
        summands.sort_by_key(|summand| self.branches.of[*summand].map(|(_, branch)| branch));
        let Some(stacked) = self.branches.group_of_all(&summands).and_then(|group| self.stacked[group]) else {
            return false;
        };
        let sum = self.sum(array.dtype);
        let zero = Literal::scalar(array.dtype, Scalar::Pred(false));
        let zero = Builder::new(self.module, self.branches.comp).constant("zero", zero);
        let attrs = ReduceAttrs { dimensions: Dims::from_slice(&[0]), to_apply: Some(sum) };
        let new = self.add(inst, Opcode::Reduce, &array.dims, &[stacked, zero], attrs.into());
        self.module.replace_all_uses(inst, new);
        true
    }

    /// What a tree of sums adds up, sums that are taken elsewhere too left whole.
    fn summands(&self, inst: InstId) -> Option<Vec<InstId>> {
        let (mut open, mut all) = (self.module.inst(inst).operands.to_vec(), Vec::new());
        while let Some(value) = open.pop() {
            let node = self.module.inst(value);
            match node.opcode == Opcode::Add && self.branches.of[value].is_none() && self.n_uses[value] == 1 {
                true => open.extend(&node.operands),
                false => all.push(value),
            }
            if open.len() + all.len() > MOST_SUMMANDS {
                return None;
            }
        }
        Some(all)
    }

    /// The computation `a + b`.
    fn sum(&mut self, dtype: hlo_ir::DType) -> CompId {
        if let Some(&known) = self.sums.get(&dtype) {
            return known;
        }
        let name = self.module.names.fresh("sum");
        let comp = self.module.add_computation(name);
        let scalar = Shape::Array(ArrayShape::new(dtype, []).with_row_major());
        let mut builder = Builder::new(self.module, comp);
        let params = [0, 1].map(|number| {
            let attrs = ParameterAttrs { number, ..ParameterAttrs::default() };
            builder.add("x", Opcode::Parameter, scalar.clone(), [], attrs)
        });
        let root = builder.add("sum", Opcode::Add, scalar, params, Attrs::Plain);
        self.module.comp_mut(comp).root = Some(root).into();
        // Callees stand before callers.
        let mut order: Vec<CompId> = self.module.computations().to_vec();
        order.retain(|&other| other != comp);
        order.insert(0, comp);
        self.module.set_computation_order(order);
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
