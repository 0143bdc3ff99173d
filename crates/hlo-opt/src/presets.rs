//! Pipelines with a name, for `--preset`.
//!
//! A preset has several ways to run a module, and takes the one that is predicted to be fastest ([`hlo_pass::fastest`]). The
//! passes before the sharding make each gradient one array that is summed once, outside of accumulation loops, and what such a
//! loop makes of the weights in every iteration is computed before it;
//! `sink-all-reduce` runs twice because merged sums can be moved again.

use crate::baseline::as_xla_compiles;
use crate::preset_options::{
    AUTO, BY_TIME, DEVICES, MOST_MEMORY, OF_SEARCH, OF_STATE, OPTIONS_OF_SEARCH, OPTIONS_OF_STATE, PINS, STATE, TF32,
    WITHIN_MEMORY,
};
use crate::report::Pricing;
use crate::{Failure, descriptions, registry};
use hlo_gpu::lower::Matmul;
use hlo_pass::Target;
use hlo_pass::fastest::{AsCompiled, LEAST_GAIN, MemoryBound, SPARE_BYTES, Way, Ways};
use hlo_pass::options::{OptionInfo, Options};
use hlo_pass::pipeline::{OptionValue, PassCall, PipelineError, nearest, parse_pipeline};
use hlo_pass::runner::bind;
use std::fmt::Write;

/// What the GPU backend lowers best.
pub const GPU: &str = "expand-operations,inline-calls,simplify-tuples,scatter-to-select,simplify-algebra,cse,convolution-to-dot,split-convolutions,dce,propagate-layouts,pad-products,fuse";

/// [`GPU`] for products of f32 that are computed so.
pub(crate) fn gpu_passes(matmul: Matmul) -> String {
    match matmul {
        Matmul::F32 => GPU.to_string(),
        Matmul::Tf32 => GPU.replace("pad-products,fuse", "pad-products{tf32=true},fuse{tf32=true}"),
    }
}

const PADDING: &str = "pad-products";
const FUSING: &str = "fuse";

/// The pass that takes a preset's options.
pub(crate) const SHARDING: &str = "shard-weight-update";

pub(crate) const PARTITIONING: &str = "spmd-partition";
const SEARCHING: &str = "search-parallelization";
const SPLITTING: &str = "split-microbatches";
const GATHERING_AGAIN: &str = "rematerialize-all-gather";

/// The least share of the predicted time that another way to partition than the first has to save.
const LEAST_GAIN_OF_PARTITION: f64 = 0.01;

/// What makes each gradient one array that is summed once, before the sharding.
pub const PREPARE: &str = "inline-calls,simplify-tuples,scatter-to-select,hoist-invariants,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
                       fold-all-reduce-of-all-reduce,sink-all-reduce,flatten-update,all-reduce-to-reduce-scatter,shrink-collectives,dce";
/// State crosses the interface in shards. Weights in shards are gathered in the type in which loops take them.
macro_rules! state {
    ($options:literal) => {
        concat!("hoist-conversions,shard-weight-update{", $options, "},dce")
    };
}
const SHARD_STATE: &str = state!("state=auto");
const SHARD_STATE_THAT_PAYS: &str = state!("state=auto,profit=auto");
const SHARD_OPTIMIZER: &str = state!("state=optimizer");
const SHARD_GRADIENTS: &str = state!("state=gradients");
const SHARD_PARAMETERS: &str = state!("state=parameters");
/// Under a memory limit, weights in shards are not kept from the forward to the backward pass.
const GATHER_AGAIN: &str = GATHERING_AGAIN;
/// Matrix updates that all devices repeat are shared out where that is faster; what is left to send goes in few collectives.
const COMBINE: &str = "distribute-matrix-updates,combine-collectives{mode=variadic}";

/// Layers that are cut within are computed on parts of the batch, so that one part's sums run while another is computed.
const IN_PARTS: &str = SPLITTING;
const IN_PARTS_COMBINED: &str = "split-microbatches,distribute-matrix-updates,combine-collectives{mode=variadic}";

