//! Put instructions into an order in which collectives run beside other work.
//!
//! Before, the sum is read right where it is made:
//! ```text
//! %g1 = f32[64,64] dot(%a, %dy)
//! %sum1 = f32[64,64] all-reduce(%g1)
//! %w1.new = f32[64,64] subtract(%w1, %sum1)
//! %dx = f32[8,64] dot(%dy, %w1)
//! ```
//! after, the next layer's work stands between:
//! ```text
//! %g1 = f32[64,64] dot(%a, %dy)
//! %sum1 = f32[64,64] all-reduce(%g1)
//! %dx = f32[8,64] dot(%dy, %w1)
//! …
//! %w1.new = f32[64,64] subtract(%w1, %sum1)
//! ```
//! The sample `ir-samples/passes/schedule-collectives/worked.hlo` runs this.
//!
//! **Why.** Where the text is the schedule, a collective hides behind what stands between its start and its end (`make-async` makes both). XLA for
//! GPUs orders anew: for it this pass is not needed.
//!
//! **Algorithm.** Orders are tried and priced as they stand ([`hlo_analysis::time::predict_as_ordered`], with pairs made): the text's; that in which the model of times
//! runs tasks when a list scheduler issues them freely, the longest chain first, what collectives need first, or as the text has them, whichever ends first; and the
//! text's with collectives begun as soon as their operands are there. Of those whose peak of memory is no higher than the text's (`most-memory`) the one that ends first is
//! taken, of nearly equal ones the one with the lower peak; of a module that is scheduled, where it ends sooner than the text. No two
//! collectives are in flight at once that share more than one device ([`hlo_analysis::in_flight`]). `n log n` in the module. The same module gives the same order.
//!
//! **What it does not do.** Loops and branches stay where they stand between other work only as far as their operands say; calls are not looked into: inline them before.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit, and a predicted time of the text as a schedule that is not longer, but where collectives met in it that may wait for each other for ever.
//! **Errors**: a machine of another size; a cluster or device that is none.
//!
//! References: Graham, *Bounds on Multiprocessing Timing Anomalies*, 1969 (list scheduling); Wang et al., ASPLOS 2023, section 5.2 (ordering starts and ends);
//! <https://github.com/openxla/xla/issues/19026>.

use super::order::{by_start, collectives_early};
use super::pairs::{make_pairs, put_ends_late};
use hlo_analysis::Preserved;
use hlo_analysis::code::code_computations;
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::in_flight::meetings;
use hlo_analysis::memory::memory_sizes;
use hlo_analysis::time::{predict_as_ordered, predict_starts};
use hlo_ir::Module;
use hlo_ir::diag::Entity;
use hlo_ir::op::Flow;
use hlo_mesh::{Machine, SizeMismatch};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "schedule-collectives",
    help: "put instructions into an order in which collectives run beside other work",
    options: &[OptionInfo {
        name: "most-memory",
        kind: OptionKind::Float,
        default: "1",
        help: "leave orders out whose peak of memory is more than this many times that of the text",
    }],
    build: |options| Ok(Box::new(ScheduleCollectives { most_memory: options.float("most-memory") })),
};

/// The order that the text has.
const TEXT: &str = "as the text has it";

/// That order, with each pair ended as late as can be, but before what may not be in flight beside it.
const APART: &str = "as the text has it, with pairs ended late";

/// Times that are nearer than this share of each other are taken as equal: then memory decides.
const EQUAL_TIMES: f64 = 0.001;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleCollectives {
    most_memory: f64,
}

/// An order, with what is predicted for it.
struct Ordered {
    how: &'static str,
    module: Module,
    time_s: f64,
    peak_bytes: u64,
}

/// Prices orders.
struct OrderPricer<'a> {
    frequencies: &'a Frequencies,
    machine: &'a Machine,
}

