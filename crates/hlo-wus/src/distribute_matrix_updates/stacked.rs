//! The form of an op for a stack of arrays: every stacked operand and the result have one more dim, the first.

use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs, SliceDim};
use hlo_ir::monoid::find_monoid;
use hlo_ir::op::{FactorRule, Stacks};
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode};
use hlo_spmd::{Appender, SpmdError, array, is_rebuilt};

/// An operand of an op on stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stacked {
    /// One array for each update, along the first dim.
    Stack(InstId),
    /// The same array for all updates.
    Shared(InstId),
}

/// Whether a value is computed from nothing: a constant, an iota, a constant repeated.
pub(super) fn is_constant(module: &Module, inst: InstId) -> bool {
    is_rebuilt(module, inst) && module.inst(inst).operands.iter().all(|&operand| is_constant(module, operand))
}

/// Whether an op has a form for stacks.
pub(super) fn is_stackable(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let is_array = |inst: InstId| module.shape(inst).as_array().is_some_and(|array| array.dynamic == 0);
    if !is_array(inst) || !instruction.operands.iter().all(|&o| is_array(o)) || module.must_stay(inst) {
        return false;
    }
    let rule = instruction.opcode.row().factors;
    match rule.row().stacks {
        Stacks::All if rule == FactorRule::Elementwise => {
            !instruction.operands.is_empty() && module.called(inst).is_empty()
        }
        Stacks::All => rule != FactorRule::Dot || instruction.opcode == Opcode::Dot,
        // Updates are compared by the monoid, and the value that a reduction begins with is one for all.
        Stacks::First if rule == FactorRule::Reduce => {
            let is_monoid = module.called(inst).first().is_some_and(|&comp| find_monoid(module, comp).is_some());
            is_monoid && instruction.operands.len() == 2 && is_constant(module, instruction.operands[1])
        }
        Stacks::First | Stacks::Never => false,
    }
}

/// The shape of a stack of `n` arrays: `[n, dims…]`, the stacked dim major-most.
pub(super) fn stack_shape(of: &ArrayShape, n: i64) -> ArrayShape {
    let dims = std::iter::once(n).chain(of.dims.iter().copied());
    let mut shape = ArrayShape::new(of.dtype, dims);
    if let Some(layout) = &of.layout {
        let order = std::iter::once(0).chain(layout.minor_to_major.iter().rev().map(|&d| d as usize + 1));
        shape.layout = Some(hlo_ir::Layout::from_major_to_minor(order).into());
    }
    shape
}

/// Appends the stack `[n, …]` of `n` arrays, each as a `row`, `[1, …]`.
///
/// # Errors
/// There is no array.
pub(super) fn stack_of(
    module: &mut Module,
    comp: CompId,
    arrays: &[InstId],
    row: &ArrayShape,
) -> Result<InstId, SpmdError> {
    let at = Appender::new(comp);
    let rows: Vec<InstId> = arrays
        .iter()
        .map(|&array| at.add(module, "row", Opcode::Reshape, row.clone(), &[array], ReshapeAttrs::default()))
        .collect();
    concatenated(module, comp, &rows)
}

/// Appends the stack `[n, …]` of `n` rows `[1, …]`.
///
/// # Errors
/// There is no row, or it is no array.
pub(super) fn concatenated(module: &mut Module, comp: CompId, rows: &[InstId]) -> Result<InstId, SpmdError> {
    let mut shape = shape_of(module, *rows.first().ok_or(SpmdError::NoOperand)?)?;
    shape.dims[0] = rows.len() as i64;
    let attrs = DimsAttrs { dimensions: std::iter::once(0).collect() };
    Ok(Appender::new(comp).add(module, "stack", Opcode::Concatenate, shape, rows, attrs))
}