/// Layers in a loop are gathered while the layer before runs.
const GATHER_AHEAD: &str = "pipeline-loop-collectives";
const GATHER_AHEAD_COMBINED: &str =
    "pipeline-loop-collectives,distribute-matrix-updates,combine-collectives{mode=variadic}";

/// The program of each device, of a global program whose shardings are propagated in some order, or are those of the user alone. Ops are
/// cut as is fastest on the machine, or so that devices receive the fewest bytes, or with few collectives: one more counts as much
/// as a link carries in two microseconds.
const SPMD_SHARDY: &str = "inline-calls,merge-slices,expand-batch-norms,propagate-shardings{order=shardy},spmd-partition{price=time},simplify-tuples,cse,dce";
const SPMD_SHARDY_BYTES: &str = "inline-calls,merge-slices,expand-batch-norms,propagate-shardings{order=shardy},spmd-partition,simplify-tuples,cse,dce";
const SPMD_SHARDY_LAUNCHES: &str = "inline-calls,merge-slices,expand-batch-norms,propagate-shardings{order=shardy},spmd-partition{launch-bytes=1MiB},simplify-tuples,cse,dce";
const SPMD_GSPMD: &str = "inline-calls,merge-slices,expand-batch-norms,propagate-shardings{order=gspmd},spmd-partition{price=time},simplify-tuples,cse,dce";
const SPMD_BEST: &str = "inline-calls,merge-slices,expand-batch-norms,propagate-shardings{order=best},spmd-partition{price=time},simplify-tuples,cse,dce";
const SPMD_USER: &str = "inline-calls,spmd-partition{price=time},simplify-tuples,cse,dce";
/// The program of each device by a searched plan with these options, partitioned as ops are fastest.
macro_rules! planned {
    ($options:literal) => {
        concat!(
            "inline-calls,merge-slices,expand-batch-norms,search-parallelization",
            $options,
            ",spmd-partition{price=time},simplify-tuples,cse,dce"
        )
    };
}

const PLAN_DATA_PARALLEL: &str = planned!("{plan=data-parallel}");
const PLAN_ZERO_1: &str = planned!("{plan=zero-1}");
const PLAN_ZERO_3: &str = planned!("{plan=zero-3}");
const PLAN_MEGATRON: &str = planned!("{plan=megatron}");
const PLAN_WHOLE: &str = planned!("{plan=whole}");
const PLAN_BEST: &str = planned!("{algebra=none}");
const PLAN_REWRITTEN: &str = planned!("{algebra=rewritten}");
/// The partitioner reduces partial sums where they arise; this reduces them once, and where they are smallest. What every iteration
/// of a loop exchanges alike is exchanged before it.
const EXCHANGE_ONCE: &str = "hoist-invariants{exchanges=true},sink-all-reduce,reassociate-all-reduce,sink-all-reduce,\
                             all-reduce-to-reduce-scatter,shrink-collectives,dce";
const SHARD_UPDATES: &str = "shard-weight-update{profit=auto},dce,combine-collectives{mode=variadic}";

/// The modules that a preset is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PresetInput {
    /// The program of each device.
    PerDevice,
    /// A program from before a partitioner: of all devices together, or of one device that is to become several.
    Global,
}

/// A preset as the command line knows it.
pub struct Preset {
    /// As `--preset` takes it.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub help: &'static str,
    /// The modules that it is about.
    input: PresetInput,
    /// What it takes in `{}`: its own `objective`, and options of the sharding.
    options: &'static [OptionInfo],
    /// The ways with `objective=time`.
    by_time: &'static [WayText],
    /// The ways with `objective=memory`.
    by_memory: ByMemory,
}

