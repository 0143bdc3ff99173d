//! Attributes that a module holds as the text between braces, as they are written: result accuracy, statistics, origins, sparsity,
//! slice sizes. A text that cannot be understood is not written.

mod cursor;
mod numbers;
mod origin;

use crate::read::Fallible;
use crate::table::{Field, hlo_instruction};
use crate::view::View;
use crate::writer::Writer;
use hlo_ir::Shape;

/// The text of an attribute of an instruction with this shape.
pub(crate) fn read_attribute(view: &View<'_>, field: Field, shape: &Shape) -> Fallible<String> {
    use hlo_instruction as i;
    let Some(own) = view.message(field) else { return Ok(String::new()) };
    match field.number {
        n if n == i::result_accuracy.number => numbers::read_accuracy(&own),
        n if n == i::statistics_viz.number => Ok(numbers::read_statistics(&own)),
        n if n == i::sparsity_config.number => Ok(numbers::read_sparsity(&own)),
        n if n == i::original_value.number => Ok(origin::read(&own, shape)),
        _ => Ok(String::new()),
    }
}

/// Appends an attribute that a module holds as it is written.
pub(crate) fn write_attribute(w: &mut Writer, field: Field, text: &str) {
    use hlo_instruction as i;
    if text.is_empty() {
        return;
    }
    let mut own = Writer::default();
    let written = match field.number {
        n if n == i::result_accuracy.number => numbers::write_accuracy(&mut own, text),
        n if n == i::statistics_viz.number => numbers::write_statistics(&mut own, text),
        n if n == i::sparsity_config.number => numbers::write_sparsity(&mut own, text),
        n if n == i::original_value.number => origin::write(&mut own, text),
        _ => None,
    };
    if written.is_some() {
        w.bytes_or_none(field, &own.out);
    }
}

/// The slice sizes of an in-place permutation of an operand: as many in each group as the operand has dims.
pub(crate) fn slice_sizes(sizes: &[i64], operand: Option<&Shape>) -> String {
    let first = match operand {
        Some(Shape::Tuple(elements)) => elements.first(),
        other => other,
    };
    let rank = first.and_then(Shape::as_array).map_or(0, |array| array.rank());
    if sizes.is_empty() || rank == 0 {
        return String::new();
    }
    let group = |sizes: &[i64]| {
        let sizes: Vec<String> = sizes.iter().map(i64::to_string).collect();
        format!("{{{}}}", sizes.join(","))
    };
    let groups: Vec<String> = sizes.chunks(rank).map(group).collect();
    format!("{{{}}}", groups.join(","))
}

/// The numbers in the text of slice sizes.
pub(crate) fn parse_slice_sizes(text: &str) -> Vec<i64> {
    text.split(['{', '}', ',', ' ']).filter_map(|number| number.parse().ok()).collect()
}
