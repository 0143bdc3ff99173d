//! Tiles of an array: cut out of it, freed of their padding, and joined to the whole.

use super::shape_ops::{check_rank, pad, slice};
use super::strided::{View, read, row_major_strides, write};
use super::typed::zip_elems;
use crate::error::EvalError;
use hlo_ir::attrs::{PadDim, SliceDim};
use hlo_ir::literal::Buffer;
use hlo_ir::{ArrayShape, DType, Literal, NumberClass, Scalar};
use std::sync::Arc;

/// What stands behind the last elements of a tile that reaches over the end: NaN, 77 or true. A program that lets padding into a
/// result shows it.
pub(crate) fn padding(dtype: DType) -> Literal {
    let value = match dtype.class() {
        NumberClass::Pred => Scalar::Pred(true),
        NumberClass::Signed | NumberClass::Unsigned => Scalar::Int(77),
        NumberClass::Float => Scalar::Float(f64::NAN),
        NumberClass::Complex => Scalar::Complex(f64::NAN, f64::NAN),
    };
    Literal::scalar(dtype, value)
}

/// The tile of `sizes` elements that begins at `start`, of which the first `held` along each dim lie in `whole`.
pub(crate) fn cut_tile(
    whole: &Arc<Literal>,
    start: &[i64],
    held: &[i64],
    sizes: &[i64],
) -> Result<Arc<Literal>, EvalError> {
    check_rank("tile dims", whole.dims().len(), sizes.len())?;
    let tile = if whole.dims() == held { Arc::clone(whole) } else { Arc::new(part(whole, start, held)?) };
    if held == sizes {
        return Ok(tile);
    }
    let behind = sizes.iter().zip(held).map(|(&size, &n)| PadDim { low: 0, high: size - n, interior: 0 });
    let behind: Vec<PadDim> = behind.collect();
    let result = ArrayShape::new(whole.dtype(), sizes.iter().copied());
    Ok(Arc::new(pad(&tile, &padding(whole.dtype()), &behind, &result)?))
}

/// The first `held` elements along each dim of a tile: what is no padding.
pub(crate) fn held_part(tile: &Arc<Literal>, held: &[i64]) -> Result<Arc<Literal>, EvalError> {
    if tile.dims() == held {
        return Ok(Arc::clone(tile));
    }
    Ok(Arc::new(part(tile, &vec![0; held.len()], held)?))
}

fn part(x: &Literal, start: &[i64], sizes: &[i64]) -> Result<Literal, EvalError> {
    let result = ArrayShape::new(x.dtype(), sizes.iter().copied());
    if sizes.contains(&0) {
        return Ok(Literal::zeros(x.dtype(), &result.dims)?);
    }
    let ranges = start.iter().zip(sizes).map(|(&at, &size)| SliceDim { start: at, limit: at + size, stride: 1 });
    slice(x, &ranges.collect::<Vec<_>>(), &result)
}

/// The array of `dims` of which `tiles`, each with the place of its first element, hold all elements.
pub(crate) fn join_tiles(tiles: &[(Vec<i64>, Arc<Literal>)], dims: &[i64]) -> Result<Arc<Literal>, EvalError> {
    let (_, first) = tiles.first().ok_or_else(|| EvalError::invalid("expected tiles to join, found none"))?;
    if first.dims() == dims {
        return Ok(Arc::clone(first));
    }
    let strides = row_major_strides(dims);
    let dtype = first.dtype();
    let mut data = Literal::zeros(dtype, dims)?.into_data();
    for (start, tile) in tiles {
        check_rank("tile dims", dims.len(), tile.dims().len())?;
        let mut to = View::whole(tile.dims());
        to.strides.clone_from(&strides);
        to.offset = start.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        if tile.n_elems() > 0 {
            data = placed(data, tile, &to)?;
        }
    }
    Ok(Arc::new(Literal::new(dtype, dims, data)?))
}

fn placed(data: Buffer, tile: &Literal, to: &View) -> Result<Buffer, EvalError> {
    zip_elems!(data, tile.data(), (elems, from) => {
        let mut elems = elems;
        write(&mut elems, to, &read(from, &View::whole(tile.dims()))?)?;
        elems
    })
}

/// The first element in which two arrays of the same dims differ.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ElementPair {
    /// One number for each dim.
    pub index: Vec<i64>,
    pub one: String,
    pub other: String,
}

/// The first element in which two arrays of the same dims differ. NaN is no other than NaN.
pub(crate) fn first_difference(a: &Literal, b: &Literal) -> Option<ElementPair> {
    let is_nan = |x: Scalar| matches!(x, Scalar::Float(v) if v.is_nan());
    (0..a.n_elems()).find_map(|flat| {
        let (x, y) = (a.get(flat)?, b.get(flat)?);
        if x == y || (is_nan(x) && is_nan(y)) {
            return None;
        }
        let mut rest = flat as i64;
        let mut at = vec![0; a.dims().len()];
        for (slot, &dim) in at.iter_mut().zip(a.dims()).rev() {
            *slot = rest % dim.max(1);
            rest /= dim.max(1);
        }
        Some(ElementPair { index: at, one: shown(x), other: shown(y) })
    })
}

fn shown(scalar: Scalar) -> String {
    match scalar {
        Scalar::Pred(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Uint(value) => value.to_string(),
        Scalar::Float(value) => value.to_string(),
        Scalar::Complex(re, im) => format!("({re}, {im})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Arc<Literal> {
        Arc::new(Literal::from_elems(&[3, 4], (0..12).map(|i| i as f32).collect()).unwrap())
    }

    #[test]
    fn tiles_are_cut_padded_and_joined() {
        let whole = matrix();
        let tile = cut_tile(&whole, &[2, 2], &[1, 2], &[2, 2]).unwrap();
        let elems = tile.elems::<f32>().unwrap();
        assert_eq!(&elems[..2], [10.0, 11.0]);
        assert!(elems[2].is_nan() && elems[3].is_nan(), "{elems:?}");
        let mut tiles = Vec::new();
        for row in [0, 2] {
            for column in [0, 2] {
                let held = [(3 - row).min(2), 2];
                let tile = cut_tile(&whole, &[row, column], &held, &[2, 2]).unwrap();
                tiles.push((vec![row, column], held_part(&tile, &held).unwrap()));
            }
        }
        assert_eq!(*join_tiles(&tiles, &[3, 4]).unwrap(), *whole);
    }

    #[test]
    fn a_tile_may_hold_nothing() {
        // A dim of 5 in four tiles of two: the last holds nothing.
        let whole = Arc::new(Literal::from_elems(&[5], vec![1i32, 2, 3, 4, 5]).unwrap());
        let tile = cut_tile(&whole, &[6], &[0], &[2]).unwrap();
        assert_eq!(tile.elems::<i32>().unwrap(), [77, 77]);
        assert_eq!(held_part(&tile, &[0]).unwrap().n_elems(), 0);
    }

    #[test]
    fn nan_is_no_difference() {
        let of = |elems: [f32; 3]| Literal::from_elems(&[3], elems.to_vec()).unwrap();
        let (a, b) = (of([1.0, f32::NAN, 2.0]), of([1.0, f32::NAN, 3.0]));
        assert_eq!(first_difference(&a, &a), None);
        assert_eq!(first_difference(&a, &b), Some(ElementPair { index: vec![2], one: "2".into(), other: "3".into() }));
    }
}