/// The ways with `objective=memory`, and which of them is taken.
enum ByMemory {
    /// There is no such objective.
    None,
    /// The one with the least peak; of several the fastest.
    Least(&'static [WayText]),
    /// The fastest that takes no more than the first: all have their state in the same form.
    Fastest(&'static [WayText]),
}

impl ByMemory {
    fn ways(&self) -> &'static [WayText] {
        match self {
            ByMemory::None => &[],
            ByMemory::Least(ways) | ByMemory::Fastest(ways) => ways,
        }
    }
}

/// One way to run a module.
struct WayText {
    name: &'static str,
    /// The number of the way that it continues.
    after: Option<usize>,
    role: Role,
    pipeline: &'static str,
}

/// When a preset takes a way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// If there is a memory limit, and it is the fastest within it. Such ways are the last ones of a preset.
    WithinLimit,
    /// If it is the fastest.
    Candidate,
    /// Never: it is there to be compared with.
    Reference,
    /// If all candidates need more memory than they may.
    LastResort,
}

const fn way(name: &'static str, after: Option<usize>, pipeline: &'static str) -> WayText {
    WayText { name, after, role: Role::Candidate, pipeline }
}

const fn within_limit(name: &'static str, after: Option<usize>, pipeline: &'static str) -> WayText {
    WayText { name, after, role: Role::WithinLimit, pipeline }
}

const fn reference(name: &'static str, after: Option<usize>, pipeline: &'static str) -> WayText {
    WayText { name, after, role: Role::Reference, pipeline }
}

const fn last_resort(name: &'static str, after: Option<usize>, pipeline: &'static str) -> WayText {
    WayText { name, after, role: Role::LastResort, pipeline }
}

/// The number of devices that calls name; a global program itself has one.
pub(crate) fn devices_of<'c>(calls: impl IntoIterator<Item = &'c PassCall>) -> usize {
    let options = calls.into_iter().flat_map(|call| &call.options);
    let named = options.filter(|(name, _)| name == DEVICES);
    named.filter_map(|(_, value)| value.as_text().parse().ok()).max().unwrap_or(1)
}

