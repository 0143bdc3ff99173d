//! Lower bounds by message passing: TRW-S, sequential tree-reweighted message passing (Kolmogorov 2006).
//!
//! Notation: `u[i]` costs of node `i`, `T[i,j]` table of an edge, `M[i→j]` message to `j` by state of `j`. For any messages the
//! model costs the same with `u[i] + sum of messages to i` at the nodes and `T[i,j] - M[i→j] - M[j→i]` at the edges.
//!
//! A pass visits the nodes in one direction of their numbers. At node `i`:
//! 1. `h = u[i] + sum of messages to i`; its least goes to the bound.
//! 2. `share = h / max(edges ahead, edges behind)`, rounded down, goes to each edge ahead. What remains is at least 0.
//! 3. For each edge ahead, `M[i→j][y] = min over x of (share[x] - M[j→i][x] + T[x, y])`; its least goes to the bound.
//!
//! After a pass the bound is the constant and all those leasts: nodes keep at least 0, edges exactly 0. This holds for any shares, so
//! rounding does not harm it. During a pass from the second on, bound + h[x] - min h bounds the cost of every assignment with state
//! `x`: where that reaches the cutoff the state is dropped ("reduced-cost fixing").
//!
//! Each pass also decodes an assignment: at each node the state that costs least given the states behind and the messages from ahead.
//!
//! Cost: a pass reads each table once; 8 bytes a state and edge for each direction.

use super::model::{Incidence, Incident, Model};
use super::problem::{Cost, INFINITE};
use super::tables::{is_infinite, min_plus};

/// Which way a pass goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// The messages of a model, and the bound that they prove.
pub(super) struct Sweeper<'a> {
    model: &'a Model,
    incidence: Incidence,
    /// By node, where its states start in `costs`.
    starts: Vec<usize>,
    /// [`INFINITE`] where a state was dropped.
    costs: Vec<Cost>,
    /// By edge and end, where the messages to that end start.
    message_starts: Vec<[usize; 2]>,
    messages: Vec<Cost>,
    /// What each node and each edge adds to the bound.
    of_nodes: Vec<Cost>,
    of_edges: Vec<Cost>,
    /// By node, what its messages in this pass add to the bound once it has been visited. Before that the node may keep less than
    /// its least, by as much.
    pending: Vec<Cost>,
    total: Cost,
    /// Whether the shares are in the edges: not before the end of the first pass.
    is_bound_valid: bool,
    bound: Cost,
    /// The last pass's decoded states.
    pub states: Vec<u32>,
    /// How many states were dropped.
    pub n_dropped: usize,
    /// How many table entries were read.
    pub n_steps: u64,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    held: Vec<Cost>,
    share: Vec<Cost>,
    values: Vec<Cost>,
}

/// No assignment costs less than the cutoff.
pub(super) struct Closed;

