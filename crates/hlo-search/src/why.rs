//! What a decision costs beside its alternatives: for one value, the best plan with each other state.

use crate::dump::{describe, states_of};
use crate::network::Decides;
use crate::pins::find;
use crate::program::Program;
use crate::search::Found;
use crate::solver::{INFINITE, SolveRequest, solve};
use serde::Serialize;

/// The alternatives of one decision.
#[derive(Clone, Debug, Serialize)]
pub struct WhyReport {
    /// What is decided, as `state of %w`.
    pub what: String,
    /// The state that was chosen.
    pub chosen: String,
    /// Other states with the least step time that was found with them and its bound, in seconds, the best first.
    pub others: Vec<OtherReport>,
}

/// One alternative.
#[derive(Clone, Debug, Serialize)]
pub struct OtherReport {
    /// The state.
    pub state: String,
    /// The least step time that was found with it; `None`: it is not possible.
    pub step_s: Option<f64>,
    /// No plan with it takes less.
    pub bound_s: f64,
}

/// Table entries that may be read for one alternative.
const EFFORT: u64 = 200_000_000;

/// The price of each other state of the value of this name on the plan's mesh; `None`: there is no such value.
pub(crate) fn why(program: &Program<'_>, found: &Found, name: &str) -> Option<WhyReport> {
    let value = find(program, name)?;
    let network = &found.network;
    let var = network.var_of_value[value].expand()?;
    let states = states_of(network, Decides::Kept(value));
    let chosen = found.assignment[var] as usize;
    let mut others = Vec::new();
    for (k, state) in states.iter().enumerate().filter(|(k, _)| *k != chosen) {
        let mut problem = network.problem.clone();
        for (other, cost) in problem.variables[var].iter_mut().enumerate() {
            if other != k {
                *cost = INFINITE;
            }
        }
        let mut start = found.assignment.clone();
        start[var] = k as u32;
        let solved = solve(&SolveRequest {
            problem: &problem,
            starts: &[start],
            repeats: None,
            effort: EFFORT,
            cutoff: None,
            wanted_gap: 1e-4,
            is_over: &|| false,
            progress: &|_| {},
        });
        let step_s = solved.assignment.map(|_| solved.cost as f64 / 1e12);
        others.push(OtherReport { state: state.clone(), step_s, bound_s: solved.lower_bound as f64 / 1e12 });
    }
    others.sort_by(|a, b| a.step_s.unwrap_or(f64::INFINITY).total_cmp(&b.step_s.unwrap_or(f64::INFINITY)));
    Some(WhyReport { what: describe(program, Decides::Kept(value)), chosen: states[chosen].clone(), others })
}
