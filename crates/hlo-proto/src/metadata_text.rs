//! Metadata as the text in a sharding: `op_name="a" source_line=3`.

use hlo_ir::attrs::{Attrs, FieldMut, FieldRef, Metadata, Presence, QuotedText, encode_bytes};
use hlo_ir::print::write_quoted;

/// The entries of metadata as XLA prints them, without braces.
pub(crate) fn metadata_text(metadata: &Metadata) -> String {
    let mut out = String::new();
    metadata.for_each_field(|key, presence, field| {
        if presence == Presence::IfSet && field.is_unset() {
            return;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(key);
        out.push('=');
        match field {
            FieldRef::OptText(text) => write_quoted(text.as_ref().map_or("", |QuotedText(text)| text), &mut out),
            FieldRef::OptInt(number) => out.push_str(&number.unwrap_or_default().to_string()),
            FieldRef::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            _ => out.push_str("{}"),
        }
    });
    out
}

/// Metadata of such entries; what is none of them is left out.
pub(crate) fn parse_metadata(text: &str) -> Metadata {
    let mut attrs = Attrs::Metadata(Box::default());
    let mut rest = text.trim_start();
    while let Some((key, value)) = rest.split_once('=') {
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let end = value.find([' ', ',']).unwrap_or(value.len());
                (value[..end].to_string(), &value[end..])
            }
        };
        match attrs.field_mut(key.trim()) {
            Some((_, FieldMut::OptText(slot))) => *slot = Some(QuotedText(value)),
            Some((_, FieldMut::OptInt(slot))) => *slot = value.parse().ok(),
            Some(_) | None => {}
        }
        rest = after.trim_start_matches([' ', ',']);
    }
    Metadata::of(&attrs).cloned().unwrap_or_default()
}

/// Takes text up to its closing quote; gives it unescaped, and what follows.
fn unquote(text: &str) -> (String, &str) {
    let mut bytes = Vec::new();
    let mut at = 0;
    let all = text.as_bytes();
    while let Some(&byte) = all.get(at) {
        at += 1;
        match byte {
            b'"' => return (encode_bytes::encode(bytes), text.get(at..).unwrap_or("")),
            b'\\' => {
                let (escaped, len) = escape(all.get(at..).unwrap_or(&[]));
                bytes.push(escaped);
                at += len;
            }
            byte => bytes.push(byte),
        }
    }
    (encode_bytes::encode(bytes), "")
}

/// The byte that an escape means, and the length of the escape after its backslash.
fn escape(rest: &[u8]) -> (u8, usize) {
    match rest {
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), 3),
        [other, ..] => (*other, 1),
        [] => (b'\\', 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back() {
        for text in [r#"op_name="a/b" source_file="x.py" source_line=3"#, r#"op_type="t\"\n\303\251""#, ""] {
            assert_eq!(metadata_text(&parse_metadata(text)), text);
        }
    }
}
