//! One instruction on N devices: shards of its operands, adjusted as its local form says, a program that all devices run, and
//! their results joined.

use crate::shards::*;
use crate::{Array, Case, add_parameters, fresh_entry};
use hlo_eval::{EvalOptions, Inputs, run};
use hlo_ir::attrs::{Attrs, CombiningAttrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::factors::{FactorId, FactorSet};
use hlo_ir::groups::ReplicaGroups;
use hlo_ir::localize::{LocalForm, OperandAdjust, OutsideValue, ResultAdjust};
use hlo_ir::monoid::Monoid;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Opcode, Scalar, Shape};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The results of the case, computed by devices that each hold a shard, where factor `i` is cut into `n_shards[i]`.
pub(crate) fn run_on_shards(
    case: &Case<'_>,
    set: &FactorSet,
    n_shards: &[i64],
    form: &LocalForm,
) -> Result<Vec<Literal>, String> {
    let devices = Shard::of_all_devices(n_shards);
    let mut rows: Vec<Vec<Array>> = vec![Vec::new(); case.operands.len()];
    let masks: Vec<&ResultAdjust> =
        form.after.iter().filter(|a| matches!(a, ResultAdjust::MaskMisses { .. })).collect();
    let mut hits: Vec<Vec<Array>> = vec![Vec::new(); masks.len()];
    for shard in &devices {
        let operands = operands_on(case, set, shard, form)?;
        for (mask, row) in masks.iter().zip(&mut hits) {
            row.push(Arc::new(hits_of(mask, &operands, &form.results)?));
        }
        rows.iter_mut().zip(operands).for_each(|(row, operand)| row.push(Arc::new(operand)));
    }
    let module = build(case, &devices, form)?;
    hlo_ir::verify::verify(&module).map_err(|d| format!("does not verify: {}", d[0].message))?;
    rows.extend(hits);
    let outputs = run(&module, &Inputs { leaves: rows }, &EvalOptions::default()).map_err(|e| e.to_string())?;
    join(case, set, &devices, form, &outputs.leaves)
}

/// The operands that a device gives to the local op.
fn operands_on(case: &Case<'_>, set: &FactorSet, cut: &Shard, form: &LocalForm) -> Result<Vec<Literal>, String> {
    let mut locals: Vec<Literal> = Vec::new();
    for (k, whole) in case.operands.iter().enumerate() {
        let mut places = places(&set.operands[k], cut);
        let mut fill = garbage(whole.dtype());
        // An index in padding is that of a row that exists: what stands beside it must be masked.
        if case.node.opcode == Opcode::Scatter && k == case.operands.len() / 2 {
            fill = Scalar::Int(0);
        }
        for adjust in &form.before {
            match adjust {
                OperandAdjust::Halo { operand, dim, factor, starts, size, fill: with } if *operand == k => {
                    let rows = (0..*size).map(|i| starts[cut.at[*factor] as usize] + i);
                    places[*dim] = rows.map(|i| (0..whole.dims()[*dim]).contains(&i).then_some(i)).collect();
                    fill = match with {
                        OutsideValue::Any => fill,
                        OutsideValue::Identity(monoid) => identity(*monoid, whole.dtype())?,
                        OutsideValue::Operand(scalar) => case.operands[*scalar].get(0).ok_or("an empty scalar")?,
                    };
                }
                OperandAdjust::Margin { operand, dim, margin } if *operand == k => {
                    let margin = vec![None; *margin as usize];
                    places[*dim] = [margin.clone(), places[*dim].clone(), margin].concat();
                }
                OperandAdjust::Halo { .. }
                | OperandAdjust::Margin { .. }
                | OperandAdjust::Mask { .. }
                | OperandAdjust::EnterOnce { .. }
                | OperandAdjust::ShiftIndex { .. } => {}
            }
        }
        locals.push(take(whole, &places, fill));
    }
    form.before.iter().try_for_each(|adjust| apply(adjust, &mut locals, cut))?;
    let is_right = |(local, shape): (&Literal, &ArrayShape)| local.dims() == shape.dims.as_slice();
    match locals.iter().zip(&form.operands).all(is_right) {
        true => Ok(locals),
        false => Err(format!("expected operands {:?}, found {locals:?}", form.operands)),
    }
}

fn identity(monoid: Monoid, dtype: DType) -> Result<Scalar, String> {
    monoid.identity(dtype).ok_or_else(|| format!("{dtype} has no identity of {monoid:?}"))
}

