//! `hlo-opt audit`: what is wrong with a step, as findings and budgets. Nothing is changed.

mod budgets;
mod selection;
mod text;

use crate::arguments::{AuditArgs, ReportFormat};
use crate::complete::{Takes, read_completed, refuse_global};
use crate::console::Console;
use crate::input::{Lines, Loaded, Part, Source};
use crate::params::Said;
use crate::{Failure, exit, machine};
use budgets::Budget;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_audit::{AuditOptions, AuditReport, CHECKS, CheckInfo, Finding, Totals};
use hlo_ir::InstId;
use selection::Selection;
use serde::Serialize;

/// Prints the findings.
///
/// # Errors
/// Wrong usage, an invalid input, or a program of all devices together.
pub(crate) fn run(args: &AuditArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    if args.list_checks {
        return console.print(selection::list().as_bytes()).map(|()| exit::OK);
    }
    let Some(file) = &args.file else { return Err(Failure::Usage("expected a file".into())) };
    let asked = Asked::read(args, console)?;
    let (source, loaded) = read_completed(file, args.counts, Takes::PerDeviceAlone, console)?;
    let facts = asked.find_facts(&source, &loaded, console)?;
    match args.format {
        _ if args.json => console.print_json(&facts)?,
        ReportFormat::Json => console.print_json(&facts)?,
        ReportFormat::Text => console.print(text::render(&facts).as_bytes())?,
    }
    Ok(if facts.is_denied() { exit::DENIED } else { exit::OK })
}

/// What an audit is asked for, checked as far as it can be without a module.
pub(crate) struct Asked<'a> {
    args: &'a AuditArgs,
    denied: Selection,
    allowed: Selection,
    said: Said,
}

impl<'a> Asked<'a> {
    /// Reads the arguments.
    ///
    /// # Errors
    /// A check that there is not, or a sibling module that cannot be read.
    pub(crate) fn read(args: &'a AuditArgs, console: &mut Console<'_>) -> Result<Asked<'a>, Failure> {
        let denied = Selection::parse("--deny", &args.deny)?;
        let allowed = Selection::parse("--allow", &args.allow)?;
        Ok(Asked { args, denied, allowed, said: Said::read(args.replicated_params.as_deref(), console)? })
    }

    /// Audits a module that was read from `source` and completed.
    ///
    /// # Errors
    /// A program of all devices together, or arguments that do not fit the module.
    pub(crate) fn find_facts(
        &self,
        source: &Source,
        loaded: &Loaded,
        console: &mut Console<'_>,
    ) -> Result<Facts, Failure> {
        let Asked { args, denied, allowed, said } = self;
        let part = source.whole();
        refuse_global(source, part, loaded, console.has_color)?;
        let options = AuditOptions {
            params: said.of(source, part, loaded, console)?,
            frequency: FrequencyOptions { unknown_trip_count: args.unknown_trip_count },
            machine: machine::machine(&args.machine, loaded.module.n_devices().max(1))?,
        };
        let checks: Vec<&CheckInfo> = CHECKS.iter().copied().filter(|check| !allowed.has(check)).collect();
        let report =
            hlo_audit::audit(&loaded.module, &options, &checks).map_err(|error| Failure::Usage(error.to_string()))?;
        let place = Places { source, part, loaded, lines: source.lines() };
        Ok(Facts::of(&place, &options, &report, (denied, budgets::of(args, &report.totals))))
    }
}

/// Where instructions stand in the file.
struct Places<'s> {
    source: &'s Source,
    part: Part<'s>,
    loaded: &'s Loaded,
    lines: Lines<'s>,
}

/// An instruction and where it stands; line 0 for one that is nowhere.
#[derive(Serialize)]
struct Place {
    computation: String,
    instruction: String,
    line: usize,
    column: usize,
}

impl Places<'_> {
    fn of(&self, inst: InstId) -> Place {
        let module = &self.loaded.module;
        let (line, column) = self.lines.place(self.part, self.loaded, inst).unwrap_or_default();
        Place {
            computation: module.comp_name(module.inst(inst).parent).into(),
            instruction: module.inst_name(inst).into(),
            line,
            column,
        }
    }
}

/// The whole outcome, by name.
#[derive(Serialize)]
pub(crate) struct Facts {
    file: String,
    n_devices: u64,
    machine: String,
    findings: Vec<FindingFact>,
    totals: TotalFacts,
    budgets: Vec<Budget>,
}

#[derive(Serialize)]
struct FindingFact {
    check: &'static str,
    level: &'static str,
    is_denied: bool,
    #[serde(flatten)]
    place: Place,
    also: Vec<Place>,
    message: String,
    /// What the bytes are: `moved` in a step, `held` in memory, or `wrong`.
    bytes_are: &'static str,
    bytes: u64,
    predicted_s: Option<f64>,
    remedy: String,
}

#[derive(Serialize)]
struct TotalFacts {
    collectives: f64,
    collective_bytes: f64,
    collective_s: f64,
    peak_bytes: u64,
}

impl From<Totals> for TotalFacts {
    fn from(totals: Totals) -> TotalFacts {
        TotalFacts {
            collectives: totals.n_collectives,
            collective_bytes: totals.collective_bytes,
            collective_s: totals.collective_s,
            peak_bytes: totals.peak_bytes,
        }
    }
}

impl Facts {
    fn of(
        places: &Places<'_>,
        options: &AuditOptions,
        report: &AuditReport,
        (denied, budgets): (&Selection, Vec<Budget>),
    ) -> Facts {
        let fact = |finding: &Finding| FindingFact {
            check: finding.check.id,
            level: finding.check.level.name(),
            is_denied: denied.has(finding.check),
            place: places.of(finding.inst),
            also: finding.also.iter().map(|&inst| places.of(inst)).collect(),
            message: finding.message.clone(),
            bytes_are: finding.cost.kind(),
            bytes: finding.cost.bytes(),
            predicted_s: finding.cost.seconds(),
            remedy: finding.remedy.clone(),
        };
        Facts {
            file: places.source.name.clone(),
            n_devices: places.loaded.module.n_devices().max(1) as u64,
            machine: options.machine.to_string(),
            findings: report.findings.iter().map(fact).collect(),
            totals: report.totals.into(),
            budgets,
        }
    }

    fn is_denied(&self) -> bool {
        self.findings.iter().any(|finding| finding.is_denied) || self.budgets.iter().any(|budget| budget.is_exceeded)
    }
}
