//! Calls of the prover that end: on a large stack, and with panics told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use hlo_ir::Module;
use hlo_prove::{Options, Output, Proof, Verdict};

/// Runs `task` on a thread with the stack that passes and proofs need.
pub(crate) fn on_a_large_stack<T: Send>(task: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(hlo_pass::STACK_BYTES);
        let started = thread.spawn_scoped(scope, task).map_err(|e| format!("cannot start a thread: {e}"))?;
        started.join().unwrap_or_else(|_| Err("the check panicked".into()))
    })
}

/// What came of one proof.
pub(crate) struct Proved {
    pub(crate) proof: Proof,
    pub(crate) ms: f64,
}

impl Proved {
    /// The numbers of the outputs that are proved.
    pub(super) fn leaves(&self) -> Vec<usize> {
        let outputs = self.proof.outputs.iter().filter(|output| output.verdict == Verdict::Proved);
        outputs.map(|output| output.leaf).collect()
    }
}

/// Whether an output is proved, and bit for bit.
pub(super) fn is_exact(output: &Output) -> bool {
    output.verdict == Verdict::Proved && output.modulo.iter().next().is_none()
}

/// Proves that `after` computes what `before` does.
///
/// # Errors
/// The modules cannot be compared, or the prover panics.
pub(crate) fn prove(before: &Module, after: &Module) -> Result<Proved, String> {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| hlo_prove::prove(before, after, &Options::default())));
    let ms = start.elapsed().as_secs_f64() * 1e3;
    match outcome {
        Ok(Ok(proof)) => Ok(Proved { proof, ms }),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(format!("{PANICKED}: {}", text.unwrap_or_default()))
        }
    }
}

/// How the message of a panic begins.
pub(super) const PANICKED: &str = "the prover panics";
