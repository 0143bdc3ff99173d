//! How much memory a plan takes on a device: parameters, and what lives beside them from moment to moment.
//!
//! The order of the text is the schedule; a loop's body stands where the loop does, once. A value lives from the op that computes it to
//! the last one that takes it, results to the end. Values of chains that run as one kernel (`work`) take no memory, nor does a result that
//! replaces a parameter. An elementwise op and an update in place give the memory of what they take last to their result. What is on
//! its way between two states is not counted. So this is near to [`hlo_analysis::memory`], which has the last word on the emitted program.
//!
//! The amount at one moment is a sum over variables, each by its state: a linear constraint of the solver. Moments are added as a plan
//! exceeds the limit there.

use crate::network::PlanNetwork;
use crate::plan::ChosenPlan;
use crate::program::{CutId, Program, Taker};
use crate::solver::{Constraint, VarId};
use crate::state::State;
use crate::work::{in_memory, runs_in_place};
use cranelift_entity::SecondaryMap;
use hlo_ir::names::FixedHash;
use hlo_ir::{CompId, InstId};
use indexmap::IndexMap;
use std::sync::Arc;

/// When values live.
pub(crate) struct Lifetimes {
    /// Value, first moment, the moment behind the last one.
    spans: Vec<(CutId, u32, u32)>,
    n_moments: u32,
}

/// What a plan takes where it takes most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedPeak {
    pub moment: u32,
    pub bytes: u64,
}

impl Lifetimes {
    /// Finds when the values of a program live.
    pub(crate) fn find(program: &Program<'_>) -> Lifetimes {
        let (position, n_moments) = positions(program);
        let memory = in_memory(program);
        let mut spans = Vec::new();
        for (id, value) in program.values.iter().filter(|(_, value)| !value.is_free) {
            if value.is_param {
                spans.push((id, 0, n_moments));
                continue;
            }
            let replaces = matches!(value.takers.as_slice(), [(Taker::Replaces { .. }, _)]);
            if replaces || !memory.contains(id) {
                continue;
            }
            let from = position[value.inst];
            let end = value.takers.iter().map(|(taker, _)| match *taker {
                Taker::Op { op, .. } => {
                    let inst = program.ops[op].inst;
                    position[inst] + u32::from(!runs_in_place(program.module, inst))
                }
                Taker::Becomes(other) => position[program.values[other].inst].max(from) + 1,
                Taker::Exit(_) => n_moments,
                Taker::Replaces { .. } | Taker::Whole => from + 1,
            });
            let end = end.max().unwrap_or(from + 1).max(from + 1).min(n_moments);
            spans.push((id, from, end));
        }
        Lifetimes { spans, n_moments }
    }

    /// Where a plan takes most.
    pub(crate) fn peak(&self, program: &Program<'_>, plan: &ChosenPlan<'_>) -> PlannedPeak {
        let mesh = &plan.network.mesh;
        self.largest(|value| {
            let state = plan.given(program, value).unwrap_or(State::WHOLE);
            bytes_in(program, value, |dims| state.tile_elems(mesh, dims))
        })
    }

    /// Where the program on one device takes most.
    pub(crate) fn whole_peak(&self, program: &Program<'_>) -> PlannedPeak {
        self.largest(|value| program.values[value].bytes() as u64)
    }

    fn largest(&self, bytes: impl Fn(CutId) -> u64) -> PlannedPeak {
        let mut changes = vec![0i128; self.n_moments as usize + 1];
        for &(value, from, end) in &self.spans {
            let bytes = i128::from(bytes(value));
            changes[from as usize] += bytes;
            changes[end as usize] -= bytes;
        }
        let (mut now, mut peak) = (0i128, PlannedPeak { moment: 0, bytes: 0 });
        for (moment, change) in changes.iter().enumerate().take(self.n_moments as usize) {
            now += change;
            if now > i128::from(peak.bytes) {
                peak = PlannedPeak { moment: moment as u32, bytes: u64::try_from(now).unwrap_or(u64::MAX) };
            }
        }
        peak
    }

    /// What lives at a moment is at most `limit` bytes.
    pub(crate) fn constraint(
        &self,
        program: &Program<'_>,
        network: &PlanNetwork,
        moment: u32,
        limit: u64,
    ) -> Constraint {
        let mut terms: IndexMap<VarId, Vec<u64>, FixedHash> = IndexMap::default();
        let mesh = &network.mesh;
        for &(value, from, end) in self.spans.iter().filter(|(_, from, end)| (*from..*end).contains(&moment)) {
            debug_assert!(from < end);
            let Some(var) = network.source(program, value) else { continue };
            let tile = |state: &State| bytes_in(program, value, |dims| state.tile_elems(mesh, dims));
            let by_state: Vec<u64> = match (network.var_of_value[value].expand(), program.values[value].producer) {
                (Some(_), _) | (None, None) => network.states[value].iter().map(tile).collect(),
                (None, Some((op, k))) => network.plans[op].iter().map(|plan| tile(&plan.results[k as usize])).collect(),
            };
            match terms.get_mut(&var) {
                Some(known) => known.iter_mut().zip(by_state).for_each(|(known, more)| *known += more),
                None => drop(terms.insert(var, by_state)),
            }
        }
        let terms = terms.into_iter().map(|(var, bytes)| (var, Arc::from(bytes))).collect();
        Constraint { limit, terms }
    }
}

fn bytes_in(program: &Program<'_>, value: CutId, elems: impl Fn(&[i64]) -> f64) -> u64 {
    let value = &program.values[value];
    (elems(&value.dims) * value.elem_bytes) as u64
}

/// The moment of each instruction: the order of the text, callees where they are called first.
fn positions(program: &Program<'_>) -> (SecondaryMap<InstId, u32>, u32) {
    let (module, mut position, mut next) = (program.module, SecondaryMap::new(), 0);
    let Some(entry) = module.entry() else { return (position, 1) };
    let mut is_seen: SecondaryMap<CompId, bool> = SecondaryMap::new();
    let mut stack: Vec<(CompId, usize)> = vec![(entry, 0)];
    is_seen[entry] = true;
    while let Some((comp, k)) = stack.pop() {
        let Some(&inst) = module.comp(comp).insts.get(k) else { continue };
        let callee = module.called(inst).into_iter().find(|&c| program.leaves.knows(c) && !is_seen[c]);
        match callee {
            Some(callee) => {
                // What a loop carries lives from here on.
                position[inst] = next;
                is_seen[callee] = true;
                stack.extend([(comp, k), (callee, 0)]);
            }
            None => {
                if module.called(inst).is_empty() {
                    position[inst] = next;
                }
                next += 1;
                stack.push((comp, k + 1));
            }
        }
    }
    (position, next.max(1))
}
