//! `hlo-opt analyze frequency`: how often each computation runs for one execution of ENTRY.

use super::json_line;
use crate::arguments::{FrequencyArgs, ReportFormat};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::input::Loaded;
use crate::{Failure, exit};
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_ir::Module;
use serde::Serialize;
use std::fmt::Write;

/// Prints the facts.
///
/// # Errors
/// An invalid input.
pub(super) fn run(args: &FrequencyArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let (_, Loaded { module, .. }) = read_completed(&args.file, args.counts, Takes::Any, console)?;
    let options = FrequencyOptions { unknown_trip_count: args.unknown_trip_count };
    let frequencies = Frequencies::compute(&module, options);
    let mut out = String::new();
    match args.format {
        ReportFormat::Json => facts(&module, &frequencies).iter().for_each(|fact| json_line(fact, &mut out)),
        ReportFormat::Text => {
            summary(&module, &frequencies, args.unknown_trip_count, &mut out);
            table(&facts(&module, &frequencies), &mut out);
        }
    }
    console.print(out.as_bytes()).map(|()| exit::OK)
}

/// One line of the output.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
enum Fact<'m> {
    /// How often a computation runs.
    Computation { computation: &'m str, frequency: f64, basis: &'static str },
    /// How often a loop's body runs each time.
    Loop { instruction: &'m str, body: Option<&'m str>, trip_count: u64, basis: &'static str },
    /// How a conditional divides its runs.
    Conditional { instruction: &'m str, branches: Vec<&'m str>, shares: &'m [f64], basis: &'static str },
}

/// Computations that run, in print order; then the loops and conditionals in them.
fn facts<'m>(module: &'m Module, frequencies: &'m Frequencies) -> Vec<Fact<'m>> {
    let reached = || module.computations().iter().copied().filter(|&comp| frequencies.of(comp) > 0.0);
    let mut facts: Vec<Fact<'m>> = reached()
        .map(|comp| Fact::Computation {
            computation: module.comp_name(comp),
            frequency: frequencies.of(comp),
            basis: frequencies.basis(comp).name(),
        })
        .collect();
    for &inst in reached().flat_map(|comp| &module.comp(comp).insts) {
        let instruction = module.inst_name(inst);
        let callees = || module.called(inst).into_iter().map(|callee| module.comp_name(callee));
        if let Some(trips) = frequencies.trip_count(inst) {
            let (trip_count, basis) = (trips.count, trips.basis.name());
            facts.push(Fact::Loop { instruction, body: callees().nth(1), trip_count, basis });
        }
        if let Some(shares) = frequencies.branch_shares(inst) {
            let (branches, basis) = (callees().collect(), shares.basis.name());
            facts.push(Fact::Conditional { instruction, branches, shares: &shares.shares, basis });
        }
    }
    facts
}

/// How many computations run once, more often and never; loops with their trips; what is assumed.
fn summary(module: &Module, frequencies: &Frequencies, unknown_trip_count: u64, out: &mut String) {
    let comps = module.computations();
    let count = |holds: fn(f64) -> bool| comps.iter().filter(|&&comp| holds(frequencies.of(comp))).count();
    let (once, often, rarely) = (count(|n| n == 1.0), count(|n| n > 1.0), count(|n| n > 0.0 && n < 1.0));
    let _ = writeln!(
        out,
        "{}: {} computations: {once} run once, {often} more often, {rarely} less than once, {} never",
        module.name,
        comps.len(),
        comps.len() - once - often - rarely
    );
    let insts = comps.iter().filter(|&&comp| frequencies.of(comp) > 0.0).flat_map(|&comp| &module.comp(comp).insts);
    let loops: Vec<_> = insts.filter_map(|&inst| Some((inst, frequencies.trip_count(inst)?))).collect();
    let longest = loops.iter().max_by_key(|(_, trips)| trips.count);
    if let Some((inst, trips)) = longest {
        let (name, n) = (module.inst_name(*inst), loops.len());
        let loops = if n == 1 { "one loop".into() } else { format!("{n} loops, the longest") };
        let _ = writeln!(out, "  {loops} %{name} with {} trips", trips.count);
    }
    if frequencies.n_assumed_loops() > 0 {
        let n = frequencies.n_assumed_loops();
        let _ = writeln!(out, "  of {n} the trips are not known: {unknown_trip_count} are taken, --unknown-trip-count");
    }
    out.push('\n');
}

fn table(facts: &[Fact<'_>], out: &mut String) {
    let names = facts.iter().map(|fact| match fact {
        Fact::Computation { computation, .. } => computation.chars().count(),
        Fact::Loop { instruction, .. } | Fact::Conditional { instruction, .. } => instruction.chars().count(),
    });
    let width = names.max().unwrap_or(0).min(60) + 1;
    for fact in facts {
        let _ = match fact {
            Fact::Computation { computation, frequency, basis } => {
                writeln!(out, "{:width$}  runs {frequency} ({basis})", format!("%{computation}"))
            }
            Fact::Loop { instruction, body, trip_count, basis } => {
                let body = body.map_or(String::new(), |body| format!(" of %{body}"));
                writeln!(out, "{:width$}  {trip_count} trips{body} ({basis})", format!("%{instruction}"))
            }
            Fact::Conditional { instruction, branches, shares, basis } => {
                let parts: Vec<String> =
                    branches.iter().zip(*shares).map(|(branch, share)| format!("%{branch} {share}")).collect();
                writeln!(out, "{:width$}  {} ({basis})", format!("%{instruction}"), parts.join(", "))
            }
        };
    }
}
