//! What a decision costs beside its alternatives: for one value, the best plan that is found with each other state.

use crate::dump::{describe, states_of};
use crate::error::SearchError;
use crate::found::Found;
use crate::network::Decides;
use crate::pins::find;
use crate::program::Program;
use crate::solver::{Cost, INFINITE, RunnerUps};
use serde::Serialize;

/// The alternatives of one decision.
#[derive(Clone, Debug, Serialize)]
pub struct WhyReport {
    /// What is decided, as `state of %w`.
    pub what: String,
    /// The state that was chosen.
    pub chosen: String,
    /// Other states with the least step time that was found with them, the decisions around chosen anew; the best first.
    pub others: Vec<OtherReport>,
}

/// One alternative.
#[derive(Clone, Debug, Serialize)]
pub struct OtherReport {
    /// The state.
    pub state: String,
    /// The least step time that was found with it; `None`: it is not possible.
    pub step_s: Option<f64>,
}

/// The price of each other state of the value of this name on the plan's mesh; `None`: it has no state of its own there.
///
/// # Errors
/// No value has the name, or several do.
pub(crate) fn why(program: &Program<'_>, found: &Found, name: &str) -> Result<Option<WhyReport>, SearchError> {
    let value = find(program, name)?;
    let network = &found.network;
    let Some(var) = network.var_of_value[value].expand() else { return Ok(None) };
    let costs = RunnerUps::new(&network.problem, &found.assignment).costs(var);
    let states = states_of(network, Decides::Kept(value));
    let chosen = found.assignment[var] as usize;
    let other = |(k, (state, cost)): (usize, (&String, Cost))| {
        let step_s = (cost < INFINITE).then_some(cost as f64 / 1e12);
        (k != chosen).then(|| OtherReport { state: state.clone(), step_s })
    };
    let mut others: Vec<OtherReport> = states.iter().zip(costs).enumerate().filter_map(other).collect();
    others.sort_by(|a, b| a.step_s.unwrap_or(f64::INFINITY).total_cmp(&b.step_s.unwrap_or(f64::INFINITY)));
    Ok(Some(WhyReport { what: describe(program, Decides::Kept(value)), chosen: states[chosen].clone(), others }))
}
