//! Modules as Python objects: `hlo_opt._native.Module` and what it is made of. `python/hlo_opt/module.py` gives them their faces.
//!
//! Work runs on a thread with a large stack while other Python threads go on; getters read what is there.

mod arrays;
mod collectives;
mod errors;
mod instruction_text;
mod parts;

use crate::words::python_summary;
use arrays::{Computed, Given};
use collectives::Collective;
use errors::{HloError, UsageError, work};
use hlo_eval::{EvalOptions, entry_leaves};
use hlo_ir::print::FormChoice;
use hlo_opt::library::{Beside, OpenModule, Outcome};
use parts::{Computation, Instruction};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What messages call a module that is in memory alone.
const IN_MEMORY: &str = "<module>";

/// Adds the classes and errors to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ModuleObject>()?;
    module.add_class::<Computation>()?;
    module.add_class::<Instruction>()?;
    module.add_class::<Collective>()?;
    module.add("HloError", module.py().get_type::<HloError>())?;
    module.add("UsageError", module.py().get_type::<UsageError>())
}

/// A verified HLO module.
#[pyclass(frozen, module = "hlo_opt._native", name = "Module")]
struct ModuleObject {
    open: Arc<OpenModule>,
    /// What was found out or missed while it was read.
    #[pyo3(get)]
    notes: Vec<String>,
}

/// What a run of passes gives to Python: the module, the summary, the report as JSON, and the files beside it.
type Ran = (ModuleObject, String, String, Vec<(String, Py<PyAny>)>);

impl ModuleObject {
    fn new((open, notes): (OpenModule, String)) -> ModuleObject {
        let notes = notes.split("note: ").map(str::trim_end).filter(|note| !note.is_empty());
        let notes = notes.map(str::to_string).collect();
        ModuleObject { open: Arc::new(open), notes }
    }
}

#[pymethods]
impl ModuleObject {
    /// Takes HLO text or a proto, packed with gzip or not, with options of the main command.
    #[staticmethod]
    fn parse(py: Python<'_>, content: PyBackedBytes, options: Vec<(String, String)>) -> PyResult<ModuleObject> {
        work(py, || OpenModule::parse(IN_MEMORY, content.to_vec(), &borrowed(&options))).map(ModuleObject::new)
    }

    /// Reads a file, or the step's module in a folder of dumps, with options of the main command.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf, options: Vec<(String, String)>) -> PyResult<ModuleObject> {
        work(py, || OpenModule::read(&path, &borrowed(&options))).map(ModuleObject::new)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.open.module().name
    }

    #[getter]
    fn num_partitions(&self) -> i64 {
        self.open.module().header.num_partitions.max(1)
    }

    #[getter]
    fn num_replicas(&self) -> i64 {
        self.open.module().header.replica_count.max(1)
    }

    #[getter]
    fn n_instructions(&self) -> usize {
        self.open.module().n_instructions()
    }

    /// The computations, in text order.
    #[getter]
    fn computations(&self) -> Vec<Computation> {
        let comps = self.open.module().computations();
        comps.iter().map(|&comp| Computation { open: self.open.clone(), comp }).collect()
    }

    /// The element type and dims of each array among the entry's parameters.
    #[getter]
    fn parameter_leaves(&self) -> Vec<(&'static str, Vec<i64>)> {
        let leaves = entry_leaves(self.open.module());
        leaves.iter().map(|leaf| (leaf.shape.dtype.name(), leaf.shape.dims.to_vec())).collect()
    }

    fn collectives(&self, py: Python<'_>, unknown_trip_count: u64) -> PyResult<Vec<Collective>> {
        work(py, || Ok(collectives::find(self.open.module(), unknown_trip_count)))
    }

    /// What `analyze memory --format json` writes.
    fn memory_json(&self, py: Python<'_>, top: usize) -> PyResult<String> {
        work(py, || Ok(self.open.memory(top)))
    }

    /// What `audit --format json` writes, with options of that command.
    fn audit_json(&self, py: Python<'_>, options: Vec<(String, String)>) -> PyResult<String> {
        work(py, || self.open.audit(&borrowed(&options)))
    }

    /// Runs passes on a copy, with options of the main command.
    fn run(&self, py: Python<'_>, options: Vec<(String, String)>) -> PyResult<Ran> {
        let Outcome { module, summary, report_json, files } = work(py, || self.open.run(&borrowed(&options)))?;
        let of_module = |module, notes| ModuleObject { open: Arc::new(module), notes };
        let object = |file: Beside| -> PyResult<Py<PyAny>> {
            match file {
                Beside::Module(module) => Ok(Py::new(py, of_module(*module, Vec::new()))?.into_any()),
                Beside::Text(text) => Ok(text.into_pyobject(py)?.into_any().unbind()),
            }
        };
        let files = files.into_iter().map(|(name, file)| Ok((name, object(file)?)));
        Ok((
            of_module(module, self.notes.clone()),
            python_summary(&summary),
            report_json,
            files.collect::<PyResult<_>>()?,
        ))
    }

    /// The module as text in the form `auto`, `long` or `short`.
    fn text(&self, py: Python<'_>, form: &str) -> PyResult<String> {
        let form = match form {
            "auto" => FormChoice::Auto,
            "long" => FormChoice::Long,
            "short" => FormChoice::Short,
            other => return Err(UsageError::new_err(format!("format: expected auto, long or short, found `{other}`"))),
        };
        work(py, || Ok(self.open.text(form)))
    }

    /// The module as the bytes of an HloModuleProto.
    fn proto(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        work(py, || self.open.proto())
    }

    /// Runs the module on all its devices. `arrays`: for each device its arrays; one list for all where `is_for_all`.
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        arrays: Vec<Vec<Given>>,
        is_for_all: bool,
        max_steps: Option<u64>,
        timeout_s: Option<f64>,
    ) -> PyResult<Vec<Vec<Computed<'py>>>> {
        let mut options = EvalOptions::default();
        options.max_steps = max_steps.unwrap_or(options.max_steps);
        if let Some(seconds) = timeout_s {
            let timeout = Duration::try_from_secs_f64(seconds);
            let timeout = timeout.map_err(|error| UsageError::new_err(format!("timeout_s {seconds}: {error}")))?;
            options.deadline = Instant::now().checked_add(timeout);
        }
        let module = self.open.module();
        let outputs = work(py, || self.open.evaluate(&arrays::inputs(module, &arrays, is_for_all)?, &options))?;
        Ok(arrays::of_outputs(py, &outputs, module.n_devices()))
    }
}

fn borrowed(options: &[(String, String)]) -> Vec<(&str, &str)> {
    options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
