//! What is minimized.

use cranelift_entity::{PrimaryMap, entity_impl};
use std::sync::Arc;

/// A cost, in picoseconds.
pub(crate) type Cost = i64;

/// The cost of what is not allowed. Sums of costs that have it stay at least as large and do not overflow: a fourth of the range.
pub(crate) const INFINITE: Cost = i64::MAX / 4;

/// A variable, which takes one of its states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct VarId(u32);
entity_impl!(VarId, "var");

/// The costs of pairs of states: `costs[row * n_columns + column]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PairTable {
    pub n_rows: usize,
    pub n_columns: usize,
    pub costs: Box<[Cost]>,
}

/// Two variables whose states together cost something. Equal tables are one allocation.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// The variable whose states are the rows.
    pub rows: VarId,
    /// The variable whose states are the columns; another one than `rows`.
    pub columns: VarId,
    pub table: Arc<PairTable>,
}

/// The sum over `terms` of what each variable's state takes is at most `limit`: bytes of memory at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Constraint {
    pub limit: u64,
    /// A variable, and by state what it takes; a variable stands at most once.
    pub terms: Vec<(VarId, Arc<[u64]>)>,
}

/// A sum of costs to be minimized. Two pairs may join the same variables: their tables add.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problem {
    /// By variable and state; no variable is without states.
    pub variables: PrimaryMap<VarId, Vec<Cost>>,
    pub pairs: Vec<Pair>,
    pub constraints: Vec<Constraint>,
}

/// A state for each variable, by its number.
pub(crate) type Assignment = PrimaryMap<VarId, u32>;

impl Problem {
    /// The cost of an assignment; at least [`INFINITE`] where it is not allowed. Constraints are not looked at.
    pub(crate) fn cost(&self, states: &Assignment) -> Cost {
        let state = |var: VarId| states[var] as usize;
        let own = self.variables.iter().map(|(var, costs)| costs[state(var)]);
        let of_pairs = self
            .pairs
            .iter()
            .map(|pair| pair.table.costs[state(pair.rows) * pair.table.n_columns + state(pair.columns)]);
        own.chain(of_pairs).fold(0, |sum: Cost, cost| sum.saturating_add(cost))
    }

    /// Whether an assignment keeps every constraint.
    pub(crate) fn is_within_limits(&self, states: &Assignment) -> bool {
        let taken = |constraint: &Constraint| -> u64 {
            constraint.terms.iter().map(|(var, bytes)| bytes[states[*var] as usize]).sum()
        };
        self.constraints.iter().all(|constraint| taken(constraint) <= constraint.limit)
    }
}
