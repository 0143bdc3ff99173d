//! Which instruction of one module is which of another, by dataflow.
//!
//! Four rules, each linear: values that are computed alike; operands of matched users, at the same place and of the same opcode
//! or with the same operands, from the roots on; instructions that do the same with matched operands; and for what is left, the same `op_name` or name with the
//! same opcode, as an anchor for more. The rules repeat until nothing more is matched, or [`MAX_ROUNDS`] times.

use super::keys::Keys;
use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use hlo_ir::{CompId, InstId, Module, Opcode};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How often the rules repeat.
const MAX_ROUNDS: usize = 4;

/// One of the modules, with its numbers.
pub(super) struct Side<'m> {
    pub module: &'m Module,
    pub keys: Keys,
}

/// What is what.
pub(super) struct Matching {
    /// The instruction of B that is this one of A.
    pub to_b: SecondaryMap<InstId, PackedOption<InstId>>,
    /// The instruction of A that is this one of B.
    pub to_a: SecondaryMap<InstId, PackedOption<InstId>>,
    /// The computation of B that is this one of A.
    comp_to_b: SecondaryMap<CompId, PackedOption<CompId>>,
    /// The pairs of computations, and those of one module alone, in the order in which they are shown.
    pub comps: Vec<(Option<CompId>, Option<CompId>)>,
}

impl Matching {
    /// Matches all computations, from the entries on.
    pub(super) fn of(a: &Side<'_>, b: &Side<'_>) -> Matching {
        let mut out = Matching {
            to_b: SecondaryMap::new(),
            to_a: SecondaryMap::new(),
            comp_to_b: SecondaryMap::new(),
            comps: Vec::new(),
        };
        let (mut seen_a, mut seen_b): (BTreeSet<CompId>, BTreeSet<CompId>) = (BTreeSet::new(), BTreeSet::new());
        let mut queue: Vec<(CompId, CompId)> = a.module.entry().zip(b.module.entry()).into_iter().collect();
        let mut next = 0;
        loop {
            while let Some(&(comp_a, comp_b)) = queue.get(next) {
                next += 1;
                if seen_a.contains(&comp_a) || seen_b.contains(&comp_b) {
                    continue;
                }
                seen_a.insert(comp_a);
                seen_b.insert(comp_b);
                out.comp_to_b[comp_a] = Some(comp_b).into();
                out.comps.push((Some(comp_a), Some(comp_b)));
                out.match_computation(a, b, comp_a, comp_b);
                for &inst in &a.module.comp(comp_a).insts {
                    let Some(other) = out.to_b[inst].expand() else { continue };
                    queue.extend(a.module.called(inst).into_iter().zip(b.module.called(other)));
                }
            }
            // Computations of unmatched callers: alike, or of one name.
            let left = |module: &Module, seen: &BTreeSet<CompId>| -> Vec<CompId> {
                module.computations().iter().copied().filter(|comp| !seen.contains(comp)).collect()
            };
            let (left_a, left_b) = (left(a.module, &seen_a), left(b.module, &seen_b));
            let by_key: HashMap<u64, CompId> = left_b.iter().rev().map(|&comp| (b.keys.comp[comp], comp)).collect();
            let by_name: HashMap<&str, CompId> = left_b.iter().map(|&comp| (b.module.comp_name(comp), comp)).collect();
            let alike = left_a.iter().filter_map(|comp| Some((*comp, *by_key.get(&a.keys.comp[*comp])?)));
            let named = left_a.iter().filter_map(|comp| Some((*comp, *by_name.get(a.module.comp_name(*comp))?)));
            // Of several that are alike, those that are taken are skipped, and the next round finds others.
            let found: Vec<(CompId, CompId)> = alike.chain(named).collect();
            if found.is_empty() {
                out.comps.extend(left_a.into_iter().map(|comp| (Some(comp), None)));
                out.comps.extend(left_b.into_iter().map(|comp| (None, Some(comp))));
                return out;
            }
            queue.extend(found);
        }
    }

