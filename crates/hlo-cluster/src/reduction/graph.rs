//! The state graph of a hierarchy depth: all states that steps can reach and that can still reach the goal.
//!
//! Which programs exist does not depend on the sizes of the factors, so the graph is built on factors of two, with sizes
//! compared as if the factors were different primes ([`Sizes::Symbolic`]). Each edge keeps over which factors the data of
//! each of its groups is scattered; with real factors that gives bytes.
//!
//! Device states are interned, a state of the system is a list of their ids, and what a collective does to one group is
//! computed once. States that a necessary condition rules out ([`has_a_cover`]) are not expanded.

use crate::collective::Collective;
use crate::error::ClusterError;
use crate::reduction::fast_hash::FastMap;
use crate::reduction::instruction::{ReductionInstruction, ReductionStep};
use crate::reduction::semantics::{After, DeviceState, Rules, Sizes, apply_once};

/// Which steps programs are made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Vocabulary {
    /// All that the rules allow.
    All,
    /// What HLO says in one instruction each: all-reduce, reduce-scatter and all-gather, without `Master`. HLO could
    /// say a `Master` all-reduce too, the idle devices being groups of one, but that adds no program: what the masters
    /// have then, the others could only get by a broadcast.
    Hlo,
}

impl Vocabulary {
    /// Whether a step belongs to it.
    pub fn has(self, step: ReductionStep) -> bool {
        let is_hlo = match step.collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather => true,
            Collective::Reduce | Collective::Broadcast => false,
        };
        match self {
            Vocabulary::All => true,
            Vocabulary::Hlo => is_hlo && !step.instruction.is_master(),
        }
    }
}

/// Most factors above one: with one more the graph no longer fits into a gigabyte.
pub fn max_factors(rules: Rules) -> usize {
    match rules {
        Rules::Pinned => 5,
        Rules::Literal => 4,
    }
}

/// A step from a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The state after.
    pub to: u32,
    /// Index into [`Graph::instructions`].
    pub instruction: u8,
    /// The collective.
    pub collective: Collective,
    /// Index into [`Graph::shares`].
    pub share: u32,
}

/// The live states of a hierarchy of `n_factors` factors. State 0 is the start, and every edge leads to a higher number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    /// Number of factors above one.
    pub n_factors: usize,
    /// The patterns of groups.
    pub instructions: Vec<ReductionInstruction>,
    /// By group of an instruction on factors of two: the factors (bits) over which the whole tensor of the collective is
    /// scattered, or [`NO_DATA`].
    pub shares: Vec<Box<[u8]>>,
    /// By state, its edges, in the order of their texts.
    pub edges: Vec<Vec<Edge>>,
    /// The goal; equal to the start only if there is nothing to reduce.
    pub goal: u32,
    /// How many states the search expanded, dead ones included.
    pub n_met: usize,
}

/// The share of a group that has no data: it does nothing.
pub const NO_DATA: u8 = u8::MAX;

impl Graph {
    /// Builds the graph for `n_factors` factors.
    ///
    /// # Errors
    /// More than [`max_factors`].
    pub fn build(n_factors: usize, rules: Rules) -> Result<Graph, ClusterError> {
        Graph::build_with(n_factors, rules, Vocabulary::All, true)
    }

    /// The graph of the programs of a vocabulary, with or without ruling out dead states early; that changes nothing but
    /// [`Graph::n_met`].
    ///
    /// # Errors
    /// As [`Graph::build`].
    pub fn build_with(
        n_factors: usize,
        rules: Rules,
        vocabulary: Vocabulary,
        prunes: bool,
    ) -> Result<Graph, ClusterError> {
        let most = max_factors(rules);
        if n_factors > most {
            let expected = format!("at most {most} levels on which the reduction has more than one device");
            return Err(ClusterError::new("hierarchy", expected, n_factors.to_string()));
        }
        let mut search = Search::new(n_factors, rules, vocabulary, prunes);
        search.run();
        Ok(search.finish())
    }

    /// The step of an edge.
    pub fn step(&self, edge: &Edge) -> ReductionStep {
        ReductionStep { instruction: self.instructions[edge.instruction as usize], collective: edge.collective }
    }
}

