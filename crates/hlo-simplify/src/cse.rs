//! Compute equal values once.
//!
//! Before, the same exponential is computed twice, from two equal constants:
//! ```text
//! %two = f32[] constant(2)
//! %zwei = f32[] constant(2)
//! %a = f32[] exponential(%two)
//! %b = f32[] exponential(%zwei)
//! ROOT %sum = f32[] add(%a, %b)
//! ```
//! after, once:
//! ```text
//! %two = f32[] constant(2)
//! %a = f32[] exponential(%two)
//! ROOT %sum = f32[] add(%a, %a)
//! ```
//! The sample `ir-samples/passes/cse/constants.hlo` runs this.
//!
//! **Why.** Automatic differentiation and repeated schedules (learning rate, bias correction) write the same thing many
//! times over.
//!
//! **What it does not do.** It keeps what may differ between two runs or be seen from outside: `rng`, collectives, custom calls,
//! async pairs, tokens, and calls of computations that hold one of these. Optimization barriers stay apart, as they
//! are there to keep equal values apart (rematerialization). Operands are not commuted: `add(a, b)` and `add(b, a)`
//! may differ in NaN bits. Layouts, accuracy and backend configurations must be equal too; constants are compared by their bits.
//!
//! **Algorithm.** Value numbering: 1. number the computations that are called, callees first, so that two reducers with the
//! same body are one. 2. One forward walk over each computation that runs as code, with a table from (opcode,
//! shape, operands, attributes) to the first instruction. Linear in the text.
//!
//! **Requires** nothing. **Ensures** the same results. **Errors**: none.

use crate::forward::{Step, walk_forward};
use cranelift_entity::{EntitySet, SecondaryMap};
use hashbrown::HashMap;
use hlo_analysis::Preserved;
use hlo_analysis::code::code_computations;
use hlo_ir::attrs::{Attrs, RawBraces};
use hlo_ir::module::Operands;
use hlo_ir::op::{Effects, Flow};
use hlo_ir::shape::ShapeId;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "cse",
    help: "compute equal values once (common subexpression elimination)",
    options: &[],
    build: |_| Ok(Box::new(Cse)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cse;

impl Pass for Cse {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let effectful = module.effectful_computations();
        let called = Called::of(module);
        let (mut n_redirected, mut n_removed) = (0, 0);
        for comp in code_computations(module) {
            let mut first: HashMap<Key, InstId> = HashMap::new();
            let walked = walk_forward(module, comp, &effectful, &mut |module, inst| {
                if !called.may_merge(module, inst) {
                    return Step::Keep;
                }
                match first.entry(called.key(module, inst)) {
                    hashbrown::hash_map::Entry::Occupied(known) => Step::Replace(*known.get()),
                    hashbrown::hash_map::Entry::Vacant(slot) => {
                        slot.insert(inst);
                        Step::Keep
                    }
                }
            });
            n_redirected += walked.n_redirected;
            n_removed += walked.n_removed;
        }
        cx.report.count("uses-redirected", n_redirected as u64);
        cx.report.count("instructions-removed", n_removed as u64);
        if n_redirected == 0 {
            cx.report.unchanged_because = Some("no two instructions compute the same value".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// All that decides an instruction's value.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    opcode: Opcode,
    shape: ShapeId,
    operands: Operands,
    attrs: Attrs,
    backend_config: Option<String>,
    result_accuracy: RawBraces,
}

/// What is known of the computations that instructions call.
struct Called {
    /// Computations whose results depend on their arguments alone.
    pure: EntitySet<CompId>,
    /// The first computation with the same body.
    first: SecondaryMap<CompId, Option<CompId>>,
}

impl Called {
    fn of(module: &Module) -> Called {
        let mut called = Called { pure: EntitySet::new(), first: SecondaryMap::new() };
        let mut bodies: HashMap<(Vec<Key>, Option<u32>), CompId> = HashMap::new();
        for comp in module.post_order() {
            if module.comp(comp).insts.iter().all(|&inst| called.is_pure(module, inst)) {
                called.pure.insert(comp);
            }
            let first = *bodies.entry(called.body(module, comp)).or_insert(comp);
            called.first[comp] = Some(first);
        }
        called
    }

    /// The keys of all instructions, with operands by their places in the computation, and the place of the root.
    fn body(&self, module: &Module, comp: CompId) -> (Vec<Key>, Option<u32>) {
        let insts = &module.comp(comp).insts;
        let places: HashMap<InstId, u32> = insts.iter().zip(0..).map(|(&inst, place)| (inst, place)).collect();
        let keys = insts.iter().map(|&inst| {
            let mut key = self.key(module, inst);
            for operand in &mut key.operands {
                *operand = InstId::from_u32(places.get(operand).copied().unwrap_or(u32::MAX - 1));
            }
            key
        });
        let root = module.comp(comp).root.expand();
        (keys.collect(), root.and_then(|root| places.get(&root).copied()))
    }

    fn key(&self, module: &Module, inst: InstId) -> Key {
        let instruction = module.inst(inst);
        let mut attrs = instruction.attrs.clone();
        attrs.for_each_comp_mut(&mut |comp| *comp = self.first[*comp].unwrap_or(*comp));
        let marks = instruction.marks.as_ref();
        Key {
            opcode: instruction.opcode,
            shape: instruction.shape,
            operands: instruction.operands.clone(),
            attrs,
            backend_config: marks.and_then(|m| m.backend_config.clone()),
            result_accuracy: marks.map(|m| m.result_accuracy.clone()).unwrap_or_default(),
        }
    }

    /// Whether equal operands give an equal value, whenever and on whichever device it runs.
    fn is_pure(&self, module: &Module, inst: InstId) -> bool {
        match module.inst(inst).opcode.row().effects {
            Effects::Pure => true,
            Effects::OfCallees => module.called(inst).iter().all(|&callee| self.pure.contains(callee)),
            Effects::Random | Effects::Communicates | Effects::SideEffect | Effects::ByAttribute => false,
        }
    }

    fn may_merge(&self, module: &Module, inst: InstId) -> bool {
        let opcode = module.inst(inst).opcode;
        let flow = opcode.row().flow;
        let is_apart = matches!(flow, Flow::Parameter | Flow::AsyncStart(_) | Flow::AsyncUpdate | Flow::AsyncDone)
            // Barriers, domains and dependencies are there to keep values apart; a copy is a value of its own only by layout.
            || (flow == Flow::Identity && opcode != Opcode::Copy)
            || *module.shape(inst) == Shape::Token
            || matches!(&module.inst(inst).attrs, Attrs::Constant(value) if **value == hlo_ir::ConstantValue::Elided);
        !is_apart && self.is_pure(module, inst)
    }
}
