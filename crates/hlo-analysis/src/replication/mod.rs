//! Which devices hold equal values, for every instruction and tuple leaf.
//!
//! Forward dataflow over partitions of the devices ([`crate::classes`]). It covers replication across replicas, across
//! partitions and within groups at once, and it is context-sensitive: a computation is analysed once for each distinct
//! tuple of argument facts, so two call sites do not spoil each other.
//!
//! Never wrong, at least as precise as XLA's `HloReplicationAnalysis`, and beyond it: deterministic ops that XLA
//! leaves unique (sort, fft, cholesky, rng-bit-generator on equal state …), collectives over groups whose operands are already
//! partly equal, fusions and calls by call site.
//!
//! Sources: entry parameters by `parameter_replication` (replicas), `sharding=` (partitions) and what the user says;
//! constants; replica-id and partition-id. Rules for each op follow its [`Flow`] and [`Effects`] columns in the op table.

mod transfer;

use crate::annotations::{ParamFacts, replication_flags};
use crate::classes::{ClassPool, Classes};
use cranelift_entity::SecondaryMap;
use hashbrown::HashMap;
use hlo_ir::op::{Effects, Flow};
use hlo_ir::{CompId, InstId, Module};
use std::rc::Rc;

/// Distinct argument tuples for which one computation is analysed by itself; further ones share a merged context.
const MAX_CONTEXTS: usize = 64;
/// Depth of calls beyond which a result is taken as unique.
const MAX_CALL_DEPTH: usize = 256;

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
        let n_devices = module.n_devices();
        let mut solver = Solver {
            module,
            pool: ClassPool::new(n_devices),
            facts: SecondaryMap::new(),
            memo: HashMap::new(),
            n_contexts: HashMap::new(),
            n_leaves: SecondaryMap::new(),
        };
        for &comp in module.computations() {
            for &inst in &module.comp(comp).insts {
                solver.n_leaves[inst] = module.shape(inst).n_leaves() as u32;
            }
        }
        if let Some(entry) = module.entry() {
            let args = entry_args(module, params, &mut solver.pool);
            solver.comp(entry, &args, 0);
        }
        Replication {
            pool: solver.pool,
            facts: solver.facts,
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
        let mut groups = Vec::new();
        let lines = self.lines(across);
        let n_lines = lines.len();
        for line in lines {
            let mut classes: Vec<(u32, Vec<u32>)> = Vec::new();
            for device in line {
                let label = labels[device as usize];
                match classes.iter_mut().find(|(l, _)| *l == label) {
                    Some((_, members)) => members.push(device),
                    None => classes.push((label, vec![device])),
                }
            }
            groups.extend(classes.into_iter().map(|(_, members)| members));
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
    for &param in &module.comp(entry).params {
        let flags = replication_flags(module, param);
        for leaf_idx in 0..module.shape(param).n_leaves() {
            let mut fact = pool.bottom();
            let flag = flags.get(leaf_idx).copied();
            if flag == Some(true) {
                let across_replicas = pool.by_key(|d| d % p);
                fact = pool.join(fact, across_replicas);
            }
            let tiles = module.sharding(param).and_then(|s| s.leaf(leaf_idx)).and_then(|s| s.tile_of_device(p));
            if let (Some(tiles), true) = (tiles, p > 1 && flag != Some(false)) {
                let across_partitions = pool.by_key(|d| (d / p, tiles[d % p]));
                fact = pool.join(fact, across_partitions);
            }
            if let Some(tiles) = params.leaf(args.len()).and_then(|s| s.tile_of_device(r * p)) {
                let said = pool.by_key(|d| tiles[d]);
                fact = pool.join(fact, said);
            }
            args.push(fact);
        }
    }
    args
}

struct Solver<'m> {
    module: &'m Module,
    pool: ClassPool,
    facts: SecondaryMap<InstId, Box<[Classes]>>,
    memo: HashMap<Context, Rc<[Classes]>>,
    n_contexts: HashMap<CompId, usize>,
    n_leaves: SecondaryMap<InstId, u32>,
}

/// A computation and the facts of its arguments' leaves.
type Context = (CompId, Box<[Classes]>);

/// Facts of the instructions of one computation in one context.
type Local = HashMap<InstId, Rc<[Classes]>>;

impl Solver<'_> {
    /// The facts of `comp`'s result leaves for arguments with facts `args` (all parameters' leaves in a row).
    fn comp(&mut self, comp: CompId, args: &[Classes], depth: usize) -> Rc<[Classes]> {
        let root = self.module.comp(comp).root.expand();
        let n_result = root.map_or(0, |r| self.n_leaves[r] as usize);
        if depth > MAX_CALL_DEPTH {
            // Deeper code keeps no facts, which reads as unique.
            return vec![self.pool.bottom(); n_result].into();
        }
        let mut args: Box<[Classes]> = args.into();
        if let Some(known) = self.memo.get(&(comp, args.clone())) {
            return known.clone();
        }
        let count = self.n_contexts.entry(comp).or_insert(0);
        *count += 1;
        if *count > MAX_CONTEXTS {
            // Too many distinct contexts: one with nothing known serves all further call sites.
            args.fill(self.pool.bottom());
            if let Some(known) = self.memo.get(&(comp, args.clone())) {
                return known.clone();
            }
        }
        let mut local = Local::new();
        let mut next_arg: HashMap<InstId, usize> = HashMap::new();
        let mut place = 0;
        for &param in &self.module.comp(comp).params {
            next_arg.insert(param, place);
            place += self.n_leaves[param] as usize;
        }
        let insts: &[InstId] = &self.module.comp(comp).insts;
        for &inst in insts {
            let fact: Rc<[Classes]> = match next_arg.get(&inst) {
                Some(&start) => (0..self.n_leaves[inst] as usize)
                    .map(|i| args.get(start + i).copied().unwrap_or(self.pool.bottom()))
                    .collect(),
                None => self.transfer(inst, &local, depth).into(),
            };
            self.record(inst, &fact);
            local.insert(inst, fact);
        }
        let result: Rc<[Classes]> = root.and_then(|r| local.get(&r).cloned()).unwrap_or_else(|| Rc::from([]));
        self.memo.insert((comp, args), result.clone());
        result
    }

    /// Meets a fact into what all contexts agree on.
    fn record(&mut self, inst: InstId, fact: &[Classes]) {
        if self.facts[inst].is_empty() {
            self.facts[inst] = fact.into();
            return;
        }
        for (i, &new) in fact.iter().enumerate() {
            let old = self.facts[inst][i];
            self.facts[inst][i] = self.pool.meet(old, new);
        }
    }

    /// The meet of all operand leaves.
    fn meet_operands(&mut self, inst: InstId, local: &Local) -> Classes {
        let mut fact = self.pool.top();
        for operand in &self.module.inst(inst).operands {
            for &leaf in local.get(operand).map_or(&[][..], |f| f) {
                fact = self.pool.meet(fact, leaf);
            }
        }
        fact
    }

    /// All operands' leaves in a row.
    fn operand_leaves(&self, inst: InstId, local: &Local) -> Vec<Classes> {
        let operands = &self.module.inst(inst).operands;
        operands.iter().flat_map(|o| local.get(o).into_iter().flat_map(|f| f.iter().copied())).collect()
    }
}
