//! Give values the layouts in which the fewest bytes are transposed in memory.
//!
//! Before, a gradient is the transpose of what the product gives, and the update reads it against the grain of the weight:
//! ```text
//! %p = f32[512,784]{1,0} dot(%delta, %x), …
//! %g = f32[784,512]{0,1} transpose(%p), dimensions={1,0}
//! %s = f32[784,512]{0,1} all-reduce(%g), …
//! ROOT %w2 = f32[784,512]{1,0} add(%w, %s)
//! ```
//! after, the product writes its result transposed, which costs it nothing, and all is read along the rows:
//! ```text
//! %p = f32[512,784]{0,1} dot(%delta, %x), …
//! %g = f32[784,512]{1,0} transpose(%p), dimensions={1,0}
//! %s = f32[784,512]{1,0} all-reduce(%g), …
//! ROOT %w2 = f32[784,512]{1,0} add(%w, %s)
//! ```
//! The sample `ir-samples/passes/propagate-layouts/gradient.hlo` runs this.
//!
//! **Why.** Reading against the grain takes a memory transaction for each element. A product takes any layout whose rows or
//! columns are dense, so it is the place to transpose.
//!
//! **What it does.** Values that elementwise instructions, transposes, slices, collectives tie together form a class, in
//! which one layout fixes all others. What is given (parameters, results, the state of loops) votes with its bytes,
//! scattered dims want to be slowest, reshapes want rows; the heaviest wish wins.
//!
//! **What it does not do.** It adds no instruction and changes no layout at the interface. A class whose new layout a
//! product could not take stays as it was, and so does one that a bitcast reads.
//!
//! **Algorithm.** 1. Ties, heaviest first, unite classes with the permutation that they impose ([`classes`]); a tie that
//! contradicts earlier ones is left, and costs its bytes. 2. Votes. 3. Classes with a wish that a dot cannot take are
//! frozen. 4. Where a dot is no product as its arrays lie, classes go to a layout in which it is one, if fewer bytes are copied and
//! transposed then ([`products`]). 5. Layouts are written. Near-linear but for 4., which is linear for each such dot.
//!
//! **Requires** inlined calls to see through them. **Ensures** the same values. **Errors**: none.

pub(crate) mod classes;
mod products;

use crate::lower::dot::find_gemm;
use crate::lower::legalize::stepwise_computations;
use crate::lower::strides::is_same_layout;
use crate::plan::has_library_types;
use classes::{Classes, Permutation};
use cranelift_entity::EntitySet;
use hlo_analysis::Preserved;
use hlo_analysis::values::tuple_elements;
use hlo_ir::attrs::{Attrs, DimsAttrs};
use hlo_ir::op::{CollectiveRule, DimPlaces, Effects, FactorRule, Flow, OpRow};
use hlo_ir::{ArrayShape, CompId, Dims, InstId, Layout, Module, Opcode, Shape};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use products::NewShapes;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "propagate-layouts",
    help: "give values the layouts in which the fewest bytes are transposed in memory",
    options: &[],
    build: |_| Ok(Box::new(PropagateLayouts)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PropagateLayouts;

/// Rounds of a computation at most: a second one changes little, and a third next to nothing.
const MOST_ROUNDS: usize = 4;

/// What cannot change weighs this much more than what can.
const FIXED: u64 = 1000;

impl Pass for PropagateLayouts {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_changed = 0;
        for comp in stepwise_computations(module) {
            let mut rounds: Vec<Round> = Vec::new();
            // Where classes were laid for products, others may follow in another round.
            while rounds.last().is_none_or(|round| round.n_relaid > 0) && rounds.len() < MOST_ROUNDS {
                rounds.push(lay(module, comp));
            }
            let sum = |of: &dyn Fn(&Round) -> u64| rounds.iter().map(of).sum::<u64>();
            n_changed += sum(&|round| round.n_changed);
            cx.report.count("bytes-transposed-before", rounds.first().map_or(0, |round| round.before));
            cx.report.count("bytes-transposed-after", rounds.last().map_or(0, |round| round.after));
            if sum(&|round| round.n_relaid) > 0 {
                cx.report.count("products-without-copies", sum(&|round| round.n_relaid));
            }
        }
        cx.report.count("layouts-changed", n_changed);
        if n_changed == 0 {
            cx.report.unchanged_because = Some("every value has the layout that costs least".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved { peak_memory: false, ..Preserved::ALL }))
    }
}

/// What a round did: layouts changed, products whose arrays lie as they want them since, and bytes transposed.
struct Round {
    n_changed: u64,
    n_relaid: u64,
    before: u64,
    after: u64,
}

