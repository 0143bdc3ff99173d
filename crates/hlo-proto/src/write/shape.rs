//! Shapes and layouts. XLA gives every array a layout, the last dim fastest, where the text has none; so do we.

use crate::read::shape::{LEVELS, number_of};
use crate::table::{Field, PRIMITIVE_TYPE, layout, program_shape, shape, split_config, tile};
use crate::writer::Writer;
use cranelift_entity::SecondaryMap;
use hlo_ir::shape::{DimLevel, Layout, ShapePool};
use hlo_ir::{ArrayShape, Shape, ShapeId};

/// The bytes of shapes written so far.
#[derive(Default)]
pub(crate) struct ShapeBytes {
    bytes: SecondaryMap<ShapeId, Vec<u8>>,
}

impl ShapeBytes {
    /// Appends a shape of a module's pool.
    #[inline]
    pub(crate) fn write(&mut self, w: &mut Writer, field: Field, id: ShapeId, pool: &ShapePool) {
        if self.bytes[id].is_empty() {
            let mut own = Writer::default();
            write_shape(&mut own, pool.get(id));
            self.bytes[id] = own.out;
        }
        w.bytes_or_none(field, &self.bytes[id]);
    }

    /// Appends the shapes of a program's parameters and result, and the names of the parameters.
    pub(crate) fn write_program<'n>(
        &mut self,
        w: &mut Writer,
        (params, result): (&[ShapeId], ShapeId),
        names: impl Iterator<Item = &'n str>,
        pool: &ShapePool,
    ) {
        params.iter().for_each(|&id| self.write(w, program_shape::parameters, id, pool));
        self.write(w, program_shape::result, result, pool);
        names.for_each(|name| w.bytes_or_none(program_shape::parameter_names, name.as_bytes()));
    }
}

/// Appends the fields of a shape.
pub(crate) fn write_shape(w: &mut Writer, of: &Shape) {
    let kind = |name| PRIMITIVE_TYPE.number_of_word(name).unwrap_or(0);
    match of {
        Shape::Array(array) => write_array(w, array),
        Shape::Tuple(elements) => {
            w.int(shape::element_type, kind("TUPLE"));
            elements.iter().for_each(|element| w.message(shape::tuple_shapes, |w| write_shape(w, element)));
        }
        Shape::Token => w.int(shape::element_type, kind("TOKEN")),
        Shape::Opaque => w.int(shape::element_type, kind("OPAQUE_TYPE")),
        Shape::Buffer(array) => {
            w.int(shape::element_type, kind("BUFFER"));
            w.message(shape::tuple_shapes, |w| write_array(w, array));
        }
    }
}

/// Appends the fields of an array's shape.
pub(crate) fn write_array(w: &mut Writer, array: &ArrayShape) {
    w.int(shape::element_type, number_of(array.dtype));
    w.ints(shape::dimensions, array.dims.iter().copied());
    w.message(shape::layout, |w| match &array.layout {
        Some(own) => write_layout(w, own),
        None => write_layout(w, &Layout::row_major(array.rank())),
    });
    w.ints(shape::is_dynamic_dimension, (0..array.rank()).map(|dim_idx| i64::from(array.is_dynamic(dim_idx))));
}

fn write_layout(w: &mut Writer, of: &Layout) {
    let dtype = |dtype: Option<hlo_ir::DType>| dtype.map_or(0, number_of);
    w.ints(layout::minor_to_major, of.minor_to_major.iter().copied());
    for dims in &of.tiles {
        w.message(layout::tiles, |w| w.ints(tile::dimensions, dims.iter().copied()));
    }
    w.int(layout::element_size_in_bits, of.element_size_in_bits);
    w.int(layout::memory_space, of.memory_space);
    let level = |level: &DimLevel| LEVELS.iter().position(|&kind| kind == level.kind).unwrap_or(0) as i64;
    w.ints(layout::dim_level_types, of.dim_level_types.iter().map(level));
    w.int(layout::index_primitive_type, dtype(of.index_dtype));
    w.int(layout::pointer_primitive_type, dtype(of.pointer_dtype));
    let levels = || of.dim_level_types.iter();
    if levels().any(|level| !level.unique) {
        w.ints(layout::dim_unique, levels().map(|level| i64::from(level.unique)));
    }
    if levels().any(|level| !level.ordered) {
        w.ints(layout::dim_ordered, levels().map(|level| i64::from(level.ordered)));
    }
    w.int(layout::dynamic_shape_metadata_prefix_bytes, of.dynamic_shape_metadata_prefix_bytes);
    w.int(layout::tail_padding_alignment_in_elements, of.tail_padding_alignment_in_elements);
    for split in &of.split_configs {
        w.message(layout::split_configs, |w| {
            w.int(split_config::dimension, split.dimension);
            w.ints(split_config::split_indices, split.split_indices.iter().copied());
        });
    }
}
