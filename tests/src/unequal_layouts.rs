//! Gives the arrays of a module layouts that differ from one another, as XLA's layout assignment and partitioners leave them.
//!
//! HLO defines every op but `bitcast` on indices, so the program computes the same values. A pass that takes an operand's layout for its
//! result's permutes elements here, and the evaluator sees it.

use crate::random_module::Rng;
use hlo_ir::attrs::TupleIndexAttrs;
use hlo_ir::op::LeafRule;
use hlo_ir::{InstId, Layout, Module, Opcode, Shape};
use std::collections::BTreeSet;

/// Draws a layout for most arrays of `module` that have no reason to keep theirs.
///
/// Operands and results of bitcasts, and the parameters and roots of called computations, keep their layouts: the former have another
/// meaning in another layout, the latter must go with their call sites.
pub fn give_unequal_layouts(module: &mut Module, rng: &mut Rng) {
    let fixed = fixed_instructions(module);
    for comp in module.computations().to_vec() {
        for inst in module.comp(comp).insts.clone() {
            if fixed.contains(&inst) {
                continue;
            }
            let mut shape = module.shape(inst).clone();
            let row = module.inst(inst).opcode.row();
            match row.flow.leaf_rule() {
                LeafRule::Operands => {
                    shape = Shape::Tuple(module.inst(inst).operands.iter().map(|&o| module.shape(o).clone()).collect());
                }
                LeafRule::Element => {
                    let element = TupleIndexAttrs::of(&module.inst(inst).attrs).and_then(|read| {
                        let tuple = module.shape(*module.inst(inst).operands.first()?).as_tuple()?;
                        tuple.get(usize::try_from(read.index).ok()?).cloned()
                    });
                    shape = element.unwrap_or(shape);
                }
                LeafRule::Computed
                | LeafRule::Argument
                | LeafRule::FirstOperand
                | LeafRule::Callees(_)
                | LeafRule::AsyncStart
                | LeafRule::AsyncUpdate
                | LeafRule::AsyncDone => {
                    let is_array = matches!(shape, Shape::Array(_));
                    let is_variadic = row.collective.is_some() || module.inst(inst).opcode == Opcode::Sort;
                    if is_array || is_variadic {
                        draw_layouts(&mut shape, rng);
                    }
                }
            }
            let shape = module.shapes.intern(shape);
            module.inst_mut(inst).shape = shape;
        }
    }
    set_entry_layout(module);
}

/// Instructions whose layout means something.
fn fixed_instructions(module: &Module) -> BTreeSet<InstId> {
    let mut fixed = BTreeSet::new();
    for &comp in module.computations() {
        if Some(comp) != module.entry() {
            fixed.extend(module.comp(comp).params.iter().copied());
            fixed.extend(module.comp(comp).root.expand());
        }
        for &inst in &module.comp(comp).insts {
            if module.inst(inst).opcode == Opcode::Bitcast {
                fixed.insert(inst);
                fixed.extend(module.inst(inst).operands.iter().copied());
            }
        }
    }
    fixed
}

/// Draws an order of the dims for two in three arrays of `shape`. Tiled layouts and those in other memories stay.
fn draw_layouts(shape: &mut Shape, rng: &mut Rng) {
    match shape {
        Shape::Array(array) => {
            let is_free = array.layout.as_deref().is_none_or(Layout::is_only_an_order);
            if array.rank() < 2 || !is_free || rng.one_in(3) {
                return;
            }
            let mut order: Vec<i64> = (0..array.rank() as i64).collect();
            for last in (1..order.len()).rev() {
                order.swap(last, rng.below(last + 1));
            }
            array.layout = Some(Box::new(Layout::new(order.into_iter().collect())));
        }
        Shape::Tuple(elements) => elements.iter_mut().for_each(|element| draw_layouts(element, rng)),
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => {}
    }
}

/// Makes the header's entry layout, where there is one, say what the entry has.
fn set_entry_layout(module: &mut Module) {
    let Some(entry) = module.entry() else { return };
    let params = module.comp(entry).params.iter().map(|&param| module.inst(param).shape).collect();
    let result = module.result_shape(entry);
    if let (Some(layout), Some(result)) = (&mut module.header.entry_computation_layout, result) {
        layout.params = params;
        layout.result = result;
    }
}
