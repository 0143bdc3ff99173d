//! The problem as the solver rewrites it: nodes with the states that are left, and at most one edge between two nodes.

use super::problem::{Cost, INFINITE, PairTable, Problem};
use super::tables::{Table, TableCache, is_infinite, plus};
use cranelift_entity::EntityRef;
use std::collections::HashMap;
use std::sync::Arc;

/// A variable with the states that are left of it.
#[derive(Clone)]
pub(super) struct Node {
    /// Its number among the variables of the model that was given first.
    pub origin: u32,
    /// By state, its number there.
    pub labels: Arc<[u32]>,
    /// By state; no node is without states.
    pub costs: Vec<Cost>,
    /// What each state takes of some limits.
    pub demands: Vec<Demand>,
}

/// What the states of a node take of a limit.
#[derive(Clone)]
pub(super) struct Demand {
    pub limit: usize,
    pub amounts: Arc<[u64]>,
}

/// Two nodes whose states together cost something.
#[derive(Clone)]
pub(super) struct Edge {
    /// The lower number stands first.
    pub ends: [u32; 2],
    pub table: Arc<Table>,
    /// By end, the message to it, by its state (see the module `sweep`); none stands for zeros.
    pub messages: [Vec<Cost>; 2],
}

/// A sum of costs of nodes and edges, and limits of what the states take.
#[derive(Clone, Default)]
pub(super) struct Model {
    pub constant: Cost,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
    pub limits: Vec<u64>,
}

impl Model {
    /// The model of a problem, with the pairs of the same two variables joined.
    pub(super) fn of_problem(problem: &Problem) -> Self {
        let node = |(origin, costs): (usize, &Vec<Cost>)| Node {
            origin: origin as u32,
            labels: (0..costs.len() as u32).collect(),
            costs: costs.iter().map(|cost| plus(*cost, 0)).collect(),
            demands: Vec::new(),
        };
        let mut nodes: Vec<Node> = problem.variables.values().enumerate().map(node).collect();
        for (limit, constraint) in problem.constraints.iter().enumerate() {
            for (var, amounts) in &constraint.terms {
                nodes[var.index()].demands.push(Demand { limit, amounts: amounts.clone() });
            }
        }
        let mut joiner = EdgeJoiner::default();
        let mut tables: HashMap<*const PairTable, Arc<Table>> = HashMap::new();
        for pair in &problem.pairs {
            let table = tables.entry(Arc::as_ptr(&pair.table)).or_insert_with(|| {
                Arc::new(Table::new(pair.table.n_rows, pair.table.n_columns, pair.table.costs.clone()))
            });
            let (rows, columns) = (pair.rows.index(), pair.columns.index());
            if rows == columns {
                add_diagonal(&mut nodes[rows], table);
            } else {
                joiner.add([rows as u32, columns as u32], table.clone());
            }
        }
        let limits = problem.constraints.iter().map(|constraint| constraint.limit).collect();
        Model { constant: 0, nodes, edges: joiner.edges, limits }
    }

    /// The cost of a state for each node, [`INFINITE`] where it is not allowed.
    pub(super) fn cost(&self, states: &[u32]) -> Cost {
        let own = self.nodes.iter().zip(states).map(|(node, state)| node.costs[*state as usize]);
        let of_edges = self.edges.iter().map(|edge| {
            let [first, second] = edge.ends.map(|end| states[end as usize] as usize);
            edge.table.row(0, first)[second]
        });
        own.chain(of_edges).fold(self.constant, plus)
    }

    /// By node, its edges and which end of them it is: those to lower nodes first, each part by rising number of the other node.
    pub(super) fn incidence(&self) -> Incidence {
        Incidence::new(self.nodes.len(), &self.edges)
    }

    /// The state of each node that stands in an assignment of the origins; where it is not left, the one that costs least with the
    /// neighbours whose states are known by then.
    pub(super) fn states_of(&self, incidence: &Incidence, assignment: &[u32]) -> Vec<u32> {
        let found = |node: &Node| {
            let wanted = assignment[node.origin as usize];
            node.labels.iter().position(|label| *label == wanted).map(|state| state as u32)
        };
        let mut states: Vec<Option<u32>> = self.nodes.iter().map(found).collect();
        for (number, node) in self.nodes.iter().enumerate() {
            if states[number].is_some() {
                continue;
            }
            let mut costs = node.costs.clone();
            for incident in incidence.at(number) {
                if let Some(other) = states[incident.other as usize] {
                    let table = &self.edges[incident.edge as usize].table;
                    plus_all(&mut costs, table.row(1 - incident.side as usize, other as usize));
                }
            }
            states[number] = Some((0..costs.len()).min_by_key(|state| costs[*state]).unwrap_or(0) as u32);
        }
        states.into_iter().map(|state| state.unwrap_or(0)).collect()
    }

    /// Writes the states of the nodes into an assignment of the origins.
    pub(super) fn write_states(&self, states: &[u32], assignment: &mut [u32]) {
        for (node, state) in self.nodes.iter().zip(states) {
            assignment[node.origin as usize] = node.labels[*state as usize];
        }
    }

    /// The same model whose origins are its own nodes and states.
    pub(super) fn renamed(mut self) -> Self {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            node.origin = number as u32;
            node.labels = (0..node.costs.len() as u32).collect();
        }
        self
    }

    /// Adds an edge; the higher end may stand first.
    pub(super) fn add_turned(&mut self, mut edge: Edge) {
        if edge.ends[0] > edge.ends[1] {
            edge.ends.reverse();
            edge.messages.reverse();
            edge.table = TableCache::default().turned(&edge.table);
        }
        self.edges.push(edge);
    }

    /// A bound without any work: each node and each edge at its least.
    pub(super) fn simple_bound(&self) -> Cost {
        let of_nodes = self.nodes.iter().map(|node| node.costs.iter().copied().min().unwrap_or(INFINITE));
        let of_edges =
            self.edges.iter().map(|edge| edge.table.least(0).iter().map(|least| least.cost).min().unwrap_or(INFINITE));
        of_nodes.chain(of_edges).fold(self.constant, plus)
    }

    pub(super) fn n_states(&self) -> usize {
        self.nodes.iter().map(|node| node.costs.len()).sum()
    }
}

