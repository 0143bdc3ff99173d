//! Copies between a packed array and a strided view of another: the one loop behind transposes, slices, broadcasts,
//! pads and concatenations.

use crate::error::EvalError;
use smallvec::SmallVec;

/// Strides or sizes of a view.
pub(crate) type Extents<T> = SmallVec<[T; 6]>;

/// A rectangular set of places in a flat array.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Place of the element with all indices 0.
    pub offset: i64,
    /// Size of each dim, outermost first.
    pub dims: Extents<usize>,
    /// Distance between neighbours along each dim.
    pub strides: Extents<i64>,
}

/// Row-major strides of an array with `dims`, in elements.
pub(crate) fn row_major_strides(dims: &[i64]) -> Extents<i64> {
    let mut strides: Extents<i64> = SmallVec::from_elem(1, dims.len());
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(dims[i].max(1));
    }
    strides
}

impl View {
    /// The whole of an array with `dims`.
    pub(crate) fn whole(dims: &[i64]) -> View {
        View { offset: 0, dims: dims.iter().map(|&d| d.max(0) as usize).collect(), strides: row_major_strides(dims) }
    }

    /// Number of places.
    pub(crate) fn n_elems(&self) -> usize {
        self.dims.iter().product()
    }

    /// The same places in the same order with as few dims as possible.
    fn merged(&self) -> View {
        let mut out = View { offset: self.offset, ..View::default() };
        for (&n, &stride) in self.dims.iter().zip(&self.strides) {
            if n == 1 {
                continue;
            }
            match (out.dims.last_mut(), out.strides.last_mut()) {
                (Some(last_n), Some(last_stride)) if *last_stride == stride * n as i64 => {
                    *last_n *= n;
                    *last_stride = stride;
                }
                _ => {
                    out.dims.push(n);
                    out.strides.push(stride);
                }
            }
        }
        if out.dims.is_empty() {
            out.dims.push(1);
            out.strides.push(1);
        }
        out
    }

    /// Checks that every place lies in an array of `len` elements.
    fn check_within(&self, len: usize) -> Result<(), EvalError> {
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (&n, &stride) in self.dims.iter().zip(&self.strides) {
            let reach = (n as i128 - 1) * i128::from(stride);
            low += reach.min(0);
            high += reach.max(0);
        }
        if low < 0 || high >= len as i128 {
            return Err(EvalError::invalid(format!("expected places 0..{len} of an array, found {low}..={high}")));
        }
        Ok(())
    }

    /// Calls `row(start)` for every combination of the indices of all dims but the last `n_inner`.
    fn for_each_row(&self, n_inner: usize, mut row: impl FnMut(i64)) {
        let n_outer = self.dims.len().saturating_sub(n_inner);
        let mut counter: Extents<usize> = SmallVec::from_elem(0, n_outer);
        let mut place = self.offset;
        loop {
            row(place);
            let mut k = n_outer;
            loop {
                if k == 0 {
                    return;
                }
                k -= 1;
                counter[k] += 1;
                place += self.strides[k];
                if counter[k] < self.dims[k] {
                    break;
                }
                place -= self.strides[k] * self.dims[k] as i64;
                counter[k] = 0;
            }
        }
    }
}

/// Side of the square blocks in which two dims are exchanged, so that both sides stay in the cache.
const BLOCK: usize = 32;

/// The elements of `src` at the places of `view`, packed.
pub(crate) fn read<T: Copy>(src: &[T], view: &View) -> Result<Vec<T>, EvalError> {
    let n_elems = view.n_elems();
    if n_elems == 0 {
        return Ok(Vec::new());
    }
    let view = view.merged();
    view.check_within(src.len())?;
    let rank = view.dims.len();
    let (n, stride) = (view.dims[rank - 1], view.strides[rank - 1]);
    let mut out = Vec::with_capacity(n_elems);
    match stride {
        1 => view.for_each_row(1, |at| out.extend_from_slice(&src[at as usize..at as usize + n])),
        0 => view.for_each_row(1, |at| out.resize(out.len() + n, src[at as usize])),
        _ if rank >= 2 && n >= 4 && view.dims[rank - 2] >= 4 => {
            out.resize(n_elems, src[0]);
            let (n_rows, row_stride) = (view.dims[rank - 2], view.strides[rank - 2]);
            let mut tiles = out.chunks_exact_mut(n_rows * n);
            view.for_each_row(2, |at| {
                if let Some(tile) = tiles.next() {
                    read_blocked(src, at, (n_rows, row_stride), (n, stride), tile);
                }
            });
        }
        _ => view.for_each_row(1, |at| out.extend((0..n as i64).map(|i| src[(at + i * stride) as usize]))),
    }
    Ok(out)
}

