//! The text format of protos, by the table: one line for each field, messages in braces, as XLA's own `.txt` dumps have it.

use crate::table::{Enum, Field, Kind, Label, Message};
use crate::wire::{Value, take_field, take_varint};

/// Prints a message of the table.
///
/// # Errors
/// The bytes are no such message.
pub fn print(bytes: &[u8], message: &'static Message) -> Result<String, String> {
    crate::check::check(bytes, message)?;
    let mut out = String::new();
    write_message(bytes, message, 0, &mut out);
    Ok(out)
}

/// Prints an HloModuleProto.
///
/// # Errors
/// The bytes are none.
pub fn print_module(bytes: &[u8]) -> Result<String, String> {
    print(bytes, &crate::table::hlo_module::MESSAGE)
}

fn write_message(bytes: &[u8], message: &Message, depth: usize, out: &mut String) {
    let mut pos = 0;
    while pos < bytes.len() {
        let Ok((number, value)) = take_field(bytes, &mut pos) else { return };
        match message.field(number) {
            Some(field) => write_field(field, value, depth, out),
            None => write_unknown(number, value, depth, out),
        }
    }
}

fn write_field(field: &Field, value: Value<'_>, depth: usize, out: &mut String) {
    match (field.kind, value) {
        (Kind::Message(of), Value::Bytes(inner)) => {
            indent(depth, out);
            out.push_str(field.name());
            out.push_str(" {\n");
            write_message(inner, of(), depth + 1, out);
            indent(depth, out);
            out.push_str("}\n");
        }
        (Kind::Text | Kind::Bytes, Value::Bytes(bytes)) => {
            let mut text = String::new();
            write_quoted(bytes, &mut text);
            line(field.name(), &text, depth, out);
        }
        (kind, Value::Bytes(packed)) if field.label == Label::Many => {
            for_each_packed(kind, packed, &mut |value| line(field.name(), &number(kind, value), depth, out));
        }
        (kind, value) => line(field.name(), &number(kind, value), depth, out),
    }
}

fn for_each_packed(kind: Kind, packed: &[u8], visit: &mut dyn FnMut(Value<'_>)) {
    match kind {
        Kind::Float => packed.as_chunks().0.iter().for_each(|bytes| visit(Value::Fixed32(u32::from_le_bytes(*bytes)))),
        Kind::Double => packed.as_chunks().0.iter().for_each(|bytes| visit(Value::Fixed64(u64::from_le_bytes(*bytes)))),
        Kind::Int64
        | Kind::Int32
        | Kind::Uint64
        | Kind::Uint32
        | Kind::Bool
        | Kind::Text
        | Kind::Bytes
        | Kind::Enum(_)
        | Kind::Message(_) => {
            let mut pos = 0;
            while let Some(value) = take_varint(packed, &mut pos) {
                visit(Value::Int(value));
            }
        }
    }
}

/// One number as text.
fn number(kind: Kind, value: Value<'_>) -> String {
    match (kind, value) {
        (Kind::Bool, Value::Int(value)) => (value != 0).to_string(),
        (Kind::Int32 | Kind::Int64, Value::Int(value)) => (value as i64).to_string(),
        (Kind::Enum(of), Value::Int(value)) => enum_name(of, value as i64),
        (_, Value::Int(value)) => value.to_string(),
        (_, Value::Fixed32(bits)) => f32::from_bits(bits).to_string().to_lowercase(),
        (_, Value::Fixed64(bits)) => f64::from_bits(bits).to_string().to_lowercase(),
        (_, Value::Bytes(_)) => String::new(),
    }
}

fn enum_name(of: &Enum, number: i64) -> String {
    of.name_of(number).map_or_else(|| number.to_string(), str::to_string)
}

/// A field that the table does not have, by its number, as the library of protocol buffers prints it.
fn write_unknown(field: u32, value: Value<'_>, depth: usize, out: &mut String) {
    let text = match value {
        Value::Int(value) => value.to_string(),
        Value::Fixed32(bits) => format!("0x{bits:08x}"),
        Value::Fixed64(bits) => format!("0x{bits:016x}"),
        Value::Bytes(bytes) => {
            let mut text = String::new();
            write_quoted(bytes, &mut text);
            text
        }
    };
    line(&field.to_string(), &text, depth, out);
}

fn line(name: &str, value: &str, depth: usize, out: &mut String) {
    indent(depth, out);
    out.push_str(name);
    out.push_str(": ");
    out.push_str(value);
    out.push('\n');
}

fn indent(depth: usize, out: &mut String) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn write_quoted(bytes: &[u8], out: &mut String) {
    out.push('"');
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'"' | b'\\' | b'\'' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            0x20..0x7f => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('"');
}
