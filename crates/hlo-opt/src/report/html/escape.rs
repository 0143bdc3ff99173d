//! Text inside a page: names come from files that anybody may have written.

/// The longest text that a cell shows; the JSON report has all of it.
const LONGEST: usize = 400;

/// Text for an element or an attribute in double quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\0' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// JSON for a script element. The characters that could end the element, begin a comment or end a line of a script only stand in
/// strings, where an escape means the same.
pub(super) fn script_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            other => out.push(other),
        }
    }
    out
}

/// The beginning of a long text.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_is_markup() {
        assert_eq!(escaped("</td><script>\"'&\0"), "&lt;/td&gt;&lt;script&gt;&quot;&#39;&amp;\u{fffd}");
        let hostile = "</script><!--\u{2028}&";
        let json = script_json(&serde_json::json!([hostile]).to_string());
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).expect("JSON"), [hostile]);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let long = "µ".repeat(LONGEST + 1);
        assert_eq!(shortened(&long).chars().count(), LONGEST + 1);
        assert_eq!(shortened("short"), "short");
    }
}
