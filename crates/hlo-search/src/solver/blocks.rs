//! Tighter lower bounds where circles of edges keep messages from meeting: messages between blocks of nodes.
//!
//! A block is a range of nodes by number, small enough for elimination. What holds between single nodes in the module `sweep` holds
//! between blocks: the costs of a block are those of its nodes with the messages to them, and its inner edges. A pass visits the blocks
//! in one direction. At a block, for each edge ahead, from its node `i` to `j` in a later block:
//! 1. `m[x]` is the least cost of the block with state `x` of `i`, by elimination with `i` last. Its least goes to the bound.
//! 2. A share of `m`, rounded down, goes from the costs of `i` to the edge: all of it at the last edge ahead if no more are behind.
//! 3. `M[i→j][y] = min over x of (share[x] - M[j→i][x] + T[x, y])`; its least goes to the bound.
//!
//! Each pass also decodes an assignment: a block takes its best states given those of the blocks behind and the messages from ahead.
//!
//! The bound is at least that of single nodes with the same messages, and exact inside blocks. States are dropped as in `sweep`, by `m`.
//!
//! Cost: for each edge between blocks an elimination of a block in each pass.
//!
//! Reference: block coordinate ascent on the dual, with subproblems as in dual decomposition (Komodakis, Paragios, Tziritas 2007).

use super::eliminate::{EliminationLimits, EliminationPlan};
use super::model::{Edge, Incidence, Model, plus_all};
use super::problem::{Cost, INFINITE};
use super::sweep::Closed;
use super::tables::{is_infinite, min_plus};
use std::ops::Range;

/// The messages between the blocks of a model.
pub(super) struct Blocks<'a> {
    model: &'a Model,
    blocks: Vec<Block>,
    between: Vec<Between<'a>>,
    /// What each block adds to the bound, and what its messages of this pass will add once it has been visited.
    of_blocks: Vec<Cost>,
    pending: Vec<Cost>,
    total: Cost,
    is_bound_valid: bool,
    bound: Cost,
    /// By node, its costs; [`INFINITE`] where a state was dropped.
    pub costs: Vec<Vec<Cost>>,
    pub n_dropped: usize,
    /// The last pass's decoded states.
    pub states: Vec<u32>,
    pub n_steps: u64,
    /// At so many steps a sweep ends, also in the middle of a pass: it then proves nothing more.
    pub most_steps: u64,
}

/// An edge between blocks.
struct Between<'a> {
    edge: &'a Edge,
    messages: [Vec<Cost>; 2],
    /// What it adds to the bound.
    least: Cost,
}

/// A range of nodes, with numbers of its own.
struct Block {
    first: usize,
    model: Model,
    incidence: Incidence,
    /// By node, how to eliminate the others before it; made when it is needed.
    plans: Vec<Option<EliminationPlan>>,
    /// Its edges to other blocks, by its own node: the edge, the node's side of it, the other block.
    between: Vec<(usize, usize, usize, usize)>,
}

/// So many nodes are added to a block at once, where that fits.
const GROWTH: usize = 4;

impl<'a> Blocks<'a> {
    /// The messages between blocks no larger than what elimination does in `n_steps`.
    pub(super) fn new(model: &'a Model, n_steps: u64) -> Self {
        let starts = block_starts(model, n_steps);
        let mut blocks: Vec<Block> = starts.windows(2).map(|ends| Block::new(model, ends[0]..ends[1])).collect();
        let block_at = |node: u32| starts.partition_point(|start| *start <= node as usize) - 1;
        let mut between = Vec::new();
        for edge in &model.edges {
            let [first, second] = edge.ends.map(block_at);
            if first == second {
                continue;
            }
            let sizes = [0, 1].map(|side| edge.table.n_states(side));
            for (side, (own, other)) in [(first, second), (second, first)].into_iter().enumerate() {
                let node = edge.ends[side] as usize - blocks[own].first;
                blocks[own].between.push((node, between.len(), side, other));
            }
            between.push(Between { edge, messages: sizes.map(|n| vec![0; n]), least: 0 });
        }
        blocks.iter_mut().for_each(|block| block.between.sort());
        Blocks {
            of_blocks: vec![0; blocks.len()],
            pending: vec![0; blocks.len()],
            blocks,
            between,
            total: model.constant,
            is_bound_valid: false,
            bound: model.simple_bound(),
            costs: model.nodes.iter().map(|node| node.costs.clone()).collect(),
            n_dropped: 0,
            states: vec![0; model.nodes.len()],
            n_steps: 0,
            most_steps: u64::MAX,
            model,
        }
    }

