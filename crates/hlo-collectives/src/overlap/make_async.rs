//! Make pairs of collectives: one instruction begins the exchange, another waits for it, and what stands between runs meanwhile.
//!
//! Before:
//! ```text
//! %sum = f32[64,64] all-reduce(%g), replica_groups={{0,1,2,3}}, to_apply=%add
//! %h = f32[8,64] dot(%x, %w)
//! %new = f32[64,64] subtract(%v, %sum)
//! ```
//! after:
//! ```text
//! %sum.start = ((f32[64,64]), f32[64,64]) async-start(%g), calls=%async_sum
//! %h = f32[8,64] dot(%x, %w)
//! %sum.done = f32[64,64] async-done(%sum.start)
//! %new = f32[64,64] subtract(%v, %sum.done)
//! ```
//! The sample `ir-samples/passes/make-async/worked.hlo` runs this.
//!
//! **Why.** A device that takes the text as its schedule runs nothing beside a collective in one piece. XLA for GPUs makes such pairs by itself, from collectives in
//! one piece, and orders anew: for it this pass is not needed. It is for what takes HLO as it is, and for reading what a schedule hides (`analyze time --as-ordered`).
//!
//! **Algorithm.** Each collective that several devices take part in becomes a pair where it stands. The end stands before the first use, or
//! before the next collective that shares more than one device with it: two that do may wait for each other for ever
//! ([`hlo_analysis::in_flight`]). Linear in the module.
//!
//! **What it does not do.** It orders nothing else: `schedule-collectives` does. Collectives with control predecessors stay.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit, and no two collectives in flight that share more than one device, if there were none before.
//! **Errors**: none.
//!
//! References: Wang et al., *Overlap Communication with Dependent Computation via Decomposition*, ASPLOS 2023, section 2.2 (asynchronous collectives in
//! XLA); <https://github.com/openxla/xla/issues/19026>.

use super::pairs::make_pairs;
use cranelift_entity::SecondaryMap;
use hlo_analysis::Preserved;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use indexmap::IndexSet;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "make-async",
    help: "begin and end each collective by an instruction of its own, so that what stands between runs meanwhile",
    options: &[OptionInfo {
        name: "min-bytes",
        kind: OptionKind::Int,
        default: "0",
        help: "leave collectives whose result is smaller",
    }],
    build: |options| Ok(Box::new(MakeAsync { min_bytes: options.int("min-bytes").unsigned_abs() })),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MakeAsync {
    min_bytes: u64,
}

impl Pass for MakeAsync {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let starts = make_pairs(module, self.min_bytes);
        cx.report.count("pairs-made", starts.len() as u64);
        if starts.is_empty() {
            cx.report.unchanged_because = Some("there is no collective in one piece between several devices".into());
            return Ok(Changed::No);
        }
        let ends = ends_of(module, &starts);
        for (&start, n_between) in starts.iter().zip(ends) {
            let reason = format!("{n_between} instructions stand between its start and its end");
            cx.report.decisions.push(Decision::about(module, start, "begun", reason));
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// How many instructions stand between each start and its end.
fn ends_of(module: &Module, starts: &[InstId]) -> Vec<usize> {
    let mut position: SecondaryMap<InstId, usize> = SecondaryMap::new();
    let mut end: SecondaryMap<InstId, usize> = SecondaryMap::new();
    let comps: IndexSet<CompId> = starts.iter().map(|&start| module.inst(start).parent).collect();
    for (at, &inst) in comps.iter().flat_map(|&comp| module.comp(comp).insts.iter().enumerate()) {
        position[inst] = at;
        if let (Flow::AsyncDone, Some(&start)) =
            (module.inst(inst).opcode.row().flow, module.inst(inst).operands.first())
        {
            end[start] = at;
        }
    }
    starts.iter().map(|&start| end[start].saturating_sub(position[start] + 1)).collect()
}
