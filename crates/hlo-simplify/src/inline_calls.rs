//! Put the bodies of called computations in the place of the calls.
//!
//! Before:
//! ```text
//! %body (p: f32[4]) -> f32[4] {
//!   %p = f32[4] parameter(0)
//!   ROOT %n = f32[4] negate(%p)
//! }
//! ENTRY %main (x: f32[4]) -> f32[4] {
//!   %x = f32[4] parameter(0)
//!   ROOT %c = f32[4] call(%x), to_apply=%body
//! }
//! ```
//! after:
//! ```text
//! ENTRY %main (x: f32[4]) -> f32[4] {
//!   %x = f32[4] parameter(0)
//!   ROOT %n = f32[4] negate(%x)
//! }
//! ```
//! The sample `ir-samples/passes/inline-calls/once.hlo` runs this.
//!
//! **Why.** Partitioned modules from JAX wrap the whole step in one call; passes and people see more without it.
//!
//! **What it does not do.** Calls with `frontend_attributes={inlineable="false"}`, composites (a backend may know the whole),
//! calls in control dependencies, onto another execution thread, or inside fusions and reducers stay. So does a call that would make
//! the module larger than `max-instructions`. A computation that is called elsewhere too stays and is copied.
//!
//! **Algorithm.** Callees first, so that nested calls are copied inlined; each caller's instruction list is rebuilt once. The last
//! use of a computation keeps the names, copies get fresh ones. Linear in the instructions of the result.
//!
//! **Requires** nothing. **Ensures** the same results; collectives keep their channels. **Errors**: none.

use cranelift_entity::{EntitySet, SecondaryMap};
use hashbrown::HashMap;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_analysis::values::{CallSite, CallSites, arguments};
use hlo_ir::attrs::Attrs;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use std::fmt;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "inline-calls",
    help: "put the bodies of called computations in the place of the calls",
    options: &[OptionInfo {
        name: "max-instructions",
        kind: OptionKind::Int,
        default: "2000000",
        help: "leave calls whose copy would make the module larger than this",
    }],
    build: |options| Ok(Box::new(InlineCalls { max_instructions: options.int("max-instructions").max(0) as usize })),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineCalls {
    max_instructions: usize,
}

impl Pass for InlineCalls {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut inliner = Inliner::new(module);
        for comp in code_computations(inliner.module) {
            inliner.inline_into(comp, self.max_instructions);
        }
        let Inliner { inlined, left, n_uses, n_calls, .. } = inliner;
        let n_before = module.computations().len();
        let is_needed = |comp: &CompId| !inlined.contains(*comp) || n_uses[*comp] > 0;
        module.set_computation_order(module.computations().iter().copied().filter(is_needed).collect());
        let n_computations = n_before - module.computations().len();
        cx.report.count("calls-inlined", n_calls as u64);
        cx.report.count("calls-left", left.len() as u64);
        cx.report.count("computations-removed", n_computations as u64);
        let has_left = !left.is_empty();
        cx.report.decisions.extend(left);
        if n_calls == 0 {
            let why = if has_left { "no call could be inlined; the decisions say why" } else { "there is no call" };
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

struct Inliner<'m> {
    module: &'m mut Module,
    /// How often attributes mention each computation.
    n_uses: SecondaryMap<CompId, usize>,
    n_instructions: usize,
    n_calls: usize,
    inlined: EntitySet<CompId>,
    left: Vec<Decision>,
}

/// Why a call stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeptBecause {
    /// A front end forbids it.
    NotInlineable,
    /// The call is a composite.
    Composite,
    /// It has a control predecessor or is one.
    ControlDependency,
    /// The computation runs on another thread than its caller.
    OtherThread,
    /// The module would have too many instructions.
    TooLarge { n_after: usize, max_instructions: usize },
}

impl fmt::Display for KeptBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeptBecause::NotInlineable => "its frontend attribute inlineable=\"false\" says so",
            KeptBecause::Composite => "it is a composite, which a backend may know as a whole",
            KeptBecause::ControlDependency => "it takes part in a control dependency",
            KeptBecause::OtherThread => "it runs on another execution thread",
            KeptBecause::TooLarge { n_after, max_instructions } => {
                return write!(
                    f,
                    "its copy would make {n_after} instructions, more than max-instructions={max_instructions}"
                );
            }
        })
    }
}