    pub(super) fn bound(&self) -> Cost {
        self.bound
    }

    pub(super) fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// A pass forward and one back; `drops` says whether that one looks for states to drop.
    pub(super) fn sweep(&mut self, cutoff: Cost, drops: bool) -> Result<(), Closed> {
        self.pass(true, cutoff, false)?;
        self.pass(false, cutoff, drops)
    }

    fn pass(&mut self, is_forward: bool, cutoff: Cost, drops: bool) -> Result<(), Closed> {
        let n = self.blocks.len();
        for step in 0..n {
            if self.n_steps >= self.most_steps {
                return Ok(());
            }
            self.visit(if is_forward { step } else { n - 1 - step }, is_forward, cutoff, drops)?;
        }
        self.end_pass(cutoff)
    }

    fn end_pass(&mut self, cutoff: Cost) -> Result<(), Closed> {
        self.is_bound_valid = true;
        self.bound = self.bound.max(self.total);
        if self.bound >= cutoff { Err(Closed) } else { Ok(()) }
    }

    fn visit(&mut self, at: usize, is_forward: bool, cutoff: Cost, drops: bool) -> Result<(), Closed> {
        self.total += std::mem::take(&mut self.pending[at]);
        self.decode(at, is_forward);
        self.hold(at);
        if drops && self.is_bound_valid {
            self.drop_states(at, cutoff);
        }
        let is_ahead = |other: usize| (other > at) == is_forward;
        let ahead: Vec<(usize, usize, usize, usize)> =
            self.blocks[at].between.iter().copied().filter(|(_, _, _, other)| is_ahead(*other)).collect();
        let n_behind = self.blocks[at].between.len() - ahead.len();
        let mut n_left = ahead.len().max(n_behind);
        let mut least = None;
        for of_node in ahead.chunk_by(|left, right| left.0 == right.0) {
            let marginals = self.marginals(at, of_node[0].0);
            let of_block = marginals.iter().copied().min().unwrap_or(INFINITE);
            if is_infinite(of_block) {
                return Err(Closed);
            }
            least = least.or(Some(of_block));
            let share: Vec<Cost> = marginals
                .iter()
                .map(|cost| if is_infinite(*cost) { INFINITE } else { (cost - of_block) / n_left as Cost })
                .collect();
            for (node, number, side, other) in of_node {
                self.send(*number, *side, *other, &share)?;
                let costs = &mut self.blocks[at].model.nodes[*node].costs;
                costs.iter_mut().zip(&share).filter(|(cost, _)| !is_infinite(**cost)).for_each(|(cost, share)| {
                    *cost -= if is_infinite(*share) { 0 } else { *share };
                });
                n_left -= 1;
            }
        }
        let least = match least {
            Some(least) => least,
            None => self.marginals(at, 0).into_iter().min().unwrap_or(INFINITE),
        };
        self.total += least - self.of_blocks[at];
        self.of_blocks[at] = least;
        if is_infinite(least) { Err(Closed) } else { Ok(()) }
    }

    /// Gives the nodes of a block their costs with the messages to them.
    fn hold(&mut self, at: usize) {
        let block = &mut self.blocks[at];
        for (node, costs) in block.model.nodes.iter_mut().zip(&self.costs[block.first..]) {
            node.costs.copy_from_slice(costs);
        }
        for (node, number, side, _) in &block.between {
            plus_all(&mut block.model.nodes[*node].costs, &self.between[*number].messages[*side]);
        }
    }

    /// Chooses the block's states: given the blocks behind it, and the messages from ahead.
    fn decode(&mut self, at: usize, is_forward: bool) {
        let block = &mut self.blocks[at];
        for (node, costs) in block.model.nodes.iter_mut().zip(&self.costs[block.first..]) {
            node.costs.copy_from_slice(costs);
        }
        for (node, number, side, other) in &block.between {
            let Between { edge, messages, .. } = &self.between[*number];
            let added = if (*other > at) == is_forward {
                &messages[*side]
            } else {
                let behind = self.states[edge.ends[1 - side] as usize] as usize;
                edge.table.row(1 - side, behind)
            };
            plus_all(&mut block.model.nodes[*node].costs, added);
        }
        let plan =
            block.plans[0].get_or_insert_with(|| EliminationPlan::find_with_last(&block.model, &block.incidence, 0));
        self.n_steps += plan.n_steps;
        if let (_, Some(states)) = plan.solve(&block.model) {
            self.states[block.first..block.first + states.len()].copy_from_slice(&states);
        }
    }

