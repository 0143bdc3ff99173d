//! Which matrix updates compute the same of different arrays.

use super::find::MatrixUpdate;
use super::stacked::is_constant;
use crate::tables::{IndexMap, IndexSet};
use hlo_ir::attrs::Attrs;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{InstId, Module, Opcode, ShapeId};

/// Where an operand comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// The instruction of this number in the update's order.
    Member(usize),
    /// The input of this number.
    Input(usize),
}

/// One instruction of an update, without names.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Node {
    opcode: Opcode,
    /// Without the layout.
    shape: ShapeId,
    /// Without the computation that a reduction applies, which is the monoid.
    attrs: Attrs,
    monoid: Option<Monoid>,
    pub(super) operands: Vec<Source>,
}

/// An update in the order in which its outputs reach its instructions.
pub(super) struct Ordered {
    pub(super) nodes: Vec<Node>,
    /// The instruction of each node.
    pub(super) insts: Vec<InstId>,
    /// What the update reads, constants too, in order of first use.
    pub(super) inputs: Vec<InstId>,
    /// Equal for inputs that are the same instruction or the same constant.
    pub(super) input_keys: Vec<InstId>,
    input_shapes: Vec<ShapeId>,
    /// The nodes that something else reads.
    pub(super) outputs: Vec<usize>,
}

impl Ordered {
    fn is_like(&self, other: &Ordered) -> bool {
        let shapes = self.input_shapes == other.input_shapes && self.outputs == other.outputs;
        shapes && self.nodes == other.nodes
    }
}

/// Constants and their like, each with the first instruction that computes it.
#[derive(Default)]
pub(super) struct Constants(IndexMap<ShapeId, Vec<InstId>>);

impl Constants {
    fn first(&mut self, module: &Module, inst: InstId) -> InstId {
        let known = self.0.entry(module.inst(inst).shape).or_default();
        if let Some(&first) = known.iter().find(|&&first| is_same(module, first, inst)) {
            return first;
        }
        known.push(inst);
        inst
    }
}

/// Whether two constants are the same.
fn is_same(module: &Module, a: InstId, b: InstId) -> bool {
    let (one, other) = (module.inst(a), module.inst(b));
    let operands = || one.operands.iter().zip(&other.operands);
    let are_alike =
        |(&a, &b): (&InstId, &InstId)| is_constant(module, a) && is_constant(module, b) && is_same(module, a, b);
    a == b
        || (one.opcode == other.opcode
            && one.shape == other.shape
            && one.attrs == other.attrs
            && one.operands.len() == other.operands.len()
            && operands().all(|pair| pair.0 == pair.1 || are_alike(pair)))
}

/// The update in order.
pub(super) fn ordered(module: &Module, update: &MatrixUpdate, constants: &mut Constants) -> Ordered {
    let mut order: IndexSet<InstId> = IndexSet::default();
    let mut open: Vec<(InstId, bool)> = update.outputs.iter().rev().map(|&output| (output, false)).collect();
    while let Some((inst, are_operands_done)) = open.pop() {
        if order.contains(&inst) || !update.members.contains(inst) {
            continue;
        }
        if are_operands_done {
            order.insert(inst);
        } else {
            open.push((inst, true));
            open.extend(module.inst(inst).operands.iter().rev().map(|&operand| (operand, false)));
        }
    }
    let mut inputs: IndexMap<InstId, InstId> = IndexMap::default();
    let mut nodes = Vec::with_capacity(order.len());
    for &inst in &order {
        let instruction = module.inst(inst);
        let operands = instruction.operands.iter().map(|&operand| {
            if let Some(member) = order.get_index_of(&operand) {
                return Source::Member(member);
            }
            let key = if is_constant(module, operand) { constants.first(module, operand) } else { operand };
            let entry = inputs.entry(key);
            let number = entry.index();
            entry.or_insert(operand);
            Source::Input(number)
        });
        let operands = operands.collect();
        let mut attrs = instruction.attrs.clone();
        let mut monoid = None;
        if let Attrs::Reduce(reduce) = &mut attrs {
            monoid = reduce.to_apply.take().and_then(|comp| find_monoid(module, comp));
        }
        nodes.push(Node {
            opcode: instruction.opcode,
            shape: module.shapes.bare(instruction.shape),
            attrs,
            monoid,
            operands,
        });
    }
    let outputs = update.outputs.iter().filter_map(|output| order.get_index_of(output)).collect();
    let input_shapes = inputs.values().map(|&input| module.shapes.bare(module.inst(input).shape)).collect();
    let (input_keys, inputs) = inputs.into_iter().unzip();
    Ordered { nodes, insts: order.into_iter().collect(), inputs, input_keys, input_shapes, outputs }
}

/// Updates that compute the same, in order of the first of each kind.
pub(super) fn alike(updates: Vec<Ordered>) -> Vec<Vec<Ordered>> {
    let mut kinds: Vec<Vec<Ordered>> = Vec::new();
    for update in updates {
        match kinds.iter_mut().find(|kind| kind.first().is_some_and(|first| first.is_like(&update))) {
            Some(kind) => kind.push(update),
            None => kinds.push(vec![update]),
        }
    }
    kinds
}
