//! The values of constants.

use super::Fallible;
use crate::literal_fields::field_of;
use crate::literal_order::{gathered, memory_places};
use crate::table::{Kind, layout, literal, shape};
use crate::view::View;
use hlo_ir::literal::{Buffer, ConstantValue, Literal};
use hlo_ir::{ArrayShape, DType, Dims, Shape};

/// Reads a literal of a shape. One that has a shape and no elements at all, as TensorFlow strips them from large modules, is elided;
/// one with a wrong number of elements is an error.
pub(crate) fn read_literal(view: &View<'_>, shape: &Shape) -> Fallible<ConstantValue> {
    match shape {
        Shape::Array(array) if array.n_elems() > 0 && view.has_only(literal::shape) => Ok(ConstantValue::Elided),
        Shape::Tuple(elements) if !elements.is_empty() && view.has_only(literal::shape) => Ok(ConstantValue::Elided),
        Shape::Array(array) => read_array(view, array).map(ConstantValue::Array),
        Shape::Tuple(elements) => {
            let views: Vec<View<'_>> = view.messages(literal::tuple_literals).collect();
            if views.len() != elements.len() {
                return Err(format!("expected {} literals of a tuple, found {}", elements.len(), views.len()));
            }
            let values = views.iter().zip(elements).map(|(view, shape)| read_literal(view, shape));
            Ok(ConstantValue::Tuple(values.collect::<Fallible<_>>()?))
        }
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
            Err("expected a constant of an array or tuple shape, as only those have literals; found another".into())
        }
    }
}

fn read_array(view: &View<'_>, array: &ArrayShape) -> Fallible<Literal> {
    let dtype = array.dtype;
    let data = elements(view, dtype);
    // The elements stand in the order of the literal's own layout.
    let own = view.message(literal::shape).and_then(|own| own.message(shape::layout));
    let minor_first: Dims = own.map(|own| own.ints(layout::minor_to_major).collect()).unwrap_or_default();
    let data = match memory_places(&minor_first, &array.dims, data.len()) {
        Some(places) => gathered(&data, &places),
        None => data,
    };
    Literal::new(dtype, &array.dims, data).map_err(|error| error.to_string())
}

/// The elements of a type that the literal has.
fn elements(view: &View<'_>, dtype: DType) -> Buffer {
    let field = field_of(dtype);
    let bytes = match field.kind {
        Kind::Bytes => view.bytes(field).into(),
        Kind::Float | Kind::Double => view.fixed(field),
        Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64 | Kind::Bool => return integers(view, dtype),
        Kind::Text | Kind::Enum(_) | Kind::Message(_) => return Buffer::U8(Vec::new()),
    };
    match dtype {
        // One byte an element, whatever its bits.
        DType::S1 | DType::S2 | DType::S4 | DType::S8 => Buffer::S8(bytes.iter().map(|&byte| byte as i8).collect()),
        DType::U1 | DType::U2 | DType::U4 | DType::U8 => Buffer::U8(bytes.into_owned()),
        _ if dtype.is_float() && dtype.bits() <= 8 => Buffer::F8(bytes.into_owned()),
        _ => {
            let len = (dtype.bits() / 8) as usize;
            // Bytes beyond the last element make the count wrong, as they should.
            Buffer::from_packed_bytes(dtype, &bytes, bytes.len().div_ceil(len))
        }
    }
}

/// Elements that stand as varints.
fn integers(view: &View<'_>, dtype: DType) -> Buffer {
    let values = view.ints(field_of(dtype));
    match dtype {
        DType::S32 => Buffer::S32(values.map(|v| v as i32).collect()),
        DType::S64 => Buffer::S64(values.collect()),
        DType::U32 => Buffer::U32(values.map(|v| v as u32).collect()),
        DType::U64 => Buffer::U64(values.map(|v| v as u64).collect()),
        _ => Buffer::Pred(values.map(|v| v != 0).collect()),
    }
}
