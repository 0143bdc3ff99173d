//! Dots as matrix products.
//!
//! The dims of a dot fall into batch, rows (`m`), columns (`n`) and contracted ones (`k`). A library product takes one
//! stride for each of them in each array. So a dot fits if the contracted dims lie as one dim in both arrays that have
//! them. Batch dims, rows and columns that do not (the groups of queries that share a key) are repeated over while they are few; otherwise
//! [`super::legalize`] copies an operand or the result to another layout first. What has no library product at all (integers, complex numbers, mixed
//! types) is a kernel.

use super::strides::strides;
use super::{Lowering, Matmul};
use crate::GpuError;
use crate::buffers::Home;
use crate::plan::{BufferId, Gemm, Matrix, Step, Work, has_library_types};
use hlo_ir::attrs::{Attrs, DotAttrs, Word};
use hlo_ir::{ArrayShape, DType, InstId, Layout};

/// Batches of products that one dot may be before a copy to another layout is better: the library takes them by their addresses.
const MAX_BATCHES: u64 = 64;
/// Rows or columns that a matrix keeps where others are repeated over: products of fewer cost more than a copy.
const MIN_PART: u64 = 128;
/// Calls that one dot may be.
const MAX_PRODUCTS: u64 = 8;

/// Strides of one array: from matrix to matrix, row to row, column to column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MatrixStrides {
    /// Elements from one matrix to the next.
    pub batch: u64,
    /// Elements from one row to the next.
    pub row: u64,
    /// Elements from one column to the next.
    pub col: u64,
}

/// A dim that is looped over: how often, and the step in `lhs`, `rhs` and output.
pub(crate) type LoopDim = (u64, [u64; 3]);

/// A dot as strided products.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GemmForm {
    /// Products in one call.
    pub batch: u64,
    /// Rows, columns, contracted elements.
    pub mnk: [u64; 3],
    /// `lhs`, `rhs`, output.
    pub matrices: [MatrixStrides; 3],
    /// Dims over which products are repeated: batch dims, and rows or columns that do not lie as one dim with the others.
    pub loops: Vec<LoopDim>,
}

/// The dims of a dot by class: `[lhs, rhs, output]` dims of batch, then rows, columns and contracted dims of the two
/// arrays that have them.
struct DotDims {
    batch: Vec<[usize; 3]>,
    rows: Vec<[usize; 2]>,
    cols: Vec<[usize; 2]>,
    contracted: Vec<[usize; 2]>,
}

impl DotDims {
    /// Sorts the dims of a dot.
    fn of(attrs: &DotAttrs, lhs_rank: usize, rhs_rank: usize) -> DotDims {
        let DotAttrs {
            lhs_batch_dims,
            lhs_contracting_dims,
            rhs_batch_dims,
            rhs_contracting_dims,
            // Only `ragged-dot` has groups, and it has no lowering.
            lhs_ragged_dims: _,
            rhs_group_dims: _,
            // They say nothing about dims: `dot_may_round_to_tf32` reads them, and `legalize` converts operands that the
            // algorithm rounds.
            operand_precision: _,
            algorithm: _,
        } = attrs;
        let n_batch = lhs_batch_dims.len();
        let index = |dim: &i64| usize::try_from(*dim).unwrap_or(0);
        let pairs = lhs_batch_dims.iter().zip(rhs_batch_dims);
        let batch: Vec<_> = pairs.enumerate().map(|(i, (l, r))| [index(l), index(r), i]).collect();
        let pairs = lhs_contracting_dims.iter().zip(rhs_contracting_dims);
        let contracted: Vec<_> = pairs.map(|(l, r)| [index(l), index(r)]).collect();
        let free = |rank: usize, batch: &[i64], contracted: &[i64]| -> Vec<usize> {
            (0..rank).filter(|&d| !batch.contains(&(d as i64)) && !contracted.contains(&(d as i64))).collect()
        };
        let rows = free(lhs_rank, lhs_batch_dims, lhs_contracting_dims);
        let cols = free(rhs_rank, rhs_batch_dims, rhs_contracting_dims);
        let n_rows = rows.len();
        DotDims {
            batch,
            rows: rows.into_iter().enumerate().map(|(i, d)| [d, n_batch + i]).collect(),
            cols: cols.into_iter().enumerate().map(|(i, d)| [d, n_batch + n_rows + i]).collect(),
            contracted,
        }
    }

