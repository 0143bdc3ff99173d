//! What is to be decomposed: an all-reduce, a reduce-scatter or an all-gather of one array or of several.

use crate::refusal::{CollectiveRefusal, DecomposeRefusal};
use cranelift_entity::EntitySet;
use hlo_cluster::Collective;
use hlo_ir::monoid::find_monoid;
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};
use hlo_spmd::{Obstacle, check_free, is_async_collective};

/// A collective that may be decomposed.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The instruction.
    pub inst: InstId,
    /// What it does.
    pub kind: Collective,
    /// Its arrays: what goes in, and the shape of what comes out.
    pub parts: Vec<(InstId, ArrayShape)>,
    /// Whether it gives a tuple.
    pub is_tuple: bool,
    /// The dim that is scattered or gathered; 0 for an all-reduce.
    pub dim: usize,
    /// Its groups of flat device ids, members in order.
    pub groups: Vec<Vec<u32>>,
}

/// The collective that `inst` is; `None` for other instructions.
///
/// # Errors
/// Why it is to be left as it is.
pub fn find_subject(
    module: &Module,
    inst: InstId,
    pinned: &EntitySet<InstId>,
) -> Result<Option<Subject>, CollectiveRefusal> {
    let instruction = module.inst(inst);
    let kinds = [
        (Opcode::AllReduce, Collective::AllReduce),
        (Opcode::ReduceScatter, Collective::ReduceScatter),
        (Opcode::AllGather, Collective::AllGather),
    ];
    if is_async_collective(module, inst) {
        return Err(Obstacle::Asynchronous.into());
    }
    let Some((_, kind)) = kinds.into_iter().find(|(opcode, _)| *opcode == instruction.opcode) else {
        return Ok(None);
    };
    check_free(module, inst, pinned)?;
    let dim = instruction.attrs.collective().ok_or(CollectiveRefusal::NoGroups)?.dim().unwrap_or(0);
    let (results, is_tuple) = match module.shape(inst) {
        Shape::Tuple(elements) => (elements.to_vec(), true),
        one => (vec![one.clone()], false),
    };
    let mut parts = Vec::with_capacity(results.len());
    for (&operand, result) in instruction.operands.iter().zip(&results) {
        let shapes = [module.shape(operand).as_array(), result.as_array()];
        let [Some(before), Some(after)] = shapes else { return Err(CollectiveRefusal::NoArrays) };
        if before.dynamic != 0 || after.dynamic != 0 {
            return Err(Obstacle::DynamicDims.into());
        }
        parts.push((operand, after.clone()));
    }
    if kind != Collective::AllGather {
        let reducer = module.called(inst).first().and_then(|&comp| find_monoid(module, comp));
        reducer.ok_or(DecomposeRefusal::UnknownReducer)?;
    }
    let groups = module.device_groups(inst).map_err(|_| Obstacle::MeaninglessGroups)?.groups;
    Ok(Some(Subject { inst, kind, parts, is_tuple, dim, groups }))
}

impl Subject {
    /// The whole array of a part: what an all-reduce works on, what is scattered, what has been gathered; in the layout of the
    /// result.
    pub fn whole(&self, module: &Module, part: usize) -> Option<ArrayShape> {
        let (operand, result) = self.parts.get(part)?;
        let mut whole = result.clone();
        if self.kind == Collective::ReduceScatter {
            whole.dims = module.shape(*operand).as_array()?.dims.clone();
        }
        Some(whole)
    }
}
