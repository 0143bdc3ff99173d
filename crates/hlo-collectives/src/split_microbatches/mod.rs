//! Compute layers on parts of the batch, so that the collectives of one part run while another is computed.
//!
//! Before, a layer that is cut within (tensor parallelism) sums over the devices and waits for it:
//! ```text
//! %y = f32[8,1024] dot(%h, %w), …
//! %sum = f32[8,1024] all-reduce(%y), replica_groups={{0,1,2,3}}, to_apply=%add
//! %next = f32[8,1024] tanh(%sum)
//! ```
//! after, with the rows in two parts, which nothing joins before something needs all rows:
//! ```text
//! %y.0 = f32[4,1024] dot(%h.0, %w), …
//! %sum.0 = f32[4,1024] all-reduce(%y.0), …
//! %y.1 = f32[4,1024] dot(%h.1, %w), …
//! %sum.1 = f32[4,1024] all-reduce(%y.1), …, control-predecessors={%sum.0}
//! %next.0 = f32[4,1024] tanh(%sum.0)
//! %next.1 = f32[4,1024] tanh(%sum.1)
//! ```
//! The samples `ir-samples/passes/split-microbatches/*.hlo` run this.
//!
//! **Why.** Where each operation needs the one before, links and processors wait for each other by turns. Two parts that do not need
//! each other keep both at work: one is summed while the other is multiplied.
//!
//! **What it does.** From a collective, a dim of its result is followed through all operations that compute each part of it from the
//! same part of their operands ([`region`]): elementwise ones, products along a dim that they do not sum over, reductions of other
//! dims, collectives along other dims. All of these are computed in parts. What enters is sliced; what leaves, because something needs
//! all of it (a weight's gradient sums over the batch), is put together ([`write`](mod@write)). A weight's gradient can be the sum of the
//! parts' gradients instead; the faster way is taken, or the one that `gradients=` names. Control dependencies keep a collective's parts in order, and keep XLA
//! from combining them again.
//!
//! **What it does not do.** Nothing is followed into or out of a loop, a call or a branch. Dims whose size the number of parts does not
//! divide stay. More parts need more memory for what leaves; the report has the peak.
//!
//! **Algorithm.** From the largest collective that is in no region yet, a region for each dim and each number of parts, on a copy of
//! the module; the fastest stays if the step is predicted to save `min-gain` of its time. At most 12 collectives are
//! begun from.
//!
//! **Requires** nothing. **Ensures** the same results; gradients that are sums of parts are added in another order (in `f32` where
//! they have 16 bits). **Errors**: a machine of another size than the module.
//!
//! **References.** Wang et al. 2024, *Domino: Eliminating Communication in LLM Training via Generic Tensor Slicing and Overlapping*
//! (arXiv:2409.15241), §3: there by hand, for one model's layers.

mod region;
mod write;