/// Ids of device states, of a whole system or of a group.
type Ids = Box<[u32]>;
/// By group: see [`Graph::shares`].
type Share = Box<[u8]>;

/// The collectives in the order of their names, so that edges come in the order of their texts.
const BY_NAME: [Collective; 5] = [
    Collective::AllGather,
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::ReduceScatter,
];

/// What each collective, in the order of [`BY_NAME`], makes of a group; none where it refuses.
type Outcomes = [Option<Ids>; 5];

/// An instruction with what the search needs of it.
struct Pattern {
    instruction: ReductionInstruction,
    groups: Vec<Vec<usize>>,
    taking_part: u32,
    /// Which collectives the rules allow with it.
    allowed: [bool; 5],
}

struct Search {
    n_factors: usize,
    rules: Rules,
    prunes: bool,
    patterns: Vec<Pattern>,
    devices: Vec<DeviceState>,
    device_ids: FastMap<DeviceState, u32>,
    /// By factors that take part, by members before: index into `outcomes`.
    applied: Vec<FastMap<Ids, u32>>,
    outcomes: Vec<Outcomes>,
    states: Vec<Ids>,
    state_ids: FastMap<Ids, Option<u32>>,
    shares: Vec<Share>,
    share_ids: FastMap<Share, u32>,
    edges: Vec<Vec<Edge>>,
    /// Sets of positions that hold a chunk → whether they can be summed.
    covers: FastMap<Box<[u64]>, bool>,
}

impl Search {
    fn new(n_factors: usize, rules: Rules, vocabulary: Vocabulary, prunes: bool) -> Search {
        let factors = vec![2; n_factors];
        let mut instructions = ReductionInstruction::all(n_factors);
        instructions.sort_by_key(ToString::to_string);
        let pattern = |instruction: ReductionInstruction| Pattern {
            instruction,
            groups: instruction.groups(&factors),
            taking_part: instruction.taking_part(n_factors).fold(0, |set, i| set | 1 << i),
            allowed: BY_NAME.map(|collective| {
                let is_pinned =
                    rules == Rules::Literal || !instruction.is_master() || collective == Collective::AllReduce;
                is_pinned && vocabulary.has(ReductionStep { instruction, collective })
            }),
        };
        Search {
            n_factors,
            rules,
            prunes,
            patterns: instructions.into_iter().map(pattern).collect(),
            devices: Vec::new(),
            device_ids: FastMap::default(),
            applied: vec![FastMap::default(); 1 << n_factors],
            outcomes: Vec::new(),
            states: Vec::new(),
            state_ids: FastMap::default(),
            shares: Vec::new(),
            share_ids: FastMap::default(),
            edges: Vec::new(),
            covers: FastMap::default(),
        }
    }

    fn run(&mut self) {
        let k = 1usize << self.n_factors;
        let start: Ids = (0..k).map(|d| self.device(DeviceState::start(d, k))).collect();
        self.state(&start);
        let goal = self.device(DeviceState::goal(k));
        let mut next = 0;
        while next < self.states.len() {
            let state = self.states[next].clone();
            let edges = if state.iter().all(|d| *d == goal) { Vec::new() } else { self.expand(&state) };
            self.edges.push(edges);
            next += 1;
        }
    }

    fn device(&mut self, state: DeviceState) -> u32 {
        if let Some(id) = self.device_ids.get(&state) {
            return *id;
        }
        let id = self.devices.len() as u32;
        self.devices.push(state.clone());
        self.device_ids.insert(state, id);
        id
    }

    /// The number of a state; none if it is ruled out.
    fn state(&mut self, state: &[u32]) -> Option<u32> {
        if let Some(id) = self.state_ids.get(state) {
            return *id;
        }
        let is_possible = !self.prunes || self.is_possible(state);
        let id = is_possible.then_some(self.states.len() as u32);
        if is_possible {
            self.states.push(state.into());
        }
        self.state_ids.insert(state.into(), id);
        id
    }

