//! Quoted text, and dictionaries that stand bare where quoted text is also possible.

use crate::attrs::encode_bytes;

/// Appends `text` in double quotes, escaped as in C: every byte outside of printable ASCII as `\n`, `\r`, `\t` or three
/// octal digits.
pub fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    if !text.is_ascii() {
        // Bytes that are no UTF-8 stand as private characters.
        encode_bytes::decode(text, &mut |byte| match byte {
            0x20..0x7f if !matches!(byte, b'"' | b'\\' | b'\'') => out.push(char::from(byte)),
            _ => write_escaped(byte, out),
        });
        out.push('"');
        return;
    }
    let mut plain_from = 0;
    for (i, byte) in text.bytes().enumerate() {
        if (0x20..0x7f).contains(&byte) && !matches!(byte, b'"' | b'\\' | b'\'') {
            continue;
        }
        // The plain run before an escaped byte ends at a character's border: it holds ASCII only.
        out.push_str(text.get(plain_from..i).unwrap_or_default());
        plain_from = i + 1;
        write_escaped(byte, out);
    }
    out.push_str(text.get(plain_from..).unwrap_or_default());
    out.push('"');
}

fn write_escaped(byte: u8, out: &mut String) {
    out.push('\\');
    match byte {
        b'\n' => out.push('n'),
        b'\r' => out.push('r'),
        b'\t' => out.push('t'),
        b'"' | b'\\' | b'\'' => out.push(char::from(byte)),
        _ => [byte >> 6, byte >> 3 & 7, byte & 7].into_iter().for_each(|digit| out.push(char::from(b'0' + digit))),
    }
}

/// Whether `text` is one balanced `{…}`, braces in double-quoted strings not counted: such a value is printed as it is.
pub fn is_bare_dict(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'{') {
        return false;
    }
    let (mut depth, mut in_string, mut is_escaped) = (0usize, false, false);
    for (i, &byte) in bytes.iter().enumerate() {
        if in_string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return i + 1 == bytes.len();
                }
            }
            _ => {}
        }
    }
    false
}

/// Appends a dictionary bare, other text in quotes.
pub(super) fn write_text_or_dict(text: &str, out: &mut String) {
    if is_bare_dict(text) { out.push_str(text) } else { write_quoted(text, out) }
}

/// Appends `{key="text",key={dict}}`.
pub(super) fn write_dict(entries: &[(String, String)], out: &mut String) {
    out.push('{');
    for (i, (key, value)) in entries.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(key);
        out.push('=');
        write_text_or_dict(value, out);
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_escaped_as_in_c() {
        let mut out = String::new();
        write_quoted("tab\tq\"b\\ 'x' é\u{1}\u{7f}\n", &mut out);
        assert_eq!(out, r#""tab\tq\"b\\ \'x\' \303\251\001\177\n""#);
    }

    #[test]
    fn only_one_balanced_dict_is_bare() {
        for text in ["{}", r#"{"a":{"b":"x}\"{"}}"#, "{a = 1 : i32}"] {
            assert!(is_bare_dict(text), "{text}");
        }
        for text in ["", "{", "{}}", "{} ", "{}{}", "a{}", r#"{"}"#] {
            assert!(!is_bare_dict(text), "{text}");
        }
    }
}
