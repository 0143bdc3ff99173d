//! What passes decided and why, as data: the command line prints it as text or JSON.

use hlo_ir::Module;
use indexmap::IndexMap;
use serde::Serialize;

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
    Text(String),
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

/// One thing that was considered and what came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Decision {
    /// What it is about: a weight, an instruction.
    pub subject: String,
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
    /// Predicted time of what was there, in nanoseconds.
    pub predicted_before_ns: Option<f64>,
    /// Predicted time of what is there now, in nanoseconds.
    pub predicted_after_ns: Option<f64>,
    /// What else was possible and why it was not done.
    pub rejected: Vec<Alternative>,
}

/// One collective that a decision removed or inserted.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveChange {
    /// `removed` or `inserted`.
    pub change: &'static str,
    /// Its opcode.
    pub op: String,
    /// Its name in the module before (removed) or after (inserted).
    pub instruction: String,
    /// Why it is there or gone.
    pub because: String,
    /// Bytes of the whole tensor, per device.
    pub bytes: u64,
    /// Devices in a group.
    pub group_size: u64,
    /// Predicted time, in nanoseconds; not a number where the pass has no cost model.
    pub predicted_ns: f64,
}

/// Something that was possible and not done.
#[derive(Clone, Debug, Serialize)]
pub struct Alternative {
    /// What.
    pub what: String,
    /// Why not.
    pub because: String,
}
