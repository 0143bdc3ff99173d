//! Write physical copies where a step needs another layout than the module has.
//!
//! A dot whose dims do not lie as a product needs them gets `copy` instructions of an operand or of its result, the
//! cheapest of the combinations that fit. A collective needs operand and result in one layout, and scattered or gathered
//! dims slowest. The result of ENTRY gets the layout that the header states, loops and branches what their computations state
//! ([`super::boundaries`]). Everything is HLO, so the lowering has no
//! copies of its own.

use super::boundaries::{restate, rewrite_boundaries};
use super::dot::relaid_choices;
use super::strides::is_same_layout;
use crate::GpuError;
use crate::plan::has_library_types;
use hashbrown::HashSet;
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::op::Flow;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Layout, Module, Opcode, Shape};

/// Rewrites the computations whose instructions become steps: ENTRY and what it reaches by loops, branches and calls.
///
/// # Errors
/// An instruction whose layouts cannot be made right.
pub(crate) fn rewrite_module(module: &mut Module) -> Result<(), GpuError> {
    let before = module.n_inst_slots();
    let comps = stepwise_computations(module);
    for &comp in &comps {
        for inst in module.comp(comp).insts.clone() {
            if module.inst(inst).opcode == Opcode::Dot {
                round_operands(module, inst);
                rewrite_dot(module, inst);
            } else if scattered_dim(module, inst).is_some() {
                rewrite_collective(module, inst);
            } else if module.inst(inst).opcode == Opcode::OptimizationBarrier {
                rewrite_barrier(module, inst);
            } else {
                rewrite_boundaries(module, inst);
            }
        }
        if Some(comp) == module.entry() {
            rewrite_result(module, comp);
        }
    }
    if module.n_inst_slots() != before {
        for comp in comps {
            let restored = module.restore_order(comp);
            restored.map_err(|inst| GpuError::unsupported(module.inst_name(inst), "expected no cycle, found one"))?;
        }
    }
    Ok(())
}

/// ENTRY and the computations that it reaches by loops, branches and calls, but not by fusions or reducers.
pub(crate) fn stepwise_computations(module: &Module) -> Vec<CompId> {
    let mut found: Vec<CompId> = module.entry().into_iter().collect();
    let mut known: HashSet<CompId> = found.iter().copied().collect();
    let mut next = 0;
    while let Some(&comp) = found.get(next) {
        next += 1;
        for &inst in &module.comp(comp).insts {
            let opcode = module.inst(inst).opcode;
            if opcode != Opcode::Fusion && opcode.row().flow.entry().is_some() {
                let callees = module.called(inst);
                found.extend(callees.into_iter().filter(|&callee| known.insert(callee)));
            }
        }
    }
    found
}

/// The same array with its dims, slowest first, in this order.
fn laid_out(shape: &ArrayShape, layout: Layout) -> ArrayShape {
    ArrayShape { layout: Some(Box::new(layout)), ..shape.clone() }
}

/// A physical copy of an array-shaped value.
fn copy_to(module: &mut Module, value: InstId, shape: ArrayShape) -> InstId {
    let comp = module.inst(value).parent;
    let hint = format!("{}.layout", module.inst_name(value));
    Builder::new(module, comp).add(&hint, Opcode::Copy, Shape::Array(shape), [value], Attrs::Plain)
}

/// Converts the operands of a dot to the type to which its algorithm rounds them, if the library multiplies that type.
fn round_operands(module: &mut Module, inst: InstId) {
    let Attrs::Dot(attrs) = &module.inst(inst).attrs else { return };
    let (Some(to), &[lhs, rhs]) = (attrs.operand_rounding(), module.inst(inst).operands.as_slice()) else { return };
    let dtype = |inst: InstId| module.shape(inst).as_array().map(|array| array.dtype);
    let (Some(lhs_dtype), Some(rhs_dtype), Some(out_dtype)) = (dtype(lhs), dtype(rhs), dtype(inst)) else { return };
    let is_rounded = attrs.rounds(lhs_dtype) || attrs.rounds(rhs_dtype);
    if !is_rounded || !has_library_types(to, to, out_dtype) {
        return;
    }
    let rounded = [lhs, rhs].map(|operand| convert_to(module, operand, to));
    module.inst_mut(inst).operands.copy_from_slice(&rounded);
}

/// The array-shaped value in another element type, in the same layout: itself, or a conversion.
fn convert_to(module: &mut Module, value: InstId, dtype: DType) -> InstId {
    let Some(array) = module.shape(value).as_array().filter(|array| array.dtype != dtype).cloned() else {
        return value;
    };
    let comp = module.inst(value).parent;
    let hint = format!("{}.{}", module.inst_name(value), dtype.name());
    let shape = Shape::Array(ArrayShape { dtype, ..array });
    Builder::new(module, comp).add(&hint, Opcode::Convert, shape, [value], Attrs::Plain)
}

fn rewrite_dot(module: &mut Module, inst: InstId) {
    let Attrs::Dot(attrs) = module.inst(inst).attrs.clone() else { return };
    let (lhs, rhs) = match module.inst(inst).operands.as_slice() {
        &[lhs, rhs] => (lhs, rhs),
        _ => return,
    };
    let array = |inst: InstId| module.shape(inst).as_array().cloned();
    let (Some(lhs_shape), Some(rhs_shape), Some(out_shape)) = (array(lhs), array(rhs), array(inst)) else { return };
    if !has_library_types(lhs_shape.dtype, rhs_shape.dtype, out_shape.dtype) {
        return;
    }
    let arrays = [lhs_shape, rhs_shape, out_shape];
    let Some(relaid) = relaid_choices(&attrs, &arrays).into_iter().min_by_key(|relaid| relaid.bytes()) else { return };
    for (i, operand) in [lhs, rhs].into_iter().enumerate() {
        if let Some(shape) = &relaid.arrays[i] {
            let copy = copy_to(module, operand, shape.clone());
            module.inst_mut(inst).operands[i] = copy;
        }
    }
    if let Some(shape) = &relaid.arrays[2] {
        restate_result(module, inst, vec![shape.clone()]);
    }
}

