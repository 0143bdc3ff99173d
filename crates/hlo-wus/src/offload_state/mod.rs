//! Keep the optimizer's state in the memory of the host, and bring each array to the device for its update alone.
//!
//! Before, a moment lies on the device for the whole step:
//! ```text
//! %m = f32[1024,1024] parameter(1)
//! …
//! %m.new = f32[1024,1024] add(%m.decayed, %g.scaled)
//! ```
//! after, for the moments of a few weights' updates:
//! ```text
//! %m = f32[1024,1024] parameter(1)                                   in the header: f32[1024,1024]{1,0:S(5)}
//! …
//! %both = (f32[1024,1024], f32[1024,1024]) tuple(%m, %g)
//! %late = (f32[1024,1024], f32[1024,1024]) opt-barrier(%both)
//! %m.late = f32[1024,1024] get-tuple-element(%late), index=0
//! %m.device = f32[1024,1024] custom-call(%m.late), custom_call_target="MoveToDevice"
//! %m.new = f32[1024,1024] add(%m.decayed, %g.scaled)
//! %m.host = f32[1024,1024] custom-call(%m.new), custom_call_target="MoveToHost"
//! ```
//! The sample `ir-samples/passes/offload-state/worked.hlo` runs this.
//!
//! **Why.** Moments are idle while the forward and the backward pass run, which is when the step needs most memory. The link to the host is slow, but a
//! copy engine works beside kernels.
//!
//! **Which arrays.** State is a parameter with a next value (an alias of the header, or `state-pairs`) that comes through no product which depends on the parameter, and on which less than half of the step's
//! products depend: a weight goes into products of which its gradient comes, a moment is added to. (Muon's momentum goes into products, but not its next value.)
//!
//! **When they come.** XLA copies as early as it can: with placements alone it brings all state to the device before the forward pass, which saves
//! nothing. So each array waits, behind an `opt-barrier`, for what its update needs last, and for the update before the one before it.
//! Updates are put together in the text: each as soon as its gradient is there, so that an array's copy on the device dies before the next ones come.
//!
//! **What it does not do.** It moves no activations, no parameters that are tuples, and nothing in loops: a stack of moments comes in one piece. Only arrays of at
//! least `min-bytes` are moved. A compiler that drops barriers before it schedules (XLA's for CPUs) may copy early all the same.
//!
//! **Algorithm.** For each candidate the instructions that depend on it, in one walk; the order of [`order`]; under a memory limit the largest arrays first, as few as keep
//! it; without one as many as have the least peak. `O(candidates · (instructions of their updates))`, and up to some forty analyses of memory.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit; the memory spaces of the entry's parameters and
//! results change. **Errors**: options that cannot be read, pairs that contradict aliases, a machine of another size, a
//! peak above the limit with all state on the host.
//!
//! References: Ren et al., *ZeRO-Offload: Democratizing Billion-Scale Model Training*, USENIX ATC 2021 (which state to offload, overlap); DeepSpeed DeepCompile, 2025 (adaptive
//! offloading by compiler).

mod find;
mod order;
mod write;

use crate::error::WusError;
use crate::pairs::{Pair, parse_pairs};
use find::{Found, State, find_state};
use hlo_analysis::Preserved;
use hlo_analysis::memory::memory_sizes;
use hlo_ir::Module;
use hlo_ir::diag::Entity;
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{Decision, MemoryChange};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use write::offload;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "offload-state",
    help: "keep optimizer state in the memory of the host, and bring each array to the device for its update alone",
    options: &[
        OptionInfo {
            name: "to",
            kind: OptionKind::Int,
            default: "0",
            help: "the peak to reach (30GiB): as few arrays as reach it, the largest first; 0: the memory limit, or without one all state",
        },
        OptionInfo {
            name: "min-bytes",
            kind: OptionKind::Int,
            default: "1MiB",
            help: "leave arrays smaller than this: each copy has a latency",
        },
        OptionInfo {
            name: "state-pairs",
            kind: OptionKind::Text,
            default: "",
            help: "which output is the next value of which parameter, beside the header's aliases, as [PARAM:OUTPUT,…]",
        },
    ],
    build: |options| Ok(Box::new(OffloadState::new(options)?)),
};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct OffloadState {
    /// The peak to reach; `None`: the memory limit.
    to: Option<u64>,
    min_bytes: u64,
    pairs: Vec<Pair>,
}

impl OffloadState {
    fn new(options: &Options) -> Result<OffloadState, WusError> {
        Ok(OffloadState {
            to: Some(options.int("to").unsigned_abs()).filter(|&bytes| bytes > 0),
            min_bytes: options.int("min-bytes").unsigned_abs(),
            pairs: parse_pairs(options.text("state-pairs"))?,
        })
    }
}

