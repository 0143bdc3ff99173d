//! States that are never needed: another one never costs more, whatever the neighbours' states are.
//!
//! `t` takes the place of `s` if `u[t] + sum over edges of max_j (T[t, j] - T[s, j]) <= u[s]`. *Probes* decide most pairs without a
//! look at the tables: for any fixed states `j` of the neighbours, and likewise with each edge at its least,
//! `u[t] + sum of T[t, j] <= u[s] + sum of T[s, j]` has to hold.

use crate::solver::model::{Demand, Node, plus_all};
use crate::solver::problem::Cost;
use crate::solver::tables::{Table, plus};

const N_PROBES: usize = 8;

/// The states of a node that are needed, of those that `kept` has; adds the entries that it read to `n_steps`.
pub(super) fn needed_states(
    node: &Node,
    edges: &[(&Table, usize)],
    mut kept: Vec<usize>,
    n_steps: &mut u64,
) -> Vec<usize> {
    let probes = probes(node, edges, &kept);
    *n_steps += (N_PROBES * edges.len() * node.costs.len()) as u64;
    let mut n_pairs = 0;
    let mut at = kept.len();
    while at > 0 {
        at -= 1;
        let s = kept[at];
        let mut is_worse = |t: &usize| {
            *t != s
                && probes[*t].iter().zip(&probes[s]).all(|(of_t, of_s)| of_t <= of_s)
                && takes_no_more(&node.demands, *t, s)
                && never_costs_more(node, edges, *t, s, n_steps)
        };
        n_pairs += kept.len();
        if kept.iter().any(&mut is_worse) {
            kept.remove(at);
        }
    }
    *n_steps += (n_pairs / N_PROBES) as u64;
    kept
}

/// By state, what it costs with some states of the neighbours: those that suit some of the states best. The last probe has each edge
/// at its least.
fn probes(node: &Node, edges: &[(&Table, usize)], kept: &[usize]) -> Vec<[Cost; N_PROBES]> {
    let mut probes = vec![[0; N_PROBES]; node.costs.len()];
    let mut costs = node.costs.clone();
    for probe in 0..N_PROBES {
        costs.copy_from_slice(&node.costs);
        let suited = kept.get(probe * kept.len() / (N_PROBES - 1)).filter(|_| probe + 1 < N_PROBES);
        for (table, side) in edges {
            let least = table.least(*side);
            match suited {
                Some(state) => plus_all(&mut costs, table.row(1 - side, least[*state].at as usize)),
                None => costs.iter_mut().zip(least).for_each(|(cost, least)| *cost = plus(*cost, least.cost)),
            }
        }
        probes.iter_mut().zip(&costs).for_each(|(probes, cost)| probes[probe] = *cost);
    }
    probes
}

/// Whether state `t` costs no more than `s` with any states of the neighbours. Where `s` costs least on each edge decides for most
/// pairs; only for the others the rows are read.
fn never_costs_more(node: &Node, edges: &[(&Table, usize)], t: usize, s: usize, n_steps: &mut u64) -> bool {
    let room = node.costs[s] - node.costs[t];
    let excess_at_least = |(table, side): &(&Table, usize)| {
        let least = table.least(*side)[s];
        table.row(*side, t)[least.at as usize] - least.cost
    };
    *n_steps += edges.len() as u64;
    let mut excess = edges.iter().fold(0, |sum: Cost, edge| sum.saturating_add(excess_at_least(edge)));
    for edge in edges {
        if excess > room {
            return false;
        }
        let (table, side) = *edge;
        let of_edge = table.excess(side, t, s) - excess_at_least(edge);
        excess = excess.saturating_add(of_edge);
        *n_steps += table.n_states(1 - side) as u64;
    }
    excess <= room
}

fn takes_no_more(demands: &[Demand], t: usize, s: usize) -> bool {
    demands.iter().all(|demand| demand.amounts[t] <= demand.amounts[s])
}
