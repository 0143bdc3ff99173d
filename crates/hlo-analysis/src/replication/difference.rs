//! Why a value is not known to be equal within groups of devices, and whether a promise about entry leaves could change that.
//!
//! The answer comes from the analysis itself, asked a second time *in hope*: with a promise of every entry leaf that nothing
//! contradicts. A value that is equal then waits for a promise. One that is not has another source, and no promise helps.
//! The source is found by a walk backwards over what is not equal, breadth first, so that the nearest one is named.
//! Cost: one more analysis for all questions together, and for each a walk over what the value is computed from.

use super::Replication;
use crate::annotations::{ParamFacts, ParamLeaf, differing_devices, entry_leaves};
use crate::values::{CallSite, CallSites, InstLeaf, LeafSource, Through, argument, entered, source_of_leaf};
use hashbrown::HashSet;
use hlo_ir::op::CalleeEntry;
use hlo_ir::{CompId, InstId, Module};
use std::cell::OnceCell;
use std::collections::VecDeque;

/// Why a value is not known to be equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// It would be if these entry leaves were the same on all devices. Neither the module nor the user says anything of them.
    /// Flat numbers, ascending.
    Unsaid(Vec<usize>),
    /// It depends on an entry leaf of which devices hold different parts by its `sharding=`. The flat number.
    Cut(usize),
    /// It depends on an instruction whose result is not known to be equal although its operands are: a device id, random numbers, a
    /// reduce-scatter.
    Source(InstId),
    /// The analysis gave up, or the value is not computed at all.
    Unknown,
}

/// Answers for one module.
pub struct Differences<'a> {
    module: &'a Module,
    params: &'a ParamFacts,
    known: &'a Replication,
    leaves: Vec<ParamLeaf>,
    in_hope: OnceCell<Replication>,
    sites: OnceCell<CallSites>,
}

/// Where a walk backwards ends.
enum End {
    /// At an entry leaf.
    Entry(usize),
    /// At an instruction that makes the difference.
    Inst(InstId),
}