    fn pair(&mut self, a: InstId, b: InstId) {
        self.to_b[a] = Some(b).into();
        self.to_a[b] = Some(a).into();
    }

    fn is_free(&self, a: InstId, b: InstId) -> bool {
        self.to_b[a].is_none() && self.to_a[b].is_none()
    }

    fn match_computation(&mut self, a: &Side<'_>, b: &Side<'_>, comp_a: CompId, comp_b: CompId) {
        let (insts_a, insts_b) = (&a.module.comp(comp_a).insts, &b.module.comp(comp_b).insts);
        self.match_alike(insts_a, insts_b, &|inst| a.keys.value[inst], &|inst| b.keys.value[inst], true);
        let roots = a.module.comp(comp_a).root.expand().zip(b.module.comp(comp_b).root.expand());
        if let Some((root_a, root_b)) = roots.filter(|&(x, y)| self.is_free(x, y) && same_opcode(a, b, x, y)) {
            self.pair(root_a, root_b);
        }
        for _ in 0..MAX_ROUNDS {
            let n_before = self.n_matched(insts_a);
            self.match_operands(a, b, insts_a);
            self.match_users(a, b, insts_a, insts_b);
            let op_name = |side: &Side<'_>, inst: InstId| {
                let marks = side.module.inst(inst).marks.as_deref()?;
                Some((side.module.inst(inst).opcode, marks.op_name()?.to_string()))
            };
            self.match_alike(insts_a, insts_b, &|inst| op_name(a, inst), &|inst| op_name(b, inst), false);
            let name = |side: &Side<'_>, inst: InstId| {
                Some((side.module.inst(inst).opcode, side.module.inst_name(inst).to_string()))
            };
            self.match_alike(insts_a, insts_b, &|inst| name(a, inst), &|inst| name(b, inst), false);
            if self.n_matched(insts_a) == n_before {
                break;
            }
        }
    }

    fn n_matched(&self, insts: &[InstId]) -> usize {
        insts.iter().filter(|&&inst| self.to_b[inst].is_some()).count()
    }

    /// Pairs free instructions of equal keys in text order; where `takes_all` is not set, only if there are as many on both sides.
    /// Keys that are their type's default say nothing.
    fn match_alike<K: Ord + Default>(
        &mut self,
        insts_a: &[InstId],
        insts_b: &[InstId],
        key_a: &dyn Fn(InstId) -> K,
        key_b: &dyn Fn(InstId) -> K,
        takes_all: bool,
    ) {
        let mut groups: BTreeMap<K, (Vec<InstId>, Vec<InstId>)> = BTreeMap::new();
        for &inst in insts_a.iter().filter(|&&inst| self.to_b[inst].is_none()) {
            groups.entry(key_a(inst)).or_default().0.push(inst);
        }
        for &inst in insts_b.iter().filter(|&&inst| self.to_a[inst].is_none()) {
            if let Some(group) = groups.get_mut(&key_b(inst)) {
                group.1.push(inst);
            }
        }
        groups.remove(&K::default());
        for (of_a, of_b) in groups.into_values().filter(|(x, y)| takes_all || x.len() == y.len()) {
            of_a.into_iter().zip(of_b).for_each(|(x, y)| self.pair(x, y));
        }
    }

    /// Operands of matched users, from the roots on: the same place, and the same opcode or the same operands.
    fn match_operands(&mut self, a: &Side<'_>, b: &Side<'_>, insts_a: &[InstId]) {
        for &user in insts_a.iter().rev() {
            let Some(other) = self.to_b[user].expand() else { continue };
            let (operands_a, operands_b) = (&a.module.inst(user).operands, &b.module.inst(other).operands);
            for (&x, &y) in operands_a.iter().zip(operands_b) {
                if self.is_free(x, y) && (same_opcode(a, b, x, y) || self.is_replaced(a, b, x, y)) {
                    self.pair(x, y);
                }
            }
        }
    }

    /// Whether another opcode does something else with the same operands.
    fn is_replaced(&self, a: &Side<'_>, b: &Side<'_>, x: InstId, y: InstId) -> bool {
        let (operands_a, operands_b) = (&a.module.inst(x).operands, &b.module.inst(y).operands);
        !operands_a.is_empty()
            && operands_a.len() == operands_b.len()
            && operands_a.iter().zip(operands_b).all(|(&p, &q)| self.to_b[p].expand() == Some(q))
            && a.module.shape(x) == b.module.shape(y)
    }

    /// Instructions that do the same with matched operands, in text order.
    fn match_users(&mut self, a: &Side<'_>, b: &Side<'_>, insts_a: &[InstId], insts_b: &[InstId]) {
        let mut free: HashMap<(u64, Vec<InstId>), Vec<InstId>> = HashMap::new();
        for &inst in insts_b.iter().rev().filter(|&&inst| self.to_a[inst].is_none()) {
            let operands = b.module.inst(inst).operands.to_vec();
            if !operands.is_empty() {
                free.entry((b.keys.own[inst], operands)).or_default().push(inst);
            }
        }
        for &inst in insts_a {
            let operands = &a.module.inst(inst).operands;
            if self.to_b[inst].is_some() || operands.is_empty() {
                continue;
            }
            let mapped: Option<Vec<InstId>> = operands.iter().map(|&operand| self.to_b[operand].expand()).collect();
            let Some(mapped) = mapped else { continue };
            if let Some(other) = free.get_mut(&(a.keys.own[inst], mapped)).and_then(Vec::pop) {
                self.pair(inst, other);
            }
        }
    }

    /// Whether a matched pair is the same: it does the same with operands and computations that are matched, whose own differences
    /// stand there, it waits for instructions that are matched, and both are roots or none is.
    pub(super) fn is_same(&self, a: &Side<'_>, b: &Side<'_>, x: InstId, y: InstId) -> bool {
        let is_root =
            |side: &Side<'_>, inst: InstId| side.module.comp(side.module.inst(inst).parent).root.expand() == Some(inst);
        if is_root(a, x) != is_root(b, y) {
            return false;
        }
        let (operands_a, operands_b) = (&a.module.inst(x).operands, &b.module.inst(y).operands);
        let are_operands_matched = || {
            let mut pairs = operands_a.iter().zip(operands_b);
            operands_a.len() == operands_b.len() && pairs.all(|(&p, &q)| self.to_b[p].expand() == Some(q))
        };
        let are_comps_matched = || {
            let (called_a, called_b) = (a.module.called(x), b.module.called(y));
            let mut pairs = called_a.iter().zip(&called_b);
            let is_pair = |(p, q): (&CompId, &CompId)| {
                self.comp_to_b[*p].expand() == Some(*q) || a.keys.comp[*p] == b.keys.comp[*q]
            };
            called_a.len() == called_b.len() && pairs.all(is_pair)
        };
        let are_predecessors_matched = || {
            let predecessors = |side: &Side<'_>, inst: InstId| side.module.inst(inst).control_predecessors().to_vec();
            let of_a = predecessors(a, x).into_iter().map(|before| self.to_b[before].expand());
            let of_b = predecessors(b, y).into_iter().map(Some);
            of_a.collect::<BTreeSet<_>>() == of_b.collect::<BTreeSet<_>>()
        };
        let is_own_same = || a.keys.own[x] == b.keys.own[y];
        a.keys.value[x] == b.keys.value[y]
            || (is_own_same() && are_operands_matched() && are_comps_matched() && are_predecessors_matched())
    }
}

fn same_opcode(a: &Side<'_>, b: &Side<'_>, x: InstId, y: InstId) -> bool {
    let opcode = |side: &Side<'_>, inst: InstId| -> Opcode { side.module.inst(inst).opcode };
    opcode(a, x) == opcode(b, y)
}
