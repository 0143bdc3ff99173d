//! Diagnostics as text: place, source line, caret, help.

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use hlo_ir::diag::{Diagnostic, Span};

/// Most characters of a source line that are shown before the place and from it on; lines of HLO can be megabytes long.
const SHOWN_CHARS: usize = 100;

/// Renders diagnostics that speak of `text`, which was read from `file_name`.
pub fn render(diags: &[Diagnostic], file_name: &str, text: &str, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for diag in diags {
        let mut group = Group::with_title(Level::ERROR.primary_title(diag.message.as_str()).id(diag.rule));
        if let Some(span) = diag.span {
            let place = locate(text, span);
            let caret = AnnotationKind::Primary.span(place.start..place.end);
            let snippet = Snippet::source(place.shown).line_start(place.line).annotation(caret);
            group = if place.is_clipped {
                // The snippet would count columns from where it begins, so line and column stand apart.
                let origin = Origin::path(file_name.to_string()).line(place.line).char_column(place.column);
                group.element(origin).element(snippet)
            } else {
                group.element(snippet.path(file_name.to_string()))
            };
        }
        if let Some(help) = &diag.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        out.push_str(&renderer.render(&[group]));
        out.push('\n');
    }
    out
}

/// 1-based line and column (in characters) of a byte offset.
pub fn line_and_column(text: &str, offset: u32) -> (usize, usize) {
    let place = locate(text, Span { start: offset, end: offset });
    (place.line, place.column)
}

/// A span's line and column, and the part of its source line that is shown.
struct Place {
    line: usize,
    column: usize,
    shown: String,
    /// Whether something before the span is not shown.
    is_clipped: bool,
    /// Byte range of the span in `shown`.
    start: usize,
    end: usize,
}

fn locate(text: &str, span: Span) -> Place {
    let mut offset = (span.start as usize).min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let (before, after) = text.split_at(offset);
    // CR, LF and CRLF all end a line.
    let n_breaks = before.bytes().filter(|&b| b == b'\n').count();
    let n_lone_returns = before.bytes().zip(before.bytes().skip(1).chain(after.bytes().next()));
    let line = 1 + n_breaks + n_lone_returns.filter(|&(a, b)| a == b'\r' && b != b'\n').count();
    let head = before.rsplit(['\n', '\r']).next().unwrap_or("");
    let tail = after.split(['\n', '\r']).next().unwrap_or("");
    let column = 1 + head.chars().count();
    let skipped = (column - 1).saturating_sub(SHOWN_CHARS);
    let mut shown = String::new();
    if skipped > 0 {
        shown.push('…');
    }
    shown.extend(head.chars().skip(skipped));
    let start = shown.len();
    let wanted = (span.end as usize).saturating_sub(offset);
    let mut end = start;
    for c in tail.chars().take(SHOWN_CHARS) {
        shown.push(c);
        if shown.len() - start <= wanted {
            end = shown.len();
        }
    }
    if tail.chars().nth(SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    if shown.len() == start {
        // The end of a line: the caret needs something to point at.
        shown.push(' ');
    }
    if end == start {
        end += shown.get(start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
    }
    Place { line, column, shown, is_clipped: skipped > 0, start, end }
}