    fn expand(&mut self, state: &[u32]) -> Vec<Edge> {
        let mut edges = Vec::new();
        let (mut members, mut of_group, mut after) = (Vec::new(), Vec::new(), Vec::new());
        for p in 0..self.patterns.len() {
            let open = self.apply_pattern(p, state, &mut members, &mut of_group);
            for (c, collective) in BY_NAME.into_iter().enumerate().filter(|(c, _)| open[*c]) {
                after.clear();
                after.extend_from_slice(state);
                for (group, outcome) in self.patterns[p].groups.iter().zip(&of_group) {
                    let ids = self.outcomes[*outcome as usize][c].iter().flatten();
                    group.iter().zip(ids).for_each(|(&at, &id)| after[at] = id);
                }
                if after == *state {
                    continue;
                }
                if let Some(to) = self.state(&after) {
                    let share = self.share(p, collective, state);
                    edges.push(Edge { to, instruction: p as u8, collective, share });
                }
            }
        }
        edges
    }

    /// Which collectives no group refuses; `of_group` becomes the outcome of each group.
    fn apply_pattern(&mut self, p: usize, state: &[u32], members: &mut Vec<u32>, of_group: &mut Vec<u32>) -> [bool; 5] {
        let mut open = self.patterns[p].allowed;
        let taking_part = self.patterns[p].taking_part;
        of_group.clear();
        for g in 0..self.patterns[p].groups.len() {
            members.clear();
            members.extend(self.patterns[p].groups[g].iter().map(|&at| state[at]));
            let known = self.applied[taking_part as usize].get(members.as_slice()).copied();
            let outcome = known.unwrap_or_else(|| self.apply_group(taking_part, members));
            of_group.push(outcome);
            let outcomes = &self.outcomes[outcome as usize];
            open.iter_mut().zip(outcomes).for_each(|(open, outcome)| *open &= outcome.is_some());
            if !open.contains(&true) {
                break;
            }
        }
        open
    }

    /// Applies every collective to a group and keeps the outcomes.
    fn apply_group(&mut self, taking_part: u32, members: &[u32]) -> u32 {
        let outcomes = BY_NAME.map(|collective| {
            let before: Vec<&DeviceState> = members.iter().map(|id| &self.devices[*id as usize]).collect();
            let after = apply_once(collective, &before, self.rules, Sizes::Symbolic(taking_part)).ok()?;
            Some(match after {
                After::Alike(state) => vec![self.device(state); members.len()].into(),
                After::RootAndRest(root, rest) => {
                    let mut ids = vec![self.device(rest); members.len()];
                    let root = self.device(root);
                    ids.iter_mut().take(1).for_each(|first| *first = root);
                    ids.into()
                }
                After::Each(states) => states.into_iter().map(|state| self.device(state)).collect(),
            })
        });
        let index = self.outcomes.len() as u32;
        self.outcomes.push(outcomes);
        self.applied[taking_part as usize].insert(members.into(), index);
        index
    }

    /// By group: over which factors its whole tensor is scattered, from its first member.
    fn share(&mut self, p: usize, collective: Collective, state: &[u32]) -> u32 {
        let pattern = &self.patterns[p];
        let of_group = |group: &Vec<usize>| {
            let device = &self.devices[state[group[0]] as usize];
            let scattered = match collective {
                Collective::AllGather => device.scattered & !pattern.taking_part,
                Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce | Collective::Broadcast => {
                    device.scattered
                }
            };
            if device.is_empty() { NO_DATA } else { scattered as u8 }
        };
        let share: Share = pattern.groups.iter().map(of_group).collect();
        if let Some(id) = self.share_ids.get(&share) {
            return *id;
        }
        let id = self.shares.len() as u32;
        self.shares.push(share.clone());
        self.share_ids.insert(share, id);
        id
    }

    /// Whether nothing speaks against reaching the goal: every chunk can still be summed without counting twice.
    fn is_possible(&mut self, state: &[u32]) -> bool {
        let k = state.len();
        let mut distinct = state.to_vec();
        distinct.sort();
        distinct.dedup();
        let all = DeviceState::goal(k).rows[0];
        let mut sets: Vec<u64> = Vec::with_capacity(k);
        (0..k).all(|chunk| {
            sets.clear();
            sets.extend(distinct.iter().map(|id| self.devices[*id as usize].rows[chunk]).filter(|set| *set != 0));
            sets.sort();
            sets.dedup();
            match self.covers.get(sets.as_slice()) {
                Some(known) => *known,
                None => {
                    let can = has_a_cover(&sets, 0, all);
                    self.covers.insert(sets.as_slice().into(), can);
                    can
                }
            }
        })
    }

