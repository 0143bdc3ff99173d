//! Fold an all-reduce whose operand is the same on every device of each group, as another all-reduce's result is.
//!
//! Before, a mean of what was summed already:
//! ```text
//! %sum = f32[64,32] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! %again = f32[64,32] all-reduce(%sum), replica_groups={{0,1,2,3}}, to_apply=%add
//! %mean = f32[64,32] divide(%again, %fours)
//! ```
//! after, users of `%mean` read `%sum`:
//! ```text
//! %sum = f32[64,32] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! The sample `ir-samples/passes/fold-all-reduce-of-all-reduce/mean.hlo` runs this.
//!
//! **Why.** Where automatic differentiation inserts the sum of a gradient itself, an explicit mean in the model's code reduces what
//! is reduced already: twice the traffic, for a multiplication by the number of devices.
//!
//! **What it does not do.** Products stay, because a power would replace them. Sums stay if their groups differ in size, or if
//! the element type cannot hold the size. All-reduces in control dependencies stay too.
//!
//! **Algorithm.** For each all-reduce whose operand is equal within each of its groups by the replication analysis: maximum,
//! minimum, and, or give the operand itself; a sum over n devices gives n times the operand. A user that divides by n, or
//! multiplies by the exact 1/n, reads the operand itself. Linear.
//!
//! **Requires** that parameters which the user calls replicated are so, as the replication analysis does. **Ensures** the same
//! results for maximum, minimum, and, or, and for integers. Floating-point sums may differ by the rounding of a sum of n equal
//! numbers. For a power of two there is none: n·x is exact if it does not overflow. Otherwise there are at most n roundings, and
//! the folded mean is the exact one. **Errors**: none.

