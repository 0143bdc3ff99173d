//! What passes decided and why, as data: the command line prints it as text or JSON.

use hlo_ir::{InstId, Module, Shape};
use hlo_spmd::CollectiveChange;
use indexmap::IndexMap;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// Everything one pass says of its run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PassReport {
    /// The pass.
    pub pass: String,
    /// Whether the module is different now.
    pub changed: bool,
    /// Why nothing was done, if so.
    pub unchanged_because: Option<String>,
    /// One entry for each thing that was considered.
    pub decisions: Vec<Decision>,
    /// Counters, named `<pass>.<what>`.
    pub stats: IndexMap<String, u64>,
    /// Peak memory of one device before and after, if the pass is about memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryChange>,
    /// Files to write beside the module, by name.
    #[serde(skip)]
    pub files: Vec<(String, Artifact)>,
}

/// Several ways to run a module, with their predicted times, and which one was taken.
#[derive(Clone, Debug, Serialize)]
pub struct WayChoice {
    /// The machine that the times are predicted for.
    pub machine: String,
    /// The ways, the module as it came first.
    pub candidates: Vec<Candidate>,
    /// Which one was taken.
    pub chosen: usize,
    /// Ways that could not be made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedWay>,
}

/// A way that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct FailedWay {
    /// What it was to do.
    pub way: &'static str,
    /// The pass that stopped it, and what it says.
    pub reason: String,
}

/// One way to run a module: predicted time of a step and peak memory of one device.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// What it does.
    pub way: &'static str,
    /// Whether it is there to be compared with, and never taken.
    pub is_reference: bool,
    /// Its passes from the beginning, as `--pass` takes them.
    pub pipeline: String,
    /// Seconds from the beginning to the end.
    pub critical_path_s: f64,
    /// Seconds in which kernels run.
    pub compute_s: f64,
    /// Seconds in which collectives run.
    pub communication_s: f64,
    /// Whether a part is not known: a custom call's work, or an exchange with the host.
    pub is_partial: bool,
    /// Peak memory, by liveness, if it was asked for.
    pub peak_bytes: Option<u64>,
}

impl WayChoice {
    /// The way that was taken.
    pub fn taken(&self) -> Option<&Candidate> {
        self.candidates.get(self.chosen)
    }
}

/// Peak memory of one device, by liveness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryChange {
    /// Of the module as the pass found it.
    pub peak_before_bytes: u64,
    /// Of the module as the pass left it.
    pub peak_after_bytes: u64,
}

/// A file that a pass makes beside the module.
#[derive(Clone, Debug)]
pub enum Artifact {
    /// HLO.
    Module(Box<Module>),
    /// Anything else.
    Text(LateText),
}

/// A text that is made when it is asked for: most of what passes make is compared with something better and dropped.
#[derive(Clone)]
pub struct LateText(Arc<dyn Fn() -> String + Send + Sync>);

impl LateText {
    /// The text that `make` gives.
    pub fn new(make: impl Fn() -> String + Send + Sync + 'static) -> LateText {
        LateText(Arc::new(make))
    }

    /// Makes the text.
    pub fn text(&self) -> String {
        self.0()
    }
}

impl fmt::Debug for LateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }
}

impl PassReport {
    /// An empty report of a pass.
    pub fn new(pass: &str) -> PassReport {
        PassReport { pass: pass.into(), ..PassReport::default() }
    }

    /// Adds to a counter.
    pub fn count(&mut self, what: &str, n: u64) {
        *self.stats.entry(format!("{}.{what}", self.pass)).or_insert(0) += n;
    }
}

/// What predicted times of a decision are times of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictedFor {
    /// Its subject: those of several decisions add up.
    #[default]
    Subject,
    /// The whole step, without and with what the decision is about.
    Step,
}

/// One thing that was considered and what came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Decision {
    /// What it is about: a weight, an instruction.
    pub subject: String,
    /// Its size in bytes on one device.
    pub bytes: u64,
    /// What the framework calls the weights and the state that it is about, as `state.params['Dense_0']['kernel']`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<String>,
    /// The computation that holds it.
    pub computation: String,
    /// What was done: `sharded`, `left` …
    pub action: String,
    /// Why.
    pub reason: String,
    /// How: the format chosen, if any.
    pub format: Option<String>,
    /// Collectives removed and inserted.
    pub collectives: Vec<CollectiveChange>,
    /// What the predicted times are times of.
    pub predicted_for: PredictedFor,
    /// Predicted time of what was there, in nanoseconds.
    pub predicted_before_ns: Option<f64>,
    /// Predicted time of what is there now, in nanoseconds.
    pub predicted_after_ns: Option<f64>,
    /// What else was possible and why it was not done.
    pub rejected: Vec<Alternative>,
}

impl Decision {
    /// A decision about `inst` as it stands in `module`, without collectives yet.
    pub fn about(module: &Module, inst: InstId, action: &str, reason: impl fmt::Display) -> Decision {
        let shape = match module.shape(inst) {
            Shape::Array(array) => {
                let dims: Vec<String> = array.dims.iter().map(i64::to_string).collect();
                format!("{}[{}]", array.dtype, dims.join(","))
            }
            Shape::Tuple(elements) => format!("tuple of {}", elements.len()),
            Shape::Token | Shape::Opaque | Shape::Buffer(_) => "no array".into(),
        };
        Decision {
            subject: format!("%{} {shape}", module.inst_name(inst)),
            bytes: module.shape(inst).size_bytes(),
            computation: module.comp_name(module.inst(inst).parent).into(),
            action: action.into(),
            reason: reason.to_string(),
            ..Decision::default()
        }
    }

    /// The same with predicted times of the whole step before and after, in nanoseconds.
    pub fn with_step_times(self, [before_ns, after_ns]: [f64; 2]) -> Decision {
        Decision {
            predicted_for: PredictedFor::Step,
            predicted_before_ns: Some(before_ns),
            predicted_after_ns: Some(after_ns),
            ..self
        }
    }
}

/// Something that was possible and not done.
#[derive(Clone, Debug, Serialize)]
pub struct Alternative {
    /// What.
    pub what: String,
    /// Why not.
    pub because: String,
}
