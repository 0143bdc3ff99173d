//! Quoted text, and dictionaries that stand bare where quoted text is also possible.

use crate::attrs::encode_bytes;

/// Appends the bytes of `text` ([`encode_bytes`]) in double quotes, escaped as in C: every byte outside of printable
/// ASCII as `\n`, `\r`, `\t` or three octal digits.
pub fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    if text.bytes().all(is_plain) {
        out.push_str(text);
    } else {
        encode_bytes::decode(text, &mut |byte| {
            if is_plain(byte) { out.push(char::from(byte)) } else { write_escaped(byte, out) }
        });
    }
    out.push('"');
}

fn is_plain(byte: u8) -> bool {
    (0x20..0x7f).contains(&byte) && !matches!(byte, b'"' | b'\\' | b'\'')
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

/// Whether `text` is one balanced `{…}`, braces in double-quoted strings not counted: such a value is printed as it is,
/// unless it holds bytes that are no text.
pub fn is_bare_dict(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'{') || encode_bytes::needs_encoding(text) {
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
