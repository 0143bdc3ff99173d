//! Transfer functions of collectives and of async pairs.

use super::solver::{Fact, Frame, Solver, Wanting};
use super::*;
use hlo_ir::dtype::NumberClass;
use hlo_ir::groups::DeviceGroups;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::op::{Begun, CollectiveForm, CollectiveRule, CollectiveSource, StartResult};

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
    /// The outcome of a collective on each device: what it receives, and behind it the operands that it keeps.
    pub(super) fn collective(&mut self, inst: InstId, rule: CollectiveRule, frame: &Frame, n: usize) -> Fact {
        let mut operands = self.operand_leaves(inst, frame);
        // Operands of a collective that keeps some are arrays, one leaf each.
        let n_kept = self.module.inst(inst).operands.len() - self.module.n_exchanged(inst, rule);
        let own = operands.split_off(operands.len().saturating_sub(n_kept));
        let n = n.saturating_sub(own.len());
        let received = match rule.source {
            CollectiveSource::Members if rule.exchanges_parts() => self.all_to_all(inst, operands, n),
            CollectiveSource::Reduction | CollectiveSource::Members if rule.scatters => {
                self.grouped(inst, operands, n, |position| position)
            }
            CollectiveSource::Reduction | CollectiveSource::Members => self.grouped(inst, operands, n, |_| 0),
            CollectiveSource::Root => self.broadcast(inst, frame, n),
            CollectiveSource::Pair => self.permuted(inst, frame, n),
            CollectiveSource::Rows => self.all_to_all(inst, operands, n),
        };
        if own.is_empty() { received } else { received.iter().copied().chain(own).collect() }
    }

    /// A collective that gives each member a piece of what the group computes, leaf by leaf.
    fn grouped(&mut self, inst: InstId, operands: Vec<Classes>, n: usize, piece: fn(usize) -> usize) -> Fact {
        let leaves = self.fit(operands.into(), n);
        let Ok(groups) = self.module.device_groups(inst) else { return self.unknown(n) };
        let of_reducer = self.sources_of_callees(inst);
        let order_free = self.order_free(inst);
        let mut done: HashMap<Classes, Classes> = HashMap::new();
        let mut out = Vec::with_capacity(n);
        for &leaf in leaves.iter() {
            let operand = self.pool.meet(leaf, of_reducer);
            let result = match done.get(&operand) {
                Some(&known) => known,
                None => self.exchange(&groups, operand, order_free, piece),
            };
            done.insert(operand, result);
            out.push(result);
        }
        out.into()
    }

    /// The largest group in which the order of the members does not change the outcome, bit for bit.
    fn order_free(&self, inst: InstId) -> usize {
        let reducer = self.module.called(inst).first().and_then(|&comp| find_monoid(self.module, comp));
        let is_float = self.module.inst(inst).operands.iter().any(|&operand| {
            let dtype = self.module.shape(operand).as_array().map(|array| array.dtype);
            dtype.is_none_or(|t| matches!(t.class(), NumberClass::Float | NumberClass::Complex))
        });
        match reducer {
            None => 0,
            Some(_) if !is_float => usize::MAX,
            // Rounding depends on the order of three or more; of 0 and -0 the maximum may be either.
            Some(Monoid::Add | Monoid::Multiply) => 2,
            Some(Monoid::Maximum | Monoid::Minimum | Monoid::And | Monoid::Or) => 0,
        }
    }

    /// `order_free` is the largest group whose members may be taken in any order.
    fn exchange(
        &mut self,
        groups: &DeviceGroups,
        operand: Classes,
        order_free: usize,
        piece: fn(usize) -> usize,
    ) -> Classes {
        let labels = self.pool.labels(operand);
        let mut keys: Vec<Received> = (0..self.pool.n_devices()).map(Received::Own).collect();
        let mut sequences: HashMap<Vec<u32>, usize> = HashMap::new();
        for group in &groups.groups {
            let mut members: Vec<u32> = group.iter().map(|&d| labels[d as usize]).collect();
            if group.len() <= order_free {
                members.sort();
            }
            let next = sequences.len();
            let sequence = *sequences.entry(members).or_insert(next);
            for (position, &device) in group.iter().enumerate() {
                keys[device as usize] = Received::Pieces(sequence, piece(position));
            }
        }
        self.pool.by_key(|d| keys[d])
    }

    /// The array form gives each member a piece of every member's operand; the tuple form gives member `j` as leaf
    /// `i` the `j`-th operand of member `i`; the ragged form reads all its operands.
    fn all_to_all(&mut self, inst: InstId, operands: Vec<Classes>, n: usize) -> Fact {
        let Ok(groups) = self.module.device_groups(inst) else { return self.unknown(n) };
        let is_tuple = n > 1 && operands.len() == n && groups.uniform_size() == Some(n);
        if !is_tuple {
            let all = operands.iter().fold(self.pool.top(), |all, &operand| self.pool.meet(all, operand));
            return vec![self.exchange(&groups, all, 0, |position| position); n].into();
        }
        let mut out = Vec::with_capacity(n);
        for leaf_idx in 0..n {
            let mut keys: Vec<Received> = (0..self.pool.n_devices()).map(Received::Own).collect();
            for group in &groups.groups {
                for (position, (&device, &operand)) in group.iter().zip(&operands).enumerate() {
                    let sent = self.pool.labels(operand)[group[leaf_idx] as usize];
                    keys[device as usize] = Received::Pieces(sent as usize, position);
                }
            }
            out.push(self.pool.by_key(|d| keys[d]));
        }
        out.into()
    }

    fn broadcast(&mut self, inst: InstId, frame: &Frame, n: usize) -> Fact {
        let leaves = self.fit(self.operand_leaves(inst, frame).into(), n);
        let Ok(groups) = self.module.device_groups(inst) else { return self.unknown(n) };
        let sends = groups.groups.iter().flat_map(|group| group.iter().map(|&device| (group[0], device)));
        let sends: Vec<(u32, u32)> = sends.collect();
        leaves.iter().map(|&leaf| self.sent(leaf, &sends)).collect()
    }

    fn permuted(&mut self, inst: InstId, frame: &Frame, n: usize) -> Fact {
        let leaves = self.operand_leaves(inst, frame);
        let Ok(pairs) = self.module.device_pairs(inst) else { return self.unknown(n) };
        if leaves.len() != n {
            // The in-place form also takes buffers and offsets: no rule for it.
            return self.unknown(n);
        }
        leaves.iter().map(|&leaf| self.sent(leaf, &pairs)).collect()
    }

    /// What each target of `(source, target)` pairs receives; the others get zeros.
    fn sent(&mut self, operand: Classes, pairs: &[(u32, u32)]) -> Classes {
        let labels = self.pool.labels(operand);
        let mut keys: Vec<Received> = vec![Received::Zeros; labels.len()];
        for &(source, target) in pairs {
            keys[target as usize] = Received::Pieces(labels[source as usize] as usize, 0);
        }
        self.pool.by_key(|d| keys[d])
    }

    /// `(operands, outcome, context…)`, or the outcome alone.
    pub(super) fn async_start(&mut self, inst: InstId, begun: Begun, frame: &Frame, n: usize) -> Wanting<Fact> {
        let operands = self.operand_leaves(inst, frame);
        let outcome: Fact = match begun {
            Begun::Collective(rule) if rule.form == CollectiveForm::Start(StartResult::Outcome) => {
                return Ok(self.collective(inst, rule, frame, n));
            }
            Begun::Collective(rule) => self.collective(inst, rule, frame, operands.len()),
            // copy-start gives (destination, source, context); its two halves hold the same value.
            Begun::Copy => operands.clone().into(),
            Begun::Call => match self.module.called(inst).first() {
                Some(&callee) => self.result_of(callee, &operands, frame.control())?,
                None => return Ok(self.unknown(n)),
            },
        };
        let mut leaves: Vec<Classes> = operands;
        leaves.extend(outcome.iter());
        if leaves.len() > n {
            return Ok(self.unknown(n));
        }
        // A context is a handle of the runtime: nothing is known of it.
        leaves.resize(n, self.pool.bottom());
        Ok(leaves.into())
    }
}
