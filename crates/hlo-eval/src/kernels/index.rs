//! Row-major index arithmetic that kernels share: strides, element counts, odometers, moving elements of any type.

use hlo_ir::literal::{Buffer, element_count};
use hlo_ir::{Dims, Literal};

use crate::EvalError;

/// Elements that an array of these dims has; an error if a dim is negative or memory cannot hold them.
pub(crate) fn n_elems(dims: &[i64]) -> Result<usize, EvalError> {
    element_count(dims).ok_or_else(|| EvalError::invalid(format!("expected dims of an array, found {dims:?}")))
}

/// The row-major distance between two neighbours along each dim.
pub(crate) fn strides(dims: &[i64]) -> Vec<usize> {
    let mut out = vec![1usize; dims.len()];
    for i in (1..dims.len()).rev() {
        out[i - 1] = out[i].saturating_mul(dims[i].max(0) as usize);
    }
    out
}

/// Checks that every entry of `dims` names a dim below `rank`, and none twice.
pub(crate) fn check_dims(what: &str, dims: &[i64], rank: usize) -> Result<(), EvalError> {
    for (i, &dim) in dims.iter().enumerate() {
        if dim < 0 || dim >= rank as i64 || dims[..i].contains(&dim) {
            return Err(EvalError::invalid(format!("{what}: expected distinct dims below {rank}, found {dims:?}")));
        }
    }
    Ok(())
}

/// The dims below `rank` that no list names, ascending.
pub(crate) fn other_dims(rank: usize, lists: &[&[i64]]) -> Dims {
    (0..rank as i64).filter(|dim| lists.iter().all(|list| !list.contains(dim))).collect()
}

/// Offsets of all positions of a box with these sizes and strides, in row-major order of the box; empty if a size is
/// not positive.
pub(crate) fn offsets(sizes: &[i64], strides: &[usize]) -> Vec<usize> {
    let mut out = vec![0usize];
    for (&size, &stride) in sizes.iter().zip(strides) {
        let size = size.max(0) as usize;
        let mut next = Vec::with_capacity(out.len().saturating_mul(size));
        for &base in &out {
            next.extend((0..size).map(|i| base + i * stride));
        }
        out = next;
    }
    out
}

/// Advances a row-major odometer; false once it has run over.
pub(crate) fn advance(index: &mut [i64], sizes: &[i64]) -> bool {
    for (i, &size) in index.iter_mut().zip(sizes).rev() {
        *i += 1;
        if *i < size {
            return true;
        }
        *i = 0;
    }
    false
}

/// Runs `$body` with `$elems` bound to the typed vector of any buffer; a buffer of the vector that it gives.
macro_rules! with_elems {
    ($buffer:expr, $elems:ident => $body:expr) => {
        match $buffer {
            Buffer::Pred($elems) => Buffer::Pred($body),
            Buffer::S8($elems) => Buffer::S8($body),
            Buffer::S16($elems) => Buffer::S16($body),
            Buffer::S32($elems) => Buffer::S32($body),
            Buffer::S64($elems) => Buffer::S64($body),
            Buffer::U8($elems) => Buffer::U8($body),
            Buffer::U16($elems) => Buffer::U16($body),
            Buffer::U32($elems) => Buffer::U32($body),
            Buffer::U64($elems) => Buffer::U64($body),
            Buffer::F8($elems) => Buffer::F8($body),
            Buffer::F16($elems) => Buffer::F16($body),
            Buffer::BF16($elems) => Buffer::BF16($body),
            Buffer::F32($elems) => Buffer::F32($body),
            Buffer::F64($elems) => Buffer::F64($body),
            Buffer::C64($elems) => Buffer::C64($body),
            Buffer::C128($elems) => Buffer::C128($body),
        }
    };
}

pub(crate) use with_elems;

/// The array of `dims` whose elements stand at `from` in `source`; an error if one is out of range.
pub(crate) fn take(
    source: &Literal,
    dims: &[i64],
    from: impl Iterator<Item = usize> + Clone,
) -> Result<Literal, EvalError> {
    fn pick<T: Copy>(elems: &[T], from: impl Iterator<Item = usize>) -> Option<Vec<T>> {
        from.map(|i| elems.get(i).copied()).collect()
    }
    let missing = || EvalError::invalid("an element index is out of range");
    let data = with_elems!(source.data(), elems => pick(elems, from.clone()).ok_or_else(missing)?);
    literal(source.dtype(), dims, data)
}

/// [`Literal::new`] with this crate's error.
pub(crate) fn literal(dtype: hlo_ir::DType, dims: &[i64], data: Buffer) -> Result<Literal, EvalError> {
    Literal::new(dtype, dims, data).map_err(|error| EvalError::invalid(error.to_string()))
}

/// The array with its dims in another order: result dim `i` is operand dim `order[i]`.
pub(crate) fn transposed(operand: &Literal, order: &[i64]) -> Result<Literal, EvalError> {
    let rank = operand.dims().len();
    check_dims("transpose", order, rank)?;
    if order.len() != rank {
        return Err(EvalError::invalid(format!("expected {rank} dims, found {order:?}")));
    }
    if order.iter().enumerate().all(|(i, &dim)| i as i64 == dim) {
        return Ok(operand.clone());
    }
    let all = strides(operand.dims());
    let dims: Dims = order.iter().map(|&dim| operand.dims()[dim as usize]).collect();
    let steps: Vec<usize> = order.iter().map(|&dim| all[dim as usize]).collect();
    let Some((&inner, outer)) = dims.split_last() else { return Ok(operand.clone()) };
    let starts = offsets(outer, &steps[..outer.len()]);
    let step = steps[outer.len()];
    take(operand, &dims, starts.iter().flat_map(|&start| (0..inner.max(0) as usize).map(move |i| start + i * step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_twice_gives_the_operand_back() {
        let operand = Literal::from_elems(&[2, 3, 5], (0..30i32).collect()).unwrap();
        let turned = transposed(&operand, &[2, 0, 1]).unwrap();
        assert_eq!(turned.dims(), [5, 2, 3]);
        let at = |i: usize, j: usize, k: usize| turned.elems::<i32>().unwrap()[(k * 2 + i) * 3 + j];
        assert_eq!(at(1, 2, 4), 29);
        assert_eq!(at(1, 0, 3), 18);
        assert_eq!(transposed(&turned, &[1, 2, 0]).unwrap(), operand);
    }

    #[test]
    fn bad_dims_are_errors() {
        let operand = Literal::from_elems(&[2, 3], (0..6i32).collect()).unwrap();
        assert!(transposed(&operand, &[0, 0]).is_err());
        assert!(transposed(&operand, &[0]).is_err());
        assert!(transposed(&operand, &[0, 2]).is_err());
        assert!(n_elems(&[-1]).is_err());
    }

    #[test]
    fn odometer_visits_every_position_once() {
        let mut index = [0, 0];
        let mut seen = vec![index];
        while advance(&mut index, &[2, 3]) {
            seen.push(index);
        }
        assert_eq!(seen, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert_eq!(offsets(&[2, 3], &[10, 1]), [0, 1, 2, 10, 11, 12]);
        assert!(offsets(&[2, 0], &[10, 1]).is_empty());
    }
}
