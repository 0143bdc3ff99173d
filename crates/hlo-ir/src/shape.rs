//! Shapes and layouts, and the pool that interns them.
//!
//! A module names few distinct shapes (55–67 in 20 MB of real HLO), so instructions carry a [`ShapeId`] and the
//! pool answers the two questions that checks ask most in one comparison: *same shape* (equal ids) and *same shape
//! but for the layout* (equal [`ShapePool::bare`] ids).

use crate::dtype::DType;
use crate::names::FixedHash;
use cranelift_entity::{PrimaryMap, entity_impl};
use hashbrown::HashTable;
use smallvec::SmallVec;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Dimension numbers or sizes; four inline, as most arrays have at most four dims.
pub type Dims = SmallVec<[i64; 4]>;

/// Dim indices in some order; four inline.
pub type DimOrder = SmallVec<[usize; 4]>;

/// Dim size that is not known and has no bound (`?` in text).
pub const UNBOUNDED_DIM: i64 = i64::MIN;

/// A value's shape: one array, a tuple of shapes, or an opaque handle.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// A dense array.
    Array(ArrayShape),
    /// A tuple; `()` is the empty one.
    Tuple(Vec<Shape>),
    /// An ordering token, `token[]`.
    Token,
    /// A handle that only custom calls understand, `opaque[]`.
    Opaque,
    /// A mutable buffer, `b(f32[2])`.
    Buffer(ArrayShape),
}

/// Element type, dim sizes and layout of one array.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArrayShape {
    /// Element type.
    pub dtype: DType,
    /// Size of each dim, outermost first; a dynamic dim's upper bound, or [`UNBOUNDED_DIM`].
    pub dims: Dims,
    /// Bit `i` set: dim `i` is dynamic (`<=N` or `?`).
    pub dynamic: u64,
    /// `None` where the text gives none.
    pub layout: Option<Box<Layout>>,
}

/// How an array lies in memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Layout {
    /// Dim numbers, fastest-varying first.
    pub minor_to_major: Dims,
    /// Sparse or dense kind of each dim (`D(D,C)`), empty when all are dense.
    pub dim_level_types: Vec<DimLevel>,
    /// Tiles, outermost first: `T(8,128)(2,1)`; [`TILE_COMBINE`] stands for `*`.
    pub tiles: Vec<Dims>,
    /// `L(n)`: elements to which the tail is padded; 1 when absent.
    pub tail_padding_alignment_in_elements: i64,
    /// `#(type)`: element type of indices, for sparse layouts.
    pub index_dtype: Option<DType>,
    /// `*(type)`: element type of pointers, for sparse layouts.
    pub pointer_dtype: Option<DType>,
    /// `E(n)`: bits of one element in memory; 0 when absent.
    pub element_size_in_bits: i64,
    /// `S(n)`: memory space; 0 is the default one.
    pub memory_space: i64,
    /// `SC(dim:i,j…)`: where dims are split over cores.
    pub split_configs: Vec<SplitConfig>,
    /// `M(n)`: bytes of dynamic-shape metadata before the data; 0 when absent.
    pub dynamic_shape_metadata_prefix_bytes: i64,
}

/// A memory that arrays lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemorySpace {
    /// The device's own: `S(0)`, which is not printed.
    Device,
    /// The host's, from which the device copies: `S(5)`.
    Host,
}

impl MemorySpace {
    /// The number in a layout, as `S(5)`.
    pub fn number(self) -> i64 {
        match self {
            MemorySpace::Device => 0,
            MemorySpace::Host => 5,
        }
    }
}

/// Tile dim that is combined with the next more minor one (`*` in text).
pub const TILE_COMBINE: i64 = i64::MIN;

/// One dim's storage kind in a sparse layout: the letter and its `+` / `~` marks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DimLevel {
    /// `D`, `C`, `S` or `H`.
    pub kind: u8,
    /// False when marked `+`.
    pub unique: bool,
    /// False when marked `~`.
    pub ordered: bool,
}

