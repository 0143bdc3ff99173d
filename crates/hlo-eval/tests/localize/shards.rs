//! Arrays cut into shards, with garbage where a shard has padding, and joined again.

use hlo_ir::factors::{FactorUse, TensorFactors};
use hlo_ir::{DType, Literal, Scalar};

/// For each dim of a shard, for each index: the index in the whole array, or none for padding.
pub(crate) type Places = Vec<Vec<Option<i64>>>;

/// Which shard a device holds: by factor, the number of shards and the number of the device's own.
#[derive(Clone)]
pub(crate) struct Shard {
    pub n_shards: Vec<i64>,
    pub at: Vec<i64>,
}

impl Shard {
    /// The shards of all devices, those of the last factor next to each other.
    pub(crate) fn of_all_devices(n_shards: &[i64]) -> Vec<Shard> {
        let n: i64 = n_shards.iter().product();
        (0..n as usize).map(|device| Shard { n_shards: n_shards.to_vec(), at: coordinates(n_shards, device) }).collect()
    }
}

pub(crate) fn tile(size: i64, n: i64) -> i64 {
    (size + n - 1) / n
}

/// Where the indices of a dim that is the product of `uses` come from.
fn places_of_dim(uses: &[FactorUse], cut: &Shard) -> Vec<Option<i64>> {
    let local = |one: &FactorUse| tile(one.size, cut.n_shards[one.factor]);
    let n_local: i64 = uses.iter().map(local).product();
    let place = |index: i64| {
        let (mut rest, mut minor, mut whole) = (index, 1, 0);
        for one in uses.iter().rev() {
            let n = local(one);
            let at = rest % n + cut.at[one.factor] * n;
            if at >= one.size {
                return None;
            }
            (rest, whole, minor) = (rest / n, whole + at * minor, minor * one.size);
        }
        Some(whole)
    };
    (0..n_local).map(place).collect()
}

/// Where the elements of a shard of a tensor come from.
pub(crate) fn places(tensor: &TensorFactors, cut: &Shard) -> Places {
    tensor.iter().map(|uses| places_of_dim(uses, cut)).collect()
}

/// Calls `visit(linear index in the shard, linear index in the whole)` on all elements of a shard.
fn for_each_element(whole_dims: &[i64], places: &Places, visit: &mut dyn FnMut(usize, Option<usize>)) {
    let n: usize = places.iter().map(Vec::len).product();
    for at in 0..n {
        let (mut rest, mut minor, mut from) = (at, 1i64, Some(0i64));
        for (dim, indices) in places.iter().enumerate().rev() {
            let index = indices[rest % indices.len()];
            rest /= indices.len();
            from = from.zip(index).map(|(from, index)| from + index * minor);
            minor *= whole_dims[dim];
        }
        visit(at, from.map(|from| from as usize));
    }
}

/// The elements at `places`; `fill` where there are none.
pub(crate) fn take(whole: &Literal, places: &Places, fill: Scalar) -> Literal {
    let dims: Vec<i64> = places.iter().map(|p| p.len() as i64).collect();
    let mut part = Literal::splat(whole.dtype(), &dims, fill).expect("a part fits");
    for_each_element(whole.dims(), places, &mut |to, from| {
        if let Some(from) = from {
            part.set(to, whole.get(from).expect("an index in range"));
        }
    });
    part
}

/// Writes the elements of a shard, without its padding, to their places.
pub(crate) fn put(whole: &mut Literal, part: &Literal, places: &Places) {
    let dims = whole.dims().to_vec();
    for_each_element(&dims, places, &mut |from, to| {
        if let Some(to) = to {
            whole.set(to, part.get(from).expect("an index in range"));
        }
    });
}

/// Whether a shard, without its padding, holds what the whole holds at its places.
pub(crate) fn agrees(whole: &Literal, part: &Literal, places: &Places) -> bool {
    let mut is_same = true;
    for_each_element(whole.dims(), places, &mut |from, to| {
        if let Some(to) = to {
            is_same &= format!("{:?}", whole.get(to)) == format!("{:?}", part.get(from));
        }
    });
    is_same
}

/// What stands in padding: not a number, or a number that no sample has.
pub(crate) fn garbage(dtype: DType) -> Scalar {
    match dtype {
        DType::Pred => Scalar::Pred(true),
        d if d.is_integer() => Scalar::Int(99),
        d if d.is_complex() => Scalar::Complex(f64::NAN, f64::NAN),
        _ => Scalar::Float(f64::NAN),
    }
}

/// The coordinates of a linear index.
pub(crate) fn coordinates(dims: &[i64], linear: usize) -> Vec<i64> {
    let mut rest = linear as i64;
    let mut at: Vec<i64> = dims.iter().rev().map(|&n| (rest % n, rest /= n).0).collect();
    at.reverse();
    at
}

/// The linear index of coordinates.
pub(crate) fn linear(dims: &[i64], at: &[i64]) -> usize {
    dims.iter().zip(at).fold(0, |sum, (n, i)| sum * n + i) as usize
}
