//! An upper bound of what repeats: variables of one class take the same state.
//!
//! The tied model has one node for each class, whose costs, tables and demands are the sums over the class. An edge between two
//! variables of one class becomes the diagonal of its table. An assignment of the tied model is one of the model, at the same cost.

use super::facts::{Phase, Search};
use super::limits::has_demands;
use super::model::{Demand, EdgeJoiner, Model, Node, add_diagonal, plus_all};
use super::problem::VarId;
use super::search::{Task, minimize};
use super::within::{Beginning, minimize_within};
use cranelift_entity::{EntityRef, SecondaryMap};
use std::collections::HashMap;
use std::sync::Arc;

/// The tied model is small; what it leaves open is not worth more.
const MOST_EFFORT: u64 = 1 << 28;

/// An assignment in which each class has one state, if one was found. The origins of the model are its nodes' own numbers.
pub(super) fn tied_states(
    search: &mut Search,
    model: &Model,
    classes: &SecondaryMap<VarId, u32>,
    task: Task,
) -> Option<Vec<u32>> {
    let (tied, class_of) = tie(model, classes);
    let (n_states, n_steps) = ([model.n_states(), tied.n_states()], search.n_steps);
    let is_limited = has_demands(&tied);
    let outcome = search.aside(|search| {
        search.with_little_effort(MOST_EFFORT, |search| {
            if is_limited {
                minimize_within(search, tied, task, Beginning::default())
            } else {
                minimize(search, tied, task)
            }
        })
    });
    search.note(Phase::Tie, n_states, n_steps);
    let states = outcome.states?;
    Some(class_of.iter().map(|class| states[*class as usize]).collect())
}

/// The tied model, and by node of the model its node there.
fn tie(model: &Model, classes: &SecondaryMap<VarId, u32>) -> (Model, Vec<u32>) {
    let mut tied = Model { constant: model.constant, limits: model.limits.clone(), ..Model::default() };
    let mut numbers: HashMap<(u32, usize), u32> = HashMap::new();
    let mut class_of = Vec::with_capacity(model.nodes.len());
    for (var, node) in model.nodes.iter().enumerate() {
        let class = (classes[VarId::new(var)], node.costs.len());
        let number = *numbers.entry(class).or_insert(tied.nodes.len() as u32);
        class_of.push(number);
        match tied.nodes.get_mut(number as usize) {
            Some(sum) => add_node(sum, node),
            None => tied.nodes.push(Node { origin: number, ..node.clone() }),
        }
    }
    let mut joiner = EdgeJoiner::default();
    for edge in &model.edges {
        let [first, second] = edge.ends.map(|end| class_of[end as usize]);
        if first == second {
            add_diagonal(&mut tied.nodes[first as usize], &edge.table);
        } else {
            joiner.add([first, second], edge.table.clone());
        }
    }
    tied.edges = joiner.edges;
    (tied, class_of)
}

fn add_node(sum: &mut Node, node: &Node) {
    plus_all(&mut sum.costs, &node.costs);
    for demand in &node.demands {
        let add = |known: &Demand| {
            known.amounts.iter().zip(demand.amounts.iter()).map(|(left, right)| left.saturating_add(*right)).collect()
        };
        match sum.demands.iter_mut().find(|known| known.limit == demand.limit) {
            Some(known) => known.amounts = add(known),
            None => sum.demands.push(Demand { limit: demand.limit, amounts: Arc::clone(&demand.amounts) }),
        }
    }
}