/// One `SC(dim:i,j…)` entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SplitConfig {
    /// The dim that is split.
    pub dimension: i64,
    /// Start indices of all pieces but the first.
    pub split_indices: Dims,
}

impl Layout {
    /// The layout with these dims, fastest first, and nothing else.
    pub fn new(minor_to_major: Dims) -> Layout {
        Layout { minor_to_major, tail_padding_alignment_in_elements: 1, ..Layout::default() }
    }

    /// Row-major: the last dim is fastest.
    pub fn row_major(rank: usize) -> Layout {
        Layout::new((0..rank as i64).rev().collect())
    }

    /// The layout with these dims, slowest first, and nothing else.
    pub fn from_major_to_minor(order: impl IntoIterator<Item = usize>) -> Layout {
        let mut dims: Dims = order.into_iter().map(|dim| dim as i64).collect();
        dims.reverse();
        Layout::new(dims)
    }

    /// Whether the layout is an order of dims and nothing else: no tiles, no packing, no memory space.
    pub fn is_only_an_order(&self) -> bool {
        *self == Layout::new(self.minor_to_major.clone())
    }
}

impl ArrayShape {
    /// The number of the memory space in the layout; 0 where there is none.
    pub fn memory_space(&self) -> i64 {
        self.layout.as_ref().map_or(0, |layout| layout.memory_space)
    }

    /// The same array in another memory, in the order of elements that it has; row-major where it says none.
    pub fn in_memory(&self, space: MemorySpace) -> ArrayShape {
        let order = self.layout.as_deref().cloned().unwrap_or_else(|| Layout::row_major(self.rank()));
        let layout = Layout { memory_space: space.number(), ..order };
        ArrayShape { layout: Some(Box::new(layout)), ..self.clone() }
    }

