//! `sort` and `topk` as sorts of rows that a kernel sorts in shared memory.
//!
//! **A few of many.** Where few elements of a long row are wanted, it is cut into parts. Each is sorted, the first elements of all are a
//! shorter row, and so on.
//!
//! **Merges.** A long row in a strict order is cut into parts, which are sorted; then neighbours are merged two by two, by sorts that
//! [say so](SORTED_HALVES).
//!
//! **Networks.** Where the comparator may contradict itself (a NaN that is neither less nor greater), parts are sorted between the steps of Batcher's
//! bitonic network (K. E. Batcher 1968, *Sorting networks and their applications*) that compare elements of different parts. Whatever the
//! comparator says, the result is a permutation.
//!
//! All keep the order of equal elements: where neither comes first, the one that stood first does. So does the evaluator.

use super::order::{Order, Positions};
use crate::kernel::max_sorted_elems;
use hlo_analysis::time::{SORTED_HALVES, says_sorted_halves};
use hlo_ir::attrs::{Comparison, CustomAttrs, SortAttrs, TopKAttrs};
use hlo_ir::expand::Writer;
use hlo_ir::{CompId, DType, InstId, Module, Opcode, Scalar, Shape};
use std::sync::Arc;

/// Elements of a row up to which a network is written: it has 90 steps then.
const MAX_NETWORK_ELEMS: i64 = 1 << 24;

/// Writes what a `sort` gives; none if a kernel sorts its rows as they are, its comparator is not made of elementwise operations, or they are
/// too long.
pub(super) fn expand_sort(w: &mut Writer<'_>, sort: InstId) -> Option<InstId> {
    let (operands, attrs) = {
        let sort = w.module.inst(sort);
        (sort.operands.to_vec(), SortAttrs::of(&sort.attrs)?.clone())
    };
    let dim = usize::try_from(*attrs.dimensions.first()?).ok()?;
    let comparator = attrs.to_apply?;
    let order = Order::By(comparator);
    let n = *w.dims(*operands.first()?).get(dim)?;
    let is_merge = w.module.inst(sort).marks.as_deref().is_some_and(says_sorted_halves);
    if n <= max_sorted_elems(order.keys(w, &operands).into_iter()) || is_merge {
        return None;
    }
    let sorted = Rows { dim, n_kept: n, order }.sorted(w, &operands, false)?;
    let shape = w.module.shape(sort).clone();
    match (shape.as_tuple(), sorted.as_slice()) {
        (Some(shapes), _) => {
            let laid: Vec<InstId> = sorted.iter().zip(shapes).map(|(&a, like)| w.laid_out_as(a, like)).collect();
            Some(w.tuple(&laid))
        }
        (None, &[only, ..]) => Some(w.laid_out_as(only, &shape)),
        (None, []) => None,
    }
}

/// Writes what a `topk`, or a custom call that is one, gives: values and their positions.
pub(super) fn expand_topk(w: &mut Writer<'_>, topk: InstId) -> Option<InstId> {
    let &[operand] = w.module.inst(topk).operands.as_slice() else { return None };
    let dims = w.dims(operand);
    let dim = dims.len().checked_sub(1)?;
    let order = order_of_topk(w.module, topk)?;
    let positions = w.iota(DType::S32, &dims, dim);
    let shape = w.module.shape(topk).clone();
    let [of_values, of_positions] = shape.as_tuple()? else { return None };
    let n_kept = *of_values.as_array()?.dims.last()?;
    let mut kept = dims.clone();
    kept[dim] = n_kept;
    let is_like = |shape: &Shape, dtype| {
        shape.as_array().is_some_and(|a| a.dtype == dtype && a.dims.as_slice() == kept.as_slice())
    };
    if n_kept > dims[dim] || !is_like(of_values, w.dtype(operand)) || !is_like(of_positions, DType::S32) {
        return None;
    }
    let sorted = Rows { dim, n_kept, order }.sorted(w, &[operand, positions], true)?;
    let values = w.laid_out_as(*sorted.first()?, of_values);
    let positions = w.laid_out_as(*sorted.get(1)?, of_positions);
    Some(w.tuple(&[values, positions]))
}

