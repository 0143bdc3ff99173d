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
//! **Why.** Passes that look at one weight at a time need one collective for each; `combine-collectives` puts together again what is
//! left. A reduce-scatter of several operands cannot be written in StableHLO, split ones can.
//!
//! **What it does not do.** Collectives in control dependencies and asynchronous ones stay. What fixes layouts (`constrain_layout`, as
//! PyTorch/XLA writes it) goes on to fix them for each array.
//!
//! **Algorithm.** For each collective of the chosen kinds with a tuple as result: one collective for each operand, on channels of
//! their own; reads of an element take it, other users a tuple of all. Linear.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit. **Errors**: none.

use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::module::UserMap;
use hlo_ir::{InstId, Module, Opcode, Shape};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{ChannelIds, CollectiveChange, Obstacle, Rewrite, check_free};

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
        let users = module.users();
        let mut channels = ChannelIds::free_in(module);
        let mut n_split = 0;
        for comp in code_computations(module) {
            let pinned = pinned_by_control(module, comp);
            let mut rewrite = Rewrite::new(module, comp);
            let mut n_here = 0;
            for inst in rewrite.live_insts(module) {
                let has_tuple = module.shape(inst).as_tuple().is_some();
                if !self.ops.contains(&module.inst(inst).opcode) || !has_tuple {
                    continue;
                }
                // Each part keeps the layout that is fixed for it.
                let obstacle = check_free(module, inst, &pinned).err().filter(|&o| o != Obstacle::ConstrainsLayout);
                if let Some(reason) = obstacle {
                    cx.report.decisions.push(Decision::about(module, inst, "left", reason));
                    continue;
                }
                let mut split = Split { users: &users, channels: &mut channels, report: cx.report };
                split.apply(module, &mut rewrite, inst);
                n_here += 1;
            }
            if n_here > 0 {
                rewrite.finish(module)?;
            }
            n_split += n_here;
        }
        cx.report.count("collectives-split", n_split);
        if n_split == 0 {
            cx.report.unchanged_because = Some("no collective of the chosen kinds takes several arrays".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// One split under way.
struct Split<'a> {
    users: &'a UserMap,
    channels: &'a mut ChannelIds,
    report: &'a mut PassReport,
}

impl Split<'_> {
    fn apply(&mut self, module: &mut Module, rewrite: &mut Rewrite, inst: InstId) {
        let mut told = Decision::about(module, inst, "split", "each operand gets a collective of its own");
        told.collectives.push(CollectiveChange::removed(module, inst, "takes several arrays"));
        let source = module.inst(inst).clone();
        let shapes: Vec<Shape> = module.shape(inst).as_tuple().map(<[Shape]>::to_vec).unwrap_or_default();
        let mut parts = Vec::with_capacity(shapes.len());
        for (idx, (shape, &operand)) in shapes.into_iter().zip(&source.operands).enumerate() {
            let hint = format!("{}.{idx}", module.inst_name(inst));
            let mut attrs = source.attrs.clone();
            self.channels.renew(&mut attrs);
            let part = rewrite.add(module, inst, (&hint, source.opcode), shape, &[operand], attrs);
            told.collectives.push(CollectiveChange::inserted(module, part, format!("takes operand {idx}")));
            parts.push(part);
        }
        rewrite.redirect_tuple(module, &self.users[inst], inst, &parts);
        self.report.decisions.push(told);
    }
}
