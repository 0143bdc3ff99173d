//! Shapes and layouts; each distinct one is read once.

use super::Fallible;
use crate::table::{self, PRIMITIVE_TYPE, layout, program_shape, shape, split_config, tile};
use crate::view::View;
use hashbrown::HashTable;
use hlo_ir::header::EntryLayout;
use hlo_ir::names::hash_bytes;
use hlo_ir::shape::{DimLevel, Layout, ShapePool, SplitConfig, UNBOUNDED_DIM};
use hlo_ir::{ArrayShape, DType, Dims, Shape, ShapeId};

/// The bytes of shapes met so far and what they mean.
#[derive(Default)]
pub(crate) struct ShapeCache<'a> {
    table: HashTable<(&'a [u8], ShapeId)>,
}

impl<'a> ShapeCache<'a> {
    /// The shape that these bytes say.
    #[inline]
    pub(crate) fn shape(&mut self, bytes: &'a [u8], pool: &mut ShapePool) -> Fallible<ShapeId> {
        let hash = hash_bytes(bytes);
        if let Some(&(_, id)) = self.table.find(hash, |(known, _)| *known == bytes) {
            return Ok(id);
        }
        let id = pool.intern(read_shape(&View::of(bytes))?);
        self.table.insert_unique(hash, (bytes, id), |(known, _)| hash_bytes(known));
        Ok(id)
    }

    /// The shapes of a program's parameters and result.
    pub(crate) fn program(&mut self, view: &View<'a>, pool: &mut ShapePool) -> Fallible<EntryLayout> {
        let params: Fallible<Vec<ShapeId>> =
            view.slices(program_shape::parameters).map(|bytes| self.shape(bytes, pool)).collect();
        let result = self.shape(view.bytes(program_shape::result), pool)?;
        Ok(EntryLayout { params: params?, result })
    }
}

/// Reads a shape of any kind.
pub(crate) fn read_shape(view: &View<'_>) -> Fallible<Shape> {
    let number = view.int(shape::element_type);
    let Some(name) = PRIMITIVE_TYPE.name_of(number) else {
        return Err(format!("expected an element type, found number {number}"));
    };
    match name {
        "TUPLE" => {
            Ok(Shape::Tuple(view.messages(shape::tuple_shapes).map(|v| read_shape(&v)).collect::<Fallible<_>>()?))
        }
        "TOKEN" => Ok(Shape::Token),
        "OPAQUE_TYPE" => Ok(Shape::Opaque),
        "BUFFER" => match view.messages(shape::tuple_shapes).next().map(|v| read_shape(&v)).transpose()? {
            Some(Shape::Array(array)) => Ok(Shape::Buffer(array)),
            _ => Err("expected an array shape in a buffer's, found another".into()),
        },
        _ => Ok(Shape::Array(read_array(view, dtype_of(number)?)?)),
    }
}

/// The element type of a number.
fn dtype_of(number: i64) -> Fallible<DType> {
    let dtype = PRIMITIVE_TYPE.word(number).and_then(|word| DType::from_name(&word));
    dtype.ok_or_else(|| format!("expected the element type of an array, found number {number}"))
}

/// The number of an element type.
pub(crate) fn number_of(dtype: DType) -> i64 {
    table::PRIMITIVE_TYPE.number_of_word(dtype.name()).unwrap_or(0)
}

fn read_array(view: &View<'_>, dtype: DType) -> Fallible<ArrayShape> {
    let dims: Dims = view.ints(shape::dimensions).collect();
    if let Some(size) = dims.iter().find(|&&size| size < 0 && size != UNBOUNDED_DIM) {
        return Err(format!("expected sizes of dims from 0 on, found {size}"));
    }
    let mut dynamic = 0u64;
    for (dim_idx, flag) in view.ints(shape::is_dynamic_dimension).enumerate() {
        if flag != 0 && (dim_idx >= 64 || dim_idx >= dims.len()) {
            return Err(format!("expected dynamic dims below {}, found dim {dim_idx}", dims.len().min(64)));
        }
        dynamic |= u64::from(flag != 0) << (dim_idx & 63);
    }
    let layout = view.message(shape::layout).map(|v| read_layout(&v)).transpose()?;
    // A scalar's layout says nothing unless it says more than the order of its dims.
    let layout = layout.filter(|layout| !dims.is_empty() || !layout.is_only_an_order());
    if let Some(layout) = &layout
        && layout.minor_to_major.len() != dims.len()
    {
        return Err(format!("expected a layout of {} dims, found {}", dims.len(), layout.minor_to_major.len()));
    }
    Ok(ArrayShape { dtype, dims, dynamic, layout: layout.map(Box::new) })
}

fn read_layout(view: &View<'_>) -> Fallible<Layout> {
    let dtype = |field| Some(view.int(field)).filter(|&number| number != 0).map(dtype_of).transpose();
    let split = |v: View<'_>| SplitConfig {
        dimension: v.int(split_config::dimension),
        split_indices: v.ints(split_config::split_indices).collect(),
    };
    Ok(Layout {
        minor_to_major: view.ints(layout::minor_to_major).collect(),
        dim_level_types: read_levels(view)?,
        tiles: view.messages(layout::tiles).map(|v| v.ints(tile::dimensions).collect()).collect(),
        tail_padding_alignment_in_elements: view.int(layout::tail_padding_alignment_in_elements).max(1),
        index_dtype: dtype(layout::index_primitive_type)?,
        pointer_dtype: dtype(layout::pointer_primitive_type)?,
        element_size_in_bits: view.int(layout::element_size_in_bits),
        memory_space: view.int(layout::memory_space),
        split_configs: view.messages(layout::split_configs).map(split).collect(),
        dynamic_shape_metadata_prefix_bytes: view.int(layout::dynamic_shape_metadata_prefix_bytes),
    })
}

/// The letters of the kinds of storage of a dim, by number.
pub(crate) const LEVELS: [u8; 4] = *b"DCSH";

fn read_levels(view: &View<'_>) -> Fallible<Vec<DimLevel>> {
    let flags = |field| view.ints(field).map(|flag| flag != 0).collect::<Vec<bool>>();
    let (unique, ordered) = (flags(layout::dim_unique), flags(layout::dim_ordered));
    let level = |(dim_idx, number): (usize, i64)| {
        let kind = usize::try_from(number).ok().and_then(|n| LEVELS.get(n));
        let &kind = kind.ok_or_else(|| format!("expected a kind of storage below 4, found {number}"))?;
        let flag = |flags: &[bool]| flags.get(dim_idx).copied().unwrap_or(true);
        Ok(DimLevel { kind, unique: flag(&unique), ordered: flag(&ordered) })
    };
    view.ints(layout::dim_level_types).enumerate().map(level).collect()
}
