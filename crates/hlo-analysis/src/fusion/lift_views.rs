//! Views that several instructions read go above the elementwise operation that they look at.
//!
//! A gradient that is summed in the order of a product and read in that of its weight:
//! ```text
//! wide = f32[256,1024]{0,1} convert(sum)
//! view = f32[1024,256]{1,0} transpose(wide), dimensions={1,0}      read by the weight's update, and by that of a moment
//! ```
//! Each reader looks at `wide` for itself, so it would have to be in memory. After:
//! ```text
//! view = bf16[1024,256]{1,0} transpose(sum), dimensions={1,0}
//! wide = f32[1024,256]{1,0} convert(view)
//! ```
//! and the conversion is a part of the kernel that reads it.

use super::edges::role;
use super::role::Role;
use crate::code::pinned_by_control;
use hlo_ir::attrs::{Attrs, DimsAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::view::is_view;
use hlo_ir::{ArrayShape, CompId, InstId, InstMap, Module, Opcode, Shape};

/// What an operand of the operation becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operand {
    /// An array in memory: it is looked at.
    Viewed(InstId),
    /// A scalar in all places: it is so in the other dims.
    Spread(InstId),
}

/// Lifts views of a computation. Returns how many; operations whose views were lifted are gone.
pub(super) fn lift_views(module: &mut Module, comp: CompId) -> usize {
    let mut n_users: InstMap<u32> = InstMap::of(module, comp);
    for &inst in &module.comp(comp).insts {
        for &operand in &module.inst(inst).operands {
            n_users[operand] += 1;
        }
    }
    let root = module.comp(comp).root.expand();
    let pinned = pinned_by_control(module, comp);
    let mut gone: InstMap<bool> = InstMap::of(module, comp);
    let mut n_lifted = 0;
    for view in module.comp(comp).insts.clone() {
        let Some(operation) = module.inst(view).operands.first().copied() else { continue };
        let is_for_many = n_users[view] > 1 && n_users[operation] == 1 && root != Some(view) && root != Some(operation);
        let is_pinned = pinned.contains(view) || pinned.contains(operation);
        if !is_for_many || is_pinned || module.inst(view).opcode == Opcode::Bitcast || !is_view(module, view) {
            continue;
        }
        let Some(operands) = find_operands(module, operation) else { continue };
        lift(module, comp, (view, operation), &operands);
        gone[operation] = true;
        n_lifted += 1;
    }
    if n_lifted > 0 {
        module.comp_mut(comp).insts.retain(|&inst| !gone[inst]);
    }
    n_lifted
}

/// The operands of an elementwise operation of arrays in memory, and of scalars; `None` if it is another.
fn find_operands(module: &Module, operation: InstId) -> Option<Vec<Operand>> {
    let node = module.inst(operation);
    let own = module.shape(operation).as_array()?;
    if !node.opcode.is_elementwise() || role(module, operation) != Role::Fusable {
        return None;
    }
    let kind = |&operand: &InstId| {
        let array = module.shape(operand).as_array()?;
        let of = module.inst(operand).operands.first();
        let scalar = of.copied().filter(|&of| module.shape(of).as_array().is_some_and(|of| of.rank() == 0));
        if let Some(scalar) = scalar.filter(|_| module.inst(operand).opcode == Opcode::Broadcast) {
            return Some(Operand::Spread(scalar));
        }
        // Elements that are packed, or in tiles, are not those of the view's layout.
        let is_plain = array.dynamic == 0 && array.layout.as_ref().is_none_or(|layout| layout.is_only_an_order());
        let is_in_memory = role(module, operand) == Role::Alone && array.is_same_order(own) && is_plain;
        is_in_memory.then_some(Operand::Viewed(operand))
    };
    let operands: Option<Vec<Operand>> = node.operands.iter().map(kind).collect();
    operands.filter(|operands| operands.iter().any(|operand| matches!(operand, Operand::Viewed(_))))
}

/// Makes the view the operation, of views of its operands.
fn lift(module: &mut Module, comp: CompId, (view, operation): (InstId, InstId), operands: &[Operand]) {
    let Some(to) = module.shape(view).as_array().cloned() else { return };
    let (opcode, attrs) = (module.inst(view).opcode, module.inst(view).attrs.clone());
    let hint = module.inst_name(view).to_string();
    let viewed: Vec<InstId> = operands
        .iter()
        .map(|&operand| {
            let (Operand::Viewed(from) | Operand::Spread(from)) = operand;
            let dtype = module.shape(from).as_array().map_or(to.dtype, |array| array.dtype);
            let shape = Shape::Array(ArrayShape { dtype, ..to.clone() });
            let mut build = Builder::new(module, comp);
            match operand {
                Operand::Viewed(_) => build.add(&hint, opcode, shape, [from], attrs.clone()),
                Operand::Spread(_) => build.add(&hint, Opcode::Broadcast, shape, [from], DimsAttrs::default()),
            }
        })
        .collect();
    let (opcode, attrs): (Opcode, Attrs) = (module.inst(operation).opcode, module.inst(operation).attrs.clone());
    let instruction = module.inst_mut(view);
    (instruction.opcode, instruction.attrs) = (opcode, attrs);
    instruction.operands = viewed.into_iter().collect();
}
