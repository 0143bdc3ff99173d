//! A computation of its own for every call site, and back to one computation for those that came out alike.
//!
//! A pass may have to treat a computation in one way at one of its call sites and in another way elsewhere. It is copied for each
//! call site before the pass decides. Copies that are alike after the rewrite are merged into one, so what the pass did
//! not touch is as it was.

use crate::group_attrs::ChannelIds;
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::values::{CallSite, CallSites, entered};
use hlo_ir::attrs::Attrs;
use hlo_ir::{CompId, InstId, Module};
use indexmap::IndexMap;

/// Copies add at most as many instructions as the module has, or this many if it has fewer.
const MIN_BUDGET: usize = 4096;

/// The copies of a module's computations.
#[derive(Clone, Debug, Default)]
pub struct CallSiteCopies {
    /// By original, callers first.
    families: IndexMap<CompId, Vec<SiteCopy>>,
}

/// A copy for one call site.
#[derive(Clone, Debug)]
struct SiteCopy {
    comp: CompId,
    site: InstId,
    /// Its instructions and those that they are copies of.
    insts: IndexMap<InstId, InstId>,
}

impl CallSiteCopies {
    /// Whether anything is called from several places: whether [`CallSiteCopies::split`] has something to do.
    pub fn has_shared(module: &Module) -> bool {
        let sites = CallSites::find(module, module.computations().iter().copied());
        let is_entered = |site: &CallSite| entered(module, site.inst).is_some();
        module.computations().iter().any(|&c| sites.of(c).len() > 1 && sites.of(c).iter().any(is_entered))
    }

    /// Copies what is called from several places, except where that makes the module too large or splits a transfer's channel.
    /// Linear in the instructions of the result.
    pub fn split(module: &mut Module) -> CallSiteCopies {
        let mut order = module.post_order();
        order.reverse();
        let mut reached: EntitySet<CompId> = EntitySet::new();
        reached.extend(order.iter().copied());
        let mut sites = CallSites::default();
        // What is named from a computation that the entry does not reach.
        let mut outside: EntitySet<CompId> = EntitySet::new();
        for &comp in module.computations().iter().filter(|&&c| !reached.contains(c)) {
            module.comp(comp).insts.iter().for_each(|&inst| outside.extend(module.called(inst)));
        }
        let mut budget = module.n_instructions().max(MIN_BUDGET);
        let in_order = module.computations().to_vec();
        let mut copies = CallSiteCopies::default();
        // Callers first: all sites of a computation are known when it is reached, those in copies included.
        for comp in order {
            let is_entered = |site: &&CallSite| entered(module, site.inst).is_some();
            // What names it otherwise keeps the original, else the first site does.
            let is_kept = outside.contains(comp) || !sites.of(comp).iter().all(|site| is_entered(&site));
            let taken = sites.of(comp).iter().filter(is_entered).skip(usize::from(!is_kept));
            let apart: Vec<CallSite> = taken.copied().collect();
            sites.add(module, comp);
            let n_added = apart.len().saturating_mul(module.comp(comp).insts.len());
            if apart.is_empty() || n_added > budget || has_transfer(module, comp) {
                continue;
            }
            budget -= n_added;
            let family = copies.families.entry(comp).or_default();
            for site in apart {
                let copy = module.copy_computation(comp);
                let pairs = module.comp(copy).insts.iter().copied().zip(module.comp(comp).insts.iter().copied());
                family.push(SiteCopy { comp: copy, site: site.inst, insts: pairs.collect() });
                set_callee(module, site, copy);
                sites.add(module, copy);
            }
        }
        let own = |comp: &CompId| copies.families.get(comp).into_iter().flatten().map(|copy| copy.comp);
        module.set_computation_order(in_order.iter().flat_map(|comp| own(comp).chain([*comp])).collect());
        copies
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.families.is_empty()
    }

    /// The instruction of the module as it was that an instruction is or was copied from.
    pub fn original(&self, inst: InstId) -> InstId {
        let copied = self.families.values().flatten().find_map(|copy| copy.insts.get(&inst));
        copied.copied().unwrap_or(inst)
    }

    /// Merges copies that are alike, into the original where that is one of them, and gives the collectives of those that stay
    /// channels of their own.
    pub fn merge(&self, module: &mut Module) -> MergedCopies {
        let mut first: SecondaryMap<CompId, Option<CompId>> = SecondaryMap::new();
        let mut merged = MergedCopies::default();
        let mut kept: Vec<(CompId, &SiteCopy)> = Vec::new();
        for (&original, family) in self.families.iter().rev() {
            let mut apart: Vec<(CompId, Option<&SiteCopy>)> = vec![(original, None)];
            for copy in family {
                match apart.iter().find(|(other, _)| are_alike(module, *other, copy.comp, &first)) {
                    Some(&(other, as_copy)) => {
                        first[copy.comp] = Some(other);
                        merged.rename(module, copy, other, as_copy);
                    }
                    None => {
                        apart.push((copy.comp, Some(copy)));
                        kept.push((original, copy));
                    }
                }
            }
        }
        for comp in module.computations().to_vec() {
            for inst in module.comp(comp).insts.clone() {
                if !module.called(inst).is_empty() {
                    module.inst_mut(inst).attrs.for_each_comp_mut(&mut |c| *c = first[*c].unwrap_or(*c));
                }
            }
        }
        self.remove_uncalled(module);
        let mut is_there: EntitySet<CompId> = EntitySet::new();
        is_there.extend(module.computations().iter().copied());
        let mut channels = ChannelIds::free_in(module);
        for (original, copy) in kept.into_iter().filter(|(_, copy)| is_there.contains(copy.comp)) {
            for &inst in copy.insts.keys() {
                channels.renew(&mut module.inst_mut(inst).attrs);
            }
            merged.kept.push(KeptCopy { original, copy: copy.comp, site: copy.site });
        }
        merged
    }

