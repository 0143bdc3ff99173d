//! The promise `optimizer`: weights, optimizer state and the scalars of updates are the same on all devices.
//!
//! A leaf is promised if it goes on in the module's results: by ops that work element by element it reaches an output
//! of its own type that depends on an exchange between devices, its next value. A scalar is promised too if it reaches
//! outputs in this way and no exchange, such as a learning rate or a count of steps. Data is neither: what is made of
//! it element by element has another type, or is exchanged with nobody.
//!
//! From devices that hold the same a step has to make what is the same again, else the promise is broken after one
//! step. So each promised leaf needs outputs, of all that may be its next value, which the analysis shows equal on all
//! devices *under the promise*. Others are dropped, and the analysis runs again until none is: the largest promise that
//! keeps itself.

use super::{ParamFacts, differing_devices, entry_leaves};
use crate::replication::{Across, Replication};
use crate::values::{SharedCallees, Through, User, ValueId, Values};
use cranelift_entity::EntitySet;
use hlo_ir::op::{FactorRule, KernelForm};
use hlo_ir::{InstId, Module};
use std::collections::BTreeSet;

/// A promise, and what was left out of it.
#[derive(Clone, Debug, Default)]
pub struct OptimizerPromise {
    /// The promise.
    pub facts: ParamFacts,
    /// The flat numbers of the leaves that are promised, ascending.
    pub promised: Vec<usize>,
    /// Leaves that were dropped, in the order of rounds: the flat number, and that of an output that would differ.
    pub dropped: Vec<(usize, usize)>,
}

/// A leaf that may be promised.
struct Candidate {
    leaf: usize,
    /// The outputs that have to be equal on all devices: one of them is its next value.
    outputs: Vec<usize>,
}

impl OptimizerPromise {
    /// Finds the promise for a module's entry.
    pub fn find(module: &Module) -> OptimizerPromise {
        let mut promise = OptimizerPromise::default();
        let Some(root) = module.entry().and_then(|entry| module.comp(entry).root.expand()) else { return promise };
        let mut left = find_candidates(module, root, &mut promise.dropped);
        loop {
            promise.facts = ParamFacts::default();
            left.iter().for_each(|candidate| promise.facts.promise(candidate.leaf));
            let known = Replication::compute(module, &promise.facts);
            let is_equal = |output: &usize| known.is_replicated(root, *output, Across::Devices);
            let (kept, dropped): (Vec<Candidate>, Vec<Candidate>) =
                left.into_iter().partition(|candidate| candidate.outputs.iter().all(is_equal));
            left = kept;
            if dropped.is_empty() {
                break;
            }
            promise
                .dropped
                .extend(dropped.iter().filter_map(|dropped| Some((dropped.leaf, *dropped.outputs.first()?))));
        }
        promise.promised = left.iter().map(|candidate| candidate.leaf).collect();
        promise
    }
}

/// The leaves that go on in results, of which the module does not say that they are cut. Those of arrays that only go
/// on in what is exchanged with nobody are `left_out`, with the output.
fn find_candidates(module: &Module, root: InstId, left_out: &mut Vec<(usize, usize)>) -> Vec<Candidate> {
    let values = Values::find(module, Through::ALL, SharedCallees::Entered);
    let of_exchanges = outputs_of_exchanges(module, &values);
    let leaves = entry_leaves(module);
    let of_leaf = |(number, leaf): (usize, &super::ParamLeaf)| {
        if differing_devices(module, leaf).is_some() {
            return None;
        }
        let value = values.leaves(leaf.param).get(leaf.leaf_idx)?.expand()?;
        let own = module.shapes.leaf(module.inst(leaf.param).shape, leaf.leaf_idx)?.as_array()?;
        let reached = Reached::from(module, &values, value);
        let has_own_type = |&output: &usize| {
            let shape = module.shapes.leaf(module.inst(root).shape, output).and_then(|shape| shape.as_array());
            shape.is_some_and(|shape| shape.dtype == own.dtype && shape.dims == own.dims)
        };
        let next: Vec<usize> = reached.outputs.iter().copied().filter(has_own_type).collect();
        let outputs = match own.n_elems() {
            1 if !next.is_empty() => next,
            1 if !reached.is_exchanged => reached.outputs,
            1 => Vec::new(),
            _ => {
                let is_shared = next.iter().any(|output| of_exchanges.contains(output));
                left_out.extend(next.first().filter(|_| !is_shared).map(|&output| (number, output)));
                if is_shared { next } else { Vec::new() }
            }
        };
        (!outputs.is_empty()).then_some(Candidate { leaf: number, outputs })
    };
    leaves.iter().enumerate().filter_map(of_leaf).collect()
}

