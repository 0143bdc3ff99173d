//! The ops between an all-reduce and the slices that the devices take of it.

use crate::refusal::{CollectiveRefusal, ScatterRefusal};
use cranelift_entity::EntitySet;
use hlo_ir::attrs::{Attrs, DynamicSliceAttrs};
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};
use hlo_spmd::{AllReduce, NoOwnSlice, Rewrite, array, check_free, find_splat};

/// The ops from an all-reduce to the slices of its result, each the only user of the one before.
pub(super) struct Path {
    /// The ops, in order.
    steps: Vec<Step>,
    /// The slices, all of the last step's result.
    pub(super) readers: Vec<InstId>,
    /// The shape of the first.
    slice: ArrayShape,
}

/// An op on the path.
struct Step {
    inst: InstId,
    /// The value that it computes from: the step before, or the all-reduce.
    value: InstId,
    kind: StepKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepKind {
    /// The same elements in another order or shape.
    Rearranges,
    /// One element from one element of each operand.
    Computes,
}

/// The path of an all-reduce; `live_users` are the users of a value whose values are needed.
///
/// # Errors
/// Something takes the whole.
pub(super) fn find(
    module: &Module,
    all_reduce: &AllReduce,
    live_users: &dyn Fn(InstId) -> Vec<InstId>,
    pinned: &EntitySet<InstId>,
) -> Result<Path, CollectiveRefusal> {
    let root = module.comp(module.inst(all_reduce.inst).parent).root.expand();
    let (mut steps, mut value) = (Vec::new(), all_reduce.inst);
    loop {
        if root == Some(value) {
            return Err(ScatterRefusal::WholeReturned.into());
        }
        let users = live_users(value);
        users.iter().try_for_each(|&user| check_free(module, user, pinned))?;
        let is_slice = |&user: &InstId| {
            let instruction = module.inst(user);
            instruction.opcode == Opcode::DynamicSlice
                && instruction.operands.iter().position(|&o| o == value) == Some(0)
        };
        match users.as_slice() {
            [] => return Err(ScatterRefusal::Unused.into()),
            [first, ..] if users.iter().all(is_slice) => {
                let slice = array(module, *first).ok_or(ScatterRefusal::from(NoOwnSlice::NoArray))?.clone();
                return Ok(Path { steps, readers: users, slice });
            }
            &[inst] => {
                let whole_used = ScatterRefusal::WholeUsed { by: module.inst_name(inst).into() };
                let kind = step_kind(module, inst, value).ok_or(whole_used)?;
                steps.push(Step { inst, value, kind });
                value = inst;
            }
            several => {
                let by = several.iter().find(|user| !is_slice(user)).copied().unwrap_or(value);
                return Err(ScatterRefusal::WholeUsed { by: module.inst_name(by).into() }.into());
            }
        }
    }
}

/// Says how `inst`, a user of `value`, takes it; none if its slices need more than a slice of `value`.
fn step_kind(module: &Module, inst: InstId, value: InstId) -> Option<StepKind> {
    let opcode = module.inst(inst).opcode;
    let (from, to) = (array(module, value)?, array(module, inst)?);
    if to.dynamic != 0 {
        return None;
    }
    if [Opcode::Transpose, Opcode::Reshape, Opcode::Reverse].contains(&opcode) {
        return Some(StepKind::Rearranges);
    }
    let computes = (opcode.is_elementwise() && opcode.is_pure()) || opcode == Opcode::Copy;
    // A choice by one truth value, and bounds that are single numbers, are not sliced.
    let is_alike = |&operand: &InstId| array(module, operand).is_some_and(|o| o.dims == to.dims || o.rank() == 0);
    let is_sliced = from.dims == to.dims && module.inst(inst).operands.iter().all(is_alike);
    (computes && is_sliced).then_some(StepKind::Computes)
}

impl Path {
    /// The operand of the all-reduce, rearranged as the path does, and the shape of a device's slice of it.
    pub(super) fn rearrange(
        &self,
        module: &mut Module,
        rewrite: &Rewrite,
        all_reduce: &AllReduce,
    ) -> (InstId, ArrayShape) {
        // Without steps the slice lies in memory as its users want it.
        let model = if self.steps.is_empty() { Some(&self.slice) } else { array(module, all_reduce.inst) };
        let model = model.unwrap_or(&self.slice).clone();
        let operand = laid_out(module, rewrite, all_reduce.operand, &model);
        let whole = rearranged(module, rewrite, operand, &self.steps);
        let shape = array(module, whole).unwrap_or(&model).clone();
        (whole, ArrayShape { dims: self.slice.dims.clone(), ..shape })
    }

