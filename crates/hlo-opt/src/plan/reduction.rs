//! `hlo-opt plan reduction`: for every placement the number of programs and the best one, with its devices.

use super::arguments::{ReductionArgs, matrix};
use super::{machine_text, matrix_text, plot, request, time_text, usage};
use crate::arguments::ReportFormat;
use crate::console::Console;
use crate::output::write_whole;
use crate::report::bytes;
use crate::{Failure, machine};
use hlo_cluster::Cluster;
use hlo_cluster::reduction::{MatrixPlan, PlannedStep, Planner, ReductionStep};
use serde::Serialize;
use std::fmt::Write;

/// Most programs of a matrix that are drawn.
const MAX_DOTS: u128 = 5_000_000;

#[derive(Serialize)]
struct Report<'p> {
    matrices: Vec<MatrixReport<'p>>,
    /// Programs on all matrices together.
    total: u64,
}

#[derive(Serialize)]
struct MatrixReport<'p> {
    matrix: &'p [Vec<u32>],
    lowering: &'static str,
    programs: u64,
    faster: u64,
    all_reduce_s: f64,
    best_s: f64,
    best: Vec<StepReport<'p>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pareto: Option<Vec<Point>>,
}

#[derive(Serialize)]
struct StepReport<'p> {
    slice: usize,
    form: &'static str,
    ancestor: Option<usize>,
    collective: &'static str,
    groups: &'p [Vec<u32>],
}

#[derive(Serialize)]
struct Point {
    steps: usize,
    seconds: f64,
    program: Vec<String>,
}

/// Prints the plan as text or JSON; writes the plot if one is wanted.
///
/// # Errors
/// A wrong description of the machine, axes that do not fit it, or a plot or a plan that cannot be written.
pub(crate) fn plan(args: &ReductionArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let cluster = machine::cluster(&args.machine.machine, args.machine.n_devices())?;
    let mut planner = Planner::new(&cluster, args.machine.rules.into());
    let request = request(&args.machine, &args.reduce);
    let plans = match &args.matrix {
        Some(rows) => {
            let matrix = matrix(rows, planner.levels(), &args.machine.axes)?;
            vec![planner.plan(matrix, &request).map_err(usage)?]
        }
        None => planner.plan_all(&args.machine.axes, &request).map_err(usage)?,
    };
    if let Some(path) = &args.plot {
        let mut columns = Vec::new();
        for plan in &plans {
            if plan.n_programs > MAX_DOTS {
                let found = format!("{} on {}", plan.n_programs, matrix_text(plan.matrix.rows()));
                return Err(Failure::Usage(format!("--plot: expected at most {MAX_DOTS} programs, found {found}")));
            }
            let times = planner.times(&plan.matrix, &request, plan.lowering).map_err(usage)?;
            columns.push(plot::Column {
                labels: labels(&cluster, plan.matrix.rows()),
                times,
                all_reduce_s: plan.all_reduce_s,
                best_s: plan.best_s,
            });
        }
        write_whole(path, plot::svg(&title(&cluster, args), &columns).as_bytes())?;
    }
    match args.machine.format {
        ReportFormat::Json => console.print_json(&report(&plans, args.pareto)),
        ReportFormat::Text => {
            let mut out = machine_text(&cluster, planner.levels(), &args.machine);
            plans.iter().for_each(|plan| text(plan, args.pareto, &mut out));
            let total: u128 = plans.iter().map(|plan| plan.n_programs).sum();
            let plural = if plans.len() == 1 { "matrix" } else { "matrices" };
            let _ = writeln!(out, "{total} programs on {} {plural}", plans.len());
            console.print(out.as_bytes())
        }
    }
}

/// What is reduced, how much of it, and on which machine.
fn title(cluster: &Cluster, args: &ReductionArgs) -> String {
    let axes = args.reduce.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let (plural, size) =
        (if args.reduce.len() == 1 { "axis" } else { "axes" }, bytes(args.machine.bytes.round() as u64));
    format!("reduction over {plural} {axes}, {size} on each of {} devices, {}", cluster.n_devices(), cluster.name())
}