impl Pass for OffloadState {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let frequencies = cx.analyses.frequencies(module);
        let found = find_state(module, &frequencies, &self.pairs, self.min_bytes);
        let Found { mut states, left } = found.map_err(|error| error.about(Entity::Module))?;
        cx.report.count("state-arrays-seen", (states.len() + left.len()) as u64);
        cx.report.count("state-arrays-offloaded", 0);
        for (param, why) in left {
            cx.report.decisions.push(Decision::about(module, param, "left", why));
        }
        let before = memory_sizes(module);
        let goal = self.to.or(cx.target.memory_limit);
        if goal.is_some_and(|goal| before.peak_bytes <= goal) {
            let why = format!("{} bytes at the peak are within the limit", before.peak_bytes);
            cx.report.unchanged_because = Some(why);
            return Ok(Changed::No);
        }
        states.sort_by_key(|state| (std::cmp::Reverse(state.bytes), state.param_number));
        let made = make(module, &states, goal, cx)?;
        let least_bytes = made.as_ref().map_or(before.peak_bytes, |made| made.peak_bytes.min(before.peak_bytes));
        if let Some(goal) = goal.filter(|&goal| least_bytes > goal) {
            return Err(above_limit(goal, least_bytes, before.peak_bytes, states.len()));
        }
        let is_lower =
            |made: &Made| goal.is_some() || made.peak_bytes as f64 <= before.peak_bytes as f64 * (1.0 - LEAST_SAVED);
        let Some(made) = made.filter(is_lower) else {
            cx.report.unchanged_because = Some(match states.is_empty() {
                true => "no array of state is large enough, or the header does not say what is state; behind a call none is seen (inline-calls)".into(),
                false => format!("{} bytes at the peak, and hardly less with state on the host", before.peak_bytes),
            });
            return Ok(Changed::No);
        };
        let (n_states, peak_bytes) = (made.n_states, made.peak_bytes);
        let before_ns = cx.predicted_s(module)? * 1e9;
        let named = |state: &State| {
            let reason =
                format!("no gradient depends on it; it is on the device from %{} on", state.first_user(module));
            Decision::about(module, state.param, "offloaded", reason)
        };
        let decisions: Vec<Decision> = states.iter().take(n_states).map(named).collect();
        let moved_bytes: u64 = states.iter().take(n_states).map(|state| state.bytes).sum();
        *module = made.module;
        cx.analyses.invalidate(Preserved { frequencies: true, ..Preserved::NONE });
        let after_ns = cx.predicted_s(module)? * 1e9;
        let told = Decision {
            subject: "state".into(),
            bytes: moved_bytes,
            computation: module.entry().map(|entry| module.comp_name(entry).into()).unwrap_or_default(),
            action: "chosen".into(),
            reason: format!(
                "{n_states} of {} arrays lie in the memory of the host: a device's peak is {peak_bytes} bytes, {} before; each \
                 step copies {moved_bytes} bytes there and back",
                states.len(),
                before.peak_bytes,
            ),
            ..Decision::default()
        };
        cx.report.memory = Some(MemoryChange { peak_before_bytes: before.peak_bytes, peak_after_bytes: peak_bytes });
        cx.report.decisions.push(told.with_step_times([before_ns, after_ns]));
        cx.report.decisions.extend(decisions);
        cx.report.count("state-arrays-offloaded", n_states as u64);
        cx.report.count("host-bytes", moved_bytes);
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// The error where the peak stays above the limit.
fn above_limit(limit: u64, least_bytes: u64, before_bytes: u64, n_states: usize) -> PassError {
    let why = match n_states {
        0 => "no array of state is large enough (min-bytes), or the header does not say what is state (state-pairs)"
            .into(),
        n => format!("{before_bytes} before, and {n} arrays of state can lie on the host"),
    };
    PassError::above_limit(
        limit,
        least_bytes,
        format!(
            "{why}; allow a higher peak (--memory-limit, or to=), or shard the state first (--preset sharded-state)"
        ),
    )
}

/// A module with the first of the states on the host.
struct Made {
    module: Module,
    n_states: usize,
    peak_bytes: u64,
}

/// Numbers of arrays that are tried, from the largest array on.
const MAX_TRIES: usize = 32;

/// Without a limit, state stays where the peak is not lowered by this share: copies cost time.
const LEAST_SAVED: f64 = 0.01;

/// The fewest states on the host that keep the limit, the largest first. Without a limit, or where none keep it,
/// those with the least peak; `None` where there is no state.
fn make(module: &Module, states: &[State], goal: Option<u64>, cx: &PassCx<'_>) -> Result<Option<Made>, PassError> {
    let make = |n_states: usize| -> Result<Made, PassError> {
        cx.check_deadline()?;
        let mut work = module.clone();
        offload(&mut work, &states[..n_states])?;
        let peak_bytes = memory_sizes(&work).peak_bytes;
        Ok(Made { module: work, n_states, peak_bytes })
    };
    let fits = |made: &Made| goal.is_some_and(|goal| made.peak_bytes <= goal);
    let n_tries = states.len().min(MAX_TRIES);
    let (mut best, mut too_few): (Option<Made>, usize) = (None, 0);
    for at in 1..=n_tries {
        let made = make(states.len() * at / n_tries)?;
        if fits(&made) {
            best = Some(made);
            break;
        }
        too_few = made.n_states;
        if best.as_ref().is_none_or(|best| made.peak_bytes < best.peak_bytes) {
            best = Some(made);
        }
    }
    let Some(mut best) = best else { return Ok(None) };
    // Between `too_few`, which is above the limit, and the best, which is within.
    while fits(&best) && best.n_states - too_few > 1 {
        let made = make(too_few + (best.n_states - too_few) / 2)?;
        match fits(&made) {
            true => best = made,
            false => too_few = made.n_states,
        }
    }
    Ok(Some(best))
}
