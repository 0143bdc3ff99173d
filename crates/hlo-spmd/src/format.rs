//! Sharding formats: which dims of an array are merged into one, how far that is padded, and into how many shards it is cut.
//!
//! A *run* is a group of consecutive dims. A trivial reshape merges it into one dim, which is padded at its end and cut into equal
//! shards (Xu et al. 2020, §4.1).

use hlo_ir::shape::{Dims, Layout};
use hlo_ir::{ArrayShape, Shape};
use std::fmt;

/// Consecutive dims that are merged and cut as one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DimRun {
    /// First dim.
    pub start: usize,
    /// Number of dims, at least one.
    pub len: usize,
    /// Elements of the run that stay together: every shard has a multiple of it.
    pub unit: i64,
}

impl DimRun {
    /// One dim.
    pub fn dim(start: usize) -> DimRun {
        DimRun::of(start, 1)
    }

    /// Consecutive dims, cut anywhere.
    pub fn of(start: usize, len: usize) -> DimRun {
        DimRun { start, len, unit: 1 }
    }

    /// The dims of the run.
    pub fn dims(self) -> std::ops::Range<usize> {
        self.start..self.start + self.len
    }

    /// Where a dim is once the run is one dim.
    pub fn merged(self, dim: usize) -> usize {
        match dim {
            d if d < self.start => d,
            d if d < self.start + self.len => self.start,
            d => d + 1 - self.len,
        }
    }

    /// Number of elements of the run in a tensor of these dims; saturates.
    pub fn size(self, dims: &[i64]) -> i64 {
        dims.get(self.dims()).map_or(0, |dims| dims.iter().fold(1, |n: i64, &d| n.saturating_mul(d)))
    }
}

/// A number of elements in equal shards, padded at its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EvenSplit {
    /// Number of shards.
    pub n_shards: i64,
    /// Elements, without padding.
    pub size: i64,
    /// Elements of one shard.
    pub shard_size: i64,
}

impl EvenSplit {
    /// `size` elements in `n_shards` equal shards.
    pub fn new(size: i64, n_shards: usize) -> EvenSplit {
        let n_shards = n_shards.max(1) as i64;
        let shard_size = size.max(0).div_euclid(n_shards) + i64::from(size.max(0) % n_shards != 0);
        EvenSplit { n_shards, size, shard_size }
    }

    /// `size` elements in `n_shards` equal shards, each a multiple of `unit`.
    pub fn in_units(size: i64, unit: i64, n_shards: usize) -> EvenSplit {
        let unit = unit.max(1);
        let n_units = size.max(0).div_euclid(unit) + i64::from(size.max(0) % unit != 0);
        let shard_size = EvenSplit::new(n_units, n_shards).shard_size.saturating_mul(unit);
        EvenSplit { size, shard_size, n_shards: n_shards.max(1) as i64 }
    }

    /// Elements with padding.
    pub fn padded_size(&self) -> i64 {
        self.shard_size.saturating_mul(self.n_shards)
    }

    /// Elements of padding.
    pub fn padding(&self) -> i64 {
        self.padded_size() - self.size
    }

    /// Elements of padding, as a share of those there are.
    pub fn waste(&self) -> f64 {
        self.padding() as f64 / self.size.max(1) as f64
    }
}

/// How an array is cut into shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShardFormat {
    /// The dims that are merged and cut.
    pub run: DimRun,
    /// How they are cut.
    pub split: EvenSplit,
}

impl ShardFormat {
    /// The format that cuts `run` of an array of this shape into `n_shards`.
    pub fn new(whole: &ArrayShape, run: DimRun, n_shards: usize) -> ShardFormat {
        ShardFormat { run, split: EvenSplit::in_units(run.size(&whole.dims), run.unit, n_shards) }
    }

    /// The format of another array whose `run` has as many units in each shard.
    pub fn of_run(&self, whole: &ArrayShape, run: DimRun) -> ShardFormat {
        let shard_size = self.split.shard_size / self.run.unit.max(1) * run.unit;
        ShardFormat { run, split: EvenSplit { size: run.size(&whole.dims), shard_size, ..self.split } }
    }

    /// The shape with the run merged, without padding.
    pub fn merged_shape(&self, whole: &ArrayShape) -> ArrayShape {
        self.resized(whole, self.split.size)
    }

    /// The shape with the run merged and padded.
    pub fn padded_shape(&self, whole: &ArrayShape) -> ArrayShape {
        self.resized(whole, self.split.padded_size())
    }

