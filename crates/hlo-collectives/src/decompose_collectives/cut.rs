//! How an array is cut into the chunks that a program deals out.
//!
//! The scattered dim is the outermost one in memory, so that a chunk is contiguous. Where it does not divide, an array is flattened
//! in the order of memory, which moves nothing, and padded by less than a row of chunks; one with tiles is padded along that dim.

use hlo_cluster::Collective;
use hlo_cluster::reduction::chunk_order::ArrayStep;
use hlo_ir::ArrayShape;
use hlo_ir::shape::DimOrder;

/// The form in which a program sees an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkedForm {
    /// The array as the program sees it, padding included.
    pub padded: ArrayShape,
    /// The same without padding.
    pub bare: ArrayShape,
    /// The scattered dim.
    pub dim: usize,
    /// Of an array that is flattened: its dims from the outermost in memory to the innermost.
    pub major_to_minor: Option<DimOrder>,
}

impl ChunkedForm {
    /// The cut of `shape` into `n_parts` equal parts.
    pub fn new(shape: &ArrayShape, n_parts: usize) -> ChunkedForm {
        let n_parts = (n_parts as i64).max(1);
        let dim = outermost(shape);
        let size = shape.dims.get(dim).copied().unwrap_or(1);
        if n_parts == 1 || (shape.rank() > 0 && size % n_parts == 0) {
            return ChunkedForm::along(shape.clone(), dim);
        }
        let major_to_minor = order_in_memory(shape);
        let (bare, dim) = match major_to_minor {
            Some(_) => (flat(shape), 0),
            None => (shape.clone(), dim),
        };
        let mut padded = bare.clone();
        if let Some(size) = padded.dims.get_mut(dim) {
            *size = size.saturating_add((n_parts - *size % n_parts) % n_parts);
        }
        ChunkedForm { padded, bare, dim, major_to_minor }
    }

    /// An array that divides along a dim.
    pub fn along(shape: ArrayShape, dim: usize) -> ChunkedForm {
        ChunkedForm { padded: shape.clone(), bare: shape, dim, major_to_minor: None }
    }

    /// Elements along the scattered dim, padding included.
    pub fn size(&self) -> i64 {
        self.padded.dims.get(self.dim).copied().unwrap_or(1)
    }

    /// Elements of padding along the scattered dim.
    pub fn padding(&self) -> i64 {
        self.size() - self.bare.dims.get(self.dim).copied().unwrap_or(1)
    }

    /// ` (padded from 3 to 8 elements)`, or nothing.
    pub(crate) fn told_padding(&self) -> String {
        let (bare, padded) = (self.bare.n_elems(), self.padded.n_elems());
        if bare == padded { String::new() } else { format!(" (padded from {bare} to {padded} elements)") }
    }

    /// The shape with `size` elements along the scattered dim.
    pub fn part(&self, size: i64) -> ArrayShape {
        let mut shape = self.padded.clone();
        shape.dims.get_mut(self.dim).into_iter().for_each(|d| *d = size);
        shape
    }
}

/// Into how many equal parts the scattered dim must divide for a program over `n_chunks`: less than that where no step scatters over
/// some factor.
pub fn n_parts(n_chunks: usize, steps: &[ArrayStep]) -> usize {
    let n_chunks = n_chunks.max(1);
    let (mut held, mut n_parts) = (n_chunks, 1);
    for step in steps {
        let border = match step {
            ArrayStep::Collective { collective, groups } => {
                let n = groups.first().map_or(1, Vec::len);
                held = match collective {
                    Collective::ReduceScatter => held / n.max(1),
                    Collective::AllGather => held * n,
                    Collective::AllReduce | Collective::Reduce | Collective::Broadcast => held,
                };
                held
            }
            ArrayStep::Reorder { order } => runs(order).into_iter().fold(0, |g, (start, n)| gcd(gcd(g, start), n)),
        };
        let parts = n_chunks / gcd(border, n_chunks);
        n_parts = n_parts / gcd(n_parts, parts) * parts;
    }
    n_parts
}

/// `(start, length)` of the consecutive pieces of a permutation.
pub fn runs(order: &[usize]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &from in order {
        match runs.last_mut() {
            Some((start, n)) if *start + *n == from => *n += 1,
            Some(_) | None => runs.push((from, 1)),
        }
    }
    runs
}

/// Positive if one of both is.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The outermost dim in memory that has more than one element.
fn outermost(shape: &ArrayShape) -> usize {
    let is_long = |dim: &usize| shape.dims.get(*dim).is_some_and(|&size| size > 1);
    let dims = shape.major_to_minor();
    dims.iter().copied().find(is_long).or(dims.first().copied()).unwrap_or(0)
}

/// The dims from the outermost in memory to the innermost; none for a layout that is more than an order.
pub(crate) fn order_in_memory(shape: &ArrayShape) -> Option<DimOrder> {
    let is_plain = shape.layout.as_ref().is_none_or(|layout| layout.is_only_an_order());
    is_plain.then(|| shape.major_to_minor())
}

fn flat(shape: &ArrayShape) -> ArrayShape {
    let flat = ArrayShape::new(shape.dtype, [shape.n_elems() as i64]);
    // A scalar never has a layout: what it becomes has.
    if shape.layout.is_some() || shape.rank() == 0 { flat.with_row_major() } else { flat }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::DType;
    use hlo_ir::shape::{Dims, Layout};

    fn cut(dims: &[i64], minor_to_major: &[i64], n: usize) -> (Vec<i64>, usize, i64) {
        let mut shape = ArrayShape::new(DType::F32, dims.iter().copied());
        shape.layout = Some(Box::new(Layout::new(Dims::from_slice(minor_to_major))));
        let cut = ChunkedForm::new(&shape, n);
        (cut.padded.dims.to_vec(), cut.dim, cut.padding())
    }

    #[test]
    fn cuts_along_memory() {
        assert_eq!(cut(&[8, 6], &[1, 0], 4), (vec![8, 6], 0, 0));
        assert_eq!(cut(&[8, 6], &[0, 1], 2), (vec![8, 6], 1, 0));
        assert_eq!(cut(&[1, 8], &[1, 0], 4), (vec![1, 8], 1, 0));
        assert_eq!(cut(&[6, 6], &[1, 0], 4), (vec![36], 0, 0));
        assert_eq!(cut(&[5, 3], &[1, 0], 4), (vec![16], 0, 1));
        assert_eq!(cut(&[5, 3], &[0, 1], 4), (vec![16], 0, 1));
        assert_eq!(cut(&[], &[], 4), (vec![4], 0, 3));
        assert_eq!(cut(&[5, 3], &[0, 1], 1), (vec![5, 3], 1, 0));
    }

    #[test]
    fn parts_of_programs() {
        let step = |collective, n| ArrayStep::Collective { collective, groups: vec![(0..n).collect()] };
        let scatter = |n| step(Collective::ReduceScatter, n);
        assert_eq!(n_parts(8, &[scatter(4), step(Collective::AllReduce, 2), step(Collective::AllGather, 4)]), 4);
        assert_eq!(n_parts(8, &[scatter(4), scatter(2), step(Collective::AllGather, 8)]), 8);
        assert_eq!(n_parts(8, &[step(Collective::AllReduce, 8)]), 1);
        assert_eq!(n_parts(6, &[scatter(2), step(Collective::AllGather, 2), scatter(3)]), 6);
        assert_eq!(n_parts(8, &[ArrayStep::Reorder { order: vec![0, 1, 4, 5, 2, 3, 6, 7] }]), 4);
    }
}
