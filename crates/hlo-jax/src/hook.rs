//! The hook in a plugin's compiler, for `hlo_opt.jax.enable`.
#![allow(unsafe_code)] // The plugin's table comes as a pointer.

use hlo_pjrt::{Level, Log, Optimizer, Settings};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What was said since the hook was set.
static LINES: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

/// Sends the programs of a plugin through a pipeline. The capsule is that of jaxlib's `get_pjrt_plugin`.
#[pyfunction]
fn hook(
    capsule: &Bound<'_, PyCapsule>,
    pipeline: String,
    only: Vec<String>,
    machine: Option<String>,
    is_strict: bool,
    deadline_s: f64,
) -> PyResult<()> {
    let deadline = Duration::try_from_secs_f64(deadline_s).ok().filter(|time| !time.is_zero());
    let deadline = deadline.ok_or_else(|| {
        PyValueError::new_err(format!("deadline_s: expected a positive number of seconds, found {deadline_s}"))
    })?;
    let api = capsule.pointer_checked(Some(c"pjrt_c_api"))?;
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let log = Log::new(Level::All, keep);
    let settings = Settings { pipeline, only, machine, is_strict, deadline, log, ..Settings::default() };
    // SAFETY: jaxlib's capsule of this name points to the table of a plugin, and neither it nor this extension is ever unloaded.
    unsafe { hlo_pjrt::register(api.cast(), Optimizer::new(settings)) }
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Programs that are compiled from now on stay as they are.
#[pyfunction]
fn unhook() {
    hlo_pjrt::unregister();
}

/// What was said since the hook was set: level and text.
#[pyfunction]
fn hook_lines() -> Vec<(&'static str, String)> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Called on XLA's threads, which hold no lock of Python's.
fn keep(level: Level, line: &str) {
    let level = match level {
        Level::Warning => "warning",
        Level::Change => "change",
        Level::All => "left",
    };
    if level == "warning" {
        eprintln!("hlo_opt.jax.enable: warning: {line}");
    }
    LINES.lock().unwrap_or_else(PoisonError::into_inner).push((level, line.to_string()));
}

/// Adds the functions to the extension.
pub(crate) fn register(native: &Bound<'_, PyModule>) -> PyResult<()> {
    native.add_function(wrap_pyfunction!(hook, native)?)?;
    native.add_function(wrap_pyfunction!(unhook, native)?)?;
    native.add_function(wrap_pyfunction!(hook_lines, native)?)
}
