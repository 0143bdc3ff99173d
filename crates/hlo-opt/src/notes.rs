//! What is better than the command that was given: one line where the predicted time says so, and what a preset knows of another.

use crate::baseline::predict_compiled;
use crate::preset_options::MOST_MEMORY;
use crate::presets;
use crate::report::Recommendation;
use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_ir::Module;
use hlo_pass::fastest::Ways;
use hlo_pass::pipeline::{OptionValue, PassCall};
use hlo_pass::report::WayChoice;
use hlo_pass::runner::RunOptions;
use hlo_pass::{Deadline, STACK_BYTES, Target};
use std::thread::JoinHandle;

/// The least share of the predicted time that is worth a line.
const LEAST_SHARE: f64 = 1e-3;

/// The least share of the peak memory that is worth a line.
const LEAST_MEMORY_SHARE: f64 = 1e-2;

/// The largest share of the predicted time that less memory may cost.
const MOST_LOSS_SHARE: f64 = 0.1;

/// The least share of the predicted time for which more memory is worth a line.
const LEAST_SHARE_FOR_MEMORY: f64 = 0.05;

const DATA_PARALLEL: &str = "data-parallel";
const AUTO_SPMD: &str = "auto-spmd";
const SHARDED_STATE: &str = "sharded-state";
const OBJECTIVE: &str = "objective";

/// The module as it came, priced on a thread of its own, for a line about the result of a pipeline that names the sharding.
pub(crate) struct Notes {
    unsharded: JoinHandle<Option<Unsharded>>,
    /// The preset that does what is predicted to be fastest, as the command line takes it.
    preset: String,
}

/// A module without the sharding: how it is priced, and the price.
pub(crate) struct Unsharded {
    ways: Ways,
    choice: WayChoice,
}

impl Unsharded {
    /// `None` where something stops the comparison, which is no matter of the user's pipeline.
    fn price(mut module: Module, params: ParamFacts, ways: Ways, deadline: Deadline) -> Option<Unsharded> {
        let options = RunOptions { deadline, ..RunOptions::default() };
        let (_, choice) = ways.run(&mut module, &mut Analyses::new(params), options).ok()?;
        Some(Unsharded { ways, choice })
    }
}

impl Notes {
    /// For a pipeline in which one of `calls` names the sharding.
    pub(crate) fn keep(
        module: &Module,
        params: &ParamFacts,
        calls: &[PassCall],
        (target, words): (&Target, &str),
        deadline: Deadline,
    ) -> Option<Notes> {
        calls.iter().find(|call| presets::is_sharding(call))?;
        // Whether the unsharded module keeps a limit is another question.
        let target = Target { memory_limit: None, ..target.clone() };
        let (module, params, ways) = (module.clone(), params.clone(), presets::unsharded(target).ok()?);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let unsharded = thread.spawn(move || Unsharded::price(module, params, ways, deadline)).ok()?;
        Some(Notes { unsharded, preset: quoted(DATA_PARALLEL, &[], words) })
    }

    /// The line about the result, if another command is better.
    pub(crate) fn about(self, after: &Module) -> Option<String> {
        if_slower(&self.unsharded.join().ok()??, after, &self.preset)
    }
}

/// For a sharded module that is predicted to be slower than the module with its collectives combined.
fn if_slower(unsharded: &Unsharded, after: &Module, preset: &str) -> Option<String> {
    let Unsharded { ways, choice } = unsharded;
    let before_s = choice.taken()?.critical_path_s;
    let after_s = predict_compiled(after, ways.target.frequency, &ways.target.machine).ok()?.critical_path_s;
    (after_s > before_s * (1.0 + LEAST_SHARE)).then(|| {
        format!(
            "a step is predicted to take {} now, and {} without the sharding ({}); {preset} does what is predicted to \
             be fastest",
            us(after_s),
            us(before_s),
            choice.machine,
        )
    })
}

