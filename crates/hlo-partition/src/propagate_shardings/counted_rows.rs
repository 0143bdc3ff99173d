//! Gathers and scatters that take of each row of the operand what belongs to a row of the indices: one component of the index counts the
//! rows. Along them operand, indices and result can be cut alike.
//!
//! Batching dims say the same in words; this is how programs say it that do not have these.

use super::ties::{FactorEffect, TieFactor, TieRule};
use hlo_ir::attrs::Attrs;
use hlo_ir::{InstId, Module, Opcode};
use smallvec::smallvec;

/// How operand, indices and result are tied along rows that are counted.
struct Rows<'a> {
    index_vector_dim: i64,
    /// For each component of an index the dim of the operand.
    components: &'a [i64],
    /// The dims of the operand of which one row is taken.
    single: Vec<i64>,
    /// The dims of the result of a gather, or the updates of a scatter, that windows fill.
    window_dims: &'a [i64],
}

/// The rule that ties the counted rows of a gather or scatter; `None` if none are.
pub(super) fn find_counted_rows(module: &Module, inst: InstId) -> Option<TieRule> {
    let instruction = module.inst(inst);
    let (rows, is_gather) = if let Attrs::Gather(a) = &instruction.attrs {
        let is_single = |dim: &&i64| a.slice_sizes.get(**dim as usize) == Some(&1);
        let single = a.start_index_map.iter().filter(is_single).copied().collect();
        let components = a.start_index_map.as_slice();
        (Rows { index_vector_dim: a.index_vector_dim, components, single, window_dims: &a.offset_dims }, true)
    } else if let Attrs::Scatter(a) = &instruction.attrs {
        let components = a.scatter_dims_to_operand_dims.as_slice();
        let (single, window_dims) = (a.inserted_window_dims.to_vec(), a.update_window_dims.as_slice());
        (Rows { index_vector_dim: a.index_vector_dim, components, single, window_dims }, false)
    } else {
        return None;
    };
    if !is_gather && instruction.operands.len() != 3 {
        return None;
    }
    let indices = *instruction.operands.get(1)?;
    let dims_of = |inst: InstId| module.shape(inst).as_array().map(|array| array.dims.clone());
    let (of_operand, of_indices) = (dims_of(*instruction.operands.first()?)?, dims_of(indices)?);
    let windowed = if is_gather { inst } else { *instruction.operands.get(2)? };
    let of_windowed = dims_of(windowed)?;
    let batch: Vec<usize> = (0..of_windowed.len()).filter(|&d| !rows.window_dims.contains(&(d as i64))).collect();
    let n_tensors = if is_gather { 3 } else { 4 };
    let ranks = [of_operand.len(), of_indices.len(), of_windowed.len(), of_operand.len()];
    let mut rule = TieRule {
        factors: Vec::new(),
        tensors: ranks.iter().take(n_tensors).map(|&rank| vec![smallvec![]; rank]).collect(),
    };
    for (component, &dim) in rows.components.iter().enumerate().filter(|(_, dim)| rows.single.contains(dim)) {
        let Some(along) =
            component_of(module, indices, rows.index_vector_dim, component).and_then(|inst| counted_dim(module, inst))
        else {
            continue;
        };
        let Ok(dim) = usize::try_from(dim) else { continue };
        // Which of the batch dims it is, the index vector left out.
        let place = along - usize::from(rows.index_vector_dim >= 0 && (rows.index_vector_dim as usize) < along);
        let Some(&place) = batch.get(place) else { continue };
        if along as i64 == rows.index_vector_dim || of_operand.get(dim) != of_indices.get(along) {
            continue;
        }
        let factor = rule.factors.len() as u16;
        rule.factors.push(TieFactor { size: *of_operand.get(dim)?, effect: FactorEffect::Pass });
        for (tensor, dim) in [(0, dim), (1, along), (2, place), (3, dim)].into_iter().take(n_tensors) {
            *rule.tensors.get_mut(tensor)?.get_mut(dim)? = smallvec![factor];
        }
    }
    (!rule.factors.is_empty()).then_some(rule)
}

/// The array of one component of all indices, if the indices are made of such.
fn component_of(module: &Module, indices: InstId, vector_dim: i64, component: usize) -> Option<InstId> {
    let instruction = module.inst(indices);
    if instruction.opcode != Opcode::Concatenate {
        let n = module.shape(indices).as_array()?.dims.get(vector_dim as usize).copied().unwrap_or(1);
        return (n == 1 && component == 0).then_some(indices);
    }
    let Attrs::Dims(a) = &instruction.attrs else { return None };
    if a.dimensions.as_slice() != [vector_dim] {
        return None;
    }
    let mut at = 0;
    for &operand in &instruction.operands {
        let n = *module.shape(operand).as_array()?.dims.get(vector_dim as usize)?;
        if at == component as i64 && n == 1 {
            return Some(operand);
        }
        at += n;
    }
    None
}

/// The dim along which an array holds 0, 1, 2 …, if there is one.
fn counted_dim(module: &Module, inst: InstId) -> Option<usize> {
    let mut inst = inst;
    // What was gone through, the last first: for each dim of an operand the dim that it is above.
    let mut above: Vec<Vec<Option<usize>>> = Vec::new();
    let counted = loop {
        let instruction = module.inst(inst);
        if let Attrs::Iota(a) = &instruction.attrs {
            break usize::try_from(a.iota_dimension).ok()?;
        }
        let operand = instruction.operands.first().copied()?;
        let of_operand = if let (Attrs::Dims(a), Opcode::Broadcast) = (&instruction.attrs, instruction.opcode) {
            a.dimensions.iter().map(|&dim| usize::try_from(dim).ok()).collect()
        } else if instruction.opcode == Opcode::Reshape {
            kept_dims(module, operand, inst)?
        } else if instruction.opcode == Opcode::Convert || instruction.opcode == Opcode::Copy {
            (0..module.shape(operand).as_array()?.rank()).map(Some).collect()
        } else {
            return None;
        };
        above.push(of_operand);
        inst = operand;
    };
    above.iter().rev().try_fold(counted, |dim, to| to.get(dim).copied().flatten())
}

/// For each dim of a reshape's operand the dim of the result that is the same, if only dims of size 1 come and go.
fn kept_dims(module: &Module, operand: InstId, result: InstId) -> Option<Vec<Option<usize>>> {
    let (from, to) = (module.shape(operand).as_array()?, module.shape(result).as_array()?);
    let mut large = to.dims.iter().enumerate().filter(|(_, size)| **size != 1);
    let mut out = Vec::new();
    for &size in &from.dims {
        out.push(if size == 1 { None } else { Some(large.next().filter(|(_, to)| **to == size)?.0) });
    }
    large.next().is_none().then_some(out)
}