    /// Removes copies and originals that nothing calls any more.
    fn remove_uncalled(&self, module: &mut Module) {
        let mut own: EntitySet<CompId> = EntitySet::new();
        own.extend(self.families.keys().copied());
        own.extend(self.families.values().flatten().map(|copy| copy.comp));
        let others: Vec<CompId> = module.computations().iter().copied().filter(|&c| !own.contains(c)).collect();
        let mut called: EntitySet<CompId> = EntitySet::new();
        called.extend(module.callees_first(&others));
        let is_needed = |comp: &CompId| !own.contains(*comp) || called.contains(*comp);
        module.set_computation_order(module.computations().iter().copied().filter(is_needed).collect());
    }
}

/// A copy that differs from its original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptCopy {
    /// The original.
    pub original: CompId,
    /// The copy.
    pub copy: CompId,
    /// The call site that has it.
    pub site: InstId,
}

/// What became of copies.
#[derive(Clone, Debug, Default)]
pub struct MergedCopies {
    /// Names of what was merged, and the names of what it was merged into.
    names: IndexMap<String, String>,
    kept: Vec<KeptCopy>,
}

impl MergedCopies {
    /// Remembers by what names the instructions of a merged copy go now.
    fn rename(&mut self, module: &Module, copy: &SiteCopy, into: CompId, into_copy: Option<&SiteCopy>) {
        let now: IndexMap<InstId, InstId> = match into_copy {
            Some(other) => other.insts.iter().map(|(&inst, &original)| (original, inst)).collect(),
            None => IndexMap::new(),
        };
        let before =
            copy.insts.iter().map(|(&inst, &original)| (inst, now.get(&original).copied().unwrap_or(original)));
        let insts = module.comp(copy.comp).insts.iter().copied().zip(module.comp(into).insts.iter().copied());
        for (inst, other) in before.chain(insts) {
            self.names.insert(module.inst_name(inst).into(), module.inst_name(other).into());
        }
        self.names.insert(module.comp_name(copy.comp).into(), module.comp_name(into).into());
    }

    /// The copies that stay.
    pub fn kept(&self) -> &[KeptCopy] {
        &self.kept
    }

    /// What goes by `name` now, if it was merged into something else.
    pub fn name_now(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }

    /// A text with the names in it, each behind a `%`, that hold now.
    pub fn renamed(&self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let mut parts = text.split('%');
        let mut out = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let (name, rest) = part.split_at(part.find(|c| !is_part(c)).unwrap_or(part.len()));
            out.extend(["%", self.names.get(name).map_or(name, String::as_str), rest]);
        }
        out
    }
}

/// Whether a computation sends or receives: both ends of a channel stand once.
fn has_transfer(module: &Module, comp: CompId) -> bool {
    module.comp(comp).insts.iter().any(|&inst| matches!(module.inst(inst).attrs, Attrs::Transfer(_)))
}

fn set_callee(module: &mut Module, site: CallSite, callee: CompId) {
    let mut slot = 0;
    module.inst_mut(site.inst).attrs.for_each_comp_mut(&mut |comp| {
        if slot == site.slot {
            *comp = callee;
        }
        slot += 1;
    });
}

/// Whether two computations are the same but for names and channels; computations that they call are what `first` says.
fn are_alike(module: &Module, a: CompId, b: CompId, first: &SecondaryMap<CompId, Option<CompId>>) -> bool {
    let (left, right) = (module.comp(a), module.comp(b));
    if left.insts.len() != right.insts.len() || left.execution_thread != right.execution_thread {
        return false;
    }
    let places = |insts: &[InstId]| insts.iter().zip(0u32..).map(|(&inst, place)| (inst, place)).collect();
    let (of_left, of_right): (IndexMap<InstId, u32>, IndexMap<InstId, u32>) =
        (places(&left.insts), places(&right.insts));
    let are_same = |x: &[InstId], y: &[InstId]| {
        x.len() == y.len() && x.iter().zip(y).all(|(x, y)| of_left.contains_key(x) && of_left.get(x) == of_right.get(y))
    };
    let attrs = |inst: InstId| {
        let mut attrs = module.inst(inst).attrs.clone();
        attrs.for_each_comp_mut(&mut |c| *c = first[*c].unwrap_or(*c));
        attrs.channel_id_mut().into_iter().for_each(|channel| *channel = 0);
        attrs
    };
    let is_one = |(&x, &y): (&InstId, &InstId)| {
        let (p, q) = (module.inst(x), module.inst(y));
        p.opcode == q.opcode && p.shape == q.shape && are_same(&p.operands, &q.operands) && attrs(x) == attrs(y) && {
            let (p, q) = (p.marks.as_deref().cloned().unwrap_or_default(), q.marks.as_deref().cloned());
            let mut q = q.unwrap_or_default();
            are_same(&p.control_predecessors, &q.control_predecessors) && {
                q.control_predecessors = p.control_predecessors.clone();
                p == q
            }
        }
    };
    are_same(left.root.expand().as_slice(), right.root.expand().as_slice())
        && left.insts.iter().zip(&right.insts).all(is_one)
}