    /// An array without layout.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = i64>) -> ArrayShape {
        ArrayShape { dtype, dims: dims.into_iter().collect(), dynamic: 0, layout: None }
    }

    /// The same array in row-major layout; a scalar has none.
    pub fn with_row_major(mut self) -> ArrayShape {
        self.layout = (!self.dims.is_empty()).then(|| Box::new(Layout::row_major(self.dims.len())));
        self
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Whether dim `dim_idx` is dynamic.
    pub fn is_dynamic(&self, dim_idx: usize) -> bool {
        dim_idx < 64 && self.dynamic >> dim_idx & 1 == 1
    }

    /// Product of the dims (bounds for dynamic ones); saturates, and an unbounded dim counts 0.
    pub fn n_elems(&self) -> u64 {
        self.dims.iter().fold(1u64, |n, &d| n.saturating_mul(d.max(0) as u64))
    }

    /// Bytes of the array's elements, without padding by tiles.
    pub fn size_bytes(&self) -> u64 {
        self.dtype.bytes_of(self.n_elems())
    }

    /// Bytes of the array in memory, as XLA lays it out. Elements take whole bytes unless the layout gives their bits
    /// (`E(4)` packs). The minor dims are padded to the first tile, the tail to `L(n)`. Metadata of dynamic dims goes before
    /// the data. Later tiles divide the first one; `*` in a tile pads nothing.
    pub fn memory_bytes(&self) -> u64 {
        let whole_bytes = u64::from(self.dtype.bits().div_ceil(8));
        let Some(layout) = self.layout.as_deref() else { return self.n_elems().saturating_mul(whole_bytes) };
        let mut n_elems = 1u64;
        let tile = layout.tiles.first().map_or(&[][..], |tile| tile.as_slice());
        let mut tile_minor_first = tile.iter().rev();
        for (k, &dim_idx) in layout.minor_to_major.iter().enumerate() {
            let size = usize::try_from(dim_idx).ok().and_then(|i| self.dims.get(i)).map_or(0, |&d| d.max(0) as u64);
            let unit = tile_minor_first.next().filter(|&&t| k < tile.len() && t > 0).map_or(1, |&t| t as u64);
            n_elems = n_elems.saturating_mul(size.div_ceil(unit).saturating_mul(unit));
        }
        // A tile of more dims than the array pads it in dims of size 1.
        n_elems = tile_minor_first.filter(|&&t| t > 0).fold(n_elems, |n, &t| n.saturating_mul(t as u64));
        let tail = layout.tail_padding_alignment_in_elements.max(1) as u64;
        n_elems = n_elems.div_ceil(tail).saturating_mul(tail);
        let data = match u64::try_from(layout.element_size_in_bits) {
            Ok(bits) if bits > 0 => n_elems.saturating_mul(bits).div_ceil(8),
            Ok(_) | Err(_) => n_elems.saturating_mul(whole_bytes),
        };
        data.saturating_add(layout.dynamic_shape_metadata_prefix_bytes.max(0) as u64)
    }

    /// Same element type and dims; layouts may differ.
    pub fn same_type(&self, other: &ArrayShape) -> bool {
        self.dtype == other.dtype && self.dims == other.dims && self.dynamic == other.dynamic
    }

    /// The dim numbers in the order of memory, the fastest first. Without a layout, or with one that is no order of the
    /// dims, the last dim is the fastest.
    pub fn minor_to_major(&self) -> Dims {
        let rank = self.rank() as i64;
        match &self.layout {
            Some(layout)
                if layout.minor_to_major.len() == self.rank()
                    && (0..rank).all(|d| layout.minor_to_major.contains(&d)) =>
            {
                layout.minor_to_major.clone()
            }
            Some(_) | None => (0..rank).rev().collect(),
        }
    }

    /// As [`ArrayShape::minor_to_major`], as indices.
    pub fn physical_order(&self) -> DimOrder {
        self.minor_to_major().into_iter().map(|dim| dim as usize).collect()
    }

    /// The dim indices in the order of memory, the slowest first. Sorted: the dims lie in the order of their numbers.
    pub fn major_to_minor(&self) -> DimOrder {
        self.minor_to_major().into_iter().rev().map(|dim| dim as usize).collect()
    }

    /// The dims that have other than one element, the slowest first: the others may stand anywhere without moving an element.
    pub fn long_dims_major_to_minor(&self) -> DimOrder {
        self.major_to_minor().into_iter().filter(|&dim| self.dims[dim] != 1).collect()
    }

    /// Whether memory holds the elements in the order of their indices; tiles do not count.
    pub fn is_row_major(&self) -> bool {
        self.long_dims_major_to_minor().is_sorted()
    }

    /// Whether an array of the same dims holds its elements in the same order; tiles do not count.
    pub fn is_same_order(&self, other: &ArrayShape) -> bool {
        self.dims == other.dims && self.long_dims_major_to_minor() == other.long_dims_major_to_minor()
    }

    /// The physically major-most dim (largest stride), dim 0 without a layout. `None` for scalars.
    pub fn major_most_dim(&self) -> Option<usize> {
        self.major_to_minor().first().copied()
    }
}

impl Shape {
    /// An array shape without layout.
    pub fn array(dtype: DType, dims: impl IntoIterator<Item = i64>) -> Shape {
        Shape::Array(ArrayShape::new(dtype, dims))
    }

    /// The array, if this is one.
    #[inline]
    pub fn as_array(&self) -> Option<&ArrayShape> {
        match self {
            Shape::Array(array) => Some(array),
            Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => None,
        }
    }

    /// The elements, if this is a tuple.
    #[inline]
    pub fn as_tuple(&self) -> Option<&[Shape]> {
        match self {
            Shape::Tuple(elements) => Some(elements),
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => None,
        }
    }

    /// Gives arrays without a layout the row-major one, which is what its absence means, and leaves out levels that all
    /// layouts have.
    pub fn fill_layouts(&mut self) {
        match self {
            Shape::Array(array) | Shape::Buffer(array) => match &mut array.layout {
                None => *array = array.clone().with_row_major(),
                Some(layout) => {
                    if layout.dim_level_types.iter().all(|level| level.kind == b'D' && level.unique && level.ordered) {
                        layout.dim_level_types.clear();
                    }
                }
            },
            Shape::Tuple(elements) => elements.iter_mut().for_each(Shape::fill_layouts),
            Shape::Token | Shape::Opaque => {}
        }
    }

