//! What other states of a variable would cost, the neighbourhood chosen anew.
//!
//! For each state of the variable, the variables within some edges of it (the *window*) take their best states with that state, the
//! rest stays as it is in the given assignment. Each cost is one of an assignment, so the true one is no higher.
//!
//! Cost: a small minimization for each state.

use super::facts::Search;
use super::limits::{has_demands, taken};
use super::model::{Edge, Incidence, Model, Node, fix_state, plus_all};
use super::problem::{Assignment, Cost, INFINITE, Problem, VarId};
use super::search::{Task, minimize};
use super::tables::is_infinite;
use super::within::{Beginning, minimize_within};
use cranelift_entity::EntityRef;

/// An assignment, to be compared with others that differ around one variable.
pub(crate) struct RunnerUps {
    model: Model,
    incidence: Incidence,
    states: Vec<u32>,
    cost: Cost,
}

const WINDOW_NODES: usize = 64;
const WINDOW_EFFORT: u64 = 1 << 22;

impl RunnerUps {
    /// `assignment` is allowed and within the limits.
    pub(crate) fn new(problem: &Problem, assignment: &Assignment) -> Self {
        let model = Model::of_problem(problem);
        let states: Vec<u32> = assignment.values().copied().collect();
        RunnerUps { incidence: model.incidence(), cost: model.cost(&states), states, model }
    }

    /// By state of a variable, what the whole costs with it; [`INFINITE`] where nothing was found that is allowed.
    pub(crate) fn costs(&self, var: VarId) -> Vec<Cost> {
        let inside = self.nodes_around(var.index());
        let window = self.window(&inside);
        let current: Vec<u32> = inside.iter().map(|node| self.states[*node as usize]).collect();
        let of_current = window.cost(&current);
        let cost = |state: u32| {
            let mut fixed = window.clone();
            fix_state(&mut fixed, 0, state);
            let least = least_cost(fixed.renamed());
            if is_infinite(least) || is_infinite(self.cost) { INFINITE } else { self.cost - of_current + least }
        };
        (0..self.model.nodes[var.index()].costs.len() as u32).map(cost).collect()
    }

    /// The nodes nearest to a node, itself first.
    fn nodes_around(&self, node: usize) -> Vec<u32> {
        let mut nodes = vec![node as u32];
        let mut next = 0;
        while next < nodes.len() && nodes.len() < WINDOW_NODES {
            for incident in self.incidence.at(nodes[next] as usize) {
                if !nodes.contains(&incident.other) && nodes.len() < WINDOW_NODES {
                    nodes.push(incident.other);
                }
            }
            next += 1;
        }
        nodes
    }

    /// The model of some nodes with the others at their states.
    fn window(&self, inside: &[u32]) -> Model {
        let place = |node: u32| inside.iter().position(|other| *other == node).map(|place| place as u32);
        let mut window = Model { limits: self.free_limits(inside), ..Model::default() };
        for (at, number) in (0..).zip(inside) {
            let mut node: Node = self.model.nodes[*number as usize].clone();
            for incident in self.incidence.at(*number as usize) {
                let edge = &self.model.edges[incident.edge as usize];
                match place(incident.other) {
                    None => {
                        let other = self.states[incident.other as usize] as usize;
                        plus_all(&mut node.costs, edge.table.row(1 - incident.side as usize, other));
                    }
                    // An edge inside comes with its first end; the window's own numbers may turn it.
                    Some(other) if incident.side == 0 => window.add_turned(Edge { ends: [at, other], ..edge.clone() }),
                    Some(_) => {}
                }
            }
            window.nodes.push(node);
        }
        window
    }

    /// What the nodes outside leave of the limits.
    fn free_limits(&self, inside: &[u32]) -> Vec<u64> {
        let mut outside = taken(&self.model, &self.states);
        for node in inside {
            for demand in &self.model.nodes[*node as usize].demands {
                outside[demand.limit] -= demand.amounts[self.states[*node as usize] as usize];
            }
        }
        self.model.limits.iter().zip(outside).map(|(limit, outside)| limit.saturating_sub(outside)).collect()
    }
}

fn least_cost(model: Model) -> Cost {
    let mut search = Search::new(WINDOW_EFFORT, &|| false, &|_, _| ());
    let task = Task { start: None, cutoff: INFINITE, gap: 0.0, outside: 0, depth: 0 };
    let outcome = if has_demands(&model) {
        minimize_within(&mut search, model, task, Beginning::default())
    } else {
        minimize(&mut search, model, task)
    };
    outcome.cost
}
