//! What each computation calls, and whether it has an effect of its own: found once for each computation, and kept until one of its
//! instructions may have changed.

// circle: a computation keeps what is known of its calls, which are found in the module
use crate::module::{CompId, Module};
use crate::names::FixedHash;
use crate::op::{Effects, Opcode};
use cranelift_entity::EntitySet;
use hashbrown::HashSet;
use std::sync::{Arc, OnceLock};

/// What is known of the calls of one computation.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownCalls(OnceLock<Arc<Calls>>);

/// The calls of one computation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    /// What its instructions call, each with the opcode that does, in text order; of one instruction the last first.
    called: Vec<(Opcode, CompId)>,
    /// Whether it holds an instruction whose effect is seen from outside, calls aside.
    has_own_effect: bool,
}

impl KnownCalls {
    /// Forgets what is known.
    #[inline]
    pub(crate) fn forget(&mut self) {
        if self.0.get().is_some() {
            self.0 = OnceLock::new();
        }
    }
}

impl Calls {
    fn of(module: &Module, comp: CompId) -> Calls {
        let mut calls = Calls::default();
        let (mut last, mut known) = (None, HashSet::<(Opcode, CompId), FixedHash>::default());
        for &inst in &module.comp(comp).insts {
            let opcode = module.inst(inst).opcode;
            let is_own = !matches!(opcode.row().effects, Effects::OfCallees | Effects::Communicates);
            calls.has_own_effect |= is_own && module.has_effect(inst, &EntitySet::new());
            for callee in module.called(inst).into_iter().rev() {
                // Most call what the one before calls.
                if last != Some((opcode, callee)) && known.insert((opcode, callee)) {
                    calls.called.push((opcode, callee));
                }
                last = Some((opcode, callee));
            }
        }
        calls
    }

    /// Whether the computation has an effect that is seen from outside, given those it calls that have one.
    pub(crate) fn has_effect(&self, effectful: &EntitySet<CompId>) -> bool {
        let runs_effect = |&(opcode, callee): &(Opcode, CompId)| match opcode.row().effects {
            Effects::OfCallees | Effects::Communicates => effectful.contains(callee),
            Effects::Pure | Effects::Random | Effects::SideEffect | Effects::ByAttribute => false,
        };
        self.has_own_effect || self.called.iter().any(runs_effect)
    }
}

impl Module {
    /// The calls of a computation.
    pub(crate) fn known_calls(&self, comp: CompId) -> &Calls {
        self.comp(comp).calls.0.get_or_init(|| Arc::new(Calls::of(self, comp)))
    }

    /// What the instructions of a computation call, each computation once with each opcode that calls it.
    pub fn calls_of(&self, comp: CompId) -> &[(Opcode, CompId)] {
        &self.known_calls(comp).called
    }

    /// The computations that are reachable from the entry, callees before callers, each once.
    pub fn post_order(&self) -> Vec<CompId> {
        self.callees_first(self.entry().as_slice())
    }

    /// The computations that are reachable from `starts`, callees before callers, each once.
    pub fn callees_first(&self, starts: &[CompId]) -> Vec<CompId> {
        let mut out = Vec::new();
        if starts.is_empty() {
            return out;
        }
        let mut is_seen: EntitySet<CompId> = EntitySet::new();
        let mut stack: Vec<(CompId, bool)> = starts.iter().rev().map(|&start| (start, false)).collect();
        while let Some((comp, is_done)) = stack.pop() {
            if is_done {
                out.push(comp);
            } else if is_seen.insert(comp) {
                stack.push((comp, true));
                let callees = self.calls_of(comp).iter().rev().map(|&(_, callee)| callee);
                stack.extend(callees.filter(|&callee| !is_seen.contains(callee)).map(|callee| (callee, false)));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::{Attrs, CallAttrs};
    use crate::edit::Builder;
    use crate::{DType, Literal, Scalar, Shape};

    #[test]
    fn calls_are_found_again_after_a_change() {
        let mut module = Module::new("m");
        let comps = ["leaf", "middle", "entry"].map(|name| {
            let name = module.names.fresh(name);
            module.add_computation(name)
        });
        let [leaf, middle, entry] = comps;
        for comp in comps {
            let value = Literal::scalar(DType::S32, Scalar::Int(1));
            let one = Builder::new(&mut module, comp).constant("one", value);
            module.comp_mut(comp).root = Some(one).into();
        }
        module.set_entry(entry);
        assert_eq!(module.post_order(), [entry]);
        let shape = Shape::array(DType::S32, []);
        let call = |comp| Attrs::from(CallAttrs { to_apply: Some(comp), ..CallAttrs::default() });
        let mut b = Builder::new(&mut module, entry);
        b.add("a", Opcode::Call, shape.clone(), [], call(middle));
        let last = b.add("b", Opcode::Call, shape, [], call(leaf));
        assert_eq!(module.post_order(), [middle, leaf, entry]);
        module.inst_mut(last).attrs = call(middle);
        assert_eq!(module.post_order(), [middle, entry]);
        let copy = module.clone();
        module.comp_mut(entry).insts.retain(|&inst| inst == last);
        assert_eq!(module.calls_of(entry), copy.calls_of(entry));
        module.comp_mut(entry).insts.clear();
        assert_eq!((module.post_order(), copy.post_order()), (vec![entry], vec![middle, entry]));
    }
}
