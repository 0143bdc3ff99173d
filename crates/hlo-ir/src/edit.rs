//! Building and changing a module: append instructions anywhere, rewire uses, then put each computation back in order.
//!
//! An edit never has to find the right place: it appends at the end of a computation, redirects operands, and
//! [`Module::restore_order`] puts operands before users again in one linear, stable walk.

use crate::attrs::{Attrs, DimsAttrs, ParameterAttrs};
use crate::custom_target;
use crate::dtype::DType;
use crate::inst_map::InstMap;
use crate::literal::{ConstantValue, Literal};
use crate::module::{CompId, InstId, Instruction, Module, Operands};
use crate::op::{Effects, Flow, Opcode};
use crate::shape::{ArrayShape, Shape};
use cranelift_entity::EntitySet;

/// Appends instructions to one computation.
pub struct Builder<'m> {
    module: &'m mut Module,
    comp: CompId,
}

impl<'m> Builder<'m> {
    /// A builder that appends to `comp`.
    pub fn new(module: &'m mut Module, comp: CompId) -> Builder<'m> {
        Builder { module, comp }
    }

    /// The module under construction.
    pub fn module(&self) -> &Module {
        self.module
    }

    /// The module under construction, for what the builder has no method for.
    pub fn module_mut(&mut self) -> &mut Module {
        self.module
    }

    /// Appends an instruction named after `hint` (made unique).
    pub fn add(
        &mut self,
        hint: &str,
        opcode: Opcode,
        shape: Shape,
        operands: impl IntoIterator<Item = InstId>,
        attrs: impl Into<Attrs>,
    ) -> InstId {
        let name = self.module.names.fresh(hint);
        let shape = self.module.shapes.intern(shape);
        let operands: Operands = operands.into_iter().collect();
        let mut attrs = attrs.into();
        self.module.normalize_attrs(&operands, &mut attrs);
        self.module.add_instruction(Instruction {
            opcode,
            shape,
            name,
            parent: self.comp,
            operands,
            attrs,
            marks: None,
        })
    }

    /// A constant with the literal's own shape in row-major layout.
    pub fn constant(&mut self, hint: &str, literal: Literal) -> InstId {
        let shape = ArrayShape::new(literal.dtype(), literal.dims().iter().copied()).with_row_major();
        let attrs = Attrs::Constant(Box::new(ConstantValue::Array(literal)));
        self.add(hint, Opcode::Constant, Shape::Array(shape), [], attrs)
    }

    /// `scalar` (shape `[]`) repeated over `shape`.
    pub fn broadcast_scalar(&mut self, hint: &str, scalar: InstId, shape: ArrayShape) -> InstId {
        self.add(hint, Opcode::Broadcast, Shape::Array(shape), [scalar], DimsAttrs::default())
    }
}

impl Module {
    /// A computation named after `hint` that adds two scalars, before all others.
    pub fn add_sum(&mut self, hint: &str, dtype: DType) -> CompId {
        let name = self.names.fresh(hint);
        let comp = self.add_computation(name);
        let shape = Shape::Array(ArrayShape::new(dtype, []).with_row_major());
        let mut builder = Builder::new(self, comp);
        let params = [0, 1].map(|number| {
            let attrs = ParameterAttrs { number, ..ParameterAttrs::default() };
            builder.add("x", Opcode::Parameter, shape.clone(), [], attrs)
        });
        let sum = builder.add("sum", Opcode::Add, shape, params, Attrs::Plain);
        self.comp_mut(comp).root = Some(sum).into();
        // It calls nothing, so it may stand before whatever calls it.
        let others = self.computations().iter().copied().filter(|&other| other != comp);
        let order = std::iter::once(comp).chain(others).collect();
        self.set_computation_order(order);
        comp
    }

    /// Redirects every use of `old` to `new`, roots and control predecessors included, except in `new` itself.
    pub fn replace_all_uses(&mut self, old: InstId, new: InstId) {
        let comp = self.inst(old).parent;
        for inst in self.comp(comp).insts.clone() {
            if inst == new {
                continue;
            }
            self.map_operands(inst, |o| if o == old { new } else { o });
            self.map_control_predecessors(inst, |o| if o == old { new } else { o });
        }
        if self.comp(comp).root.expand() == Some(old) {
            self.comp_mut(comp).root = Some(new).into();
        }
    }

    /// Has an instruction take `new` of each of its operands. One that stays the same is not written to, so that copies of the module go
    /// on sharing it. Returns how many operands are others now.
    pub fn map_operands(&mut self, inst: InstId, new: impl Fn(InstId) -> InstId) -> usize {
        let n_others = self.inst(inst).operands.iter().filter(|&&operand| new(operand) != operand).count();
        if n_others > 0 {
            self.inst_mut(inst).operands.iter_mut().for_each(|operand| *operand = new(*operand));
        }
        n_others
    }

