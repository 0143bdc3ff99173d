//! What a pass is, how passes are named and configured, and what is checked between them.

mod deadline;
pub mod fastest;
pub mod options;
pub mod pipeline;
pub mod report;
pub mod runner;
mod target;
pub mod threads;

pub use deadline::{Deadline, OutOfTime};
pub use target::{Target, TargetSpec};

use hlo_analysis::{Analyses, Preserved};
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_spmd::DependsOnItself;
use options::{OptionInfo, Options};
use report::PassReport;
use std::error::Error;

/// Stack of a thread that runs passes: shapes, literals and calls may nest deeply, and analyses walk them by recursion.
pub const STACK_BYTES: usize = 256 << 20;

/// One transformation of a module.
pub trait Pass: Send + Sync {
    /// Rewrites `module`.
    ///
    /// # Errors
    /// What stops the pass; the module is then as it was.
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError>;

    /// Returns whether the pass looks at all-reduces of one array each. The runner then splits those of several arrays
    /// before the pass runs, and keeps the split if the pass changes the module.
    fn takes_single_all_reduces(&self) -> bool {
        false
    }

    /// Returns whether the pass, by its options, may leave files beside the module in its report.
    fn writes_files(&self) -> bool {
        false
    }
}

/// What a pass says of the module it leaves. The runner holds it to this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// Not a byte of the printed module is different.
    No,
    /// Something changed; these analyses still hold.
    Yes(Preserved),
}

/// What a pass may use and where it explains itself.
pub struct PassCx<'a> {
    /// Facts about the module, computed when asked for.
    pub analyses: &'a mut Analyses,
    /// What the pass decided and why.
    pub report: &'a mut PassReport,
    /// The machine, trip counts and memory of a device that the pass prices for and keeps.
    pub target: &'a Target,
    /// Whether the report's peaks of memory are wanted.
    pub measures_peaks: bool,
    /// When the pass is to stop. Passes that search, and those with a round for each of many instructions, poll it.
    pub deadline: Deadline,
}

impl<'a> PassCx<'a> {
    /// A context without an end of time, in which no peaks of memory are wanted.
    pub fn new(analyses: &'a mut Analyses, report: &'a mut PassReport, target: &'a Target) -> PassCx<'a> {
        PassCx { analyses, report, target, measures_peaks: false, deadline: Deadline::default() }
    }

    /// Whether the time is over: a search that has a result may then give it.
    pub fn is_over(&self) -> bool {
        self.deadline.is_over()
    }

    /// Stops a pass whose time is over: `cx.check_deadline()?`.
    ///
    /// # Errors
    /// The time is over.
    pub fn check_deadline(&self) -> Result<(), PassError> {
        Ok(self.deadline.check()?)
    }
}

/// A pass that the command line can name.
pub struct PassInfo {
    /// Kebab-case name, also of the file and of the sample folder.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub help: &'static str,
    /// Options it takes.
    pub options: &'static [OptionInfo],
    /// Builds the pass from options whose names and types were checked.
    pub build: fn(&Options) -> BuiltPass,
}

/// A pass, or an error of its family that says what is wrong with the options.
pub type BuiltPass = Result<Box<dyn Pass>, Box<dyn Error>>;

/// What stopped a pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassError {
    /// The instruction or computation, the reason, expected and found.
    pub diagnostic: Diagnostic,
    /// The least peak memory that the pass found, where none is within its limit.
    pub least_bytes: Option<u64>,
}

/// The rule of an error about a limit of memory that is not met.
pub const MEMORY_LIMIT_RULE: &str = "memory-limit";

impl PassError {
    /// An error of the kind `rule` about a part of the module.
    pub fn about(rule: &'static str, entity: Entity, message: impl Into<String>) -> PassError {
        PassError { diagnostic: Diagnostic::about(rule, entity, message), least_bytes: None }
    }

    /// The error of a pass that cannot bring the peak memory down to `limit_bytes`; `least_bytes` is the least peak
    /// that it found.
    pub fn above_limit(limit_bytes: u64, least_bytes: u64, message: impl Into<String>) -> PassError {
        let message = message.into();
        let text = format!(
            "expected a peak of at most {limit_bytes} bytes (memory-limit), found {least_bytes} bytes at least: {message}"
        );
        PassError { least_bytes: Some(least_bytes), ..PassError::about(MEMORY_LIMIT_RULE, Entity::Module, text) }
    }
}

impl From<DependsOnItself> for PassError {
    fn from(DependsOnItself(inst): DependsOnItself) -> PassError {
        PassError::about("acyclic", Entity::Inst(inst), "depends on itself after the change")
    }
}
