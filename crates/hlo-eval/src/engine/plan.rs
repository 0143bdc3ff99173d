//! What the engine needs to know of a computation, worked out once: order, slots, last uses, constants.

use crate::error::EvalError;
use crate::value::Value;
use hashbrown::HashMap;
use hlo_ir::literal::ConstantValue;
use hlo_ir::op::{Effects, EvalRoutine, EvalRule};
use hlo_ir::{CompId, InstId, Module};
use smallvec::SmallVec;
use std::sync::Arc;

/// One operand of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// Where the value is kept.
    pub slot: usize,
    /// Nothing reads it afterwards.
    pub is_last: bool,
}

/// One instruction to execute.
#[derive(Debug)]
pub(super) struct Step {
    pub inst: InstId,
    pub slot: usize,
    pub operands: SmallVec<[Use; 2]>,
    /// Nothing reads its result.
    pub is_unread: bool,
}

/// A computation made ready to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    pub n_slots: usize,
    /// Slot of each parameter; `None` if nothing reads it.
    pub params: Vec<Option<usize>>,
    pub root: usize,
    /// Values of the constants, by slot.
    pub constants: Vec<(usize, Value)>,
}

/// Whether `inst` may be left out when nothing reads it.
fn is_removable(module: &Module, inst: InstId) -> bool {
    matches!(module.inst(inst).opcode.row().effects, Effects::Pure)
}

fn constant_value(constant: &ConstantValue) -> Result<Value, EvalError> {
    match constant {
        ConstantValue::Array(literal) => Ok(literal.clone().into()),
        ConstantValue::Tuple(elements) => {
            let elements: Result<Vec<Value>, EvalError> = elements.iter().map(constant_value).collect();
            Ok(Value::tuple(elements?))
        }
        ConstantValue::Elided => Err(EvalError::NoElements),
    }
}

impl Plan {
    /// The plan of `comp`. Pure instructions that nothing reads are left out, as every compiler would.
    pub(super) fn of(module: &Module, comp: CompId) -> Result<Plan, EvalError> {
        let computation = module.comp(comp);
        let root = computation.root.expand().ok_or_else(|| EvalError::invalid("the computation has no root"))?;
        let slots: HashMap<InstId, usize> = computation.insts.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let slot_of = |inst: InstId| {
            let text = || format!("operand %{} is not in the computation", module.inst_name(inst));
            slots.get(&inst).copied().ok_or_else(|| EvalError::invalid(text()))
        };
        let n_slots = computation.insts.len();
        let root = slot_of(root)?;
        let mut is_read = vec![false; n_slots];
        let mut is_needed = vec![false; n_slots];
        is_needed[root] = true;
        is_read[root] = true;
        for (slot, &inst) in computation.insts.iter().enumerate().rev() {
            is_needed[slot] |= !is_removable(module, inst);
            if is_needed[slot] {
                for &operand in &module.inst(inst).operands {
                    let operand = slot_of(operand)?;
                    if operand >= slot {
                        let text = format!("%{} stands before its operand", module.inst_name(inst));
                        return Err(EvalError::invalid(text));
                    }
                    is_needed[operand] = true;
                    is_read[operand] = true;
                }
            }
        }
        let mut plan = Plan { steps: Vec::new(), n_slots, params: Vec::new(), root, constants: Vec::new() };
        let mut is_seen = vec![false; n_slots];
        is_seen[root] = true;
        for (slot, &inst) in computation.insts.iter().enumerate().rev() {
            if is_needed[slot] {
                plan.add_step(module, inst, slot, !is_read[slot], &mut is_seen, &slot_of)?;
            }
        }
        plan.steps.reverse();
        for &param in &computation.params {
            let slot = slot_of(param)?;
            plan.params.push(is_read[slot].then_some(slot));
        }
        Ok(plan)
    }

    fn add_step(
        &mut self,
        module: &Module,
        inst: InstId,
        slot: usize,
        is_unread: bool,
        is_seen: &mut [bool],
        slot_of: &dyn Fn(InstId) -> Result<usize, EvalError>,
    ) -> Result<(), EvalError> {
        let instruction = module.inst(inst);
        if matches!(instruction.opcode.row().eval, EvalRule::Routine(EvalRoutine::Parameter)) {
            return Ok(());
        }
        if let Some(value) = instruction.attrs.as_constant() {
            let value = constant_value(value).map_err(|e| e.at(module, inst))?;
            value.check_shape(module.shape(inst)).map_err(|e| e.at(module, inst))?;
            self.constants.push((slot, value));
            return Ok(());
        }
        // Steps are visited backwards, so the first sight of a slot is its last use.
        let mut operands: SmallVec<[Use; 2]> = SmallVec::new();
        for &operand in instruction.operands.iter().rev() {
            let slot = slot_of(operand)?;
            operands.push(Use { slot, is_last: !std::mem::replace(&mut is_seen[slot], true) });
        }
        operands.reverse();
        self.steps.push(Step { inst, slot, operands, is_unread });
        Ok(())
    }
}

/// Plans by computation, made at first use.
#[derive(Debug, Default)]
pub(super) struct Plans {
    plans: HashMap<CompId, Arc<Plan>>,
}

impl Plans {
    pub(super) fn get(&mut self, module: &Module, comp: CompId) -> Result<Arc<Plan>, EvalError> {
        if let Some(plan) = self.plans.get(&comp) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(Plan::of(module, comp)?);
        self.plans.insert(comp, plan.clone());
        Ok(plan)
    }
}
