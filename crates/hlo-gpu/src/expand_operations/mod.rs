//! Write operations that no kernel is written for as others that have kernels.
//!
//! Before, the two largest of four numbers in each row:
//! ```text
//! %t = (f32[64,2], s32[64,2]) topk(%x), k=2, largest=true
//! ```
//! after, with rows that a kernel sorts in shared memory:
//! ```text
//! %s = (f32[64,4], s32[64,4]) sort(%x, %index), dimensions={1}, to_apply=%greater
//! %value = f32[64,2] slice(get-tuple-element(%s)), slice={[0:64], [0:2]}
//! ```
//! The samples `ir-samples/passes/expand-operations/*.hlo` run this.
//!
//! **Why.** Kernels of elementwise operations and reductions are fused, and one thread order gives the same bits in each run.
//! What is left is HLO that the evaluator and XLA judge.
//!
//! **What it does.** Sorts of long rows, `topk` and the custom call `TopK` ([`sort`]); batch norms ([`hlo_ir::expand`]); random bits of
//! both algorithms, those of the evaluator ([`random`]); asynchronous pairs become the
//! instruction that they begin ([`pairs`]); sums across devices of 8-bit floats and of integers that NCCL does not add are
//! made in a wider type ([`promote`]); annotations of shardings, which mean nothing on one device, go.
//!
//! **What it does not do.** Rows that a kernel sorts stay, as do longer ones whose comparator calls others or holds other than elementwise
//! operations; so do exchanges with the host. Rows of more than 16,777,216 elements are sorted only in an order that cannot contradict itself.
//!
//! **Requires** nothing. **Ensures** the same results to the bit but for batch norms, whose sums are added up in another order. Of a sort
//! whose comparator contradicts itself the result is some permutation. **Errors**: none.

mod order;
mod pairs;
mod promote;
mod random;
mod sort;

use crate::lower::legalize::stepwise_computations;
use cranelift_entity::EntitySet;
use hashbrown::{HashMap, HashSet};
use hlo_analysis::Preserved;
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::diag::Entity;
use hlo_ir::expand::{Writer, expand_batch_norm};
use hlo_ir::op::{FactorRule, Flow};
use hlo_ir::{CompId, DType, InstId, Module, Opcode};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "expand-operations",
    help: "write operations that no kernel is written for as others: sorts, batch norms, random bits, asynchronous pairs",
    options: &[],
    build: |_| Ok(Box::new(ExpandOperations)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpandOperations;

impl Pass for ExpandOperations {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut n_expanded, mut sums) = (0, HashMap::new());
        let mut done = HashSet::new();
        // Calls that were asynchronous are followed once they are calls.
        loop {
            let reached = stepwise_computations(module).into_iter().filter(|&comp| done.insert(comp));
            let reached: Vec<CompId> = reached.collect();
            if reached.is_empty() {
                break;
            }
            // What an expansion adds has no effects.
            let effectful = module.effectful_computations();
            for comp in reached {
                n_expanded += expand_all(module, comp, &effectful, &mut sums)?;
            }
        }
        cx.report.count("operations", n_expanded);
        if n_expanded == 0 {
            cx.report.unchanged_because = Some("every operation has a kernel, or no other form".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Expands the instructions of a computation. Returns how many.
fn expand_all(
    module: &mut Module,
    comp: CompId,
    effectful: &EntitySet<CompId>,
    sums: &mut HashMap<DType, CompId>,
) -> Result<u64, PassError> {
    let (was_live, n_slots) = (module.live_given(comp, effectful), module.n_inst_slots());
    // What nothing needs would stay beside its other form, or its other form go at once.
    let needed: Vec<InstId> = module.comp(comp).insts.iter().copied().filter(|&inst| was_live.contains(inst)).collect();
    let mut n_expanded = 0;
    for inst in needed {
        let hint = module.inst_name(inst).to_string();
        let mut writer = Writer { module: &mut *module, comp, hint, sums: &mut *sums };
        if let Some(result) = expanded(&mut writer, inst) {
            module.replace_all_uses(inst, result);
            n_expanded += 1;
        }
    }
    if module.n_inst_slots() > n_slots {
        let cycle = |inst| PassError::about("acyclic", Entity::Inst(inst), "expected no cycle, found one");
        module.restore_order(comp).map_err(cycle)?;
        module.remove_newly_dead(comp, &was_live, n_slots);
    }
    Ok(n_expanded)
}

/// What stands for an instruction, where it has another form.
fn expanded(w: &mut Writer<'_>, inst: InstId) -> Option<InstId> {
    let instruction = w.module.inst(inst);
    let opcode = instruction.opcode;
    if opcode == Opcode::Sort {
        sort::expand_sort(w, inst)
    } else if CustomTarget::of(&instruction.attrs) == Some(CustomTarget::Annotation) {
        let (&operand, shape) = (instruction.operands.first()?, w.module.shape(inst).clone());
        shape.as_array().map(|_| w.laid_out_as(operand, &shape))
    } else if [Opcode::TopK, Opcode::CustomCall].contains(&opcode) {
        sort::expand_topk(w, inst)
    } else if opcode.row().factors == FactorRule::BatchNorm {
        expand_batch_norm(w, inst)
    } else if opcode == Opcode::RngBitGenerator {
        random::expand(w, inst)
    } else if [Opcode::AllReduce, Opcode::ReduceScatter].contains(&opcode) {
        promote::expand_reduction(w, inst)
    } else if opcode.row().flow == Flow::AsyncDone {
        // What a pair begins may be such a sum.
        pairs::expand_done(w, inst).map(|whole| promote::expand_reduction(w, whole).unwrap_or(whole))
    } else {
        None
    }
}
