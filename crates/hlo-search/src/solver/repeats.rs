//! Which variables of a problem repeat: layers of one kind have the same costs and tables, and so have their neighbours.
//!
//! Colour refinement (Weisfeiler and Leman 1968): two variables are of one class if their costs are the same, and after each round if
//! their pairs have the same tables and lead to variables of the same classes. After a few rounds what is near the ends of a chain of
//! layers has classes of its own, and what lies between repeats. Linear in the pairs for each round, but for sorting.

use super::problem::{Cost, PairTable, Problem, VarId};
use cranelift_entity::SecondaryMap;
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use std::sync::Arc;

/// How far around a variable things have to be alike, in pairs.
const N_ROUNDS: usize = 4;

/// A class, and for each pair of a variable its table, whether the variable's states are the rows, and the other one's class.
type Surroundings = (u32, Vec<(u32, bool, u32)>);

/// By variable its class; `None` where hardly anything repeats, so that tying gains nothing.
pub(crate) fn find_repeats(problem: &Problem) -> Option<SecondaryMap<VarId, u32>> {
    let mut by_costs: IndexMap<&[Cost], (), FixedHash> = IndexMap::default();
    let mut classes: SecondaryMap<VarId, u32> = SecondaryMap::new();
    for (var, costs) in &problem.variables {
        classes[var] = by_costs.insert_full(costs, ()).0 as u32;
    }
    // Equal tables are one allocation.
    let mut by_address: IndexMap<*const PairTable, (), FixedHash> = IndexMap::default();
    let mut pairs_of: SecondaryMap<VarId, Vec<(u32, bool, VarId)>> = SecondaryMap::new();
    for pair in &problem.pairs {
        let table = by_address.insert_full(Arc::as_ptr(&pair.table), ()).0 as u32;
        pairs_of[pair.rows].push((table, true, pair.columns));
        pairs_of[pair.columns].push((table, false, pair.rows));
    }
    let mut n_classes = by_costs.len();
    for _ in 0..N_ROUNDS {
        let mut known: IndexMap<Surroundings, (), FixedHash> = IndexMap::default();
        let mut next: SecondaryMap<VarId, u32> = SecondaryMap::new();
        for var in problem.variables.keys() {
            let mut around: Vec<(u32, bool, u32)> =
                pairs_of[var].iter().map(|&(table, is_row, other)| (table, is_row, classes[other])).collect();
            around.sort();
            next[var] = known.insert_full((classes[var], around), ()).0 as u32;
        }
        (classes, n_classes) = (next, known.len());
    }
    (2 * n_classes <= problem.variables.len()).then_some(classes)
}