    /// The dims with the contracted ones in the order in which they lie in an array that has them: `lhs` (0) or `rhs` (1). That array
    /// may then stay where the other one is copied.
    fn contracting_as_in(mut self, side: usize, array: &ArrayShape) -> DotDims {
        let strides = strides(array);
        self.contracted.sort_by_key(|dims| std::cmp::Reverse(strides[dims[side]]));
        self
    }

    /// For each array, an order of its dims, slowest first, that always fits: batch, rows (or contracted), columns.
    fn fitting_orders(&self) -> [Vec<usize>; 3] {
        let batch = |side: usize| self.batch.iter().map(move |d| d[side]);
        let lhs = batch(0).chain(self.rows.iter().map(|d| d[0])).chain(self.contracted.iter().map(|d| d[0]));
        let rhs = batch(1).chain(self.contracted.iter().map(|d| d[1])).chain(self.cols.iter().map(|d| d[0]));
        let out = batch(2).chain(self.rows.iter().map(|d| d[1])).chain(self.cols.iter().map(|d| d[1]));
        [lhs.collect(), rhs.collect(), out.collect()]
    }
}

/// A way to lay the arrays of a dot so that it is a product: new shapes of `lhs`, `rhs` and output, `None` for what stays.
pub(crate) struct Relaid {
    pub arrays: [Option<ArrayShape>; 3],
}

impl Relaid {
    /// Bytes of the arrays that do not stay.
    pub(crate) fn bytes(&self) -> u64 {
        self.arrays.iter().flatten().map(ArrayShape::size_bytes).sum()
    }
}

/// The ways to lay the arrays of a dot so that it is a product, where all stay first.
pub(crate) fn relaid_choices(attrs: &DotAttrs, as_is: &[ArrayShape; 3]) -> Vec<Relaid> {
    let [lhs, rhs, _] = as_is;
    let dims = || DotDims::of(attrs, lhs.rank(), rhs.rank());
    let orders = [dims(), dims().contracting_as_in(0, lhs), dims().contracting_as_in(1, rhs)];
    let laid = |i: usize, order: &[usize]| ArrayShape {
        layout: Some(Box::new(Layout::from_major_to_minor(order.iter().copied()))),
        ..as_is[i].clone()
    };
    let mut found = Vec::new();
    for orders in orders.map(|dims| dims.fitting_orders()) {
        // Bit `i` of a choice: array `i` takes the fitting layout.
        for choice in 0..8usize {
            let arrays = [0, 1, 2].map(|i| (choice >> i & 1 == 1).then(|| laid(i, &orders[i])));
            let [lhs, rhs, out] = [0, 1, 2].map(|i| arrays[i].as_ref().unwrap_or(&as_is[i]));
            if find_gemm(attrs, lhs, rhs, out).is_some() {
                found.push(Relaid { arrays });
            }
        }
    }
    found
}

