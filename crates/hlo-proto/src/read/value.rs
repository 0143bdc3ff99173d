//! One rule for each type of attribute value; which field holds which attribute is the table's business.

use super::Fallible;
use super::payload::*;
use crate::table::{Field, Kind, Label, hlo_instruction};
use crate::view::View;
use hlo_ir::attrs::{Comparison, F32Bits, FieldMut, QuotedText, Word};

/// Reads the value of a field into an attribute. An attribute that must be there takes the word for 0 as well.
pub(crate) fn read_value(view: &View<'_>, field: Field, is_required: bool, into: FieldMut<'_>) -> Fallible<()> {
    match into {
        FieldMut::Int(v) => *v = int(view, field),
        FieldMut::OptInt(v) => *v = opt_int(view, field),
        FieldMut::Bool(v) => *v = view.bool(field),
        FieldMut::OptBool(v) => {
            // An enum of three: 1 is true, 2 is false.
            *v = match view.int(field) {
                1 => Some(true),
                2 => Some(false),
                _ => None,
            }
        }
        FieldMut::Float(v) => *v = F32Bits(view.float_bits(field)),
        FieldMut::Dims(v) => *v = view.ints(field).collect(),
        FieldMut::Bools(v) => *v = view.ints(field).map(|flag| flag != 0).collect(),
        FieldMut::Text(v) => *v = QuotedText(view.text(field)),
        FieldMut::OptText(v) => *v = Some(view.text(field)).filter(|text| !text.is_empty()).map(QuotedText),
        FieldMut::Word(v) => *v = word(field, view, is_required)?,
        FieldMut::Words(v) => *v = view.ints(field).map(|n| word_of(field, n)).collect::<Fallible<_>>()?,
        FieldMut::Slice(v) => *v = read_slice(view, field),
        FieldMut::Padding(v) => *v = view.message(field).map(|v| read_padding(&v)).unwrap_or_default(),
        FieldMut::Window(v) => *v = view.message(field).map(|v| read_window(&v)).unwrap_or_default(),
        FieldMut::ConvDims(v) => *v = view.message(field).map(|v| read_conv_dims(&v)).unwrap_or_default(),
        FieldMut::Pairs(v) => *v = read_pairs(view, field),
        FieldMut::OutputAliases(v) => *v = read_aliases(view, field),
        FieldMut::Comparison(v) => {
            let name = view.text(field);
            let found = Comparison::from_name(&name);
            *v = found.ok_or_else(|| format!("expected EQ, NE, GE, GT, LE or LT, found `{name}`"))?;
        }
        // These need more than the field: the instruction reads them.
        FieldMut::Comp(_)
        | FieldMut::Comps(_)
        | FieldMut::Shape(_)
        | FieldMut::Shapes(_)
        | FieldMut::Groups(_)
        | FieldMut::DomainSharding(_)
        | FieldMut::Sharding(_)
        | FieldMut::Raw(_)
        | FieldMut::RawLiteral(_) => {}
    }
    Ok(())
}

/// A number, or the one dim that a list of dims holds.
fn int(view: &View<'_>, field: Field) -> i64 {
    match field.label {
        Label::Many => view.ints(field).next().unwrap_or(0),
        Label::One | Label::Maybe | Label::Either => view.int(field),
    }
}

/// A number that may be absent: 0 is absent, but not where the field says whether it stands.
fn opt_int(view: &View<'_>, field: Field) -> Option<i64> {
    match field.label {
        Label::Many => view.ints(field).next(),
        Label::Maybe | Label::Either => view.maybe_int(field),
        Label::One => Some(view.int(field)).filter(|&value| value > 0),
    }
}

/// A word that the proto has as text or as an enum; 0 is none unless there must be one. A custom call without a version is not one of the
/// first version, which text leaves out.
fn word(field: Field, view: &View<'_>, is_required: bool) -> Fallible<Word> {
    match field.kind {
        Kind::Enum(_) => match view.int(field) {
            0 if !is_required && field.number != hlo_instruction::custom_call_api_version.number => Ok(Word::default()),
            number => word_of(field, number),
        },
        _ => Ok(Word(view.text(field))),
    }
}

fn word_of(field: Field, number: i64) -> Fallible<Word> {
    let Kind::Enum(of) = field.kind else { return Ok(Word::default()) };
    of.word(number).map(Word).ok_or_else(|| format!("expected a value of {}, found number {number}", of.name))
}
