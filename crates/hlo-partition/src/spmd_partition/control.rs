//! Calls, loops and branches: each computation is written for the tiles that it is given.

use super::lowering::{LeafForm, Leaves, Lowering, TileValue};
use crate::error::PartitionError;
use crate::sharding::ArraySharding;
use hlo_ir::attrs::{Attrs, CallAttrs, ConditionalAttrs, WhileAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::monoid::Monoid;
use hlo_ir::{CompId, InstId, Opcode, Shape};

impl Lowering<'_> {
    /// The leaves without partial results, as a computation takes them.
    fn resolved(&mut self, leaves: &[TileValue]) -> Result<Leaves, PartitionError> {
        leaves.iter().map(|leaf| self.reshard(leaf, &leaf.sharding.resolved())).collect()
    }

    fn forms(leaves: &[TileValue]) -> Vec<LeafForm> {
        let form = |leaf: &TileValue| LeafForm {
            whole: leaf.whole.clone(),
            sharding: leaf.sharding.clone(),
            manual: leaf.manual.clone(),
        };
        leaves.iter().map(form).collect()
    }

    /// The leaves that an instruction gives.
    fn leaves_of(&mut self, new: InstId, forms: Vec<LeafForm>) -> Leaves {
        let insts = self.elements(new);
        let leaf = |(inst, form): (InstId, LeafForm)| {
            let LeafForm { whole, sharding, manual } = form;
            TileValue { inst, whole, sharding, monoid: Monoid::Add, manual }
        };
        insts.into_iter().zip(forms).map(leaf).collect()
    }

    fn callee(&self, inst: InstId) -> Result<CompId, PartitionError> {
        let callee = self.module.called(inst).first().copied();
        callee.ok_or_else(|| self.refuse(inst, "expected a computation to call"))
    }

    pub(super) fn lower_call(&mut self, inst: InstId) -> Result<Leaves, PartitionError> {
        if self.module.inst(inst).opcode != Opcode::Call {
            return Err(self.refuse(inst, "expected a program without fusions, as front ends write it"));
        }
        let callee = self.callee(inst)?;
        let (mut operands, mut params) = (Vec::new(), Vec::new());
        for operand in self.module.inst(inst).operands.clone() {
            let leaves = self.leaves(operand)?;
            let leaves = self.resolved(&leaves)?;
            params.extend(Self::forms(&leaves));
            let shape = self.module.shape(operand).clone();
            operands.push(self.whole_value(&shape, &leaves)?);
        }
        let (new_callee, results) = self.lower_computation(callee, &params, None)?;
        let attrs = match CallAttrs::of(&self.module.inst(inst).attrs) {
            Some(attrs) => CallAttrs { to_apply: Some(new_callee), ..attrs.clone() },
            None => return Err(self.refuse(inst, "expected the attributes of a call")),
        };
        let shape = self.module.shape(inst).clone();
        let local = self.local_shape(&shape, &results);
        let new = Builder::new(self.module, self.body.comp).add("call", Opcode::Call, local, operands, attrs);
        self.keep_name(new, inst);
        self.keep_marks(new, inst);
        let mut leaves = self.leaves_of(new, results);
        self.as_annotated(inst, &mut leaves)?;
        Ok(leaves)
    }

    /// The leaves as the annotation of an instruction wants them.
    fn as_annotated(&mut self, inst: InstId, leaves: &mut Leaves) -> Result<(), PartitionError> {
        for (k, leaf) in leaves.iter_mut().enumerate() {
            if let Some(wanted) = self.wanted(inst, k)? {
                *leaf = self.reshard(leaf, &wanted)?;
            }
        }
        Ok(())
    }

    /// One sharding for each leaf: that of the loop's annotation, or of what it begins with.
    pub(super) fn lower_while(&mut self, inst: InstId) -> Result<Leaves, PartitionError> {
        let attrs = WhileAttrs::of(&self.module.inst(inst).attrs).cloned();
        let (Some(body), Some(condition)) =
            (attrs.as_ref().and_then(|attrs| attrs.body), attrs.as_ref().and_then(|attrs| attrs.condition))
        else {
            return Err(self.refuse(inst, "expected a body and a condition"));
        };
        let init = self.module.inst(inst).operands.first().copied();
        let init = init.ok_or_else(|| self.refuse(inst, "expected an operand"))?;
        let leaves = self.leaves(init)?;
        let mut leaves = self.resolved(&leaves)?;
        self.as_annotated(inst, &mut leaves)?;
        // What the body makes of manual values is manual, even where a loop begins with a constant.
        let mut manual: Vec<_> = leaves.iter().flat_map(|leaf| leaf.manual.iter().copied()).collect();
        manual.sort();
        manual.dedup();
        leaves.iter_mut().for_each(|leaf| leaf.manual = manual.iter().copied().collect());
        let forms = Self::forms(&leaves);
        let shardings: Vec<ArraySharding> = forms.iter().map(|form| form.sharding.clone()).collect();
        let (new_body, _) = self.lower_computation(body, &forms, Some(&shardings))?;
        let (new_condition, _) = self.lower_computation(condition, &forms, Some(&[ArraySharding::default()]))?;
        let shape = self.module.shape(init).clone();
        let operand = self.whole_value(&shape, &leaves)?;
        let local = self.module.shape(operand).clone();
        let attrs = WhileAttrs { condition: Some(new_condition), body: Some(new_body) };
        let new = Builder::new(self.module, self.body.comp).add("while", Opcode::While, local, [operand], attrs);
        self.keep_name(new, inst);
        self.keep_marks(new, inst);
        Ok(self.leaves_of(new, forms))
    }

    /// All branches give results cut alike: as annotated, or as the first branch gives them.
    pub(super) fn lower_conditional(&mut self, inst: InstId) -> Result<Leaves, PartitionError> {
        let branches = self.module.called(inst);
        let operands = self.module.inst(inst).operands.clone();
        let (Some(&index), true) = (operands.first(), operands.len() == branches.len() + 1) else {
            return Err(self.refuse(inst, "expected an operand for each branch"));
        };
        let index = self.leaf(index)?;
        let index = self.reshard(&index, &ArraySharding::default())?;
        let shape = self.module.shape(inst).clone();
        let mut wanted: Option<Vec<ArraySharding>> = None;
        let n_leaves = shape.n_leaves();
        let annotated: Vec<_> = (0..n_leaves).map(|k| self.wanted(inst, k)).collect::<Result<_, _>>()?;
        if annotated.iter().all(Option::is_some) {
            wanted = Some(annotated.into_iter().flatten().collect());
        }
        let (mut values, mut new_branches, mut results) = (vec![index.inst], Vec::new(), Vec::new());
        for (&branch, &operand) in branches.iter().zip(&operands[1..]) {
            let leaves = self.leaves(operand)?;
            let leaves = self.resolved(&leaves)?;
            let (new_branch, forms) = self.lower_computation(branch, &Self::forms(&leaves), wanted.as_deref())?;
            wanted.get_or_insert_with(|| forms.iter().map(|form| form.sharding.clone()).collect());
            new_branches.push(new_branch);
            results = forms;
            let shape: Shape = self.module.shape(operand).clone();
            values.push(self.whole_value(&shape, &leaves)?);
        }
        let mut attrs: Attrs = match ConditionalAttrs::of(&self.module.inst(inst).attrs) {
            Some(attrs) => attrs.clone().into(),
            None => return Err(self.refuse(inst, "expected the attributes of a conditional")),
        };
        let mut next = new_branches.into_iter();
        attrs.for_each_comp_mut(&mut |comp| *comp = next.next().unwrap_or(*comp));
        let local = self.local_shape(&shape, &results);
        let new =
            Builder::new(self.module, self.body.comp).add("conditional", Opcode::Conditional, local, values, attrs);
        self.keep_name(new, inst);
        self.keep_marks(new, inst);
        Ok(self.leaves_of(new, results))
    }
}
