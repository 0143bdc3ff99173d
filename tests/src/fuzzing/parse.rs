//! Bytes as HLO text: what is read and verified is printed, and the print is read and printed as the same text.

use super::in_words;
use crate::first_difference;
use hlo_ir::Module;
use hlo_ir::print::{FormChoice, PrintOptions, print_module};
use hlo_ir::verify::verify;

/// Also renders the diagnostics of what is refused: their spans must lie in the text.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let module = match hlo_text::parse_bytes(bytes) {
        Ok(parsed) => parsed.module,
        Err(diags) => {
            let text = String::from_utf8_lossy(bytes);
            hlo_text::render(&diags, "fuzz", &text, false);
            return Ok(());
        }
    };
    if verify(&module).is_err() {
        return Ok(());
    }
    [FormChoice::Auto, FormChoice::Long, FormChoice::Short].into_iter().try_for_each(|form| comes_back(&module, form))
}

fn comes_back(module: &Module, form: FormChoice) -> Result<(), String> {
    let print = |module: &Module| print_module(module, &PrintOptions { form, ..PrintOptions::default() });
    let read = |text: &str| match hlo_text::parse_module(text) {
        Ok(parsed) => Ok(parsed.module),
        Err(diags) => Err(format!("{form:?}: the print is refused: {}\n{text}", in_words(&diags))),
    };
    let mut text = print(module);
    let mut again = read(&text)?;
    if !module.header.tables.is_empty() {
        // Debug tables are numbered in the order of the text that is read: only the second print is final.
        text = print(&again);
        again = read(&text)?;
    }
    verify(&again).map_err(|diags| format!("{form:?}: the print does not verify: {}\n{text}", in_words(&diags)))?;
    let printed = print(&again);
    if printed == text {
        return Ok(());
    }
    // XLA's order of computations is that of their callers in the text that was read, and these go in another order where results of
    // some are not used. So the print of a print may have the same lines in another order, and is final.
    let (settled, lines) = (print(&read(&printed)?), |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.sort_unstable();
        lines
    });
    match settled == printed && lines(&printed) == lines(&text) {
        true => Ok(()),
        false => Err(format!("{form:?}: printed again: {}", first_difference(&printed, &text))),
    }
}