fn order_of_topk(module: &Module, inst: InstId) -> Option<Order> {
    let attrs = &module.inst(inst).attrs;
    if let Some(TopKAttrs { largest, .. }) = TopKAttrs::of(attrs) {
        return Some(Order::Total { largest: *largest });
    }
    let custom = CustomAttrs::of(attrs).filter(|custom| custom.custom_call_target.0 == "TopK")?;
    let comparator = custom.called_computations.iter().copied().chain(custom.to_apply).next()?;
    let positions = module.shape(inst).as_tuple()?.get(1)?.as_array()?;
    (positions.dtype == DType::S32 && module.comp(comparator).params.len() == 4).then_some(Order::By(comparator))
}

/// Rows along a dim, and how many elements of each sorted row are wanted.
#[derive(Clone, Copy)]
struct Rows {
    dim: usize,
    n_kept: i64,
    order: Order,
}

impl Rows {
    /// The operands, sorted, and what else was sorted along; `has_positions` if the last operand is where elements stand.
    fn sorted(self, w: &mut Writer<'_>, operands: &[InstId], has_positions: bool) -> Option<Vec<InstId>> {
        let dims = w.dims(*operands.first()?);
        let n = *dims.get(self.dim)?;
        if dims.iter().product::<i64>() == 0
            || self.n_kept == 0
            || n > i64::from(i32::MAX) / 2
            || !self.order.is_written(w.module)
        {
            return None;
        }
        let keys = self.order.keys(w, operands);
        let most = max_sorted_elems(keys.iter().copied());
        if n <= most {
            let sorted = Sorter::new(w, self, operands, None).sort(w, operands, self.dim, false);
            return Some(self.kept(w, &sorted));
        }
        let mut columns = operands.to_vec();
        if !has_positions {
            columns.push(w.iota(DType::S32, &dims, self.dim));
        }
        let most_placed = max_sorted_elems(keys.into_iter().chain([DType::S32]));
        if self.are_few(n, most_placed) {
            return Some(self.few(w, columns, most_placed));
        }
        if self.order.is_strict(w.module) && most_placed > 1 {
            if n % parts_of(n, most) == 0 {
                let sorter = Sorter::new(w, self, operands, None);
                return Some(self.merged(w, operands, sorter, most));
            }
            let sorter = Sorter::new(w, self, &columns, Some(Positions::End { n }));
            return Some(self.merged(w, &columns, sorter, most_placed));
        }
        (n <= MAX_NETWORK_ELEMS).then(|| self.by_network(w, &columns, most_placed))
    }

    /// The first elements of sorted rows.
    fn kept(self, w: &mut Writer<'_>, columns: &[InstId]) -> Vec<InstId> {
        let keep = |&column: &InstId| match w.dims(column)[self.dim] > self.n_kept {
            true => w.slice(column, self.dim, (0, self.n_kept)),
            false => column,
        };
        columns.iter().map(keep).collect()
    }

    /// Columns with more elements, of which the positions, the last one, say that they are none.
    fn padded(self, w: &mut Writer<'_>, columns: &[InstId], size: i64, n: i64) -> Vec<InstId> {
        let n_columns = columns.len();
        let pad = |(i, &column): (usize, &InstId)| {
            let value = if i + 1 == n_columns { Scalar::Int(n) } else { Scalar::Pred(false) };
            w.pad(column, self.dim, size, value)
        };
        columns.iter().enumerate().map(pad).collect()
    }

    /// The rows in parts of `size` elements, along a further dim.
    fn parts(self, w: &mut Writer<'_>, columns: &[InstId], size: i64) -> Vec<InstId> {
        let reshape = |&column: &InstId| {
            let mut dims = w.dims(column);
            dims[self.dim] /= size;
            dims.insert(self.dim + 1, size);
            w.reshape(column, &dims)
        };
        columns.iter().map(reshape).collect()
    }

    /// The rows that parts, along a further dim, make up.
    fn joined(self, w: &mut Writer<'_>, columns: &[InstId]) -> Vec<InstId> {
        let reshape = |&column: &InstId| {
            let mut dims = w.dims(column);
            let size = dims.remove(self.dim + 1);
            dims[self.dim] *= size;
            w.reshape(column, &dims)
        };
        columns.iter().map(reshape).collect()
    }

