//! A printed instruction, cut into its parts: `%name = SHAPE opcode(IN PARENTHESES), name=value, …`.

/// Parts of a printed instruction.
#[derive(Debug)]
pub(super) struct InstructionText<'t> {
    /// The shape, with layouts.
    pub shape: &'t str,
    /// The operands, the value of a constant or the number of a parameter.
    pub in_parentheses: &'t str,
    /// What comes behind, in order.
    pub attributes: Vec<(&'t str, &'t str)>,
}

impl<'t> InstructionText<'t> {
    /// Cuts a line of `print_instruction`.
    pub(super) fn of(line: &'t str) -> InstructionText<'t> {
        let (_, rest) = line.split_once(" = ").unwrap_or_default();
        let (shape, rest) = cut(rest, " ");
        let (_, rest) = rest.split_once('(').unwrap_or_default();
        let (in_parentheses, mut rest) = cut(rest, ")");
        let mut attributes = Vec::new();
        rest = rest.trim_start_matches(", ");
        while !rest.is_empty() {
            let (attribute, behind) = cut(rest, ", ");
            attributes.push(attribute.split_once('=').unwrap_or((attribute, "")));
            rest = behind;
        }
        InstructionText { shape, in_parentheses, attributes }
    }
}

/// What stands before the first `end` that is in no brackets and in no quotes, and what stands behind it.
fn cut<'t>(text: &'t str, end: &str) -> (&'t str, &'t str) {
    let (mut depth, mut is_quoted, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        if is_escaped {
            is_escaped = false;
            continue;
        }
        if depth == 0 && !is_quoted && text.as_bytes()[at..].starts_with(end.as_bytes()) {
            return (&text[..at], &text[at + end.len()..]);
        }
        match byte {
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'(' | b'[' | b'{' if !is_quoted => depth += 1,
            b')' | b']' | b'}' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (text, "")
}
