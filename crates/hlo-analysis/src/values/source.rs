//! Where one leaf of an instruction's result comes from, by the instruction alone.
//!
//! The op table says which ops hand leaves on ([`hlo_ir::op::LeafRule`]). All analyses see through `tuple` and
//! `get-tuple-element`. They differ in what else they take for the same value, so they say it as [`Through`].

use hlo_ir::attrs::Attrs;
use hlo_ir::op::{CalleeEntry, FactorRule, LeafRule, OpRow, ShapeRule};
use hlo_ir::{InstId, Module, ShapeId};
use smallvec::SmallVec;
use std::ops::Range;

/// One leaf of an instruction's result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InstLeaf {
    /// The instruction.
    pub inst: InstId,
    /// The flat number of the leaf.
    pub leaf_idx: u32,
}

impl InstLeaf {
    /// Leaf `leaf_idx` of `inst`.
    pub fn new(inst: InstId, leaf_idx: u32) -> InstLeaf {
        InstLeaf { inst, leaf_idx }
    }
}

/// Which ops are looked through besides `tuple` and `get-tuple-element`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Through {
    /// Ops that only order or mark what they are given: `opt-barrier`, `add-dependency`, `domain`.
    pub markers: bool,
    /// `copy`: the same elements, perhaps in another layout and in other memory.
    pub copies: bool,
    /// The halves of asynchronous ops: the first half hands its operands on, the second half the results of the first.
    pub async_halves: bool,
}

impl Through {
    /// Tuples and their elements alone.
    pub const TUPLES: Through = Through { markers: false, copies: false, async_halves: false };
    /// What does no work and stays in the same memory.
    pub const MARKERS: Through = Through { markers: true, copies: false, async_halves: false };
    /// What hands equal elements on at once.
    pub const COPIES: Through = Through { markers: true, copies: true, async_halves: false };
    /// The halves of asynchronous ops, of which a copy is none.
    pub const ASYNC_HALVES: Through = Through { markers: false, copies: false, async_halves: true };
    /// Everything that hands equal elements on.
    pub const ALL: Through = Through { markers: true, copies: true, async_halves: true };
}

/// Where a leaf comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafSource {
    /// It is this leaf of an operand.
    Operand(InstLeaf),
    /// It is the leaf of the same number of an argument of the computation.
    Argument,
    /// It is the leaf of the same number of what the called computations return.
    Callees(CalleeEntry),
    /// The instruction computes it.
    Computed,
}

/// Consecutive leaves of a result that are consecutive leaves of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafRun {
    /// The operand.
    pub operand: InstId,
    /// Which of the operands that is.
    pub operand_idx: usize,
    /// The first of the operand's leaves.
    pub first_in_operand: usize,
    /// The first of the result's leaves.
    pub first_in_result: usize,
    /// How many leaves.
    pub n_leaves: usize,
}

impl LeafRun {
    /// All leaves of the first operand.
    pub fn of_first_operand(module: &Module, inst: InstId) -> Option<LeafRun> {
        let &operand = module.inst(inst).operands.first()?;
        let n_leaves = module.shape(operand).n_leaves();
        Some(LeafRun { operand, operand_idx: 0, first_in_operand: 0, first_in_result: 0, n_leaves })
    }

    /// The numbers of the operand's leaves.
    pub fn in_operand(&self) -> Range<usize> {
        self.first_in_operand..self.first_in_operand + self.n_leaves
    }

    /// The numbers of the result's leaves.
    pub fn in_result(&self) -> Range<usize> {
        self.first_in_result..self.first_in_result + self.n_leaves
    }
}

/// Whether an instruction computes nothing: all leaves of its result are leaves of its operands.
pub fn hands_on(module: &Module, inst: InstId, through: Through) -> bool {
    match rule(module.inst(inst).opcode.row(), through) {
        LeafRule::Operands
        | LeafRule::Element
        | LeafRule::FirstOperand
        | LeafRule::AsyncUpdate
        | LeafRule::AsyncDone => true,
        // A first half also stands for the results.
        LeafRule::Computed | LeafRule::Argument | LeafRule::Callees(_) | LeafRule::AsyncStart => false,
    }
}

/// The leaves of a result that are leaves of operands, in ascending order. Linear in these leaves: a `get-tuple-element` takes
/// no longer of a large tuple than of a small one.
pub fn handed_on(module: &Module, inst: InstId, through: Through) -> SmallVec<[LeafRun; 2]> {
    let instruction = module.inst(inst);
    let row = instruction.opcode.row();
    match rule(row, through) {
        LeafRule::Operands => operands_in_a_row(module, inst),
        LeafRule::AsyncStart if row.shape == ShapeRule::CopyStart => {
            // `(destination, source, context)`: the source is the operand.
            let source = module.shapes.element_leaves(instruction.shape, 1);
            from_first_operand(module, inst, |_| 0..source.len(), source.start)
        }
        // The tuple of an all-reduce-start holds the results alone.
        LeafRule::AsyncStart if row.collective.is_some_and(|rule| !rule.has_operands_in_result()) => SmallVec::new(),
        LeafRule::AsyncStart => operands_in_a_row(module, inst),
        LeafRule::FirstOperand | LeafRule::AsyncUpdate => whole_first_operand(module, inst),
        LeafRule::Element | LeafRule::AsyncDone => match element_idx(module, inst) {
            Some(index) => from_first_operand(module, inst, |shape| module.shapes.element_leaves(shape, index), 0),
            None => whole_first_operand(module, inst),
        },
        LeafRule::Computed | LeafRule::Argument | LeafRule::Callees(_) => SmallVec::new(),
    }
}