use crate::in_parts::{MIN_GAIN, Profit};
use crate::refusal::OptionError;
use hlo_analysis::Preserved;
use hlo_analysis::code::code_computations;
use hlo_ir::{InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{CollectiveChange, array};
use indexmap::IndexSet;
use region::{Region, Surroundings, find_region};
use write::Written;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "split-microbatches",
    help: "compute layers on parts of the batch, so that the collectives of one part run while another is computed",
    options: OPTIONS,
    build: |options| Ok(Box::new(SplitMicrobatches::new(options)?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "parts",
        kind: OptionKind::Int,
        default: "0",
        help: "how many parts; 0: two or four, whichever is predicted to be faster",
    },
    OptionInfo {
        name: "gradients",
        kind: OptionKind::Word(&["auto", "joined", "summed"]),
        default: "auto",
        help: "products that sum over the parts: joined: of the parts put together; summed: the sum of the parts' products; auto: the faster",
    },
    OptionInfo {
        name: "profit",
        kind: OptionKind::Word(&["auto", "always"]),
        default: "auto",
        help: "auto: where the step is predicted to be faster; always: from each collective the fastest way there is",
    },
    MIN_GAIN,
];

/// Collectives from which regions are begun, at most.
const MOST_SEEDS: usize = 12;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct SplitMicrobatches {
    n_parts: Vec<usize>,
    /// Whether products that sum over the parts are sums of products: the ways to try.
    sums_gradients: Vec<bool>,
    profit: Profit,
}

/// A region in parts, on a copy of the module.
struct Candidate {
    region: Region,
    sums_gradients: bool,
    written: Written,
    after_s: f64,
}

impl SplitMicrobatches {
    fn new(options: &Options) -> Result<SplitMicrobatches, OptionError> {
        let n_parts = match options.int("parts") {
            0 => vec![2, 4],
            1 => return Err(OptionError::OnePart),
            n => vec![usize::try_from(n).unwrap_or(usize::MAX)],
        };
        let sums_gradients = match options.text("gradients") {
            "joined" => vec![false],
            "summed" => vec![true],
            _ => vec![false, true],
        };
        Ok(SplitMicrobatches { n_parts, sums_gradients, profit: Profit::new(options)? })
    }

    /// The fastest of the regions that begin at a collective.
    fn fastest(&self, module: &Module, seed: InstId, cx: &mut PassCx<'_>) -> Result<Option<Candidate>, PassError> {
        let rank = array(module, seed).map_or(0, |shape| shape.rank());
        let around = Surroundings::of(module, seed);
        let mut best: Option<Candidate> = None;
        for (dim, &n) in (0..rank).flat_map(|dim| self.n_parts.iter().map(move |n| (dim, n))) {
            let Some(region) = find_region(&around, seed, dim, n) else { continue };
            // Without such products both ways are one.
            let ways = if region.sums.is_empty() { &[false][..] } else { &self.sums_gradients };
            for &sums_gradients in ways {
                cx.check_deadline()?;
                let written = write::write(module, &region, sums_gradients)?;
                cx.analyses.invalidate(Preserved::NONE);
                let after_s = cx.predicted_s(&written.module)?;
                if best.as_ref().is_none_or(|best| after_s < best.after_s) {
                    best = Some(Candidate { region: region.clone(), sums_gradients, written, after_s });
                }
            }
        }
        cx.analyses.invalidate(Preserved::NONE);
        Ok(best)
    }
}

impl Pass for SplitMicrobatches {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut seen, mut n_begun, mut n_split) = (IndexSet::new(), 0, 0);
        let mut before_s = None;
        while let Some(seed) = next_seed(module, &seen).filter(|_| self.profit.is_forced || n_begun < MOST_SEEDS) {
            seen.insert(seed);
            n_begun += 1;
            let now_s = match before_s {
                Some(known) => known,
                None => *before_s.insert(cx.predicted_s(module)?),
            };
            let Some(best) = self.fastest(module, seed, cx)? else { continue };
            seen.extend(best.region.collectives(module));
            let times = [now_s * 1e9, best.after_s * 1e9];
            let name = module.inst_name(seed);
            if let Some(gain) = self.profit.obstacle(now_s, best.after_s) {
                let reason =
                    format!("in {} parts along dim {} of %{name} the step {gain}", best.region.n, best.region.dim);
                cx.report.decisions.push(Decision::about(module, seed, "left", reason).with_step_times(times));
                continue;
            }
            let leaving = match best.sums_gradients {
                true => "what sums over the parts is added up",
                false => "what needs all parts gets them together",
            };
            let (n, s) = (best.region.members.len(), if best.region.members.len() == 1 { "" } else { "s" });
            let reason = format!(
                "{n} instruction{s} in {} parts along dim {} of %{name}; {leaving}",
                best.region.n, best.region.dim
            );
            let mut decision = Decision::about(module, seed, "in parts", reason).with_step_times(times);
            let old =
                best.region.collectives(module).map(|inst| CollectiveChange::removed(module, inst, "runs in parts"));
            decision.collectives.extend(old);
            let why = "runs while another part is computed";
            let new =
                best.written.collectives.iter().map(|&new| CollectiveChange::inserted(&best.written.module, new, why));
            decision.collectives.extend(new);
            cx.report.decisions.push(decision);
            n_split += best.region.collectives(module).count() as u64;
            seen.extend(best.written.collectives.iter().copied());
            *module = best.written.module;
            before_s = Some(best.after_s);
        }
        cx.report.count("collectives-in-parts", n_split);
        cx.analyses.invalidate(Preserved::NONE);
        if n_split == 0 {
            let why = "no collective is hidden behind another part of the batch";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// The largest collective that was not yet seen.
fn next_seed(module: &Module, seen: &IndexSet<InstId>) -> Option<InstId> {
    let mut found: Option<(u64, InstId)> = None;
    for comp in code_computations(module) {
        let live = module.live(comp);
        for &inst in module.comp(comp).insts.iter().filter(|&&inst| live.contains(inst) && !seen.contains(&inst)) {
            let bytes = module.shape(inst).size_bytes();
            let is_larger = found.is_none_or(|(most, _)| bytes > most);
            if is_larger && region::is_collective(module, inst) {
                found = Some((bytes, inst));
            }
        }
    }
    found.map(|(_, inst)| inst)
}
