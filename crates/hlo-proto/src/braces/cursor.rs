//! Reads the small texts between braces.

use hlo_ir::attrs::encode_bytes;

/// What is still to be read of a text.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'t> {
    rest: &'t str,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Cursor<'t> {
        Cursor { rest: text.trim_start() }
    }

    /// Takes `token` and blanks after it, if it is next.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// Takes `token`, which must be next.
    pub(super) fn expect(&mut self, token: &str) -> Option<()> {
        self.eat(token).then_some(())
    }

    /// Takes characters up to one of `ends`, which must be there.
    pub(super) fn until(&mut self, ends: &[char]) -> Option<&'t str> {
        let end = self.rest.find(ends)?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        Some(word.trim_end())
    }

    /// Takes a whole number.
    pub(super) fn int(&mut self) -> Option<i64> {
        let is_part = |c: char| c.is_ascii_digit() || c == '-';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        let number = number.parse().ok()?;
        self.rest = rest.trim_start();
        Some(number)
    }

    /// Takes numbers with commas between, in braces.
    pub(super) fn ints(&mut self) -> Option<Vec<i64>> {
        self.expect("{")?;
        let mut numbers = Vec::new();
        while !self.eat("}") {
            numbers.push(self.int()?);
            self.eat(",");
        }
        Some(numbers)
    }

    /// Takes text in double quotes. Backslashes escape what follows.
    pub(super) fn quoted(&mut self) -> Option<String> {
        let inner = self.rest.strip_prefix('"')?;
        let mut bytes = Vec::new();
        let mut is_escaped = false;
        for (at, &byte) in inner.as_bytes().iter().enumerate() {
            match byte {
                b'\\' if !is_escaped => is_escaped = true,
                b'"' if !is_escaped => {
                    self.rest = inner.get(at + 1..)?.trim_start();
                    return Some(encode_bytes::encode(bytes));
                }
                byte => {
                    bytes.push(byte);
                    is_escaped = false;
                }
            }
        }
        None
    }
}