/// Where a leaf comes from. Logarithmic in the elements of a tuple; linear in the operands of the first half of an
/// asynchronous op.
pub fn source_of_leaf(module: &Module, leaf: InstLeaf, through: Through) -> LeafSource {
    let instruction = module.inst(leaf.inst);
    let leaf_idx = leaf.leaf_idx as usize;
    let from_first = |leaf_idx: usize| {
        let operand = instruction.operands.first();
        operand.map(|&operand| InstLeaf::new(operand, leaf_idx as u32))
    };
    let found = match rule(instruction.opcode.row(), through) {
        LeafRule::Operands => module.shapes.element_of_leaf(instruction.shape, leaf_idx).and_then(|(element, rest)| {
            let operand = instruction.operands.get(element);
            operand.map(|&operand| InstLeaf::new(operand, rest as u32))
        }),
        LeafRule::FirstOperand | LeafRule::AsyncUpdate => from_first(leaf_idx),
        LeafRule::Element | LeafRule::AsyncDone => from_first(leaf_idx + first_leaf_of_element(module, leaf.inst)),
        LeafRule::AsyncStart => {
            let runs = handed_on(module, leaf.inst, through);
            let run = runs.iter().find(|run| run.in_result().contains(&leaf_idx));
            run.map(|run| InstLeaf::new(run.operand, (run.first_in_operand + leaf_idx - run.first_in_result) as u32))
        }
        LeafRule::Argument => return LeafSource::Argument,
        LeafRule::Callees(entry) => return LeafSource::Callees(entry),
        LeafRule::Computed => None,
    };
    found.map_or(LeafSource::Computed, LeafSource::Operand)
}

/// Walks back from a leaf through what hands it on, to the instruction of the same computation that does not, or to the
/// first one that `is_end` names.
pub fn follow(module: &Module, leaf: InstLeaf, through: Through, is_end: impl Fn(InstId) -> bool) -> InstLeaf {
    let mut at = leaf;
    while !is_end(at.inst)
        && let LeafSource::Operand(next) = source_of_leaf(module, at, through)
    {
        at = next;
    }
    at
}

/// Which element of its operand a `get-tuple-element` reads; `None` for other ops.
pub fn tuple_index(module: &Module, inst: InstId) -> Option<usize> {
    let Attrs::TupleIndex(attrs) = &module.inst(inst).attrs else { return None };
    usize::try_from(attrs.index).ok()
}

/// The elements of which a `tuple` makes its result; `None` for other ops.
pub fn tuple_elements(module: &Module, inst: InstId) -> Option<&[InstId]> {
    let instruction = module.inst(inst);
    (instruction.opcode.row().flow.leaf_rule() == LeafRule::Operands).then_some(&*instruction.operands)
}

/// The op's rule, `Computed` for ops that are not looked through.
fn rule(row: &OpRow, through: Through) -> LeafRule {
    let rule = row.flow.leaf_rule();
    let is_looked_through = match rule {
        LeafRule::Operands | LeafRule::Element | LeafRule::Computed | LeafRule::Argument | LeafRule::Callees(_) => true,
        LeafRule::FirstOperand if matches!(row.factors, FactorRule::Structural(_)) => through.markers,
        LeafRule::FirstOperand => through.copies,
        LeafRule::AsyncStart | LeafRule::AsyncUpdate | LeafRule::AsyncDone => through.async_halves,
    };
    if is_looked_through { rule } else { LeafRule::Computed }
}

/// Which element of its operand is the result: of a `get-tuple-element`, or of the second half of an asynchronous op.
/// `None` where the whole operand is the result.
fn element_idx(module: &Module, inst: InstId) -> Option<usize> {
    let instruction = module.inst(inst);
    let row = instruction.opcode.row();
    if row.flow.leaf_rule() != LeafRule::AsyncDone {
        // An index that no tuple has stands for attributes that no verified module has.
        return Some(tuple_index(module, inst).unwrap_or(usize::MAX));
    }
    if row.shape == ShapeRule::FirstOperand {
        None
    } else if row.shape == ShapeRule::CopyDone {
        Some(0)
    } else {
        Some(1)
    }
}

fn first_leaf_of_element(module: &Module, inst: InstId) -> usize {
    match (element_idx(module, inst), module.inst(inst).operands.first()) {
        (Some(index), Some(&operand)) => module.shapes.element_leaves(module.inst(operand).shape, index).start,
        (None, _) | (_, None) => 0,
    }
}

/// One run from the first operand: the leaves that `in_operand` gives for its shape.
fn from_first_operand(
    module: &Module,
    inst: InstId,
    in_operand: impl Fn(ShapeId) -> Range<usize>,
    first_in_result: usize,
) -> SmallVec<[LeafRun; 2]> {
    let Some(&operand) = module.inst(inst).operands.first() else { return SmallVec::new() };
    let in_operand = in_operand(module.inst(operand).shape);
    let n_leaves = in_operand.len();
    SmallVec::from_elem(
        LeafRun { operand, operand_idx: 0, first_in_operand: in_operand.start, first_in_result, n_leaves },
        1,
    )
}

fn whole_first_operand(module: &Module, inst: InstId) -> SmallVec<[LeafRun; 2]> {
    LeafRun::of_first_operand(module, inst).into_iter().collect()
}

fn operands_in_a_row(module: &Module, inst: InstId) -> SmallVec<[LeafRun; 2]> {
    let mut first_in_result = 0;
    let runs = module.inst(inst).operands.iter().enumerate().map(|(operand_idx, &operand)| {
        let n_leaves = module.shape(operand).n_leaves();
        let run = LeafRun { operand, operand_idx, first_in_operand: 0, first_in_result, n_leaves };
        first_in_result += n_leaves;
        run
    });
    runs.collect()
}