impl<'a> Sweeper<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        let mut starts = Vec::with_capacity(model.nodes.len() + 1);
        let mut costs = Vec::with_capacity(model.n_states());
        for node in &model.nodes {
            starts.push(costs.len());
            costs.extend_from_slice(&node.costs);
        }
        starts.push(costs.len());
        let mut messages = Vec::new();
        let mut message_starts = Vec::with_capacity(model.edges.len());
        for edge in &model.edges {
            message_starts.push([0, 1].map(|side| {
                let start = messages.len();
                messages.extend_from_slice(&edge.messages[side]);
                messages.resize(start + model.nodes[edge.ends[side] as usize].costs.len(), 0);
                start
            }));
        }
        Sweeper {
            model,
            incidence: model.incidence(),
            starts,
            costs,
            message_starts,
            messages,
            of_nodes: vec![0; model.nodes.len()],
            of_edges: vec![0; model.edges.len()],
            pending: vec![0; model.nodes.len()],
            total: model.constant,
            is_bound_valid: false,
            bound: model.simple_bound(),
            states: vec![0; model.nodes.len()],
            n_dropped: 0,
            n_steps: 0,
            scratch: Scratch::default(),
        }
    }

    /// The best bound so far.
    pub(super) fn bound(&self) -> Cost {
        self.bound
    }

    /// A pass forward and one back.
    pub(super) fn sweep(&mut self, cutoff: Cost) -> Result<(), Closed> {
        self.pass(Direction::Forward, cutoff)?;
        self.pass(Direction::Backward, cutoff)
    }

    fn pass(&mut self, direction: Direction, cutoff: Cost) -> Result<(), Closed> {
        let n = self.model.nodes.len();
        let mut scratch = std::mem::take(&mut self.scratch);
        for step in 0..n {
            let at = if direction == Direction::Forward { step } else { n - 1 - step };
            self.visit(at, direction, cutoff, &mut scratch)?;
        }
        self.scratch = scratch;
        self.is_bound_valid = true;
        self.bound = self.bound.max(self.total);
        if self.bound >= cutoff { Err(Closed) } else { Ok(()) }
    }

    fn visit(&mut self, at: usize, direction: Direction, cutoff: Cost, scratch: &mut Scratch) -> Result<(), Closed> {
        self.total += std::mem::take(&mut self.pending[at]);
        self.hold(at, &mut scratch.held);
        self.drop_states(at, cutoff, &mut scratch.held);
        let least = scratch.held.iter().copied().min().unwrap_or(INFINITE);
        if is_infinite(least) {
            return Err(Closed);
        }
        for held in scratch.held.iter_mut().filter(|held| !is_infinite(**held)) {
            *held -= least;
        }
        self.total += least - self.of_nodes[at];
        self.of_nodes[at] = least;
        let is_ahead = |incident: &Incident| (incident.other as usize > at) == (direction == Direction::Forward);
        let n_incident = self.incidence.at(at).len();
        let n_ahead = self.incidence.at(at).iter().filter(|incident| is_ahead(incident)).count();
        divide(&scratch.held, n_ahead.max(n_incident - n_ahead) as Cost, &mut scratch.share);
        self.decode(at, direction);
        for place in 0..n_incident {
            let incident = self.incidence.at(at)[place];
            if is_ahead(&incident) {
                self.send(incident, scratch)?;
            }
        }
        Ok(())
    }

    /// The costs of a node with the messages to it.
    fn hold(&self, at: usize, held: &mut Vec<Cost>) {
        held.clear();
        held.extend_from_slice(&self.costs[self.starts[at]..self.starts[at + 1]]);
        for incident in self.incidence.at(at) {
            let start = self.message_starts[incident.edge as usize][incident.side as usize];
            for (held, message) in held.iter_mut().zip(&self.messages[start..]) {
                *held = (*held + *message).min(INFINITE);
            }
        }
        for held in held.iter_mut().filter(|held| is_infinite(**held)) {
            *held = INFINITE;
        }
    }

    fn drop_states(&mut self, at: usize, cutoff: Cost, held: &mut [Cost]) {
        let base = self.total - self.of_nodes[at];
        let costs = &mut self.costs[self.starts[at]..];
        for (held, cost) in held.iter_mut().zip(costs) {
            let is_over = is_infinite(*held) || self.is_bound_valid && base + *held >= cutoff;
            if is_over && !is_infinite(*cost) {
                (*cost, *held) = (INFINITE, INFINITE);
                self.n_dropped += 1;
            }
        }
    }

    /// Sends the message along an edge ahead.
    fn send(&mut self, incident: Incident, scratch: &mut Scratch) -> Result<(), Closed> {
        let (number, side) = (incident.edge as usize, incident.side as usize);
        let edge = &self.model.edges[number];
        let starts = self.message_starts[number];
        let back = &self.messages[starts[side]..];
        scratch.values.clear();
        let values = scratch.share.iter().zip(back);
        scratch.values.extend(values.map(|(share, back)| if is_infinite(*share) { INFINITE } else { share - back }));
        let n_other = edge.table.n_states(1 - side);
        let out = &mut self.messages[starts[1 - side]..starts[1 - side] + n_other];
        self.n_steps += min_plus(&scratch.values, edge.table.side(side), out);
        let least = out.iter().copied().min().unwrap_or(INFINITE);
        if is_infinite(least) {
            return Err(Closed);
        }
        for message in out.iter_mut().filter(|message| !is_infinite(**message)) {
            *message -= least;
        }
        self.pending[incident.other as usize] += least - self.of_edges[number];
        self.of_edges[number] = least;
        Ok(())
    }

    /// Chooses the node's state: given the states behind it, and the messages from ahead.
    fn decode(&mut self, at: usize, direction: Direction) {
        let costs = &self.costs[self.starts[at]..self.starts[at + 1]];
        let held = &mut self.scratch.held;
        held.clear();
        held.extend_from_slice(costs);
        for incident in self.incidence.at(at) {
            let side = incident.side as usize;
            let is_behind = (incident.other as usize > at) != (direction == Direction::Forward);
            let added = if is_behind {
                let behind = self.states[incident.other as usize] as usize;
                self.model.edges[incident.edge as usize].table.row(1 - side, behind)
            } else {
                &self.messages[self.message_starts[incident.edge as usize][side]..]
            };
            for (held, added) in held.iter_mut().zip(added) {
                *held = (*held + *added).min(INFINITE);
            }
        }
        let best = (0..held.len()).min_by_key(|state| held[*state]);
        self.states[at] = best.unwrap_or(0) as u32;
    }

    /// Takes the costs, with [`INFINITE`] for the states that were dropped, and the messages.
    pub(super) fn into_model(self) -> Model {
        let mut model = self.model.clone();
        for (node, start) in model.nodes.iter_mut().zip(&self.starts) {
            let n = node.costs.len();
            node.costs.copy_from_slice(&self.costs[*start..start + n]);
        }
        for (edge, starts) in model.edges.iter_mut().zip(&self.message_starts) {
            for ((message, start), end) in edge.messages.iter_mut().zip(starts).zip(edge.ends) {
                let n = model.nodes[end as usize].costs.len();
                *message = self.messages[*start..*start + n].to_vec();
            }
        }
        model
    }
}

/// `share = held / parts`, rounded down; infinite stays infinite.
fn divide(held: &[Cost], parts: Cost, share: &mut Vec<Cost>) {
    share.clear();
    match parts {
        0 | 1 => share.extend_from_slice(held),
        2 => share.extend(held.iter().map(|held| if is_infinite(*held) { INFINITE } else { held >> 1 })),
        _ => share.extend(held.iter().map(|held| if is_infinite(*held) { INFINITE } else { held / parts })),
    }
}
