//! Give each operand of a collective that takes several its own collective.
//!
//! Before, one all-reduce of two arrays:
//! ```text
//! %both = (f32[64], f32[32,8]) all-reduce(%a, %b), replica_groups={{0,1,2,3}}, to_apply=%add
//! %first = f32[64] get-tuple-element(%both), index=0
//! ```
//! after, two, and users of `%first` read the first:
//! ```text
//! %both.0 = f32[64] all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%add
//! %both.1 = f32[32,8] all-reduce(%b), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! The sample `ir-samples/passes/split-tuple-all-reduce/two.hlo` runs this.
//!
//! **Why.** Passes that look at one weight at a time need one collective for each. Those that do split what they meet
//! themselves ([`hlo_spmd::split_tuples`]); this pass does it by itself. `combine-collectives` puts together again what
//! is left. A reduce-scatter of several operands cannot be written in StableHLO, split ones can.
//!
//! **What it does not do.** Collectives in control dependencies and asynchronous ones stay. What fixes layouts (`constrain_layout`, as
//! PyTorch/XLA writes it) goes on to fix them for each array.
//!
//! **Algorithm.** For each collective of the chosen kinds with a tuple as result: one collective for each operand, on channels of
//! their own; reads of an element take it, other users a tuple of all. Linear.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit. **Errors**: none.

use hlo_analysis::Preserved;
use hlo_ir::{Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{TupleCollective, split_tuples};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "split-tuple-all-reduce",
    help: "give each operand of an all-reduce of several arrays its own all-reduce",
    options: &[OptionInfo {
        name: "ops",
        kind: OptionKind::Word(&["all-reduce", "reduce-scatter", "all-gather", "all"]),
        default: "all-reduce",
        help: "which collectives to split",
    }],
    build: |options| Ok(Box::new(SplitTupleAllReduce { ops: read_ops(options.text("ops")) })),
};

fn read_ops(word: &str) -> Vec<Opcode> {
    let all = [Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather];
    all.into_iter().filter(|op| word == "all" || op.name() == word).collect()
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct SplitTupleAllReduce {
    ops: Vec<Opcode>,
}

impl Pass for SplitTupleAllReduce {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_split = 0;
        for TupleCollective { inst, outcome } in split_tuples(module, &self.ops)? {
            cx.report.decisions.push(match outcome {
                Ok(collectives) => {
                    n_split += 1;
                    let told = Decision::about(module, inst, "split", "each operand gets a collective of its own");
                    Decision { collectives, ..told }
                }
                Err(obstacle) => Decision::about(module, inst, "left", obstacle),
            });
        }
        cx.report.count("collectives-split", n_split);
        if n_split == 0 {
            cx.report.unchanged_because = Some("no collective of the chosen kinds takes several arrays".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}
