//! A place in the text and the tokens that can stand there. All reads are checked; nothing here allocates but the
//! unescaping of strings and the making of errors.

use crate::error::{EXPECTED, Fallible, LIMIT, failure};
use hlo_ir::attrs::encode_bytes;
use hlo_ir::names::is_reserved;
use std::borrow::Cow;

/// A reader over HLO text.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'t> {
    text: &'t str,
    /// Byte offset of the next unread byte.
    pub(crate) pos: usize,
}

/// Class bits of a byte: part of a name, or blank.
const NAME: u8 = 1;
const BLANK: u8 = 2;
const DIGIT: u8 = 4;
/// Opens a bracket.
pub(crate) const OPEN: u8 = 8;
/// Closes a bracket.
pub(crate) const CLOSE: u8 = 16;
/// Ends a shape outside of brackets.
pub(crate) const STOP: u8 = 32;

static CLASS: [u8; 256] = class_table();

const fn class_table() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut byte = 0usize;
    while byte < 256 {
        let b = byte as u8;
        if b.is_ascii_alphanumeric() || b == b'_' || b == b'.' || b == b'-' {
            table[byte] |= NAME;
        }
        if b.is_ascii_digit() {
            table[byte] |= DIGIT;
        }
        if b == b' ' || b == b'\t' || b == b'\n' || b == b'\r' {
            table[byte] |= BLANK;
        }
        if matches!(b, b'(' | b'[' | b'{') {
            table[byte] |= OPEN;
        }
        if matches!(b, b')' | b']' | b'}') {
            table[byte] |= CLOSE;
        }
        if matches!(b, b' ' | b'\t' | b'\n' | b'\r' | b',' | b'"' | b'%' | b'=') {
            table[byte] |= STOP;
        }
        byte += 1;
    }
    table
}

/// [`OPEN`], [`CLOSE`], [`STOP`] or 0.
#[inline]
pub(crate) fn bracket_class(byte: u8) -> u8 {
    CLASS[byte as usize] & (OPEN | CLOSE | STOP)
}

/// Whether a byte can stand in a name.
#[inline]
pub(crate) fn is_name_byte(byte: u8) -> bool {
    CLASS[byte as usize] & NAME != 0
}

/// How many of the first 16 bytes can stand in a name, by comparisons that become vector code; real names have some 16 bytes.
#[inline]
fn n_name_bytes(chunk: &[u8; 16]) -> usize {
    let is_name = |b: u8| {
        let is_letter = (b | 0x20).wrapping_sub(b'a') < 26;
        let is_number_byte = (b.wrapping_sub(b'-') < 13) & (b != b'/');
        is_letter | is_number_byte | (b == b'_')
    };
    let lanes = chunk.map(|b| if is_name(b) { 0xFF } else { 0 });
    u128::from_le_bytes(lanes).trailing_ones() as usize / 8
}

/// The place of the first byte among these 16 that is blank or a control character.
#[inline]
pub(crate) fn find_blank(chunk: &[u8; 16]) -> Option<usize> {
    let lanes = u128::from_le_bytes(chunk.map(|b| if b <= b' ' { 0xFF } else { 0 }));
    (lanes != 0).then(|| lanes.trailing_zeros() as usize / 8)
}

/// Whether a byte separates tokens.
#[inline]
pub(crate) fn is_blank(byte: u8) -> bool {
    CLASS[byte as usize] & BLANK != 0
}

impl<'t> Cursor<'t> {
    /// A cursor at the start of `text`.
    pub(crate) fn new(text: &'t str) -> Cursor<'t> {
        Cursor { text, pos: 0 }
    }

    /// The whole text.
    pub(crate) fn text(&self) -> &'t str {
        self.text
    }