    /// The same for the instructions that must have run before.
    pub fn map_control_predecessors(&mut self, inst: InstId, new: impl Fn(InstId) -> InstId) {
        if self.inst(inst).control_predecessors().iter().any(|&earlier| new(earlier) != earlier) {
            self.inst_mut(inst).control_predecessors_mut().iter_mut().for_each(|earlier| *earlier = new(*earlier));
        }
    }

    /// Has an instruction take `new` as operand `k`, as [`Module::map_operands`] does.
    pub fn set_operand(&mut self, inst: InstId, k: usize, new: InstId) {
        if self.inst(inst).operands[k] != new {
            self.inst_mut(inst).operands[k] = new;
        }
    }

    /// Puts operands and control predecessors before users, keeping the present order where it is right.
    ///
    /// # Errors
    /// An instruction on a cycle.
    pub fn restore_order(&mut self, comp: CompId) -> Result<(), InstId> {
        let before = self.comp(comp).insts.clone();
        let mut order = Vec::with_capacity(before.len());
        let mut state: InstMap<u8> = InstMap::of(self, comp);
        let mut stack: Vec<(InstId, usize)> = Vec::new();
        for &start in &before {
            if state[start] == 0 {
                stack.push((start, 0));
            }
            while let Some((inst, next)) = stack.pop() {
                state[inst] = 1;
                let instruction = self.inst(inst);
                match instruction.operands.iter().chain(instruction.control_predecessors()).nth(next).copied() {
                    Some(operand) => {
                        stack.push((inst, next + 1));
                        match state[operand] {
                            0 => stack.push((operand, 0)),
                            1 => return Err(operand),
                            _ => {}
                        }
                    }
                    None => {
                        state[inst] = 2;
                        order.push(inst);
                    }
                }
            }
        }
        self.comp_mut(comp).insts = order;
        Ok(())
    }

    /// Instructions of `comp` that its result or an effect needs, parameters included.
    pub fn live(&self, comp: CompId) -> EntitySet<InstId> {
        self.live_given(comp, &self.effectful_among(&[comp]))
    }

    /// As [`Module::live`], with [`Module::effectful_computations`] at hand: for passes that visit every computation.
    pub fn live_given(&self, comp: CompId, effectful: &EntitySet<CompId>) -> EntitySet<InstId> {
        let mut work: Vec<InstId> = self.comp(comp).root.expand().into_iter().collect();
        let insts = self.comp(comp).insts.iter().copied();
        work.extend(insts.filter(|&i| self.inst(i).opcode == Opcode::Parameter || self.has_effect(i, effectful)));
        self.needed_by(work)
    }

    /// The instructions of `work` and what they need: operands and control predecessors, transitively.
    fn needed_by(&self, mut work: Vec<InstId>) -> EntitySet<InstId> {
        let mut live: EntitySet<InstId> = EntitySet::with_capacity(self.n_inst_slots());
        while let Some(inst) = work.pop() {
            if live.insert(inst) {
                work.extend(self.needed(inst));
            }
        }
        live
    }

    /// Takes instructions off `comp` that nothing needs. Returns how many.
    pub fn remove_dead(&mut self, comp: CompId) -> usize {
        self.remove_dead_given(comp, &self.effectful_among(&[comp]))
    }

    /// As [`Module::remove_dead`], with [`Module::effectful_computations`] at hand.
    pub fn remove_dead_given(&mut self, comp: CompId, effectful: &EntitySet<CompId>) -> usize {
        let live = self.live_given(comp, effectful);
        let before = self.comp(comp).insts.len();
        self.comp_mut(comp).insts.retain(|&inst| live.contains(inst));
        before - self.comp(comp).insts.len()
    }

    /// Takes instructions off `comp` that nothing needs now and that were needed before (`was_live`) or made since (at or
    /// after slot `n_slots_before`): what a pass left over, and nothing of the user's. Returns how many.
    pub fn remove_newly_dead(&mut self, comp: CompId, was_live: &EntitySet<InstId>, n_slots_before: usize) -> usize {
        self.remove_newly_dead_given(comp, was_live, n_slots_before, &self.effectful_among(&[comp]))
    }

    /// As [`Module::remove_newly_dead`], with [`Module::effectful_computations`] at hand.
    pub fn remove_newly_dead_given(
        &mut self,
        comp: CompId,
        was_live: &EntitySet<InstId>,
        n_slots_before: usize,
        effectful: &EntitySet<CompId>,
    ) -> usize {
        let live = self.live_given(comp, effectful);
        let is_users_own = |inst: InstId| !was_live.contains(inst) && (inst.as_u32() as usize) < n_slots_before;
        let kept = self.comp(comp).insts.iter().copied().filter(|&inst| live.contains(inst) || is_users_own(inst));
        // The user's own dead code may still read what the pass left over.
        let kept = self.needed_by(kept.collect());
        let before = self.comp(comp).insts.len();
        self.comp_mut(comp).insts.retain(|&inst| kept.contains(inst));
        before - self.comp(comp).insts.len()
    }

