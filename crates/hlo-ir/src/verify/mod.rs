//! The verifier: what must hold of a module before any analysis, pass, evaluator or back end looks at it.
//!
//! [`RULES`] is the whole list, with a sentence each; a module that breaks none of them makes no later code panic.
//! The rules are XLA's own, not stricter: every module that XLA prints is valid here.
//!
//! Two stages. *Structure* (operands, computations, names) comes first; if it is broken, nothing else is looked at,
//! because every other rule follows operands and callees. Then each instruction is checked by the rules of its
//! attributes and each distinct shape, group list and reducer once, so that a check costs about as much as reading
//! the instruction: 134,000 instructions take a few milliseconds.

mod asynchrony;
mod attributes;
mod collectives;
mod header;
mod reducers;
mod rules;
mod shapes;
mod shardings;
mod structure;

pub use rules::{RULES, Rule};

use crate::diag::{Diagnostic, Entity};
use crate::module::{CompId, InstId, Module};
use std::fmt::Display;

/// Diagnostics after which the verifier stops.
pub const MAX_DIAGNOSTICS: usize = 100;

/// Checks every rule of [`RULES`].
///
/// # Errors
/// What is broken, in text order within each rule family, at most [`MAX_DIAGNOSTICS`].
pub fn verify(module: &Module) -> Result<(), Vec<Diagnostic>> {
    let mut cx = Verifier { module, found: Vec::new() };
    header::check_counts(&mut cx);
    structure::check(&mut cx);
    shapes::check_pool(&mut cx);
    shapes::check_sizes(&mut cx);
    if cx.found.is_empty() {
        let mut memo = Memo::default();
        let mut has_async = false;
        for &comp in module.computations() {
            for &inst in &module.comp(comp).insts {
                has_async |= asynchrony::is_half_of_pair(module.inst(inst).opcode);
                check_instruction(&mut cx, &mut memo, inst);
                if cx.is_full() {
                    return Err(cx.found);
                }
            }
        }
        if has_async {
            asynchrony::check(&mut cx);
        }
        header::check(&mut cx);
    }
    if cx.found.is_empty() { Ok(()) } else { Err(cx.found) }
}

/// What was already found right, so that it is looked at once.
#[derive(Default)]
struct Memo {
    groups: collectives::GroupMemo,
}

fn check_instruction(cx: &mut Verifier<'_>, memo: &mut Memo, inst: InstId) {
    shapes::check(cx, inst);
    collectives::check(cx, &mut memo.groups, inst);
    attributes::check(cx, inst);
    asynchrony::check_thread(cx, inst);
    if let Some(marks) = &cx.module.inst(inst).marks {
        shardings::check(cx, inst, marks);
    }
}

/// The module and what is wrong with it so far.
struct Verifier<'a> {
    module: &'a Module,
    found: Vec<Diagnostic>,
}

impl<'a> Verifier<'a> {
    fn is_full(&self) -> bool {
        self.found.len() >= MAX_DIAGNOSTICS
    }

    #[cold]
    fn push(&mut self, rule: &'static str, entity: Entity, message: String) {
        debug_assert!(RULES.iter().any(|r| r.id == rule), "rule {rule} is not in the catalogue");
        if !self.is_full() {
            self.found.push(Diagnostic::about(rule, entity, message));
        }
    }

    /// `` `%add.3`: expected …, found … ``.
    #[cold]
    fn at_inst(&mut self, rule: &'static str, inst: InstId, expected: impl Display, found: impl Display) {
        let name = self.module.inst_name(inst);
        self.push(rule, Entity::Inst(inst), format!("`%{name}`: expected {expected}, found {found}"));
    }

    #[cold]
    fn at_comp(&mut self, rule: &'static str, comp: CompId, expected: impl Display, found: impl Display) {
        let name = self.module.comp_name(comp);
        self.push(rule, Entity::Comp(comp), format!("computation `%{name}`: expected {expected}, found {found}"));
    }

    #[cold]
    fn at_module(&mut self, rule: &'static str, expected: impl Display, found: impl Display) {
        let message = format!("module `{}`: expected {expected}, found {found}", self.module.name);
        self.push(rule, Entity::Module, message);
    }
}
