//! Frames and control flow: which devices run which instruction.

use super::EvalOptions;
use super::plan::{Plans, Step};
use super::pure::{Operands, eval_pure};
use crate::error::EvalError;
use crate::kernels::shape_ops::index_of;
use crate::value::{Spread, Value};
use hlo_ir::attrs::{ConditionalAttrs, ScanAttrs, WhileAttrs};
use hlo_ir::op::{CollectiveForm, EvalRoutine, EvalRule, LockstepRoutine, StartResult};
use hlo_ir::shardy::Meshes;
use hlo_ir::tile_grid::TileGrid;
use hlo_ir::{CompId, InstId, Literal, Module, Shape};
use std::sync::Arc;
use std::time::Instant;

/// Why a device does not run the current instruction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Its loop condition was false.
    HasLeft(InstId),
    /// It runs another branch of a conditional.
    InBranch(InstId, CompId),
    /// It does not take part in this evaluation.
    Absent,
}

/// Called with an instruction, the flat id of a device and the value there.
pub(crate) type Observer<'o> = dyn FnMut(InstId, u32, &Value) + 'o;

/// One evaluation of a module.
pub(crate) struct Machine<'m> {
    pub(super) module: &'m Module,
    pub(super) options: &'m EvalOptions,
    plans: Plans,
    /// For each device where it is while it is not active.
    pub(super) places: Vec<Place>,
    pub(super) groups: hashbrown::HashMap<InstId, Arc<hlo_ir::groups::DeviceGroups>>,
    /// How the values at the ends of manual regions are cut, and the meshes that say so.
    pub(super) grids: hashbrown::HashMap<InstId, Arc<[TileGrid]>>,
    pub(super) meshes: Option<Arc<Meshes>>,
    /// Where copies of a value first differ at the end of a manual region.
    pub(crate) parting: Option<String>,
    n_steps: u64,
    depth: usize,
    /// Sees the value of every executed instruction on every device.
    pub(crate) observer: Option<&'m mut Observer<'m>>,
}