    /// The bytes of the whole text.
    #[inline]
    pub(crate) fn bytes(&self) -> &'t [u8] {
        self.text.as_bytes()
    }

    /// The text from `start` to `end`; empty if that is no range of characters.
    #[inline]
    pub(crate) fn slice(&self, start: usize, end: usize) -> &'t str {
        self.text.get(start..end).unwrap_or("")
    }

    /// The next byte as it stands.
    #[inline]
    pub(crate) fn raw(&self) -> Option<u8> {
        self.bytes().get(self.pos).copied()
    }

    /// The byte `ahead` places on.
    #[inline]
    pub(crate) fn raw_at(&self, ahead: usize) -> Option<u8> {
        self.bytes().get(self.pos.saturating_add(ahead)).copied()
    }

    /// Moves over blanks and comments.
    #[inline]
    pub(crate) fn skip_blanks(&mut self) {
        while let Some(byte) = self.raw() {
            if is_blank(byte) {
                self.pos += 1;
            } else if byte != b'/' || !self.skip_comment() {
                return;
            }
        }
    }

    /// Moves over one comment; false, without a move, if there is none or it does not end.
    fn skip_comment(&mut self) -> bool {
        let rest = self.bytes().get(self.pos..).unwrap_or(&[]);
        if rest.starts_with(b"//") {
            self.pos += rest.iter().position(|&b| b == b'\n' || b == b'\r').unwrap_or(rest.len());
            return true;
        }
        if rest.starts_with(b"/*")
            && let Some(len) = rest.get(2..).and_then(|inner| inner.windows(2).position(|w| w == b"*/"))
        {
            self.pos += len + 4;
            return true;
        }
        false
    }

    /// The next byte after blanks.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        // Mostly no blank or one space stands between tokens.
        self.pos += (self.raw() == Some(b' ')) as usize;
        match self.raw() {
            Some(byte) if byte > b' ' && byte != b'/' => Some(byte),
            _ => self.peek_on(),
        }
    }

    #[inline(never)]
    fn peek_on(&mut self) -> Option<u8> {
        self.skip_blanks();
        self.raw()
    }

    /// Takes `byte` if it comes next after blanks.
    #[inline(always)]
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.pos += found as usize;
        found
    }

    /// Takes `byte` or fails.
    #[inline(always)]
    pub(crate) fn expect(&mut self, byte: u8, place: &str) -> Fallible<()> {
        if self.eat(byte) { Ok(()) } else { Err(self.expected_byte(byte, place)) }
    }

    #[cold]
    fn expected_byte(&mut self, byte: u8, place: &str) -> Box<hlo_ir::diag::Diagnostic> {
        self.expected(&format!("`{}` {place}", byte as char))
    }

    /// Takes the punctuation `token` if it comes next after blanks.
    #[inline]
    pub(crate) fn eat_str(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let found = self.bytes().get(self.pos..).is_some_and(|rest| rest.starts_with(token.as_bytes()));
        if found {
            self.pos += token.len();
        }
        found
    }

    /// Takes the punctuation `token` or fails.
    pub(crate) fn expect_str(&mut self, token: &str, place: &str) -> Fallible<()> {
        if self.eat_str(token) { Ok(()) } else { Err(self.expected(&format!("`{token}` {place}"))) }
    }

    /// Takes the word `word` if exactly it comes next.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.pos += word.len();
        }
        found
    }

    /// The word (name bytes) that comes next, not taken; empty if there is none.
    #[inline]
    pub(crate) fn peek_word(&mut self) -> &'t str {
        let _ = self.peek();
        self.slice(self.pos, self.word_end())
    }

    #[inline]
    fn word_end(&self) -> usize {
        let bytes = self.bytes();
        let mut end = self.pos;
        while let Some(chunk) = bytes.get(end..).and_then(<[u8]>::first_chunk) {
            match n_name_bytes(chunk) {
                16 => end += 16,
                n => return end + n,
            }
        }
        while let Some(&byte) = bytes.get(end) {
            if !is_name_byte(byte) {
                break;
            }
            end += 1;
        }
        end
    }

    /// Takes the word that comes next; `what` says what it is for.
    #[inline]
    pub(crate) fn word(&mut self, what: &str) -> Fallible<&'t str> {
        let word = self.peek_word();
        if word.is_empty() {
            return Err(self.expected(what));
        }
        self.pos += word.len();
        Ok(word)
    }

    /// Takes the name of an instruction or computation with or without `%`; gives it without, and where it starts.
    #[inline]
    pub(crate) fn name(&mut self, what: &str) -> Fallible<(&'t str, usize)> {
        let start_byte = self.peek();
        let has_percent = start_byte == Some(b'%');
        if !has_percent && !start_byte.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_') {
            return Err(self.expected(what));
        }
        let place = self.pos;
        self.pos += has_percent as usize;
        let start = self.pos;
        let end = self.word_end();
        if end == start {
            return Err(self.expected(what));
        }
        self.pos = end;
        Ok((self.slice(start, end), place))
    }

    /// The name without `%` that comes next, not taken.
    #[inline]
    pub(crate) fn peek_name(&mut self) -> Option<&'t str> {
        let first = self.peek()?;
        (first.is_ascii_alphabetic() || first == b'_').then(|| self.slice(self.pos, self.word_end()))
    }

    /// Takes a name where XLA prints none of them with `%`, so that words that are no names elsewhere do here.
    pub(crate) fn any_name(&mut self, what: &str) -> Fallible<&'t str> {
        let _ = self.eat(b'%');
        self.word(what)
    }

    /// As [`Cursor::name`], but a word that means something else needs its `%`, as in XLA.
    #[inline]
    pub(crate) fn own_name(&mut self, what: &str) -> Fallible<(&'t str, usize)> {
        let (name, place) = self.name(what)?;
        if self.bytes().get(place) != Some(&b'%') && is_reserved(name) {
            let message = format!("expected {what}, found the reserved word `{name}`");
            return Err(failure(EXPECTED, place, self.pos, message));
        }
        Ok((name, place))
    }

    /// Takes `key=`, no blank before the `=`, as in XLA.
    #[inline]
    pub(crate) fn key(&mut self, what: &str) -> Fallible<&'t str> {
        let key = self.word(what)?;
        if self.raw() != Some(b'=') {
            let start = self.pos - key.len();
            let shown = key.get(..key.len().min(60)).unwrap_or(key);
            return Err(failure(
                EXPECTED,
                start,
                self.pos,
                format!("expected {what} and `=`, found `{shown}` without `=`"),
            ));
        }
        self.pos += 1;
        Ok(key)
    }

    /// Takes an integer.
    #[inline]
    pub(crate) fn int(&mut self, what: &str) -> Fallible<i64> {
        self.skip_blanks();
        let start = self.pos;
        let bytes = self.bytes();
        let is_negative = self.raw() == Some(b'-');
        let mut end = start + is_negative as usize;
        let first_digit = end;
        let mut value = 0i64;
        let mut fits = true;
        while let Some(&byte) = bytes.get(end) {
            if CLASS[byte as usize] & DIGIT == 0 {
                break;
            }
            let digit = i64::from(byte - b'0');
            match value.checked_mul(10).and_then(|v| v.checked_sub(digit)) {
                Some(next) => value = next,
                None => fits = false,
            }
            end += 1;
        }
        if end == first_digit {
            return Err(self.expected(what));
        }
        let value = if is_negative { Some(value) } else { value.checked_neg() };
        match value {
            Some(value) if fits => {
                self.pos = end;
                Ok(value)
            }
            _ => Err(failure(LIMIT, start, end, format!("expected {what} of at most 64 bits, found a larger one"))),
        }
    }

    /// Takes an integer that is not negative.
    #[inline]
    pub(crate) fn count(&mut self, what: &str) -> Fallible<i64> {
        self.skip_blanks();
        let start = self.pos;
        let value = self.int(what)?;
        if value < 0 {
            return Err(failure(
                EXPECTED,
                start,
                self.pos,
                format!("expected {what} that is not negative, found {value}"),
            ));
        }
        Ok(value)
    }

    /// Takes `open item, item … close`; a comma may stand after the last item, as in XLA.
    pub(crate) fn list(
        &mut self,
        (open, close): (u8, u8),
        place: &str,
        item: &mut impl FnMut(&mut Cursor<'t>) -> Fallible<()>,
    ) -> Fallible<()> {
        self.expect(open, place)?;
        while !self.eat(close) {
            item(self)?;
            if !self.eat(b',') {
                return self.expect_close(close, place);
            }
        }
        Ok(())
    }

    /// Takes the closing byte of a list, or says that a comma would do as well.
    pub(crate) fn expect_close(&mut self, close: u8, place: &str) -> Fallible<()> {
        if self.eat(close) { Ok(()) } else { Err(self.expected_close(close, place)) }
    }

    #[cold]
    fn expected_close(&mut self, close: u8, place: &str) -> Box<hlo_ir::diag::Diagnostic> {
        self.expected(&format!("`,` or `{}` {place}", close as char))
    }

    /// Takes a quoted string, unescaped.
    pub(crate) fn string(&mut self, what: &str) -> Fallible<Cow<'t, str>> {
        let start = match self.peek() {
            Some(b'"' | b'\'') => self.pos,
            _ => return Err(self.expected(what)),
        };
        self.skip_string()?;
        let inner = self.slice(start + 1, self.pos - 1);
        if inner.bytes().any(|b| b == b'\\') || encode_bytes::needs_encoding(inner) {
            unescape(inner, start + 1).map(Cow::Owned)
        } else {
            Ok(Cow::Borrowed(inner))
        }
    }

    /// Moves over the quoted string that comes next as it stands.
    fn skip_string(&mut self) -> Fallible<()> {
        let start = self.pos;
        let quote = self.raw();
        let mut pos = start + 1;
        loop {
            match self.bytes().get(pos) {
                None => {
                    let end = start + self.slice(start, self.text.len()).find('\n').unwrap_or(1);
                    let message = "expected a closing quote, found the end of the file";
                    return Err(failure(EXPECTED, start, end, message));
                }
                Some(b'\\') => pos += 2,
                byte if byte.copied() == quote => break,
                Some(_) => pos += 1,
            }
        }
        self.pos = pos + 1;
        Ok(())
    }

    /// Takes balanced text from `{` to its `}`, strings in it skipped, as it stands.
    pub(crate) fn braces(&mut self, what: &str) -> Fallible<&'t str> {
        if self.peek() != Some(b'{') {
            return Err(self.expected(what));
        }
        let start = self.pos;
        let mut depth = 0usize;
        loop {
            match self.raw() {
                None => {
                    return Err(failure(
                        EXPECTED,
                        start,
                        start + 1,
                        "expected a `}` that closes this, found the end of the file",
                    ));
                }
                Some(b'"') => {
                    self.skip_string()?;
                    continue;
                }
                Some(b'{') => depth += 1,
                Some(b'}') => depth -= 1,
                Some(_) => {}
            }
            self.pos += 1;
            if depth == 0 {
                return Ok(self.slice(start, self.pos));
            }
        }
    }

    /// An error that says what was expected here and what stands here instead.
    #[cold]
    pub(crate) fn expected(&mut self, what: &str) -> Box<hlo_ir::diag::Diagnostic> {
        self.skip_blanks();
        if self.raw().is_none() {
            // The last thing in the file is a better place than the empty line after it.
            let end = self.text.trim_ascii_end().len();
            return failure(EXPECTED, end, end, format!("expected {what}, found the end of the file"));
        }
        let (found, len) = self.describe();
        failure(EXPECTED, self.pos, self.pos + len, format!("expected {what}, found {found}"))
    }

    /// What stands here, in words, and its length.
    fn describe(&self) -> (String, usize) {
        const LONGEST: usize = 40;
        let rest = self.slice(self.pos, self.text.len());
        let Some(first) = rest.chars().next() else { return ("the end of the file".into(), 0) };
        if rest.starts_with("/*") {
            return ("a comment that does not end".into(), 2);
        }
        let sigil = (first == '%') as usize;
        let word = rest.bytes().skip(sigil).take_while(|&b| is_name_byte(b)).count();
        if word == 0 {
            return (format!("`{}`", first.escape_debug()), first.len_utf8());
        }
        let len = word + sigil;
        let shown = rest.get(..len.min(LONGEST)).unwrap_or("");
        let more = if len > LONGEST { "…" } else { "" };
        (format!("`{shown}{more}`"), len)
    }
}

