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
        let worst = verdict.leaves.iter().map(LeafDifference::share).fold(0.0, f64::max);
        let n_trials = verdict.trial + 1;
        let of_program = if verdict.is_global { " of the global program" } else { "" };
        let (n, devices, trials) =
            (verdict.leaves.len(), verdict.n_devices, if n_trials == 1 { "trial" } else { "trials" });
        let _ = writeln!(
            out,
            "the same: {n} outputs{of_program} on {devices} devices, {n_trials} {trials}; the largest difference is {worst:.1e} of an \
             output's largest element"
        );
        note_nans(verdict, &mut out);
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
    note_nans(verdict, &mut out);
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

/// NaNs hide errors: says where nothing could be compared.
fn note_nans(verdict: &Verdict, out: &mut String) {
    let n_nan: usize = verdict.leaves.iter().map(|leaf| leaf.n_nan).sum();
    if n_nan > 0 {
        let _ = writeln!(
            out,
            "note: {n_nan} values are NaN in the reference, which hides differences: choose other inputs (--draw)"
        );
    }
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