/// The products of a dot over arrays in the given layouts, `None` if it does not fit.
pub(crate) fn find_gemm(attrs: &DotAttrs, lhs: &ArrayShape, rhs: &ArrayShape, out: &ArrayShape) -> Option<GemmForm> {
    let dims = DotDims::of(attrs, lhs.rank(), rhs.rank());
    let arrays = [lhs, rhs, out];
    let all = [strides(lhs), strides(rhs), strides(out)];
    let runs_of = |list: &[[usize; 2]], a: usize, b: usize| runs(list, [arrays[a], arrays[b]], [&all[a], &all[b]]);
    let (rows, cols) = (runs_of(&dims.rows, 0, 2), runs_of(&dims.cols, 1, 2));
    let contracted = match runs_of(&dims.contracted, 0, 1).as_slice() {
        [] => Run::default(),
        [run] => *run,
        // What is added up must lie along one stride.
        [_, _, ..] => return None,
    };
    // The longest runs are rows and columns of the matrices. Others are repeated over, with the same matrix on the other side.
    let is_thin = |runs: &[Run], run: Run| runs.len() > 1 && run.size < MIN_PART;
    let fitting = |&(row, col): &(usize, usize)| {
        let (row, col) = (rows.get(row).copied().unwrap_or_default(), cols.get(col).copied().unwrap_or_default());
        if is_thin(&rows, row) || is_thin(&cols, col) {
            return None;
        }
        let inner = [
            inner_strides((row.strides[0], row.size), (contracted.strides[0], contracted.size))?,
            inner_strides((contracted.strides[1], contracted.size), (col.strides[0], col.size))?,
            inner_strides((row.strides[1], row.size), (col.strides[1], col.size))?,
        ];
        Some(([row.size, col.size, contracted.size], inner))
    };
    let choices = |runs: &[Run]| 0..runs.len().max(1);
    let mut pairs: Vec<(usize, usize)> =
        choices(&rows).flat_map(|row| choices(&cols).map(move |col| (row, col))).collect();
    let size = |runs: &[Run], i: usize| runs.get(i).map_or(1, |run| run.size);
    pairs.sort_by_key(|&(row, col)| std::cmp::Reverse(size(&rows, row).saturating_mul(size(&cols, col))));
    let (chosen, (mnk, inner)) = pairs.iter().find_map(|pair| Some((*pair, fitting(pair)?)))?;
    let stride = |run: &Run, side: usize| run.strides[side].unwrap_or(0);
    let mut loops = batch_runs(&dims.batch, arrays, &all);
    let others = |runs: &[Run], chosen: usize| -> Vec<Run> {
        runs.iter().enumerate().filter(|(i, _)| *i != chosen).map(|(_, run)| *run).collect()
    };
    loops.extend(others(&rows, chosen.0).iter().map(|run| (run.size, [stride(run, 0), 0, stride(run, 1)])));
    loops.extend(others(&cols, chosen.1).iter().map(|run| (run.size, [0, stride(run, 0), stride(run, 1)])));
    let largest = (0..loops.len()).max_by_key(|&i| loops[i].0);
    let (batch, steps) = largest.map_or((1, [0; 3]), |i| loops.remove(i));
    let n_batches = loops.iter().map(|run| run.0).max().unwrap_or(1);
    let n_calls = loops.iter().map(|run| run.0).product::<u64>() / n_batches.max(1);
    if n_batches > MAX_BATCHES || n_calls > MAX_PRODUCTS {
        return None;
    }
    let matrix = |i: usize| MatrixStrides { batch: steps[i], row: inner[i].0, col: inner[i].1 };
    Some(GemmForm { batch, mnk, matrices: [matrix(0), matrix(1), matrix(2)], loops })
}

/// Dims of one class that lie as one dim in both arrays that have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    size: u64,
    /// `None` where there is one element.
    strides: [Option<u64>; 2],
}

impl Default for Run {
    fn default() -> Run {
        Run { size: 1, strides: [None; 2] }
    }
}

/// The dims of a class as runs, in the order in which they lie in the second array.
fn runs(list: &[[usize; 2]], arrays: [&ArrayShape; 2], strides: [&Vec<u64>; 2]) -> Vec<Run> {
    let mut ordered: Vec<[usize; 2]> = list.iter().copied().filter(|d| arrays[0].dims[d[0]] != 1).collect();
    ordered.sort_by_key(|d| std::cmp::Reverse(strides[1][d[1]]));
    let mut runs: Vec<Run> = Vec::new();
    for dims in ordered {
        let size = arrays[0].dims[dims[0]].max(0) as u64;
        let own = [strides[0][dims[0]], strides[1][dims[1]]];
        match runs.last_mut() {
            Some(last) if (0..2).all(|side| last.strides[side] == Some(own[side] * size)) => {
                *last = Run { size: last.size * size, strides: own.map(Some) };
            }
            Some(_) | None => runs.push(Run { size, strides: own.map(Some) }),
        }
    }
    runs
}

