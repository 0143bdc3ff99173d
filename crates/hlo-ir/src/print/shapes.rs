//! Shapes and layouts as text; each distinct shape of a module is written once and then copied.

use super::write_index_comment;
use crate::dtype::DType;
use crate::float::decimal::write_i64;
use crate::module::Module;
use crate::shape::{ArrayShape, Layout, Shape, ShapeId, TILE_COMBINE, UNBOUNDED_DIM};
use cranelift_entity::SecondaryMap;

/// Texts of the shapes met so far, one after the other.
#[derive(Default)]
pub(super) struct ShapeTexts {
    text: String,
    /// Start and end in `text`; an empty span is a shape not met yet, as no shape's text is empty.
    spans: SecondaryMap<ShapeId, (u32, u32)>,
}

impl ShapeTexts {
    /// Appends the text of a shape of `module` to `out`.
    #[inline]
    pub(super) fn write(&mut self, module: &Module, id: ShapeId, out: &mut String) {
        let (start, end) = self.spans[id];
        if start == end {
            return self.write_new(module, id, out);
        }
        out.push_str(self.text.get(start as usize..end as usize).unwrap_or_default());
    }

    fn write_new(&mut self, module: &Module, id: ShapeId, out: &mut String) {
        let start = self.text.len();
        write_shape(module.shapes.get(id), &mut self.text);
        out.push_str(self.text.get(start..).unwrap_or_default());
        match (u32::try_from(start), u32::try_from(self.text.len())) {
            (Ok(start), Ok(end)) => self.spans[id] = (start, end),
            // Beyond 4 GiB of distinct shapes each is written anew.
            _ => self.text.truncate(start),
        }
    }
}

/// Appends a shape; layouts as far as there are any.
pub(super) fn write_shape(shape: &Shape, out: &mut String) {
    match shape {
        Shape::Array(array) => write_array(array, out),
        Shape::Tuple(elements) => {
            out.push('(');
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                    if i % 5 == 0 {
                        write_index_comment(i, out);
                    }
                }
                write_shape(element, out);
            }
            out.push(')');
        }
        Shape::Token => out.push_str("token[]"),
        Shape::Opaque => out.push_str("opaque[]"),
        Shape::Buffer(array) => {
            out.push_str("b(");
            write_array(array, out);
            out.push(')');
        }
    }
}

fn write_array(array: &ArrayShape, out: &mut String) {
    out.push_str(array.dtype.name());
    out.push('[');
    for (dim_idx, &dim) in array.dims.iter().enumerate() {
        if dim_idx > 0 {
            out.push(',');
        }
        if dim == UNBOUNDED_DIM {
            out.push('?');
            continue;
        }
        if array.is_dynamic(dim_idx) {
            out.push_str("<=");
        }
        write_i64(dim, out);
    }
    out.push(']');
    if let Some(layout) = &array.layout {
        let start = out.len();
        write_layout(layout, out);
        // A scalar's empty layout is not printed.
        if out.get(start..) == Some("{}") {
            out.truncate(start);
        }
    }
}

/// Appends `{1,0:T(8,128)S(5)}`.
fn write_layout(layout: &Layout, out: &mut String) {
    out.push('{');
    write_ints(&layout.minor_to_major, out);
    let colon_at = out.len();
    out.push(':');
    write_dim_levels(layout, out);
    if !layout.tiles.is_empty() {
        out.push('T');
        layout.tiles.iter().for_each(|tile| write_tile(tile, out));
    }
    if layout.tail_padding_alignment_in_elements != 1 && layout.tail_padding_alignment_in_elements != 0 {
        write_number_part("L", layout.tail_padding_alignment_in_elements, out);
    }
    write_dtype_part('#', layout.index_dtype, out);
    write_dtype_part('*', layout.pointer_dtype, out);
    if layout.element_size_in_bits != 0 {
        write_number_part("E", layout.element_size_in_bits, out);
    }
    if layout.memory_space != 0 {
        write_number_part("S", layout.memory_space, out);
    }
    if !layout.split_configs.is_empty() {
        out.push_str("SC");
        for split in &layout.split_configs {
            out.push('(');
            write_i64(split.dimension, out);
            out.push(':');
            write_ints(&split.split_indices, out);
            out.push(')');
        }
    }
    if layout.dynamic_shape_metadata_prefix_bytes != 0 {
        write_number_part("M", layout.dynamic_shape_metadata_prefix_bytes, out);
    }
    if out.len() == colon_at + 1 {
        out.truncate(colon_at);
    }
    out.push('}');
}

fn write_dim_levels(layout: &Layout, out: &mut String) {
    if layout.dim_level_types.is_empty() {
        return;
    }
    out.push_str("D(");
    for (i, level) in layout.dim_level_types.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push(char::from(level.kind));
        if !level.unique {
            out.push('+');
        }
        if !level.ordered {
            out.push('~');
        }
    }
    out.push(')');
}

fn write_tile(tile: &[i64], out: &mut String) {
    out.push('(');
    for (i, &dim) in tile.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        if dim == TILE_COMBINE { out.push('*') } else { write_i64(dim, out) }
    }
    out.push(')');
}

fn write_number_part(key: &str, value: i64, out: &mut String) {
    out.push_str(key);
    out.push('(');
    write_i64(value, out);
    out.push(')');
}

fn write_dtype_part(mark: char, dtype: Option<DType>, out: &mut String) {
    if let Some(dtype) = dtype {
        out.push(mark);
        out.push('(');
        out.push_str(dtype.name());
        out.push(')');
    }
}

/// Appends integers with commas between.
pub(super) fn write_ints(values: &[i64], out: &mut String) {
    for (i, &value) in values.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_i64(value, out);
    }
}

/// Implements `Display` by a function that appends to a string.
macro_rules! display_by {
    ($($type:ty => $write:path;)*) => {
        $(impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut text = String::new();
                $write(self, &mut text);
                f.pad(&text)
            }
        })*
    };
}
pub(super) use display_by;

display_by! {
    Shape => write_shape;
    ArrayShape => write_array;
    Layout => write_layout;
}
