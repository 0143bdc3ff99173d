//! The one list of all passes.

use hlo_pass::PassInfo;
use std::fmt::Write;

/// Every pass that `--pass` can name, family by family.
pub fn passes() -> Vec<&'static PassInfo> {
    [
        hlo_simplify::PASSES,
        hlo_collectives::PASSES,
        hlo_wus::PASSES,
        hlo_partition::PASSES,
        hlo_search::PASSES,
        hlo_gpu::PASSES,
    ]
    .concat()
}

/// `--list-passes`: a line for each pass and, indented, a line for each of its options.
pub fn list() -> String {
    let passes = passes();
    let width = passes.iter().map(|p| p.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for pass in passes {
        let _ = writeln!(out, "{:width$}  {}", pass.name, pass.help);
        for option in pass.options {
            let value = format!("{}={}", option.name, option.kind.describe());
            let _ = writeln!(out, "{:width$}    {value}  {} (default {})", "", option.help, option.default);
        }
    }
    out
}
