//! The placement under a memory limit: the search of [`crate::zero`] over modules that the pass makes.

use crate::error::WusError;
use crate::shard_weight_update::{ShardWeightUpdate, Sharded};
use crate::zero::{Chosen, Outcome, StateChoice, StateForm, StateUnit, Trial, choose, take};
use hlo_analysis::Analyses;
use hlo_analysis::memory::{MemorySizes, memory_sizes};
use hlo_ir::Module;
use hlo_ir::diag::Entity;
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{PassCx, PassError};

/// Instructions of the modules that a search may make beside those for prices: small modules are searched to the end.
const EFFORT_INSTS: usize = 400_000;

/// Most modules that it makes.
const MAX_EFFORT: usize = 4_000;

/// What is told of a gap: half of the last digit.
const LEAST_GAP_PS: f64 = 500.0;

/// A module as one choice has it, with what the pass says of it.
struct Made {
    module: Module,
    /// What is known of it: what the user said of parameters that are in shards now is forgotten.
    analyses: Analyses,
    report: PassReport,
    is_changed: bool,
}

impl ShardWeightUpdate {
    /// Shards a module in the way that saves the most time within `limit` bytes. Returns whether it changed.
    pub(crate) fn shard_within(&self, limit: u64, module: &mut Module, cx: &mut PassCx<'_>) -> Result<bool, PassError> {
        let (source, before) = (module.clone(), memory_sizes(module));
        let found = match self.state {
            Some(StateForm::Auto) => {
                let effort = (EFFORT_INSTS / source.n_instructions().max(1)).min(MAX_EFFORT);
                choose(limit, before.argument_bytes, &self.pinned().fixed, effort, &mut |choice| {
                    self.attempt(&source, choice, cx)
                })?
            }
            Some(StateForm::Optimizer | StateForm::Gradients | StateForm::Parameters) | None => {
                take(limit, self.attempt(&source, &self.pinned(), cx)?)
            }
        };
        let chosen = match found {
            Outcome::Chosen(chosen) => *chosen,
            Outcome::NothingFits(least) => {
                let whole = before.peak_bytes;
                return Err(WusError::NothingFits { limit, least, whole }.about(Entity::Module));
            }
        };
        let told = tell(&chosen, limit, &source, &before);
        let (peak_bytes, gap_ps, n_tried) = (chosen.trial.peak_bytes, chosen.gap_ps(), chosen.n_tried as u64);
        let Made { module: made, analyses, report, is_changed } = chosen.trial.made;
        let PassReport { unchanged_because, decisions, stats, files, .. } = report;
        (*module, *cx.analyses) = (made, analyses);
        cx.report.decisions.push(told);
        cx.report.decisions.extend(decisions);
        (cx.report.unchanged_because, cx.report.stats, cx.report.files) = (unchanged_because, stats, files);
        cx.report.count("peak-bytes", peak_bytes);
        cx.report.count("placements-made", n_tried);
        if let Some(gap_ps) = gap_ps {
            cx.report.count("gap-ps", gap_ps.round() as u64);
        }
        Ok(is_changed)
    }

    /// Makes and measures the module of one choice; `None` where that is impossible.
    fn attempt(
        &self,
        source: &Module,
        choice: &StateChoice,
        cx: &PassCx<'_>,
    ) -> Result<Option<Trial<Made>>, PassError> {
        let (mut module, mut analyses, mut report) =
            (source.clone(), cx.analyses.clone(), PassReport::new(&cx.report.pass));
        let mut inner = PassCx::new(&mut analyses, &mut report, cx.target);
        inner.deadline = cx.deadline;
        let Sharded { is_changed, is_possible, gain_ps, whole_ps, rounding_ps, n_problems, state, .. } =
            self.shard_all(&mut module, choice, &mut inner)?;
        if !is_possible {
            return Ok(None);
        }
        let peak_bytes = memory_sizes(&module).peak_bytes;
        Ok(Some(Trial {
            gain_ps,
            whole_ps,
            rounding_ps,
            is_one_problem: n_problems < 2,
            state,
            peak_bytes,
            made: Made { module, analyses, report, is_changed },
        }))
    }
}

/// What was chosen, and how far from the best it may be.
fn tell(chosen: &Chosen<Made>, limit: u64, source: &Module, before: &MemorySizes) -> Decision {
    let trial = &chosen.trial;
    let params = trial.state.iter().filter(|(unit, _)| matches!(unit, StateUnit::Param(_)));
    let n_sharded = params.clone().filter(|(_, form)| form.is_sharded).count();
    let open = match chosen.gap_ps() {
        Some(gap_ps) if gap_ps < LEAST_GAP_PS => "no choice of what is in shards that fits is faster".to_string(),
        Some(gap_ps) => format!("what fits may be up to {:.3} us faster", gap_ps / 1e6),
        None => {
            "how far from the best is not known, since gradients are summed over several sets of groups".to_string()
        }
    };
    Decision {
        subject: "state".into(),
        bytes: trial.peak_bytes,
        computation: source.entry().map(|entry| source.comp_name(entry).into()).unwrap_or_default(),
        action: "chosen".into(),
        reason: format!(
            "{n_sharded} of {} parameters lie in shards: a device's peak is {} bytes of {limit} allowed, {} before; {open} ({} \
             placements made)",
            params.count(),
            trial.peak_bytes,
            before.peak_bytes,
            chosen.n_tried,
        ),
        ..Decision::default()
    }
    .with_step_times([trial.whole_ps / 1e3, (trial.whole_ps - trial.gain_ps) / 1e3])
}
