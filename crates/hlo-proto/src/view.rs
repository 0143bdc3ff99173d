//! The fields of one message, borrowed from the input, which was checked before.

use crate::table::Field;
use crate::wire::{Value, take_field, take_varint};
use hlo_ir::attrs::encode_bytes;
use smallvec::SmallVec;

/// The fields of one message in the order in which they stand; messages in it are not looked into.
#[derive(Clone, Debug, Default)]
pub(crate) struct View<'a> {
    fields: SmallVec<[(u32, Value<'a>); 12]>,
}

impl<'a> View<'a> {
    /// The fields of a message that was checked; what is damaged ends it.
    pub(crate) fn of(bytes: &'a [u8]) -> View<'a> {
        let mut view = View::default();
        view.add(bytes);
        view
    }

    /// Takes the fields of another message in the place of these.
    pub(crate) fn refill(&mut self, bytes: &'a [u8]) {
        self.fields.clear();
        self.add(bytes);
    }

    #[inline]
    fn add(&mut self, bytes: &'a [u8]) {
        let mut pos = 0;
        while pos < bytes.len() {
            match take_field(bytes, &mut pos) {
                Ok(field) => self.fields.push(field),
                Err(_) => return,
            }
        }
    }

    /// All values of a field.
    #[inline]
    fn values(&self, field: Field) -> impl Iterator<Item = Value<'a>> + '_ {
        self.fields.iter().filter(move |(number, _)| *number == field.number).map(|&(_, value)| value)
    }

    /// The value of a field, the last one if there are several.
    #[inline]
    fn last(&self, field: Field) -> Option<Value<'a>> {
        self.fields.iter().rev().find(|(number, _)| *number == field.number).map(|&(_, value)| value)
    }

    /// Whether the field stands.
    #[inline]
    pub(crate) fn has(&self, field: Field) -> bool {
        self.last(field).is_some()
    }

    /// Whether no other field stands, but for empty ones.
    pub(crate) fn has_only(&self, field: Field) -> bool {
        let is_empty = |value: &Value<'_>| matches!(value, Value::Bytes(bytes) if bytes.is_empty());
        self.fields.iter().all(|(number, value)| *number == field.number || is_empty(value))
    }

    /// A number, 0 if it is absent; of several the first.
    #[inline]
    pub(crate) fn int(&self, field: Field) -> i64 {
        match self.last(field) {
            Some(Value::Int(value)) => value as i64,
            Some(Value::Bytes(packed)) => take_varint(packed, &mut 0).unwrap_or(0) as i64,
            Some(Value::Fixed32(_) | Value::Fixed64(_)) | None => 0,
        }
    }

    /// A number that may be absent.
    pub(crate) fn maybe_int(&self, field: Field) -> Option<i64> {
        self.has(field).then(|| self.int(field))
    }

    /// A truth value, false if it is absent.
    #[inline]
    pub(crate) fn bool(&self, field: Field) -> bool {
        self.int(field) != 0
    }

    /// The bits of a `float`.
    pub(crate) fn float_bits(&self, field: Field) -> u32 {
        match self.last(field) {
            Some(Value::Fixed32(bits)) => bits,
            Some(Value::Int(_) | Value::Fixed64(_) | Value::Bytes(_)) | None => 0,
        }
    }

    /// A `double`.
    pub(crate) fn double(&self, field: Field) -> f64 {
        match self.last(field) {
            Some(Value::Fixed64(bits)) => f64::from_bits(bits),
            Some(Value::Int(_) | Value::Fixed32(_) | Value::Bytes(_)) | None => 0.0,
        }
    }

    /// Bytes, none if the field is absent.
    #[inline]
    pub(crate) fn bytes(&self, field: Field) -> &'a [u8] {
        match self.last(field) {
            Some(Value::Bytes(bytes)) => bytes,
            Some(Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_)) | None => &[],
        }
    }

    /// Text as a module holds it.
    #[inline]
    pub(crate) fn text(&self, field: Field) -> String {
        text_of(self.bytes(field))
    }

    /// The bytes of each message of a field.
    #[inline]
    pub(crate) fn slices(&self, field: Field) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.values(field).filter_map(|value| match value {
            Value::Bytes(bytes) => Some(bytes),
            Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) => None,
        })
    }

    /// A message; one that stands several times is the sum of its parts.
    pub(crate) fn message(&self, field: Field) -> Option<View<'a>> {
        let mut parts = self.slices(field);
        let mut view = View::of(parts.next()?);
        parts.for_each(|part| view.add(part));
        Some(view)
    }

    /// The messages of a field that may stand several times.
    pub(crate) fn messages(&self, field: Field) -> impl Iterator<Item = View<'a>> + '_ {
        self.slices(field).map(View::of)
    }

    /// Numbers, packed or not.
    #[inline]
    pub(crate) fn ints(&self, field: Field) -> impl Iterator<Item = i64> + '_ {
        self.values(field).flat_map(|value| {
            let (packed, single) = match value {
                Value::Bytes(packed) => (packed, None),
                Value::Int(value) => (&[][..], Some(value as i64)),
                Value::Fixed32(_) | Value::Fixed64(_) => (&[][..], None),
            };
            let mut pos = 0;
            single.into_iter().chain(std::iter::from_fn(move || take_varint(packed, &mut pos).map(|v| v as i64)))
        })
    }

    /// The bytes of numbers of fixed length, packed or not.
    pub(crate) fn fixed(&self, field: Field) -> std::borrow::Cow<'a, [u8]> {
        let mut values = self.values(field);
        if let (Some(Value::Bytes(bytes)), None) = (values.next(), values.next()) {
            return bytes.into();
        }
        let mut all = Vec::new();
        for value in self.values(field) {
            match value {
                Value::Bytes(bytes) => all.extend_from_slice(bytes),
                Value::Fixed32(bits) => all.extend_from_slice(&bits.to_le_bytes()),
                Value::Fixed64(bits) => all.extend_from_slice(&bits.to_le_bytes()),
                Value::Int(_) => {}
            }
        }
        all.into()
    }
}

/// Bytes as text of a module, which can hold any bytes.
#[inline]
pub(crate) fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => text.to_string(),
        Ok(_) | Err(_) => encode_bytes::encode(bytes.to_vec()),
    }
}
