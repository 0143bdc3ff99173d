//! Words, numbers and signs with their places.

use super::parse_error::ParseError;

/// One token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    Word(String),
    Number(i64),
    Sign(char),
    End,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(word) => write!(f, "`{word}`"),
            Token::Number(n) => write!(f, "{n}"),
            Token::Sign(sign) => write!(f, "`{sign}`"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

/// A token with its line and column, counted from one.
pub(super) type Placed = (Token, usize, usize);

/// Largest number in a rule.
const MOST: i64 = 1 << 16;

/// The tokens of a text; `#` begins a comment.
///
/// # Errors
/// A sign that no rule has, or too large a number.
pub(super) fn tokens(text: &str) -> Result<Vec<Placed>, ParseError> {
    let mut all = Vec::new();
    for (row, line) in text.lines().enumerate() {
        let code: Vec<char> = line.split('#').next().unwrap_or_default().chars().collect();
        let mut at = 0;
        while at < code.len() {
            let (start, c) = (at, code[at]);
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let token = if c.is_whitespace() {
                at += 1;
                continue;
            } else if c.is_ascii_digit() {
                while at < code.len() && code[at].is_ascii_digit() {
                    at += 1;
                }
                let digits: String = code[start..at].iter().collect();
                let number = digits.parse().ok().filter(|n| *n <= MOST);
                Token::Number(number.ok_or_else(|| ParseError {
                    line: row + 1,
                    column: start + 1,
                    expected: format!("a number of at most {MOST}"),
                    found: digits,
                })?)
            } else if is_word(c) {
                // A dash joins words where a letter follows at once: `dot-of-concat`; in sizes it stands apart.
                let joins = |at: usize| code[at] == '-' && code.get(at + 1).is_some_and(|c| is_word(*c));
                while at < code.len() && (is_word(code[at]) || joins(at)) {
                    at += 1;
                }
                Token::Word(code[start..at].iter().collect())
            } else if "()[],:=+-*".contains(c) {
                at += 1;
                Token::Sign(c)
            } else {
                let expected = "a word, a number or one of ()[],:=+-*".to_string();
                return Err(ParseError { line: row + 1, column: start + 1, expected, found: format!("`{c}`") });
            };
            all.push((token, row + 1, start + 1));
        }
    }
    let n_lines = text.lines().count();
    all.push((Token::End, n_lines.max(1), text.lines().last().map_or(1, |l| l.chars().count() + 1)));
    Ok(all)
}
