//! What devices exchange in a step by a plan: each value once for each state in which it is taken, as the emitted program has it.

use crate::plan::ChosenPlan;
use crate::prices::{Prices, Way};
use crate::program::{CutId, CutValue, Program};
use crate::state::State;
use crate::tiles::Tiles;
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use serde::Serialize;

/// Exchanges of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct ExchangeReport {
    /// The opcode.
    pub kind: &'static str,
    /// How often they run in a step.
    pub n_runs: f64,
    /// Bytes that a device sends in all of them, as `analyze traffic` counts them.
    pub sent_bytes: f64,
}

/// The exchanges of a plan, by kind.
pub(crate) fn find_exchanges(program: &Program<'_>, plan: &ChosenPlan<'_>, prices: &Prices<'_>) -> Vec<ExchangeReport> {
    let mut found: IndexMap<&'static str, (f64, f64), FixedHash> = IndexMap::default();
    let mut add = |way: &Way, n_runs: f64| {
        for step in &way.steps {
            let sent = prices.sent_bytes(step);
            if sent > 0.0 {
                let all = found.entry(step.exchange.opcode().name()).or_insert((0.0, 0.0));
                *all = (all.0 + n_runs, all.1 + n_runs * sent);
            }
        }
    };
    for (id, value) in program.values.iter().filter(|(_, value)| !value.is_free) {
        let Some(given) = plan.given(program, id) else { continue };
        let made = value.producer.and_then(|(op, k)| Some((op, k as usize, plan.plan(op)?)));
        let mut targets: IndexMap<State, f64, FixedHash> = IndexMap::default();
        for &(taker, frequency) in &value.takers {
            let Some(wanted) = plan.wanted(program, id, taker) else { continue };
            let most = targets.entry(wanted).or_insert(0.0);
            *most = most.max(frequency);
        }
        let array = Tiles::of(value, prices.mesh);
        let mut bring = |from: State, to: State, n_runs: f64| {
            if from == to {
                return;
            }
            if let Some(way) = prices.find_way(&array, from, to) {
                add(&way, n_runs);
            }
        };
        if let Some((op, k, made)) = made {
            let n_runs = program.ops[op].frequency;
            bring(made.unfinished(k), made.results[k], n_runs);
            bring(made.results[k], given, n_runs);
        }
        targets.iter().for_each(|(&to, &n_runs)| bring(given, to, n_runs));
    }
    let report = |(kind, (n_runs, sent_bytes))| ExchangeReport { kind, n_runs, sent_bytes };
    found.into_iter().map(report).collect()
}

/// Values that are partial sums and that an op takes so.
pub(crate) fn count_deferred(program: &Program<'_>, plan: &ChosenPlan<'_>) -> usize {
    let is_partial = |state: State| state.partial(&plan.network.mesh) != 0;
    let is_deferred = |(id, value): (CutId, &CutValue)| {
        let mut wanted = value.takers.iter().filter_map(|&(taker, _)| plan.wanted(program, id, taker));
        wanted.any(is_partial)
    };
    program.values.iter().filter(|&(id, value)| is_deferred((id, value))).count()
}
