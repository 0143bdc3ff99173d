//! Move an all-reduce past what is linear in its result, to where it is fewest bytes, and out of loops that only add its results up.
//!
//! Before, the gradient is reduced in the layout of the dot that made it:
//! ```text
//! %gradient = f32[32,64]{1,0} all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! %transposed = f32[64,32]{0,1} transpose(%gradient), dimensions={1,0}
//! ```
//! after, in that of the weight:
//! ```text
//! %transposed.local = f32[64,32]{0,1} transpose(%local), dimensions={1,0}
//! %transposed = f32[64,32]{0,1} all-reduce(%transposed.local), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! The sample `ir-samples/passes/sink-all-reduce/transpose.hlo` runs this.
//!
//! **Why.** Who scatters the reduction later cuts it along the weight's dims, and along the physically major-most one if the
//! rearranging lies before it. In a loop of gradient accumulation the all-reduce runs once instead of once an iteration. The gradient of
//! a low-rank adapter (LoRA) is the product of a large sum with a matrix that all devices have: the sum of products is small.
//!
//! **What it does not do.** It moves not so that a dim of size one becomes the physically major-most. An all-reduce with several
//! users moves only if all of them are slices or products. Conversions stay behind it, so that the reduction keeps its precision, except
//! in a loop: there integers are added up in the narrower type, as they wrap, and with `reassoc=true` floating-point numbers in
//! the wider type of the accumulator.
//!
//! **Algorithm.** 1. From each all-reduce, follow the only users through transpose, reshape, copy, bitcast, scaling by one scalar, and
//! `reduce` by addition from zero (of a sum), to the last one that rearranges. Emit those before the all-reduce and the scalings
//! behind it. 2. [`branches`] moves it past slices and products. 3. [`joins`] makes one all-reduce of concatenated ones.
//! 4. [`loops`] takes all-reduces out of accumulating loops. All until nothing moves: linear in the instructions, times the depth of
//! loops and the number of ops that a sum is moved past.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit, except where a `reduce`, a product or a loop is passed: there
//! floating-point numbers are added in another order, and with `reassoc=true` in another precision. A device that rounds the
//! operands of products by default (TF32) rounds each part of the sum then; no sum moves past a product whose `algorithm` asks
//! for fewer bits. **Errors**: none.

mod body;
mod branches;
mod handed_on;
mod joins;
mod loops;

use cranelift_entity::EntitySet;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_analysis::values::condition_and_body;
use hlo_ir::module::UserMap;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{
    AllReduce, CollectiveChange, Rewrite, Scaling, array, check_free, find_all_reduce, find_scaling, find_splat,
    is_floating,
};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "sink-all-reduce",
    help: "move all-reduces past transposes and reshapes, and out of loops that accumulate gradients",
    options: &[
        OptionInfo {
            name: "loops",
            kind: OptionKind::Bool,
            default: "true",
            help: "also move them out of loops that add their results up",
        },
        OptionInfo {
            name: "products",
            kind: OptionKind::Bool,
            default: "true",
            help: "also move sums past products with what is equal on their devices, where that is fewer bytes",
        },
        OptionInfo {
            name: "reassoc",
            kind: OptionKind::Bool,
            default: "false",
            help: "also out of loops that convert their results to a wider floating-point type: sums are rounded less often",
        },
    ],
    build: |options| {
        let flag = |name| options.flag(name);
        Ok(Box::new(SinkAllReduce { loops: flag("loops"), products: flag("products"), reassoc: flag("reassoc") }))
    },
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SinkAllReduce {
    loops: bool,
    products: bool,
    reassoc: bool,
}

