//! One rule for each type of attribute value; which field holds which attribute is the table's business.

use super::payload::*;
use crate::bindings::{At, bindings};
use crate::table::{Field, Kind, Label, hlo_instruction};
use crate::writer::Writer;
use hlo_ir::attrs::{AttrFormat, ConvDims, FieldRef, Metadata, Word};
use std::sync::LazyLock;

/// Appends an attribute in its field; `is_present`: its message stands even if it is empty.
pub(crate) fn write_value(w: &mut Writer, field: Field, is_present: bool, value: FieldRef<'_>) {
    match value {
        FieldRef::Int(v) => write_int(w, field, *v),
        FieldRef::OptInt(v) => write_opt_int(w, field, *v),
        FieldRef::Bool(v) => w.bool(field, *v),
        FieldRef::OptBool(v) => w.int(field, v.map_or(0, |flag| if flag { 1 } else { 2 })),
        FieldRef::Float(v) => w.float(field, v.0),
        FieldRef::Dims(v) => w.ints(field, v.iter().copied()),
        FieldRef::Bools(v) => w.ints(field, v.iter().map(|&flag| i64::from(flag))),
        FieldRef::Text(v) => w.text(field, &v.0),
        FieldRef::OptText(v) => w.text(field, v.as_ref().map_or("", |text| text.0.as_str())),
        FieldRef::Word(v) => write_word(w, field, v),
        FieldRef::Words(v) => w.ints(field, v.iter().map(|word| number_of(field, word))),
        FieldRef::Slice(v) => write_slice(w, field, v),
        FieldRef::Padding(v) => w.message(field, |w| write_padding(w, v)),
        FieldRef::Window(v) if is_present => w.message(field, |w| write_window(w, v)),
        FieldRef::Window(v) => w.message_if_any(field, |w| write_window(w, v)),
        FieldRef::ConvDims(v) if is_present || *v != ConvDims::default() => {
            w.message(field, |w| write_conv_dims(w, v));
        }
        FieldRef::ConvDims(_) => {}
        FieldRef::Pairs(v) => write_pairs(w, field, v),
        FieldRef::OutputAliases(v) => write_aliases(w, field, v),
        FieldRef::Comparison(v) => w.text(field, v.name()),
        FieldRef::Raw(v) => crate::braces::write_attribute(w, field, &v.0),
        // These need more than the field: the instruction writes them.
        FieldRef::Comp(_)
        | FieldRef::Comps(_)
        | FieldRef::Shape(_)
        | FieldRef::Shapes(_)
        | FieldRef::Groups(_)
        | FieldRef::DomainSharding(_)
        | FieldRef::Sharding(_)
        | FieldRef::RawLiteral(_) => {}
    }
}

fn write_int(w: &mut Writer, field: Field, value: i64) {
    match field.label {
        Label::Many => w.ints(field, [value]),
        Label::One | Label::Maybe | Label::Either => w.int(field, value),
    }
}

/// A number that may be absent. -1 stands for none in a list of dims.
fn write_opt_int(w: &mut Writer, field: Field, value: Option<i64>) {
    let Some(value) = value else { return };
    match field.label {
        Label::Many if value < 0 => {}
        Label::Many => w.ints(field, [value]),
        Label::Maybe | Label::Either => w.int_or_zero(field, value),
        Label::One => w.int(field, value),
    }
}

fn write_word(w: &mut Writer, field: Field, word: &Word) {
    match field.kind {
        // A custom call that names no version has the first one, which is not the number of none.
        Kind::Enum(of)
            if field.number == hlo_instruction::custom_call_api_version.number && word.as_str().is_empty() =>
        {
            w.int(field, of.number_of_word("API_VERSION_ORIGINAL").unwrap_or(0));
        }
        Kind::Enum(_) => w.int(field, number_of(field, word)),
        _ => w.text(field, word.as_str()),
    }
}

fn number_of(field: Field, word: &Word) -> i64 {
    match field.kind {
        Kind::Enum(of) => of.number_of_word(word.as_str()).unwrap_or(0),
        _ => 0,
    }
}

/// Appends the fields of metadata.
pub(crate) fn write_metadata(w: &mut Writer, metadata: &Metadata) {
    let fields = metadata.fields();
    for &(index, at) in metadata_order() {
        let Some(&field) = fields.get(index).filter(|field| !field.is_unset()) else { continue };
        match at {
            At::Own(place) => write_value(w, place, false, field),
            At::In(message, place) => w.message(message, |w| write_value(w, place, false, field)),
            _ => {}
        }
    }
}

/// The fields of metadata by number, each with its place among the attributes.
fn metadata_order() -> &'static [(usize, At)] {
    static ORDER: LazyLock<Vec<(usize, At)>> = LazyLock::new(|| {
        let has_field = |(_, at): &(usize, At)| at.number().is_some();
        let mut order: Vec<_> = bindings(AttrFormat::Metadata).iter().copied().enumerate().filter(has_field).collect();
        order.sort_by_key(|(_, at)| at.number());
        order
    });
    &ORDER
}
