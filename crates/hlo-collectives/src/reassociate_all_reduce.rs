//! Reduce a sum once instead of adding reduced parts.
//!
//! Before, both uses of a tied weight reduce their gradient:
//! ```text
//! %a = f32[64,32] all-reduce(%local.a), replica_groups={{0,1,2,3}}, to_apply=%add
//! %b = f32[64,32] all-reduce(%local.b), replica_groups={{0,1,2,3}}, to_apply=%add
//! %gradient = f32[64,32] add(%a, %b)
//! ```
//! after, their sum is reduced:
//! ```text
//! %local = f32[64,32] add(%local.a, %local.b)
//! %gradient = f32[64,32] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! The sample `ir-samples/passes/reassociate-all-reduce/tied-weight.hlo` runs this.
//!
//! **Why.** A weight used in several places has a gradient of several parts; half the traffic is saved, and
//! what follows sees one all-reduce for each weight.
//!
//! **What it does not do.** Both all-reduces must have no other use, be plain sums over the same groups in the same element type; a mean (multiplication
//! or division by the same scalar) may stand behind both. Differences, parts that are converted or transposed between (see
//! `sink-all-reduce`), and control dependencies stay.
//!
//! **Algorithm.** One walk over each computation, operands first, so that nested sums collapse from the inside: `add(s(AR(a)), s(AR(b)))`
//! becomes `s(AR(add(a, b)))`, with the same scaling `s` or none. Repeated until nothing merges; linear each time.
//!
//! **Requires** nothing. **Ensures** the same results but for the order of floating-point additions. **Errors**: none.

use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::attrs::Attrs;
use hlo_ir::monoid::Monoid;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{AllReduce, CollectiveChange, Rewrite, Scaling, array, check_free, find_all_reduce, find_scaling};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "reassociate-all-reduce",
    help: "add before one all-reduce instead of after two (gradients of tied weights)",
    options: &[],
    build: |_| Ok(Box::new(ReassociateAllReduce)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReassociateAllReduce;

impl Pass for ReassociateAllReduce {
    fn takes_single_all_reduces(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_merged = 0;
        for comp in code_computations(module) {
            // What a merge leaves dead was a user of something, which may be mergeable without it.
            loop {
                match merge_in(module, comp, cx.report)? {
                    0 => break,
                    n => n_merged += n,
                }
            }
        }
        cx.report.count("all-reduces-merged", n_merged);
        if n_merged == 0 {
            let why = "no sum has two operands that are all-reduces without other users, over the same groups";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// One operand of a sum: an all-reduce, scaled or not, that nothing else uses.
struct Part {
    all_reduce: AllReduce,
    scaling: Option<(InstId, Scaling)>,
}

fn merge_in(module: &mut Module, comp: CompId, report: &mut PassReport) -> Result<u64, PassError> {
    let mut merger = Merger {
        pinned: pinned_by_control(module, comp),
        n_uses: count_uses(module, comp),
        rewrite: Rewrite::new(module, comp),
    };
    let mut n_merged = 0;
    for inst in merger.rewrite.live_insts(module) {
        if let Some((a, b)) = merger.find_parts(module, inst) {
            let mut told =
                Decision::about(module, inst, "merged", "the sum of what two all-reduces give is reduced once");
            for part in [&a, &b] {
                told.collectives.push(CollectiveChange::removed(
                    module,
                    part.all_reduce.inst,
                    "its operand is added before",
                ));
            }
            let merged = merger.merge(module, inst, &a, &b);
            told.collectives.push(CollectiveChange::inserted(module, merged, "reduces the sum"));
            report.decisions.push(told);
            n_merged += 1;
        }
    }
    if n_merged > 0 {
        merger.rewrite.finish(module)?;
    }
    Ok(n_merged)
}

/// How often each instruction of a computation is used, as its result too.
fn count_uses(module: &Module, comp: CompId) -> SecondaryMap<InstId, u32> {
    let mut n_uses: SecondaryMap<InstId, u32> = SecondaryMap::with_capacity(module.n_inst_slots());
    for &inst in &module.comp(comp).insts {
        module.inst(inst).operands.iter().for_each(|&operand| n_uses[operand] += 1);
    }
    if let Some(root) = module.comp(comp).root.expand() {
        n_uses[root] += 1;
    }
    n_uses
}

/// The walk over one computation.
struct Merger {
    pinned: EntitySet<InstId>,
    n_uses: SecondaryMap<InstId, u32>,
    rewrite: Rewrite,
}

impl Merger {
    /// The two parts of a sum that can be merged.
    fn find_parts(&self, module: &Module, sum: InstId) -> Option<(Part, Part)> {
        if module.inst(sum).opcode != Opcode::Add || check_free(module, sum, &self.pinned).is_err() {
            return None;
        }
        let [a, b] = module.inst(sum).operands.as_slice() else { return None };
        let (a, b) = (self.find_part(module, *a)?, self.find_part(module, *b)?);
        let same_scaling = match (&a.scaling, &b.scaling) {
            (None, None) => true,
            (Some((_, s)), Some((_, t))) => s.opcode == t.opcode && s.splat == t.splat,
            (Some(_), None) | (None, Some(_)) => false,
        };
        let channel =
            |part: &Part| module.inst(part.all_reduce.inst).attrs.collective().map(|c| c.channel_id.is_some());
        let type_of = |part: &Part| array(module, part.all_reduce.inst).map(|s| (s.dtype, s.dims.clone()));
        let same =
            a.all_reduce.groups == b.all_reduce.groups && channel(&a) == channel(&b) && type_of(&a) == type_of(&b);
        (same_scaling && same).then_some((a, b))
    }

    fn find_part(&self, module: &Module, value: InstId) -> Option<Part> {
        let value = self.rewrite.resolve(value);
        if self.n_uses[value] != 1 {
            return None;
        }
        let sum = |inst| {
            find_all_reduce(module, inst, &self.pinned).ok().flatten().filter(|a| a.reducer == Some(Monoid::Add))
        };
        if let Some(all_reduce) = sum(value) {
            return Some(Part { all_reduce, scaling: None });
        }
        check_free(module, value, &self.pinned).ok()?;
        let operands = module.inst(value).operands.iter();
        operands.filter(|&&operand| self.n_uses[self.rewrite.resolve(operand)] == 1).find_map(|&operand| {
            let scaling = find_scaling(module, value, operand)?;
            Some(Part { all_reduce: sum(self.rewrite.resolve(operand))?, scaling: Some((value, scaling)) })
        })
    }

    /// Reduces the sum of both operands; the new all-reduce.
    fn merge(&mut self, module: &mut Module, sum: InstId, a: &Part, b: &Part) -> InstId {
        let shape = module.shape(sum).clone();
        let operands = [a.all_reduce.operand, b.all_reduce.operand];
        let hint = format!("{}.local", module.inst_name(sum));
        let local = self.rewrite.add(module, sum, (&hint, Opcode::Add), shape.clone(), &operands, Attrs::Plain);
        let first = a.all_reduce.inst;
        let (hint, attrs) = (module.inst_name(first).to_string(), module.inst(first).attrs.clone());
        let reduced = self.rewrite.add(module, first, (&hint, Opcode::AllReduce), shape, &[local], attrs);
        let result = match &a.scaling {
            None => reduced,
            Some((scaled, scaling)) => self.rewrite.scale(module, *scaled, reduced, scaling),
        };
        self.n_uses[local] = 1;
        self.n_uses[reduced] = 1;
        self.n_uses[result] = self.n_uses[sum];
        self.rewrite.redirect(sum, result);
        reduced
    }
}