/// All presets.
pub const PRESETS: [Preset; 5] = [
    Preset {
        name: "data-parallel",
        input: PresetInput::PerDevice,
        help: "a data-parallel training step or loop: gradients summed once, updates sharded, the signature as it was",
        options: BY_TIME,
        by_time: &[
            way("as it is", None, ""),
            way("gradients summed once", None, PREPARE),
            way("gradients summed once, in few collectives", Some(1), COMBINE),
            way("updates in shards", Some(1), "shard-weight-update{profit=auto},dce"),
            way("updates in shards, few collectives", Some(3), COMBINE),
            reference("with --preset sharded-state", Some(1), SHARD_STATE),
            reference("with --preset sharded-state, few collectives", Some(5), COMBINE),
            way("gradients summed once, the batch in parts", Some(1), IN_PARTS),
            way("gradients summed once, the batch in parts, few collectives", Some(1), IN_PARTS_COMBINED),
            way("updates in shards, the batch in parts", Some(3), IN_PARTS),
            way("updates in shards, the batch in parts, few collectives", Some(3), IN_PARTS_COMBINED),
        ],
        by_memory: ByMemory::Least(&[
            way("as it is", None, ""),
            way("gradients summed once", None, PREPARE),
            way("updates in shards", Some(1), "shard-weight-update,dce"),
            way("updates in shards, few collectives", Some(2), COMBINE),
        ]),
    },
    Preset {
        name: "sharded-state",
        input: PresetInput::PerDevice,
        help: "the same, and state crosses the interface in shards, before and after it too; -o names a directory",
        options: OF_STATE,
        by_time: &[
            reference("as it is", None, ""),
            reference("gradients summed once", None, PREPARE),
            way("as it is, no state in shards", Some(0), WHOLE_STATE),
            way("gradients summed once, no state in shards", Some(1), WHOLE_STATE),
            way("state in shards where it pays", Some(1), SHARD_STATE_THAT_PAYS),
            way("state in shards where it pays, few collectives", Some(4), COMBINE),
            way("all state in shards", Some(1), SHARD_STATE),
            way("all state in shards, few collectives", Some(6), COMBINE),
            way("all state in shards, weights gathered twice", Some(6), GATHER_AGAIN),
            way("all state in shards, few collectives, weights gathered twice", Some(7), GATHER_AGAIN),
            way("all state in shards, layers gathered ahead", Some(6), GATHER_AHEAD),
            way("all state in shards, layers gathered ahead, few collectives", Some(6), GATHER_AHEAD_COMBINED),
            way("state=gradients", Some(1), SHARD_GRADIENTS),
            way("state=gradients, few collectives", Some(12), COMBINE),
            way("state=parameters", Some(1), SHARD_PARAMETERS),
            way("state=parameters, few collectives", Some(14), COMBINE),
            way("state=parameters, layers gathered ahead, few collectives", Some(14), GATHER_AHEAD_COMBINED),
            within_limit("state in shards as the limit asks", Some(1), SHARD_STATE_THAT_PAYS),
            within_limit("state in shards as the limit asks, few collectives", Some(17), COMBINE),
            within_limit("state in shards as the limit asks, layers gathered ahead", Some(17), GATHER_AHEAD),
            within_limit(
                "state in shards as the limit asks, layers gathered ahead, few collectives",
                Some(17),
                GATHER_AHEAD_COMBINED,
            ),
        ],
        by_memory: ByMemory::Fastest(&[
            reference("as it is", None, ""),
            reference("gradients summed once", None, PREPARE),
            way("all state in shards", Some(1), SHARD_STATE),
            way("all state in shards, few collectives", Some(2), COMBINE),
            way("all state in shards, weights gathered twice", Some(2), GATHER_AGAIN),
            way("all state in shards, layers gathered ahead", Some(2), GATHER_AHEAD),
            way("all state in shards, layers gathered ahead, few collectives", Some(2), GATHER_AHEAD_COMBINED),
            last_resort("as it is, no state in shards", Some(0), WHOLE_STATE),
        ]),
    },
    Preset {
        name: "auto-spmd",
        input: PresetInput::Global,
        help: "a global program, from before a partitioner: the program of each device, as few annotations and predictions say",
        options: WITHIN_MEMORY,
        by_time: &[
            way("shardings in Shardy's order, fewest bytes", None, SPMD_SHARDY_BYTES),
            way("shardings in Shardy's order", None, SPMD_SHARDY),
            way("shardings in Shardy's order, few exchanges", None, SPMD_SHARDY_LAUNCHES),
            way("shardings in GSPMD's order", None, SPMD_GSPMD),
            way("shardings that move the fewest bytes", None, SPMD_BEST),
            way("the user's shardings alone", None, SPMD_USER),
            way("shardings in Shardy's order, fewest bytes, few collectives", Some(0), COMBINE),
            way("shardings in Shardy's order, few collectives", Some(1), COMBINE),
            way("shardings in Shardy's order, few exchanges, few collectives", Some(2), COMBINE),
            way("shardings in GSPMD's order, few collectives", Some(3), COMBINE),
            way("shardings that move the fewest bytes, few collectives", Some(4), COMBINE),
            way("the user's shardings alone, few collectives", Some(5), COMBINE),
            way("shardings in Shardy's order, fewest bytes, exchanges once", Some(0), EXCHANGE_ONCE),
            way("shardings in Shardy's order, exchanges once", Some(1), EXCHANGE_ONCE),
            way("shardings in Shardy's order, fewest bytes, exchanges once, few collectives", Some(12), COMBINE),
            way("shardings in Shardy's order, exchanges once, few collectives", Some(13), COMBINE),
            way("shardings in Shardy's order, fewest bytes, updates in shards", Some(0), SHARD_UPDATES),
            way("shardings in Shardy's order, updates in shards", Some(1), SHARD_UPDATES),
            way("the user's shardings alone, updates in shards", Some(5), SHARD_UPDATES),
            way(
                "shardings in Shardy's order, fewest bytes, exchanges once, the batch in parts",
                Some(12),
                IN_PARTS_COMBINED,
            ),
            way("shardings in Shardy's order, exchanges once, the batch in parts", Some(13), IN_PARTS_COMBINED),
        ],
        by_memory: ByMemory::Least(&[
            way("shardings in Shardy's order, fewest bytes", None, SPMD_SHARDY_BYTES),
            way("shardings in Shardy's order, fewest bytes, updates in shards", Some(0), "shard-weight-update,dce"),
        ]),
    },
    Preset {
        name: "auto-parallel",
        input: PresetInput::Global,
        help: "a global program without shardings: the program of each device, by the plan, searched or as people make it, that is predicted to be fastest",
        options: OF_SEARCH,
        by_time: &[
            way("data parallel", None, PLAN_DATA_PARALLEL),
            way("the best plan", None, PLAN_BEST),
            // The plan's price knows no overlap, and not what the passes below save: plans that people make compete.
            way("ZeRO-1", None, PLAN_ZERO_1),
            way("ZeRO-3", None, PLAN_ZERO_3),
            way("Megatron", None, PLAN_MEGATRON),
            way("data parallel, exchanges once", Some(0), EXCHANGE_ONCE),
            way("the best plan, exchanges once", Some(1), EXCHANGE_ONCE),
            way("ZeRO-1, exchanges once", Some(2), EXCHANGE_ONCE),
            way("ZeRO-3, exchanges once", Some(3), EXCHANGE_ONCE),
            way("Megatron, exchanges once", Some(4), EXCHANGE_ONCE),
            way("the best plan, few collectives", Some(1), COMBINE),
            way("data parallel, exchanges once, few collectives", Some(5), COMBINE),
            way("the best plan, exchanges once, few collectives", Some(6), COMBINE),
            way("ZeRO-1, exchanges once, few collectives", Some(7), COMBINE),
            way("ZeRO-3, exchanges once, few collectives", Some(8), COMBINE),
            way("Megatron, exchanges once, few collectives", Some(9), COMBINE),
            way("the best plan with branches made one", None, PLAN_REWRITTEN),
            way("the best plan with branches made one, exchanges once", Some(16), EXCHANGE_ONCE),
            way("the best plan with branches made one, exchanges once, few collectives", Some(17), COMBINE),
            way("the best plan, exchanges once, the batch in parts", Some(6), IN_PARTS_COMBINED),
            way("Megatron, exchanges once, the batch in parts", Some(9), IN_PARTS_COMBINED),
            way("the whole step on every device", None, PLAN_WHOLE),
        ],
        by_memory: ByMemory::None,
    },
    Preset {
        name: "gpu",
        input: PresetInput::PerDevice,
        help: "a per-device module as the GPU backend takes it; --emit other than hlo runs it last",
        options: &[TF32],
        by_time: &[way("fused", None, GPU)],
        by_memory: ByMemory::None,
    },
];