/// Gives a computation's values the layouts that cost least.
fn lay(module: &mut Module, comp: CompId) -> Round {
    let as_is = |inst: InstId| module.shape(inst).as_array().cloned();
    let (before, copied_before) = (transposed_bytes(module, comp, &as_is), copied_bytes(module, comp, &as_is));
    let (mut classes, mut layouts) = (Classes::default(), NewShapes::new());
    layouts.extend(choose(module, comp, &mut classes));
    let n_relaid = products::relay(module, comp, &classes, &mut layouts);
    layouts.retain(|&inst, new| module.shape(inst).as_array().is_some_and(|old| !is_same_layout(new, old)));
    let of = |inst: InstId| layouts.get(&inst).or_else(|| module.shape(inst).as_array()).cloned();
    let (after, copied_after) = (transposed_bytes(module, comp, &of), copied_bytes(module, comp, &of));
    // A wish that makes it worse (ties that contradict one another) is none.
    let is_worse = after.saturating_add(copied_after) > before.saturating_add(copied_before);
    if is_worse || layouts.is_empty() {
        return Round { n_changed: 0, n_relaid: 0, before, after: before };
    }
    let n_changed = layouts.len() as u64;
    for inst in module.comp(comp).insts.clone() {
        let Some(shape) = layouts.remove(&inst) else { continue };
        let shape = module.shapes.intern(Shape::Array(shape));
        module.inst_mut(inst).shape = shape;
    }
    restate_tuples(module, comp);
    Round { n_changed, n_relaid, before, after }
}

/// Lets tuples say what their elements' layouts are now.
fn restate_tuples(module: &mut Module, comp: CompId) {
    for inst in module.comp(comp).insts.clone() {
        if let Some(elements) = tuple_elements(module, inst) {
            let elements = elements.iter().map(|&o| module.shape(o).clone()).collect();
            let shape = module.shapes.intern(Shape::Tuple(elements));
            module.inst_mut(inst).shape = shape;
        }
    }
}

/// Whether an instruction's own layout may be changed.
fn is_free(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let row = instruction.opcode.row();
    let is_array = module.shape(inst).as_array().is_some_and(|array| array.rank() > 1 && array.dynamic == 0);
    let is_whole = matches!(row.factors, FactorRule::Whole(_));
    let writes_any = row.factors.row().writes_any_layout && row.effects == Effects::Pure;
    let can = writes_any || is_whole && keeps_layout(row);
    is_array && can
}

/// Whether the op is a collective whose result is laid out as its operand. What an all-to-all exchanges is cut and joined.
fn keeps_layout(row: &OpRow) -> bool {
    matches!(row.flow, Flow::Collective(rule) if !rule.exchanges_parts())
}

/// Ties of an instruction: operand slots whose layout should be the result's, and how dims go over.
fn ties(module: &Module, inst: InstId) -> Vec<(usize, Permutation)> {
    let instruction = module.inst(inst);
    let Some(result) = module.shape(inst).as_array() else { return Vec::new() };
    let identity: Permutation = (0..result.rank()).collect();
    let row = instruction.opcode.row();
    let slots: Vec<usize> = match row.factors.row().places {
        DimPlaces::New if matches!(row.factors, FactorRule::Whole(_)) && keeps_layout(row) => vec![0],
        DimPlaces::New => Vec::new(),
        DimPlaces::Permuted => {
            let Some(attrs) = DimsAttrs::of(&instruction.attrs) else { return Vec::new() };
            // Result dim `i` is operand dim `dimensions[i]`.
            let to_operand: Permutation = attrs.dimensions.iter().map(|&d| d as usize).collect();
            return vec![(0, to_operand)];
        }
        DimPlaces::All => (0..instruction.operands.len()).collect(),
        DimPlaces::First => vec![0],
    };
    let is_like = |slot: &usize| {
        let operand = instruction.operands.get(*slot).and_then(|&o| module.shape(o).as_array());
        operand.is_some_and(|o| o.rank() == result.rank())
    };
    slots.into_iter().filter(is_like).map(|slot| (slot, identity.clone())).collect()
}

/// Bytes that are read or copied against the grain: operands tied to a result of another layout, and reshapes that move
/// bytes.
fn transposed_bytes(module: &Module, comp: CompId, shape_of: &dyn Fn(InstId) -> Option<ArrayShape>) -> u64 {
    let insts = module.comp(comp).insts.iter();
    insts.map(|&inst| transposed_at(module, inst, shape_of)).fold(0, u64::saturating_add)
}