    fn marginals(&mut self, at: usize, node: usize) -> Vec<Cost> {
        let block = &mut self.blocks[at];
        let plan = block.plans[node]
            .get_or_insert_with(|| EliminationPlan::find_with_last(&block.model, &block.incidence, node as u32));
        self.n_steps += plan.n_steps;
        plan.marginals(&block.model)
    }

    fn drop_states(&mut self, at: usize, cutoff: Cost) {
        let base = self.total - self.of_blocks[at];
        for node in 0..self.blocks[at].model.nodes.len() {
            let marginals = self.marginals(at, node);
            let block = &mut self.blocks[at];
            let costs = &mut self.costs[block.first + node];
            for ((cost, marginal), held) in costs.iter_mut().zip(marginals).zip(&mut block.model.nodes[node].costs) {
                if !is_infinite(*cost) && (is_infinite(marginal) || base + marginal >= cutoff) {
                    (*cost, *held) = (INFINITE, INFINITE);
                    self.n_dropped += 1;
                }
            }
        }
    }

    /// Sends a message along an edge to another block.
    fn send(&mut self, number: usize, side: usize, other: usize, share: &[Cost]) -> Result<(), Closed> {
        let between = &mut self.between[number];
        let [first, second] = &mut between.messages;
        let (back, out) = if side == 0 { (first, second) } else { (second, first) };
        let difference = |(share, back): (&Cost, &Cost)| if is_infinite(*share) { INFINITE } else { share - back };
        let values: Vec<Cost> = share.iter().zip(back.iter()).map(difference).collect();
        self.n_steps += min_plus(&values, between.edge.table.side(side), out);
        let least = out.iter().copied().min().unwrap_or(INFINITE);
        if is_infinite(least) {
            return Err(Closed);
        }
        out.iter_mut().filter(|message| !is_infinite(**message)).for_each(|message| *message -= least);
        self.pending[other] += least - between.least;
        between.least = least;
        Ok(())
    }

    /// The model with [`INFINITE`] costs for the states that were dropped.
    pub(super) fn into_model(self) -> Model {
        let mut model = self.model.clone();
        model.nodes.iter_mut().zip(self.costs).for_each(|(node, costs)| node.costs = costs);
        model
    }
}

impl Block {
    fn new(model: &Model, range: Range<usize>) -> Self {
        let first = range.start;
        let model = range_of(model, range);
        let incidence = model.incidence();
        Block { first, plans: model.nodes.iter().map(|_| None).collect(), incidence, model, between: Vec::new() }
    }
}

/// The model of a range of nodes, and the edges among them.
fn range_of(model: &Model, range: Range<usize>) -> Model {
    let inside = |edge: &&Edge| edge.ends.iter().all(|end| range.contains(&(*end as usize)));
    let renumbered = |edge: &Edge| {
        let ends = edge.ends.map(|end| end - range.start as u32);
        Edge { ends, table: edge.table.clone(), messages: Default::default() }
    };
    Model {
        nodes: model.nodes[range.clone()].to_vec(),
        edges: model.edges.iter().filter(inside).map(renumbered).collect(),
        ..Model::default()
    }
}

/// Where the blocks begin, and the end of the last.
fn block_starts(model: &Model, n_steps: u64) -> Vec<usize> {
    let limits = EliminationLimits { n_entries: n_steps, n_steps };
    let is_small = |range: Range<usize>| {
        let block = range_of(model, range);
        EliminationPlan::find(&block, &block.incidence(), limits).is_some()
    };
    let n_nodes = model.nodes.len();
    let mut starts = vec![0];
    let (mut first, mut end) = (0, 0);
    while end < n_nodes {
        if end + GROWTH <= n_nodes && is_small(first..end + GROWTH) {
            end += GROWTH;
        } else if end == first || is_small(first..end + 1) {
            end += 1;
        } else {
            first = end;
            starts.push(first);
        }
    }
    starts.push(n_nodes);
    starts
}