/// The forms that `plan zero` compares, each in several ways of the same name: the fastest one counts.
const ZERO: Preset = Preset {
    name: "zero",
    input: PresetInput::PerDevice,
    help: "state whole, or in shards",
    options: BY_TIME,
    by_time: &[
        reference("gradients summed once", None, PREPARE),
        way("replicated", Some(0), ""),
        way("replicated", Some(0), COMBINE),
        way("optimizer", Some(0), SHARD_OPTIMIZER),
        way("optimizer", Some(3), COMBINE),
        way("gradients", Some(0), SHARD_GRADIENTS),
        way("gradients", Some(5), COMBINE),
        way("parameters", Some(0), SHARD_PARAMETERS),
        way("parameters", Some(7), COMBINE),
        way("parameters", Some(7), GATHER_AHEAD),
        way("parameters", Some(7), GATHER_AHEAD_COMBINED),
        way("parameters", Some(7), GATHER_AGAIN),
        way("parameters", Some(8), GATHER_AGAIN),
        way("auto", Some(0), SHARD_STATE),
        way("auto", Some(13), COMBINE),
        way("auto", Some(0), SHARD_STATE_THAT_PAYS),
        way("auto", Some(15), COMBINE),
        within_limit("auto", Some(0), SHARD_STATE_THAT_PAYS),
        within_limit("auto", Some(17), COMBINE),
        within_limit("auto", Some(17), GATHER_AHEAD_COMBINED),
    ],
    by_memory: ByMemory::None,
};

