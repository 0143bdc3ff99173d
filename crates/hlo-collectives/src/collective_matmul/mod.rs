//! Take a product apart, so that the collective beside it runs while it is computed.
//!
//! Before, on four devices, the rows that each device has are gathered and then multiplied:
//! ```text
//! %rows = f32[1024,512] all-gather(%own), replica_groups={{0,1,2,3}}, dimensions={0}
//! %y = f32[1024,256] dot(%rows, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after, a device multiplies the rows that it has while its neighbour's arrive:
//! ```text
//! %y.0 = f32[256,256] dot(%own, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! %own.1 = f32[256,512] collective-permute(%own), source_target_pairs={{0,3},{1,0},{2,1},{3,2}}
//! %y.1 = f32[256,256] dot(%own.1, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! …
//! ```
//! and each part of the result is written where it belongs. The samples `ir-samples/passes/collective-matmul/*.hlo` run this.
//!
//! **Why.** A product that needs a collective's result, or whose result the collective takes, waits for it or lets it wait: in a layer
//! that is cut within (tensor parallelism) nothing else is there to compute meanwhile. In parts, the links carry one while the
//! device computes another.
//!
//! **What it does.** An all-gather that products read goes round in a ring of permutes, and each step multiplies what has arrived
//! ([`ring`]). A product whose result is reduce-scattered is computed a part at a time, for the device that the sum will reach in so
//! many steps. A product whose result is all-reduced is cut along one of its dims into 2, 4 or 8 parts, each with its own all-reduce
//! ([`pieces`]); control dependencies keep them in order, and keep XLA from combining them again. Between product and collective
//! there may be conversions, and reshapes that keep the dim. What else reads a gathered array gets it put together from the parts.
//!
//! **What it does not do.** Groups of different sizes, or of more than 16 devices in a ring, stay, and so do rings where replicas and
//! partitions are both several. Collectives of several arrays, asynchronous ones and those with control dependencies stay.
//!
//! **Algorithm.** Places that are alike (kind, shapes, groups) are changed together on a copy of the module, in each form that they can
//! have; the fastest stays if the step is predicted to save `min-gain` of its time. The largest collectives come first. Each form costs one
//! prediction of the module.
//!
//! **Requires** nothing. **Ensures** the same results; sums over a contracted dim, or over devices in a ring, are added in another order (in
//! `f32` where the result has 16 bits and one product becomes several summands). **Errors**: a machine of another size than the module.
//!
//! **References.** Wang et al. 2023, *Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models*
//! (ASPLOS), §5. The pieces of an all-reduce follow Wang et al. 2024, *Domino*, §3 (arXiv:2409.15241).

mod find;
mod pieces;
mod ring;