/// For each axis how many entities of each level it goes over, and all that as a matrix.
fn labels(cluster: &Cluster, rows: &[Vec<u32>]) -> Vec<String> {
    let levels = cluster.levels();
    let axis = |(number, row): (usize, &Vec<u32>)| {
        let parts = row.iter().enumerate().filter(|(_, n)| **n > 1);
        let name =
            |level: usize| levels.get(level).map_or_else(|| format!("level {level}"), |level| level.name.clone());
        let parts: Vec<String> = parts.map(|(level, n)| format!("{n} {}", name(level))).collect();
        format!("axis {number}: {}", if parts.is_empty() { "1 device".into() } else { parts.join(" x ") })
    };
    rows.iter().enumerate().map(axis).chain([matrix_text(rows)]).collect()
}

fn report(plans: &[MatrixPlan], pareto: bool) -> Report<'_> {
    let number = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    let step = |step: &'_ PlannedStep| -> (usize, &'static str, Option<usize>, &'static str) {
        (step.instruction.slice, step.form_name(), step.instruction.ancestor(), step.collective.name())
    };
    let matrices = plans.iter().map(|plan| MatrixReport {
        matrix: plan.matrix.rows(),
        lowering: plan.lowering.name(),
        programs: number(plan.n_programs),
        faster: number(plan.n_faster),
        all_reduce_s: plan.all_reduce_s,
        best_s: plan.best_s,
        best: plan
            .best
            .iter()
            .map(|planned| {
                let (slice, form, ancestor, collective) = step(planned);
                StepReport { slice, form, ancestor, collective, groups: &planned.groups }
            })
            .collect(),
        pareto: pareto.then(|| plan.front.iter().map(point).collect()),
    });
    Report { matrices: matrices.collect(), total: number(plans.iter().map(|plan| plan.n_programs).sum()) }
}

fn point((seconds, steps): &(f64, Vec<ReductionStep>)) -> Point {
    Point { steps: steps.len(), seconds: *seconds, program: steps.iter().map(ReductionStep::to_string).collect() }
}

fn text(plan: &MatrixPlan, pareto: bool, out: &mut String) {
    let _ = writeln!(
        out,
        "{}  {} programs, {} faster than one all-reduce; {}",
        matrix_text(plan.matrix.rows()),
        plan.n_programs,
        plan.n_faster,
        plan.lowering.name()
    );
    if plan.best.is_empty() {
        let why = if plan.n_programs == 0 && plan.all_reduce_s == 0.0 { "nothing to reduce" } else { "no program" };
        let _ = writeln!(out, "  {why}");
        return;
    }
    let speedup = plan.all_reduce_s / plan.best_s;
    let (best, one) = (time_text(plan.best_s), time_text(plan.all_reduce_s));
    let _ = writeln!(out, "  {best}, {speedup:.2} times as fast as one all-reduce ({one})");
    for step in &plan.best {
        let named = ReductionStep { instruction: step.instruction, collective: step.collective };
        let _ = writeln!(out, "    {named}  {}", groups_text(&step.groups));
    }
    if pareto {
        for (seconds, steps) in &plan.front {
            let steps: Vec<String> = steps.iter().map(ReductionStep::to_string).collect();
            let _ = writeln!(out, "  {} steps: {}  {}", steps.len(), time_text(*seconds), steps.join(" "));
        }
    }
}

/// The first groups, and how many there are.
fn groups_text(groups: &[Vec<u32>]) -> String {
    const SHOWN: usize = 3;
    const MEMBERS: usize = 8;
    let group = |group: &Vec<u32>| {
        let members: Vec<String> = group.iter().take(MEMBERS).map(u32::to_string).collect();
        let more = if group.len() > MEMBERS { ",…" } else { "" };
        format!("{{{}{more}}}", members.join(","))
    };
    let shown: Vec<String> = groups.iter().take(SHOWN).map(group).collect();
    let more = if groups.len() > SHOWN { ",…" } else { "" };
    let n_members = groups.first().map_or(0, Vec::len);
    let plural = if groups.len() == 1 { "" } else { "s" };
    format!("{} group{plural} of {n_members}: {}{more}", groups.len(), shown.join(","))
}
