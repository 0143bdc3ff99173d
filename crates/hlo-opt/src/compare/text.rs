//! A verdict as text.

use super::arguments::JudgeArgs;
use super::difference::{FirstDifference, LeafDifference};
use super::judge::Verdict;
use super::signature::{output_names, shown};
use hlo_eval::result_leaves;
use hlo_ir::Module;
use hlo_ir::literal::Scalar;
use std::fmt::Write;

/// Outputs that are listed; of more, those that differ come first.
const MAX_ROWS: usize = 40;

/// The first value that differs, and a line for each output that does; or one line where none does.
pub(crate) fn of_verdict(verdict: &Verdict, args: &JudgeArgs, reference: &Module) -> String {
    let names = output_names(reference);
    let named = |i: usize| names.get(i).map_or(String::new(), |name| format!(" ({name})"));
    let mut out = String::new();
    let first = verdict.leaves.iter().enumerate().find_map(|(i, leaf)| Some((i, leaf.first.as_ref()?)));
    let Some((leaf_idx, first)) = first else {
        let worst = verdict.largest_share;
        let n_trials = verdict.trial + 1;
        let of_program = if verdict.is_global { " of the global program" } else { "" };
        let (n, devices, trials) =
            (verdict.leaves.len(), verdict.n_devices, if n_trials == 1 { "trial" } else { "trials" });
        let what = if verdict.is_undecided() { "undecided" } else { "the same" };
        let _ = writeln!(
            out,
            "{what}: {n} outputs{of_program} on {devices} devices, {n_trials} {trials}; the largest difference is {worst:.1e} of what \
             its output is measured by"
        );
        note_nans(verdict, reference, &mut out);
        out.extend(verdict.one_sided.as_deref());
        return out;
    };
    let cut = verdict.leaves.get(leaf_idx).and_then(|leaf| leaf.cut.as_ref());
    let cut = cut.map_or(String::new(), |cut| format!(", in its tile by {cut},"));
    let FirstDifference { device, index, expected, found } = first;
    let index: Vec<String> = index.iter().map(i64::to_string).collect();
    let origin = match &args.inputs.inputs {
        Some(path) => format!("inputs of {}", path.display()),
        None => format!("seed {}", args.inputs.seed.wrapping_add(verdict.trial)),
    };
    let _ = writeln!(
        out,
        "different ({origin}): output {leaf_idx}{} of device {device}{cut} at [{}]: expected {}, found {}",
        named(leaf_idx),
        index.join(","),
        number(*expected),
        number(*found)
    );
    table(verdict, reference, &mut out);
    note_nans(verdict, reference, &mut out);
    out
}

fn table(verdict: &Verdict, reference: &Module, out: &mut String) {
    let _ = writeln!(
        out,
        "{:>6}  {:<24} {:>12} {:>12} {:>12} {:>12}",
        "output", "shape", "different", "of", "largest", "allowed"
    );
    let shapes = result_leaves(reference);
    let rows = verdict.leaves.iter().enumerate().filter(|(_, leaf)| leaf.first.is_some());
    let n_rows = rows.clone().count();
    for (i, leaf) in rows.take(MAX_ROWS) {
        let shape = shapes.get(i).map(shown).unwrap_or_default();
        let LeafDifference { n_different, n_elems, largest_error, allowed, .. } = leaf;
        let _ = writeln!(
            out,
            "{i:>6}  {shape:<24} {n_different:>12} {n_elems:>12} {largest_error:>12.2e} {allowed:>12.2e}"
        );
    }
    if n_rows > MAX_ROWS {
        let _ = writeln!(out, "   and {} outputs more", n_rows - MAX_ROWS);
    }
    let _ = writeln!(out, "{n_rows} of {} outputs differ", verdict.leaves.len());
}

/// Says where NaN or infinities in both programs hide differences, and lists the outputs of which they hide too much.
fn note_nans(verdict: &Verdict, reference: &Module, out: &mut String) {
    let n_in_all: usize = verdict.hidden.iter().map(|hidden| hidden.n_in_all).sum();
    if n_in_all == 0 {
        return;
    }
    let n_elems: usize = verdict.hidden.iter().map(|hidden| hidden.n_elems).sum();
    let n_compared = n_elems * verdict.n_counted;
    let _ = writeln!(
        out,
        "note: {n_in_all} of {n_compared} elements are NaN in both programs, infinite as all of their output, or mostly rounding, which hides differences"
    );
    let undecided = verdict.hidden.iter().enumerate().filter(|(_, hidden)| hidden.is_undecided());
    let n_undecided = undecided.clone().count();
    if n_undecided == 0 {
        return;
    }
    let names = output_names(reference);
    let shapes = result_leaves(reference);
    let _ = writeln!(out, "{:>6}  {:<24} {:>12} {:>12}", "output", "shape", "hidden", "of");
    for (i, hidden) in undecided.take(MAX_ROWS) {
        let shape = shapes.get(i).map(shown).unwrap_or_default();
        let name = names.get(i).map_or(String::new(), |name| format!("  {name}"));
        let _ = writeln!(out, "{i:>6}  {shape:<24} {:>12} {:>12}{name}", hidden.n_hidden(), hidden.n_elems);
    }
    if n_undecided > MAX_ROWS {
        let _ = writeln!(out, "   and {} outputs more", n_undecided - MAX_ROWS);
    }
    let _ = writeln!(
        out,
        "{n_undecided} of {} outputs are NaN in more than 1 % of their elements, infinite, or mostly rounding, in every trial: choose inputs for \
         which the program gives numbers (--draw, --inputs)",
        verdict.hidden.len()
    );
}

fn number(scalar: Scalar) -> String {
    match scalar {
        Scalar::Pred(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Uint(value) => value.to_string(),
        Scalar::Float(value) => float(value),
        Scalar::Complex(re, im) => format!("({}, {})", float(re), float(im)),
    }
}

/// With all digits that may matter, and no more.
fn float(value: f64) -> String {
    let plain = format!("{value}");
    if plain.len() <= 12 { plain } else { format!("{value:.9e}") }
}