/// Row and column stride of which one is 1; a stride of a dim of size 1 is free. `None` if neither is 1.
fn inner_strides((row, rows): (Option<u64>, u64), (col, cols): (Option<u64>, u64)) -> Option<(u64, u64)> {
    match (row, col) {
        (Some(row), Some(col)) => (row == 1 || col == 1).then_some((row, col)),
        (Some(1), None) => Some((1, rows.max(1))),
        (Some(row), None) => Some((row, 1)),
        (None, Some(1)) => Some((cols.max(1), 1)),
        (None, Some(col)) => Some((1, col)),
        (None, None) => Some((1, 1)),
    }
}

/// Batch dims as runs that lie as one dim in all three arrays, in the order in which they lie in the output.
fn batch_runs(batch: &[[usize; 3]], arrays: [&ArrayShape; 3], strides: &[Vec<u64>; 3]) -> Vec<LoopDim> {
    let mut ordered: Vec<[usize; 3]> = batch.iter().copied().filter(|d| arrays[2].dims[d[2]] != 1).collect();
    ordered.sort_by_key(|d| std::cmp::Reverse(strides[2][d[2]]));
    let mut runs: Vec<LoopDim> = Vec::new();
    for dims in ordered {
        let size = arrays[2].dims[dims[2]].max(0) as u64;
        let own = [0, 1, 2].map(|array| strides[array][dims[array]]);
        match runs.last_mut() {
            Some((count, steps)) if (0..3).all(|a| steps[a] == own[a] * size) => {
                *count *= size;
                *steps = own;
            }
            Some(_) | None => runs.push((size, own)),
        }
    }
    runs
}

/// Whether f32 operands may be rounded to TF32 where the user takes that: not where one of them asks for the highest
/// precision. XLA, too, rounds for `default` and `high`.
pub(crate) fn may_round_to_tf32(precisions: &[Word]) -> bool {
    !precisions.iter().any(|precision| precision.as_str() == "highest")
}

/// The same for a dot, whose algorithm may name other types.
pub(crate) fn dot_may_round_to_tf32(attrs: &DotAttrs) -> bool {
    may_round_to_tf32(&attrs.operand_precision) && matches!(attrs.algorithm.as_str(), "" | "dot_tf32_tf32_f32")
}