use crate::in_parts::{MIN_GAIN, Profit};
use crate::refusal::OptionError;
use find::{Kind, Site, find_sites};
use hlo_analysis::Preserved;
use hlo_ir::diag::Entity;
use hlo_ir::{InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{ChannelIds, CollectiveChange, DeviceTables, Rewrite};
use indexmap::{IndexMap, IndexSet};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "collective-matmul",
    help: "compute a product in parts, so that the collective before or after it runs meanwhile",
    options: OPTIONS,
    build: |options| Ok(Box::new(CollectiveMatmul::new(options)?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "profit",
        kind: OptionKind::Word(&["auto", "always"]),
        default: "auto",
        help: "auto: where the step is predicted to be faster; always: every place, an all-reduce in two parts",
    },
    MIN_GAIN,
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveMatmul {
    profit: Profit,
}

/// How often a product with an all-reduce is cut.
const N_PIECES: [usize; 3] = [2, 4, 8];

impl CollectiveMatmul {
    fn new(options: &Options) -> Result<CollectiveMatmul, OptionError> {
        Ok(CollectiveMatmul { profit: Profit::new(options)? })
    }

    /// The numbers of parts to try for sites of a kind; a ring has as many as its groups have members.
    fn numbers(&self, site: &Site) -> Vec<usize> {
        match site.kind {
            Kind::Gather | Kind::Scatter => vec![site.groups[0].len()],
            Kind::Sum if self.profit.is_forced => vec![N_PIECES[0]],
            Kind::Sum => N_PIECES.into_iter().filter(|&n| n as i64 <= site.cut_size).collect(),
        }
    }
}

impl Pass for CollectiveMatmul {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut tried, mut n_changed) = (IndexSet::new(), 0);
        let mut now_s = None;
        // Of places that share a product one may change the other, so they are looked for again.
        while let Some((key, sites)) = next_kind(module, &tried, (n_changed == 0).then_some(&mut *cx.report)) {
            tried.insert(key);
            cx.check_deadline()?;
            let before_s = match now_s {
                Some(known) => known,
                None => *now_s.insert(cx.predicted_s(module)?),
            };
            let mut best: Option<(f64, usize, Applied)> = None;
            for n in self.numbers(&sites[0]) {
                let applied = apply(module, &sites, n)?;
                cx.analyses.invalidate(Preserved { frequencies: true, ..Preserved::NONE });
                let then_s = cx.predicted_s(&applied.module)?;
                if best.as_ref().is_none_or(|(best_s, ..)| then_s < *best_s) {
                    best = Some((then_s, n, applied));
                }
            }
            let Some((after_s, n, applied)) = best else { continue };
            let times = [before_s * 1e9, after_s * 1e9];
            if let Some(gain) = self.profit.obstacle(before_s, after_s) {
                let reason = format!("{}: in {n} parts the step {gain}", sites[0].text(sites.len()));
                cx.report
                    .decisions
                    .push(Decision::about(module, sites[0].collective, "left", reason).with_step_times(times));
                continue;
            }
            let reason = format!("{} in {n} parts", sites[0].text(sites.len()));
            let mut decision =
                Decision::about(module, sites[0].collective, "taken apart", reason).with_step_times(times);
            let is_gone = |site: &Site| CollectiveChange::removed(module, site.collective, "runs in parts");
            decision.collectives.extend(sites.iter().map(is_gone));
            let why = "runs while a part of the product is computed";
            let is_new = |&new: &InstId| CollectiveChange::inserted(&applied.module, new, why);
            decision.collectives.extend(applied.collectives.iter().map(is_new));
            cx.report.decisions.push(decision);
            n_changed += sites.len() as u64;
            *module = applied.module;
            now_s = Some(after_s);
            cx.analyses.invalidate(Preserved { frequencies: true, ..Preserved::NONE });
        }
        cx.report.count("collectives-taken-apart", n_changed);
        if n_changed == 0 {
            let why = "no collective beside a product is faster in parts";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// The sites of the kind that has the largest collectives of those that were not tried, and what tells it from others.
fn next_kind(
    module: &Module,
    tried: &IndexSet<String>,
    report: Option<&mut PassReport>,
) -> Option<(String, Vec<Site>)> {
    let mut kinds: IndexMap<String, Vec<Site>> = IndexMap::new();
    let mut dots = IndexSet::new();
    let refused = find_sites(module, &mut |site| {
        // Of two that share a product one is taken apart; what is then left of the other is another kind.
        let is_first = site.products.iter().all(|product| !dots.contains(&product.dot));
        if is_first {
            dots.extend(site.products.iter().map(|product| product.dot));
            kinds.entry(site.key(module)).or_default().push(site);
        }
    });
    if let (true, Some(report)) = (tried.is_empty(), report) {
        let left = |(inst, reason)| Decision::about(module, inst, "left", reason);
        report.decisions.extend(refused.into_iter().map(left));
    }
    kinds.retain(|key, _| !tried.contains(key));
    kinds.into_iter().max_by_key(|(_, sites)| sites.iter().map(|site| site.bytes).sum::<u64>())
}

/// A copy of the module in which sites are taken apart, and the new collectives.
struct Applied {
    module: Module,
    collectives: Vec<InstId>,
}

/// Takes sites apart in `n` parts each, on a copy.
fn apply(module: &Module, sites: &[Site], n: usize) -> Result<Applied, PassError> {
    let mut work = module.clone();
    let mut channels = ChannelIds::free_in(&work);
    let mut collectives = Vec::new();
    let mut by_computation: IndexMap<_, Vec<&Site>> = IndexMap::new();
    for site in sites {
        by_computation.entry(work.inst(site.collective).parent).or_default().push(site);
    }
    for (comp, sites) in by_computation {
        let (mut rewrite, mut tables) = (Rewrite::new(&work, comp), DeviceTables::default());
        for site in sites {
            collectives.extend(match site.kind {
                Kind::Gather | Kind::Scatter => ring::emit(&mut work, &mut rewrite, site, (&mut channels, &mut tables))
                    .map_err(|error| PassError::about("devices", Entity::Inst(site.collective), error.to_string()))?,
                Kind::Sum => pieces::emit(&mut work, &mut rewrite, site, n, &mut channels),
            });
        }
        rewrite.finish(&mut work)?;
    }
    Ok(Applied { module: work, collectives })
}