/// What copies for products cost, see [`products::copied_at`].
fn copied_bytes(module: &Module, comp: CompId, shape_of: &dyn Fn(InstId) -> Option<ArrayShape>) -> u64 {
    let insts = module.comp(comp).insts.iter();
    insts.map(|&inst| products::copied_at(module, inst, shape_of)).fold(0, u64::saturating_add)
}

/// Bytes that are read or copied against the grain by one instruction.
fn transposed_at(module: &Module, inst: InstId, shape_of: &dyn Fn(InstId) -> Option<ArrayShape>) -> u64 {
    let Some(result) = shape_of(inst) else { return 0 };
    let mut bytes = 0u64;
    for (slot, to_operand) in ties(module, inst) {
        let operand = module.inst(inst).operands[slot];
        let Some(found) = shape_of(operand) else { continue };
        // What fills or broadcasts can be made in any order.
        let is_made = matches!(module.inst(operand).opcode.row().factors, FactorRule::Broadcast | FactorRule::Iota);
        let dims =
            result.minor_to_major().iter().filter_map(|&d| to_operand.get(d as usize)).map(|&d| d as i64).collect();
        let wanted = ArrayShape { layout: Some(Box::new(Layout::new(dims))), ..found.clone() };
        if !is_made && !is_same_layout(&found, &wanted) {
            bytes = bytes.saturating_add(found.size_bytes());
        }
    }
    if module.inst(inst).opcode == Opcode::Reshape
        && let Some(found) = module.inst(inst).operands.first().and_then(|&o| shape_of(o))
        && !hlo_ir::view::is_reshape_free(&found, &result)
    {
        bytes = bytes.saturating_add(result.size_bytes());
    }
    bytes
}

/// The values whose layout should change, and their new shapes.
fn choose(module: &Module, comp: CompId, classes: &mut Classes) -> Vec<(InstId, ArrayShape)> {
    let mut all_ties = Vec::new();
    for &inst in module.comp(comp).insts.iter().filter(|&&i| is_free(module, i)) {
        for (slot, to_operand) in ties(module, inst) {
            let operand = module.inst(inst).operands[slot];
            let bytes = module.shape(operand).size_bytes();
            if is_free(module, operand) {
                all_ties.push((std::cmp::Reverse(bytes), inst, operand, to_operand));
            }
        }
    }
    all_ties.sort();
    for (_, inst, operand, to_operand) in all_ties {
        classes.unite(inst, operand, &to_operand);
    }
    vote(module, comp, classes);
    let mut frozen: EntitySet<InstId> = EntitySet::new();
    // A bitcast looks at memory as it lies.
    let bitcasts = module.comp(comp).insts.iter().filter(|&&inst| module.inst(inst).opcode == Opcode::Bitcast);
    for &operand in bitcasts.flat_map(|&inst| &module.inst(inst).operands) {
        frozen.insert(classes.leader(operand));
    }
    loop {
        let chosen: Vec<(InstId, ArrayShape)> = module
            .comp(comp)
            .insts
            .iter()
            .filter(|&&inst| is_free(module, inst) && !frozen.contains(classes.leader(inst)))
            .filter_map(|&inst| {
                let found = module.shape(inst).as_array()?;
                let order = classes.choice(inst)?;
                let new = ArrayShape { layout: Some(Box::new(Layout::new(order))), ..found.clone() };
                (!is_same_layout(&new, found)).then_some((inst, new))
            })
            .collect();
        let n_frozen = frozen.iter().count();
        freeze_for_dots(module, comp, classes, &chosen, &mut frozen);
        if frozen.iter().count() == n_frozen {
            return chosen;
        }
    }
}

/// Freezes the classes of dots that would no longer be products as their arrays lie.
fn freeze_for_dots(
    module: &Module,
    comp: CompId,
    classes: &Classes,
    chosen: &[(InstId, ArrayShape)],
    frozen: &mut EntitySet<InstId>,
) {
    let changed: hashbrown::HashMap<InstId, &ArrayShape> = chosen.iter().map(|(inst, shape)| (*inst, shape)).collect();
    for &inst in &module.comp(comp).insts {
        let instruction = module.inst(inst);
        let (Attrs::Dot(attrs), &[lhs, rhs]) = (&instruction.attrs, instruction.operands.as_slice()) else { continue };
        let arrays = [lhs, rhs, inst];
        if arrays.iter().all(|i| !changed.contains_key(i)) {
            continue;
        }
        let old = arrays.map(|i| module.shape(i).as_array());
        let new = arrays.map(|i| changed.get(&i).copied().or_else(|| module.shape(i).as_array()));
        let fits = |shapes: [Option<&ArrayShape>; 3]| match shapes {
            [Some(lhs), Some(rhs), Some(out)] => {
                !has_library_types(lhs.dtype, rhs.dtype, out.dtype) || find_gemm(attrs, lhs, rhs, out).is_some()
            }
            [_, _, _] => true,
        };
        if fits(old) && !fits(new) {
            arrays.into_iter().filter(|i| changed.contains_key(i)).for_each(|i| {
                frozen.insert(classes.leader(i));
            });
        }
    }
}