/// The outputs that depend on an exchange between devices.
fn outputs_of_exchanges(module: &Module, values: &Values) -> BTreeSet<usize> {
    let insts = values.comps.iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    let exchanges = insts.filter(|&inst| module.inst(inst).opcode.row().collective.is_some());
    let results = |inst: InstId| values.leaves(inst).iter().filter_map(|value| value.expand());
    let mut open: Vec<ValueId> = exchanges.flat_map(results).collect();
    let (mut seen, mut outputs): (EntitySet<ValueId>, _) = (EntitySet::new(), BTreeSet::new());
    while let Some(value) = open.pop() {
        if !seen.insert(value) {
            continue;
        }
        for taken in &values.uses[value] {
            match taken.user {
                User::Exit(output) => {
                    outputs.insert(output as usize);
                }
                User::Becomes(other) => open.push(other),
                User::Op { inst, .. } | User::Opaque(inst) => open.extend(results(inst)),
            }
        }
    }
    outputs
}

/// The values that a value reaches by ops that work element by element.
#[derive(Default)]
struct Reached {
    outputs: Vec<usize>,
    /// Whether an exchange between devices takes it.
    is_exchanged: bool,
}

impl Reached {
    fn from(module: &Module, values: &Values, start: ValueId) -> Reached {
        let (mut found, mut seen, mut open) = (Reached::default(), EntitySet::new(), vec![start]);
        seen.insert(start);
        while let Some(value) = open.pop() {
            for taken in &values.uses[value] {
                let next: Vec<ValueId> = match taken.user {
                    User::Exit(output) => {
                        found.outputs.push(output as usize);
                        continue;
                    }
                    User::Opaque(_) => continue,
                    User::Becomes(other) => vec![other],
                    User::Op { inst, operand } => {
                        let row = module.inst(inst).opcode.row();
                        found.is_exchanged |= row.collective.is_some();
                        if row.collective.is_some() || !goes_on(row.factors, operand) {
                            continue;
                        }
                        values.leaves(inst).iter().filter_map(|value| value.expand()).collect()
                    }
                };
                open.extend(next.into_iter().filter(|&value| seen.insert(value)));
            }
        }
        found.outputs.sort_unstable();
        found.outputs.dedup();
        found
    }
}

/// Whether the elements of this operand go on, one by one, in the result.
fn goes_on(rule: FactorRule, operand: u32) -> bool {
    let row = rule.row();
    row.is_one_to_one || rule == FactorRule::Broadcast || row.kernel == KernelForm::Updates && operand == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two replicas: a weight, its momentum, the rate, a running mean that nobody sums, and data.
    const STEP: &str = "HloModule step, replica_count=2

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8,4], w: f32[4], m: f32[4], rate: f32[], mean: f32[4]) -> (f32[4], f32[4], f32[4], f32[8,4]) {
  %x = f32[8,4]{1,0} parameter(0)
  %w = f32[4]{0} parameter(1)
  %m = f32[4]{0} parameter(2)
  %rate = f32[] parameter(3)
  %mean = f32[4]{0} parameter(4)
  %zero = f32[] constant(0)
  %local = f32[4]{0} reduce(%x, %zero), dimensions={0}, to_apply=%add
  %g = f32[4]{0} all-reduce(%local), replica_groups={}, to_apply=%add
  %m2 = f32[4]{0} add(%m, %g)
  %rates = f32[4]{0} broadcast(%rate), dimensions={}
  %step = f32[4]{0} multiply(%m2, %rates)
  %w2 = f32[4]{0} subtract(%w, %step)
  %mean2 = f32[4]{0} add(%mean, %local)
  %y = f32[8,4]{1,0} negate(%x)
  ROOT %out = (f32[4]{0}, f32[4]{0}, f32[4]{0}, f32[8,4]{1,0}) tuple(%w2, %m2, %mean2, %y)
}
";

    fn found(text: &str) -> OptimizerPromise {
        OptimizerPromise::find(&hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{e:?}")).module)
    }

    #[test]
    fn what_a_step_makes_equal_again_is_promised() {
        let promise = found(STEP);
        assert_eq!(promise.promised, [1, 2, 3]);
        assert_eq!(promise.dropped, [(0, 3), (4, 2)]);
        assert!(promise.facts.leaf(3).is_some() && promise.facts.leaf(4).is_none());
    }

    #[test]
    fn what_depends_on_a_dropped_leaf_is_dropped_after_it() {
        let by_mean = "add(%mean, %m2)\n  %step = f32[4]{0} multiply(%sum, %rates)";
        let promise = found(
            &STEP
                .replace("multiply(%m2, %rates)", by_mean.trim_start())
                .replace("%step = f32[4]{0} add", "%sum = f32[4]{0} add"),
        );
        assert!(promise.promised.is_empty(), "{promise:?}");
        let dropped: Vec<usize> = promise.dropped.iter().map(|(leaf, _)| *leaf).collect();
        assert_eq!(dropped, [0, 4, 1, 2, 3], "the weight goes with the mean, and with it what it is made of");
        let unsummed = STEP.replace("all-reduce(%local), replica_groups={}, to_apply=%add", "negate(%local)");
        assert!(found(&unsummed).promised.is_empty());
    }
}