    /// The same shape with every layout removed.
    pub fn without_layout(&self) -> Shape {
        match self {
            Shape::Array(a) => Shape::Array(ArrayShape { layout: None, ..a.clone() }),
            Shape::Buffer(a) => Shape::Buffer(ArrayShape { layout: None, ..a.clone() }),
            Shape::Tuple(elements) => Shape::Tuple(elements.iter().map(Shape::without_layout).collect()),
            Shape::Token => Shape::Token,
            Shape::Opaque => Shape::Opaque,
        }
    }

    /// Equal but for layouts.
    pub fn same_type(&self, other: &Shape) -> bool {
        match (self, other) {
            (Shape::Array(a), Shape::Array(b)) | (Shape::Buffer(a), Shape::Buffer(b)) => a.same_type(b),
            (Shape::Tuple(a), Shape::Tuple(b)) => a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.same_type(y)),
            (Shape::Token, Shape::Token) | (Shape::Opaque, Shape::Opaque) => true,
            (Shape::Array(_) | Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_), _) => false,
        }
    }

    /// Bytes of all array leaves.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Shape::Array(a) | Shape::Buffer(a) => a.size_bytes(),
            Shape::Tuple(elements) => elements.iter().fold(0u64, |n, e| n.saturating_add(e.size_bytes())),
            Shape::Token | Shape::Opaque => 0,
        }
    }

    /// Bytes of all array leaves in memory, see [`ArrayShape::memory_bytes`]; tuples themselves take none.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Shape::Array(a) | Shape::Buffer(a) => a.memory_bytes(),
            Shape::Tuple(elements) => elements.iter().fold(0u64, |n, e| n.saturating_add(e.memory_bytes())),
            Shape::Token | Shape::Opaque => 0,
        }
    }

    /// Calls `visit` on every non-tuple leaf in order, with its tuple index (empty for a non-tuple shape).
    pub fn for_each_leaf(&self, visit: &mut dyn FnMut(&[i64], &Shape)) {
        fn walk(shape: &Shape, index: &mut Vec<i64>, visit: &mut dyn FnMut(&[i64], &Shape)) {
            let Shape::Tuple(elements) = shape else { return visit(index, shape) };
            for (i, element) in elements.iter().enumerate() {
                index.push(i as i64);
                walk(element, index, visit);
                index.pop();
            }
        }
        walk(self, &mut Vec::new(), visit);
    }

    /// Number of non-tuple leaves.
    pub fn n_leaves(&self) -> usize {
        match self {
            Shape::Tuple(elements) => elements.iter().map(Shape::n_leaves).sum(),
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => 1,
        }
    }

    /// How many tuples are nested; 0 for a shape that is none.
    pub fn n_levels(&self) -> usize {
        match self {
            Shape::Tuple(elements) => 1 + elements.iter().map(Shape::n_levels).max().unwrap_or(0),
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => 0,
        }
    }

    /// The sub-shape at a tuple index; `None` if the index leaves the shape.
    pub fn at(&self, index: &[i64]) -> Option<&Shape> {
        index.iter().try_fold(self, |shape, &i| shape.as_tuple()?.get(usize::try_from(i).ok()?))
    }
}

/// An interned shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShapeId(u32);
entity_impl!(ShapeId, "shape");

/// Owner of a module's distinct shapes. Copies share them until one of them gets another one.
#[derive(Clone, Debug, Default)]
pub struct ShapePool {
    known: Arc<KnownShapes>,
}

/// Shapes, each once.
#[derive(Clone, Debug, Default)]
struct KnownShapes {
    shapes: PrimaryMap<ShapeId, Shape>,
    bare: PrimaryMap<ShapeId, ShapeId>,
    /// Of tuples: the first leaf of each element, and the number of leaves.
    leaf_starts: PrimaryMap<ShapeId, Box<[u32]>>,
    table: HashTable<ShapeId>,
    hasher: FixedHash,
}

