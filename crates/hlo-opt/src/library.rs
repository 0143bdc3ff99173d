//! The jobs of the command line on modules in memory, for programs that hold this crate as a library.
//!
//! Options are those of the command line, as `(name, value)`; no configuration file is read. Results are what the command line
//! writes as JSON, so that both say the same.

use crate::analyze::MemoryFacts;
use crate::arguments::{Arguments, Command};
use crate::audit::Asked;
use crate::complete::{Takes, complete};
use crate::console::Console;
use crate::input::{Loaded, Source};
use crate::output_format::{self, OutputFormat};
use crate::{Failure, evaluate, optimize};
use hlo_analysis::memory::peak_memory;
use hlo_analysis::program_kind::DumpStage;
use hlo_eval::{EvalOptions, Inputs, Outputs};
use hlo_ir::Module;
use hlo_ir::print::{FormChoice, PrintOptions, print_module};
use hlo_pass::report::Artifact;
use std::io::Empty;
use std::path::Path;
use std::sync::Arc;

/// A verified module, completed with what its text leaves out.
pub struct OpenModule {
    /// What it was read from, for the places in messages.
    source: Arc<Source>,
    loaded: Loaded,
    /// Whether passes changed it since it was read.
    has_changed: bool,
}

/// What passes made of a module.
pub struct Outcome {
    /// The module.
    pub module: OpenModule,
    /// The summary, as it goes to stderr; empty where nothing of size was done or declined.
    pub summary: String,
    /// The report, as `--report json` writes it.
    pub report_json: String,
    /// What stands beside the module, by file name.
    pub files: Vec<(String, Beside)>,
}

/// A file beside a module.
pub enum Beside {
    /// HLO.
    Module(Box<OpenModule>),
    /// Anything else.
    Text(String),
}

impl OpenModule {
    /// Reads a file, or the module of the training step in a folder of dumps, and gives the notes about it. The options are
    /// `num-partitions` and `num-replicas`.
    ///
    /// # Errors
    /// The file cannot be read, is no valid module or contradicts the options.
    pub fn read(file: &Path, options: &[(&str, &str)]) -> Result<(OpenModule, String), Failure> {
        in_memory(|console| {
            OpenModule::open(Source::read(file, DumpStage::AfterPartitioner, console)?, options, console)
        })
    }

    /// As [`OpenModule::read`] from HLO text or a proto, packed with gzip or not; `name` is for messages.
    ///
    /// # Errors
    /// As [`OpenModule::read`].
    pub fn parse(name: &str, bytes: Vec<u8>, options: &[(&str, &str)]) -> Result<(OpenModule, String), Failure> {
        in_memory(|console| OpenModule::open(Source::of_bytes(name.into(), bytes)?, options, console))
    }

    fn open(source: Source, options: &[(&str, &str)], console: &mut Console<'_>) -> Result<OpenModule, Failure> {
        let counts = arguments(&[], options)?.optimize.counts;
        let mut loaded = source.load(source.whole(), console.has_color)?;
        complete(&source, source.whole(), &mut loaded, (counts, Takes::PerDevice), console)?;
        Ok(OpenModule { source: Arc::new(source), loaded, has_changed: false })
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.loaded.module
    }

    /// The module as text.
    pub fn text(&self, form: FormChoice) -> String {
        print_module(&self.loaded.module, &PrintOptions { form, expand_mesh_groups: self.has_changed })
    }

    /// The module as the bytes of an HloModuleProto, as `--output-format proto` writes it.
    ///
    /// # Errors
    /// None is known.
    pub fn proto(&self) -> Result<Vec<u8>, Failure> {
        let Loaded { module, kept, .. } = &self.loaded;
        let written = output_format::proto(module, kept, OutputFormat::Proto, self.has_changed);
        written.map(|(bytes, _)| bytes).map_err(Failure::File)
    }

    /// Runs passes on a copy, with options of the main command such as `("pass", "cse,dce")`.
    ///
    /// # Errors
    /// Wrong usage, or a pass that failed.
    pub fn run(&self, options: &[(&str, &str)]) -> Result<Outcome, Failure> {
        let args = arguments(&[], options)?.optimize;
        let source = &self.source;
        let (done, _) = in_memory(|console| optimize::optimize_loaded(&args, source, self.loaded.clone(), console))?;
        let mut report = done.report;
        let files = report.reports.iter_mut().flat_map(|pass| std::mem::take(&mut pass.files));
        let files = files.map(|(name, artifact)| (name, Beside::of(artifact))).collect();
        let (report_json, summary) = optimize::json_and_summary(&args, source, report);
        let has_changed = self.has_changed || done.has_changed;
        let module = OpenModule { source: source.clone(), loaded: done.loaded, has_changed };
        Ok(Outcome { module, summary, report_json, files })
    }

    /// What `audit --format json` writes, with options of that command.
    ///
    /// # Errors
    /// Wrong usage, or a program of all devices together.
    pub fn audit(&self, options: &[(&str, &str)]) -> Result<String, Failure> {
        let Some(Command::Audit(args)) = arguments(&["audit", "-"], options)?.command else {
            return Err(Failure::Usage("expected options of `audit`".into()));
        };
        let facts =
            in_memory(|console| Asked::read(&args, console)?.find_facts(&self.source, &self.loaded, console))?.0;
        Ok(serde_json::to_string(&facts).unwrap_or_default())
    }

    /// What `analyze memory --format json` writes, with at most `top` buffers of the peak.
    pub fn memory(&self, top: usize) -> String {
        let module = self.module();
        serde_json::to_string(&MemoryFacts::of(module, &peak_memory(module), top)).unwrap_or_default()
    }

    /// Runs the module on all its devices in the evaluator.
    ///
    /// # Errors
    /// Inputs that do not fit, or an evaluation that cannot go on.
    pub fn evaluate(&self, inputs: &Inputs, options: &EvalOptions) -> Result<Outputs, Failure> {
        evaluate::evaluate(&self.source, &self.loaded, inputs, options, false)
    }
}

impl Beside {
    fn of(artifact: Artifact) -> Beside {
        match artifact {
            Artifact::Text(late) => Beside::Text(late.text()),
            Artifact::Module(module) => {
                // No text has its instructions, so no bytes stand behind it.
                let source = Arc::new(Source::made());
                Beside::Module(Box::new(OpenModule { source, loaded: Loaded::made(*module), has_changed: true }))
            }
        }
    }
}

/// Parses options as those of a command; none is the main one.
fn arguments(command: &[&str], options: &[(&str, &str)]) -> Result<Arguments, Failure> {
    let options = options.iter().map(|(name, value)| format!("--{name}={value}"));
    let words = std::iter::once("hlo-opt".to_string()).chain(command.iter().map(ToString::to_string)).chain(options);
    Arguments::parse_words(words).map_err(|error| {
        // What stands behind the first paragraph is about the program.
        let text = error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        Failure::Usage(first.trim_start_matches("error: ").trim_end().into())
    })
}

/// Does some work that writes no result, and gives what it said.
fn in_memory<T>(work: impl FnOnce(&mut Console<'_>) -> Result<T, Failure>) -> Result<(T, String), Failure> {
    let (mut stdin, mut stdout, mut said): (Empty, _, Vec<u8>) = (std::io::empty(), std::io::sink(), Vec::new());
    let mut console = Console {
        stdin: &mut stdin,
        stdin_is_terminal: false,
        stdout: &mut stdout,
        stdout_is_terminal: false,
        stderr: &mut said,
        shows_progress: false,
        has_color: false,
    };
    let done = work(&mut console)?;
    Ok((done, String::from_utf8_lossy(&said).into_owned()))
}
