//! Which instructions may be written anew: nothing is lost of what stands beside them, and nobody sees how their values lie.

use cranelift_entity::EntitySet;

use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode, Shape};

/// Whether nothing stands beside an op that would be lost with it; attributes of the front end are looked at elsewhere.
pub(crate) fn says_nothing_beside(module: &Module, inst: InstId) -> bool {
    module.inst(inst).marks.as_ref().is_none_or(|marks| {
        marks.control_predecessors.is_empty()
            && marks.sharding.is_none()
            && marks.backend_config.is_none()
            && marks.result_accuracy == Default::default()
            && marks.statistics == Default::default()
    })
}

/// Whether an instruction gives one array.
pub(crate) fn is_array(module: &Module, inst: InstId) -> bool {
    matches!(module.shape(inst), Shape::Array(array) if array.dynamic == 0)
}

/// Values of which somebody sees how they lie: results of the computation, and what is taken by an op that is no function of elements and
/// their places alone (`bitcast`, custom calls).
pub(crate) fn seen_layouts(module: &Module, comp: CompId) -> EntitySet<InstId> {
    let mut seen: EntitySet<InstId> = EntitySet::new();
    seen.extend(module.comp(comp).root.expand());
    for &inst in &module.comp(comp).insts {
        if module.inst(inst).opcode.row().factors.row().sees_layouts {
            seen.extend(module.inst(inst).operands.iter().copied());
        }
    }
    seen
}

/// Whether an instruction gives one array that may lie as arrays do where nothing is said.
pub(crate) fn may_lie_otherwise(module: &Module, inst: InstId, seen: &EntitySet<InstId>) -> bool {
    let Some(array) = module.shape(inst).as_array().filter(|_| is_array(module, inst)) else { return false };
    let unsaid = ArrayShape::new(array.dtype, array.dims.iter().copied());
    let plain = unsaid.clone().with_row_major();
    if *array == unsaid || *array == plain {
        return true;
    }
    let is_seen = seen.contains(inst) || module.inst(inst).opcode == Opcode::Parameter;
    let mut turned = array.clone();
    if let (Some(own), Some(plain)) = (&mut turned.layout, &plain.layout) {
        own.minor_to_major = plain.minor_to_major.clone();
    }
    // Tiles and memory spaces are kept as they are.
    !is_seen && turned == plain
}