/// Gives a barrier's operand the layouts that its result states.
fn rewrite_barrier(module: &mut Module, inst: InstId) {
    let wanted = module.inst(inst).shape;
    let Some(&operand) = module.inst(inst).operands.first() else { return };
    let restated = restate(module, operand, wanted);
    module.inst_mut(inst).operands[0] = restated;
}

/// The scattered or gathered dim of a collective; `Some(None)` for collectives without one.
fn scattered_dim(module: &Module, inst: InstId) -> Option<Option<usize>> {
    let instruction = module.inst(inst);
    let Flow::Collective(rule) = instruction.opcode.row().flow else { return None };
    Some(if rule.has_dim() { instruction.attrs.collective()?.dim() } else { None })
}

/// Gives each operand and result of a collective one layout, with the scattered dim slowest.
fn rewrite_collective(module: &mut Module, inst: InstId) {
    let Some(dim) = scattered_dim(module, inst) else { return };
    let results: Vec<ArrayShape> = super::array_leaves(module.shape(inst)).into_iter().flatten().collect();
    let operands = module.inst(inst).operands.clone();
    if operands.len() != results.len() {
        return;
    }
    let mut wanted = Vec::new();
    for (k, (&operand, result)) in operands.iter().zip(&results).enumerate() {
        let Some(given) = module.shape(operand).as_array().cloned() else { return };
        // The operand's layout if it will do: then only the result may have to be copied.
        let mut order = given.minor_to_major();
        if let Some(dim) = dim.filter(|&dim| result.dims.get(dim).is_some() && !is_slowest(&given, result, dim)) {
            order = result.minor_to_major();
            order.retain(|d| *d != dim as i64);
            order.push(dim as i64);
        }
        let as_operand = laid_out(&given, Layout::new(order.clone()));
        if !is_same_layout(&as_operand, &given) {
            let copy = copy_to(module, operand, as_operand);
            module.inst_mut(inst).operands[k] = copy;
        }
        wanted.push(laid_out(result, Layout::new(order)));
    }
    if wanted.iter().zip(&results).any(|(wanted, result)| !is_same_layout(wanted, result)) {
        restate_result(module, inst, wanted);
    }
}

/// Whether shards along `dim` lie one after the other: no dim of more than one element is slower.
fn is_slowest(operand: &ArrayShape, result: &ArrayShape, dim: usize) -> bool {
    let order = operand.minor_to_major();
    let slower = order.iter().rev().take_while(|&&d| d != dim as i64);
    slower.into_iter().all(|&d| operand.dims[d as usize] == 1 && result.dims[d as usize] == 1)
}

/// Makes an instruction state other layouts, and copies its leaves back to the old ones for its users.
fn restate_result(module: &mut Module, inst: InstId, wanted: Vec<ArrayShape>) {
    let old = module.shape(inst).clone();
    let comp = module.inst(inst).parent;
    let as_stated = match &old {
        Shape::Tuple(_) => Shape::Tuple(wanted.iter().cloned().map(Shape::Array).collect()),
        Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => match wanted.first() {
            Some(shape) => Shape::Array(shape.clone()),
            None => return,
        },
    };
    let hint = format!("{}.layout", module.inst_name(inst));
    let users: Vec<InstId> =
        module.comp(comp).insts.iter().copied().filter(|&i| module.inst(i).operands.contains(&inst)).collect();
    let is_root = module.comp(comp).root.expand() == Some(inst);
    let stated = module.shapes.intern(as_stated);
    module.inst_mut(inst).shape = stated;
    let restored = match &old {
        Shape::Tuple(elements) => {
            let mut leaves = Vec::new();
            for (k, (element, wanted)) in elements.iter().zip(wanted).enumerate() {
                let Some(element) = element.as_array().cloned() else { return };
                let index = TupleIndexAttrs { index: k as i64 };
                let is_same = is_same_layout(&element, &wanted);
                let mut builder = Builder::new(module, comp);
                let leaf = builder.add(&hint, Opcode::GetTupleElement, Shape::Array(wanted), [inst], index);
                leaves.push(if is_same { leaf } else { copy_to(module, leaf, element) });
            }
            Builder::new(module, comp).add(&hint, Opcode::Tuple, old.clone(), leaves, Attrs::Plain)
        }
        Shape::Array(array) => copy_to(module, inst, array.clone()),
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => return,
    };
    for user in users {
        module.inst_mut(user).operands.iter_mut().filter(|o| **o == inst).for_each(|o| *o = restored);
    }
    if is_root {
        module.comp_mut(comp).root = Some(restored).into();
    }
}

/// Copies leaves of ENTRY's result whose layout is not the one that the header states.
fn rewrite_result(module: &mut Module, entry: CompId) {
    let Some(stated) = module.header.entry_computation_layout.as_ref().map(|layout| layout.result) else { return };
    let Some(root) = module.comp(entry).root.expand() else { return };
    let restated = restate(module, root, stated);
    if restated != root {
        module.comp_mut(entry).root = Some(restated).into();
    }
}
