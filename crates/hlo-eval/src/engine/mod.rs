//! The engine: runs computations on all active devices in lockstep, one instruction at a time.
//!
//! The value of an instruction is a [`Spread`](crate::value::Spread): one storage if all devices share it, else one per
//! device. An operation whose operands are shared is computed once, so replicated work costs what it costs on one device.
//! Control flow shrinks the set of active devices; a collective checks that all members of a group are active.

mod array_kernels;
mod boundary;
mod collective;
mod machine;
mod plan;
mod program;
mod pure;
mod region;
mod scan;
#[cfg(test)]
mod tests;

pub(crate) use machine::{Machine, Observer};
use std::time::Instant;

/// Instructions that an evaluation executes if nothing else is said: some minutes of small ones.
pub const DEFAULT_MAX_STEPS: u64 = 200_000_000;

/// Bounds on an evaluation, so that no input can make it run or grow for ever.
#[derive(Clone, Debug)]
pub struct EvalOptions {
    /// Instructions executed, each counted once however many devices run it.
    pub max_steps: u64,
    /// When to stop, whatever was executed.
    pub deadline: Option<Instant>,
    /// Depth of nested calls, loops and conditionals.
    pub max_call_depth: usize,
    /// Bytes of a single array.
    pub max_array_bytes: u64,
    /// Threads for operations whose operands differ between devices.
    pub n_threads: usize,
}

impl Default for EvalOptions {
    fn default() -> EvalOptions {
        EvalOptions {
            max_steps: DEFAULT_MAX_STEPS,
            deadline: None,
            max_call_depth: 128,
            max_array_bytes: 1 << 34,
            n_threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}