    /// Whether an instruction must not be removed even if nothing uses its value.
    pub fn must_stay(&self, inst: InstId) -> bool {
        self.inst(inst).opcode == Opcode::Parameter || self.has_effect(inst, &self.effectful_among(&self.called(inst)))
    }

    /// Whether a computation, or one it calls, holds an instruction that must stay.
    pub fn has_side_effect(&self, comp: CompId) -> bool {
        self.effectful_among(&[comp]).contains(comp)
    }

    /// The computations that hold, or call one that holds, an instruction whose effect is seen from outside.
    pub fn effectful_computations(&self) -> EntitySet<CompId> {
        self.effectful_among(self.computations())
    }

    /// As [`Module::effectful_computations`], among `starts` and what they call.
    pub(crate) fn effectful_among(&self, starts: &[CompId]) -> EntitySet<CompId> {
        let mut effectful = EntitySet::new();
        for comp in self.callees_first(starts) {
            if self.known_calls(comp).has_effect(&effectful) {
                effectful.insert(comp);
            }
        }
        effectful
    }

    /// The instructions of a computation whose order among each other is seen from outside: those with an effect, and those that draw from a
    /// random state that they share.
    pub fn ordered_among_each_other(&self, comp: CompId) -> Vec<InstId> {
        let effectful = self.effectful_among(&[comp]);
        let draws = |inst: InstId| self.inst(inst).opcode.row().effects == Effects::Random;
        let insts = self.comp(comp).insts.iter().copied();
        insts.filter(|&inst| draws(inst) || self.has_effect(inst, &effectful)).collect()
    }

    pub(crate) fn has_effect(&self, inst: InstId, effectful: &EntitySet<CompId>) -> bool {
        let instruction = self.inst(inst);
        let row = instruction.opcode.row();
        // What ends an asynchronous computation stays as long as what begins it.
        if let (Flow::AsyncUpdate | Flow::AsyncDone, Some(&before)) = (row.flow, instruction.operands.first()) {
            return self.has_effect(before, effectful);
        }
        match row.effects {
            Effects::Pure | Effects::Random => false,
            Effects::SideEffect => true,
            Effects::ByAttribute => custom_target::has_effect(&instruction.attrs),
            // A collective without users may go, as XLA's own dead-code elimination has it: every device drops it.
            Effects::Communicates | Effects::OfCallees => {
                self.called(inst).iter().any(|&callee| effectful.contains(callee))
            }
        }
    }

    /// Removes computations that the entry does not reach. Returns how many.
    pub fn remove_dead_computations(&mut self) -> usize {
        let mut live: EntitySet<CompId> = EntitySet::new();
        for comp in self.post_order() {
            live.insert(comp);
        }
        let before = self.computations().len();
        let order = self.computations().iter().copied().filter(|&c| live.contains(c)).collect();
        self.set_computation_order(order);
        before - self.computations().len()
    }

    /// A copy of `comp` under a fresh name, placed before `comp`; callees are shared.
    pub fn clone_computation(&mut self, comp: CompId) -> CompId {
        let copy = self.copy_computation(comp);
        let mut order: Vec<CompId> = self.computations().iter().copied().filter(|&c| c != copy).collect();
        let place = order.iter().position(|&c| c == comp).unwrap_or(0);
        order.insert(place, copy);
        self.set_computation_order(order);
        copy
    }

    /// A copy of `comp` under a fresh name, at the end of the print order; callees are shared.
    pub fn copy_computation(&mut self, comp: CompId) -> CompId {
        let source = self.comp(comp).clone();
        let base = self.comp_name(comp).to_string();
        let name = self.names.fresh(&base);
        let copy = self.add_computation(name);
        self.comp_mut(copy).execution_thread = source.execution_thread.clone();
        let mut map = std::collections::BTreeMap::new();
        for &inst in &source.insts {
            let mut instruction = self.inst(inst).clone();
            instruction.parent = copy;
            let base = self.inst_name(inst).to_string();
            instruction.name = self.names.fresh(&base);
            instruction.operands.iter_mut().for_each(|o| *o = map.get(o).copied().unwrap_or(*o));
            let predecessors = instruction.control_predecessors_mut().iter_mut();
            predecessors.for_each(|o| *o = map.get(o).copied().unwrap_or(*o));
            map.insert(inst, self.add_instruction(instruction));
        }
        let params = source.params.iter().filter_map(|p| map.get(p).copied()).collect();
        self.comp_mut(copy).params = params;
        self.comp_mut(copy).root = source.root.expand().and_then(|r| map.get(&r).copied()).into();
        copy
    }
}
