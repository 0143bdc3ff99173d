//! Rows: reductions along the fastest dims, and what carries their results back to the rows that they come from.
//!
//! ```text
//! most  = reduce(x), dimensions={1}        one element for each row
//! all   = broadcast(most), dimensions={0}  back to the rows
//! shift = subtract(x, all)
//! ```
//! A team of threads that has a row reads it from memory once for all three: the first read brings it into the cache. Softmax and
//! the norms are such rows, with two reductions, and their gradients.

use std::collections::HashMap;

use hlo_ir::attrs::{Attrs, DimsAttrs};
use hlo_ir::op::FactorRule;
use hlo_ir::view::is_view;
use hlo_ir::{ArrayShape, CompId, InstId, InstMap, Module, Opcode};
use smallvec::SmallVec;

use super::neutral::has_neutral_init;
use super::role::Role;

/// Elements of a row: more fit into no cache.
const COLUMNS: std::ops::RangeInclusive<i64> = 2..=1 << 16;
/// Rows of which there are enough for a device.
const MIN_ROWS: i64 = 128;
/// Elements of an array below which a launch costs more than idle processors.
const SMALL_ELEMS: i64 = 1 << 20;

/// What an instruction is to the rows of a class, which is given by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum RowPart {
    /// Nothing, or one element of a row among others.
    #[default]
    None,
    /// Reduces each row to one element.
    Reduce(u32),
    /// One element for each row, computed from reduced ones.
    Value(u32),
    /// Such elements for all elements of their rows.
    Spread(u32),
}

impl RowPart {
    /// The class of an instruction that has one element for each row.
    pub(super) fn class_of_value(self) -> Option<u32> {
        match self {
            RowPart::Reduce(class) | RowPart::Value(class) => Some(class),
            RowPart::Spread(_) | RowPart::None => None,
        }
    }
}

/// Dims of arrays whose rows are reduced.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Class {
    dims: SmallVec<[i64; 4]>,
    /// How many dims number the rows; the others run along a row.
    n_kept: usize,
}

/// The operand of a reduction of one array along all its trailing dims, and how many leading dims it keeps.
pub fn trailing_reduction(module: &Module, reduce: InstId) -> Option<(InstId, usize)> {
    let instruction = module.inst(reduce);
    let (Opcode::Reduce, Attrs::Reduce(attrs)) = (instruction.opcode, &instruction.attrs) else { return None };
    let &[operand, _] = instruction.operands.as_slice() else { return None };
    let rank = module.shape(operand).as_array()?.rank();
    let n_kept = rank.checked_sub(attrs.dimensions.len()).filter(|&n| n > 0)?;
    (n_kept..rank).all(|dim| attrs.dimensions.contains(&(dim as i64))).then_some((operand, n_kept))
}

/// How many leading dims of the operand a `reduce` keeps, where it reduces rows: all its trailing dims, which are the fastest in
/// memory, by a sum or an extremum.
fn n_kept_by(module: &Module, reduce: InstId) -> Option<usize> {
    let (operand, n_kept) = trailing_reduction(module, reduce)?;
    let instruction = module.inst(reduce);
    let (Attrs::Reduce(attrs), &[_, init]) = (&instruction.attrs, instruction.operands.as_slice()) else { return None };
    let shape = module.shape(operand).as_array()?;
    let (kept, reduced) = shape.dims.split_at(n_kept);
    let (n_rows, n_columns) = (kept.iter().product::<i64>(), reduced.iter().product::<i64>());
    let is_enough = n_rows >= MIN_ROWS || n_rows * n_columns <= SMALL_ELEMS;
    let is_row = COLUMNS.contains(&n_columns) && is_enough && are_fastest(shape, n_kept);
    (is_row && has_neutral_init(module, attrs, init, shape.dtype)).then_some(n_kept)
}

/// Whether the dims from `n_kept` on lie fastest in memory.
fn are_fastest(shape: &ArrayShape, n_kept: usize) -> bool {
    let long = shape.long_dims_major_to_minor();
    let n_rows_dims = long.iter().filter(|&&dim| dim < n_kept).count();
    long.iter().take(n_rows_dims).all(|&dim| dim < n_kept)
}

/// The parts that instructions play for rows; `order` is the order of the text.
pub(super) fn find_parts(module: &Module, comp: CompId, order: &[InstId], roles: &InstMap<Role>) -> InstMap<RowPart> {
    let mut parts: InstMap<RowPart> = InstMap::of(module, comp);
    let mut classes: Vec<Class> = Vec::new();
    let mut numbers: HashMap<SmallVec<[i64; 4]>, u32> = HashMap::new();
    for &inst in order.iter().filter(|&&inst| roles[inst] != Role::Alone) {
        let rule = module.inst(inst).opcode.row().factors;
        let part = if rule == FactorRule::Reduce {
            n_kept_by(module, inst).and_then(|n_kept| {
                let operand = *module.inst(inst).operands.first()?;
                let dims = SmallVec::from_slice(&module.shape(operand).as_array()?.dims);
                let number = *numbers.entry(dims.clone()).or_insert_with(|| {
                    classes.push(Class { dims, n_kept });
                    classes.len() as u32 - 1
                });
                // The first reduction of arrays of these dims says what their rows are.
                (classes[number as usize].n_kept == n_kept).then_some(RowPart::Reduce(number))
            })
        } else if rule == FactorRule::Elementwise {
            let classes = module.inst(inst).operands.iter().map(|&operand| parts[operand].class_of_value());
            classes.flatten().next().map(RowPart::Value)
        } else if rule == FactorRule::Reshape && is_view(module, inst) {
            let operand = module.inst(inst).operands.first();
            let class = operand.and_then(|&operand| parts[operand].class_of_value());
            class.filter(|_| operand.is_some_and(|&o| adds_ones(module, o, inst))).map(RowPart::Value)
        } else if rule == FactorRule::Broadcast {
            spread_class(module, &parts, inst)
                .filter(|&class| is_spread_over(module, inst, &classes[class as usize]))
                .map(RowPart::Spread)
        } else {
            None
        };
        parts[inst] = part.unwrap_or_default();
    }
    parts
}

/// Whether both have the same dims of more than one element, in the same order.
fn adds_ones(module: &Module, from: InstId, to: InstId) -> bool {
    let long = |inst: InstId| {
        let dims = module.shape(inst).as_array().map(|array| array.dims.iter().copied().filter(|&n| n != 1));
        dims.map(Iterator::collect::<SmallVec<[i64; 4]>>)
    };
    long(from) == long(to)
}

pub(super) fn spread_class(module: &Module, parts: &InstMap<RowPart>, broadcast: InstId) -> Option<u32> {
    module.inst(broadcast).operands.first().and_then(|&operand| parts[operand].class_of_value())
}

/// Whether a broadcast gives each element of a row of the class the row's element of its operand.
fn is_spread_over(module: &Module, broadcast: InstId, class: &Class) -> bool {
    let Some(attrs) = DimsAttrs::of(&module.inst(broadcast).attrs) else { return false };
    let is_identity = attrs.dimensions.iter().copied().eq(0..class.n_kept as i64);
    is_identity && module.shape(broadcast).as_array().is_some_and(|array| array.dims[..] == class.dims[..])
}

/// Whether `user` computes its elements from those of `operand` at the same index.
pub(super) fn is_elementwise_of(module: &Module, user: InstId, operand: InstId) -> bool {
    let dims = |inst: InstId| module.shape(inst).as_array().map(|array| &array.dims);
    module.inst(user).opcode.row().factors == FactorRule::Elementwise && dims(user) == dims(operand)
}