/// Adds what a node costs with itself.
pub(super) fn add_diagonal(node: &mut Node, table: &Table) {
    for (state, cost) in node.costs.iter_mut().enumerate() {
        *cost = plus(*cost, table.row(0, state)[state]);
    }
}

/// Adds to each of some costs.
pub(super) fn plus_all(costs: &mut [Cost], added: &[Cost]) {
    for (cost, added) in costs.iter_mut().zip(added) {
        *cost = plus(*cost, *added);
    }
}

/// Collects edges, and joins those of the same two nodes.
#[derive(Default)]
pub(super) struct EdgeJoiner {
    pub edges: Vec<Edge>,
    by_ends: HashMap<[u32; 2], usize>,
    cache: TableCache,
}

impl EdgeJoiner {
    /// Adds a table whose rows are the states of the first end.
    pub(super) fn add(&mut self, ends: [u32; 2], table: Arc<Table>) {
        let is_turned = ends[0] > ends[1];
        let ends = if is_turned { [ends[1], ends[0]] } else { ends };
        let table = if is_turned { self.cache.turned(&table) } else { table };
        match self.by_ends.get(&ends) {
            Some(at) => self.edges[*at].table = self.cache.joined(&self.edges[*at].table, &table),
            None => {
                self.by_ends.insert(ends, self.edges.len());
                self.edges.push(Edge { ends, table, messages: Default::default() });
            }
        }
    }
}

/// An edge at a node, and which end of it the node is.
#[derive(Clone, Copy)]
pub(super) struct Incident {
    pub edge: u32,
    pub side: u8,
    /// The other end.
    pub other: u32,
}

/// The edges at each node.
pub(super) struct Incidence {
    starts: Vec<u32>,
    incidents: Vec<Incident>,
}

impl Incidence {
    fn new(n_nodes: usize, edges: &[Edge]) -> Self {
        let mut starts = vec![0; n_nodes + 1];
        for end in edges.iter().flat_map(|edge| edge.ends) {
            starts[end as usize + 1] += 1;
        }
        for node in 0..n_nodes {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut incidents = vec![Incident { edge: 0, side: 0, other: 0 }; 2 * edges.len()];
        for (number, edge) in edges.iter().enumerate() {
            for side in 0..2 {
                let slot = &mut next[edge.ends[side] as usize];
                let other = edge.ends[1 - side];
                incidents[*slot as usize] = Incident { edge: number as u32, side: side as u8, other };
                *slot += 1;
            }
        }
        for node in 0..n_nodes {
            incidents[starts[node] as usize..starts[node + 1] as usize].sort_by_key(|incident| incident.other);
        }
        Incidence { starts, incidents }
    }

    pub(super) fn at(&self, node: usize) -> &[Incident] {
        &self.incidents[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}

/// Whether no state of some node is allowed by itself.
pub(super) fn has_empty_node(model: &Model) -> bool {
    model.nodes.iter().any(|node| node.costs.iter().all(|cost| is_infinite(*cost)))
}

/// Leaves a node one state.
pub(super) fn fix_state(model: &mut Model, node: usize, state: u32) {
    restrict_node(&mut model.nodes[node], &[state]);
    let mut cache = TableCache::default();
    for edge in &mut model.edges {
        for side in 0..2 {
            if edge.ends[side] as usize == node {
                edge.table = cache.restricted((&edge.table, side), &[state]);
                if !edge.messages[side].is_empty() {
                    edge.messages[side] = vec![edge.messages[side][state as usize]];
                }
            }
        }
    }
}

/// The connected parts of a model, by their lowest nodes, without the constant.
pub(super) fn connected_parts(model: Model) -> Vec<Model> {
    let incidence = model.incidence();
    let mut part_of = vec![u32::MAX; model.nodes.len()];
    let mut n_parts = 0;
    for first in 0..model.nodes.len() {
        if part_of[first] != u32::MAX {
            continue;
        }
        let mut waiting = vec![first];
        part_of[first] = n_parts;
        while let Some(node) = waiting.pop() {
            for incident in incidence.at(node) {
                if part_of[incident.other as usize] == u32::MAX {
                    part_of[incident.other as usize] = n_parts;
                    waiting.push(incident.other as usize);
                }
            }
        }
        n_parts += 1;
    }
    let mut parts = vec![Model { limits: model.limits, ..Model::default() }; n_parts as usize];
    let mut numbers = vec![0; part_of.len()];
    for (number, node) in model.nodes.into_iter().enumerate() {
        let part = &mut parts[part_of[number] as usize];
        numbers[number] = part.nodes.len() as u32;
        part.nodes.push(node);
    }
    for mut edge in model.edges {
        let part = part_of[edge.ends[0] as usize];
        edge.ends = edge.ends.map(|end| numbers[end as usize]);
        parts[part as usize].edges.push(edge);
    }
    parts
}

/// Leaves a node the states `kept`.
pub(super) fn restrict_node(node: &mut Node, kept: &[u32]) {
    node.labels = kept.iter().map(|state| node.labels[*state as usize]).collect();
    node.costs = kept.iter().map(|state| node.costs[*state as usize]).collect();
    for demand in &mut node.demands {
        demand.amounts = kept.iter().map(|state| demand.amounts[*state as usize]).collect();
    }
}
