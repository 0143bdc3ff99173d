//! How much memory a plan takes on a device: parameters, and what lives beside them from moment to moment.
//!
//! The order of the text is the schedule; a loop's body stands where the loop does, once. A value lives from the op that computes it to
//! the last one that takes it, results to the end. Values of chains that run as one kernel (`work`) take no memory, nor does a result that
//! replaces a parameter. An elementwise op and an update in place give the memory of what they take last to their result. An operand
//! that an op wants in another state lies there in both while the op runs, and so does a result that is kept in another one. What lies
//! between the steps of one redistribution is not counted. So this is near to [`hlo_analysis::memory`], which has the last word on the
//! emitted program.
//!
//! The amount at one moment is a sum over variables, each by its state: a linear constraint of the solver. What an op wants otherwise is
//! no such sum, because it depends on two states: there, the tile that the op wants counts as far as it is larger than the smallest tile
//! of the value. That is too much where the states are equal and dear, and too little by that smallest tile where they differ. Moments
//! are added as a plan exceeds the limit there (most programs need none), and a moment's limit is lowered by what the sum left out.

use crate::network::PlanNetwork;
use crate::plan::ChosenPlan;
use crate::plans::Plan;
use crate::program::{CutId, OpId, Program, Taker};
use crate::solver::{Constraint, VarId};
use crate::state::State;
use crate::work::{in_memory, runs_in_place};
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_ir::names::FixedHash;
use hlo_ir::{CompId, InstId};
use indexmap::IndexMap;
use std::sync::Arc;

/// When values live.
pub(crate) struct Lifetimes {
    /// Value, first moment, the moment behind the last one.
    spans: Vec<(CutId, u32, u32)>,
    /// When each op runs, by moment.
    runs: Vec<(u32, OpId)>,
    /// What takes memory where it is taken as it is.
    memory: EntitySet<CutId>,
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
        let mut runs: Vec<(u32, OpId)> = program.ops.iter().map(|(id, op)| (position[op.inst], id)).collect();
        runs.sort();
        Lifetimes { spans, runs, memory, n_moments }
    }

    /// Where a plan takes most.
    pub(crate) fn peak(&self, program: &Program<'_>, plan: &ChosenPlan<'_>) -> PlannedPeak {
        let tile = |value: CutId, state: State| tile_bytes(program, value, state, plan.network);
        let given = |value: CutId| plan.given(program, value).unwrap_or(State::WHOLE);
        let in_other_state = |op: OpId| -> u64 {
            let Some(own) = plan.plan(op) else { return 0 };
            let others = ends(program, op).map(|end| (end.value, end.state(own)));
            let mut others: Vec<(CutId, State)> = others.filter(|&(value, state)| state != given(value)).collect();
            others.sort();
            others.dedup();
            // What is fused lies in memory after all if it changes its state.
            let fused = |value: CutId| if self.memory.contains(value) { 0 } else { tile(value, given(value)) };
            others.into_iter().map(|(value, state)| tile(value, state) + fused(value)).sum()
        };
        let held = |value: CutId| if plan.is_off(program, value) { 0 } else { tile(value, given(value)) };
        self.largest(held, in_other_state)
    }

    fn largest(&self, bytes: impl Fn(CutId) -> u64, while_running: impl Fn(OpId) -> u64) -> PlannedPeak {
        let mut changes = vec![0i128; self.n_moments as usize + 1];
        let mut add = |bytes: u64, from: u32, end: u32| {
            changes[from as usize] += i128::from(bytes);
            changes[end as usize] -= i128::from(bytes);
        };
        self.spans.iter().for_each(|&(value, from, end)| add(bytes(value), from, end));
        self.runs.iter().for_each(|&(moment, op)| add(while_running(op), moment, moment + 1));
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
        let mut add = |var: VarId, by_state: Vec<u64>| match terms.get_mut(&var) {
            Some(known) => known.iter_mut().zip(by_state).for_each(|(known, more)| *known += more),
            None => drop(terms.insert(var, by_state)),
        };
        let tile = |value: CutId, state: State| tile_bytes(program, value, state, network);
        let off = |var: Option<VarId>| var.and_then(|var| network.off(var)).map(|_| 0);
        let tiles_given = |value: CutId| -> Vec<u64> {
            let tiles: Vec<u64> = match (network.var_of_value[value].expand(), program.values[value].producer) {
                (Some(_), _) | (None, None) => network.states[value].iter().map(|&state| tile(value, state)).collect(),
                (None, Some((op, k))) => {
                    network.plans[op].iter().map(|plan| tile(value, plan.results[k as usize])).collect()
                }
            };
            tiles.into_iter().chain(off(network.source(program, value))).collect()
        };
        for &(value, from, end) in self.spans.iter().filter(|(_, from, end)| (*from..*end).contains(&moment)) {
            debug_assert!(from < end);
            if let Some(var) = network.source(program, value) {
                add(var, tiles_given(value));
            }
        }
        let first = self.runs.partition_point(|(at, _)| *at < moment);
        for &(_, op) in self.runs[first..].iter().take_while(|(at, _)| *at == moment) {
            let Some(var) = network.var_of_op[op].expand() else { continue };
            for end in
                ends(program, op).filter(|end| network.source(program, end.value).is_some_and(|source| source != var))
            {
                let least = tiles_given(end.value).into_iter().min().unwrap_or(0);
                let more = |plan: &Plan| tile(end.value, end.state(plan)).saturating_sub(least);
                add(var, network.plans[op].iter().map(more).chain(off(Some(var))).collect());
            }
        }
        let terms = terms.into_iter().map(|(var, bytes)| (var, Arc::from(bytes))).collect();
        Constraint { limit, terms }
    }
}

/// An operand or a result of an op.
#[derive(Clone, Copy)]
struct OpEnd {
    value: CutId,
    k: usize,
    is_result: bool,
}

impl OpEnd {
    /// The state in which a plan has it.
    fn state(self, plan: &Plan) -> State {
        let states: &[State] = if self.is_result { &plan.results } else { &plan.operands };
        states.get(self.k).copied().unwrap_or(State::WHOLE)
    }
}

/// What an op takes and gives, free values left out.
fn ends<'a>(program: &'a Program<'_>, op: OpId) -> impl Iterator<Item = OpEnd> + 'a {
    let of = |values: &'a [PackedOption<CutId>], is_result: bool| {
        let all = values.iter().enumerate().filter_map(|(k, value)| Some((k, value.expand()?)));
        all.map(move |(k, value)| OpEnd { value, k, is_result })
    };
    let op = &program.ops[op];
    of(&op.operands, false).chain(of(&op.results, true)).filter(|end| !program.values[end.value].is_free)
}

fn tile_bytes(program: &Program<'_>, value: CutId, state: State, network: &PlanNetwork) -> u64 {
    let value = &program.values[value];
    (state.tile_elems(&network.mesh, &value.dims) * value.elem_bytes) as u64
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
