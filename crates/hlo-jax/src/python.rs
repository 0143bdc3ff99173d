//! The extension module `hlo_opt._native`. What users see is in `python/hlo_opt`.

use crate::{hook, module, tool, words};
use hlo_cluster::MachineName;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::io::{IsTerminal, Write};

/// Runs the command line on bytes: exit code, stdout, stderr. Other Python threads go on meanwhile.
#[pyfunction]
fn run(py: Python<'_>, args: Vec<String>, stdin: &[u8]) -> PyResult<(u8, Vec<u8>, String)> {
    let printed =
        py.detach(|| tool::run(args.into_iter().map(Into::into).collect(), stdin)).map_err(PyRuntimeError::new_err)?;
    Ok((printed.code, printed.stdout, printed.stderr))
}

/// The program `hlo-opt` on the streams of this process; its exit code.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<String>) -> PyResult<u8> {
    py.detach(|| {
        tool::on_own_stack(|| {
            let (mut stdin, mut stdout, mut stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
            let is_terminal = stderr.is_terminal();
            let (stdin_is_terminal, stdout_is_terminal) = (stdin.is_terminal(), stdout.is_terminal());
            let mut console = hlo_opt::console::Console {
                stdin: &mut stdin,
                stdin_is_terminal,
                stdout: &mut stdout,
                stdout_is_terminal,
                stderr: &mut stderr,
                shows_progress: is_terminal,
                has_color: is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            };
            let code =
                hlo_opt::run(std::iter::once("hlo-opt".into()).chain(args.into_iter().map(Into::into)), &mut console);
            // Rust's stdout is not flushed when Python ends the process.
            let _ = std::io::stdout().flush();
            code
        })
    })
    .map_err(PyRuntimeError::new_err)
}

/// Checks a machine as `--machine` takes it, files apart: the error, or `None`.
#[pyfunction]
fn machine_error(text: &str) -> Option<String> {
    MachineName::parse(text).err().map(|error| error.to_string())
}

/// The names of machines.
#[pyfunction]
fn machine_names() -> Vec<&'static str> {
    MachineName::of_nodes().collect()
}

/// The names of presets, and those of passes.
#[pyfunction]
fn pipeline_names() -> (Vec<&'static str>, Vec<&'static str>) {
    let presets = hlo_opt::presets::PRESETS.iter().map(|preset| preset.name);
    let passes = hlo_opt::registry::passes().into_iter().map(|pass| pass.name);
    (presets.collect(), passes.collect())
}

/// A message of the command line as Python says it.
#[pyfunction]
fn python_words(text: &str) -> String {
    words::python_words(text)
}

#[pymodule]
fn _native(native: &Bound<'_, PyModule>) -> PyResult<()> {
    native.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module::register(native)?;
    hook::register(native)?;
    native.add_function(wrap_pyfunction!(run, native)?)?;
    native.add_function(wrap_pyfunction!(machine_names, native)?)?;
    native.add_function(wrap_pyfunction!(machine_error, native)?)?;
    native.add_function(wrap_pyfunction!(pipeline_names, native)?)?;
    native.add_function(wrap_pyfunction!(python_words, native)?)?;
    native.add_function(wrap_pyfunction!(main, native)?)
}
