//! Which devices hold equal values, for every instruction and tuple leaf.
//!
//! Forward dataflow over partitions of the devices ([`crate::classes`]). It covers replication across replicas, across
//! partitions and within groups at once, and it is context-sensitive: a computation is analysed once for each distinct
//! tuple of argument facts, so two call sites do not spoil each other.
//!
//! What a fact says: whenever devices of one class run the instruction, they run it equally often and hold equal values
//! each time. So in a branch or loop that devices enter differently every fact, even a constant's, is at most as coarse
//! as the predicate: a pass may put a collective over a class there without a device missing.
//!
//! As XLA does, it takes a reduction over devices as deterministic: groups with equal members in equal order give
//! equal results, on every member.
//!
//! Never wrong, at least as precise as XLA's `HloReplicationAnalysis`, and beyond it: deterministic ops that XLA
//! leaves unique (sort, fft, cholesky, rng-bit-generator on equal state …), collectives over groups whose operands are already
//! partly equal, fusions and calls by call site.
//!
//! Sources: entry parameters by `parameter_replication` (replicas), `sharding=` (partitions) and what the user says;
//! constants; replica-id and partition-id. Rules for each op follow its [`Flow`] and [`Effects`] columns in the op table.

mod control_flow;
mod difference;
mod exchange;
mod solver;
mod transfer;

pub use difference::{Difference, Differences};

use crate::annotations::{ParamFacts, replication_flags};
use crate::classes::{ClassPool, Classes};
use cranelift_entity::SecondaryMap;
use hashbrown::HashMap;
use hlo_ir::sharding::LeafSharding;
use hlo_ir::{InstId, Module};
use solver::Solver;

/// The facts of one module.
#[derive(Clone, Debug)]
pub struct Replication {
    pool: ClassPool,
    /// Facts of each instruction's leaves, met over all contexts; empty where never reached.
    facts: SecondaryMap<InstId, Box<[Classes]>>,
    replica_count: usize,
    num_partitions: usize,
}

/// The devices among which equality is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Across {
    /// All replicas of each partition.
    Replicas,
    /// All partitions of each replica.
    Partitions,
    /// All devices.
    Devices,
}

impl Replication {
    /// Analyses `module`, starting from its own annotations and from what the user says of the entry's parameters.
    pub fn compute(module: &Module, params: &ParamFacts) -> Replication {
        let mut pool = ClassPool::new(module.n_devices());
        let args = entry_args(module, params, &mut pool);
        let (pool, facts) = Solver::new(module, pool).solve(args);
        Replication {
            pool,
            facts,
            replica_count: module.header.replica_count.max(1) as usize,
            num_partitions: module.header.num_partitions.max(1) as usize,
        }
    }

    /// The classes of a leaf; `None` where no device runs the instruction (it is not reached from the entry).
    pub fn classes(&self, inst: InstId, leaf_idx: usize) -> Option<&[u32]> {
        Some(self.pool.labels(*self.facts[inst].get(leaf_idx)?))
    }

    /// Whether all devices of every group hold equal values of a leaf.
    pub fn is_equal_within(&self, inst: InstId, leaf_idx: usize, groups: &[Vec<u32>]) -> bool {
        match self.facts[inst].get(leaf_idx) {
            Some(&classes) => groups.iter().all(|g| self.pool.are_equal(classes, g.iter().copied())),
            None => false,
        }
    }

    /// Whether a leaf is equal across the given devices.
    pub fn is_replicated(&self, inst: InstId, leaf_idx: usize, across: Across) -> bool {
        self.is_equal_within(inst, leaf_idx, &self.lines(across))
    }

    /// The groups of devices that an `across` compares.
    pub fn lines(&self, across: Across) -> Vec<Vec<u32>> {
        let (r, p) = (self.replica_count as u32, self.num_partitions as u32);
        match across {
            Across::Devices => vec![(0..r * p).collect()],
            Across::Replicas => (0..p).map(|part| (0..r).map(|rep| rep * p + part).collect()).collect(),
            Across::Partitions => (0..r).map(|rep| (0..p).map(|part| rep * p + part).collect()).collect(),
        }
    }

    /// The equal devices of a leaf within each line of `across`; `None` where unique or equal everywhere.
    pub fn partial_groups(&self, inst: InstId, leaf_idx: usize, across: Across) -> Option<Vec<Vec<u32>>> {
        let labels = self.classes(inst, leaf_idx)?;
        let mut groups: Vec<Vec<u32>> = Vec::new();
        let lines = self.lines(across);
        let n_lines = lines.len();
        // Place of each class among the groups, valid if it lies behind those of earlier lines.
        let mut place = vec![0; labels.len()];
        for line in lines {
            let first_of_line = groups.len();
            for device in line {
                let slot = &mut place[labels[device as usize] as usize];
                match groups.get_mut(*slot).filter(|g| {
                    *slot >= first_of_line && g.first().is_some_and(|&d| labels[d as usize] == labels[device as usize])
                }) {
                    Some(members) => members.push(device),
                    None => {
                        *slot = groups.len();
                        groups.push(vec![device]);
                    }
                }
            }
        }
        let is_unique = groups.iter().all(|g| g.len() == 1);
        (!is_unique && groups.len() != n_lines).then_some(groups)
    }
}

/// Facts of the entry's arguments, leaf by leaf.
fn entry_args(module: &Module, params: &ParamFacts, pool: &mut ClassPool) -> Vec<Classes> {
    let (r, p) = (module.header.replica_count.max(1) as usize, module.header.num_partitions.max(1) as usize);
    let mut args = Vec::new();
    let Some(entry) = module.entry() else { return args };
    let across_replicas = pool.by_key(|d| d % p);
    // Many leaves share few shardings.
    let mut of_partitions: HashMap<&LeafSharding, Classes> = HashMap::new();
    let mut of_devices: HashMap<&LeafSharding, Classes> = HashMap::new();
    for &param in &module.comp(entry).params {
        let flags = replication_flags(module, param);
        for leaf_idx in 0..module.shape(param).n_leaves() {
            let mut fact = pool.bottom();
            let flag = flags.get(leaf_idx).copied();
            if flag == Some(true) {
                fact = across_replicas;
            }
            if let (Some(sharding), true) =
                (module.sharding(param).and_then(|s| s.leaf(leaf_idx)), p > 1 && flag != Some(false))
            {
                let annotated = *of_partitions.entry(sharding).or_insert_with(|| partition_classes(sharding, pool, p));
                fact = pool.join(fact, annotated);
            }
            if let Some(sharding) = params.leaf(args.len()) {
                let said = *of_devices.entry(sharding).or_insert_with(|| match sharding.tile_of_device(r * p) {
                    Some(tiles) => pool.by_key(|d| tiles[d]),
                    None => pool.bottom(),
                });
                fact = pool.join(fact, said);
            }
            args.push(fact);
        }
    }
    args
}

/// Which devices a sharding over the `p` partitions of each replica makes equal.
fn partition_classes(sharding: &LeafSharding, pool: &mut ClassPool, p: usize) -> Classes {
    match sharding.tile_of_device(p) {
        Some(tiles) => pool.by_key(|d| (d / p, tiles[d % p])),
        None => pool.bottom(),
    }
}
