//! One walk over a computation, operands before users, that redirects uses as it goes.

use cranelift_entity::EntitySet;
use hashbrown::HashMap;
use hlo_analysis::code::{is_annotated, pinned_by_control};
use hlo_ir::{CompId, InstId, Module};

/// What a pass wants done with one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nothing.
    Keep,
    /// It was changed in place.
    Edited,
    /// Its uses take this earlier instruction, of the same shape.
    Replace(InstId),
}

/// What a walk did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Walked {
    /// Uses that take another instruction now.
    pub n_redirected: usize,
    /// Instructions changed in place.
    pub n_edited: usize,
    /// Instructions that were needed before and are gone now.
    pub n_removed: usize,
}

impl Walked {
    /// Whether anything is different.
    pub(crate) fn has_changed(&self) -> bool {
        self.n_redirected + self.n_edited + self.n_removed > 0
    }
}

/// Asks `step` about every instruction of `comp` whose operands are up to date already, and drops what nothing needs any
/// more. Instructions in control dependencies, and those that carry a sharding or a front end's attributes, are not asked
/// about. Linear in the computation.
///
/// An instruction that was dead before stays, so a replaced one without uses counts as no change.
pub(crate) fn walk_forward(
    module: &mut Module,
    comp: CompId,
    effectful: &EntitySet<CompId>,
    step: &mut dyn FnMut(&mut Module, InstId) -> Step,
) -> Walked {
    let (was_live, n_slots) = (module.live_given(comp, effectful), module.n_inst_slots());
    let pinned = pinned_by_control(module, comp);
    let mut walked = Walked::default();
    let mut replacements: HashMap<InstId, InstId> = HashMap::new();
    for inst in module.comp(comp).insts.clone() {
        if !replacements.is_empty() {
            walked.n_redirected += module.map_operands(inst, |o| replacements.get(&o).copied().unwrap_or(o));
        }
        if pinned.contains(inst) || is_annotated(module, inst) {
            continue;
        }
        match step(module, inst) {
            Step::Keep => {}
            Step::Edited => walked.n_edited += 1,
            Step::Replace(new) => {
                replacements.insert(inst, new);
            }
        }
    }
    let root = module.comp(comp).root.expand();
    if let Some(&new) = root.and_then(|root| replacements.get(&root)) {
        module.comp_mut(comp).root = Some(new).into();
        walked.n_redirected += 1;
    }
    if walked.has_changed() {
        walked.n_removed = module.remove_newly_dead_given(comp, &was_live, n_slots, effectful);
    }
    walked
}