/// What a preset knows of another command: whether it is worth a try, and what it is predicted to gain.
pub(crate) fn recommendation(preset: &PassCall, choice: &WayChoice, words: &str) -> Option<Recommendation> {
    match preset.name.as_str() {
        DATA_PARALLEL => in_shards(preset, choice, words),
        AUTO_SPMD => with_more_memory(preset, choice, words),
        _ => None,
    }
}

/// What `auto-spmd` knows of a faster way that needs more memory than it may take.
fn with_more_memory(preset: &PassCall, choice: &WayChoice, words: &str) -> Option<Recommendation> {
    let (first, taken) = (choice.candidates.first()?, choice.taken()?);
    let ways = choice.candidates.iter().filter(|candidate| !candidate.is_reference);
    let fastest = ways.min_by(|a, b| a.critical_path_s.total_cmp(&b.critical_path_s))?;
    let [first_bytes, bytes] = [first.peak_bytes?, fastest.peak_bytes?];
    let peak_bytes = taken.peak_bytes.map(|now| [now, bytes]);
    let is_larger = peak_bytes.is_some_and(|[now, then]| now < then);
    let is_faster = fastest.critical_path_s < taken.critical_path_s * (1.0 - LEAST_SHARE_FOR_MEMORY);
    let most_memory = (bytes as f64 / first_bytes.max(1) as f64 * 10.0).ceil() / 10.0;
    // By memory, what takes the least is taken, whatever more may be used.
    let is_kept = |(name, _): &&(String, OptionValue)| name != MOST_MEMORY && name != OBJECTIVE;
    let mut options: Vec<_> = preset.options.iter().filter(is_kept).cloned().collect();
    options.push((MOST_MEMORY.into(), OptionValue::Text(most_memory.to_string())));
    let command = quoted(AUTO_SPMD, &options, words);
    let time_s = [taken.critical_path_s, fastest.critical_path_s];
    (is_larger && is_faster).then_some(Recommendation { command, time_s, peak_bytes })
}

/// What `data-parallel` knows of `sharded-state`.
fn in_shards(preset: &PassCall, choice: &WayChoice, words: &str) -> Option<Recommendation> {
    let taken = choice.taken()?;
    let others = choice.candidates.iter().filter(|candidate| candidate.is_reference);
    let other = others.min_by(|a, b| a.critical_path_s.total_cmp(&b.critical_path_s))?;
    let peak_bytes = taken.peak_bytes.zip(other.peak_bytes).map(|(now, then)| [now, then]);
    let time_s = [taken.critical_path_s, other.critical_path_s];
    let is_faster = time_s[1] < time_s[0] * (1.0 - LEAST_SHARE);
    let is_smaller = peak_bytes.is_some_and(|[now, then]| (then as f64) < now as f64 * (1.0 - LEAST_MEMORY_SHARE));
    let is_much_slower = time_s[1] > time_s[0] * (1.0 + MOST_LOSS_SHARE);
    let mut options: Vec<_> = preset.options.iter().filter(|(name, _)| name != OBJECTIVE).cloned().collect();
    if !is_smaller {
        // By memory, its default, it takes nothing that needs more.
        options.push((OBJECTIVE.into(), OptionValue::Text("time".into())));
    }
    let command = format!("{} -o DIRECTORY", quoted(SHARDED_STATE, &options, words));
    (is_faster || is_smaller && !is_much_slower).then_some(Recommendation { command, time_s, peak_bytes })
}

/// A preset with options behind the words about the target, as a shell takes them.
fn quoted(name: &str, options: &[(String, OptionValue)], words: &str) -> String {
    let text = PassCall { name: name.into(), options: options.to_vec() }.to_string();
    if options.is_empty() { format!("{words}--preset {text}") } else { format!("{words}--preset '{text}'") }
}

fn us(seconds: f64) -> String {
    format!("{:.1} µs", seconds * 1e6)
}