impl<'a> Differences<'a> {
    /// Of a module, with what is said of its parameters and what is `known` from that. Computes nothing yet.
    pub fn new(module: &'a Module, params: &'a ParamFacts, known: &'a Replication) -> Differences<'a> {
        let leaves = entry_leaves(module);
        Differences { module, params, known, leaves, in_hope: OnceCell::new(), sites: OnceCell::new() }
    }

    /// Why a leaf is not known to be equal within `groups`.
    pub fn of(&self, leaf: InstLeaf, groups: &[Vec<u32>]) -> Difference {
        let in_hope = self.in_hope.get_or_init(|| Replication::compute(self.module, &self.hope()));
        if in_hope.is_equal_within(leaf.inst, leaf.leaf_idx as usize, groups) {
            let mut unsaid: Vec<usize> = Vec::new();
            self.walk(self.known, leaf, groups, |end| {
                if let End::Entry(number) = end
                    && differing_devices(self.module, &self.leaves[number]).is_none()
                {
                    unsaid.push(number);
                }
                None::<()>
            });
            unsaid.sort();
            unsaid.dedup();
            return if unsaid.is_empty() { Difference::Unknown } else { Difference::Unsaid(unsaid) };
        }
        let found = self.walk(in_hope, leaf, groups, |end| {
            Some(match end {
                End::Entry(number) => Difference::Cut(number),
                End::Inst(inst) => Difference::Source(inst),
            })
        });
        found.unwrap_or(Difference::Unknown)
    }

    /// What is said, and a promise of every leaf that nothing contradicts.
    fn hope(&self) -> ParamFacts {
        let mut hope = self.params.clone();
        for (number, leaf) in self.leaves.iter().enumerate() {
            if differing_devices(self.module, leaf).is_none() {
                hope.promise(number);
            }
        }
        hope
    }

    /// Goes back from a leaf over what is not equal, nearest first, until `visit` returns something for an end.
    fn walk<R>(
        &self,
        facts: &Replication,
        from: InstLeaf,
        groups: &[Vec<u32>],
        mut visit: impl FnMut(End) -> Option<R>,
    ) -> Option<R> {
        let differs = |leaf: &InstLeaf| !facts.is_equal_within(leaf.inst, leaf.leaf_idx as usize, groups);
        let mut queue = VecDeque::from([from]);
        let mut seen: HashSet<InstLeaf> = HashSet::from_iter([from]);
        while let Some(leaf) = queue.pop_front() {
            let mut behind: Vec<InstLeaf> = self.behind(leaf).into_iter().filter(differs).collect();
            if behind.is_empty() {
                behind = self.control_of(self.module.inst(leaf.inst).parent).into_iter().filter(differs).collect();
            }
            if behind.is_empty() {
                let end = self.entry_leaf(leaf).map_or(End::Inst(leaf.inst), End::Entry);
                if let Some(found) = visit(end) {
                    return Some(found);
                }
            }
            queue.extend(behind.into_iter().filter(|&next| seen.insert(next)));
        }
        None
    }

    /// The flat number of a leaf of an entry parameter.
    fn entry_leaf(&self, leaf: InstLeaf) -> Option<usize> {
        let is_it = |own: &ParamLeaf| (own.param, own.leaf_idx) == (leaf.inst, leaf.leaf_idx as usize);
        self.leaves.iter().position(is_it)
    }

    /// The leaves that a leaf is computed from.
    fn behind(&self, leaf: InstLeaf) -> Vec<InstLeaf> {
        let module = self.module;
        let same_leaf = |inst: InstId| InstLeaf::new(inst, leaf.leaf_idx);
        match source_of_leaf(module, leaf, Through::ALL) {
            LeafSource::Operand(from) => vec![from],
            LeafSource::Argument => {
                let comp = module.inst(leaf.inst).parent;
                let number = module.comp(comp).params.iter().position(|&param| param == leaf.inst);
                let of_site = |&site: &CallSite| {
                    let given = number.and_then(|number| argument(module, site, number));
                    let again = entered(module, site.inst).and_then(|(how, callees)| carried(module, how, &callees));
                    given.into_iter().chain(again).map(same_leaf).chain(self.selector(site.inst))
                };
                self.sites().of(comp).iter().flat_map(of_site).collect()
            }
            LeafSource::Callees(how) => {
                let callees = module.called(leaf.inst);
                let roots: Vec<InstId> = match how {
                    CalleeEntry::Loop => {
                        let first = module.inst(leaf.inst).operands.first().copied();
                        first.into_iter().chain(carried(module, how, &callees)).collect()
                    }
                    CalleeEntry::Call | CalleeEntry::Branches => {
                        callees.iter().filter_map(|&callee| module.comp(callee).root.expand()).collect()
                    }
                };
                roots.into_iter().map(same_leaf).chain(self.selector(leaf.inst)).collect()
            }
            LeafSource::Computed => {
                let leaves_of = |&operand: &InstId| {
                    (0..module.shape(operand).n_leaves()).map(move |leaf_idx| InstLeaf::new(operand, leaf_idx as u32))
                };
                module.inst(leaf.inst).operands.iter().flat_map(leaves_of).collect()
            }
        }
    }

    /// What decides whether devices run a computation: selectors and conditions of all that is around it.
    fn control_of(&self, comp: CompId) -> Vec<InstLeaf> {
        let mut selectors = Vec::new();
        let mut seen: HashSet<CompId> = HashSet::from_iter([comp]);
        let mut open = vec![comp];
        while let Some(comp) = open.pop() {
            for site in self.sites().of(comp) {
                selectors.extend(self.selector(site.inst));
                let around = self.module.inst(site.inst).parent;
                if seen.insert(around) {
                    open.push(around);
                }
            }
        }
        selectors
    }

    /// What a conditional chooses by, or what a loop goes on by.
    fn selector(&self, inst: InstId) -> Option<InstLeaf> {
        let (how, callees) = entered(self.module, inst)?;
        let selector = match how {
            CalleeEntry::Call => None,
            CalleeEntry::Branches => self.module.inst(inst).operands.first().copied(),
            CalleeEntry::Loop => callees.first().and_then(|&condition| self.module.comp(condition).root.expand()),
        };
        selector.map(|inst| InstLeaf::new(inst, 0))
    }

    fn sites(&self) -> &CallSites {
        self.sites.get_or_init(|| CallSites::find(self.module, self.module.post_order()))
    }
}

/// What a loop's body hands to the next round.
fn carried(module: &Module, how: CalleeEntry, callees: &[CompId]) -> Option<InstId> {
    match how {
        CalleeEntry::Loop => callees.get(CalleeEntry::BODY).and_then(|&body| module.comp(body).root.expand()),
        CalleeEntry::Call | CalleeEntry::Branches => None,
    }
}
