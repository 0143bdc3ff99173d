//! The transfer functions: facts of an instruction's leaves from those of its operands.

use super::*;
use hlo_ir::attrs::Attrs;
use hlo_ir::op::Kernel;

/// A while's state descends in a finite lattice; this many rounds without a fixpoint fall back to nothing known.
const MAX_ROUNDS: usize = 1000;

/// What a device receives in a collective, by equality: two devices with equal keys hold equal results.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Received {
    /// The number of the group's sequence of member classes, and which piece of the outcome the device holds.
    Pieces(usize, usize),
    /// Zeros: nobody sends to this device.
    Zeros,
    /// Nothing known: the device's own number.
    Own(usize),
}

impl Solver<'_> {
    /// The facts of one instruction's leaves.
    pub(super) fn transfer(&mut self, inst: InstId, local: &Local, depth: usize) -> Vec<Classes> {
        let row = self.module.inst(inst).opcode.row();
        let n = self.n_leaves[inst] as usize;
        let p = self.module.header.num_partitions.max(1) as usize;
        match row.flow {
            Flow::Constant => vec![self.pool.top(); n],
            Flow::Parameter => vec![self.pool.bottom(); n],
            Flow::ReplicaId => vec![self.pool.by_key(|d| d / p); n],
            Flow::PartitionId => vec![self.pool.by_key(|d| d % p); n],
            Flow::Tuple => self.fit(self.operand_leaves(inst, local), n),
            Flow::Identity => {
                let first = self.first_operand(inst, local);
                self.fit(first, n)
            }
            Flow::GetTupleElement => self.get_tuple_element(inst, local, n),
            Flow::Call => self.call(inst, local, depth, n),
            Flow::While => self.while_loop(inst, local, depth, n),
            Flow::Conditional => self.conditional(inst, local, depth, n),
            Flow::AllReduce | Flow::AllGather => self.grouped(inst, local, n, |_| 0),
            Flow::ReduceScatter => self.grouped(inst, local, n, |position| position),
            Flow::AllToAll => {
                // A tuple form gives leaf i the i-th operands of all members; a piece depends on every operand.
                let fact = self.meet_operands(inst, local);
                let fact = self.exchange(inst, fact, |position| position);
                vec![fact; n]
            }
            Flow::CollectiveBroadcast => self.broadcast(inst, local, n),
            Flow::CollectivePermute => self.permuted(inst, local, n),
            Flow::AsyncStart => self.async_start(inst, local, depth, n),
            Flow::AsyncUpdate => {
                let first = self.first_operand(inst, local);
                self.fit(first, n)
            }
            Flow::AsyncDone => self.async_done(inst, local, n),
            Flow::All => {
                let fact = self.plain(inst, local);
                vec![fact; n]
            }
        }
    }

    /// Ops whose result depends on all operands, by their effects.
    fn plain(&mut self, inst: InstId, local: &Local) -> Classes {
        match self.module.inst(inst).opcode.row().effects {
            Effects::Pure => self.meet_operands(inst, local),
            // A reducer or comparator that draws random numbers would make devices differ.
            Effects::OfCallees => {
                if self.module.called(inst).iter().all(|&c| self.is_deterministic(c, 0)) {
                    self.meet_operands(inst, local)
                } else {
                    self.pool.bottom()
                }
            }
            Effects::Random | Effects::Communicates => self.pool.bottom(),
            Effects::SideEffect => self.host_fact(inst),
            Effects::ByAttribute => match &self.module.inst(inst).attrs {
                // Only the callee knows what it computes; a partitioner's marker gives each device its own shard.
                Attrs::Custom(c) if c.custom_call_has_side_effect || is_shard_marker(&c.custom_call_target.0) => {
                    self.pool.bottom()
                }
                _ => self.meet_operands(inst, local),
            },
        }
    }

    /// An infeed follows its sharding across partitions; other effects give unique values.
    fn host_fact(&mut self, inst: InstId) -> Classes {
        let p = self.module.header.num_partitions.max(1) as usize;
        let is_infeed = matches!(self.module.inst(inst).attrs, Attrs::Infeed(_));
        let tiles = self.module.sharding(inst).and_then(|s| s.leaf(0)).and_then(|s| s.tile_of_device(p));
        match tiles {
            Some(tiles) if is_infeed && p > 1 && tiles.iter().all(|&t| t == tiles[0]) => self.pool.by_key(|d| d / p),
            _ => self.pool.bottom(),
        }
    }

    fn is_deterministic(&self, comp: CompId, depth: usize) -> bool {
        depth < MAX_CALL_DEPTH
            && self.module.comp(comp).insts.iter().all(|&inst| match self.module.inst(inst).opcode.row().effects {
                Effects::Pure => {
                    !matches!(self.module.inst(inst).opcode.row().flow, Flow::ReplicaId | Flow::PartitionId)
                }
                Effects::OfCallees => self.module.called(inst).iter().all(|&c| self.is_deterministic(c, depth + 1)),
                Effects::Random | Effects::Communicates | Effects::SideEffect | Effects::ByAttribute => false,
            })
    }

    fn first_operand(&self, inst: InstId, local: &Local) -> Vec<Classes> {
        let first = self.module.inst(inst).operands.first();
        first.and_then(|o| local.get(o)).map_or(Vec::new(), |f| f.to_vec())
    }

    /// Exactly `n` leaves; a mismatch, which a verified module does not have, reads as unique.
    fn fit(&self, leaves: Vec<Classes>, n: usize) -> Vec<Classes> {
        if leaves.len() == n { leaves } else { vec![self.pool.bottom(); n] }
    }

    fn get_tuple_element(&mut self, inst: InstId, local: &Local, n: usize) -> Vec<Classes> {
        let leaves = self.first_operand(inst, local);
        let Attrs::TupleIndex(gte) = &self.module.inst(inst).attrs else { return self.fit(Vec::new(), n) };
        let elements = self.module.inst(inst).operands.first().and_then(|&o| self.module.shape(o).as_tuple());
        let index = usize::try_from(gte.index).unwrap_or(usize::MAX);
        let start: usize = elements.map_or(0, |e| e.iter().take(index).map(|s| s.n_leaves()).sum());
        self.fit(leaves.get(start..start.saturating_add(n)).map_or(Vec::new(), <[Classes]>::to_vec), n)
    }

    fn call(&mut self, inst: InstId, local: &Local, depth: usize, n: usize) -> Vec<Classes> {
        let args = self.operand_leaves(inst, local);
        match self.module.called(inst).first() {
            Some(&callee) => {
                let result = self.comp(callee, &args, depth + 1).to_vec();
                self.fit(result, n)
            }
            None => vec![self.pool.bottom(); n],
        }
    }

    /// Descends from the init until the body keeps the state; devices whose conditions differ leave at other times.
    fn while_loop(&mut self, inst: InstId, local: &Local, depth: usize, n: usize) -> Vec<Classes> {
        let called = self.module.called(inst);
        let [condition, body] = called.as_slice() else { return vec![self.pool.bottom(); n] };
        let init = self.operand_leaves(inst, local);
        let mut state = self.fit(init, n);
        for _ in 0..MAX_ROUNDS {
            let go_on = self.comp(*condition, &state, depth + 1);
            let go_on = go_on.first().copied().unwrap_or(self.pool.bottom());
            let mut next: Vec<Classes> = state.iter().map(|&s| self.pool.meet(s, go_on)).collect();
            let after = self.comp(*body, &next, depth + 1).to_vec();
            let after = self.fit(after, n);
            for (leaf, after) in next.iter_mut().zip(after) {
                *leaf = self.pool.meet(*leaf, after);
            }
            if next == state {
                return state;
            }
            state = next;
        }
        vec![self.pool.bottom(); n]
    }

    fn conditional(&mut self, inst: InstId, local: &Local, depth: usize, n: usize) -> Vec<Classes> {
        let operands = self.module.inst(inst).operands.clone();
        let predicate = self.first_operand(inst, local).first().copied().unwrap_or(self.pool.bottom());
        let mut result = vec![predicate; n];
        for (branch, operand) in self.module.called(inst).into_iter().zip(operands.iter().skip(1)) {
            let args = local.get(operand).map_or(Vec::new(), |f| f.to_vec());
            let leaves = self.comp(branch, &args, depth + 1).to_vec();
            for (leaf, fact) in result.iter_mut().zip(self.fit(leaves, n)) {
                *leaf = self.pool.meet(*leaf, fact);
            }
        }
        result
    }

    /// A collective that gives each member a piece of what the group computes, leaf by leaf.
    fn grouped(&mut self, inst: InstId, local: &Local, n: usize, piece: fn(usize) -> usize) -> Vec<Classes> {
        let leaves = self.operand_leaves(inst, local);
        let leaves = self.fit(leaves, n);
        leaves.into_iter().map(|leaf| self.exchange(inst, leaf, piece)).collect()
    }

    fn exchange(&mut self, inst: InstId, operand: Classes, piece: fn(usize) -> usize) -> Classes {
        let Ok(groups) = self.module.device_groups(inst) else { return self.pool.bottom() };
        let labels = self.pool.labels(operand).to_vec();
        let mut keys: Vec<Received> = (0..self.pool.n_devices()).map(Received::Own).collect();
        let mut sequences: HashMap<Vec<u32>, usize> = HashMap::new();
        for group in &groups.groups {
            let members: Vec<u32> = group.iter().map(|&d| labels[d as usize]).collect();
            let next = sequences.len();
            let sequence = *sequences.entry(members).or_insert(next);
            for (position, &device) in group.iter().enumerate() {
                keys[device as usize] = Received::Pieces(sequence, piece(position));
            }
        }
        self.pool.by_key(|d| keys[d])
    }

    fn broadcast(&mut self, inst: InstId, local: &Local, n: usize) -> Vec<Classes> {
        let leaves = self.operand_leaves(inst, local);
        let leaves = self.fit(leaves, n);
        let Ok(groups) = self.module.device_groups(inst) else { return vec![self.pool.bottom(); n] };
        let one = |this: &mut Self, leaf: Classes| {
            let labels = this.pool.labels(leaf).to_vec();
            let mut keys: Vec<Received> = vec![Received::Zeros; labels.len()];
            for group in &groups.groups {
                for &device in group {
                    keys[device as usize] = Received::Pieces(labels[group[0] as usize] as usize, 0);
                }
            }
            this.pool.by_key(|d| keys[d])
        };
        leaves.into_iter().map(|leaf| one(self, leaf)).collect()
    }

    fn permuted(&mut self, inst: InstId, local: &Local, n: usize) -> Vec<Classes> {
        let leaves = self.operand_leaves(inst, local);
        let Ok(pairs) = self.module.device_pairs(inst) else { return vec![self.pool.bottom(); n] };
        if leaves.len() != n {
            // The in-place form also takes buffers and offsets: no rule for it.
            return vec![self.pool.bottom(); n];
        }
        let one = |this: &mut Self, leaf: Classes| {
            let labels = this.pool.labels(leaf).to_vec();
            let mut keys: Vec<Received> = vec![Received::Zeros; labels.len()];
            for &(source, target) in &pairs {
                keys[target as usize] = Received::Pieces(labels[source as usize] as usize, 0);
            }
            this.pool.by_key(|d| keys[d])
        };
        leaves.into_iter().map(|leaf| one(self, leaf)).collect()
    }

    /// `(operands, results, context…)`, or the results alone for all-reduce-start.
    fn async_start(&mut self, inst: InstId, local: &Local, depth: usize, n: usize) -> Vec<Classes> {
        let operands = self.operand_leaves(inst, local);
        let n_operands = operands.len();
        let kernel = match self.module.inst(inst).opcode.row().eval {
            hlo_ir::op::EvalRule::Kernel(kernel) => Some(kernel),
            _ => None,
        };
        let results = match kernel {
            Some(Kernel::AllReduce) => return self.grouped(inst, local, n, |_| 0),
            Some(Kernel::AllGather) => self.grouped(inst, local, n_operands, |_| 0),
            Some(Kernel::CollectivePermute) => self.permuted(inst, local, n_operands),
            Some(Kernel::CopyStart) => operands.clone(),
            Some(Kernel::AsyncStart) => match self.module.called(inst).first() {
                Some(&callee) => self.comp(callee, &operands, depth + 1).to_vec(),
                None => return vec![self.pool.bottom(); n],
            },
            _ => return vec![self.pool.bottom(); n],
        };
        // copy-start gives (destination, source, context); its two halves hold the same value.
        let mut leaves: Vec<Classes> = operands.into_iter().chain(results).collect();
        if leaves.len() > n {
            return vec![self.pool.bottom(); n];
        }
        leaves.resize(n, self.pool.top());
        leaves
    }

    /// The results' part of a start's tuple.
    fn async_done(&mut self, inst: InstId, local: &Local, n: usize) -> Vec<Classes> {
        let leaves = self.first_operand(inst, local);
        if leaves.len() == n {
            return leaves;
        }
        let elements = self.module.inst(inst).operands.first().and_then(|&o| self.module.shape(o).as_tuple());
        let Some([first, second, ..]) = elements else { return vec![self.pool.bottom(); n] };
        let (start, len) = (first.n_leaves(), second.n_leaves());
        self.fit(leaves.get(start..start + len).map_or(Vec::new(), <[Classes]>::to_vec), n)
    }
}

/// Custom calls of front ends that turn a global value into a device's shard.
fn is_shard_marker(target: &str) -> bool {
    matches!(target, "SPMDFullToShardShape" | "xla.sdy.GlobalToLocalShape" | "PartitionId" | "ReplicaId")
}
