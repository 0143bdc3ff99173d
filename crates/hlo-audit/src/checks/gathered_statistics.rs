//! Finds an all-gather of a whole batch for sums over it: for a normalization, a mean, a norm.
//!
//! ```text
//! %batch = f32[64,8,14,14] all-gather(%local), replica_groups={{0,1,2,3}}, dimensions={0}
//! %norm = (f32[64,8,14,14], f32[8], f32[8]) batch-norm-training(%batch, %scale, %offset), epsilon=1e-5, feature_index=1
//! ```
//! Sums of each device's part, added up over the devices, are a few numbers.
//!
//! **Cost**: the gather.
//!
//! **What it does not find**: sums within products and lookups, sums whose results are more than half as large as the array, arrays below
//! 1 KiB.
//!
//! **How sure**: the gathered dim is followed by the ops' factors ([`hlo_ir::factors`]); all uses end in sums over it or in the device's own
//! part.

use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::gathered::{GatheredParts, gathered_parts};
use hlo_ir::{InstId, Shape};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "gathered-statistics",
    level: Level::Fault,
    help: "an all-gather of a whole batch for a normalization or a sum over it",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let is_small = |found: &GatheredParts<'_>| {
        let summed: u64 = found.ends.sums.iter().map(|&sum| result_bytes(cx, sum)).sum();
        !found.ends.sums.is_empty() && summed <= found.bytes / 2
    };
    gathered_parts(cx).filter(is_small).map(|found| finding(cx, found)).collect()
}

/// Bytes of what a sum gives, without an array that is like its operand.
fn result_bytes(cx: &AuditCx<'_>, sum: InstId) -> u64 {
    let operand = cx.module.inst(sum).operands.first().map(|&operand| cx.module.shape(operand));
    let shape = cx.module.shape(sum);
    let leaves = shape.as_tuple().unwrap_or(std::slice::from_ref(shape));
    leaves.iter().filter(|&leaf| Some(leaf) != operand).map(Shape::size_bytes).sum()
}

fn finding(cx: &AuditCx<'_>, found: GatheredParts<'_>) -> Finding {
    let GatheredParts { gather, bytes, dim, ends } = found;
    Finding {
        check: &INFO,
        inst: gather.inst,
        message: format!(
            "{} gathers dim {dim} of {bytes} bytes on every device for sums over it, in {}",
            cx.name(gather.inst),
            cx.names(&ends.sums)
        ),
        also: ends.sums.into_iter().chain(ends.slices).collect(),
        cost: gather.cost(bytes, gather.n_runs),
        remedy: "sum each device's part and add the sums up over the devices: `--preset auto-spmd` on the program from before the partitioner \
                 does, and `--pass expand-batch-norms` writes batch norms so that any partitioner can"
            .into(),
    }
}