impl OrderPricer<'_> {
    /// What is predicted where the text is the schedule. A module without pairs is priced with them: in one piece no collective hides behind anything.
    fn priced(&self, how: &'static str, module: Module) -> Result<Ordered, SizeMismatch> {
        let time = match module.header.is_scheduled || has_pairs(&module) {
            true => predict_as_ordered(&module, self.frequencies, self.machine)?,
            false => {
                let mut paired = module.clone();
                make_pairs(&mut paired, 0);
                predict_as_ordered(&paired, self.frequencies, self.machine)?
            }
        };
        Ok(Ordered { how, time_s: time.critical_path_s, peak_bytes: memory_sizes(&module).peak_bytes, module })
    }

    /// The orders that are tried in the place of the text's.
    fn orders(&self, module: &Module) -> Result<Vec<Ordered>, SizeMismatch> {
        let starts_s = predict_starts(module, self.frequencies, self.machine)?;
        let (mut apart, mut timed, mut early) = (module.clone(), module.clone(), module.clone());
        for comp in code_computations(module) {
            timed.comp_mut(comp).insts = by_start(module, comp, &starts_s);
            early.comp_mut(comp).insts = collectives_early(module, comp);
            [&mut apart, &mut timed, &mut early].into_iter().for_each(|work| put_ends_late(work, comp));
        }
        let orders =
            [(APART, apart), ("as a list scheduler issues tasks", timed), ("with collectives begun early", early)];
        orders.into_iter().map(|(how, work)| self.priced(how, work)).collect()
    }
}

fn has_pairs(module: &Module) -> bool {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    insts.any(|&inst| matches!(module.inst(inst).opcode.row().flow, Flow::AsyncStart(_)))
}

impl Pass for ScheduleCollectives {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let frequencies = cx.analyses.frequencies(module);
        let wrong_size = |error: SizeMismatch| PassError::about("machine-size", Entity::Module, error.to_string());
        let pricer = OrderPricer { frequencies: &frequencies, machine: &cx.target.machine };
        let text = pricer.priced(TEXT, module.clone()).map_err(wrong_size)?;
        let mut orders = pricer.orders(module).map_err(wrong_size)?;
        // Where some may wait for each other for ever, any order without that is better.
        let is_unsafe = !meetings(module).is_empty();
        if is_unsafe {
            orders.retain(|order| meetings(&order.module).is_empty());
        } else {
            let most_bytes = ((text.peak_bytes as f64 * self.most_memory) as u64).max(text.peak_bytes);
            // A compiler that has scheduled has chosen where arrays lie in that order: it is another one for time alone.
            let gain = if module.header.is_scheduled { EQUAL_TIMES } else { 0.0 };
            orders.retain(|order| order.peak_bytes <= most_bytes && order.time_s <= text.time_s * (1.0 - gain));
        }
        let (text_s, text_bytes) = (text.time_s, text.peak_bytes);
        if !is_unsafe {
            orders.insert(0, text);
        }
        let least_s = orders.iter().map(|order| order.time_s).fold(f64::INFINITY, f64::min);
        // Of equal ones the first.
        let near = orders.into_iter().filter(|order| order.time_s <= least_s * (1.0 + EQUAL_TIMES));
        let Some(best) = near.min_by_key(|order| order.peak_bytes).filter(|best| best.how != TEXT) else {
            cx.report.unchanged_because = Some(match is_unsafe {
                true => "collectives are in flight at once that share devices, and no order that was tried parts them"
                    .into(),
                false => format!("no order ends before {:.1} us, as the text does", text_s * 1e6),
            });
            return Ok(Changed::No);
        };
        let reason = format!("{}: a peak of {} bytes, {text_bytes} before", best.how, best.peak_bytes);
        let told = Decision {
            subject: "order".into(),
            computation: module.entry().map(|entry| module.comp_name(entry).into()).unwrap_or_default(),
            action: "chosen".into(),
            reason,
            ..Decision::default()
        };
        cx.report.decisions.push(told.with_step_times([text_s * 1e9, best.time_s * 1e9]));
        *module = best.module;
        Ok(Changed::Yes(Preserved::NONE))
    }
}
