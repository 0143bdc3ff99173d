//! Puts what was done to a collective, and what was not, into the report.

use hlo_ir::{InstId, Module, Shape};
use hlo_pass::report::{CollectiveChange, Decision};

/// A decision about `inst` as it stands in `module`, without collectives yet.
pub fn decision(module: &Module, inst: InstId, action: &str, reason: impl Into<String>) -> Decision {
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
        computation: module.comp_name(module.inst(inst).parent).into(),
        action: action.into(),
        reason: reason.into(),
        ..Decision::default()
    }
}

/// A collective that goes.
pub fn removed(module: &Module, inst: InstId, because: impl Into<String>) -> CollectiveChange {
    change(module, inst, "removed", because.into())
}

/// A collective that is new.
pub fn inserted(module: &Module, inst: InstId, because: impl Into<String>) -> CollectiveChange {
    change(module, inst, "inserted", because.into())
}

/// These passes have no cost model: the predicted time is not a number.
fn change(module: &Module, inst: InstId, change: &'static str, because: String) -> CollectiveChange {
    let groups = module.device_groups(inst).ok();
    let group_size = groups.and_then(|g| g.groups.iter().map(Vec::len).max()).unwrap_or(0);
    let whole = |inst: &InstId| module.shape(*inst).size_bytes();
    // The larger of what goes in and what comes out is the whole tensor, also of a gather or a scatter.
    let bytes = whole(&inst).max(module.inst(inst).operands.iter().map(whole).sum());
    CollectiveChange {
        change,
        op: module.inst(inst).opcode.name().into(),
        instruction: module.inst_name(inst).into(),
        because,
        bytes,
        group_size: group_size as u64,
        predicted_ns: f64::NAN,
    }
}
