//! Gradients that every device computes whole, so that no all-reduce marks them: the batch is not sharded, the gradients are flattened
//! into one array after they were summed, or matrices precondition them.
//!
//! Optimizer state that only such a gradient updates is sharded all the same. Each device takes its own shard of the gradient. No sum over
//! devices says here what a weight is, so an array stays whole where its own gradient may be computed from it.

use crate::context::ShardingContext;
use crate::tables::IndexSet;
use hlo_analysis::optimizer_state::{Reached, search_back};
use hlo_analysis::values::{Origin, User, ValueId};
use hlo_ir::Opcode;
use hlo_pass::OutOfTime;

/// Gradients and weights of updates that no sum over devices reaches.
#[derive(Default)]
pub(crate) struct Unsummed {
    /// The gradients, which are the same on all devices.
    pub(crate) gradients: IndexSet<ValueId>,
    /// The arrays that may be weights.
    pub(crate) maybe_weights: IndexSet<ValueId>,
}

impl Unsummed {
    /// Finds the gradients of `state`, parameters of the entry that belong to no region yet.
    ///
    /// Cost: linear in the module for each of them.
    ///
    /// # Errors
    /// The time is over.
    pub(crate) fn find(context: &mut ShardingContext<'_>, state: &[ValueId]) -> Result<Unsummed, OutOfTime> {
        let mut found = Unsummed::default();
        for &array in state {
            context.deadline.check()?;
            let gradients = gradients_of(context, array);
            let mut reached = Reached::new();
            let seeds = gradients.iter().copied().collect();
            search_back(context.module, context.values, seeds, &mut reached, &mut |_| true);
            match reached[array] {
                true => drop(found.maybe_weights.insert(array)),
                false => found.gradients.extend(gradients),
            }
        }
        Ok(found)
    }
}

/// The gradients that an array is updated with.
///
/// A search forward finds what the next value is computed from, element by element. A search backward from there, element by element too,
/// ends at the gradients: the results of other ops.
fn gradients_of(context: &mut ShardingContext<'_>, array: ValueId) -> IndexSet<ValueId> {
    let mut from_state: IndexSet<ValueId> = [array].into_iter().collect();
    let mut beside: IndexSet<ValueId> = IndexSet::default();
    let mut next = 0;
    while let Some(&value) = from_state.get_index(next) {
        next += 1;
        let uses = &context.values.uses[value];
        if value != array && uses.iter().any(|taken| matches!(taken.user, User::Exit(_))) {
            // It is a next value. What is computed from it may belong to the model.
            continue;
        }
        for taken in uses {
            let User::Op { inst, .. } = taken.user else { continue };
            let Some(result) = context.values.of(inst).filter(|&result| is_update_op(context, result)) else {
                continue;
            };
            from_state.insert(result);
            beside.extend(operands(context, result));
        }
    }
    beside.retain(|value| !from_state.contains(value));
    let mut found = IndexSet::default();
    let mut next = 0;
    while let Some(&value) = beside.get_index(next) {
        next += 1;
        if context.taken[value] || !context.is_eligible(value) {
            continue;
        }
        match context.values.values[value].origin {
            Origin::Computed if is_update_op(context, value) => {
                beside.extend(operands(context, value).into_iter().filter(|v| !from_state.contains(v)));
            }
            Origin::Computed | Origin::CallResult => drop(found.insert(value)),
            Origin::EntryParam | Origin::Param | Origin::Carry => {}
        }
    }
    found
}

/// Whether a value is computed element by element from others of its size, or moves the elements of one.
fn is_update_op(context: &ShardingContext<'_>, value: ValueId) -> bool {
    let instruction = context.module.inst(context.values.inst(value));
    let moves = matches!(instruction.opcode, Opcode::Reshape | Opcode::Transpose | Opcode::Bitcast);
    let is_computed = context.values.values[value].origin == Origin::Computed;
    is_computed && (instruction.opcode.is_elementwise() || moves) && !context.values.fused.contains(instruction.parent)
}

/// The arrays that a value is computed from and that are not rebuilt from nothing.
fn operands(context: &ShardingContext<'_>, value: ValueId) -> Vec<ValueId> {
    let operands = &context.module.inst(context.values.inst(value)).operands;
    let values = operands.iter().filter_map(|&operand| context.values.of(operand));
    values.filter(|&operand| !context.is_rebuilt(operand)).collect()
}