impl KnownShapes {
    fn find(&self, shape: &Shape) -> Option<ShapeId> {
        self.table.find(self.hasher.hash_one(shape), |&id| self.shapes[id] == *shape).copied()
    }

    /// Adds a shape that is not there.
    fn add(&mut self, shape: Shape) -> ShapeId {
        let hash = self.hasher.hash_one(&shape);
        let stripped = shape.without_layout();
        let is_bare = stripped == shape;
        self.leaf_starts.push(leaf_starts(&shape));
        let id = self.shapes.push(shape);
        let bare_slot = self.bare.push(id);
        debug_assert_eq!(id, bare_slot);
        let (shapes, hasher) = (&self.shapes, &self.hasher);
        self.table.insert_unique(hash, id, |&other| hasher.hash_one(&shapes[other]));
        if !is_bare {
            let bare = self.find(&stripped).unwrap_or_else(|| self.add(stripped));
            self.bare[id] = bare;
        }
        id
    }
}

impl ShapePool {
    /// The id of `shape`, new or known.
    pub fn intern(&mut self, shape: Shape) -> ShapeId {
        self.known.find(&shape).unwrap_or_else(|| Arc::make_mut(&mut self.known).add(shape))
    }

    /// The shape of an id of this pool.
    #[inline]
    pub fn get(&self, id: ShapeId) -> &Shape {
        &self.known.shapes[id]
    }

    /// The id of the same shape without layouts: two shapes agree but for layouts if these are equal.
    #[inline]
    pub fn bare(&self, id: ShapeId) -> ShapeId {
        self.known.bare[id]
    }

    /// The flat numbers of the leaves of element `index` of a tuple; none where there is no such element.
    pub fn element_leaves(&self, id: ShapeId, index: usize) -> std::ops::Range<usize> {
        match self.known.leaf_starts[id].get(index..) {
            Some(&[start, end, ..]) => start as usize..end as usize,
            Some(_) | None => 0..0,
        }
    }

    /// The element of a tuple that holds leaf `leaf_idx`, and that leaf's number in it.
    pub fn element_of_leaf(&self, id: ShapeId, leaf_idx: usize) -> Option<(usize, usize)> {
        let starts = &self.known.leaf_starts[id];
        // Elements without leaves start where the next one does.
        let element = starts.partition_point(|&start| start as usize <= leaf_idx).checked_sub(1)?;
        let start = starts.get(element).filter(|_| element + 1 < starts.len())?;
        Some((element, leaf_idx - *start as usize))
    }

    /// The flat number of the leaf at a tuple index; `None` if there is no leaf.
    pub fn leaf_number(&self, id: ShapeId, index: &[i64]) -> Option<usize> {
        let mut shape = &self.known.shapes[id];
        let mut number = 0;
        for (depth, &i) in index.iter().enumerate() {
            let i = usize::try_from(i).ok()?;
            let elements = shape.as_tuple()?;
            let element = elements.get(i)?;
            number += match depth {
                0 => self.element_leaves(id, i).start,
                _ => elements[..i].iter().map(Shape::n_leaves).sum(),
            };
            shape = element;
        }
        (!matches!(shape, Shape::Tuple(_))).then_some(number)
    }

    /// The leaf of a shape by its flat number.
    pub fn leaf(&self, id: ShapeId, leaf_idx: usize) -> Option<&Shape> {
        let shape = &self.known.shapes[id];
        match shape {
            Shape::Tuple(elements) => {
                let (element, rest) = self.element_of_leaf(id, leaf_idx)?;
                nested_leaf(elements.get(element)?, rest)
            }
            other => Some(other).filter(|_| leaf_idx == 0),
        }
    }

    /// Number of distinct shapes.
    pub fn len(&self) -> usize {
        self.known.shapes.len()
    }

    /// Whether no shape was interned.
    pub fn is_empty(&self) -> bool {
        self.known.shapes.is_empty()
    }
}

