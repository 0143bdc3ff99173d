//! Remove instructions and computations that nothing needs.
//!
//! Before, `%unused` and the computation it calls are never read:
//! ```text
//! %unused = f32[4] call(%x), to_apply=%square
//! ROOT %y = f32[4] negate(%x)
//! ```
//! after, only the root is left:
//! ```text
//! ROOT %y = f32[4] negate(%x)
//! ```
//! The sample `ir-samples/passes/dce/dead-call.hlo` runs this.
//!
//! **Why.** Front ends and other passes leave values behind that cost time, memory and, for collectives, the network.
//!
//! **What it does not do.** Parameters stay, used or not, as they are the interface of their computation; so do unread
//! elements of tuples and of loop states. Infeed, outfeed, send, recv and custom calls with side effects stay with all they need,
//! and so does what runs before a live instruction by a control dependency. A collective that nothing reads goes: every
//! device runs the same program, so every device drops it.
//!
//! **Algorithm.** 1. Computations that hold an effect, callees first. 2. In each computation, walk back from the root
//! and the effects. 3. Computations that the entry no longer reaches. Linear.
//!
//! **Requires** nothing. **Ensures** the same results and effects. **Errors**: none.

use hlo_analysis::Preserved;
use hlo_ir::Module;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "dce",
    help: "remove instructions and computations that nothing needs",
    options: &[],
    build: |_| Ok(Box::new(Dce)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dce;

impl Pass for Dce {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let effectful = module.effectful_computations();
        let mut n_instructions = 0;
        for comp in module.computations().to_vec() {
            n_instructions += module.remove_dead_given(comp, &effectful);
        }
        let n_computations = module.remove_dead_computations();
        cx.report.count("instructions-removed", n_instructions as u64);
        cx.report.count("computations-removed", n_computations as u64);
        if n_instructions + n_computations == 0 {
            cx.report.unchanged_because = Some("everything is needed".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}