    /// Does the path's ops on `slice`, a device's part of the rearranged sum.
    pub(super) fn redo(&self, module: &mut Module, rewrite: &Rewrite, slice: InstId) -> InstId {
        let mut value = slice;
        for (place, step) in self.steps.iter().enumerate().filter(|(_, step)| step.kind == StepKind::Computes) {
            let behind = self.steps.get(place + 1..).unwrap_or_default();
            let source = module.inst(step.inst).clone();
            let [Some(before), Some(after)] = [value, step.inst].map(|inst| array(module, inst).cloned()) else {
                continue;
            };
            let mut operands = source.operands.clone();
            for operand in &mut operands {
                *operand = if *operand == step.value {
                    value
                } else {
                    self.sliced(module, rewrite, *operand, (behind, &before))
                };
            }
            let shape = Shape::Array(ArrayShape { dtype: after.dtype, ..before });
            let hint = module.inst_name(step.inst).to_string();
            value = rewrite.add(module, step.inst, (&hint, source.opcode), shape, &operands, source.attrs);
        }
        value
    }

    /// A device's slice of another operand of a step: rearranged by the steps `behind`, and in memory as `model` lies.
    fn sliced(
        &self,
        module: &mut Module,
        rewrite: &Rewrite,
        operand: InstId,
        (behind, model): (&[Step], &ArrayShape),
    ) -> InstId {
        let Some(whole) = array(module, operand).cloned() else { return operand };
        if whole.rank() == 0 {
            return operand;
        }
        let shape = ArrayShape { dtype: whole.dtype, ..model.clone() };
        if let Some(splat) = find_splat(module, operand) {
            return rewrite.repeat(module, "operand", splat, &shape);
        }
        let whole = rearranged(module, rewrite, operand, behind);
        let Some(&reader) = self.readers.first() else { return whole };
        let mut operands = module.inst(reader).operands.clone();
        operands[0] = whole;
        let dims = self.slice.dims.clone();
        let laid_out_alike = array(module, whole).unwrap_or(&shape).clone();
        let part = Shape::Array(ArrayShape { dims: dims.clone(), ..laid_out_alike });
        let hint = format!("{}.slice", module.inst_name(operand));
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: dims };
        let part = rewrite.add(module, reader, (&hint, Opcode::DynamicSlice), part, &operands, attrs);
        laid_out(module, rewrite, part, &shape)
    }
}

/// Rearranges `value`, which stands for the value before `steps`, as they do.
fn rearranged(module: &mut Module, rewrite: &Rewrite, mut value: InstId, steps: &[Step]) -> InstId {
    let Some(dtype) = array(module, value).map(|shape| shape.dtype) else { return value };
    for step in steps.iter().filter(|step| step.kind == StepKind::Rearranges) {
        let source = module.inst(step.inst).clone();
        let Some(shape) = array(module, step.inst).cloned() else { continue };
        let hint = format!("{}.local", module.inst_name(step.inst));
        let shape = Shape::Array(ArrayShape { dtype, ..shape });
        value = rewrite.add(module, step.inst, (&hint, source.opcode), shape, &[value], source.attrs);
    }
    value
}

/// `value` in memory as `model`, an array of the same rank, lies: itself, or a copy.
fn laid_out(module: &mut Module, rewrite: &Rewrite, value: InstId, model: &ArrayShape) -> InstId {
    let Some(shape) = array(module, value).cloned() else { return value };
    let wanted = ArrayShape { dims: shape.dims.clone(), ..model.clone() };
    if wanted == shape {
        return value;
    }
    rewrite.at(value).add(module, "copy", Opcode::Copy, wanted, &[value], Attrs::Plain)
}