    /// The parts that rows are cut into, and their elements.
    fn even_parts(size: i64, most: i64) -> [i64; 2] {
        let n_parts = size.unsigned_abs().div_ceil(most.unsigned_abs());
        [n_parts as i64, size.unsigned_abs().div_ceil(n_parts) as i64]
    }

    /// Whether each part has twice as many elements as are wanted, so that there are fewer and fewer.
    fn are_few(self, n: i64, most: i64) -> bool {
        let mut size = n;
        while size > most {
            let [n_parts, part] = Self::even_parts(size, most);
            if 2 * self.n_kept > part {
                return false;
            }
            size = n_parts * self.n_kept;
        }
        true
    }

    /// The few first elements of long rows; the last column has positions.
    fn few(self, w: &mut Writer<'_>, mut columns: Vec<InstId>, most: i64) -> Vec<InstId> {
        let n = w.dims(columns[0])[self.dim];
        let sorter = Sorter::new(w, self, &columns, Some(Positions::End { n }));
        let mut size = n;
        while size > most {
            let [n_parts, part] = Self::even_parts(size, most);
            if part * n_parts > size {
                columns = self.padded(w, &columns, part * n_parts, n);
            }
            let parts = self.parts(w, &columns, part);
            let sorted = sorter.sort(w, &parts, self.dim + 1, false);
            let first: Vec<InstId> = sorted.iter().map(|&part| w.slice(part, self.dim + 1, (0, self.n_kept))).collect();
            columns = self.joined(w, &first);
            size = n_parts * self.n_kept;
        }
        let sorted = sorter.sort(w, &columns, self.dim, false);
        self.kept(w, &sorted)
    }

    /// The rows sorted by parts, which are merged.
    fn merged(self, w: &mut Writer<'_>, columns: &[InstId], sorter: Sorter, most: i64) -> Vec<InstId> {
        let n = w.dims(columns[0])[self.dim];
        let n_parts = parts_of(n, most);
        let mut size = n.unsigned_abs().div_ceil(n_parts.unsigned_abs()) as i64;
        let all = n_parts * size;
        let mut columns = if all > n { self.padded(w, columns, all, n) } else { columns.to_vec() };
        let mut is_merge = false;
        loop {
            if size == all {
                columns = sorter.sort(w, &columns, self.dim, is_merge);
                return self.kept(w, &columns);
            }
            let parts = self.parts(w, &columns, size);
            let sorted = sorter.sort(w, &parts, self.dim + 1, is_merge);
            columns = self.joined(w, &sorted);
            (size, is_merge) = (2 * size, true);
        }
    }

