//! The values of constants.

use super::shape::{write_array, write_shape};
use crate::literal_fields::field_of;
use crate::literal_order::{gathered, inverted, memory_places};
use crate::table::literal;
use crate::writer::Writer;
use hlo_ir::literal::{Buffer, ConstantValue, Literal};
use hlo_ir::{ArrayShape, Shape};

/// Appends the fields of a literal of a shape; none for elements that were left out.
pub(crate) fn write_literal(w: &mut Writer, value: &ConstantValue, of: &Shape) {
    match (value, of) {
        (ConstantValue::Array(array), Shape::Array(shape)) => write_elements(w, array, shape),
        (ConstantValue::Tuple(values), Shape::Tuple(elements)) => {
            w.message(literal::shape, |w| write_shape(w, of));
            for (value, element) in values.iter().zip(elements) {
                w.message(literal::tuple_literals, |w| write_literal(w, value, element));
            }
        }
        (ConstantValue::Array(_) | ConstantValue::Tuple(_) | ConstantValue::Elided, _) => {}
    }
}

fn write_elements(w: &mut Writer, array: &Literal, of: &ArrayShape) {
    w.message(literal::shape, |w| write_array(w, of));
    let field = field_of(array.dtype());
    let minor_first = of.layout.as_ref().map_or(&[][..], |layout| &layout.minor_to_major);
    let reordered = memory_places(minor_first, array.dims(), array.n_elems())
        .map(|places| gathered(array.data(), &inverted(&places)));
    match reordered.as_ref().unwrap_or(array.data()) {
        Buffer::Pred(elems) => w.ints(field, elems.iter().map(|&x| i64::from(x))),
        Buffer::S32(elems) => w.ints(field, elems.iter().map(|&x| i64::from(x))),
        Buffer::S64(elems) => w.ints(field, elems.iter().copied()),
        Buffer::U32(elems) => w.ints(field, elems.iter().map(|&x| i64::from(x))),
        Buffer::U64(elems) => w.ints(field, elems.iter().map(|&x| x as i64)),
        // One byte an element, whatever its bits; those above are 0.
        Buffer::S8(elems) => {
            let mask = (0xffu16 >> (8 - array.dtype().bits().min(8))) as u8;
            let bytes: Vec<u8> = elems.iter().map(|&x| x as u8 & mask).collect();
            w.bytes(field, &bytes);
        }
        Buffer::U8(elems) | Buffer::F8(elems) => w.bytes(field, elems),
        data @ (Buffer::S16(_)
        | Buffer::U16(_)
        | Buffer::F16(_)
        | Buffer::BF16(_)
        | Buffer::F32(_)
        | Buffer::F64(_)
        | Buffer::C64(_)
        | Buffer::C128(_)) => w.bytes(field, &data.to_packed_bytes(array.dtype())),
    }
}
