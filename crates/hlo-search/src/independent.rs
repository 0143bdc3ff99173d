//! Ops that could run at one time.

use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_ir::{CompId, InstId, Module};

/// Ops of a class by how many of the class stand one behind the other before them: those of one rank do not need each other.
pub(crate) fn by_rank(module: &Module, comp: CompId, class: &[InstId]) -> Vec<Vec<InstId>> {
    let mut is_in: EntitySet<InstId> = EntitySet::new();
    class.iter().for_each(|&inst| {
        is_in.insert(inst);
    });
    let (mut n_before, mut ranks): (SecondaryMap<InstId, usize>, Vec<Vec<InstId>>) = Default::default();
    for &inst in &module.comp(comp).insts {
        let rank = module.inst(inst).operands.iter().map(|&operand| n_before[operand]).max().unwrap_or(0);
        n_before[inst] = rank;
        if is_in.contains(inst) {
            n_before[inst] += 1;
            ranks.resize_with(ranks.len().max(rank + 1), Vec::new);
            ranks[rank].push(inst);
        }
    }
    ranks
}
