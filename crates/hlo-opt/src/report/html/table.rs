//! Tables of a page. They are whole without scripts; the page's script sorts them and folds long ones.

use super::escape::{escaped, shortened};
use std::fmt::Write;

/// A column: its heading, and whether it has numbers.
pub(crate) struct Column {
    title: &'static str,
    is_number: bool,
}

impl Column {
    /// A column of texts.
    pub(crate) const fn text(title: &'static str) -> Column {
        Column { title, is_number: false }
    }

    /// A column of numbers.
    pub(crate) const fn number(title: &'static str) -> Column {
        Column { title, is_number: true }
    }
}

/// A cell: what it shows, as HTML, and what it is sorted by if that is a number.
pub(crate) struct Cell {
    html: String,
    value: Option<f64>,
}

impl Cell {
    /// Words.
    pub(crate) fn text(text: &str) -> Cell {
        Cell { html: escaped(&shortened(text)), value: None }
    }

    /// A sentence, on a few lines.
    pub(crate) fn sentence(text: &str) -> Cell {
        let text = escaped(&shortened(text));
        let html = if text.is_empty() { text } else { format!("<span class=\"sentence\">{text}</span>") };
        Cell { html, value: None }
    }

    /// A word, never broken.
    pub(crate) fn word(text: &str) -> Cell {
        Cell { html: format!("<span class=\"word\">{}</span>", escaped(text)), value: None }
    }

    /// A name of many parts, which breaks where it must.
    pub(crate) fn path(text: &str) -> Cell {
        let text = escaped(&shortened(text));
        let html = if text.is_empty() { text } else { format!("<span class=\"path\">{text}</span>") };
        Cell { html, value: None }
    }

    /// A name of a program.
    pub(crate) fn code(text: &str) -> Cell {
        let html = if text.is_empty() { String::new() } else { format!("<code>{}</code>", escaped(&shortened(text))) };
        Cell { html, value: None }
    }

    /// A word on a coloured ground, for the few that tell rows apart.
    pub(crate) fn badge(word: &str) -> Cell {
        Cell { html: format!("<span class=\"badge {0}\">{0}</span>", escaped(word)), value: None }
    }

    /// A number and how it is shown.
    pub(crate) fn number(shown: String, value: f64) -> Cell {
        Cell { html: escaped(&shown), value: Some(value) }
    }
}

/// A table whose rows can be sorted by each column. Columns that are empty in all rows are left out.
pub(crate) struct Table<'c> {
    /// Of the element.
    pub(crate) id: String,
    pub(crate) columns: &'c [Column],
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Table<'_> {
    /// The element, in a box that scrolls sideways.
    pub(crate) fn html(&self) -> String {
        let mut out = format!("<div class=\"scroll\"><table class=\"sortable\" id=\"{}\">\n<thead><tr>", self.id);
        let is_shown =
            |column: usize| self.rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.html.is_empty()));
        let is_shown: Vec<bool> = (0..self.columns.len()).map(is_shown).collect();
        for (Column { title, is_number }, _) in self.columns.iter().zip(&is_shown).filter(|(_, shown)| **shown) {
            let class = if *is_number { " class=\"number\"" } else { "" };
            let _ = write!(out, "<th scope=\"col\"{class}>{title}</th>");
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for ((cell, column), _) in row.iter().zip(self.columns).zip(&is_shown).filter(|(_, shown)| **shown) {
                let class = if column.is_number { " class=\"number\"" } else { "" };
                // What is no finite number is sorted below all that are.
                let value = cell.value.filter(|value| value.is_finite());
                let value = value.map_or(String::new(), |value| format!(" data-value=\"{value}\""));
                let _ = write!(out, "<td{class}{value}>{}</td>", cell.html);
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
        out
    }
}

/// The first `most` of rows sorted by their size, and how many were left out with what size together.
pub(crate) fn largest<T>(mut rows: Vec<T>, most: usize, size: impl Fn(&T) -> u64) -> (Vec<T>, usize, u64) {
    rows.sort_by_key(|row| std::cmp::Reverse(size(row)));
    let rest = rows.split_off(most.min(rows.len()));
    let rest_bytes = rest.iter().fold(0u64, |sum, row| sum.saturating_add(size(row)));
    (rows, rest.len(), rest_bytes)
}
