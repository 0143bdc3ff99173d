//! `hlo-opt diff`: what differs between two modules by what they compute, names aside.

pub(crate) mod arguments;
mod keys;
mod matching;
mod script;

use crate::console::Console;
use crate::input::load_one;
use crate::progress::Progress;
use crate::{Failure, exit};
pub(crate) use script::{Lines, Mark};

use arguments::{DiffArgs, DiffFormat};
use hlo_ir::Module;
use keys::Keys;
use matching::{Matching, Side};
use std::fmt::Write;
use std::path::Path;

/// Opcodes that the summary lists.
const MAX_OPCODES: usize = 20;

/// Prints the differences.
///
/// # Errors
/// Wrong usage, or an invalid module.
pub(crate) fn run(args: &DiffArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let stdin = Path::new("-");
    if args.a == stdin && args.b == stdin {
        return Err(Failure::Usage("expected stdin in the place of one module, found - twice".into()));
    }
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let (a, b) = (load_one(&args.a, console)?, load_one(&args.b, console)?);
    progress.now("matching instructions");
    let side = |module| Side { module, keys: Keys::of(module) };
    let (side_a, side_b) = (side(&a), side(&b));
    let matching = Matching::of(&side_a, &side_b);
    let (counts, lines) = script::write(&side_a, &side_b, &matching, args.context);
    let headers = headers(&a, &b);
    let mut summary = format!("instructions: {} -> {}: {counts}\n", a.n_instructions(), b.n_instructions());
    headers.iter().for_each(|line| summary.push_str(line));
    let opcodes = script::opcodes(&side_a, &side_b);
    for (name, before, after) in opcodes.iter().take(MAX_OPCODES) {
        let _ = writeln!(summary, "  {name}: {before} -> {after}");
    }
    if opcodes.len() > MAX_OPCODES {
        let _ = writeln!(summary, "  and {} more opcodes", opcodes.len() - MAX_OPCODES);
    }
    drop(progress);
    let title = format!("{} -> {}", args.a.display(), args.b.display());
    let shown = if args.stat { Vec::new() } else { lines };
    let has_color = console.has_color && console.stdout_is_terminal;
    let text = match args.format {
        DiffFormat::Text => summary + &script::as_text(&shown, has_color),
        DiffFormat::Html => script::as_html(&title, &summary, &shown),
    };
    console.print(text.as_bytes())?;
    let is_different = !counts.is_none() || !headers.is_empty();
    Ok(if args.exit_code && is_different { exit::ERROR } else { exit::OK })
}

/// How many instructions are the same, changed, removed and added, in words; and the lines that differ with `context` lines around.
pub(crate) fn differences(a: &Module, b: &Module, context: usize) -> (String, Lines) {
    let side = |module| Side { module, keys: Keys::of(module) };
    let (side_a, side_b) = (side(a), side(b));
    let (counts, lines) = script::write(&side_a, &side_b, &Matching::of(&side_a, &side_b), context);
    (counts.to_string(), lines)
}

fn sorted(attributes: &[(String, String)]) -> Vec<&(String, String)> {
    let mut sorted: Vec<&(String, String)> = attributes.iter().collect();
    sorted.sort();
    sorted
}

/// A line for each field of the header that differs and says something of what is computed.
fn headers(a: &Module, b: &Module) -> Vec<String> {
    let (x, y) = (&a.header, &b.header);
    let mut out = Vec::new();
    let mut number = |what: &str, before: i64, after: i64| {
        if before != after {
            out.push(format!("header: {what} {before} -> {after}\n"));
        }
    };
    number("replica_count", x.replica_count, y.replica_count);
    number("num_partitions", x.num_partitions, y.num_partitions);
    number("is_scheduled", i64::from(x.is_scheduled), i64::from(y.is_scheduled));
    for (what, differs) in [
        ("input_output_alias", x.input_output_alias != y.input_output_alias),
        ("buffer_donor", x.buffer_donor != y.buffer_donor),
        ("frontend_attributes", sorted(&x.frontend_attributes) != sorted(&y.frontend_attributes)),
    ] {
        if differs {
            out.push(format!("header: another {what}\n"));
        }
    }
    out
}
