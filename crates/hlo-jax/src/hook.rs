//! The hook in a plugin's compiler, for `hlo_opt.jax.enable`.
#![allow(unsafe_code)] // The plugin's table comes as a pointer.

use crate::words::python_words;
use hlo_pjrt::{Level, Log, Optimizer, Settings, Stage, read_switch};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What orders a scheduled module anew.
const SCHEDULING: &str = "schedule-collectives";

/// What was said since the hook was set.
static LINES: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

/// Sends the programs of plugins through a pipeline, and the modules that [`transform_module`] is given. A plugin is a name and the
/// capsule of jaxlib's `get_pjrt_plugin`. The switches: whether a failure is an error of the compile, whether the compiler keeps what a
/// changed program donates, and whether what is scheduled is ordered anew.
#[pyfunction]
fn hook(
    plugins: Vec<(String, Bound<'_, PyCapsule>)>,
    pipeline: String,
    only: Vec<String>,
    machine: Option<String>,
    deadline_s: f64,
    switches: (bool, bool, bool),
) -> PyResult<()> {
    let (is_strict, keeps_aliases, schedules) = switches;
    let deadline = Duration::try_from_secs_f64(deadline_s).ok().filter(|time| !time.is_zero());
    let deadline = deadline.ok_or_else(|| {
        PyValueError::new_err(format!("deadline_s: expected a positive number of seconds, found {deadline_s}"))
    })?;
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let log = Log::new(Level::All, keep);
    let settings = Settings { pipeline, only, machine, is_strict, deadline, keeps_aliases, log, ..Settings::default() };
    let mut optimizers = vec![(Stage::Partitioned, Optimizer::new(settings.clone()))];
    if schedules {
        optimizers.push((Stage::Scheduled, Optimizer::new(Settings { pipeline: SCHEDULING.into(), ..settings })));
    }
    hlo_pjrt::unregister();
    for (name, capsule) in plugins {
        let api = capsule.pointer_checked(Some(c"pjrt_c_api"))?;
        for (stage, optimizer) in &optimizers {
            // SAFETY: jaxlib's capsule of this name points to the table of a plugin, and neither it nor this extension is ever unloaded.
            unsafe { hlo_pjrt::register(api.cast(), *stage, optimizer.clone()) }
                .map_err(|error| PyRuntimeError::new_err(format!("the plugin {name}: {error}")))?;
        }
    }
    optimizers.into_iter().for_each(|(stage, optimizer)| hlo_pjrt::set_current(stage, optimizer));
    Ok(())
}

/// What the hook makes of a partitioned module, an HloModuleProto; nothing where it stays as it is.
#[pyfunction]
fn transform_module<'py>(py: Python<'py>, module: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let made = py.detach(|| hlo_pjrt::transform_module(module)).map_err(PyRuntimeError::new_err)?;
    Ok(made.map(|made| PyBytes::new(py, &made)))
}

/// Says that nothing came of the module of this name, in the place of what was said of its change; an error where settings are strict.
#[pyfunction]
fn module_failed(name: &str, why: String) -> PyResult<()> {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_change = |(level, line): &(&str, String)| *level == "change" && line.starts_with(&format!("{name}: "));
    if let Some(place) = lines.iter().rposition(is_change) {
        lines.remove(place);
    }
    drop(lines);
    hlo_pjrt::module_failed(name, why).map_err(PyRuntimeError::new_err)
}

/// Says why the module of this name stays as it is.
#[pyfunction]
fn module_left(name: &str, why: &str) {
    hlo_pjrt::module_left(name, why);
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

/// Whether a variable of the environment with this text switches something on; an error that lists the words where it is none of them.
#[pyfunction]
fn is_switched_on(name: &str, text: &str) -> PyResult<bool> {
    read_switch(text).map_err(|why| PyValueError::new_err(format!("{name}: {why}")))
}

/// Called on XLA's threads, which hold no lock of Python's.
fn keep(level: Level, line: &str) {
    let level = match level {
        Level::Warning => "warning",
        Level::Change => "change",
        Level::All => "left",
    };
    let line = python_words(line);
    if level == "warning" {
        eprintln!("hlo_opt.jax.enable: warning: {line}");
    }
    LINES.lock().unwrap_or_else(PoisonError::into_inner).push((level, line));
}

/// Adds the functions to the extension.
pub(crate) fn register(native: &Bound<'_, PyModule>) -> PyResult<()> {
    native.add_function(wrap_pyfunction!(hook, native)?)?;
    native.add_function(wrap_pyfunction!(unhook, native)?)?;
    native.add_function(wrap_pyfunction!(transform_module, native)?)?;
    native.add_function(wrap_pyfunction!(module_failed, native)?)?;
    native.add_function(wrap_pyfunction!(module_left, native)?)?;
    native.add_function(wrap_pyfunction!(is_switched_on, native)?)?;
    native.add_function(wrap_pyfunction!(hook_lines, native)?)
}