/// Appends row `idx` of a stack in the shape of `like`; a row `[e]` may have padding at its end.
///
/// # Errors
/// One of the two is no array.
pub(super) fn row_of(module: &mut Module, stack: InstId, (idx, like): (i64, InstId)) -> Result<InstId, SpmdError> {
    let (at, like) = (Appender::new(module.inst(stack).parent), shape_of(module, like)?);
    let mut row = shape_of(module, stack)?;
    row.dims[0] = 1;
    if let [_, e] = row.dims.as_mut_slice() {
        *e = like.dims.iter().product();
    }
    let row = at.slice(module, "row", stack, row, (0, idx));
    Ok(at.add(module, "update", Opcode::Reshape, like, &[row], ReshapeAttrs::default()))
}

/// The shape of an array.
///
/// # Errors
/// It is no array.
pub(super) fn shape_of(module: &Module, inst: InstId) -> Result<ArrayShape, SpmdError> {
    array(module, inst).cloned().ok_or_else(|| SpmdError::not_an_array(module, inst))
}

/// Appends the op `source`, of arrays, for stacks of `n`. `None` where no operand is a stack, or the op has no such form.
pub(super) fn stacked_op(module: &mut Module, source: InstId, operands: &[Stacked], n: i64) -> Option<InstId> {
    if operands.iter().all(|operand| matches!(operand, Stacked::Shared(_))) {
        return None;
    }
    let at = Appender::standing_for(module.inst(source).parent, source);
    let result = module.shape(source).as_array()?.clone();
    let instruction = module.inst(source).clone();
    let rule = instruction.opcode.row().factors;
    if rule == FactorRule::Reduce && matches!(operands, [_, Stacked::Stack(_)]) {
        return None;
    }
    let mut taken = Vec::with_capacity(operands.len());
    for (k, (&operand, &old)) in operands.iter().zip(&instruction.operands).enumerate() {
        let old = module.shape(old).as_array()?.clone();
        let is_scalar_beside = rule == FactorRule::Elementwise && old.rank() == 0 && result.rank() > 0;
        taken.push(match operand {
            Stacked::Shared(whole) if is_scalar_beside || (rule == FactorRule::Reduce && k == 1) => whole,
            Stacked::Shared(whole) => {
                let attrs = DimsAttrs { dimensions: (1..=old.rank() as i64).collect() };
                at.add(module, "repeated", Opcode::Broadcast, stack_shape(&old, n), &[whole], attrs)
            }
            Stacked::Stack(stack) if is_scalar_beside => {
                let mut shape = stack_shape(&result, n);
                shape.dtype = old.dtype;
                let attrs = DimsAttrs { dimensions: std::iter::once(0).collect() };
                at.add(module, "repeated", Opcode::Broadcast, shape, &[stack], attrs)
            }
            Stacked::Stack(stack) => stack,
        });
    }
    let attrs = stacked_attrs(instruction.attrs, rule, n);
    let hint = format!("{}.stack", module.inst_name(source));
    Some(at.add(module, &hint, instruction.opcode, stack_shape(&result, n), &taken, attrs))
}

/// Dim numbers moved up by one, the stacked dim put before them.
fn stacked_attrs(mut attrs: Attrs, rule: FactorRule, n: i64) -> Attrs {
    let up = |dims: &mut hlo_ir::Dims| dims.iter_mut().for_each(|dim| *dim += 1);
    if let Attrs::Dims(attrs) = &mut attrs {
        up(&mut attrs.dimensions);
        // What a broadcast or a transpose puts first comes from the first dim.
        if matches!(rule, FactorRule::Broadcast | FactorRule::Transpose) {
            attrs.dimensions.insert(0, 0);
        }
    } else if let Attrs::Slice(attrs) = &mut attrs {
        attrs.slice.insert(0, SliceDim { start: 0, limit: n, stride: 1 });
    } else if let Attrs::Reduce(attrs) = &mut attrs {
        up(&mut attrs.dimensions);
    } else if let Attrs::Dot(attrs) = &mut attrs {
        for (batch, contracting) in [
            (&mut attrs.lhs_batch_dims, &mut attrs.lhs_contracting_dims),
            (&mut attrs.rhs_batch_dims, &mut attrs.rhs_contracting_dims),
        ] {
            up(contracting);
            up(batch);
            batch.insert(0, 0);
        }
    }
    attrs
}
