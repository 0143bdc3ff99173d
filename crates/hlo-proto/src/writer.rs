//! Appends fields of the table to bytes; a message's length is put in once the message is whole.

use crate::table::{Field, Kind};
use crate::wire::{push_varint, varint_len};
use hlo_ir::attrs::encode_bytes;

/// The bytes written so far.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) out: Vec<u8>,
}

impl Writer {
    #[inline]
    fn tag(&mut self, field: Field, wire_type: u64) {
        push_varint(&mut self.out, u64::from(field.number) << 3 | wire_type);
    }

    /// A number, if it is not 0.
    #[inline]
    pub(crate) fn int(&mut self, field: Field, value: i64) {
        if value != 0 {
            self.int_or_zero(field, value);
        }
    }

    /// A number, 0 as well.
    #[inline]
    pub(crate) fn int_or_zero(&mut self, field: Field, value: i64) {
        self.tag(field, 0);
        // The library of protocol buffers cuts what is too large for the type; here the reader of the file would.
        push_varint(&mut self.out, value as u64);
    }

    /// A truth value, if it is true.
    #[inline]
    pub(crate) fn bool(&mut self, field: Field, value: bool) {
        self.int(field, i64::from(value));
    }

    /// A `float`, if its bits are not 0.
    pub(crate) fn float(&mut self, field: Field, bits: u32) {
        if bits != 0 {
            self.tag(field, 5);
            self.out.extend_from_slice(&bits.to_le_bytes());
        }
    }

    /// A `double`, if its bits are not 0.
    pub(crate) fn double(&mut self, field: Field, value: f64) {
        if value.to_bits() != 0 {
            self.tag(field, 1);
            self.out.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Bytes, if there are any.
    #[inline]
    pub(crate) fn bytes(&mut self, field: Field, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes_or_none(field, bytes);
        }
    }

    /// Bytes, even if there are none.
    #[inline]
    pub(crate) fn bytes_or_none(&mut self, field: Field, bytes: &[u8]) {
        self.tag(field, 2);
        push_varint(&mut self.out, bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    /// Text of a module, if there is any.
    #[inline]
    pub(crate) fn text(&mut self, field: Field, text: &str) {
        if !text.is_empty() {
            self.text_or_none(field, text);
        }
    }

    /// Text of a module, even if there is none.
    pub(crate) fn text_or_none(&mut self, field: Field, text: &str) {
        if encode_bytes::needs_encoding(text) {
            let mut bytes = Vec::with_capacity(text.len());
            encode_bytes::decode(text, &mut |byte| bytes.push(byte));
            self.bytes_or_none(field, &bytes);
        } else {
            self.bytes_or_none(field, text.as_bytes());
        }
    }

    /// A message, even an empty one.
    #[inline]
    pub(crate) fn message(&mut self, field: Field, write: impl FnOnce(&mut Writer)) {
        debug_assert!(matches!(field.kind, Kind::Message(_)), "{}", field.name);
        self.tag(field, 2);
        self.delimited(write);
    }

    /// A message, if it is not empty.
    pub(crate) fn message_if_any(&mut self, field: Field, write: impl FnOnce(&mut Writer)) {
        let begin = self.out.len();
        self.tag(field, 2);
        let inner = self.out.len();
        self.delimited(write);
        if self.out.len() == inner + 1 {
            self.out.truncate(begin);
        }
    }

    /// Numbers, packed, if there are any.
    #[inline]
    pub(crate) fn ints(&mut self, field: Field, values: impl IntoIterator<Item = i64>) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            self.tag(field, 2);
            self.delimited(|w| values.for_each(|value| push_varint(&mut w.out, value as u64)));
        }
    }

    /// Appends a length and what `write` appends. Most are short, so that one byte is set aside for the length.
    #[inline]
    fn delimited(&mut self, write: impl FnOnce(&mut Writer)) {
        let at = self.out.len();
        self.out.push(0);
        write(self);
        let len = self.out.len() - at - 1;
        if len < 0x80 {
            if let Some(byte) = self.out.get_mut(at) {
                *byte = len as u8;
            }
            return;
        }
        let n_more = varint_len(len as u64) - 1;
        let end = self.out.len();
        self.out.resize(end + n_more, 0);
        self.out.copy_within(at + 1..end, at + 1 + n_more);
        let mut length = Vec::with_capacity(10);
        push_varint(&mut length, len as u64);
        if let Some(place) = self.out.get_mut(at..at + length.len()) {
            place.copy_from_slice(&length);
        }
    }
}