/// The ways of `plan zero` for a target.
///
/// # Errors
/// As [`ways`].
pub(crate) fn zero_ways(target: Target) -> Result<Ways, Failure> {
    ZERO.ways(&[], target)
}

/// What a module that a named pass makes is compared with.
const UNSHARDED: Preset = Preset {
    name: "unsharded",
    input: PresetInput::PerDevice,
    help: "the module with its collectives combined",
    options: BY_TIME,
    by_time: &[way("as it is", None, ""), way("in few collectives", Some(0), COMBINE)],
    by_memory: ByMemory::None,
};

/// A sharded interface in which nothing is cut: no gradient has so many bytes.
const WHOLE_STATE: &str = "shard-weight-update{state=auto,min-bytes=8589934591GiB}";

/// Whether a call names the pass that presets are about.
pub(crate) fn is_sharding(call: &PassCall) -> bool {
    call.name.replace('_', "-") == SHARDING
}

/// The modules that the preset of a call is about.
pub(crate) fn input_of(call: &PassCall) -> PresetInput {
    let preset = PRESETS.iter().find(|preset| preset.name == call.name.replace('_', "-"));
    preset.map_or(PresetInput::PerDevice, |preset| preset.input)
}

/// The call of a preset given as `NAME` or `NAME{option=value,…}`.
///
/// # Errors
/// The text is no call, or more than one: usage.
pub(crate) fn parse(text: &str) -> Result<PassCall, Failure> {
    let mut calls = parse_pipeline(text).map_err(usage)?;
    match (calls.pop(), calls.len()) {
        (Some(call), 0) => Ok(call),
        (_, more) => Err(Failure::Usage(format!("--preset: expected one preset, found {} in `{text}`", more + 1))),
    }
}

/// The call with what `--matmul` says, of a preset that takes it and whose options do not say it.
pub(crate) fn fill_matmul(call: &mut PassCall, matmul: Matmul) {
    let mut taken = PRESETS.iter().filter(|preset| preset.name == call.name).flat_map(|preset| preset.options);
    let is_open = call.options.iter().all(|(name, _)| name != TF32.name);
    if matmul == Matmul::Tf32 && is_open && taken.any(|option| option.name == TF32.name) {
        call.options.push((TF32.name.into(), OptionValue::Set));
    }
}

/// The ways of a preset.
///
/// # Errors
/// No preset has this name, or an option is wrong: usage. A description that cannot be read.
pub(crate) fn ways(call: &PassCall, target: Target) -> Result<Ways, Failure> {
    let Some(preset) = PRESETS.iter().find(|preset| preset.name == call.name) else {
        let names = || PRESETS.iter().map(|preset| preset.name);
        let near = nearest(&call.name, names()).map_or(String::new(), |near| format!(", did you mean `{near}`?"));
        let all = names().collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("--preset: expected one of {all}, found `{}`{near}", call.name)));
    };
    preset.ways(&call.options, target)
}

/// Two ways to run the module without sharding: as it is, and with its collectives combined.
///
/// # Errors
/// As [`ways`].
pub(crate) fn unsharded(target: Target) -> Result<Ways, Failure> {
    UNSHARDED.ways(&[], target)
}

/// How the module that a pipeline makes is priced for a target.
pub(crate) fn pricing(target: Target) -> Pricing {
    Pricing { machine: target.machine, frequency_options: target.frequency, as_compiled: Some(as_xla_compiles) }
}

fn usage(error: PipelineError) -> Failure {
    Failure::Usage(format!("--preset: {error}"))
}

/// Returns the value of `state=` in a call of the sharding.
fn state_of(call: &PassCall) -> Option<String> {
    let (_, value) = call.options.iter().find(|(name, _)| call.name == SHARDING && name == STATE)?;
    Some(value.as_text().to_string())
}

/// Has a call that leaves it open keep `state` in shards. Returns whether the call agrees with it.
fn say_state(call: &mut PassCall, state: Option<&str>) -> bool {
    let (Some(state), Some(said)) = (state, state_of(call)) else { return true };
    if said != AUTO {
        return said == state;
    }
    for (name, value) in &mut call.options {
        if name == STATE {
            *value = OptionValue::Text(state.into());
        }
    }
    true
}