impl Lowering<'_> {
    pub(crate) fn dot(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let Attrs::Dot(attrs) = &self.module.inst(inst).attrs else {
            return Err(self.unsupported(inst, "expected the attributes of a dot, found others"));
        };
        let (lhs, rhs) = (self.operand(inst, 0)?, self.operand(inst, 1)?);
        let shape = |b: BufferId| self.draft.plan.buffers[b].shape.clone();
        let (lhs_shape, rhs_shape) = (shape(lhs), shape(rhs));
        let Some(out_shape) = self.module.shape(inst).as_array() else { return self.kernel(inst, steps) };
        // Operands that the algorithm rounds have been converted by `legalize` where the library has such a product.
        let is_rounded = attrs.rounds(lhs_shape.dtype) || attrs.rounds(rhs_shape.dtype);
        let is_plain = self.module.inst(inst).operands.len() == 2 && !is_rounded;
        let form = has_library_types(lhs_shape.dtype, rhs_shape.dtype, out_shape.dtype)
            .then(|| find_gemm(attrs, &lhs_shape, &rhs_shape, out_shape))
            .flatten()
            .filter(|_| is_plain);
        let Some(form) = form else { return self.kernel(inst, steps) };
        let leaves = self.result_leaves(inst);
        let output = leaves.first().copied().flatten();
        self.bind(inst, leaves)?;
        let Some(output) = output.filter(|_| out_shape.n_elems() > 0) else { return Ok(()) };
        let name = self.module.inst_name(inst).to_string();
        if form.mnk[2] == 0 {
            self.step(&name, Work::Fill { to: output, byte: 0 }, steps);
            return Ok(());
        }
        // The longest loop is within a product, the others are products of their own.
        let mut loops = form.loops.clone();
        let longest = (0..loops.len()).max_by_key(|&i| loops[i].0);
        let outer = longest.map_or((1, [0; 3]), |i| loops.remove(i));
        let n_products: u64 = loops.iter().map(|(count, _)| count).product();
        for product in 0..n_products {
            let mut offsets = [0u64; 3];
            let mut rest = product;
            for (count, strides) in loops.iter().rev() {
                (0..3).for_each(|a| offsets[a] += rest % count * strides[a]);
                rest /= count;
            }
            let part = (n_products > 1).then_some(offsets);
            let mut gemm = self.product(&name, (&form, outer), [lhs, rhs, output], part);
            let is_f32 = lhs_shape.dtype == DType::F32;
            gemm.uses_tf32 = is_f32 && self.options.matmul == Matmul::Tf32 && dot_may_round_to_tf32(attrs);
            self.step(&name, Work::Gemm(gemm), steps);
        }
        Ok(())
    }

    /// One product of a dot; of parts of its arrays that begin at `offsets` elements if these are given.
    fn product(
        &mut self,
        name: &str,
        (form, (outer_batch, outer_strides)): (&GemmForm, LoopDim),
        buffers: [BufferId; 3],
        offsets: Option<[u64; 3]>,
    ) -> Gemm {
        let [m, n, k] = form.mnk;
        let extents = [(m, k), (k, n), (m, n)];
        let [lhs, rhs, output] = [0, 1, 2].map(|a| {
            let strides = form.matrices[a];
            let mut buffer = buffers[a];
            if let Some(offsets) = offsets {
                let (rows, cols) = extents[a];
                let last = (outer_batch - 1) * outer_strides[a]
                    + (form.batch - 1) * strides.batch
                    + (rows - 1) * strides.row
                    + (cols - 1) * strides.col;
                let dtype = self.draft.plan.buffers[buffer].shape.dtype;
                let part = ArrayShape::new(dtype, [last as i64 + 1]).with_row_major();
                buffer = self.draft.add_view(name, part, buffer, dtype.bytes_of(offsets[a]));
            }
            Matrix {
                buffer,
                batch_stride_elems: strides.batch,
                outer_stride_elems: outer_strides[a],
                row_stride_elems: strides.row,
                col_stride_elems: strides.col,
            }
        });
        debug_assert!(!matches!(self.draft.home_of(output.buffer), Home::Constant(_)));
        Gemm { lhs, rhs, output, batch: form.batch, outer_batch, m, n, k, uses_tf32: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::Dims;

    fn array(dims: &[i64], minor_to_major: &[i64]) -> ArrayShape {
        let mut shape = ArrayShape::new(DType::F32, dims.iter().copied());
        shape.layout = Some(Box::new(Layout::new(Dims::from_slice(minor_to_major))));
        shape
    }

    fn attrs(lhs_batch: &[i64], lhs_contracted: &[i64], rhs_batch: &[i64], rhs_contracted: &[i64]) -> DotAttrs {
        DotAttrs {
            lhs_batch_dims: Dims::from_slice(lhs_batch),
            lhs_contracting_dims: Dims::from_slice(lhs_contracted),
            rhs_batch_dims: Dims::from_slice(rhs_batch),
            rhs_contracting_dims: Dims::from_slice(rhs_contracted),
            ..DotAttrs::default()
        }
    }

    #[test]
    fn contracting_two_dims_is_one_product() {
        let form = find_gemm(
            &attrs(&[], &[0, 1], &[], &[0, 1]),
            &array(&[2, 64, 384], &[2, 1, 0]),
            &array(&[2, 64, 128], &[2, 1, 0]),
            &array(&[384, 128], &[1, 0]),
        );
        let form = form.expect("fits");
        assert_eq!((form.batch, form.mnk, form.loops.len()), (1, [384, 128, 128], 0));
        assert_eq!(form.matrices[0], MatrixStrides { batch: 0, row: 1, col: 384 });
        assert_eq!(form.matrices[1], MatrixStrides { batch: 0, row: 128, col: 1 });
    }

    #[test]
    fn split_batch_dims_are_looped_over_while_they_are_few() {
        let heads = |batch: i64| {
            find_gemm(
                &attrs(&[0, 2], &[3], &[0, 2], &[3]),
                &array(&[batch, 64, 4, 32], &[3, 2, 1, 0]),
                &array(&[batch, 64, 4, 32], &[3, 2, 1, 0]),
                &array(&[batch, 4, 64, 64], &[3, 2, 1, 0]),
            )
        };
        let form = heads(2).expect("fits");
        assert_eq!((form.batch, form.mnk), (4, [64, 64, 32]));
        assert_eq!(form.loops, [(2, [8192, 8192, 16384])]);
        assert_eq!(form.matrices[0], MatrixStrides { batch: 32, row: 128, col: 1 });
        let many = heads(32).expect("the larger batch dim is strided, heads are looped over");
        assert_eq!((many.batch, many.loops.len()), (32, 1));
        let form = find_gemm(
            &attrs(&[0, 2], &[3], &[0, 2], &[3]),
            &array(&[80, 64, 96, 32], &[3, 2, 1, 0]),
            &array(&[80, 64, 96, 32], &[3, 2, 1, 0]),
            &array(&[80, 96, 64, 64], &[3, 2, 1, 0]),
        );
        assert_eq!(form, None);
    }

    /// Queries in groups that share a key: `bqghc,bkgc->bgqhk`.
    #[test]
    fn rows_that_do_not_lie_as_one_dim_are_repeated_over() {
        let grouped = |queries: i64| {
            find_gemm(
                &attrs(&[0, 2], &[4], &[0, 2], &[3]),
                &array(&[4, queries, 8, 2, 128], &[4, 3, 2, 1, 0]),
                &array(&[4, 1024, 8, 128], &[3, 2, 1, 0]),
                &array(&[4, 8, queries, 2, 1024], &[4, 2, 3, 1, 0]),
            )
        };
        let form = grouped(1024).expect("fits");
        assert_eq!((form.batch, form.mnk), (8, [1024, 1024, 128]));
        let (b, h) = ((4, [1024 * 2048, 1024 * 1024, 16 * 1024 * 1024]), (2, [128, 0, 1024 * 1024]));
        assert_eq!(form.loops, [b, h]);
        assert_eq!(form.matrices[0], MatrixStrides { batch: 256, row: 2048, col: 1 });
        assert_eq!(grouped(64), None, "thin matrices are not worth it");
    }

    #[test]
    fn fitting_orders_always_fit() {
        let attrs = attrs(&[2, 0], &[4, 1], &[0, 3], &[1, 2]);
        let sizes = [[3i64, 5, 2, 7, 4].as_slice(), &[2, 4, 5, 3, 6], &[2, 3, 7, 6]];
        let (lhs, rhs) = (array(sizes[0], &[4, 3, 2, 1, 0]), array(sizes[1], &[4, 1, 3, 2, 0]));
        let dims = || DotDims::of(&attrs, 5, 5);
        for dims in [dims(), dims().contracting_as_in(0, &lhs), dims().contracting_as_in(1, &rhs)] {
            let orders = dims.fitting_orders();
            let laid = |i: usize| {
                let mut shape = ArrayShape::new(DType::F32, sizes[i].iter().copied());
                shape.layout = Some(Box::new(Layout::from_major_to_minor(orders[i].iter().copied())));
                shape
            };
            let form = find_gemm(&attrs, &laid(0), &laid(1), &laid(2)).expect("fits");
            assert_eq!((form.batch, form.mnk, form.loops.len()), (6, [7, 6, 20], 0));
        }
    }

    /// The gradient of keys that groups of queries share: only the queries are copied, the larger gradient of scores stays.
    #[test]
    fn an_array_whose_contracted_dims_lie_as_one_stays() {
        let attrs = attrs(&[0, 1], &[3, 4], &[0, 2], &[1, 3]);
        let scores = array(&[4, 8, 1024, 1024, 2], &[2, 3, 4, 1, 0]);
        let queries = array(&[4, 1024, 8, 2, 128], &[4, 3, 2, 1, 0]);
        let keys = array(&[4, 8, 1024, 128], &[3, 2, 1, 0]);
        assert_eq!(find_gemm(&attrs, &scores, &queries, &keys), None);
        let order = DotDims::of(&attrs, 5, 5).contracting_as_in(0, &scores).fitting_orders()[1].clone();
        let mut copied = queries;
        copied.layout = Some(Box::new(Layout::from_major_to_minor(order)));
        let form = find_gemm(&attrs, &scores, &copied, &keys).expect("fits");
        assert_eq!((form.batch, form.mnk, form.loops), (32, [1024, 128, 2048], Vec::new()));
    }
}