/// Resolves C escapes. Bytes that make no UTF-8 are kept by [`encode_bytes`].
fn unescape(inner: &str, at: usize) -> Fallible<String> {
    let bytes = inner.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        i += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let escape = bytes.get(i).copied();
        i += 1;
        match escape {
            Some(b'n') => out.push(b'\n'),
            Some(b't') => out.push(b'\t'),
            Some(b'r') => out.push(b'\r'),
            Some(b'a') => out.push(7),
            Some(b'b') => out.push(8),
            Some(b'f') => out.push(12),
            Some(b'v') => out.push(11),
            Some(c @ (b'"' | b'\'' | b'\\' | b'?')) => out.push(c),
            Some(b'x' | b'X') => out.push(number(bytes, &mut i, 16, 2, at)?),
            Some(b'0'..=b'7') => {
                i -= 1;
                out.push(number(bytes, &mut i, 8, 3, at)?);
            }
            _ => {
                let start = at + i.saturating_sub(2);
                return Err(failure(
                    EXPECTED,
                    start,
                    start + 2,
                    "expected an escape such as `\\n` or `\\303`, found another",
                ));
            }
        }
    }
    Ok(encode_bytes::encode(out))
}

/// Up to `max_digits` digits of an escape in `radix`.
fn number(bytes: &[u8], i: &mut usize, radix: u32, max_digits: usize, at: usize) -> Fallible<u8> {
    let start = *i;
    let mut value = 0u32;
    while *i < start + max_digits
        && let Some(digit) = bytes.get(*i).and_then(|&b| (b as char).to_digit(radix))
    {
        value = value * radix + digit;
        *i += 1;
    }
    u8::try_from(value).ok().filter(|_| *i > start).ok_or_else(|| {
        failure(EXPECTED, at + start, at + *i, "expected an escape of one byte, found a larger or empty one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_find_the_end_of_a_name_agree() {
        for byte in 0..=u8::MAX {
            for place in 0..16 {
                let mut chunk = *b"abyzABYZ0189_.-a";
                chunk[place] = byte;
                let expected = chunk.iter().take_while(|&&b| is_name_byte(b)).count();
                assert_eq!(n_name_bytes(&chunk), expected, "byte {byte} at {place}");
            }
        }
    }
}
