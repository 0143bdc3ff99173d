//! Make isomorphic branches one: ops that stand once in each branch become one op with a dim of the branches in front.
//!
//! Before:
//! ```text
//! %h0 = f32[64,32] dot(%x0, %w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! %h1 = f32[64,32] dot(%x1, %w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ROOT %y = f32[64,32] add(%h0, %h1)
//! ```
//! after, `%x` and `%w` being both branches' values beside each other:
//! ```text
//! %h = f32[2,64,32] dot(%x, %w), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
//! ROOT %y = f32[64,32] reduce(%h, %zero), dimensions={0}, to_apply=%sum
//! ```
//!
//! The sample `ir-samples/passes/stack-branches/two.hlo` runs this.
//!
//! **Why.** A program of each device has no way to run one branch here and another one there. With the branches as a dim it has: an axis of the
//! mesh cuts it. Unity's rules call this a substitution that joins operators; its search gains most by it.
//!
//! **What it does not do.** Branches without a matrix product are left. So are convolutions, indexed ops, and ops with
//! several results or control dependencies; what they give or take is taken apart and put together around them.
//!
//! **Algorithm.** Ops are coloured by their kind and by the colours of what takes them. Products of one colour that do not need each other are
//! the start of branches; operands and users that are alike in all branches join them, until nothing does. Branches
//! that could not be computed at one time are left. One walk then writes each group of ops as one.
//!
//! **Requires** inlined calls. **Ensures** the same results, where a product of stacked operands sums as the single ones do, but for sums of all
//! branches, which add in another order. With
//! `state=stacked` parameters that results replace are one parameter for all branches ([`pack_program`], [`unpack_program`]). **Errors**:
//! none.
//!
//! Reference: Unger et al., *Unity*, OSDI 2022, §4.

mod find;
mod interface;
mod stacked_op;
mod write;

pub use interface::{StackedParam, pack_program, unpack_program};

use find::{Branches, find_branches};
use hlo_analysis::Preserved;
use hlo_ir::{InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use interface::{NewState, add_params, find_state, write_interface};
use serde::Serialize;
use write::Writer;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "stack-branches",
    help: "make branches that are alike one: each op of theirs becomes one op with a dim of the branches in front",
    options: &[OptionInfo {
        name: "state",
        kind: OptionKind::Word(&["same", "stacked"]),
        default: "same",
        help: "parameters that results replace stay as they are, or are one for all branches",
    }],
    build: |options| {
        let form = if options.text("state") == "stacked" { StateForm::Stacked } else { StateForm::Same };
        Ok(Box::new(StackBranches { form }))
    },
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackBranches {
    form: StateForm,
}

impl Pass for StackBranches {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let Some((changed, told)) = stack_branches(module, self.form).into_iter().next() else {
            cx.report.unchanged_because =
                Some("no branches with a matrix product are alike (2 to 256 of them are looked for)".into());
            return Ok(Changed::No);
        };
        let entry = module.entry().map_or(String::new(), |entry| module.comp_name(entry).to_string());
        told.tell(&entry, "ops alike in every branch, none of which needs another branch", cx.report);
        *module = changed;
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// How the state of branches comes in and goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateForm {
    /// As it did; the program puts it together and takes it apart.
    Same,
    /// Stacked: one parameter for all branches.
    Stacked,
}

/// One set of branches that became one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StackedSet {
    /// How many branches.
    pub n_branches: usize,
    /// Ops of each branch.
    pub n_ops: usize,
    /// Matrix products of each branch.
    pub n_products: usize,
    /// A product of each branch.
    pub products: Vec<String>,
}

/// Branches that became one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StackedBranches {
    /// The sets of branches.
    pub sets: Vec<StackedSet>,
    /// The part of the program's arithmetic that they have, from 0 to 1.
    pub share: f64,
    /// Parameters that hold the state of all branches.
    pub state: Vec<StackedParam>,
}

impl StackedBranches {
    /// Tells of each set of branches, and of the parameters that hold their state.
    pub(crate) fn tell(&self, entry: &str, why: &str, report: &mut PassReport) {
        report.decisions.extend(self.sets.iter().map(|set| Decision {
            subject: set.products.iter().map(|name| format!("%{name}")).collect::<Vec<_>>().join(", "),
            computation: entry.into(),
            action: format!("{} branches of {} ops made one", set.n_branches, set.n_ops),
            reason: why.into(),
            ..Decision::default()
        }));
        report.decisions.extend(self.state.iter().map(|param| Decision {
            subject: format!("parameter {}", param.number),
            computation: entry.into(),
            action: format!("holds parameters {:?} of the program as it was", param.of),
            reason: format!("result {} replaces it, in the place of results {:?}", param.output, param.outputs),
            ..Decision::default()
        }));
    }
}

/// Programs in which branches of the entry are one, those with most arithmetic in branches first.
pub fn stack_branches(module: &Module, form: StateForm) -> Vec<(Module, StackedBranches)> {
    let Some(entry) = module.entry() else { return Vec::new() };
    let stacked = |branches: Branches| {
        let mut changed = module.clone();
        let told = stack(&mut changed, &branches, form)?;
        Some((changed, told))
    };
    find_branches(module, entry).into_iter().filter_map(stacked).collect()
}

fn tell(module: &Module, branches: &Branches, set: usize) -> StackedSet {
    let opcode = |insts: &&Vec<InstId>| module.inst(insts[0]).opcode;
    let products: Vec<&Vec<InstId>> = branches.groups_of_set(set).filter(|one| opcode(one) == Opcode::Dot).collect();
    let first = &branches.groups[branches.sets[set]];
    StackedSet {
        n_branches: first.len(),
        n_ops: branches.groups_of_set(set).filter(|one| opcode(one) != Opcode::Parameter).count(),
        n_products: products.len(),
        products: first.iter().map(|&inst| module.inst_name(inst).to_string()).collect(),
    }
}

fn stack(module: &mut Module, branches: &Branches, form: StateForm) -> Option<StackedBranches> {
    let state = match form {
        StateForm::Stacked => find_state(module, branches),
        StateForm::Same => Vec::new(),
    };
    let sets = (0..branches.sets.len()).map(|set| tell(module, branches, set)).collect();
    let share = branches.share(module);
    let params = add_params(module, branches, &state);
    let mut writer = Writer::new(module, branches);
    state.iter().zip(&params).for_each(|(group, &param)| writer.set_stacked(group.params, param));
    writer.write();
    let results = state.iter().map(|group| writer.stacked(group.results)).collect::<Option<Vec<InstId>>>()?;
    let state = match state.is_empty() {
        true => Vec::new(),
        false => write_interface(module, branches, &state, &NewState { params, results }),
    };
    module.restore_order(branches.comp).ok()?;
    module.remove_dead(branches.comp);
    Some(StackedBranches { sets, share, state })
}
