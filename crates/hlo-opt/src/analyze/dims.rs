//! `hlo-opt analyze dims`: which dims of a global program are one dim of the model, and what they are called.

use super::json_line;
use crate::arguments::{DimsArgs, ReportFormat};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::{Failure, descriptions, exit};
use hlo_ir::diag::Diagnostic;
use hlo_partition::{DimFact, DimFactPlace, PartitionError, find_dims};
use hlo_pass::PassError;
use std::fmt::Write;

/// Places and ops of a class that the table names; JSON has all.
const MOST_TOLD: usize = 4;

/// Prints the facts.
///
/// # Errors
/// An invalid input; names that do not fit the module.
pub(super) fn run(args: &DimsArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let names = args.names.as_deref().map(descriptions::names).transpose()?.unwrap_or_default();
    let (source, loaded) = read_completed(&args.file, args.counts, Takes::Global, console)?;
    let dims = find_dims(&loaded.module, &names).map_err(|error| {
        let diags: Vec<Diagnostic> = vec![diagnostic(error)];
        Failure::Diagnostics(source.render(source.whole(), Some(&loaded), diags, console.has_color))
    })?;
    let mut out = String::new();
    match args.format {
        ReportFormat::Json => dims.iter().for_each(|dim| json_line(dim, &mut out)),
        ReportFormat::Text => table(&loaded.module.name, &dims, &mut out),
    }
    console.print(out.as_bytes()).map(|()| exit::OK)
}

fn diagnostic(error: PartitionError) -> Diagnostic {
    PassError::from(error).diagnostic
}

/// A line for each class: name, size, how many values have it, where, and what reduces it out.
fn table(module: &str, dims: &[DimFact], out: &mut String) {
    let n_given = dims.iter().filter(|dim| dim.is_given).count();
    let _ = writeln!(out, "{module}: {} dims, {n_given} with a given name", dims.len());
    if dims.is_empty() {
        return;
    }
    let width = dims.iter().map(|dim| dim.name.chars().count()).max().unwrap_or(0).clamp(4, 40);
    let _ = writeln!(out, "  {:width$} {:>9} {:>7}  where", "name", "size", "values");
    for dim in dims {
        let star = if dim.is_given { '*' } else { ' ' };
        let _ = writeln!(out, "{star} {:width$} {:>9} {:>7}  {}", dim.name, dim.size, dim.n_values, places(dim));
        if !dim.reduced_by.is_empty() {
            let _ = writeln!(out, "  {:width$} {:>17}  reduced out by {}", "", "", ops(&dim.reduced_by));
        }
        if dim.n_values_twice > 0 {
            let n = dim.n_values_twice;
            let _ = writeln!(out, "  {:width$} {:>17}  twice in {n} values: no layout may cut it", "", "");
        }
    }
    if n_given < dims.len() {
        let _ = writeln!(out, "\n* given; the others are called as here until a line `name = place` names them");
    }
}

fn places(dim: &DimFact) -> String {
    let one = |place: &DimFactPlace| match &place.op_name {
        Some(name) => format!("{} ({name})", place.place),
        None => place.place.clone(),
    };
    let mut told: Vec<String> = dim.params.iter().chain(&dim.computed).take(MOST_TOLD).map(one).collect();
    if dim.params.len() > MOST_TOLD {
        told.push(format!("{} more parameters", dim.params.len() - MOST_TOLD));
    }
    told.join(", ")
}

fn ops(names: &[String]) -> String {
    let mut told: Vec<String> = names.iter().take(MOST_TOLD).map(|name| format!("%{name}")).collect();
    if names.len() > MOST_TOLD {
        told.push(format!("{} more", names.len() - MOST_TOLD));
    }
    told.join(", ")
}
