//! Ops: with factors as their local form, all others on whole operands.

use super::adjust::LocalOp;
use super::choose::{Choice, OpView};
use super::lowering::{Leaves, Lowering, TileValue};
use crate::error::PartitionError;
use crate::sharding::{ArraySharding, AtomList};
use hlo_ir::attrs::{Attrs, Comparison};
use hlo_ir::edit::Builder;
use hlo_ir::factors::{FactorSet, find_factors};
use hlo_ir::localize::{OperandAdjust, ResultAdjust};
use hlo_ir::monoid::Monoid;
use hlo_ir::op::Effects;
use hlo_ir::{ArrayShape, DType, InstId, Opcode, Shape};

impl Lowering<'_> {
    /// An op with factors, or one that needs whole operands.
    pub(super) fn lower_op(&mut self, inst: InstId) -> Result<Leaves, PartitionError> {
        if let Some(leaves) = self.lower_region_end(inst)? {
            return Ok(leaves);
        }
        if self.module.inst(inst).opcode.row().effects == Effects::SideEffect || self.module.must_stay(inst) {
            return Err(self.refuse(inst, "expected an op without side effects outside of manual regions"));
        }
        if let Some(leaves) = self.lower_shift(inst)? {
            return Ok(leaves);
        }
        let operands: Vec<TileValue> =
            self.module.inst(inst).operands.clone().iter().map(|&o| self.leaf(o)).collect::<Result<_, _>>()?;
        if let Some(leaves) = self.lower_scan(inst, &operands)? {
            return Ok(leaves);
        }
        let Ok(set) = find_factors(self.module, inst) else { return self.lower_whole(inst, &operands) };
        let mut results = Vec::new();
        let mut wholes = Vec::new();
        self.module.shape(inst).for_each_leaf(&mut |_, leaf| wholes.extend(leaf.as_array().cloned()));
        for (k, whole) in wholes.into_iter().enumerate() {
            results.push((whole, self.wanted(inst, k)?));
        }
        let mut views = Vec::with_capacity(operands.len());
        for operand in &operands {
            let Shape::Array(whole) = &operand.whole else { return self.lower_whole(inst, &operands) };
            views.push((whole.clone(), operand.sharding.clone(), operand.inst));
        }
        let view = OpView {
            module: self.module,
            inst,
            set: &set,
            operands: views,
            results,
            prices: &self.prices,
            rule: self.rule,
        };
        let Some(choice) = view.choose(&self.mesh) else { return self.lower_whole(inst, &operands) };
        let results = view.results;
        self.expect_countable(inst, &set, &choice)?;
        let mut leaves = self.write_op(inst, &operands, &choice)?;
        for (leaf, (_, wanted)) in leaves.iter_mut().zip(results) {
            let target = wanted.unwrap_or_else(|| leaf.sharding.resolved());
            *leaf = self.reshard(leaf, &target)?;
        }
        Ok(leaves)
    }

    /// Rows of a cut dim are counted in 32 bits.
    fn expect_countable(&self, inst: InstId, set: &FactorSet, choice: &Choice) -> Result<(), PartitionError> {
        let factors = set.factors.iter().zip(&choice.cut.lists);
        let too_large = factors.filter(|(_, atoms)| !atoms.is_empty()).map(|(factor, _)| factor.size);
        match too_large.max().filter(|&size| size > i64::from(i32::MAX)) {
            Some(size) => {
                Err(self.refuse(inst, format!("expected a cut dim of less than 2^31 elements, found {size}")))
            }
            None => Ok(()),
        }
    }

    /// The local form of an op, with what comes before and after it.
    fn write_op(&mut self, inst: InstId, operands: &[TileValue], choice: &Choice) -> Result<Leaves, PartitionError> {
        let mut wholes = Vec::with_capacity(operands.len());
        let mut insts = Vec::with_capacity(operands.len());
        for (operand, needed) in operands.iter().zip(&choice.operands) {
            insts.push(self.reshard(operand, needed)?.inst);
            wholes.extend(operand.whole.as_array().cloned());
        }
        let mut op = LocalOp { cut: &choice.cut, wholes: &wholes, operands: insts };
        let is_bitcast = self.module.inst(inst).opcode == Opcode::Bitcast;
        if is_bitcast {
            self.lay_out(&mut op, inst)?;
        }
        for adjust in &choice.form.before {
            self.adjust_operand(&mut op, adjust)?;
        }
        if matches!(self.module.inst(inst).opcode, Opcode::DynamicSlice | Opcode::DynamicUpdateSlice) {
            self.match_index_types(&mut op, &choice.form.before)?;
        }
        let adds_offset = choice.form.after.iter().any(|adjust| matches!(adjust, ResultAdjust::AddOffset { .. }));
        let mut shapes: Vec<ArrayShape> = choice
            .form
            .results
            .iter()
            .map(|shape| ArrayShape { layout: None, ..shape.clone() }.with_row_major())
            .collect();
        // Front ends write a transpose that moves nothing as a layout.
        let mut wholes = Vec::new();
        self.module.shape(inst).for_each_leaf(&mut |_, leaf| wholes.push(leaf.clone()));
        for (shape, whole) in shapes.iter_mut().zip(wholes.iter().filter_map(Shape::as_array)) {
            if whole.rank() == shape.rank() && (whole.layout.is_some() || is_bitcast) {
                shape.layout = whole.layout.clone();
            }
        }
        if adds_offset {
            // Numbers that hold the whole dim; they are converted when the offset is added.
            shapes.iter_mut().for_each(|shape| shape.dtype = DType::S32);
        }
        let is_tuple = self.module.shape(inst).as_tuple().is_some();
        let arrays: Vec<Shape> = shapes.into_iter().map(Shape::Array).collect();
        let shape = match (is_tuple, arrays.first()) {
            (false, Some(only)) => only.clone(),
            (_, _) => Shape::Tuple(arrays),
        };
        let opcode = self.module.inst(inst).opcode;
        let mut builder = Builder::new(self.module, self.body.comp);
        let new = builder.add("local", opcode, shape, op.operands.iter().copied(), choice.form.attrs.clone());
        self.keep_name(new, inst);
        self.keep_marks(new, inst);
        let mut results = self.elements(new);
        for adjust in &choice.form.after {
            self.adjust_result(&op, &mut results, adjust)?;
        }
        let mut manual: AtomList = operands.iter().flat_map(|operand| operand.manual.iter().copied()).collect();
        if operands.is_empty() {
            manual = self.annotation(inst, 0)?.map(|read| read.manual).unwrap_or_default();
        }
        manual.sort();
        manual.dedup();
        let mut leaves = Leaves::new();
        for (k, ((mut result, whole), sharding)) in results.into_iter().zip(wholes).zip(&choice.results).enumerate() {
            if let (true, Some(array)) = (adds_offset, whole.as_array()) {
                result = self.converted(result, array.dtype)?;
            }
            let combined = choice.form.after.iter().find_map(|adjust| match adjust {
                ResultAdjust::Combine { leaf, monoid, .. } if *leaf == k => Some(*monoid),
                ResultAdjust::Combine { .. }
                | ResultAdjust::AddOffset { .. }
                | ResultAdjust::MaskMisses { .. }
                | ResultAdjust::PickPieces { .. }
                | ResultAdjust::Crop { .. } => None,
            });
            let monoid = combined.unwrap_or(Monoid::Add);
            leaves.push(TileValue { inst: result, whole, sharding: sharding.clone(), monoid, manual: manual.clone() });
        }
        Ok(leaves)
    }

    /// The operand of a bitcast has the layout that the whole has: the bitcast keeps the order of elements in memory.
    fn lay_out(&mut self, op: &mut LocalOp<'_>, inst: InstId) -> Result<(), PartitionError> {
        let Some(operand) = self.module.inst(inst).operands.first() else { return Ok(()) };
        let layout = self.module.shape(*operand).as_array().and_then(|whole| whole.layout.clone());
        for value in &mut op.operands {
            let shape = self.array(*value)?;
            if shape.layout != layout {
                let shape = ArrayShape { layout: layout.clone(), ..shape };
                *value = self.add("copy", Opcode::Copy, shape, &[*value], Attrs::Plain);
            }
        }
        Ok(())
    }

    /// Start indices of one op have one type.
    fn match_index_types(&mut self, op: &mut LocalOp<'_>, before: &[OperandAdjust]) -> Result<(), PartitionError> {
        let mut shifted: Vec<usize> = Vec::new();
        for adjust in before {
            if let OperandAdjust::ShiftIndex { operand, .. } = adjust {
                shifted.push(*operand);
            }
        }
        let Some(&first) = shifted.first() else { return Ok(()) };
        let dtype = self.array(op.operands[first])?.dtype;
        // Of a dynamic slice or update, all scalars after the arrays are indices.
        for k in 1..op.operands.len() {
            let own = self.array(op.operands[k])?;
            let was = op.wholes.get(k).map(|whole| whole.dtype);
            let is_index = own.rank() == 0 && was == op.wholes.get(first).map(|whole| whole.dtype);
            if is_index && own.dtype != dtype && op.wholes[first].rank() == 0 {
                op.operands[k] = self.converted(op.operands[k], dtype)?;
            }
        }
        Ok(())
    }

    /// An op on whole operands, which every device computes.
    fn lower_whole(&mut self, inst: InstId, operands: &[TileValue]) -> Result<Leaves, PartitionError> {
        let mut insts = Vec::with_capacity(operands.len());
        for operand in operands {
            let rank = operand.whole.as_array().map_or(0, ArrayShape::rank);
            insts.push(self.reshard(operand, &ArraySharding::replicated(rank))?.inst);
        }
        let (opcode, attrs, shape) =
            (self.module.inst(inst).opcode, self.module.inst(inst).attrs.clone(), self.module.shape(inst).clone());
        let mut manual: AtomList = operands.iter().flat_map(|operand| operand.manual.iter().copied()).collect();
        manual.sort();
        manual.dedup();
        let new = Builder::new(self.module, self.body.comp).add("whole", opcode, shape.clone(), insts, attrs);
        self.keep_name(new, inst);
        self.keep_marks(new, inst);
        let mut leaves = self.replicated_leaves(new, &shape, &manual);
        let is_random = opcode.row().effects == Effects::Random;
        for (k, leaf) in leaves.iter_mut().enumerate() {
            if is_random && manual.len() < self.mesh.sizes().len() {
                self.drawn_once(leaf)?;
            }
            let wanted = self.wanted(inst, k)?;
            if let Some(wanted) = wanted.or_else(|| is_random.then(|| leaf.sharding.resolved())) {
                *leaf = self.reshard(leaf, &wanted)?;
            }
        }
        Ok(leaves)
    }

    /// Of numbers that every device has drawn from a hidden state those of the first one count: the others' are the identity of a sum
    /// that is yet to be made.
    fn drawn_once(&mut self, leaf: &mut TileValue) -> Result<(), PartitionError> {
        let dtype = self.array(leaf.inst)?.dtype;
        leaf.monoid = if dtype == DType::Pred { Monoid::Or } else { Monoid::Add };
        leaf.sharding.partial = self.mesh.atoms().filter(|atom| !leaf.manual.contains(atom)).collect();
        let place = self.looked_up(&self.mesh.places(&leaf.sharding.partial))?;
        let zero = self.number(0);
        let is_first = self.compare(place, zero, Comparison::Eq)?;
        leaf.inst = self.or_identity(is_first, leaf.inst, leaf.monoid)?;
        Ok(())
    }
}