    /// The shape of one shard.
    pub fn shard_shape(&self, whole: &ArrayShape) -> ArrayShape {
        self.resized(whole, self.split.shard_size)
    }

    /// The shape with the run merged to one dim of `size` elements. Dims that were neighbours in memory stay neighbours.
    fn resized(&self, whole: &ArrayShape, size: i64) -> ArrayShape {
        let run = self.run;
        let mut shape = whole.clone();
        if run.len > 1 {
            shape.dims.drain(run.start + 1..run.start + run.len);
            if let Some(layout) = &whole.layout {
                let mut minor_to_major = Dims::new();
                for &dim in &layout.minor_to_major {
                    let dim = run.merged(dim as usize) as i64;
                    if !minor_to_major.contains(&dim) {
                        minor_to_major.push(dim);
                    }
                }
                let tiles = layout.tiles.clone();
                shape.layout = Some(Box::new(Layout { tiles, ..Layout::new(minor_to_major) }));
            }
        }
        if let Some(dim) = shape.dims.get_mut(run.start) {
            *dim = size;
        }
        shape
    }
}

/// `dims 0-1 merged: 9 + 1 padding = 10 shards of 1`.
impl fmt::Display for ShardFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EvenSplit { n_shards, size, shard_size } = self.split;
        match self.run.len {
            1 => write!(f, "dim {}", self.run.start)?,
            len => write!(f, "dims {}-{} merged", self.run.start, self.run.start + len - 1)?,
        }
        match self.split.padding() {
            0 => write!(f, ": {size} = {n_shards} shards of {shard_size}"),
            padding => write!(f, ": {size} + {padding} padding = {n_shards} shards of {shard_size}"),
        }
    }
}

/// The shape of a tuple or array in which the leaves with a format have the shape of one shard; `formats` has one entry for
/// each leaf, in order.
pub fn local_shape(whole: &Shape, formats: &[Option<ShardFormat>]) -> Shape {
    fn go(whole: &Shape, formats: &mut dyn Iterator<Item = Option<ShardFormat>>) -> Shape {
        match whole {
            Shape::Tuple(elements) => Shape::Tuple(elements.iter().map(|e| go(e, formats)).collect()),
            Shape::Array(array) => {
                let format = formats.next().flatten();
                Shape::Array(format.map_or_else(|| array.clone(), |format| format.shard_shape(array)))
            }
            other @ (Shape::Token | Shape::Opaque | Shape::Buffer(_)) => {
                formats.next();
                other.clone()
            }
        }
    }
    go(whole, &mut formats.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::DType;

    #[test]
    fn odd_sizes_are_padded_at_the_end() {
        let split = EvenSplit::new(10, 8);
        assert_eq!((split.shard_size, split.padded_size(), split.padding()), (2, 16, 6));
        let split = EvenSplit::new(784, 8);
        assert_eq!((split.shard_size, split.padding()), (98, 0));
        assert_eq!(EvenSplit::new(1001, 6).padded_size(), 1002);
    }

    #[test]
    fn a_format_keeps_neighbours_in_memory_and_says_what_it_is() {
        let mut whole = ArrayShape::new(DType::F32, [3, 3, 7, 5]);
        whole.layout = Some(Box::new(Layout::new([2, 3, 1, 0].into_iter().collect())));
        let format = ShardFormat::new(&whole, DimRun::of(0, 2), 6);
        assert_eq!(format.to_string(), "dims 0-1 merged: 9 + 3 padding = 6 shards of 2");
        let shard = format.shard_shape(&whole);
        assert_eq!(shard.dims.as_slice(), [2, 7, 5]);
        assert_eq!(shard.layout.map(|l| l.minor_to_major.to_vec()), Some(vec![1, 2, 0]));
        assert_eq!(ShardFormat::new(&whole, DimRun::dim(2), 7).to_string(), "dim 2: 7 = 7 shards of 1");
    }

    #[test]
    fn only_leaves_with_a_format_are_cut() {
        let array = |dims: &[i64]| Shape::array(DType::F32, dims.iter().copied());
        let whole = Shape::Tuple(vec![array(&[8, 3]), Shape::Tuple(vec![array(&[5]), Shape::Token, array(&[5])])]);
        let format = Some(ShardFormat::new(&ArrayShape::new(DType::F32, [5]), DimRun::dim(0), 2));
        let cut = local_shape(&whole, &[None, format, None, None]);
        let inner = Shape::Tuple(vec![array(&[3]), Shape::Token, array(&[5])]);
        assert_eq!(cut, Shape::Tuple(vec![array(&[8, 3]), inner]));
    }
}
