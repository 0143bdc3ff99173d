//! Write batch norms in training and their gradients as sums and elementwise operations, so that a cut batch leaves sums to exchange.
//!
//! Before, statistics are taken over a batch that must be whole on every device:
//! ```text
//! %norm = (f32[64,8,4], f32[8], f32[8]) batch-norm-training(%x, %scale, %offset), epsilon=1e-5, feature_index=1
//! ```
//! after, a partitioner adds up what each device has, one number for each feature:
//! ```text
//! %sum = f32[8] reduce(%x, %zero), dimensions={0,2}, to_apply=%add
//! %mean = f32[8] divide(%sum, %counts)
//! ```
//! The sample `ir-samples/passes/expand-batch-norms/training.hlo` runs this.
//!
//! **Why.** PyTorch/XLA and TensorFlow write `BatchNorm2d` so. The op's batch cannot be cut ([`hlo_ir::factors`]): partitioners gather it
//! on every device, whole activations for two numbers of each feature.
//!
//! **What it does not do.** Batch norms in inference take no statistics and stay. The form is that of [`hlo_ir::expand`], which XLA's
//! backends write later too.
//!
//! **Algorithm.** One walk; linear in the instructions. **Requires** nothing. **Ensures** the same results up to the order in which
//! statistics are added up. A sharding of the results stays at them. **Errors**: none.

use hashbrown::HashMap;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::diag::Entity;
use hlo_ir::expand::{Writer, expand_batch_norm};
use hlo_ir::sharding::Sharding;
use hlo_ir::{InstId, Module, Opcode};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "expand-batch-norms",
    help: "write batch norms in training as sums, so that their batch can be cut over devices",
    options: &[],
    build: |_| Ok(Box::new(ExpandBatchNorms)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpandBatchNorms;

impl Pass for ExpandBatchNorms {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut n_expanded, mut sums) = (0, HashMap::new());
        for comp in code_computations(module) {
            let pinned = pinned_by_control(module, comp);
            let (was_live, n_slots) = (module.live(comp), module.n_inst_slots());
            let takes_statistics = |&inst: &InstId| {
                let opcode = module.inst(inst).opcode;
                [Opcode::BatchNormTraining, Opcode::BatchNormGrad].contains(&opcode) && was_live.contains(inst)
            };
            let norms: Vec<InstId> = module.comp(comp).insts.iter().copied().filter(takes_statistics).collect();
            for norm in norms {
                if pinned.contains(norm) {
                    let why = "it is in control dependencies";
                    cx.report.decisions.push(Decision::about(module, norm, "left", why));
                    continue;
                }
                let (hint, n_before) = (module.inst_name(norm).to_string(), module.comp(comp).insts.len());
                let mut writer = Writer { module: &mut *module, comp, hint, sums: &mut sums };
                let Some(result) = expand_batch_norm(&mut writer, norm) else { continue };
                let told = Decision::about(module, norm, "expanded", "its statistics are sums over the batch");
                cx.report.decisions.push(told);
                mark(module, norm, result, n_before);
                module.replace_all_uses(norm, result);
                n_expanded += 1;
            }
            if module.n_inst_slots() > n_slots {
                let cycle = |inst| PassError::about("acyclic", Entity::Inst(inst), "expected no cycle, found one");
                module.restore_order(comp).map_err(cycle)?;
                module.remove_newly_dead(comp, &was_live, n_slots);
            }
        }
        cx.report.count("batch-norms", n_expanded);
        if n_expanded == 0 {
            cx.report.unchanged_because = Some("there is no batch norm in training".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Gives what stands for a batch norm, written behind the first `n_before` instructions, its place in the source, and its results
/// their shardings.
fn mark(module: &mut Module, norm: InstId, result: InstId, n_before: usize) {
    let metadata = module.inst(norm).marks.as_ref().and_then(|marks| marks.metadata.clone());
    let sharding = module.sharding(norm).cloned();
    let arrays = module.inst(result).operands.clone();
    if let Some(metadata) = metadata {
        let insts = &module.comp(module.inst(norm).parent).insts;
        let new: Vec<InstId> = insts.get(n_before..).unwrap_or_default().to_vec();
        for inst in new {
            module.marks_mut(inst).metadata.get_or_insert_with(|| metadata.clone());
        }
    }
    match sharding {
        Some(Sharding::Tuple(leaves)) if leaves.len() == arrays.len() => {
            for (&array, leaf) in arrays.iter().zip(leaves) {
                module.marks_mut(array).sharding = Some(Sharding::Single(leaf));
            }
        }
        Some(Sharding::Single(leaf)) => {
            for &array in &arrays {
                module.marks_mut(array).sharding = Some(Sharding::Single(leaf.clone()));
            }
        }
        Some(Sharding::Tuple(_)) | None => {}
    }
}
