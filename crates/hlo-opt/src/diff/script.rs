//! What differs, as a list of lines, and that list as text and as HTML.

use super::matching::{Matching, Side};
use hlo_ir::print::print_instruction;
use hlo_ir::{CompId, InstId};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Of both.
    Same,
    /// Of A alone, or as it was.
    Old,
    /// Of B alone, or as it is.
    New,
    /// What follows.
    Head,
}

/// Lines with their marks.
pub(crate) type Lines = Vec<(Mark, String)>;

/// How many instructions are what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub same: usize,
    pub changed: usize,
    pub removed: usize,
    pub added: usize,
}

impl Counts {
    pub(super) fn is_none(self) -> bool {
        self.changed + self.removed + self.added == 0
    }

    fn plus(self, other: Counts) -> Counts {
        Counts {
            same: self.same + other.same,
            changed: self.changed + other.changed,
            removed: self.removed + other.removed,
            added: self.added + other.added,
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { same, changed, removed, added } = self;
        write!(f, "{same} the same, {changed} changed, {removed} removed, {added} added")
    }
}

/// One instruction or pair of them.
#[derive(Clone, Copy)]
enum Entry {
    Same(InstId),
    Changed(InstId, InstId),
    Removed(InstId),
    Added(InstId),
}

/// All differences of two modules: counts of all instructions, and lines of what differs with so many lines around.
pub(super) fn write(a: &Side<'_>, b: &Side<'_>, matching: &Matching, context: usize) -> (Counts, Lines) {
    let (mut total, mut lines) = (Counts::default(), Lines::new());
    for &(comp_a, comp_b) in &matching.comps {
        let entries = entries(a, b, matching, comp_a, comp_b);
        let counts = entries.iter().fold(Counts::default(), |counts, entry| counts.plus(entry.count()));
        total = total.plus(counts);
        if !counts.is_none() {
            lines.push((Mark::Head, head(a, b, comp_a, comp_b, counts)));
            write_entries(a, b, &entries, context, &mut lines);
        }
    }
    (total, lines)
}

impl Entry {
    fn count(self) -> Counts {
        let mut counts = Counts::default();
        match self {
            Entry::Same(_) => counts.same = 1,
            Entry::Changed(..) => counts.changed = 1,
            Entry::Removed(_) => counts.removed = 1,
            Entry::Added(_) => counts.added = 1,
        }
        counts
    }
}

fn head(a: &Side<'_>, b: &Side<'_>, comp_a: Option<CompId>, comp_b: Option<CompId>, counts: Counts) -> String {
    let names = (comp_a.map(|comp| a.module.comp_name(comp)), comp_b.map(|comp| b.module.comp_name(comp)));
    let name = match names {
        (Some(x), Some(y)) if x == y => format!("%{x}"),
        (Some(x), Some(y)) => format!("%{x} -> %{y}"),
        (Some(x), None) => format!("%{x} (removed)"),
        (None, Some(y)) => format!("%{y} (added)"),
        (None, None) => String::new(),
    };
    format!("@@ {name}: {counts}")
}

/// The instructions in the order of B, those of A alone where they stood in A.
fn entries(
    a: &Side<'_>,
    b: &Side<'_>,
    matching: &Matching,
    comp_a: Option<CompId>,
    comp_b: Option<CompId>,
) -> Vec<Entry> {
    let of_a = comp_a.map_or(&[][..], |comp| &a.module.comp(comp).insts);
    let of_b = comp_b.map_or(&[][..], |comp| &b.module.comp(comp).insts);
    let mut removed = of_a.iter().enumerate().filter(|(_, inst)| matching.to_b[**inst].is_none()).peekable();
    let places: BTreeMap<InstId, usize> = of_a.iter().enumerate().map(|(place, &inst)| (inst, place)).collect();
    let mut out = Vec::with_capacity(of_b.len());
    for &inst in of_b {
        let Some(old) = matching.to_a[inst].expand() else {
            out.push(Entry::Added(inst));
            continue;
        };
        let place = places.get(&old).copied().unwrap_or(0);
        while let Some((_, &gone)) = removed.next_if(|(other, _)| *other < place) {
            out.push(Entry::Removed(gone));
        }
        out.push(if matching.is_same(a, b, old, inst) { Entry::Same(inst) } else { Entry::Changed(old, inst) });
    }
    out.extend(removed.map(|(_, &gone)| Entry::Removed(gone)));
    out
}

fn write_entries(a: &Side<'_>, b: &Side<'_>, entries: &[Entry], context: usize, lines: &mut Lines) {
    let mut is_shown = vec![false; entries.len()];
    for (i, _) in entries.iter().enumerate().filter(|(_, entry)| !matches!(entry, Entry::Same(_))) {
        let (from, to) = (i.saturating_sub(context), (i + context + 1).min(entries.len()));
        is_shown[from..to].fill(true);
    }
    let mut was_shown = true;
    for (entry, &is_shown) in entries.iter().zip(&is_shown) {
        if is_shown && !was_shown {
            lines.push((Mark::Same, "  ...".into()));
        }
        was_shown = is_shown;
        if !is_shown {
            continue;
        }
        let line = |side: &Side<'_>, inst: InstId| format!("  {}", print_instruction(side.module, inst));
        match *entry {
            Entry::Same(inst) => lines.push((Mark::Same, line(b, inst))),
            Entry::Removed(inst) => lines.push((Mark::Old, line(a, inst))),
            Entry::Added(inst) => lines.push((Mark::New, line(b, inst))),
            Entry::Changed(old, new) => {
                lines.push((Mark::Old, line(a, old)));
                lines.push((Mark::New, line(b, new)));
            }
        }
    }
}

/// How many of each opcode there are in A and in B, where that differs; the largest differences first.
pub(super) fn opcodes(a: &Side<'_>, b: &Side<'_>) -> Vec<(&'static str, usize, usize)> {
    let mut counts: BTreeMap<&'static str, (usize, usize)> = BTreeMap::new();
    let names = |side: &Side<'_>| -> Vec<&'static str> {
        let comps = side.module.computations().iter();
        let insts = comps.flat_map(|&comp| &side.module.comp(comp).insts);
        insts.map(|&inst| side.module.inst(inst).opcode.row().name).collect()
    };
    names(a).into_iter().for_each(|name| counts.entry(name).or_default().0 += 1);
    names(b).into_iter().for_each(|name| counts.entry(name).or_default().1 += 1);
    let mut rows: Vec<_> = counts.into_iter().map(|(name, (x, y))| (name, x, y)).filter(|(_, x, y)| x != y).collect();
    rows.sort_by_key(|(name, x, y)| (std::cmp::Reverse(x.abs_diff(*y)), *name));
    rows
}

/// As `diff -u` has it.
pub(super) fn as_text(lines: &Lines, has_color: bool) -> String {
    let mut out = String::new();
    for (mark, line) in lines {
        let (sign, color) = match mark {
            Mark::Same => (" ", ""),
            Mark::Old => ("-", "\u{1b}[31m"),
            Mark::New => ("+", "\u{1b}[32m"),
            Mark::Head => ("", "\u{1b}[36m"),
        };
        let (color, end) = if has_color && !color.is_empty() { (color, "\u{1b}[0m") } else { ("", "") };
        let _ = writeln!(out, "{color}{sign}{line}{end}");
    }
    out
}

/// One page that needs nothing else.
pub(super) fn as_html(title: &str, summary: &str, lines: &Lines) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>\n\
         body {{ font: 13px/1.5 monospace; margin: 1em; }} pre {{ margin: 0; white-space: pre; }}\n\
         .old {{ background: #ffebe9; }} .new {{ background: #dafbe1; }} .head {{ background: #ddf4ff; margin-top: 1em; }}\n\
         </style></head><body>\n<h1>{0}</h1>\n<pre>{1}</pre>\n",
        escaped(title),
        escaped(summary)
    );
    for (mark, line) in lines {
        let (class, sign) = match mark {
            Mark::Same => ("same", " "),
            Mark::Old => ("old", "-"),
            Mark::New => ("new", "+"),
            Mark::Head => ("head", ""),
        };
        let _ = writeln!(out, "<pre class=\"{class}\">{sign}{}</pre>", escaped(line));
    }
    out.push_str("</body></html>\n");
    out
}