/// The first leaf of each element of a tuple, and the number of leaves; nothing for other shapes.
fn leaf_starts(shape: &Shape) -> Box<[u32]> {
    let Shape::Tuple(elements) = shape else { return Box::default() };
    let ends = elements.iter().scan(0u32, |n, element| {
        *n = n.saturating_add(element.n_leaves() as u32);
        Some(*n)
    });
    std::iter::once(0).chain(ends).collect()
}

fn nested_leaf(shape: &Shape, leaf_idx: usize) -> Option<&Shape> {
    let Shape::Tuple(elements) = shape else { return Some(shape).filter(|_| leaf_idx == 0) };
    let mut rest = leaf_idx;
    for element in elements {
        let n = element.n_leaves();
        if rest < n {
            return nested_leaf(element, rest);
        }
        rest -= n;
    }
    None
}

impl std::ops::Index<ShapeId> for ShapePool {
    type Output = Shape;
    fn index(&self, id: ShapeId) -> &Shape {
        self.get(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_dims_is_that_of_the_layout_and_short_dims_may_stand_anywhere() {
        let array = |dims: [i64; 3], order: &[i64]| {
            let mut array = ArrayShape::new(DType::F32, dims);
            array.layout = Some(Box::new(Layout::new(Dims::from_slice(order))));
            array
        };
        let (bare, turned) = (ArrayShape::new(DType::F32, [2, 1, 3]), array([2, 1, 3], &[2, 0, 1]));
        assert_eq!((bare.physical_order().as_slice(), bare.major_most_dim()), (&[2, 1, 0][..], Some(0)));
        assert_eq!((turned.major_to_minor().as_slice(), turned.major_most_dim()), (&[1, 0, 2][..], Some(1)));
        assert!(turned.is_row_major() && turned.is_same_order(&bare) && !turned.major_to_minor().is_sorted());
        let columns = array([2, 1, 3], &[0, 1, 2]);
        assert!(!columns.is_row_major() && !columns.is_same_order(&bare));
        // A layout that is no permutation says nothing.
        assert_eq!(array([2, 1, 3], &[0, 0, 1]).minor_to_major(), bare.minor_to_major());
        assert!(turned.layout.as_ref().is_some_and(|l| l.is_only_an_order()));
    }

    #[test]
    fn leaves_are_found_by_their_flat_number() {
        let leaf = |n: i64| Shape::array(DType::F32, [n]);
        let empty = Shape::Tuple(Vec::new());
        let nested = Shape::Tuple(vec![leaf(0), empty, Shape::Tuple(vec![leaf(1), leaf(2)]), leaf(3)]);
        let mut pool = ShapePool::default();
        let (tuple, array) = (pool.intern(nested.clone()), pool.intern(leaf(7)));
        let mut flat = Vec::new();
        nested.for_each_leaf(&mut |_, leaf| flat.push(leaf.clone()));
        for (i, expected) in flat.iter().enumerate() {
            assert_eq!(pool.leaf(tuple, i), Some(expected), "leaf {i}");
        }
        assert_eq!((pool.leaf(tuple, 4), pool.leaf(array, 0), pool.leaf(array, 1)), (None, Some(&leaf(7)), None));
        nested.for_each_leaf(&mut |index, leaf| {
            let number = pool.leaf_number(tuple, index);
            assert_eq!(number.and_then(|i| pool.leaf(tuple, i)), Some(leaf), "{index:?}");
        });
        assert_eq!((pool.leaf_number(tuple, &[2]), pool.leaf_number(tuple, &[2, 2])), (None, None));
        assert_eq!((pool.leaf_number(array, &[]), pool.leaf_number(array, &[0])), (Some(0), None));
        let elements: Vec<_> = (0..5).map(|k| pool.element_leaves(tuple, k)).collect();
        assert_eq!(elements, [0..1, 1..1, 1..3, 3..4, 0..0]);
        let places: Vec<_> = (0..5).map(|i| pool.element_of_leaf(tuple, i)).collect();
        assert_eq!(places, [Some((0, 0)), Some((2, 0)), Some((2, 1)), Some((3, 0)), None]);
        assert_eq!((pool.element_of_leaf(array, 0), pool.element_leaves(array, 0)), (None, 0..0));
    }
}
