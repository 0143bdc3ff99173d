//! One line on stderr where the predicted time says that another command is better.

use crate::presets;
use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::time::predict;
use hlo_ir::Module;
use hlo_pass::STACK_BYTES;
use hlo_pass::fastest::Ways;
use hlo_pass::pipeline::{OptionValue, PassCall};
use hlo_pass::report::{Candidate, WayChoice};
use hlo_pass::runner::RunOptions;
use std::thread::JoinHandle;

/// The least share of the predicted time that is worth a line.
const LEAST_SHARE: f64 = 1e-3;

const DATA_PARALLEL: &str = "data-parallel";
const SHARDED_STATE: &str = "sharded-state";
const OBJECTIVE: &str = "objective";

/// The options of a sharding that say what time is predicted for.
const OPTIONS_OF_TIME: [&str; 3] = ["cluster", "device", "unknown-trip-count"];

/// What is kept of a run's beginning for a line about its result.
pub(crate) enum Notes {
    /// A pipeline that names the sharding: the module as it came, priced on a thread of its own, and the options about time.
    Sharding { unsharded: JoinHandle<Option<Unsharded>>, options: Vec<(String, OptionValue)> },
    /// The preset `data-parallel`, with its options.
    DataParallel(Vec<(String, OptionValue)>),
}

/// A module without the sharding: how it is priced, and the price.
pub(crate) struct Unsharded {
    ways: Ways,
    choice: WayChoice,
}

impl Unsharded {
    /// `None` where something stops the comparison, which is no matter of the user's pipeline.
    fn price(mut module: Module, params: ParamFacts, options: &[(String, OptionValue)]) -> Option<Unsharded> {
        let ways = presets::unsharded(options).ok()?;
        let (_, choice) = ways.run(&mut module, &mut Analyses::new(params), RunOptions::default()).ok()?;
        Some(Unsharded { ways, choice })
    }
}

impl Notes {
    /// For the preset `data-parallel`, and for a pipeline in which one of `calls` names the sharding.
    pub(crate) fn keep(
        module: &Module,
        params: &ParamFacts,
        preset: Option<&PassCall>,
        calls: &[PassCall],
    ) -> Option<Notes> {
        let is_of_time =
            |(name, _): &&(String, OptionValue)| OPTIONS_OF_TIME.contains(&name.replace('_', "-").as_str());
        match preset {
            Some(call) if call.name == DATA_PARALLEL && calls.is_empty() => {
                let options = call.options.iter().filter(|(name, _)| name != OBJECTIVE);
                Some(Notes::DataParallel(options.cloned().collect()))
            }
            Some(_) => None,
            None => {
                let sharding = calls.iter().find(|call| presets::is_sharding(call))?;
                let options: Vec<_> = sharding.options.iter().filter(is_of_time).cloned().collect();
                let (module, params, known) = (module.clone(), params.clone(), options.clone());
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                let unsharded = thread.spawn(move || Unsharded::price(module, params, &known)).ok()?;
                Some(Notes::Sharding { unsharded, options })
            }
        }
    }

    /// The line about the result, if another command is better. `choice` is the preset's.
    pub(crate) fn about(self, after: &Module, choice: Option<&WayChoice>) -> Option<String> {
        match self {
            Notes::Sharding { unsharded, options } => if_slower(&unsharded.join().ok()??, after, &options),
            Notes::DataParallel(options) => if_whole(&options, choice?),
        }
    }
}

/// For a sharded module that is predicted to be slower than the module with its collectives combined.
fn if_slower(unsharded: &Unsharded, after: &Module, options: &[(String, OptionValue)]) -> Option<String> {
    let Unsharded { ways, choice } = unsharded;
    let before_s = choice.taken()?.critical_path_s;
    let frequencies = Frequencies::compute(after, ways.frequency_options);
    let after_s = predict(after, &frequencies, &ways.machine).ok()?.critical_path_s;
    (after_s > before_s * (1.0 + LEAST_SHARE)).then(|| {
        format!(
            "a step is predicted to take {} now, and {} without the sharding ({}); --preset '{}' does what is predicted to \
             be fastest",
            us(after_s),
            us(before_s),
            choice.machine,
            presets::text(DATA_PARALLEL, options),
        )
    })
}

/// For a data-parallel step whose updates all stay whole: whether it is faster with its state in shards.
fn if_whole(options: &[(String, OptionValue)], choice: &WayChoice) -> Option<String> {
    let taken = choice.taken().filter(|taken| !taken.pipeline.contains(presets::SHARDING))?;
    let state = choice.candidates.iter().find(|candidate| candidate.way == presets::STATE_IN_SHARDS);
    let is_faster = |state: &&Candidate| state.critical_path_s < taken.critical_path_s * (1.0 - LEAST_SHARE);
    let end = match state.filter(is_faster) {
        Some(state) => format!(
            "with its state in shards between steps {}: --preset '{}' -o DIRECTORY",
            us(state.critical_path_s),
            presets::text(SHARDED_STATE, options)
        ),
        None => "with its state in shards between steps it is no faster".to_string(),
    };
    let (machine, time) = (&choice.machine, us(taken.critical_path_s));
    Some(format!("no update is predicted to be faster in shards ({machine}): a step takes {time}; {end}"))
}

fn us(seconds: f64) -> String {
    format!("{:.1} µs", seconds * 1e6)
}
