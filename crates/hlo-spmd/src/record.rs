//! The record that explains a collective in a report.

use hlo_ir::{InstId, Module};
use serde::Serialize;

/// One collective that a decision removed or inserted.
#[derive(Clone, PartialEq, Debug, Serialize)]
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
    /// Devices in a group; of a permute, pairs.
    pub group_size: u64,
    /// Predicted time, in nanoseconds; `None` where the pass has no cost model.
    pub predicted_ns: Option<f64>,
}

impl CollectiveChange {
    /// The record of a collective of `module` that a pass removes. It has no predicted time.
    pub fn removed(module: &Module, inst: InstId, because: impl Into<String>) -> CollectiveChange {
        CollectiveChange::new("removed", module, inst, because.into())
    }

    /// The record of a collective of `module` that a pass inserted. It has no predicted time.
    pub fn inserted(module: &Module, inst: InstId, because: impl Into<String>) -> CollectiveChange {
        CollectiveChange::new("inserted", module, inst, because.into())
    }

    /// The same record with a predicted time, in nanoseconds.
    pub fn taking(self, predicted_ns: f64) -> CollectiveChange {
        CollectiveChange { predicted_ns: Some(predicted_ns), ..self }
    }

    fn new(change: &'static str, module: &Module, inst: InstId, because: String) -> CollectiveChange {
        let groups = module.device_groups(inst).ok();
        let in_group = groups.and_then(|g| g.groups.iter().map(Vec::len).max());
        let group_size = in_group.or_else(|| Some(module.device_pairs(inst).ok()?.len())).unwrap_or(0);
        let bytes = |inst: &InstId| module.shape(*inst).size_bytes();
        // An all-gather puts out the whole tensor, a reduce-scatter takes it in: the whole is the larger of the two sides.
        let whole_bytes = bytes(&inst).max(module.inst(inst).operands.iter().map(bytes).sum());
        CollectiveChange {
            change,
            op: module.inst(inst).opcode.name().into(),
            instruction: module.inst_name(inst).into(),
            because,
            bytes: whole_bytes,
            group_size: group_size as u64,
            predicted_ns: None,
        }
    }
}