impl Preset {
    /// What it takes in braces.
    pub(crate) fn options(&self) -> &'static [OptionInfo] {
        self.options
    }

    fn ways(&self, given: &[(String, OptionValue)], target: Target) -> Result<Ways, Failure> {
        let read = descriptions::read_all(given)?;
        let options = Options::check(self.name, self.options, &read).map_err(usage)?;
        let by_memory = self.by_memory.ways();
        let is_for_memory = !by_memory.is_empty() && options.text("objective") == "memory";
        let texts = if is_for_memory { by_memory } else { self.by_time };
        // Ways that a limit asks for are the last ones.
        let n_asked = match target.memory_limit {
            Some(_) => texts.len(),
            None => texts.iter().position(|text| text.role == Role::WithinLimit).unwrap_or(texts.len()),
        };
        let state = self.options.iter().any(|option| option.name == STATE).then(|| options.text(STATE));
        let state = state.filter(|&state| state != AUTO);
        let mut ways = Vec::with_capacity(n_asked);
        // The number that a way has among those that fit what the user says of state.
        let mut numbers: Vec<Option<usize>> = Vec::with_capacity(n_asked);
        for text in &texts[..n_asked] {
            let mut calls = parse_pipeline(text.pipeline).map_err(usage)?;
            let after = text.after.map(|after| numbers.get(after).copied().flatten());
            // A user who names the state to shard gets it in shards, whatever the peak.
            let is_refused = text.role == Role::LastResort && state.is_some();
            if is_refused || after == Some(None) || !calls.iter_mut().all(|call| say_state(call, state)) {
                numbers.push(None);
                continue;
            }
            numbers.push(Some(ways.len()));
            for call in &mut calls {
                let keeps_state = state_of(call).is_some();
                let takes = |name: &str| match call.name.as_str() {
                    // Where nothing is cut there is nothing to pin.
                    SHARDING if name == PINS => keeps_state && text.pipeline != WHOLE_STATE,
                    SHARDING if OPTIONS_OF_STATE.contains(&name) => keeps_state,
                    SHARDING => name != "objective" && name != MOST_MEMORY && name != STATE,
                    PADDING | FUSING => name == TF32.name,
                    SEARCHING => OPTIONS_OF_SEARCH.contains(&name),
                    _ => false,
                };
                let is_new = |name: &str| call.options.iter().all(|(known, _)| known != name);
                let more: Vec<_> = given.iter().filter(|(name, _)| takes(name) && is_new(name)).cloned().collect();
                call.options.extend(more);
            }
            let pipeline = calls.iter().map(PassCall::to_string).collect::<Vec<_>>().join(",");
            calls.iter_mut().try_for_each(descriptions::read_into)?;
            let passes = bind(&calls, &registry::passes()).map_err(usage)?;
            let WayText { name, role, .. } = *text;
            let after = after.flatten();
            let (is_reference, is_last_resort) = (role == Role::Reference, role == Role::LastResort);
            // A sharding that the limit asks for is a way of its own.
            let keeps_limit = role == Role::WithinLimit || !calls.iter().any(is_sharding);
            ways.push(Way { name, after, is_reference, is_last_resort, keeps_limit, pipeline, passes });
        }
        let takes_memory = self.options.iter().any(|option| option.name == MOST_MEMORY);
        let takes_least_memory = is_for_memory && matches!(self.by_memory, ByMemory::Least(_));
        let most_memory = match (takes_memory, is_for_memory) {
            (_, true) => Some(MemoryBound { times: 1.0, spare_bytes: 0 }),
            (true, false) => Some(MemoryBound { times: options.float(MOST_MEMORY), spare_bytes: SPARE_BYTES }),
            (false, false) => None,
        };
        // Ways to partition are different programs, of which the first sends few bytes for certain; the others' gain is predicted.
        let partitions = takes_memory || self.options.iter().any(|option| option.name == DEVICES);
        let least_gain = if partitions { LEAST_GAIN_OF_PARTITION } else { LEAST_GAIN };
        let leaves_out_failures = partitions || target.memory_limit.is_some();
        // Our own back end runs a module as it is.
        let as_compiled: Option<AsCompiled> = (self.name != "gpu").then_some(as_xla_compiles);
        Ok(Ways { ways, target, as_compiled, takes_least_memory, most_memory, least_gain, leaves_out_failures })
    }
}