/// What changes the values of a shard's operands.
fn apply(adjust: &OperandAdjust, operands: &mut [Literal], cut: &Shard) -> Result<(), String> {
    match adjust {
        // These decide which elements a shard takes.
        OperandAdjust::Halo { .. } | OperandAdjust::Margin { .. } => {}
        OperandAdjust::Mask { operand, dim, factor, minor, tile, size, monoid } => {
            let local = &mut operands[*operand];
            let (dims, neutral) = (local.dims().to_vec(), identity(*monoid, local.dtype())?);
            for i in 0..local.n_elems() {
                if coordinates(&dims, i)[*dim] / minor % tile + cut.at[*factor] * tile >= *size {
                    local.set(i, neutral);
                }
            }
        }
        OperandAdjust::EnterOnce { operand, factors, monoid } => {
            let local = &mut operands[*operand];
            if factors.iter().any(|&factor| cut.at[factor] > 0) {
                let neutral = identity(*monoid, local.dtype())?;
                (0..local.n_elems()).for_each(|i| {
                    local.set(i, neutral);
                });
            }
        }
        OperandAdjust::ShiftIndex { operand, component, factor, max, tile, add } => {
            let local = &mut operands[*operand];
            let dims = local.dims().to_vec();
            for i in 0..local.n_elems() {
                if component.is_some_and(|(dim, place)| coordinates(&dims, i)[dim] != place as i64) {
                    continue;
                }
                let index = as_index(local.get(i))?;
                let index = max.map_or(index, |max| index.clamp(0, max));
                local.set(i, Scalar::Int(index - cut.at[*factor] * tile + add));
            }
        }
    }
    Ok(())
}

fn as_index(value: Option<Scalar>) -> Result<i64, String> {
    match value {
        Some(Scalar::Int(x)) => Ok(x),
        Some(Scalar::Uint(x)) => Ok(i64::try_from(x).unwrap_or(i64::MAX)),
        other => Err(format!("expected an index, found {other:?}")),
    }
}

/// For each element of a result, whether the index that it was read by lies in the tile.
fn hits_of(mask: &ResultAdjust, operands: &[Literal], results: &[ArrayShape]) -> Result<Literal, String> {
    let ResultAdjust::MaskMisses { leaf, operand, component, tile, batch } = mask else {
        return Err("expected a mask".into());
    };
    let (indices, dims) = (&operands[*operand], &results[*leaf].dims);
    let mut hits = Literal::zeros(DType::Pred, dims).map_err(|e| e.to_string())?;
    for i in 0..hits.n_elems() {
        let at = coordinates(dims, i);
        let mut index_at = vec![0; indices.dims().len()];
        batch.iter().for_each(|&(index_dim, result_dim)| index_at[index_dim] = at[result_dim]);
        component.iter().for_each(|&(dim, place)| index_at[dim] = place as i64);
        let index = as_index(indices.get(linear(indices.dims(), &index_at)))?;
        hits.set(i, Scalar::Pred((0..*tile).contains(&index)));
    }
    Ok(hits)
}

/// The program of every device: the local op, masks of its results, all-reduces of partial results.
fn build(case: &Case<'_>, devices: &[Shard], form: &LocalForm) -> Result<Module, String> {
    let (mut module, comp) = fresh_entry(case.module);
    module.header.replica_count = devices.len() as i64;
    let mut params: Vec<Shape> = form.operands.iter().cloned().map(Shape::Array).collect();
    for adjust in &form.after {
        if let ResultAdjust::MaskMisses { leaf, .. } = adjust {
            params.push(Shape::array(DType::Pred, form.results[*leaf].dims.iter().copied()));
        }
    }
    let params = add_parameters(&mut module, comp, &params);
    let (operands, hits) = params.split_at(form.operands.len());
    let shapes: Vec<Shape> = form.results.iter().cloned().map(Shape::Array).collect();
    let is_tuple = case.result_shape.as_tuple().is_some();
    let shape = if is_tuple { Shape::Tuple(shapes.clone()) } else { shapes[0].clone() };
    let mut b = Builder::new(&mut module, comp);
    let local = b.add("local", case.node.opcode, shape, operands.iter().copied(), form.attrs.clone());
    let mut leaves = vec![local];
    if is_tuple {
        let leaf = |(k, shape): (usize, &Shape)| {
            let attrs = TupleIndexAttrs { index: k as i64 };
            b.add("leaf", Opcode::GetTupleElement, shape.clone(), [local], attrs)
        };
        leaves = shapes.iter().enumerate().map(leaf).collect();
    }
    let mut hits = hits.iter();
    for adjust in &form.after {
        match adjust {
            ResultAdjust::MaskMisses { leaf, .. } => {
                let hit = *hits.next().ok_or("a mask without a parameter")?;
                leaves[*leaf] = masked(&mut module, comp, leaves[*leaf], hit, &form.results[*leaf])?;
            }
            ResultAdjust::Combine { leaf, factors, monoid } => {
                let groups = groups_along(devices, factors);
                leaves[*leaf] = combined(&mut module, comp, leaves[*leaf], (*monoid, groups), &form.results[*leaf]);
            }
            // These are done as the shards are joined.
            ResultAdjust::AddOffset { .. } | ResultAdjust::Crop { .. } | ResultAdjust::PickPieces { .. } => {}
        }
    }
    let root = Builder::new(&mut module, comp).add("out", Opcode::Tuple, Shape::Tuple(shapes), leaves, Attrs::Plain);
    module.comp_mut(comp).root = Some(root).into();
    // The reducers that were added come before their caller.
    let others = module.computations().iter().copied().filter(|&c| c != comp);
    let order = others.chain([comp]).collect();
    module.set_computation_order(order);
    Ok(module)
}

