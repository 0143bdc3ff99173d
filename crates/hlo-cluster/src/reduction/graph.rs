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
use crate::reduction::instruction::{Instruction, Step};
use crate::reduction::semantics::{DeviceState, Rules, Sizes, apply};
use std::collections::HashMap;

/// Most factors above one: with six the graph no longer fits.
pub const MAX_FACTORS: usize = 5;

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

/// The live states of a hierarchy of `n_factors` factors. State 0 is the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    /// Number of factors above one.
    pub n_factors: usize,
    /// The patterns of groups.
    pub instructions: Vec<Instruction>,
    /// By group of an instruction on factors of two: the factors (bits) over which the whole tensor of the collective is
    /// scattered, or [`NO_DATA`].
    pub shares: Vec<Box<[u8]>>,
    /// By state, its edges, in the order of their texts.
    pub edges: Vec<Vec<Edge>>,
    /// The goal; equal to the start only if there is nothing to reduce.
    pub goal: u32,
    /// States in an order in which every edge goes forward.
    pub order: Vec<u32>,
    /// How many states the search met, dead ones included.
    pub n_met: usize,
}

/// The share of a group that has no data: it does nothing.
pub const NO_DATA: u8 = u8::MAX;

impl Graph {
    /// Builds the graph for `n_factors` factors.
    ///
    /// # Errors
    /// More than [`MAX_FACTORS`] factors.
    pub fn build(n_factors: usize, rules: Rules) -> Result<Graph, ClusterError> {
        Graph::build_with(n_factors, rules, true)
    }

    /// The same, with or without ruling out dead states early; the result is the same but for [`Graph::n_met`].
    ///
    /// # Errors
    /// As [`Graph::build`].
    pub fn build_with(n_factors: usize, rules: Rules, prunes: bool) -> Result<Graph, ClusterError> {
        if n_factors > MAX_FACTORS {
            let expected = format!("at most {MAX_FACTORS} levels on which the reduction has more than one device");
            return Err(ClusterError::new("hierarchy", expected, n_factors.to_string()));
        }
        let mut search = Search::new(n_factors, rules, prunes);
        search.run();
        Ok(search.finish())
    }

    /// The step of an edge.
    pub fn step(&self, edge: &Edge) -> Step {
        Step { instruction: self.instructions[edge.instruction as usize], collective: edge.collective }
    }
}

/// Ids of device states, of a whole system or of a group.
type Ids = Box<[u32]>;
/// By group: see [`Graph::shares`].
type Share = Box<[u8]>;
/// Collective, factors that take part, members.
type GroupKey = (Collective, u32, Ids);

/// An instruction with what the search needs of it.
struct Pattern {
    instruction: Instruction,
    groups: Vec<Vec<usize>>,
    taking_part: u32,
}

struct Search {
    n_factors: usize,
    rules: Rules,
    prunes: bool,
    patterns: Vec<Pattern>,
    devices: Vec<DeviceState>,
    device_ids: HashMap<DeviceState, u32>,
    /// (collective, taking part, members) → the members after.
    applied: HashMap<GroupKey, Option<Ids>>,
    states: Vec<Ids>,
    state_ids: HashMap<Ids, Option<u32>>,
    shares: Vec<Share>,
    share_ids: HashMap<Share, u32>,
    edges: Vec<Vec<Edge>>,
}

impl Search {
    fn new(n_factors: usize, rules: Rules, prunes: bool) -> Search {
        let factors = vec![2; n_factors];
        let mut instructions = Instruction::all(n_factors);
        instructions.sort_by_key(ToString::to_string);
        let pattern = |instruction: Instruction| Pattern {
            instruction,
            groups: instruction.groups(&factors),
            taking_part: instruction.taking_part(n_factors).fold(0, |set, i| set | 1 << i),
        };
        Search {
            n_factors,
            rules,
            prunes,
            patterns: instructions.into_iter().map(pattern).collect(),
            devices: Vec::new(),
            device_ids: HashMap::new(),
            applied: HashMap::new(),
            states: Vec::new(),
            state_ids: HashMap::new(),
            shares: Vec::new(),
            share_ids: HashMap::new(),
            edges: Vec::new(),
        }
    }