impl<'m> Inliner<'m> {
    fn new(module: &'m mut Module) -> Inliner<'m> {
        let sites = CallSites::find(module, module.computations().iter().copied());
        let mut n_uses: SecondaryMap<CompId, usize> = SecondaryMap::new();
        module.computations().iter().for_each(|&comp| n_uses[comp] = sites.of(comp).len());
        let n_instructions = module.n_instructions();
        Inliner { module, n_uses, n_instructions, n_calls: 0, inlined: EntitySet::new(), left: Vec::new() }
    }

    fn inline_into(&mut self, comp: CompId, max_instructions: usize) {
        let insts = self.module.comp(comp).insts.clone();
        let is_call = |inst: &InstId| self.module.inst(*inst).opcode == Opcode::Call;
        if !insts.iter().any(is_call) {
            return;
        }
        let pinned = pinned_by_control(self.module, comp);
        let mut out = Vec::with_capacity(insts.len());
        let mut replaced: HashMap<InstId, InstId> = HashMap::new();
        for inst in insts {
            self.redirect(inst, &replaced);
            let callee = match self.inlinable(inst, &pinned, max_instructions) {
                Some(Ok(callee)) => callee,
                Some(Err(reason)) => {
                    self.left.push(left(self.module, inst, reason));
                    out.push(inst);
                    continue;
                }
                None => {
                    out.push(inst);
                    continue;
                }
            };
            if let Some(root) = self.copy_body(inst, callee, &mut out) {
                replaced.insert(inst, root);
            }
        }
        let root = self.module.comp(comp).root.expand().map(|root| replaced.get(&root).copied().unwrap_or(root));
        let comp = self.module.comp_mut(comp);
        comp.insts = out;
        comp.root = root.into();
    }

    /// The computation to put in the place of `inst`, or why not; `None` if it is no call.
    fn inlinable(
        &self,
        inst: InstId,
        pinned: &EntitySet<InstId>,
        max_instructions: usize,
    ) -> Option<Result<CompId, KeptBecause>> {
        let instruction = self.module.inst(inst);
        let Attrs::Call(call) = &instruction.attrs else { return None };
        let callee = call.to_apply?;
        let says_no = |(key, value): &(String, String)| key == "inlineable" && value == "false";
        let is_refused = instruction.marks.as_ref().is_some_and(|m| m.frontend_attributes.iter().any(says_no));
        let n_after = self.n_instructions.saturating_add(self.module.comp(callee).insts.len());
        let threads =
            (&self.module.comp(callee).execution_thread, &self.module.comp(instruction.parent).execution_thread);
        Some(if is_refused {
            Err(KeptBecause::NotInlineable)
        } else if call.is_composite {
            Err(KeptBecause::Composite)
        } else if pinned.contains(inst) {
            Err(KeptBecause::ControlDependency)
        } else if threads.0 != threads.1 {
            Err(KeptBecause::OtherThread)
        } else if self.n_uses[callee] > 1 && n_after > max_instructions {
            Err(KeptBecause::TooLarge { n_after, max_instructions })
        } else {
            Ok(callee)
        })
    }

    /// Appends the body of `callee` to `out` and returns what `call` is now.
    fn copy_body(&mut self, call: InstId, callee: CompId, out: &mut Vec<InstId>) -> Option<InstId> {
        let body = self.module.comp(callee).clone();
        let comp = self.module.inst(call).parent;
        let is_last_use = self.n_uses[callee] == 1;
        let site = CallSite { inst: call, slot: 0 };
        let mut map: HashMap<InstId, InstId> = arguments(self.module, site, callee).collect();
        for &inst in &body.insts {
            if self.module.inst(inst).opcode == Opcode::Parameter {
                continue;
            }
            let mut copy = self.module.inst(inst).clone();
            copy.parent = comp;
            copy.operands.iter_mut().for_each(|o| *o = map.get(o).copied().unwrap_or(*o));
            if let Some(marks) = &mut copy.marks {
                marks.control_predecessors.iter_mut().for_each(|o| *o = map.get(o).copied().unwrap_or(*o));
            }
            if !is_last_use {
                let base = self.module.inst_name(inst).to_string();
                copy.name = self.module.names.fresh(&base);
                copy.attrs.for_each_comp(&mut |c| self.n_uses[c] += 1);
                self.n_instructions += 1;
            }
            let id = self.module.add_instruction(copy);
            map.insert(inst, id);
            out.push(id);
        }
        self.n_uses[callee] -= 1;
        self.n_calls += 1;
        self.inlined.insert(callee);
        map.get(&body.root.expand()?).copied()
    }

    fn redirect(&mut self, inst: InstId, replaced: &HashMap<InstId, InstId>) {
        let instruction = self.module.inst_mut(inst);
        instruction.operands.iter_mut().for_each(|o| *o = replaced.get(o).copied().unwrap_or(*o));
    }
}

fn left(module: &Module, call: InstId, reason: KeptBecause) -> Decision {
    Decision {
        subject: format!("%{}", module.inst_name(call)),
        computation: module.comp_name(module.inst(call).parent).into(),
        action: "left".into(),
        reason: reason.to_string(),
        ..Decision::default()
    }
}