fn masked(module: &mut Module, comp: CompId, value: InstId, hit: InstId, shape: &ArrayShape) -> Result<InstId, String> {
    let zeros = Literal::zeros(shape.dtype, &shape.dims).map_err(|e| e.to_string())?;
    let mut b = Builder::new(module, comp);
    let zeros = b.constant("zeros", zeros);
    Ok(b.add("masked", Opcode::Select, Shape::Array(shape.clone()), [hit, value, zeros], Attrs::Plain))
}

/// Groups of devices that hold the same shards along all other factors.
fn groups_along(devices: &[Shard], factors: &[FactorId]) -> ReplicaGroups {
    let mut groups: BTreeMap<Vec<i64>, Vec<i64>> = BTreeMap::new();
    for (device, shard) in devices.iter().enumerate() {
        let others = shard.at.iter().enumerate().filter(|(factor, _)| !factors.contains(factor));
        groups.entry(others.map(|(_, &at)| at).collect()).or_default().push(device as i64);
    }
    ReplicaGroups::List(groups.into_values().collect())
}

fn combined(
    module: &mut Module,
    comp: CompId,
    value: InstId,
    (monoid, replica_groups): (Monoid, ReplicaGroups),
    shape: &ArrayShape,
) -> InstId {
    let name = module.names.fresh("combine");
    let reducer = module.add_computation(name);
    let scalar = Shape::array(shape.dtype, []);
    let params = add_parameters(module, reducer, &[scalar.clone(), scalar.clone()]);
    let root = Builder::new(module, reducer).add("both", monoid.opcode(), scalar, params, Attrs::Plain);
    module.comp_mut(reducer).root = Some(root).into();
    let attrs = CombiningAttrs { to_apply: Some(reducer), replica_groups, ..CombiningAttrs::default() };
    Builder::new(module, comp).add("combined", Opcode::AllReduce, Shape::Array(shape.clone()), [value], attrs)
}

/// The whole results from those of all devices, which agree on what several of them hold.
fn join(
    case: &Case<'_>,
    set: &FactorSet,
    devices: &[Shard],
    form: &LocalForm,
    outputs: &[Vec<Array>],
) -> Result<Vec<Literal>, String> {
    let mut joined = Vec::new();
    for (leaf, (whole, tensor)) in case.results.iter().zip(&set.results).enumerate() {
        let parts = outputs[leaf].iter().zip(devices).map(|(part, shard)| finished(part, leaf, shard, form));
        let parts: Vec<(Literal, Places)> = parts.zip(devices.iter().map(|shard| places(tensor, shard))).collect();
        let mut all = Literal::zeros(whole.dtype(), whole.dims()).map_err(|e| e.to_string())?;
        parts.iter().for_each(|(part, places)| put(&mut all, part, places));
        if parts.iter().any(|(part, places)| !agrees(&all, part, places)) {
            return Err("devices disagree".into());
        }
        joined.push(all);
    }
    Ok(joined)
}

/// A device's result after what is left to do to it.
fn finished(part: &Literal, leaf: usize, shard: &Shard, form: &LocalForm) -> Literal {
    let mut part = part.clone();
    for adjust in &form.after {
        match adjust {
            ResultAdjust::Crop { leaf: of, dim, factor, starts, size } if *of == leaf => {
                let start = starts[shard.at[*factor] as usize];
                let all = |n: &i64| (0..*n).map(Some).collect::<Vec<_>>();
                let mut places: Places = part.dims().iter().map(all).collect();
                places[*dim] = (start..start + size).map(Some).collect();
                part = take(&part, &places, garbage(part.dtype()));
            }
            ResultAdjust::PickPieces { leaf: of, dim, factor, tile, ends } if *of == leaf => {
                let all = |n: &i64| (0..*n).map(Some).collect::<Vec<_>>();
                let mut places: Places = part.dims().iter().map(all).collect();
                let piece = |row: i64| ends.iter().position(|&end| shard.at[*factor] * tile + row < end);
                places[*dim] = (0..*tile).map(|row| piece(row).map(|k| k as i64 * tile + row)).collect();
                part = take(&part, &places, garbage(part.dtype()));
            }
            ResultAdjust::AddOffset { leaf: of, factor, step } if *of == leaf => {
                for i in 0..part.n_elems() {
                    let offset = shard.at[*factor] * step;
                    let moved = match part.get(i) {
                        Some(Scalar::Int(x)) => Scalar::Int(x + offset),
                        Some(Scalar::Uint(x)) => Scalar::Uint(x.wrapping_add_signed(offset)),
                        Some(Scalar::Float(x)) => Scalar::Float(x + offset as f64),
                        Some(Scalar::Complex(re, im)) => Scalar::Complex(re + offset as f64, im),
                        Some(Scalar::Pred(_)) | None => continue,
                    };
                    part.set(i, moved);
                }
            }
            ResultAdjust::Crop { .. }
            | ResultAdjust::PickPieces { .. }
            | ResultAdjust::AddOffset { .. }
            | ResultAdjust::MaskMisses { .. }
            | ResultAdjust::Combine { .. } => {}
        }
    }
    part
}
