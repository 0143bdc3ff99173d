//! The literal of a custom call, which a module holds as the text of a shape and a value: `s32[2]{0} {1, 2}`.

use crate::read::Fallible;
use crate::read::{read_literal, read_shape};
use crate::table::{Field, literal};
use crate::view::View;
use crate::write::write_literal;
use crate::writer::Writer;
use hlo_ir::literal::parse_constant;
use hlo_ir::{ArrayShape, DType, Dims, Layout, Shape};

/// The text of a literal.
pub(crate) fn read(view: &View<'_>) -> Fallible<String> {
    let shape = read_shape(&view.message(literal::shape).unwrap_or_default())?;
    let value = read_literal(view, &shape)?;
    let mut out = format!("{shape} ");
    value.write_text(&mut out);
    Ok(out)
}

/// Appends the literal that a text says; arrays with plain layouts and tuples of them are understood.
pub(crate) fn write(w: &mut Writer, field: Field, text: &str) {
    let mut rest = text.trim_start();
    let Some(shape) = take_shape(&mut rest) else { return };
    let Ok(value) = parse_constant(rest.as_bytes(), &mut 0, &shape) else { return };
    w.message(field, |w| write_literal(w, &value, &shape));
}

/// Takes the text of a shape.
fn take_shape(rest: &mut &str) -> Option<Shape> {
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner.trim_start();
        let mut elements = Vec::new();
        while !rest.starts_with(')') {
            elements.push(take_shape(rest)?);
            *rest = rest.trim_start_matches([' ', ',']);
        }
        *rest = rest.get(1..)?.trim_start();
        return Some(Shape::Tuple(elements));
    }
    let (dtype, after) = rest.split_once('[')?;
    let dtype = DType::from_name(dtype)?;
    let (dims, after) = after.split_once(']')?;
    let mut array = ArrayShape::new(dtype, numbers(dims)?);
    *rest = after;
    if let Some((order, after)) = after.strip_prefix('{').and_then(|layout| layout.split_once('}')) {
        array.layout = Some(Box::new(Layout::new(numbers(order)?)));
        *rest = after;
    }
    *rest = rest.trim_start();
    Some(Shape::Array(array))
}

fn numbers(text: &str) -> Option<Dims> {
    text.split(',').map(str::trim).filter(|number| !number.is_empty()).map(|number| number.parse().ok()).collect()
}
