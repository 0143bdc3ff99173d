//! Promises about indices: a scatter or gather with `unique_indices=true` or `indices_are_sorted=true` means nothing where they are broken.
//!
//! Sums over rows do not ask for these promises. A module may drop one. One that makes a new one computes the same only while nobody
//! breaks it, so that nothing is proved.

use hlo_ir::attrs::{GatherAttrs, ScatterAttrs};
use hlo_ir::{InstId, Module, Opcode};
use std::collections::HashSet;

/// What an instruction promises: its opcode, the rank of its result, the dims that indices count in, and the promise.
type Promise = (Opcode, usize, Vec<i64>, &'static str);

fn promises(module: &Module) -> Vec<(InstId, Promise)> {
    let mut found = Vec::new();
    for comp in module.post_order() {
        for &inst in &module.comp(comp).insts {
            let instruction = module.inst(inst);
            let said = match (GatherAttrs::of(&instruction.attrs), ScatterAttrs::of(&instruction.attrs)) {
                (Some(of), _) => (&of.start_index_map, of.indices_are_sorted, false),
                (None, Some(of)) => (&of.scatter_dims_to_operand_dims, of.indices_are_sorted, of.unique_indices),
                (None, None) => continue,
            };
            let (dims, is_sorted, is_unique) = said;
            let rank = module.shape(inst).as_array().map_or(0, |array| array.rank());
            let of_each = [(is_sorted, "indices_are_sorted=true"), (is_unique, "unique_indices=true")];
            let made = of_each.into_iter().filter(|(is_made, _)| *is_made);
            found.extend(made.map(|(_, what)| (inst, (instruction.opcode, rank, dims.to_vec(), what))));
        }
    }
    found
}

/// The first promise of a later module that no such instruction of the first one makes, in words.
pub(crate) fn gained(modules: &[&Module]) -> Option<String> {
    let (before, after) = modules.split_first()?;
    let known: HashSet<Promise> = promises(before).into_iter().map(|(_, promise)| promise).collect();
    after.iter().find_map(|module| {
        let (inst, (opcode, .., what)) = promises(module).into_iter().find(|(_, promise)| !known.contains(promise))?;
        Some(format!(
            "{opcode} %{} promises {what}, which no {opcode} of the first module does",
            module.inst_name(inst)
        ))
    })
}
