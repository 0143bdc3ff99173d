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
use hlo_analysis::code::{code_computations, is_annotated, pinned_by_control};
use hlo_analysis::frequency::{Basis, Frequencies, FrequencyOptions, TripCount};
use hlo_analysis::values::{CallSites, condition_and_body, entered, tuple_elements, tuple_index};
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::module::UserMap;
use hlo_ir::op::{CalleeEntry, CollectiveForm, Flow};
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use std::collections::BTreeMap;

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
    inst: InstId,
    body: CompId,
    init: InstId,
    root: InstId,
    /// The parameters of body and condition.
    params: [InstId; 2],
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
    let values: Vec<InstId> = module.comp(found.body).insts.iter().copied().filter(is_taken).collect();
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
    let (condition, body) = condition_and_body(module, inst)?;
    let comp = module.inst(inst).parent;
    let Surroundings { users, sites, frequencies } = around;
    let is_read_by_element = |value: InstId| users[value].iter().all(|&u| tuple_index(module, u).is_some());
    let is_free =
        |comp: CompId, inst: InstId| !is_annotated(module, inst) && !pinned_by_control(module, comp).contains(inst);
    let init = *module.inst(inst).operands.first()?;
    let root = module.comp(body).root.expand()?;
    let params = [*module.comp(body).params.first()?, *module.comp(condition).params.first()?];
    let fits = module.comp(comp).root.expand() != Some(inst)
        && sites.of(body).len() == 1
        && sites.of(condition).len() == 1
        && [init, root].iter().all(|&t| tuple_elements(module, t).is_some())
        && users[root].is_empty()
        && [inst, params[0], params[1]].into_iter().all(is_read_by_element)
        && [inst, init].into_iter().all(|i| is_free(comp, i))
        && [root, params[0]].into_iter().all(|i| is_free(body, i))
        && is_free(condition, params[1]);
    let takes_exchanges = frequencies.as_ref().is_some_and(|known| is_run_by_all(module, sites, known, comp));
    fits.then_some(Loop { inst, body, init, root, params, takes_exchanges })
}

/// Whether all devices run the computation, and equally often: the entry, what calls there enter, and loops that run as often as the
/// module says. Other loops may end on one device before they do on another.
fn is_run_by_all(module: &Module, sites: &CallSites, frequencies: &Frequencies, comp: CompId) -> bool {
    let mut comp = comp;
    while module.entry() != Some(comp) {
        let [site] = sites.of(comp) else { return false };
        let is_known = |trips: TripCount| matches!(trips.basis, Basis::Stated | Basis::Derived);
        let is_equal = match entered(module, site.inst) {
            Some((CalleeEntry::Call, _)) => true,
            Some((CalleeEntry::Loop, _)) => frequencies.trip_count(site.inst).is_some_and(is_known),
            Some((CalleeEntry::Branches, _)) | None => false,
        };
        if !is_equal {
            return false;
        }
        comp = module.inst(site.inst).parent;
    }
    true
}

/// What each instruction of a body is, operands first.
fn find_constancy(module: &Module, found: &Loop) -> SecondaryMap<InstId, Constancy> {
    let mut known: SecondaryMap<InstId, Constancy> = SecondaryMap::new();
    let pinned = pinned_by_control(module, found.body);
    let next = tuple_elements(module, found.root).unwrap_or_default();
    let is_handed_on = |index: usize| next.get(index).is_some_and(|&value| is_read_of(module, found, value, index));
    for &inst in &module.comp(found.body).insts {
        let instruction = module.inst(inst);
        known[inst] = match tuple_index(module, inst) {
            Some(index) if is_read_of(module, found, inst, index) && is_handed_on(index) => Constancy::State,
            Some(_) => Constancy::Varies,
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
    for &inst in &module.comp(found.body).insts {
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

/// Whether `value` reads element `index` of the loop's state.
fn is_read_of(module: &Module, found: &Loop, value: InstId, index: usize) -> bool {
    tuple_index(module, value) == Some(index) && module.inst(value).operands.first() == Some(&found.params[0])
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
    let comp = module.inst(found.inst).parent;
    let (was_live, n_slots_before) = ([comp, found.body].map(|comp| module.live(comp)), module.n_inst_slots());
    let mut outside: BTreeMap<InstId, InstId> = BTreeMap::new();
    let start = module.inst(found.init).operands.clone();
    let mut elements = start.to_vec();
    for &value in values {
        elements.push(copy_outside(module, found, comp, &start, value, &mut outside));
    }
    let shapes = elements.iter().map(|&element| module.shape(element).clone()).collect();
    let shape = Shape::Tuple(shapes);
    let hint = module.inst_name(found.init).to_string();
    let init = Builder::new(module, comp).add(&hint, Opcode::Tuple, shape.clone(), elements, Attrs::Plain);
    module.inst_mut(found.inst).operands[0] = init;
    let shape_id = module.shapes.intern(shape);
    for inst in [found.inst, found.root, found.params[0], found.params[1]] {
        module.inst_mut(inst).shape = shape_id;
    }
    for (i, &value) in values.iter().enumerate() {
        let (hint, shape) = (module.inst_name(value).to_string(), module.shape(value).clone());
        let read = TupleIndexAttrs { index: (start.len() + i) as i64 };
        let mut builder = Builder::new(module, found.body);
        let read = builder.add(&hint, Opcode::GetTupleElement, shape, [found.params[0]], read);
        module.replace_all_uses(value, read);
        module.inst_mut(found.root).operands.push(read);
    }
    for (comp, was_live) in [comp, found.body].into_iter().zip(&was_live) {
        module.remove_newly_dead(comp, was_live, n_slots_before);
        module.restore_order(comp)?;
    }
    Ok(())
}

/// The value of an instruction of the body that does not change, computed before the loop.
fn copy_outside(
    module: &mut Module,
    found: &Loop,
    comp: CompId,
    start: &[InstId],
    value: InstId,
    outside: &mut BTreeMap<InstId, InstId>,
) -> InstId {
    let mut work = vec![value];
    while let Some(&inst) = work.last() {
        if outside.contains_key(&inst) {
            work.pop();
            continue;
        }
        let instruction = module.inst(inst).clone();
        if let Some(index) = tuple_index(module, inst).filter(|&index| is_read_of(module, found, inst, index)) {
            outside.insert(inst, start[index]);
            continue;
        }
        let missing: Vec<InstId> =
            instruction.operands.iter().copied().filter(|operand| !outside.contains_key(operand)).collect();
        if !missing.is_empty() {
            work.extend(missing);
            continue;
        }
        let operands: Vec<InstId> = instruction.operands.iter().map(|operand| outside[operand]).collect();
        let (hint, shape) = (module.inst_name(inst).to_string(), module.shape(inst).clone());
        let new = Builder::new(module, comp).add(&hint, instruction.opcode, shape, operands, instruction.attrs);
        if let Some(metadata) = module.inst(inst).marks.as_ref().and_then(|marks| marks.metadata.clone()) {
            module.marks_mut(new).metadata = Some(metadata);
        }
        outside.insert(inst, new);
    }
    outside[&value]
}
