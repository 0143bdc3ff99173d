//! Compute before a loop what every iteration computes alike.
//!
//! Before, each micro-batch converts the same weight:
//! ```text
//! %w = f32[8,4] get-tuple-element(%state), index=1
//! %low = bf16[8,4] convert(%w)
//! ```
//! after, the loop carries the converted weight:
//! ```text
//! %low.1 = bf16[8,4] get-tuple-element(%state), index=3
//! ```
//! The sample `ir-samples/passes/hoist-invariants/convert.hlo` runs this.
//!
//! **Why.** It is computed once instead of in each iteration. Where the weight is held in shards outside of the loop, the shard is converted
//! and the converted weight gathered, once and in fewer bytes.
//!
//! **What it does not do.** It moves elementwise ops, transposes, reshapes and slices of state that the loop hands on as it is, with the
//! constants and broadcasts that they take. The result must have fewer bytes than the state, as it is kept for the whole loop.
//! It moves no collective (but with `exchanges=true`, see below), and nothing that a branch in the loop computes. What the loop carried stays in its state. It leaves loops
//! whose body or condition is called from elsewhere, whose state is used as a whole, or that carry annotations or control dependencies.
//!
//! With `exchanges=true` collectives and slices by device number move too, such as the gather of a weight in shards that every
//! iteration repeats, whatever bytes their results have: time is bought with memory. All devices must come to the loop equally often: it may not stand in a branch, nor
//! in a loop of which the module does not say how often it runs. Else a collective before it might wait for a device that does not come. The sample `exchanges.hlo` runs this.
//!
//! **Algorithm.** For each loop: which elements of its state never change, what follows from them, in one walk; then the values
//! that the rest of the body takes are computed outside, and appended to the state. Repeated, so that they leave
//! nested loops. Linear, times the depth of loops.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit. **Errors**: none.

