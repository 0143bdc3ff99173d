//! Which values of a region are state: weights and optimizer state, or computed from them.
//!
//! State enters through the entry's parameters, or begins a loop as a constant. The activations of a layer meet a sum over devices
//! in the same way as a weight does, but they come from the batch or from a lookup, which no format reaches.

use crate::context::ShardingContext;
use crate::region::UpdateRegion;
use crate::tables::IndexSet;
use hlo_analysis::values::{Origin, User, ValueId};
use hlo_spmd::{OperandCut, ResultCut};

/// State and what is computed from it in shards, within one region.
pub(crate) struct StateOfRegion(IndexSet<ValueId>);

impl StateOfRegion {
    /// Follows the region forward from parameters of the entry, and from loops' carries that begin as constants.
    pub(crate) fn find(context: &mut ShardingContext<'_>, region: &UpdateRegion) -> StateOfRegion {
        let values = context.values;
        let begins = |v: &ValueId| match values.values[*v].origin {
            Origin::EntryParam => true,
            Origin::Carry => values.sources[*v].iter().any(|&source| context.is_rebuilt(source)),
            Origin::Computed | Origin::Param | Origin::CallResult => false,
        };
        let mut found: IndexSet<ValueId> = region.runs.keys().copied().filter(begins).collect();
        let mut next = 0;
        while let Some(&value) = found.get_index(next) {
            next += 1;
            let run = region.runs[&value];
            for taken in &values.uses[value] {
                let result = match taken.user {
                    User::Op { inst, operand } => {
                        let cut = context.relation(inst).map(|r| r.result_cut(operand as usize, run));
                        matches!(cut, Some(ResultCut::Run(_))).then(|| values.of(inst)).flatten()
                    }
                    User::Becomes(into) => Some(into),
                    User::Exit(_) | User::Opaque(_) => None,
                };
                found.extend(result.filter(|r| region.runs.contains_key(r) && !context.gradients.contains(r)));
            }
        }
        StateOfRegion(found)
    }

    /// Whether an op of the update takes state.
    pub(crate) fn is_used_by(
        &self,
        context: &mut ShardingContext<'_>,
        region: &UpdateRegion,
        update: &IndexSet<ValueId>,
    ) -> bool {
        update.iter().any(|&value| {
            if context.gradients.contains(&value) || context.values.values[value].origin != Origin::Computed {
                return false;
            }
            let (inst, run) = (context.values.inst(value), region.runs[&value]);
            let operands = context.module.inst(inst).operands.clone();
            operands.iter().enumerate().any(|(k, &operand)| {
                let is_cut = matches!(context.relation(inst).map(|r| r.operand_cut(k, run)), Some(OperandCut::Run(_)));
                let operand = context.values.of(operand);
                is_cut && operand.is_some_and(|o| self.0.contains(&o) && !update.contains(&o))
            })
        })
    }

    /// What a forced update has in shards: its gradients and the next values of state, which leave by one of `exits` or become what a
    /// loop carries. Where neither is known, what the update hands on.
    pub(crate) fn kept(
        &self,
        context: &mut ShardingContext<'_>,
        region: &UpdateRegion,
        update: &IndexSet<ValueId>,
        exits: &IndexSet<usize>,
    ) -> IndexSet<ValueId> {
        if !self.is_used_by(context, region, update) {
            return IndexSet::default();
        }
        let values = context.values;
        let is_next = |v: &ValueId| {
            values.uses[*v].iter().any(|taken| match taken.user {
                User::Exit(output) => exits.contains(&(output as usize)),
                User::Becomes(into) => values.values[into].origin == Origin::Carry && self.0.contains(&into),
                User::Op { .. } | User::Opaque(_) => false,
            })
        };
        let is_handed_on = |v: &ValueId| {
            values.uses[*v].iter().any(|taken| match taken.user {
                User::Op { inst, .. } => values.of(inst).is_none_or(|result| !update.contains(&result)),
                User::Becomes(into) => !update.contains(&into),
                User::Exit(_) | User::Opaque(_) => true,
            })
        };
        let from_state = || update.iter().copied().filter(|v| self.0.contains(v));
        let mut kept: IndexSet<ValueId> = from_state().filter(is_next).collect();
        if kept.is_empty() {
            kept = from_state().filter(is_handed_on).collect();
        }
        kept.extend(update.iter().copied().filter(|v| context.gradients.contains(v)));
        kept
    }
}