impl Pass for SinkAllReduce {
    fn takes_single_all_reduces(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut n_moved, mut n_taken_out) = (0, 0);
        loop {
            let mut n_now = 0;
            for comp in code_computations(module) {
                // Users are looked up for each computation: most have no all-reduce.
                if !module.comp(comp).insts.iter().any(|&inst| module.inst(inst).opcode == Opcode::AllReduce) {
                    continue;
                }
                n_now += sink_in(module, comp, cx.report)?;
                n_now += self.branch(module, comp, (n_now + n_moved + n_taken_out) > 0, cx)?;
                n_now += joins::join_in(module, comp, cx.report)?;
            }
            n_moved += n_now;
            if self.loops {
                let n_out = self.take_out_of_loops(module, (n_now + n_moved + n_taken_out) > 0, cx)?;
                n_taken_out += n_out;
                n_now += n_out;
            }
            if n_now == 0 {
                break;
            }
        }
        cx.report.count("all-reduces-moved", n_moved);
        cx.report.count("all-reduces-taken-out-of-loops", n_taken_out);
        if n_moved + n_taken_out == 0 {
            let why = "no all-reduce is only rearranged, sliced or multiplied, and no loop only adds its results up";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

impl SinkAllReduce {
    /// Moves all-reduces of one computation past slices and products. What is equal is found out only where a product asks for it.
    fn branch(
        &self,
        module: &mut Module,
        comp: CompId,
        has_changed: bool,
        cx: &mut PassCx<'_>,
    ) -> Result<u64, PassError> {
        if !self.products || !branches::wants_products(module, comp) {
            return branches::branch_in(module, comp, &|_, _| false, cx.report);
        }
        if has_changed {
            cx.analyses.invalidate(Preserved::NONE);
        }
        let replication = cx.analyses.replication(module);
        branches::branch_in(module, comp, &|value, groups| replication.is_equal_within(value, 0, groups), cx.report)
    }

    /// Takes all-reduces out of loops; how many.
    fn take_out_of_loops(&self, module: &mut Module, has_changed: bool, cx: &mut PassCx<'_>) -> Result<u64, PassError> {
        let insts = code_computations(module).into_iter().flat_map(|comp| &module.comp(comp).insts);
        if !insts.into_iter().any(|&inst| condition_and_body(module, inst).is_some()) {
            return Ok(0);
        }
        if has_changed {
            cx.analyses.invalidate(Preserved::NONE);
        }
        let replication = cx.analyses.replication(module);
        let is_equal = |value: InstId, groups: &[Vec<u32>]| replication.is_equal_within(value, 0, groups);
        loops::take_out_of_loops(module, self.reassoc, &is_equal, cx.report)
    }
}

/// What an instruction behind an all-reduce does to its result.
enum ChainOp {
    /// The same elements in another order or shape.
    Rearrange,
    /// Adds elements up, from zero.
    Sum,
    /// Multiplies or divides by one scalar.
    Scale(Scaling),
}

fn sink_in(module: &mut Module, comp: CompId, report: &mut PassReport) -> Result<u64, PassError> {
    let pinned = pinned_by_control(module, comp);
    let users = module.users();
    let mut rewrite = Rewrite::new(module, comp);
    let mut n_moved = 0;
    for inst in rewrite.live_insts(module) {
        let Ok(Some(all_reduce)) = find_all_reduce(module, inst, &pinned) else { continue };
        let chain = find_chain(module, &users, &pinned, &all_reduce);
        let Some((last, _)) = chain.last() else { continue };
        let mut told =
            Decision::about(module, inst, "moved", format!("past {} to %{}", past(&chain), module.inst_name(*last)));
        told.collectives.push(CollectiveChange::removed(module, inst, "its only user rearranges the result"));
        let sunk = sink(module, &mut rewrite, &all_reduce, &chain);
        told.collectives.push(CollectiveChange::inserted(module, sunk, "reduces what is rearranged"));
        report.decisions.push(told);
        n_moved += 1;
    }
    if n_moved > 0 {
        rewrite.finish(module)?;
    }
    Ok(n_moved)
}

fn past(chain: &[(InstId, ChainOp)]) -> String {
    let n = chain.len();
    if n == 1 { "one operation".into() } else { format!("{n} operations") }
}

/// The instructions that the all-reduce is moved past, in order; the last one rearranges or sums. Empty if it stays.
fn find_chain(
    module: &Module,
    users: &UserMap,
    pinned: &EntitySet<InstId>,
    all_reduce: &AllReduce,
) -> Vec<(InstId, ChainOp)> {
    let root = module.comp(module.inst(all_reduce.inst).parent).root.expand();
    let mut chain: Vec<(InstId, ChainOp)> = Vec::new();
    let mut n_taken = 0;
    let mut at = all_reduce.inst;
    while let [user] = users[at].as_slice() {
        let Some(step) = find_step(module, all_reduce, at, *user) else { break };
        if root == Some(at) || check_free(module, *user, pinned).is_err() {
            break;
        }
        let is_end = match step {
            ChainOp::Rearrange | ChainOp::Sum => keeps_major_dim(module, all_reduce.inst, *user),
            ChainOp::Scale(_) => false,
        };
        chain.push((*user, step));
        if is_end {
            n_taken = chain.len();
        }
        at = *user;
    }
    chain.truncate(n_taken);
    chain
}

/// What `user` does to `value`, if the all-reduce may be moved past it.
fn find_step(module: &Module, all_reduce: &AllReduce, value: InstId, user: InstId) -> Option<ChainOp> {
    let (from, to) = (array(module, value)?, array(module, user)?);
    let opcode = module.inst(user).opcode;
    if from.dtype != to.dtype || to.dynamic != 0 {
        return None;
    }
    if [Opcode::Transpose, Opcode::Reshape, Opcode::Copy].contains(&opcode) {
        return Some(ChainOp::Rearrange);
    }
    if opcode == Opcode::Bitcast {
        // Its meaning rests on the layout of what it reads.
        let same_layout = module.inst(all_reduce.operand).shape == module.inst(all_reduce.inst).shape;
        return (same_layout && value == all_reduce.inst).then_some(ChainOp::Rearrange);
    }
    if opcode == Opcode::Reduce {
        let [_, init] = module.inst(user).operands.as_slice() else { return None };
        let adds = module.called(user).first().and_then(|&comp| find_monoid(module, comp)) == Some(Monoid::Add);
        let from_zero = *init != value && find_splat(module, *init).is_some_and(|s| s.is_zero());
        return (adds && from_zero && all_reduce.reducer == Some(Monoid::Add)).then_some(ChainOp::Sum);
    }
    let scaling = find_scaling(module, user, value)?;
    is_floating(to).then_some(ChainOp::Scale(scaling))
}

/// Whether the physically major-most dim of `new` has more than one element where that of `old` has.
fn keeps_major_dim(module: &Module, old: InstId, new: InstId) -> bool {
    let major_size = |inst| array(module, inst).and_then(|s| s.dims.get(s.major_most_dim()?).copied()).unwrap_or(1);
    major_size(new) > 1 || major_size(old) <= 1 || array(module, new).is_some_and(|s| s.n_elems() <= 1)
}

/// Emits the chain with the all-reduce behind what rearranges and before what scales; the new all-reduce.
fn sink(module: &mut Module, rewrite: &mut Rewrite, all_reduce: &AllReduce, chain: &[(InstId, ChainOp)]) -> InstId {
    let mut value = all_reduce.operand;
    for (inst, step) in chain {
        if matches!(step, ChainOp::Scale(_)) {
            continue;
        }
        let source = module.inst(*inst).clone();
        let mut operands = source.operands.to_vec();
        operands[0] = value;
        let hint = format!("{}.local", module.inst_name(*inst));
        let shape = module.shape(*inst).clone();
        value = rewrite.add(module, *inst, (&hint, source.opcode), shape, &operands, source.attrs);
    }
    let inst = all_reduce.inst;
    let (hint, attrs) = (module.inst_name(inst).to_string(), module.inst(inst).attrs.clone());
    let shape = module.shape(value).clone();
    let sunk = rewrite.add(module, inst, (&hint, Opcode::AllReduce), shape, &[value], attrs);
    let mut result = sunk;
    for (inst, step) in chain {
        if let ChainOp::Scale(scaling) = step {
            result = rewrite.scale(module, *inst, result, scaling);
        }
    }
    if let Some((last, _)) = chain.last() {
        rewrite.redirect(*last, result);
    }
    sunk
}
