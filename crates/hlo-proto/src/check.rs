//! Holds the bytes of a message against the table before anything is read, and finds what a module cannot hold.
//!
//! After this check readers need no errors about wire types and lengths.

use crate::kept::{Place, Step, next_index};
use crate::table::{Field, Kind, Label, Message};
use crate::wire::{Value, take_field, take_varint};
use smallvec::SmallVec;

/// Messages in messages may not be nested deeper, as in the library of protocol buffers.
const MAX_DEPTH: usize = 100;

/// A field that a module cannot hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unheld<'a> {
    /// Where its message stands.
    pub(crate) place: Place,
    /// Its bytes, number and all.
    pub(crate) bytes: &'a [u8],
}

/// Checks a message; gives the fields that the table does not have or marks as kept.
///
/// # Errors
/// What is wrong, with the byte offset and the field.
pub(crate) fn check<'a>(bytes: &'a [u8], message: &'static Message) -> Result<Vec<Unheld<'a>>, String> {
    let mut check = Check { start: bytes.as_ptr() as usize, steps: Vec::new(), unheld: Vec::new() };
    check.message(bytes, message)?;
    Ok(check.unheld)
}

struct Check<'a> {
    /// Address of the first byte, to say offsets.
    start: usize,
    steps: Vec<(&'static Field, Step)>,
    unheld: Vec<Unheld<'a>>,
}

impl<'a> Check<'a> {
    fn message(&mut self, bytes: &'a [u8], message: &'static Message) -> Result<(), String> {
        if self.steps.len() > MAX_DEPTH {
            return Err(self.error(bytes, 0, message, None, "expected messages at most 100 deep, found more"));
        }
        let mut pos = 0;
        let mut counts: SmallVec<[(u32, u32); 4]> = SmallVec::new();
        while pos < bytes.len() {
            let begin = pos;
            let (number, value) =
                take_field(bytes, &mut pos).map_err(|what| self.error(bytes, begin, message, None, what))?;
            let field = match message.field(number) {
                Some(field) if !field.is_kept => field,
                Some(field) => {
                    if !has_kind(field, value) {
                        return Err(self.error(bytes, begin, message, Some(field), "found another wire type"));
                    }
                    self.keep(&bytes[begin..pos]);
                    continue;
                }
                None => {
                    self.keep(&bytes[begin..pos]);
                    continue;
                }
            };
            if let (Kind::Message(of), Value::Bytes(inner)) = (field.kind, value) {
                let step = Step {
                    number,
                    index: if field.label == Label::Many { next_index(&mut counts, number) } else { 0 },
                };
                self.steps.push((field, step));
                self.message(inner, of())?;
                self.steps.pop();
            } else if !has_kind(field, value) {
                let what = "found another wire type than its type has";
                return Err(self.error(bytes, begin, message, Some(field), what));
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &'a [u8]) {
        self.unheld.push(Unheld { place: self.steps.iter().map(|(_, step)| *step).collect(), bytes });
    }

    #[cold]
    fn error(&self, bytes: &[u8], pos: usize, message: &Message, field: Option<&Field>, what: &str) -> String {
        let offset = (bytes.as_ptr() as usize).saturating_sub(self.start) + pos;
        let mut path: Vec<&str> = self.steps.iter().map(|(field, _)| field.name()).collect();
        path.extend(field.map(Field::name));
        let path = if path.is_empty() { message.name.to_string() } else { path.join(".") };
        format!("byte {offset}, {path}: {what}")
    }
}

/// Whether a value can be one of the field's, packed ones included.
fn has_kind(field: &Field, value: Value<'_>) -> bool {
    let packed = match value {
        Value::Bytes(bytes) if field.label == Label::Many => Some(bytes),
        Value::Bytes(_) | Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) => None,
    };
    match field.kind {
        Kind::Int64 | Kind::Int32 | Kind::Uint64 | Kind::Uint32 | Kind::Bool | Kind::Enum(_) => match packed {
            Some(bytes) => are_varints(bytes),
            None => matches!(value, Value::Int(_)),
        },
        Kind::Float => matches!(value, Value::Fixed32(_)) || packed.is_some_and(|bytes| bytes.len() % 4 == 0),
        Kind::Double => matches!(value, Value::Fixed64(_)) || packed.is_some_and(|bytes| bytes.len() % 8 == 0),
        Kind::Text | Kind::Bytes | Kind::Message(_) => matches!(value, Value::Bytes(_)),
    }
}

/// Whether the bytes are whole varints.
fn are_varints(bytes: &[u8]) -> bool {
    let mut pos = 0;
    while pos < bytes.len() {
        if take_varint(bytes, &mut pos).is_none() {
            return false;
        }
    }
    true
}
