//! The literal of a custom call, which a module holds as the text of a shape and a value, `s32[2]{0} {1, 2}`, or of a tuple of
//! literals.

use crate::read::Fallible;
use crate::read::{read_literal, read_shape};
use crate::table::{Field, literal};
use crate::view::View;
use crate::write::write_literal;
use crate::writer::Writer;
use hlo_ir::literal::{ConstantValue, parse_constant};
use hlo_ir::{ArrayShape, DType, Dims, Layout, Shape};

/// The text of a literal.
pub(crate) fn read(view: &View<'_>) -> Fallible<String> {
    let shape = read_shape(&view.message(literal::shape).unwrap_or_default())?;
    let value = read_literal(view, &shape)?;
    let mut out = String::new();
    value.write_with_shape(&shape, &mut out);
    Ok(out)
}

/// Appends the literal that a text says; arrays with plain layouts and tuples of them are understood.
pub(crate) fn write(w: &mut Writer, field: Field, text: &str) {
    if let Some((shape, value)) = take_literal(&mut text.trim_start()) {
        w.message(field, |w| write_literal(w, &value, &shape));
    }
}

/// Takes a shape and its value, or a tuple of literals in parentheses.
fn take_literal(rest: &mut &str) -> Option<(Shape, ConstantValue)> {
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner.trim_start();
        let (mut shapes, mut values) = (Vec::new(), Vec::new());
        while !rest.starts_with(')') {
            let (shape, value) = take_literal(rest)?;
            shapes.push(shape);
            values.push(value);
            *rest = rest.trim_start_matches([' ', ',']);
        }
        *rest = rest.get(1..)?;
        return Some((Shape::Tuple(shapes), ConstantValue::Tuple(values)));
    }
    let shape = take_shape(rest)?;
    let mut end = 0;
    let value = parse_constant(rest.as_bytes(), &mut end, &shape).ok()?;
    *rest = rest.get(end..)?;
    Some((shape, value))
}

/// Takes the text of an array's shape.
fn take_shape(rest: &mut &str) -> Option<Shape> {
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
