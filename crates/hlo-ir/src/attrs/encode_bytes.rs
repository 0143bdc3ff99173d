//! Any bytes as a `String`, and back.
//!
//! Quoted text in HLO may hold any bytes (a backend configuration can be a serialized protocol buffer) while the
//! module stores `String`s. A byte that is no part of a UTF-8 character is kept as one private character
//! `U+EF80 + (byte - 0x80)`; genuine characters of that private range are kept byte by byte in the same way, so the
//! mapping loses nothing.

const FIRST: u32 = 0xEF80;
const LAST: u32 = 0xEFFF;

fn is_private(c: char) -> bool {
    (FIRST..=LAST).contains(&(c as u32))
}

fn push_private(byte: u8, out: &mut String) {
    // A byte of a multi-byte character or a stray one is always 0x80 or above.
    out.extend(char::from_u32(FIRST + u32::from(byte & 0x7f)));
}

/// Whether valid UTF-8 holds characters of the private range, which [`encode`] must rewrite.
pub fn needs_encoding(text: &str) -> bool {
    !text.is_ascii() && text.chars().any(is_private)
}

/// `bytes` as a string that [`decode`] turns back into them.
pub fn encode(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if !needs_encoding(&text) => return text,
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_private(c) {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| push_private(b, &mut out));
            } else {
                out.push(c);
            }
        }
        chunk.invalid().iter().for_each(|&b| push_private(b, &mut out));
    }
    out
}

/// Calls `visit` on every byte that `text` stands for.
pub fn decode(text: &str, visit: &mut dyn FnMut(u8)) {
    for c in text.chars() {
        if is_private(c) {
            visit((c as u32 - FIRST) as u8 | 0x80);
        } else {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(&mut *visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_string_comes_back() {
        let cases: [&[u8]; 5] =
            [b"plain", &[0xff, 0x00, b'a', 0xc3], "é".as_bytes(), "\u{EF80}x".as_bytes(), &[0xee, 0xbe]];
        for bytes in cases {
            let mut back = Vec::new();
            decode(&encode(bytes.to_vec()), &mut |b| back.push(b));
            assert_eq!(back, bytes);
        }
        assert_eq!(encode("é".as_bytes().to_vec()), "é");
    }
}
