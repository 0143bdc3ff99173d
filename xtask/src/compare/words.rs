//! Words that were renamed on purpose.

use crate::workspace;

/// Old and new words.
#[derive(Default)]
pub(super) struct Renamed {
    words: Vec<(String, String)>,
}

impl Renamed {
    /// Reads the table beside this file.
    pub(super) fn read() -> Result<Renamed, String> {
        let path = workspace::root().join("xtask/src/compare/renamed.tsv");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Renamed::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// A line for each word: old, tab, new. Lines that begin with `#` say why.
    fn parse(text: &str) -> Result<Renamed, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let pair = |line: &str| {
            let (old, new) = line.split_once('\t').ok_or(format!("expected two words with a tab, found `{line}`"))?;
            Ok((old.to_string(), new.to_string()))
        };
        Ok(Renamed { words: lines.map(pair).collect::<Result<_, String>>()? })
    }

    /// The bytes with every old word as the new one. A word ends where no letter, digit, `_` or `-` follows.
    pub(super) fn apply(&self, bytes: Vec<u8>) -> Vec<u8> {
        self.words.iter().fold(bytes, |bytes, (old, new)| replace(&bytes, old.as_bytes(), new.as_bytes()))
    }
}

fn replace(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let is_inside = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || b"_-".contains(b));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let is_start = at == 0 || !is_inside(bytes.get(at - 1));
        if is_start && bytes[at..].starts_with(old) && !is_inside(bytes.get(at + old.len())) {
            out.extend_from_slice(new);
            at += old.len().max(1);
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_renamed() {
        let renamed = Renamed::parse("# why\nsoil\tcontext\n").expect("a table");
        let apply = |text: &str| String::from_utf8(renamed.apply(text.as_bytes().to_vec())).expect("text");
        assert_eq!(apply("soil, topsoil, soil-less, (soil)"), "context, topsoil, soil-less, (context)");
        assert!(Renamed::parse("one\n").is_err());
    }
}