fn read_blocked<T: Copy>(src: &[T], at: i64, rows: (usize, i64), cols: (usize, i64), out: &mut [T]) {
    for row_block in (0..rows.0).step_by(BLOCK) {
        for col_block in (0..cols.0).step_by(BLOCK) {
            for row in row_block..(row_block + BLOCK).min(rows.0) {
                let start = at + row as i64 * rows.1;
                let to = &mut out[row * cols.0..(row + 1) * cols.0];
                for (col, slot) in to.iter_mut().enumerate().take((col_block + BLOCK).min(cols.0)).skip(col_block) {
                    *slot = src[(start + col as i64 * cols.1) as usize];
                }
            }
        }
    }
}

/// Stores the packed `src` at the places of `view` in `dst`.
pub(crate) fn write<T: Copy>(dst: &mut [T], view: &View, src: &[T]) -> Result<(), EvalError> {
    if view.n_elems() != src.len() {
        let text = format!("expected {} elements to store, found {}", view.n_elems(), src.len());
        return Err(EvalError::invalid(text));
    }
    if src.is_empty() {
        return Ok(());
    }
    let view = view.merged();
    view.check_within(dst.len())?;
    let rank = view.dims.len();
    let (n, stride) = (view.dims[rank - 1], view.strides[rank - 1]);
    let mut rows = src.chunks_exact(n);
    view.for_each_row(1, |at| {
        let Some(row) = rows.next() else { return };
        if stride == 1 {
            dst[at as usize..at as usize + n].copy_from_slice(row);
        } else {
            for (i, &x) in row.iter().enumerate() {
                dst[(at + i as i64 * stride) as usize] = x;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(offset: i64, dims: &[usize], strides: &[i64]) -> View {
        View { offset, dims: dims.iter().copied().collect(), strides: strides.iter().copied().collect() }
    }

    /// The obvious twin of [`read`].
    fn read_slowly(src: &[u32], view: &View) -> Vec<u32> {
        (0..view.n_elems())
            .map(|flat| {
                let (mut rest, mut at) = (flat, view.offset);
                for k in (0..view.dims.len()).rev() {
                    at += (rest % view.dims[k]) as i64 * view.strides[k];
                    rest /= view.dims[k];
                }
                src[at as usize]
            })
            .collect()
    }

    #[test]
    fn reads_and_writes_agree_with_the_obvious_loop() {
        let src: Vec<u32> = (0..5000).collect();
        for v in [
            view(0, &[], &[]),
            view(7, &[3, 1, 4], &[100, 5, 1]),
            view(4999, &[2, 3, 4], &[-12, -4, -1]),
            view(3, &[40, 50], &[1, 41]),
            view(0, &[3, 40, 50], &[1, 3, 97]),
            view(2, &[5, 6], &[0, 1]),
            view(2, &[5, 6], &[1, 0]),
            view(2, &[2, 2, 2, 2, 2, 2, 2], &[1, 2, 4, 8, 16, 32, 64]),
            view(9, &[2, 0], &[9, 9]),
        ] {
            let want = read_slowly(&src, &v);
            assert_eq!(read(&src, &v).unwrap(), want, "{v:?}");
            if v.strides.contains(&0) {
                continue;
            }
            let mut dst = vec![0u32; 5000];
            write(&mut dst, &v, &want).unwrap();
            assert_eq!(read_slowly(&dst, &v), want, "{v:?}");
        }
        assert!(read(&src, &view(4999, &[2], &[1])).is_err());
        assert!(read(&src, &view(0, &[2], &[-1])).is_err());
        assert!(write(&mut [0u32; 4], &view(0, &[2], &[4]), &[1, 2]).is_err());
    }
}
