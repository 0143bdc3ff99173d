//! Read elements of tuples where they were made.
//!
//! Before, `%a` goes through a tuple, and `%again` rebuilds `%t`:
//! ```text
//! %t = (f32[4], s32[]) tuple(%a, %n)
//! %first = f32[4] get-tuple-element(%t), index=0
//! %second = s32[] get-tuple-element(%t), index=1
//! %again = (f32[4], s32[]) tuple(%first, %second)
//! ```
//! after, users of `%first` read `%a`, users of `%again` read `%t`.
//! The sample `ir-samples/passes/simplify-tuples/round-trip.hlo` runs this.
//!
//! **Why.** Calls, loops and conditionals pack their values; after inlining the packing hides which value is which.
//!
//! **What it does not do.** It looks through no optimization barrier, no loop and no parameter, keeps tuples whose elements differ
//! in layout, and leaves instructions in control dependencies and annotated ones.
//!
//! **Algorithm.** One forward walk over each computation that runs as code; operands are simplified before their users, so
//! one walk reaches the end. Linear in the operands.
//!
//! **Requires** nothing. **Ensures** the same results. **Errors**: none.

use crate::forward::{Step, walk_forward};
use hlo_analysis::Preserved;
use hlo_analysis::code::code_computations;
use hlo_analysis::values::{tuple_elements, tuple_index};
use hlo_ir::{InstId, Module};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "simplify-tuples",
    help: "read tuple elements where they were made, drop tuples that only rebuild another",
    options: &[],
    build: |_| Ok(Box::new(SimplifyTuples)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimplifyTuples;

impl Pass for SimplifyTuples {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let effectful = module.effectful_computations();
        let (mut n_redirected, mut n_removed) = (0, 0);
        for comp in code_computations(module) {
            let walked = walk_forward(module, comp, &effectful, &mut |module, inst| match simpler(module, inst) {
                Some(new) => Step::Replace(new),
                None => Step::Keep,
            });
            n_redirected += walked.n_redirected;
            n_removed += walked.n_removed;
        }
        cx.report.count("uses-redirected", n_redirected as u64);
        cx.report.count("instructions-removed", n_removed as u64);
        if n_redirected == 0 {
            cx.report.unchanged_because = Some("no element is read from a tuple made in the same computation".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// The value that `inst` repeats, if it is an element of a known tuple or rebuilds a tuple.
fn simpler(module: &Module, inst: InstId) -> Option<InstId> {
    let found = match tuple_elements(module, inst) {
        Some(elements) => rebuilt(module, elements),
        None => element(module, inst),
    };
    found.filter(|&new| module.inst(new).shape == module.inst(inst).shape)
}

/// The operand that `get-tuple-element` of `tuple` picks.
fn element(module: &Module, inst: InstId) -> Option<InstId> {
    let index = tuple_index(module, inst)?;
    tuple_elements(module, *module.inst(inst).operands.first()?)?.get(index).copied()
}

/// The tuple whose elements in order `elements` are.
fn rebuilt(module: &Module, elements: &[InstId]) -> Option<InstId> {
    let whole = *module.inst(*elements.first()?).operands.first()?;
    let is_element = |(i, &element): (usize, &InstId)| {
        tuple_index(module, element) == Some(i) && module.inst(element).operands.first() == Some(&whole)
    };
    elements.iter().enumerate().all(is_element).then_some(whole)
}
