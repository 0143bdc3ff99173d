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
//! **Algorithm.** Callees first, so that nested calls are copied inlined. The last use of a computation takes its instructions
//! themselves, with their names; the others take copies with fresh names. A call whose callee moves in stays in its list until
//! the end as the place of these instructions. Then the list of each computation that is left is written out once.
//! Linear in the instructions of the result.
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
        default: "0",
        help: "leave calls whose copy would make the module larger; 0: eight times what it has, and 100000 at least",
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
        let max_instructions = match self.max_instructions {
            0 => inliner.n_instructions.saturating_mul(8).max(100_000),
            given => given,
        };
        for comp in code_computations(inliner.module) {
            inliner.inline_into(comp, max_instructions);
        }
        inliner.write_out();
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
    /// Computations in which a call was replaced.
    changed: Vec<CompId>,
    /// Calls in whose place the instructions of this computation itself stand.
    moved_in: HashMap<InstId, CompId>,
    /// What a replaced call and a parameter of a moved computation are now, perhaps in several steps.
    replaced: HashMap<InstId, InstId>,
    /// Instructions of each computation, with those that moved in.
    n_inside: SecondaryMap<CompId, usize>,
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
        let mut n_inside: SecondaryMap<CompId, usize> = SecondaryMap::new();
        module.computations().iter().for_each(|&comp| n_inside[comp] = module.comp(comp).insts.len());
        let n_instructions = module.n_instructions();
        Inliner {
            module,
            n_uses,
            n_instructions,
            n_calls: 0,
            inlined: EntitySet::new(),
            left: Vec::new(),
            changed: Vec::new(),
            moved_in: HashMap::new(),
            replaced: HashMap::new(),
            n_inside,
        }
    }

    fn inline_into(&mut self, comp: CompId, max_instructions: usize) {
        let insts = self.module.comp(comp).insts.clone();
        let is_call = |inst: &InstId| self.module.inst(*inst).opcode == Opcode::Call;
        if !insts.iter().any(is_call) {
            return;
        }
        let pinned = pinned_by_control(self.module, comp);
        let mut out = Vec::with_capacity(insts.len());
        let (n_calls_before, mut n_inside) = (self.n_calls, 0);
        for inst in insts {
            let n_before = out.len();
            match self.inlinable(inst, &pinned, max_instructions) {
                Some(Ok(callee)) if self.n_uses[callee] == 1 => {
                    self.move_body(inst, callee);
                    out.push(inst);
                    n_inside += self.n_inside[callee] - self.module.comp(callee).params.len();
                    continue;
                }
                Some(Ok(callee)) => self.copy_body(inst, callee, &mut out),
                Some(Err(reason)) => {
                    self.left.push(left(self.module, inst, reason));
                    out.push(inst);
                }
                None => out.push(inst),
            }
            n_inside += out.len() - n_before;
        }
        self.module.comp_mut(comp).insts = out;
        self.n_inside[comp] = n_inside;
        if self.n_calls > n_calls_before {
            self.changed.push(comp);
        }
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
        let n_after = self.n_instructions.saturating_add(self.n_inside[callee]);
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

    /// Lets the instructions of `callee` stand in the place of `call`, its last use.
    fn move_body(&mut self, call: InstId, callee: CompId) {
        let site = CallSite { inst: call, slot: 0 };
        self.replaced.extend(arguments(self.module, site, callee));
        self.replaced.extend(self.module.comp(callee).root.expand().map(|root| (call, root)));
        self.moved_in.insert(call, callee);
        self.count_inlined(callee);
    }

    /// Appends a copy of the body of `callee` to `out`, in the place of `call`.
    fn copy_body(&mut self, call: InstId, callee: CompId, out: &mut Vec<InstId>) {
        let body = self.written_out(callee);
        let comp = self.module.inst(call).parent;
        let site = CallSite { inst: call, slot: 0 };
        let mut map: HashMap<InstId, InstId> = arguments(self.module, site, callee).collect();
        for inst in body {
            if self.module.inst(inst).opcode == Opcode::Parameter {
                continue;
            }
            let mut copy = self.module.inst(inst).clone();
            copy.parent = comp;
            let mut inside = |before: InstId| {
                let now = self.now(before);
                map.get(&now).copied().unwrap_or(now)
            };
            copy.operands.iter_mut().for_each(|operand| *operand = inside(*operand));
            copy.control_predecessors_mut().iter_mut().for_each(|before| *before = inside(*before));
            let base = self.module.inst_name(inst).to_string();
            copy.name = self.module.names.fresh(&base);
            copy.attrs.for_each_comp(&mut |c| self.n_uses[c] += 1);
            self.n_instructions += 1;
            let id = self.module.add_instruction(copy);
            map.insert(inst, id);
            out.push(id);
        }
        let root = self.module.comp(callee).root.expand().map(|root| self.now(root));
        self.replaced.extend(root.and_then(|root| Some((call, *map.get(&root)?))));
        self.count_inlined(callee);
    }

    fn count_inlined(&mut self, callee: CompId) {
        self.n_uses[callee] -= 1;
        self.n_calls += 1;
        self.inlined.insert(callee);
    }

    /// What stands for an instruction now. Shortens the way there for the next time.
    fn now(&mut self, inst: InstId) -> InstId {
        let (mut end, mut on_way) = (inst, Vec::new());
        while let Some(&next) = self.replaced.get(&end) {
            on_way.push(end);
            end = next;
        }
        on_way.into_iter().for_each(|passed| {
            self.replaced.insert(passed, end);
        });
        end
    }

    /// The instructions of a computation, with those that moved in but for their parameters.
    fn written_out(&self, comp: CompId) -> Vec<InstId> {
        let mut insts = Vec::with_capacity(self.n_inside[comp]);
        let mut open = vec![(comp, 0)];
        while let Some((at, next)) = open.pop() {
            let Some(&inst) = self.module.comp(at).insts.get(next) else { continue };
            open.push((at, next + 1));
            match self.moved_in.get(&inst) {
                Some(&callee) => open.push((callee, 0)),
                None if at != comp && self.module.inst(inst).opcode == Opcode::Parameter => {}
                None => insts.push(inst),
            }
        }
        insts
    }

    /// Writes the lists of the changed computations that are left, and their operands.
    fn write_out(&mut self) {
        for comp in std::mem::take(&mut self.changed) {
            if self.inlined.contains(comp) && self.n_uses[comp] == 0 {
                continue;
            }
            let insts = self.written_out(comp);
            for &inst in &insts {
                let mut operands = std::mem::take(&mut self.module.inst_mut(inst).operands);
                operands.iter_mut().for_each(|operand| *operand = self.now(*operand));
                let instruction = self.module.inst_mut(inst);
                (instruction.operands, instruction.parent) = (operands, comp);
                let mut before = instruction.control_predecessors_mut().to_vec();
                before.iter_mut().for_each(|before| *before = self.now(*before));
                self.module.inst_mut(inst).control_predecessors_mut().copy_from_slice(&before);
            }
            let root = self.module.comp(comp).root.expand().map(|root| self.now(root));
            let computation = self.module.comp_mut(comp);
            (computation.insts, computation.root) = (insts, root.into());
        }
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
