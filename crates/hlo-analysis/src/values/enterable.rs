//! Which computations the graph of values looks into: what runs, and is called with operands as arguments alone.

use super::calls::{CallSites, entered};
use cranelift_entity::EntitySet;
use hlo_ir::{CompId, InstId, Module};

/// What happens at calls of a computation that has several callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedCallees {
    /// The calls take and compute whole values; the computation is not looked into.
    Opaque,
    /// The computation is looked into once, for all its callers.
    Entered,
}

/// What is live in the computations, callers first.
pub(super) fn find_live(module: &Module, order: &[CompId]) -> EntitySet<InstId> {
    let (mut live, mut is_called): (EntitySet<InstId>, EntitySet<CompId>) = (EntitySet::new(), EntitySet::new());
    is_called.extend(module.entry());
    let effectful = module.effectful_computations();
    for &comp in order {
        if !is_called.contains(comp) {
            continue;
        }
        let live_here = module.live_given(comp, &effectful);
        for &inst in module.comp(comp).insts.iter().filter(|&&inst| live_here.contains(inst)) {
            live.insert(inst);
            is_called.extend(module.called(inst));
        }
    }
    live
}

/// The computations that may be looked into. An instruction enters what it calls if all of that may be.
///
/// `sites` are the live call sites. Dead ones hinder an opaque shared callee too unless a live one stands beside them: where
/// that changes, a rewriter takes dead code away.
pub(super) fn find_enterable(
    module: &Module,
    order: &[CompId],
    sites: &CallSites,
    live: &EntitySet<InstId>,
    shared: SharedCallees,
) -> EntitySet<CompId> {
    let dead = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let dead = CallSites::of_insts(module, dead.copied().filter(|&inst| !live.contains(inst)));
    let parent = |inst: InstId| module.inst(inst).parent;
    let is_enterable = |comp: CompId| match shared {
        SharedCallees::Entered => sites.of(comp).iter().all(|site| entered(module, site.inst).is_some()),
        SharedCallees::Opaque => {
            let beside = sites.of(comp).last().map(|site| parent(site.inst));
            let n_dead = dead.of(comp).iter().filter(|site| Some(parent(site.inst)) != beside).count();
            sites.of(comp).len() + n_dead == 1
        }
    };
    let mut enterable: EntitySet<CompId> = EntitySet::new();
    enterable.extend(order.iter().copied().filter(|&comp| is_enterable(comp)));
    // What is called beside a computation that may not be entered has a caller that does not enter it.
    let mut blocked: Vec<CompId> = order.iter().copied().filter(|&comp| !enterable.contains(comp)).collect();
    while let Some(comp) = blocked.pop() {
        for site in sites.of(comp) {
            for callee in module.called(site.inst) {
                if enterable.remove(callee) {
                    blocked.push(callee);
                }
            }
        }
    }
    enterable
}
