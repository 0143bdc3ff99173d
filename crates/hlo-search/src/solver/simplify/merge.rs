//! Makes one node of two whose edge allows each state of one with exactly one state of the other.
//!
//! Such nodes are a parameter and the output that takes its place, or what a loop carries. The costs, demands and edges of the one
//! node go to the other, with its states in the order of their partners. Single moves of an assignment ([`crate::solver::repair`]) could not
//! change either of them alone.

use super::Simplifier;
use crate::solver::model::{Demand, Edge, Node, plus_all};
use crate::solver::problem::Cost;

/// A node that takes another one in.
pub(super) struct Twin {
    node: u32,
    /// The edge between them.
    edge: u32,
    /// By state of the twin, the state of the other.
    partners: Box<[u32]>,
}

impl Simplifier {
    /// A node that is one to one with this one.
    pub(super) fn find_twin(&self, at: u32) -> Option<Twin> {
        self.edges_of(at).find_map(|(number, edge, side)| {
            let partners = edge.table.partners(1 - side)?;
            Some(Twin { node: edge.ends[1 - side], edge: number, partners })
        })
    }

    /// Takes a node into its twin.
    pub(super) fn merge(&mut self, at: u32, node: Node, twin: &Twin) {
        let in_order =
            |costs: &[Cost]| -> Vec<Cost> { twin.partners.iter().map(|state| costs[*state as usize]).collect() };
        let edges: Vec<(u32, Edge, usize)> =
            self.edges_of(at).map(|(number, edge, side)| (number, edge.clone(), side)).collect();
        let record = self.fold_record(at, node.clone());
        self.folds.push(record);
        for (number, edge, side) in edges {
            self.edges[number as usize] = None;
            let table = self.cache.restricted((&edge.table, side), &twin.partners);
            let other = edge.ends[1 - side];
            self.visit_later(other);
            if number == twin.edge {
                let of_pairs: Vec<Cost> = (0..twin.partners.len()).map(|state| table.row(side, state)[state]).collect();
                if let Some(sum) = &mut self.nodes[twin.node as usize] {
                    plus_all(&mut sum.costs, &in_order(&node.costs));
                    plus_all(&mut sum.costs, &of_pairs);
                    add_demands(sum, &node, &twin.partners);
                }
                continue;
            }
            let mut messages = edge.messages;
            if !messages[side].is_empty() {
                messages[side] = in_order(&messages[side]);
            }
            let is_turned = (twin.node < other) != (side == 0);
            let table = if is_turned { self.cache.turned(&table) } else { table };
            if is_turned {
                messages.reverse();
            }
            self.add_edge(Edge { ends: [twin.node.min(other), twin.node.max(other)], table, messages });
        }
    }
}

fn add_demands(sum: &mut Node, node: &Node, partners: &[u32]) {
    for Demand { limit, amounts } in &node.demands {
        let of_partner = partners.iter().map(|state| amounts[*state as usize]);
        match sum.demands.iter_mut().find(|known| known.limit == *limit) {
            Some(known) => {
                let sums = known.amounts.iter().zip(of_partner).map(|(left, right)| left.saturating_add(right));
                known.amounts = sums.collect();
            }
            None => sum.demands.push(Demand { limit: *limit, amounts: of_partner.collect() }),
        }
    }
}