/// A line for each preset and, indented, its options and ways.
pub fn list() -> String {
    let mut out = String::from("\nPresets (--preset NAME, or --preset 'NAME{option=value}'):\n");
    for preset in &PRESETS {
        let _ = writeln!(out, "{}  {}", preset.name, preset.help);
        for option in preset.options {
            let value = format!("{}={}", option.name, option.kind.describe());
            let _ = writeln!(out, "    {value}  {} (default {})", option.help, option.default);
        }
        let by_memory = preset.by_memory.ways();
        let least = if matches!(preset.by_memory, ByMemory::Least(_)) {
            "the one with the least peak of"
        } else {
            "the fastest of"
        };
        for (objective, ways, taken) in [("time", preset.by_time, "the fastest of"), ("memory", by_memory, least)] {
            if !by_memory.is_empty() {
                let _ = writeln!(out, "    objective={objective}: {taken}");
            }
            for way in ways.iter().filter(|way| way.role != Role::Reference) {
                let mut pipeline = Vec::new();
                let mut next = Some(way);
                while let Some(way) = next {
                    pipeline.extend(Some(way.pipeline).filter(|text| !text.is_empty()));
                    next = way.after.and_then(|before| ways.get(before));
                }
                pipeline.reverse();
                let passes = if pipeline.is_empty() { "no pass".into() } else { pipeline.join(",") };
                let _ = writeln!(out, "      {}: {passes}", way.name);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_keep_the_state_in_shards_that_the_user_says() {
        let target = Target { memory_limit: Some(1 << 30), ..Target::unnamed().expect("a target") };
        let all = |text: &str| ways(&parse(text).expect("a preset"), target.clone()).expect("its ways").ways;
        for objective in ["time", "memory"] {
            for state in ["optimizer", "gradients", "parameters", "auto"] {
                let found = all(&format!("sharded-state{{objective={objective},state={state},pins=[0:whole]}}"));
                let said = format!("state={state}");
                let is_of_state = |way: &&Way| way.pipeline.contains("state=");
                let n_said = found.iter().filter(is_of_state).filter(|way| way.pipeline.contains(&said)).count();
                assert!(n_said > 0, "{objective}: {said}");
                if state != AUTO {
                    assert_eq!(n_said, found.iter().filter(is_of_state).count(), "{objective}: {said}");
                }
                for (number, way) in found.iter().enumerate() {
                    assert!(way.after.is_none_or(|before| before < number), "{}", way.name);
                    let is_whole = way.pipeline.contains("8589934591GiB");
                    let has_pins = way.pipeline.contains("pins=");
                    assert_eq!(has_pins, is_of_state(&way) && !is_whole, "{}: {}", way.name, way.pipeline);
                }
            }
        }
    }

    #[test]
    fn a_way_goes_on_from_the_one_that_its_name_begins_with() {
        let mut n_continued = 0;
        for preset in PRESETS.iter().chain([&ZERO, &UNSHARDED]) {
            for ways in [preset.by_time, preset.by_memory.ways()] {
                for (number, way) in ways.iter().enumerate() {
                    let Some(before) = way.after else { continue };
                    assert!(before < number, "{}: `{}` goes on from a later way", preset.name, way.name);
                    let before = &ways[before];
                    // What every way begins with is in no name.
                    let is_common = before.pipeline.is_empty() || before.pipeline == PREPARE;
                    let is_said = is_common || way.name.starts_with(before.name);
                    assert!(is_said, "{}: `{}` goes on from `{}`", preset.name, way.name, before.name);
                    n_continued += usize::from(!is_common);
                }
            }
        }
        assert!(n_continued > 30, "{n_continued}");
    }
}
