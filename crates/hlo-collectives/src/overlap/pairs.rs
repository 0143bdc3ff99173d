//! Making pairs, and where their ends stand.

use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::code::code_computations;
use hlo_analysis::in_flight::{Exchanges, Flight};
use hlo_analysis::time::members_of;
use hlo_ir::attrs::{AsyncAttrs, Attrs, ParameterAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_mesh::Exchange;

/// Makes a pair of each collective of at least `min_bytes` that several devices take part in. Each end stands as late as it can. The
/// starts.
pub(super) fn make_pairs(module: &mut Module, min_bytes: u64) -> Vec<InstId> {
    let mut starts = Vec::new();
    // Callees stand before their callers.
    let mut listed = Vec::new();
    let before = module.computations().to_vec();
    let mut code: EntitySet<CompId> = EntitySet::new();
    code.extend(code_computations(module));
    for comp in before {
        if code.contains(comp) {
            let (made, wrappers) = pairs_of(module, comp, min_bytes);
            starts.extend(made);
            listed.extend(wrappers);
        }
        listed.push(comp);
    }
    module.set_computation_order(listed);
    starts
}

/// The pairs of one computation: starts, and the computations that they begin.
fn pairs_of(module: &mut Module, comp: CompId, min_bytes: u64) -> (Vec<InstId>, Vec<CompId>) {
    let (mut starts, mut wrappers) = (Vec::new(), Vec::new());
    let mut stands_for: SecondaryMap<InstId, Option<InstId>> = SecondaryMap::new();
    let mut order = Vec::with_capacity(module.comp(comp).insts.len());
    for inst in module.comp(comp).insts.clone() {
        match is_whole(module, inst) && module.shape(inst).memory_bytes() >= min_bytes {
            true => {
                let (start, done, wrapper) = pair_of(module, comp, inst);
                starts.push(start);
                wrappers.push(wrapper);
                stands_for[inst] = Some(done);
                order.extend([start, done]);
            }
            false => order.push(inst),
        }
    }
    if !starts.is_empty() {
        let now = |inst: InstId| stands_for[inst].unwrap_or(inst);
        for &inst in &order {
            module.map_operands(inst, now);
            module.map_control_predecessors(inst, now);
        }
        let root = module.comp(comp).root.expand();
        module.comp_mut(comp).root = root.map(now).into();
        module.comp_mut(comp).insts = order;
        put_ends_late(module, comp);
    }
    (starts, wrappers)
}

/// Whether an instruction is a collective in one piece that several devices take part in.
fn is_whole(module: &Module, inst: InstId) -> bool {
    let Flow::Collective(rule) = module.inst(inst).opcode.row().flow else { return false };
    let members = members_of(module, inst, Exchange::of(rule));
    module.inst(inst).control_predecessors().is_empty()
        && (!members.pairs.is_empty() || members.groups.iter().any(|group| group.len() > 1))
}

/// A pair that stands for a collective, and the computation that it begins. Whoever lists the computation anew takes the collective out of it.
fn pair_of(module: &mut Module, comp: CompId, inst: InstId) -> (InstId, InstId, CompId) {
    let node = module.inst(inst).clone();
    let name = module.inst_name(inst).to_string();
    let wrapper_name = module.names.fresh(&format!("async_{name}"));
    let wrapper = module.add_computation(wrapper_name);
    let mut build = Builder::new(module, wrapper);
    let mut params = Vec::with_capacity(node.operands.len());
    for (number, &operand) in (0..).zip(&node.operands) {
        let shape = build.module().shape(operand).clone();
        let attrs = ParameterAttrs { number, ..ParameterAttrs::default() };
        params.push(build.add("operand", Opcode::Parameter, shape, [], attrs));
    }
    let result = build.module().shapes.get(node.shape).clone();
    let root = build.add(&name, node.opcode, result.clone(), params, node.attrs.clone());
    module.inst_mut(root).marks = node.marks.clone();
    module.comp_mut(wrapper).root = Some(root).into();
    let operands = node.operands.iter().map(|&operand| module.shape(operand).clone()).collect();
    let pending = Shape::Tuple([Shape::Tuple(operands), result.clone()].into_iter().collect());
    let mut build = Builder::new(module, comp);
    let attrs = Attrs::from(AsyncAttrs { calls: Some(wrapper), ..AsyncAttrs::default() });
    let start = build.add(&format!("{name}.start"), Opcode::AsyncStart, pending, node.operands, attrs);
    let done =
        build.add(&format!("{name}.done"), Opcode::AsyncDone, result, [start], Attrs::from(AsyncAttrs::default()));
    for new in [start, done] {
        if let Some(metadata) = node.marks.as_ref().and_then(|marks| marks.metadata.clone()) {
            module.marks_mut(new).metadata = Some(metadata);
        }
    }
    (start, done, wrapper)
}

/// Has each end of a pair stand before its first use, or before the first collective that may not be in flight beside it.
pub(super) fn put_ends_late(module: &mut Module, comp: CompId) {
    let order = module.comp(comp).insts.clone();
    let mut done_of: SecondaryMap<InstId, Option<InstId>> = SecondaryMap::new();
    let mut start_of: SecondaryMap<InstId, Option<InstId>> = SecondaryMap::new();
    for &inst in &order {
        let instruction = module.inst(inst);
        // An end that waits for something else too stays behind that.
        let is_free = instruction.control_predecessors().is_empty();
        if let (Flow::AsyncDone, Some(&start), true) =
            (instruction.opcode.row().flow, instruction.operands.first(), is_free)
            && matches!(module.inst(start).opcode.row().flow, Flow::AsyncStart(_))
        {
            (done_of[start], start_of[inst]) = (Some(inst), Some(start));
        }
    }
    let (mut exchanges, mut flight) = (Exchanges::new(module), Flight::default());
    let mut late = Vec::with_capacity(order.len());
    let mut is_out: SecondaryMap<InstId, bool> = SecondaryMap::new();
    for &inst in &order {
        if start_of[inst].is_some() {
            continue;
        }
        let read = module.needed(inst).filter(|&needed| start_of[needed].is_some());
        let met = flight.met_by(inst, &mut exchanges).into_iter().filter_map(|meeting| done_of[meeting.earlier]);
        for done in met.chain(read) {
            if !std::mem::replace(&mut is_out[done], true) {
                late.push(done);
                flight.pass(module, done, &mut exchanges);
            }
        }
        late.push(inst);
        flight.pass(module, inst, &mut exchanges);
    }
    late.extend(order.iter().copied().filter(|&inst| start_of[inst].is_some() && !is_out[inst]));
    module.comp_mut(comp).insts = late;
}
