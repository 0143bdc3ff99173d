//! Batch norms as the sums that they are, for proofs modulo rounding.

use hashbrown::HashMap;
use hlo_ir::expand::{Writer, expand_batch_norm};
use hlo_ir::{CompId, InstId, Module, Opcode};

/// The modules with each batch norm that takes statistics as sums and elementwise operations; none if there is no such norm.
pub(crate) fn expand_all(before: &Module, after: &[&Module]) -> Option<Vec<Module>> {
    let modules = || std::iter::once(before).chain(after.iter().copied());
    let has_norms = |module: &Module| module.computations().iter().any(|&comp| !norms_in(module, comp).is_empty());
    if modules().any(has_norms) { modules().map(expanded).collect() } else { None }
}

fn norms_in(module: &Module, comp: CompId) -> Vec<InstId> {
    let takes_statistics =
        |inst: &InstId| [Opcode::BatchNormTraining, Opcode::BatchNormGrad].contains(&module.inst(*inst).opcode);
    module.comp(comp).insts.iter().copied().filter(takes_statistics).collect()
}

/// `None` where something depends on itself: no proof speaks of that.
fn expanded(module: &Module) -> Option<Module> {
    let mut module = module.clone();
    let mut sums = HashMap::new();
    for comp in module.computations().to_vec() {
        let norms = norms_in(&module, comp);
        for &norm in &norms {
            let hint = module.inst_name(norm).to_string();
            let mut writer = Writer { module: &mut module, comp, hint, sums: &mut sums };
            if let Some(result) = expand_batch_norm(&mut writer, norm) {
                module.replace_all_uses(norm, result);
            }
        }
        if !norms.is_empty() {
            module.restore_order(comp).ok()?;
        }
    }
    Some(module)
}
