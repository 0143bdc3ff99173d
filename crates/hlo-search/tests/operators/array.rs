//! Small dense arrays, and an array for each device.

use crate::number::Number;
use crate::random::Random;

/// Elements in row-major order.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Array<T> {
    pub(crate) dims: Vec<usize>,
    pub(crate) data: Vec<T>,
}

impl<T: Number> Array<T> {
    pub(crate) fn draw(dims: &[usize], random: &mut Random) -> Self {
        Self::from_fn(dims, |_| T::draw(random))
    }

    /// The array whose element at each index is that of `element`.
    pub(crate) fn from_fn(dims: &[usize], mut element: impl FnMut(&[usize]) -> T) -> Self {
        let data = (0..dims.iter().product()).map(|at| element(&index_of(at, dims))).collect();
        Self { dims: dims.to_vec(), data }
    }

    pub(crate) fn at(&self, index: &[usize]) -> T {
        self.data[index.iter().zip(&self.dims).fold(0, |at, (i, len)| at * len + i)]
    }

    /// The element, or zero outside.
    pub(crate) fn at_or_zero(&self, index: &[usize]) -> T {
        if index.iter().zip(&self.dims).all(|(i, len)| i < len) { self.at(index) } else { T::zero() }
    }

    pub(crate) fn map(&self, f: impl Fn(T) -> T) -> Self {
        Self { dims: self.dims.clone(), data: self.data.iter().map(|&x| f(x)).collect() }
    }

    /// Elementwise.
    pub(crate) fn zip(&self, other: &Self, f: impl Fn(T, T) -> T) -> Self {
        assert_eq!(self.dims, other.dims);
        Self { dims: self.dims.clone(), data: self.data.iter().zip(&other.data).map(|(&a, &b)| f(a, b)).collect() }
    }

    /// `len` places of a dim from `begin` on, with zeros outside.
    pub(crate) fn part(&self, dim: usize, begin: usize, len: usize) -> Self {
        let mut dims = self.dims.clone();
        dims[dim] = len;
        Self::from_fn(&dims, |index| {
            let mut index = index.to_vec();
            index[dim] += begin;
            self.at_or_zero(&index)
        })
    }

    /// All arrays, one behind the other in a dim, in which they have equal lengths.
    pub(crate) fn join(arrays: &[&Self], dim: usize) -> Self {
        let len = arrays[0].dims[dim];
        let mut dims = arrays[0].dims.clone();
        dims[dim] = len * arrays.len();
        Self::from_fn(&dims, |index| {
            let mut inner = index.to_vec();
            inner[dim] %= len;
            arrays[index[dim] / len].at(&inner)
        })
    }

    pub(crate) fn sum(arrays: &[&Self]) -> Self {
        arrays[1..].iter().fold(arrays[0].clone(), |sum, array| sum.zip(array, T::add))
    }

    /// The sum of the products of corresponding elements.
    pub(crate) fn inner_product(&self, other: &Self) -> T {
        self.zip(other, T::mul).data.iter().fold(T::zero(), |sum, &x| sum.add(x))
    }

    /// A dim folded away.
    pub(crate) fn fold(&self, dim: usize, f: impl Fn(T, T) -> T) -> Self {
        let mut dims = self.dims.clone();
        let len = dims.remove(dim);
        Self::from_fn(&dims, |index| {
            let place = |i: usize| {
                let mut full = index.to_vec();
                full.insert(dim, i);
                self.at(&full)
            };
            (1..len).fold(place(0), |folded, i| f(folded, place(i)))
        })
    }
}

/// The index of the element at a place of the row-major order.
pub(crate) fn index_of(mut at: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, len) in index.iter_mut().zip(dims).rev() {
        (*i, at) = (at % len, at / len);
    }
    index
}
