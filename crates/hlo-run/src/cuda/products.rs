//! Matrix products as the library wants them: matrices stored column by column, perhaps transposed.
//!
//! A row-major matrix is the column-major matrix of its transpose. A product whose output is row-major is computed as
//! `outputᵀ = rhsᵀ × lhsᵀ`, so that the output is always stored column by column.

use hlo_gpu::plan::{BufferId, Gemm, Matrix};

/// A matrix in memory, column by column.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Columns {
    /// The elements.
    pub buffer: BufferId,
    pub rows: u64,
    pub cols: u64,
    /// Elements from one column to the next.
    pub leading: u64,
    /// Elements from one matrix of the batch to the next, and from one batch to the next.
    pub batch_stride: u64,
    pub outer_stride: u64,
    /// Whether the product takes the transpose.
    pub is_transposed: bool,
}

/// `d = a × b` for each matrix of a batch; `a` and `b` transposed where they say so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Product {
    pub a: Columns,
    pub b: Columns,
    pub d: Columns,
    pub batch: u64,
    pub outer_batch: u64,
    /// Whether f32 elements may be rounded to TF32 before they are multiplied.
    pub uses_tf32: bool,
}

/// A view of `rows` × `cols` as a column-major matrix: itself, or its transpose.
fn stored(view: &Matrix, rows: u64, cols: u64) -> Option<Columns> {
    let Matrix { buffer, batch_stride_elems: batch_stride, outer_stride_elems: outer_stride, .. } = *view;
    let Matrix { row_stride_elems, col_stride_elems, .. } = *view;
    // The stride of a dim of one element says nothing.
    let by_columns = (row_stride_elems == 1 || rows == 1) && (col_stride_elems >= rows || cols == 1);
    if by_columns {
        let leading = if cols == 1 { rows } else { col_stride_elems };
        return Some(Columns { buffer, rows, cols, leading, batch_stride, outer_stride, is_transposed: false });
    }
    let by_rows = (col_stride_elems == 1 || cols == 1) && (row_stride_elems >= cols || rows == 1);
    let leading = if rows == 1 { cols } else { row_stride_elems };
    by_rows.then_some(Columns {
        buffer,
        rows: cols,
        cols: rows,
        leading,
        batch_stride,
        outer_stride,
        is_transposed: true,
    })
}

/// A plan's product; `None` if a view has no inner stride of 1, or rows that overlap.
pub(crate) fn product(gemm: &Gemm) -> Option<Product> {
    let lhs = stored(&gemm.lhs, gemm.m, gemm.k)?;
    let rhs = stored(&gemm.rhs, gemm.k, gemm.n)?;
    let output = stored(&gemm.output, gemm.m, gemm.n)?;
    let flipped = |matrix: Columns| Columns { is_transposed: !matrix.is_transposed, ..matrix };
    let (batch, outer_batch, uses_tf32) = (gemm.batch, gemm.outer_batch, gemm.uses_tf32);
    Some(if output.is_transposed {
        let d = Columns { is_transposed: false, ..output };
        Product { a: flipped(rhs), b: flipped(lhs), d, batch, outer_batch, uses_tf32 }
    } else {
        Product { a: lhs, b: rhs, d: output, batch, outer_batch, uses_tf32 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;

    fn at(view: &Matrix, batch: u64, row: u64, col: u64) -> usize {
        (batch * view.batch_stride_elems + row * view.row_stride_elems + col * view.col_stride_elems) as usize
    }

    /// What the library computes, as its manual says it.
    fn multiply(p: &Product, inputs: [&[i64]; 2], d: &mut [i64]) {
        let get = |m: &Columns, batch: u64, row: u64, col: u64| {
            let (row, col) = if m.is_transposed { (col, row) } else { (row, col) };
            assert!(row < m.rows && col < m.cols && m.leading >= m.rows);
            inputs[m.buffer.index()][(batch * m.batch_stride + col * m.leading + row) as usize]
        };
        let inner = if p.a.is_transposed { p.a.rows } else { p.a.cols };
        assert_eq!(inner, if p.b.is_transposed { p.b.cols } else { p.b.rows });
        for batch in 0..p.batch {
            for (row, col) in (0..p.d.rows).flat_map(|row| (0..p.d.cols).map(move |col| (row, col))) {
                let sum = (0..inner).map(|k| get(&p.a, batch, row, k) * get(&p.b, batch, k, col)).sum();
                d[(batch * p.d.batch_stride + col * p.d.leading + row) as usize] = sum;
            }
        }
    }

    /// Row-major or column-major, with some room between rows or columns.
    fn view(buffer: usize, rows: u64, cols: u64, by_rows: bool, room: u64) -> Matrix {
        let (row_stride_elems, col_stride_elems) = if by_rows { (cols + room, 1) } else { (1, rows + room) };
        let batch_stride_elems = (rows + room) * (cols + room);
        let outer_stride_elems = 0;
        let buffer = BufferId::new(buffer);
        Matrix { buffer, batch_stride_elems, outer_stride_elems, row_stride_elems, col_stride_elems }
    }

    #[test]
    fn all_orders_give_the_product() {
        for (m, n, k) in [(2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 5), (1, 1, 1)] {
            for (form, room) in (0..8).flat_map(|form| [(form, 0), (form, 2)]) {
                let lhs = view(0, m, k, form & 1 > 0, room);
                let rhs = view(1, k, n, form & 2 > 0, room);
                let output = view(2, m, n, form & 4 > 0, room);
                let gemm = Gemm { lhs, rhs, output, batch: 2, outer_batch: 1, m, n, k, uses_tf32: false };
                let (a, b): (Vec<i64>, Vec<i64>) =
                    ((0..200).map(|i| i * 7 % 31).collect(), (0..200).map(|i| i * 5 % 29).collect());
                let mut found = vec![-1; 200];
                multiply(&product(&gemm).unwrap(), [&a, &b], &mut found);
                let mut expected = vec![-1; 200];
                for batch in 0..2 {
                    for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
                        let term = |i| a[at(&lhs, batch, row, i)] * b[at(&rhs, batch, i, col)];
                        expected[at(&output, batch, row, col)] = (0..k).map(term).sum();
                    }
                }
                assert_eq!(found, expected, "{m} {n} {k}, form {form}, room {room}");
            }
        }
    }

    #[test]
    fn a_product_is_rounded_where_the_plan_says_so() {
        let square = |buffer| view(buffer, 4, 4, true, 0);
        let gemm = Gemm {
            lhs: square(0),
            rhs: square(1),
            output: square(2),
            batch: 1,
            outer_batch: 1,
            m: 4,
            n: 4,
            k: 4,
            uses_tf32: true,
        };
        assert!(product(&gemm).unwrap().uses_tf32);
        // What is kept ready for the one is not taken for the other.
        assert_ne!(product(&gemm), product(&Gemm { uses_tf32: false, ..gemm }));
    }

    #[test]
    fn views_that_no_library_takes_are_refused() {
        let good = view(0, 4, 4, true, 0);
        let strided = Matrix { col_stride_elems: 2, row_stride_elems: 8, ..good };
        let overlapping = Matrix { row_stride_elems: 2, ..good };
        for lhs in [strided, overlapping] {
            assert_eq!(
                product(&Gemm {
                    lhs,
                    rhs: good,
                    output: good,
                    batch: 1,
                    outer_batch: 1,
                    m: 4,
                    n: 4,
                    k: 4,
                    uses_tf32: false
                }),
                None
            );
        }
    }
}
