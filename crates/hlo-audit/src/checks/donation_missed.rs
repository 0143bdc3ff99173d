//! Finds state that is not donated: entry parameters whose next values are outputs of the same shape, in other memory.
//!
//! ```text
//! HloModule step, entry_computation_layout={(f32[4096,4096], f32[4096,4096])->(f32[4096,4096], f32[4096,4096])}
//! ```
//! Weight and momentum come in, their next values go out, and the header has no `input_output_alias`: both live at once.
//!
//! **Cost**: the memory of these outputs, which are allocated beside the parameters. It is advice, because the caller may need the old values.
//!
//! **What it does not find**: less than 1 MiB; an output of which several parameters could be the old value; a single pair, which may be
//! an activation and not state, unless a part of it is written over (a cache) or other parameters are donated.
//!
//! **How sure**: see [`crate::state`].

use crate::context::AuditCx;
use crate::cost::{Cost, total_bytes};
use crate::finding::{CheckInfo, Finding, Level};
use crate::state::{EntryState, StatePair};
use hashbrown::HashSet;
use hlo_ir::InstId;

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "donation-missed",
    level: Level::Advice,
    help: "state that is not donated, so that its old and new values live at once",
    run,
};

/// Less memory than this is not worth an interface.
pub(super) const MIN_SAVED_BYTES: u64 = 1 << 20;

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    find(cx).into_iter().collect()
}

fn find(cx: &AuditCx<'_>) -> Option<Finding> {
    let state = EntryState::find(cx);
    let given: HashSet<usize> =
        state.aliases.iter().map(|(param, _)| *param).chain(state.donated.iter().copied()).collect();
    let placed: HashSet<usize> = state.aliases.iter().map(|(_, output)| *output).collect();
    let is_free = |pair: &&StatePair| !given.contains(&pair.param) && !placed.contains(&pair.output);
    let mut pairs: Vec<&StatePair> = state.pairs.iter().filter(is_free).collect();
    let is_known_as_state = pairs.len() > 1 || !given.is_empty();
    pairs.retain(|pair| is_known_as_state || pair.is_written);
    let bytes_of = |pair: &StatePair| {
        let leaf = state.leaf(pair.param);
        let shape = cx.module.shapes.leaf(cx.module.inst(leaf.inst).shape, leaf.leaf_idx as usize);
        shape.map_or(0, |shape| shape.size_bytes())
    };
    let n_bytes = total_bytes(pairs.iter().map(|pair| bytes_of(pair)));
    let largest = pairs.iter().copied().max_by_key(|pair| (bytes_of(pair), std::cmp::Reverse(pair.param)))?;
    if n_bytes < MIN_SAVED_BYTES {
        return None;
    }
    let mut params: Vec<InstId> = pairs.iter().map(|pair| state.leaf(pair.param).inst).collect();
    params.dedup();
    let inst = state.leaf(largest.param).inst;
    params.retain(|&param| param != inst);
    let what = match pairs.len() {
        1 => "its next value".to_string(),
        n => format!("the next values of it and of {} more parameters", n - 1),
    };
    Some(Finding {
        check: &INFO,
        inst,
        also: params,
        message: format!("{} is state that is not donated: {what}, {n_bytes} bytes, get other memory", cx.name(inst)),
        cost: Cost::Held { bytes: n_bytes },
        remedy: "donate the state to the step: `jax.jit(step, donate_argnums=…)`".into(),
    })
}