/// Lets what is fixed, scattered dims and reshapes say what they want; every value says, softly, what it has.
fn vote(module: &Module, comp: CompId, classes: &mut Classes) {
    let root = module.comp(comp).root.expand();
    for &inst in &module.comp(comp).insts {
        let instruction = module.inst(inst);
        let is_changeable = is_free(module, inst);
        if let Some(array) = module.shape(inst).as_array().filter(|_| is_changeable) {
            classes.vote(inst, array.minor_to_major(), array.size_bytes());
            if let Some(dim) = scattered_dim(module, inst) {
                let mut order: Dims = (0..array.rank() as i64).rev().filter(|&d| d != dim).collect();
                order.push(dim);
                classes.vote(inst, order, array.size_bytes().saturating_mul(2 * FIXED));
            }
        }
        // Tied operands and users that cannot change want what they have.
        for (slot, to_operand) in ties(module, inst) {
            let operand = instruction.operands[slot];
            let (Some(result), Some(given)) = (module.shape(inst).as_array(), module.shape(operand).as_array()) else {
                continue;
            };
            let weight = given.size_bytes().saturating_mul(FIXED);
            if is_changeable && !is_free(module, operand) {
                // In the result's dims: result dim `i` is operand dim `to_operand[i]`.
                let order = given.minor_to_major();
                let back =
                    order.iter().filter_map(|&d| to_operand.iter().position(|&o| o as i64 == d)).map(|d| d as i64);
                classes.vote(inst, back.collect(), weight);
            } else if !is_changeable && is_free(module, operand) {
                let order = result
                    .minor_to_major()
                    .iter()
                    .filter_map(|&d| to_operand.get(d as usize))
                    .map(|&d| d as i64)
                    .collect();
                classes.vote(operand, order, weight);
            }
        }
        let is_interface = Some(inst) == root
            || matches!(instruction.opcode.row().flow, Flow::Tuple | Flow::While | Flow::Conditional | Flow::Call);
        let wants_rows =
            matches!(instruction.opcode.row().factors, FactorRule::Reshape | FactorRule::Reduce) || is_interface;
        let stated = if Some(inst) == root { result_layouts(module, comp) } else { None };
        for (slot, &operand) in instruction.operands.iter().enumerate() {
            if let Some(array) = module.shape(operand).as_array().filter(|_| wants_rows && is_free(module, operand)) {
                let is_reduce = instruction.opcode.row().factors == FactorRule::Reduce;
                let stated =
                    stated.as_ref().and_then(|s| s.as_tuple()?.get(slot)?.as_array().map(ArrayShape::minor_to_major));
                let rows = (0..array.rank() as i64).rev().collect();
                let order = stated.unwrap_or(if is_interface { array.minor_to_major() } else { rows });
                let factor = if is_reduce { 1 } else { FIXED };
                classes.vote(operand, order, array.size_bytes().saturating_mul(factor));
            }
        }
        if Some(inst) == root
            && let Some(array) = module.shape(inst).as_array().filter(|_| is_changeable)
        {
            let stated = stated.as_ref().and_then(|s| s.as_array().map(ArrayShape::minor_to_major));
            let weight = array.size_bytes().saturating_mul(FIXED);
            classes.vote(inst, stated.unwrap_or_else(|| array.minor_to_major()), weight);
        }
    }
}

/// The layouts that the header states for ENTRY's result.
fn result_layouts(module: &Module, comp: CompId) -> Option<Shape> {
    let layout = module.header.entry_computation_layout.as_ref().filter(|_| module.entry() == Some(comp))?;
    Some(module.shapes.get(layout.result).clone())
}

/// The dim that a collective scatters or gathers.
fn scattered_dim(module: &Module, inst: InstId) -> Option<i64> {
    let instruction = module.inst(inst);
    let row = instruction.opcode.row();
    let has_dim = keeps_layout(row) && row.collective.is_some_and(CollectiveRule::has_dim);
    instruction.attrs.collective().filter(|_| has_dim)?.dimensions.first().copied()
}
