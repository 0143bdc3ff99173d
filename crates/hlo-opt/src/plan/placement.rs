//! `hlo-opt plan placement`: all parallelism matrices, ranked by the modelled cost of the weighted reductions.

use super::arguments::PlacementArgs;
use super::{machine_text, matrix_text, request, time_text, usage};
use crate::arguments::ReportFormat;
use crate::console::Console;
use crate::{Failure, machine};
use hlo_cluster::reduction::{ParallelismMatrix, Planner};
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Report {
    placements: Vec<Placement>,
}

#[derive(Serialize)]
struct Placement {
    matrix: Vec<Vec<u32>>,
    /// Σ weight × best_s.
    cost_s: f64,
    reductions: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    reduce: Vec<usize>,
    weight: f64,
    best_s: f64,
}

/// Prints the plan as text or JSON.
///
/// # Errors
/// A wrong description of the machine, axes that do not fit it, or a plan that cannot be written.
pub(crate) fn plan(args: &PlacementArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let cluster = machine::cluster(&args.machine.machine, args.machine.n_devices())?;
    let mut planner = Planner::new(&cluster, args.machine.rules.into());
    let matrices = ParallelismMatrix::all(planner.levels(), &args.machine.axes).map_err(usage)?;
    let mut placements = Vec::new();
    for matrix in matrices {
        let mut reductions = Vec::new();
        for wanted in &args.reduce {
            let best_s = planner.best_s(&matrix, &request(&args.machine, &wanted.reduce)).map_err(usage)?;
            reductions.push(Part { reduce: wanted.reduce.clone(), weight: wanted.weight, best_s });
        }
        let cost_s = reductions.iter().map(|part| part.weight * part.best_s).sum();
        placements.push(Placement { matrix: matrix.rows().to_vec(), cost_s, reductions });
    }
    // Equal costs stay in the order of the matrices.
    placements.sort_by(|a, b| a.cost_s.total_cmp(&b.cost_s));
    let report = Report { placements };
    match args.machine.format {
        ReportFormat::Json => console.print_json(&report),
        ReportFormat::Text => {
            let text = machine_text(&cluster, planner.levels(), &args.machine) + &table(&report);
            console.print(text.as_bytes())
        }
    }
}

fn table(report: &Report) -> String {
    let mut out = String::new();
    let width = report.placements.iter().map(|p| matrix_text(&p.matrix).len()).max().unwrap_or(0);
    for placement in &report.placements {
        let parts = placement.reductions.iter().map(|part| {
            let axes: Vec<String> = part.reduce.iter().map(usize::to_string).collect();
            format!("{} x {}: {}", part.weight, axes.join("+"), time_text(part.best_s))
        });
        let parts: Vec<String> = parts.collect();
        let (matrix, cost) = (matrix_text(&placement.matrix), time_text(placement.cost_s));
        let _ = writeln!(out, "{matrix:width$}  {cost:>12}  ({})", parts.join(", "));
    }
    out
}
