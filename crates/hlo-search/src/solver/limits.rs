//! Limits as prices: what an assignment takes of each limit, and models in which taking costs.
//!
//! For prices `p >= 0` of the limits, the least of `cost(x) + sum of p * (taken(x) - limit)` over all assignments is at most the
//! cost of any assignment within the limits (Lagrange). Prices are counted in 2^-24 picoseconds a unit; what a state takes is priced
//! rounded down, the limit rounded up, so that the bound holds for integers too.

use super::model::{Demand, Model};
use super::problem::{Cost, INFINITE};
use super::tables::{Table, is_infinite, plus};
use std::collections::HashMap;
use std::sync::Arc;

/// No assignment is within the limits.
pub(super) struct OverLimit;

const PRICE_BITS: u32 = 24;
/// All that is taken and all limits cost less than this, at the highest price.
const MOST_PRICED: u128 = (INFINITE / 64) as u128;

/// By limit, what the states take.
pub(super) fn taken(model: &Model, states: &[u32]) -> Vec<u64> {
    let mut sums = vec![0u64; model.limits.len()];
    for (node, state) in model.nodes.iter().zip(states) {
        for demand in &node.demands {
            sums[demand.limit] = sums[demand.limit].saturating_add(demand.amounts[*state as usize]);
        }
    }
    sums
}

pub(super) fn is_within(model: &Model, states: &[u32]) -> bool {
    taken(model, states).iter().zip(&model.limits).all(|(taken, limit)| taken <= limit)
}

/// By limit, the sums of the least and of the most that each node can take, over the states that are allowed.
fn taken_range(model: &Model) -> (Vec<u64>, Vec<u64>) {
    let n = model.limits.len();
    let (mut least, mut most) = (vec![0u64; n], vec![0u64; n]);
    for node in &model.nodes {
        for demand in &node.demands {
            let allowed = demand.amounts.iter().zip(&node.costs).filter(|(_, cost)| !is_infinite(**cost));
            let amounts = allowed.map(|(amount, _)| *amount);
            let at = demand.limit;
            least[at] = least[at].saturating_add(amounts.clone().min().unwrap_or(0));
            most[at] = most[at].saturating_add(amounts.max().unwrap_or(0));
        }
    }
    (least, most)
}

/// Drops states that no choice for the other nodes makes fit, and the demands for limits that nothing can break.
pub(super) fn drop_by_limits(model: &mut Model) -> Result<(), OverLimit> {
    let (least, most) = taken_range(model);
    if least.iter().zip(&model.limits).any(|(least, limit)| least > limit) {
        return Err(OverLimit);
    }
    for node in &mut model.nodes {
        for demand in &node.demands {
            let of_node = demand.amounts.iter().zip(&node.costs).filter(|(_, cost)| !is_infinite(**cost));
            let own = of_node.map(|(amount, _)| *amount).min().unwrap_or(0);
            let room = model.limits[demand.limit] - least[demand.limit];
            for (amount, cost) in demand.amounts.iter().zip(&mut node.costs) {
                if amount.saturating_sub(own) > room {
                    *cost = INFINITE;
                }
            }
        }
        node.demands.retain(|demand| most[demand.limit] > model.limits[demand.limit]);
    }
    Ok(())
}

pub(super) fn has_demands(model: &Model) -> bool {
    model.nodes.iter().any(|node| !node.demands.is_empty())
}

/// The highest price of a limit.
pub(super) fn highest_price(model: &Model, limit: usize) -> u64 {
    let (_, most) = taken_range(model);
    let amount = u128::from(most[limit]).max(u128::from(model.limits[limit])).max(1);
    let shares = MOST_PRICED / model.limits.len().max(1) as u128;
    u64::try_from((shares << PRICE_BITS) / amount).unwrap_or(u64::MAX)
}

/// The price at which `amount` costs `cost`.
pub(super) fn price_of(cost: Cost, amount: u64) -> u64 {
    let price = (u128::from(cost.unsigned_abs()) << PRICE_BITS) / u128::from(amount.max(1));
    u64::try_from(price).unwrap_or(u64::MAX)
}

fn priced_down(price: u64, amount: u64) -> Cost {
    Cost::try_from((u128::from(price) * u128::from(amount)) >> PRICE_BITS).unwrap_or(INFINITE)
}

/// The model in which taking costs, without limits.
pub(super) fn priced(model: &Model, prices: &[u64]) -> Model {
    let mut priced = model.clone();
    for node in &mut priced.nodes {
        for Demand { limit, amounts } in std::mem::take(&mut node.demands) {
            for (cost, amount) in node.costs.iter_mut().zip(amounts.iter()) {
                *cost = plus(*cost, priced_down(prices[limit], *amount));
            }
        }
    }
    for (price, limit) in prices.iter().zip(&model.limits) {
        priced.constant -= priced_down(*price, *limit) + Cost::from(*price > 0);
    }
    priced.limits = Vec::new();
    priced
}

/// The model whose cost is what is taken of one limit, in its units.
pub(super) fn demand_only(model: &Model, limit: usize) -> Model {
    let mut demands = model.clone();
    demands.constant = 0;
    for node in &mut demands.nodes {
        for cost in node.costs.iter_mut().filter(|cost| !is_infinite(**cost)) {
            *cost = 0;
        }
        let of_limit = std::mem::take(&mut node.demands).into_iter().find(|demand| demand.limit == limit);
        for (cost, amount) in node.costs.iter_mut().zip(of_limit.iter().flat_map(|demand| demand.amounts.iter())) {
            *cost = plus(*cost, Cost::try_from(*amount).unwrap_or(INFINITE));
        }
    }
    let mut tables: HashMap<*const Table, Option<Arc<Table>>> = HashMap::new();
    demands.edges.retain_mut(|edge| {
        edge.messages = Default::default();
        let table = tables.entry(Arc::as_ptr(&edge.table)).or_insert_with(|| only_allowed(&edge.table));
        table.as_ref().map(|table| edge.table = table.clone()).is_some()
    });
    demands.limits = Vec::new();
    demands
}

/// The table with 0 for all that is allowed, unless everything is.
fn only_allowed(table: &Table) -> Option<Arc<Table>> {
    let costs = table.side(0);
    let allowed = costs.iter().map(|cost| if is_infinite(*cost) { INFINITE } else { 0 }).collect();
    let is_needed = costs.iter().any(|cost| is_infinite(*cost));
    is_needed.then(|| Arc::new(Table::new(table.n_states(0), table.n_states(1), allowed)))
}