    fn finish(self) -> Graph {
        let k = 1usize << self.n_factors;
        let goal_device = self.device_ids.get(&DeviceState::goal(k)).copied();
        let goal = self.states.iter().position(|s| s.iter().all(|d| Some(*d) == goal_device));
        let n_met = self.states.len();
        let order = order_to(&self.edges, goal);
        // Renumber: the live states in their order, which starts at the start.
        let mut new_id = vec![None; self.states.len()];
        order.iter().enumerate().for_each(|(i, &old)| new_id[old as usize] = Some(i as u32));
        let live = |old: u32| -> Vec<Edge> {
            let edges = self.edges[old as usize].iter();
            edges.filter_map(|e| new_id[e.to as usize].map(|to| Edge { to, ..*e })).collect()
        };
        Graph {
            n_factors: self.n_factors,
            instructions: self.patterns.iter().map(|p| p.instruction).collect(),
            edges: order.iter().map(|&old| live(old)).collect(),
            shares: self.shares,
            goal: goal.and_then(|g| new_id[g]).unwrap_or(0),
            n_met,
        }
        .with_used_shares()
    }
}

impl Graph {
    /// Drops the shares of dead edges and numbers the others by first use, so that pruning leaves no trace.
    fn with_used_shares(mut self) -> Graph {
        let mut new_id = vec![None; self.shares.len()];
        let mut used = Vec::new();
        for edge in self.edges.iter_mut().flatten() {
            let slot = &mut new_id[edge.share as usize];
            let id = *slot.get_or_insert_with(|| {
                used.push(self.shares[edge.share as usize].clone());
                used.len() as u32 - 1
            });
            edge.share = id;
        }
        self.shares = used;
        self
    }
}

/// Whether disjoint sets among `sets` make up `all`, `done` being made up already.
fn has_a_cover(sets: &[u64], done: u64, all: u64) -> bool {
    if done == all {
        return true;
    }
    let lowest = (all & !done) & (all & !done).wrapping_neg();
    sets.iter().any(|set| set & lowest != 0 && set & done == 0 && has_a_cover(sets, done | set, all))
}

/// The states that lie on a way to the goal, each before those that its edges lead to, the start first.
fn order_to(edges: &[Vec<Edge>], goal: Option<usize>) -> Vec<u32> {
    let mut reverse = vec![Vec::new(); edges.len()];
    for (from, out) in edges.iter().enumerate() {
        out.iter().for_each(|e| reverse[e.to as usize].push(from as u32));
    }
    let mut is_live = vec![false; edges.len()];
    let mut stack: Vec<usize> = goal.into_iter().collect();
    stack.iter().for_each(|g| is_live[*g] = true);
    while let Some(at) = stack.pop() {
        for &from in &reverse[at] {
            if !std::mem::replace(&mut is_live[from as usize], true) {
                stack.push(from as usize);
            }
        }
    }
    // Knowledge only grows on a live way, so there is no circle: Kahn's algorithm meets every live state.
    let mut waiting = vec![0u32; edges.len()];
    for (from, out) in edges.iter().enumerate().filter(|(from, _)| is_live[*from]) {
        debug_assert!(is_live[from]);
        out.iter().filter(|e| is_live[e.to as usize]).for_each(|e| waiting[e.to as usize] += 1);
    }
    let mut order: Vec<u32> = is_live.first().filter(|live| **live).map(|_| 0).into_iter().collect();
    let mut next = 0;
    while next < order.len() {
        let at = order[next] as usize;
        next += 1;
        for e in edges[at].iter().filter(|e| is_live[e.to as usize]) {
            waiting[e.to as usize] -= 1;
            if waiting[e.to as usize] == 0 {
                order.push(e.to);
            }
        }
    }
    order
}