    fn run(&mut self) {
        let k = 1usize << self.n_factors;
        let start: Ids = (0..k).map(|d| self.device(DeviceState::start(d, k))).collect();
        self.state(start);
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
    fn state(&mut self, state: Ids) -> Option<u32> {
        if let Some(id) = self.state_ids.get(&state) {
            return *id;
        }
        let is_possible = !self.prunes || self.is_possible(&state);
        let id = is_possible.then_some(self.states.len() as u32);
        if is_possible {
            self.states.push(state.clone());
        }
        self.state_ids.insert(state, id);
        id
    }

    fn expand(&mut self, state: &[u32]) -> Vec<Edge> {
        let mut edges = Vec::new();
        for p in 0..self.patterns.len() {
            let is_master = self.patterns[p].instruction.is_master();
            let mut collectives = Collective::ALL;
            collectives.sort_by_key(|c| c.name());
            for collective in collectives {
                if self.rules == Rules::Pinned && is_master && collective != Collective::AllReduce {
                    continue;
                }
                let Some((after, share)) = self.apply_step(p, collective, state) else { continue };
                if *after == *state {
                    continue;
                }
                if let Some(to) = self.state(after) {
                    let share = self.share(share);
                    edges.push(Edge { to, instruction: p as u8, collective, share });
                }
            }
        }
        edges
    }

    fn share(&mut self, share: Share) -> u32 {
        let next = self.shares.len() as u32;
        let id = *self.share_ids.entry(share.clone()).or_insert(next);
        if id == next {
            self.shares.push(share);
        }
        id
    }

    /// The state after, and the share of each group; none if a group refuses.
    fn apply_step(&mut self, p: usize, collective: Collective, state: &[u32]) -> Option<(Ids, Share)> {
        let mut after: Ids = state.into();
        let taking_part = self.patterns[p].taking_part;
        let n_groups = self.patterns[p].groups.len();
        let mut share = Vec::with_capacity(n_groups);
        for g in 0..n_groups {
            let members: Ids = self.patterns[p].groups[g].iter().map(|&at| state[at]).collect();
            share.push(self.share_of(collective, taking_part, members[0]));
            let key = (collective, taking_part, members);
            if !self.applied.contains_key(&key) {
                let result = self.apply_group(&key);
                self.applied.insert(key.clone(), result);
            }
            let result = self.applied.get(&key)?.as_ref()?;
            for (&at, &id) in self.patterns[p].groups[g].iter().zip(result) {
                after[at] = id;
            }
        }
        Some((after, share.into()))
    }

    fn apply_group(
        &mut self,
        (collective, taking_part, members): &GroupKey,
    ) -> Option<Ids> {
        let before: Vec<&DeviceState> = members.iter().map(|id| &self.devices[*id as usize]).collect();
        let after = apply(*collective, &before, self.rules, Sizes::Symbolic(*taking_part)).ok()?;
        Some(after.into_iter().map(|state| self.device(state)).collect())
    }

    /// Over which factors the whole tensor of a group is scattered, from its first member.
    fn share_of(&self, collective: Collective, taking_part: u32, first: u32) -> u8 {
        let device = &self.devices[first as usize];
        let scattered = match collective {
            Collective::AllGather => device.scattered & !taking_part,
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce | Collective::Broadcast => {
                device.scattered
            }
        };
        if device.is_empty() { NO_DATA } else { scattered as u8 }
    }

    /// Whether nothing speaks against reaching the goal: every chunk can still be summed without counting twice.
    fn is_possible(&self, state: &[u32]) -> bool {
        let k = state.len();
        let mut sets: Vec<u64> = Vec::with_capacity(k);
        let mut seen: Vec<Vec<u64>> = Vec::new();
        (0..k).all(|chunk| {
            sets.clear();
            sets.extend(state.iter().map(|id| self.devices[*id as usize].rows[chunk]).filter(|set| *set != 0));
            sets.sort_unstable();
            sets.dedup();
            if seen.contains(&sets) {
                return true;
            }
            seen.push(sets.clone());
            has_a_cover(&sets, 0, DeviceState::goal(k).rows[0])
        })
    }

    fn finish(self) -> Graph {
        let k = 1usize << self.n_factors;
        let goal_device = self.device_ids.get(&DeviceState::goal(k)).copied();
        let goal = self.states.iter().position(|s| s.iter().all(|d| Some(*d) == goal_device));
        let n_met = self.state_ids.len();
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
            order: (0..order.len() as u32).collect(),
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