    /// The rows sorted by parts between steps of a network; the last column has positions.
    fn by_network(self, w: &mut Writer<'_>, columns: &[InstId], most: i64) -> Vec<InstId> {
        let n = w.dims(columns[0])[self.dim];
        let size = n.unsigned_abs().next_power_of_two() as i64;
        let mut columns = if size > n { self.padded(w, columns, size, n) } else { columns.to_vec() };
        let sorter = Sorter::new(w, self, &columns, Some(Positions::EndAndTies { n }));
        let part = most.min(size);
        let sort_parts = |w: &mut Writer<'_>, columns: &[InstId]| {
            let parts = self.parts(w, columns, part);
            let sorted = sorter.sort(w, &parts, self.dim + 1, false);
            self.joined(w, &sorted)
        };
        if part > 1 {
            columns = sort_parts(w, &columns);
        }
        let mut block = 2 * part;
        while block <= size {
            columns = self.step(w, &columns, NetworkStep { distance: block / 2, is_mirrored: true, n });
            let mut distance = block / 4;
            while distance >= part {
                columns = self.step(w, &columns, NetworkStep { distance, is_mirrored: false, n });
                distance /= 2;
            }
            if part > 1 {
                columns = sort_parts(w, &columns);
            }
            block *= 2;
        }
        self.kept(w, &columns)
    }

    /// Compares each element with another one of its block, and puts the two in order.
    fn step(self, w: &mut Writer<'_>, columns: &[InstId], step: NetworkStep) -> Vec<InstId> {
        let dims = w.dims(columns[0]);
        let mut halves = dims.clone();
        halves[self.dim] = dims[self.dim] / (2 * step.distance);
        halves.insert(self.dim + 1, 2);
        halves.insert(self.dim + 2, step.distance);
        let (middle, inner) = (self.dim + 1, self.dim + 2);
        let turned = |w: &mut Writer<'_>, half: InstId| if step.is_mirrored { w.reverse(half, inner) } else { half };
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for &column in columns {
            let parts = w.reshape(column, &halves);
            left.push(w.slice(parts, middle, (0, 1)));
            let half = w.slice(parts, middle, (1, 2));
            right.push(turned(w, half));
        }
        let swaps = self.swaps(w, &left, &right, step.n);
        let mut ordered = Vec::new();
        for (&a, &b) in left.iter().zip(&right) {
            let first = w.each(Opcode::Select, &[swaps, b, a]);
            let second = w.each(Opcode::Select, &[swaps, a, b]);
            let second = turned(w, second);
            let both = w.concatenate([first, second], middle);
            ordered.push(w.reshape(both, &dims));
        }
        ordered
    }

    /// Whether the elements of `b` come before those of `a`; the last arrays are positions, those from `n` on stand for no element.
    fn swaps(self, w: &mut Writer<'_>, a: &[InstId], b: &[InstId], n: i64) -> InstId {
        let (Some((&at_a, a)), Some((&at_b, b))) = (a.split_last(), b.split_last()) else { return a[0] };
        let a_first = self.order.before(w, a, b);
        let b_first = self.order.before(w, b, a);
        let not_a_first = w.each(Opcode::Not, &[a_first]);
        let b_stood_first = w.compare(Comparison::Lt, at_b, at_a);
        let swaps = w.each(Opcode::Select, &[b_stood_first, not_a_first, b_first]);
        let dims = w.dims(at_a);
        let end = w.splat(DType::S32, &dims, Scalar::Int(n));
        let (has_a, has_b) = (w.compare(Comparison::Lt, at_a, end), w.compare(Comparison::Lt, at_b, end));
        let no_a = w.each(Opcode::Not, &[has_a]);
        let swaps = w.each(Opcode::Or, &[no_a, swaps]);
        w.each(Opcode::And, &[has_b, swaps])
    }
}

/// A step of the network.
#[derive(Clone, Copy)]
struct NetworkStep {
    /// Half a block, or the distance of the elements that are compared.
    distance: i64,
    /// Whether the first element of a block is compared with its last one, and so on.
    is_mirrored: bool,
    /// Elements that are no padding.
    n: i64,
}

/// How many parts, a power of two, rows of `n` elements are cut into, so that none has more than `most`.
fn parts_of(n: i64, most: i64) -> i64 {
    n.unsigned_abs().div_ceil(most.max(1).unsigned_abs()).next_power_of_two() as i64
}

/// Writes sorts of rows that a kernel sorts.
#[derive(Clone, Copy)]
struct Sorter {
    comparator: CompId,
}

impl Sorter {
    fn new(w: &mut Writer<'_>, rows: Rows, columns: &[InstId], positions: Option<Positions>) -> Sorter {
        let dtypes: Vec<DType> = columns.iter().map(|&column| w.dtype(column)).collect();
        Sorter { comparator: rows.order.comparator(w, &dtypes, positions) }
    }

    /// The columns sorted along a dim; `is_merge` if both halves of each row are sorted.
    fn sort(self, w: &mut Writer<'_>, columns: &[InstId], dim: usize, is_merge: bool) -> Vec<InstId> {
        let attrs = SortAttrs {
            dimensions: std::iter::once(dim as i64).collect(),
            is_stable: true,
            to_apply: Some(self.comparator),
        };
        let sort = w.same_shapes(Opcode::Sort, columns, attrs);
        if is_merge {
            let (key, value) = SORTED_HALVES;
            let marks = w.module.inst_mut(sort).marks.get_or_insert_default();
            Arc::make_mut(marks).frontend_attributes.push((key.into(), value.into()));
        }
        match columns {
            [_] => vec![sort],
            _ => (0..columns.len()).filter_map(|i| w.element(sort, i)).collect(),
        }
    }
}