use cranelift_entity::SecondaryMap;
use hlo_analysis::Preserved;
use hlo_analysis::carried_loop::{CarriedLoop, Copies, is_run_by_all};
use hlo_analysis::code::{code_computations, is_annotated, pinned_by_control};
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::values::{CallSites, condition_and_body, tuple_index};
use hlo_ir::diag::Entity;
use hlo_ir::module::UserMap;
use hlo_ir::op::{CollectiveForm, Flow};
use hlo_ir::{InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "hoist-invariants",
    help: "compute before a loop what every iteration computes alike",
    options: &[OptionInfo {
        name: "exchanges",
        kind: OptionKind::Bool,
        default: "false",
        help: "collectives and slices by device number too, whatever memory their results take",
    }],
    build: |options| Ok(Box::new(HoistInvariants { moves_exchanges: options.flag("exchanges") })),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoistInvariants {
    moves_exchanges: bool,
}

impl Pass for HoistInvariants {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_hoisted = 0;
        let mut around = Surroundings::of(module, self.moves_exchanges);
        loop {
            let n_before = n_hoisted;
            for comp in code_computations(module) {
                for inst in module.comp(comp).insts.clone() {
                    if condition_and_body(module, inst).is_some() {
                        let n = hoist(module, inst, &around, cx.report)?;
                        if n > 0 {
                            around = Surroundings::of(module, self.moves_exchanges);
                        }
                        n_hoisted += n;
                    }
                }
            }
            if n_hoisted == n_before {
                break;
            }
        }
        cx.report.count("values-hoisted", n_hoisted);
        if n_hoisted == 0 {
            cx.report.unchanged_because = Some("no loop computes the same in every iteration".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// What is known of the module round a loop.
struct Surroundings {
    users: UserMap,
    sites: CallSites,
    /// How often loops run, where exchanges may move.
    frequencies: Option<Frequencies>,
}

impl Surroundings {
    fn of(module: &Module, moves_exchanges: bool) -> Surroundings {
        let frequencies = moves_exchanges.then(|| Frequencies::compute(module, FrequencyOptions::default()));
        Surroundings { users: module.users(), sites: CallSites::find(module, module.post_order()), frequencies }
    }
}

/// A loop whose state may be extended.
struct Loop {
    carried: CarriedLoop,
    /// Whether collectives may be run before it, and what depends on the device's number.
    takes_exchanges: bool,
}

/// What an instruction of a body is in every iteration.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Constancy {
    /// It may change.
    #[default]
    Varies,
    /// An element of the state that is handed on as it is.
    State,
    /// It costs next to nothing: constants, and broadcasts of what does not change. It is computed again outside.
    Free,
    /// It does not change, but only moves elements.
    Moved,
    /// It does not change, and is worth computing once.
    Computed,
}

fn hoist(module: &mut Module, inst: InstId, around: &Surroundings, report: &mut PassReport) -> Result<u64, PassError> {
    let users = &around.users;
    let Some(found) = find_loop(module, around, inst) else { return Ok(0) };
    let constancy = find_constancy(module, &found);
    let state_bytes = find_state_bytes(module, &found, &constancy);
    let is_taken = |&value: &InstId| {
        let is_moved = |user: &InstId| matches!(constancy[*user], Constancy::Moved | Constancy::Computed);
        let is_smaller = module.shape(value).size_bytes() < state_bytes[value];
        constancy[value] == Constancy::Computed && is_smaller && !users[value].iter().all(is_moved)
    };
    let values: Vec<InstId> = module.comp(found.carried.body).insts.iter().copied().filter(is_taken).collect();
    if values.is_empty() {
        return Ok(0);
    }
    for &value in &values {
        let reason = format!("every iteration of %{} computes the same: it is computed before", module.inst_name(inst));
        report.decisions.push(Decision::about(module, value, "hoisted", reason));
    }
    extend(module, &found, &values).map_err(|inst| {
        let message = format!("`%{}` depends on itself", module.inst_name(inst));
        PassError::about("acyclic", Entity::Inst(inst), message)
    })?;
    Ok(values.len() as u64)
}

fn find_loop(module: &Module, around: &Surroundings, inst: InstId) -> Option<Loop> {
    let Surroundings { users, sites, frequencies } = around;
    let carried = CarriedLoop::find(module, users, sites, inst)?;
    let is_by_all = |known: &Frequencies| is_run_by_all(module, sites, known, module.inst(inst).parent);
    let takes_exchanges = frequencies.as_ref().is_some_and(is_by_all);
    Some(Loop { carried, takes_exchanges })
}

/// What each instruction of a body is, operands first.
fn find_constancy(module: &Module, found: &Loop) -> SecondaryMap<InstId, Constancy> {
    let mut known: SecondaryMap<InstId, Constancy> = SecondaryMap::new();
    let carried = &found.carried;
    let pinned = pinned_by_control(module, carried.body);
    for &inst in &module.comp(carried.body).insts {
        let instruction = module.inst(inst);
        known[inst] = match tuple_index(module, inst) {
            Some(_) => match carried.element_read(module, inst) {
                Some(index) if carried.is_handed_on(module, index) => Constancy::State,
                Some(_) | None => Constancy::Varies,
            },
            None if pinned.contains(inst) || is_annotated(module, inst) || module.must_stay(inst) => Constancy::Varies,
            None if instruction.operands.iter().any(|&o| known[o] == Constancy::Varies) => Constancy::Varies,
            None if found.takes_exchanges => match exchanged(module, &known, inst) {
                Some(constancy) => constancy,
                None => constancy_of_op(module, &known, inst),
            },
            None => constancy_of_op(module, &known, inst),
        };
    }
    known
}

/// What an op is whose operands do not change, if it exchanges or depends on the device's number.
fn exchanged(module: &Module, known: &SecondaryMap<InstId, Constancy>, inst: InstId) -> Option<Constancy> {
    let instruction = module.inst(inst);
    let array = module.shape(inst).as_array().filter(|array| array.dynamic == 0)?;
    let is_free = instruction.operands.iter().all(|&operand| known[operand] == Constancy::Free);
    let is_cheap = || array.n_elems() <= 1 && instruction.opcode.is_pure();
    match instruction.opcode.row().flow {
        Flow::PartitionId | Flow::ReplicaId => Some(Constancy::Free),
        Flow::Collective(rule) => (rule.form == CollectiveForm::Synchronous && !is_free).then_some(Constancy::Computed),
        Flow::All if is_free => is_cheap().then_some(Constancy::Free),
        Flow::All => (instruction.opcode == Opcode::DynamicSlice).then_some(Constancy::Computed),
        Flow::Parameter
        | Flow::Constant
        | Flow::Tuple
        | Flow::GetTupleElement
        | Flow::Identity
        | Flow::Call
        | Flow::While
        | Flow::Conditional
        | Flow::AsyncStart(_)
        | Flow::AsyncUpdate
        | Flow::AsyncDone => None,
    }
}

/// The bytes of the largest element of the state that each value is computed from; no limit for what devices exchange.
fn find_state_bytes(
    module: &Module,
    found: &Loop,
    constancy: &SecondaryMap<InstId, Constancy>,
) -> SecondaryMap<InstId, u64> {
    let mut bytes: SecondaryMap<InstId, u64> = SecondaryMap::new();
    for &inst in &module.comp(found.carried.body).insts {
        bytes[inst] = match constancy[inst] {
            Constancy::Varies => 0,
            Constancy::State => module.shape(inst).size_bytes(),
            Constancy::Computed if module.inst(inst).opcode.row().collective.is_some() => u64::MAX,
            Constancy::Free | Constancy::Moved | Constancy::Computed => {
                module.inst(inst).operands.iter().map(|&operand| bytes[operand]).max().unwrap_or(0)
            }
        };
    }
    bytes
}

/// What an op is whose operands do not change.
fn constancy_of_op(module: &Module, known: &SecondaryMap<InstId, Constancy>, inst: InstId) -> Constancy {
    let instruction = module.inst(inst);
    let opcode = instruction.opcode;
    let Some(array) = module.shape(inst).as_array().filter(|array| array.dynamic == 0) else {
        return Constancy::Varies;
    };
    if [Opcode::Constant, Opcode::Broadcast].contains(&opcode) {
        return Constancy::Free;
    }
    let is_from_free = instruction.operands.iter().all(|&operand| known[operand] == Constancy::Free);
    let moves = [Opcode::Transpose, Opcode::Reshape, Opcode::Slice, Opcode::Copy].contains(&opcode);
    if !moves && (!opcode.is_elementwise() || !opcode.is_pure()) {
        return Constancy::Varies;
    }
    if is_from_free {
        return if moves { Constancy::Free } else { Constancy::Varies };
    }
    let costs_memory = |&&operand: &&InstId| known[operand] != Constancy::Free;
    let bytes: u64 =
        instruction.operands.iter().filter(costs_memory).map(|&operand| module.shape(operand).size_bytes()).sum();
    let is_work = !moves || instruction.operands.iter().any(|&operand| known[operand] == Constancy::Computed);
    match (array.size_bytes() <= bytes && array.rank() > 0, is_work) {
        (false, _) => Constancy::Varies,
        (true, true) => Constancy::Computed,
        (true, false) => Constancy::Moved,
    }
}

/// Computes values before the loop, and has the loop carry them.
///
/// # Errors
/// An instruction that depends on itself: a defect of the pass.
fn extend(module: &mut Module, found: &Loop, values: &[InstId]) -> Result<(), InstId> {
    let CarriedLoop { inst, body, init, root, .. } = found.carried;
    let comp = module.inst(inst).parent;
    let (was_live, n_slots_before) = ([comp, body].map(|comp| module.live(comp)), module.n_inst_slots());
    let start = module.inst(init).operands.to_vec();
    let mut outside = Copies::new(&found.carried, comp, &start, "");
    let begin: Vec<InstId> = values.iter().map(|&value| outside.copy(module, value, |_| {})).collect();
    let reads = found.carried.append(module, &begin);
    for (&value, &read) in values.iter().zip(&reads) {
        module.replace_all_uses(value, read);
        module.inst_mut(root).operands.push(read);
    }
    for (comp, was_live) in [comp, body].into_iter().zip(&was_live) {
        module.remove_newly_dead(comp, was_live, n_slots_before);
        module.restore_order(comp)?;
    }
    Ok(())
}