use crate::refusal::{CollectiveRefusal, FoldRefusal};
use cranelift_entity::EntitySet;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::attrs::Attrs;
use hlo_ir::dtype::NumberClass;
use hlo_ir::module::UserMap;
use hlo_ir::monoid::Monoid;
use hlo_ir::{InstId, Literal, Module, Opcode, Scalar};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{
    AllReduce, CollectiveChange, Rewrite, Splat, array, check_free, find_all_reduce, find_scaling, is_floating,
};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "fold-all-reduce-of-all-reduce",
    help: "fold an all-reduce of what is the same on all its devices: the value itself, or n times it",
    options: &[],
    build: |_| Ok(Box::new(FoldAllReduceOfAllReduce)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldAllReduceOfAllReduce;

impl Pass for FoldAllReduceOfAllReduce {
    fn takes_single_all_reduces(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let replication = cx.analyses.replication(module);
        let users = module.users();
        let (mut n_folded, mut n_means) = (0, 0);
        for comp in code_computations(module) {
            let pinned = pinned_by_control(module, comp);
            let mut rewrite = Rewrite::new(module, comp);
            let n_before = n_folded;
            for inst in rewrite.live_insts(module) {
                let folded = match find_all_reduce(module, inst, &pinned) {
                    Ok(None) => continue,
                    Err(obstacle) => Err(CollectiveRefusal::from(obstacle)),
                    Ok(Some(all_reduce)) if !replication.is_equal_within(all_reduce.operand, 0, &all_reduce.groups) => {
                        continue;
                    }
                    Ok(Some(all_reduce)) => find_factor(module, &all_reduce)
                        .map(|factor| (all_reduce, factor))
                        .map_err(CollectiveRefusal::from),
                };
                match folded {
                    Err(reason) => cx.report.decisions.push(Decision::about(module, inst, "left", reason)),
                    Ok((all_reduce, factor)) => {
                        let mut told = Decision::about(module, inst, "folded", reason(&all_reduce, factor));
                        told.collectives.push(CollectiveChange::removed(
                            module,
                            inst,
                            "its operand is the same on all its devices",
                        ));
                        cx.report.decisions.push(told);
                        let mut fold = Fold { module, rewrite: &mut rewrite, users: &users, pinned: &pinned };
                        n_means += fold.apply(&all_reduce, factor);
                        n_folded += 1;
                    }
                }
            }
            if n_folded > n_before {
                rewrite.finish(module)?;
            }
        }
        cx.report.count("all-reduces-folded", n_folded);
        cx.report.count("means-folded", n_means);
        if n_folded == 0 {
            let why = "no all-reduce takes a value that is known to be the same on every device of its groups";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// How many times its operand an all-reduce of equal operands is; 1 for reductions of equals to themselves.
///
/// # Errors
/// Why it cannot be folded.
fn find_factor(module: &Module, all_reduce: &AllReduce) -> Result<i64, FoldRefusal> {
    if all_reduce.groups.iter().all(|g| g.len() == 1) {
        return Ok(1);
    }
    match all_reduce.reducer {
        None => return Err(FoldRefusal::UnknownReducer),
        Some(Monoid::Maximum | Monoid::Minimum | Monoid::And | Monoid::Or) => return Ok(1),
        Some(Monoid::Multiply) => return Err(FoldRefusal::Product),
        Some(Monoid::Add) => {}
    }
    let n = all_reduce.groups.first().map_or(0, Vec::len);
    if all_reduce.groups.iter().any(|g| g.len() != n) {
        return Err(FoldRefusal::UnevenGroups);
    }
    let dtype = array(module, all_reduce.inst).ok_or(FoldRefusal::NoArray)?.dtype;
    let held = match dtype.class() {
        NumberClass::Pred => None,
        NumberClass::Signed => Some(Scalar::Int(n as i64)),
        NumberClass::Unsigned => Some(Scalar::Uint(n as u64)),
        NumberClass::Float => Some(Scalar::Float(n as f64)),
        NumberClass::Complex => Some(Scalar::Complex(n as f64, 0.0)),
    };
    match held {
        Some(value) if Literal::scalar(dtype, value).get(0) == Some(value) => Ok(n as i64),
        Some(_) | None => Err(FoldRefusal::NotHeld { dtype, n }),
    }
}

fn reason(all_reduce: &AllReduce, factor: i64) -> String {
    match (factor, all_reduce.reducer) {
        (1, _) => "every device of a group has the same value already: the result is that value".into(),
        (n, _) => format!("the {n} devices of a group have the same value already: the sum is {n} times it"),
    }
}

/// One fold under way.
struct Fold<'a> {
    module: &'a mut Module,
    rewrite: &'a mut Rewrite,
    users: &'a UserMap,
    pinned: &'a EntitySet<InstId>,
}

impl Fold<'_> {
    /// Redirects the uses of the all-reduce and of the means behind it; the number of those.
    fn apply(&mut self, all_reduce: &AllReduce, factor: i64) -> u64 {
        let (inst, operand) = (all_reduce.inst, all_reduce.operand);
        if factor == 1 {
            let same = self.rewrite.with_shape_of(self.module, operand, inst);
            self.rewrite.redirect(inst, same);
            return 0;
        }
        let means: Vec<InstId> = self.users[inst].iter().copied().filter(|&u| self.undoes(u, inst, factor)).collect();
        for &mean in &means {
            let same = self.rewrite.with_shape_of(self.module, operand, mean);
            self.rewrite.redirect(mean, same);
        }
        let is_root = self.module.comp(self.module.inst(inst).parent).root.expand() == Some(inst);
        if is_root || means.len() < self.users[inst].len() {
            let times = self.times(operand, inst, factor);
            self.rewrite.redirect(inst, times);
        }
        means.len() as u64
    }

    /// Whether `user` takes 1/n of the sum and so gives the operand back.
    fn undoes(&self, user: InstId, all_reduce: InstId, n: i64) -> bool {
        let (Some(of), Some(scaling)) = (array(self.module, user), find_scaling(self.module, user, all_reduce)) else {
            return false;
        };
        let Splat::Value(Scalar::Float(scale)) = scaling.splat else { return false };
        let is_mean = match scaling.opcode == Opcode::Divide {
            true => scale == n as f64,
            false => n.count_ones() == 1 && scale == 1.0 / n as f64,
        };
        is_mean && is_floating(of) && check_free(self.module, user, self.pinned).is_ok()
    }

    /// `n · operand`, in the shape of the all-reduce.
    fn times(&mut self, operand: InstId, all_reduce: InstId, n: i64) -> InstId {
        let Some(shape) = array(self.module, all_reduce).cloned() else { return operand };
        let value = match shape.dtype.class() {
            NumberClass::Pred | NumberClass::Unsigned => Scalar::Uint(n as u64),
            NumberClass::Signed => Scalar::Int(n),
            NumberClass::Float => Scalar::Float(n as f64),
            NumberClass::Complex => Scalar::Complex(n as f64, 0.0),
        };
        let scale = self.rewrite.splat(self.module, "group_size", value, &shape);
        let hint = format!("{}.times", self.module.inst_name(all_reduce));
        let operands = [operand, scale];
        let what = (hint.as_str(), Opcode::Multiply);
        self.rewrite.add(self.module, all_reduce, what, hlo_ir::Shape::Array(shape), &operands, Attrs::Plain)
    }
}