impl<'m> Machine<'m> {
    /// A machine for all devices of `module`.
    pub(crate) fn new(module: &'m Module, options: &'m EvalOptions) -> Machine<'m> {
        Machine {
            module,
            options,
            plans: Plans::default(),
            places: vec![Place::Absent; module.n_devices()],
            groups: hashbrown::HashMap::new(),
            grids: hashbrown::HashMap::new(),
            meshes: None,
            parting: None,
            n_steps: 0,
            depth: 0,
            observer: None,
        }
    }

    /// Runs `comp` on the `active` devices (flat ids, ascending).
    pub(crate) fn run(&mut self, comp: CompId, args: Vec<Spread>, active: &[u32]) -> Result<Spread, EvalError> {
        if self.depth >= self.options.max_call_depth {
            let text = format!("calls nest deeper than {}", self.options.max_call_depth);
            return Err(EvalError::Limit(text));
        }
        self.depth += 1;
        let result = self.run_steps(comp, args, active);
        self.depth -= 1;
        result
    }

    fn run_steps(&mut self, comp: CompId, args: Vec<Spread>, active: &[u32]) -> Result<Spread, EvalError> {
        let plan = self.plans.get(self.module, comp)?;
        if plan.params.len() != args.len() {
            let name = self.module.comp_name(comp);
            let text = format!("%{name} takes {} arguments, found {}", plan.params.len(), args.len());
            return Err(EvalError::invalid(text));
        }
        let mut slots: Vec<Option<Spread>> = vec![None; plan.n_slots];
        for (&param, arg) in self.module.comp(comp).params.iter().zip(&args) {
            self.observe(param, arg, active)?;
        }
        for (&slot, arg) in plan.params.iter().zip(args) {
            if let Some(slot) = slot {
                slots[slot] = Some(arg);
            }
        }
        for (slot, value) in &plan.constants {
            slots[*slot] = Some(Spread::Same(value.clone()));
        }
        for step in &plan.steps {
            let value = self.step(step, &mut slots, active).map_err(|e| e.at(self.module, step.inst))?;
            self.observe(step.inst, &value, active)?;
            if !step.is_unread {
                slots[step.slot] = Some(value);
            }
        }
        slots[plan.root].take().ok_or_else(|| EvalError::invalid("the root has no value"))
    }

    fn observe(&mut self, inst: InstId, value: &Spread, active: &[u32]) -> Result<(), EvalError> {
        if let Some(observer) = &mut self.observer {
            for (i, &device) in active.iter().enumerate() {
                observer(inst, device, value.get(i)?);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, slots: &mut [Option<Spread>], active: &[u32]) -> Result<Spread, EvalError> {
        self.n_steps += 1;
        if self.n_steps > self.options.max_steps {
            let n = self.options.max_steps;
            return Err(EvalError::Limit(format!("more than {n} instructions executed (--max-steps allows more)")));
        }
        if let Some(deadline) = self.options.deadline
            && Instant::now() >= deadline
        {
            return Err(EvalError::Limit(format!("time is up after {} instructions", self.n_steps)));
        }
        let mut operands = Operands::new();
        for operand in &step.operands {
            let slot = &mut slots[operand.slot];
            let value = if operand.is_last { slot.take() } else { slot.clone() };
            operands.push(value.ok_or_else(|| EvalError::invalid("an operand has no value"))?);
        }
        let shape = self.module.shape(step.inst);
        self.check_size(shape)?;
        let value = self.eval(step.inst, operands, active)?;
        match &value {
            Spread::Same(value) => value.check_shape(shape)?,
            Spread::Each(values) => values.iter().try_for_each(|v| v.check_shape(shape))?,
        }
        Ok(value)
    }

    pub(super) fn check_size(&self, shape: &Shape) -> Result<(), EvalError> {
        match shape {
            Shape::Array(array) if array.size_bytes() > self.options.max_array_bytes => {
                let (found, limit) = (array.size_bytes(), self.options.max_array_bytes);
                Err(EvalError::Limit(format!("an array of {found} bytes, where {limit} are allowed")))
            }
            Shape::Array(_) | Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => Ok(()),
        }
    }

    fn eval(&mut self, inst: InstId, operands: Operands, active: &[u32]) -> Result<Spread, EvalError> {
        let instruction = self.module.inst(inst);
        let row = instruction.opcode.row();
        let routine = match &row.eval {
            EvalRule::Routine(EvalRoutine::Lockstep(routine)) => *routine,
            EvalRule::Unary(_)
            | EvalRule::Binary(_)
            | EvalRule::Routine(
                EvalRoutine::Parameter
                | EvalRoutine::Constant
                | EvalRoutine::Elementwise(_)
                | EvalRoutine::Shaping(_)
                | EvalRoutine::OneArray(_)
                | EvalRoutine::SeveralArrays(_)
                | EvalRoutine::Structure(_),
            ) => return self.eval_local(inst, operands, active.len()),
            EvalRule::NotEvaluated(why) => {
                return Err(EvalError::unsupported(format!("{}: {why}", instruction.opcode)));
            }
        };
        match routine {
            LockstepRoutine::Call => {
                let comp = self.only_callee(inst)?;
                self.run(comp, operands.into_vec(), active)
            }
            LockstepRoutine::While => match WhileAttrs::of(&instruction.attrs) {
                Some(attrs) => self.eval_while(inst, attrs, operands, active),
                None => Err(EvalError::invalid("a while without its attributes")),
            },
            LockstepRoutine::Conditional => match ConditionalAttrs::of(&instruction.attrs) {
                Some(attrs) => self.eval_conditional(inst, attrs, operands, active),
                None => Err(EvalError::invalid("a conditional without its attributes")),
            },
            LockstepRoutine::CustomCall => self.eval_custom_call(inst, operands, active),
            LockstepRoutine::Scan => match ScanAttrs::of(&instruction.attrs) {
                Some(attrs) => self.eval_scan(inst, attrs, operands, active),
                None => Err(EvalError::invalid("a scan without its attributes")),
            },
            LockstepRoutine::Collective(rule) => self.eval_collective(inst, rule, &operands, active),
            LockstepRoutine::ReplicaId => self.device_number(active, |d, n_partitions| d / n_partitions),
            LockstepRoutine::PartitionId => self.device_number(active, |d, n_partitions| d % n_partitions),
            LockstepRoutine::AsyncStart => {
                let comp = self.only_callee(inst)?;
                let result = self.run(comp, operands.to_vec(), active)?;
                self.start_tuple(inst, &operands, &result, active.len())
            }
            LockstepRoutine::AsyncUpdate => first(operands),
            LockstepRoutine::AsyncDone => {
                let start = first(operands)?;
                let form = row.collective.map(|rule| rule.form);
                let is_outcome = matches!(form, Some(CollectiveForm::Done(_, StartResult::Outcome)));
                if is_outcome { Ok(start) } else { start.map(|v| v.element(1).cloned()) }
            }
        }
    }

    /// An operation without communication: computed once for each distinct set of operands.
    fn eval_local(&mut self, inst: InstId, operands: Operands, n_active: usize) -> Result<Spread, EvalError> {
        eval_pure(self.module, inst, operands, n_active, self.options)
    }

    fn only_callee(&self, inst: InstId) -> Result<CompId, EvalError> {
        match self.module.called(inst).as_slice() {
            [comp] => Ok(*comp),
            other => Err(EvalError::invalid(format!("expected one called computation, found {}", other.len()))),
        }
    }

    fn device_number(&self, active: &[u32], number: impl Fn(u32, u32) -> u32) -> Result<Spread, EvalError> {
        let n_partitions = u32::try_from(self.module.header.num_partitions.max(1)).unwrap_or(u32::MAX);
        let numbers: Vec<u32> = active.iter().map(|&d| number(d, n_partitions)).collect();
        let is_same = numbers.windows(2).all(|w| w[0] == w[1]);
        let mut values = numbers.into_iter().map(|n| Value::from(Literal::from_elem(n)));
        match values.next() {
            Some(value) if is_same => Ok(Spread::Same(value)),
            Some(value) => Ok(Spread::Each(std::iter::once(value).chain(values).collect())),
            None => Err(EvalError::invalid("no device is active")),
        }
    }

    /// The tuple `(operands, result, context…)` of an async-start; context is zeros, nothing reads it.
    pub(super) fn start_tuple(
        &self,
        inst: InstId,
        operands: &Operands,
        result: &Spread,
        n_active: usize,
    ) -> Result<Spread, EvalError> {
        let Shape::Tuple(elements) = self.module.shape(inst) else {
            return Err(EvalError::invalid("expected a tuple shape"));
        };
        let context: Result<Vec<Value>, EvalError> = elements
            .iter()
            .skip(2)
            .map(|s| Value::of_leaves(s, &mut |a| Ok(Arc::new(Literal::zeros(a.dtype, &a.dims)?))))
            .collect();
        let context = context?;
        // The generic form wraps its operands in a tuple; the -start form of a single array does not.
        let wraps = matches!(elements.first(), Some(Shape::Tuple(_)));
        let mut values = Vec::with_capacity(n_active);
        for i in 0..n_active {
            let inputs: Result<Vec<Value>, EvalError> = operands.iter().map(|o| o.get(i).cloned()).collect();
            let mut inputs = inputs?;
            let input = match inputs.pop() {
                Some(only) if !wraps && inputs.is_empty() => only,
                last => Value::tuple(inputs.into_iter().chain(last)),
            };
            let tail = [input, result.get(i)?.clone()].into_iter().chain(context.iter().cloned());
            values.push(Value::tuple(tail));
        }
        Ok(Spread::of(values))
    }

    fn eval_while(
        &mut self,
        inst: InstId,
        attrs: &WhileAttrs,
        operands: Operands,
        active: &[u32],
    ) -> Result<Spread, EvalError> {
        let (Some(condition), Some(body)) = (attrs.condition, attrs.body) else {
            return Err(EvalError::invalid("a while without condition or body"));
        };
        let mut state = first(operands)?;
        let mut running: Vec<u32> = active.to_vec();
        let mut finals: Vec<Option<Value>> = vec![None; active.len()];
        let saved = self.places.clone();
        loop {
            let go = self.run(condition, vec![state.clone()], &running)?;
            let flags: Result<Vec<bool>, EvalError> = (0..running.len()).map(|i| flag(go.get(i)?)).collect();
            let flags = flags?;
            if flags.iter().all(|&go| go) {
                state = self.run(body, vec![state], &running)?;
                continue;
            }
            if finals.iter().all(Option::is_none) && !flags.contains(&true) {
                self.places = saved;
                return Ok(state);
            }
            let stay: Vec<usize> = (0..running.len()).filter(|&i| flags[i]).collect();
            for (i, &device) in running.iter().enumerate() {
                if !flags[i] {
                    self.places[device as usize] = Place::HasLeft(inst);
                    if let Ok(at) = active.binary_search(&device) {
                        finals[at] = Some(state.get(i)?.clone());
                    }
                }
            }
            state = state.subset(&stay)?;
            running = stay.into_iter().map(|i| running[i]).collect();
            if running.is_empty() {
                break;
            }
            state = self.run(body, vec![state], &running)?;
        }
        self.places = saved;
        gathered(finals)
    }

    fn eval_conditional(
        &mut self,
        inst: InstId,
        attrs: &ConditionalAttrs,
        operands: Operands,
        active: &[u32],
    ) -> Result<Spread, EvalError> {
        let branches: Vec<CompId> = match (attrs.true_computation, attrs.false_computation) {
            (Some(on_true), Some(on_false)) => vec![on_true, on_false],
            _ => attrs.branch_computations.clone(),
        };
        let mut operands = operands.into_iter();
        let selector = operands.next().ok_or_else(|| EvalError::invalid("expected a branch index"))?;
        let args: Vec<Spread> = operands.collect();
        if branches.is_empty() || args.len() != branches.len() {
            let text = format!("expected one operand a branch, found {} for {}", args.len(), branches.len());
            return Err(EvalError::invalid(text));
        }
        let chosen: Result<Vec<usize>, EvalError> =
            (0..active.len()).map(|i| branch_number(selector.get(i)?, branches.len())).collect();
        let chosen = chosen?;
        if let Some(&only) = chosen.first().filter(|first| chosen.iter().all(|c| c == *first)) {
            let arg = args.into_iter().nth(only).ok_or_else(|| EvalError::invalid("no such branch"))?;
            return self.run(branches[only], vec![arg], active);
        }
        let saved = self.places.clone();
        for (i, &device) in active.iter().enumerate() {
            self.places[device as usize] = Place::InBranch(inst, branches[chosen[i]]);
        }
        let mut results: Vec<Option<Value>> = vec![None; active.len()];
        for (number, (&branch, arg)) in branches.iter().zip(args).enumerate() {
            let picks: Vec<usize> = (0..active.len()).filter(|&i| chosen[i] == number).collect();
            if picks.is_empty() {
                continue;
            }
            let devices: Vec<u32> = picks.iter().map(|&i| active[i]).collect();
            let result = self.run(branch, vec![arg.subset(&picks)?], &devices)?;
            for (k, &i) in picks.iter().enumerate() {
                results[i] = Some(result.get(k)?.clone());
            }
        }
        self.places = saved;
        gathered(results)
    }
}

pub(super) fn first(operands: Operands) -> Result<Spread, EvalError> {
    operands.into_iter().next().ok_or_else(|| EvalError::invalid("expected an operand"))
}

fn gathered(values: Vec<Option<Value>>) -> Result<Spread, EvalError> {
    let values: Option<Vec<Value>> = values.into_iter().collect();
    values.map(Spread::of).ok_or_else(|| EvalError::invalid("a device has no result"))
}

fn flag(value: &Value) -> Result<bool, EvalError> {
    match value.as_array()?.elems::<bool>() {
        Some(&[flag]) => Ok(flag),
        _ => Err(EvalError::invalid("expected a scalar pred from the loop condition")),
    }
}

/// The branch that a selector picks: true is 0, false 1; a number out of range picks the last.
fn branch_number(selector: &Value, n_branches: usize) -> Result<usize, EvalError> {
    let selector = selector.as_array()?;
    if let Some(&[flag]) = selector.elems::<bool>() {
        return Ok(usize::from(!flag));
    }
    let number = index_of(selector, 0).ok_or_else(|| EvalError::invalid("expected a pred or s32 branch index"))?;
    Ok(usize::try_from(number).ok().filter(|&n| n < n_branches).unwrap_or(n_branches - 1))
}
