//! What a page shows of one module beyond its figures: tasks over time, memory over time, collectives.

use crate::analyze::MemoryFacts;
use crate::source_place::source_place;
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::memory::{MemoryPoint, MemoryReport};
use hlo_analysis::time::Span;
use hlo_ir::op::CollectiveForm;
use hlo_ir::{InstId, Module};
use hlo_spmd::CollectiveChange;
use std::collections::HashMap;

/// Buffers of the peak that the page lists.
const MOST_BUFFERS: usize = 12;

/// Points of a curve of memory at most.
const MOST_POINTS: usize = 2_000;

/// A module as it came or as it is now.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The module.
    pub module: Module,
    /// When its tasks run; none where the machine does not fit.
    pub spans: Option<Vec<Span>>,
    /// Memory over the run.
    pub curve: Curve,
    /// Memory at the peak.
    pub memory: MemoryFacts,
    /// Its collectives, in the order of the text.
    pub collectives: Vec<CollectiveFact>,
}

/// Both views; the second is missing where no pass changed the module.
#[derive(Clone, Debug)]
pub(crate) struct Views {
    /// As it came.
    pub before: Box<View>,
    /// As it is now.
    pub after: Option<Box<View>>,
}

impl Views {
    /// The module as it is now.
    pub(super) fn now(&self) -> &View {
        self.after.as_deref().unwrap_or(&self.before)
    }
}

/// Memory over a run, with fewer points than moments: of neighbours the one with most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    /// Moments of the run.
    pub n_moments: usize,
    /// The number of a moment, the bytes, and what ran then.
    pub points: Vec<(usize, u64, String)>,
}

/// A collective of a module.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveFact {
    /// Its name, opcode, bytes and group.
    pub record: CollectiveChange,
    /// Where it comes from.
    pub origin: Origin,
    /// Seconds of one run, predicted.
    pub seconds: Option<f64>,
    /// How often it runs.
    pub n_runs: f64,
}

/// Where an instruction comes from, as far as its metadata says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Origin {
    /// `file:line`.
    pub source: Option<String>,
    /// The name path of the framework.
    pub op_name: Option<String>,
}

impl View {
    /// Gathers what the analyses say.
    pub(crate) fn of(
        (module, memory, points): (&Module, &MemoryReport, &[MemoryPoint]),
        (compiled, frequencies): (&Module, &Frequencies),
        spans: Option<Vec<Span>>,
    ) -> View {
        View {
            module: module.clone(),
            curve: Curve::of(module, points),
            memory: MemoryFacts::of(module, memory, MOST_BUFFERS),
            collectives: collectives(compiled, frequencies, spans.as_deref().unwrap_or_default()),
            spans,
        }
    }
}

impl Curve {
    fn of(module: &Module, points: &[MemoryPoint]) -> Curve {
        let stretch = points.len().div_ceil(MOST_POINTS).max(1);
        let most_of = |(number, near): (usize, &[MemoryPoint])| {
            // Of equals the first.
            let (place, most) = near.iter().enumerate().rev().max_by_key(|(_, point)| point.bytes)?;
            let name = most.inst.map_or_else(String::new, |inst| module.inst_name(inst).to_string());
            Some((number * stretch + place, most.bytes, name))
        };
        Curve { n_moments: points.len(), points: points.chunks(stretch).enumerate().filter_map(most_of).collect() }
    }
}

fn collectives(module: &Module, frequencies: &Frequencies, spans: &[Span]) -> Vec<CollectiveFact> {
    let is_collective = |inst: &InstId| {
        let rule = module.inst(*inst).opcode.row().collective;
        rule.is_some_and(|rule| !matches!(rule.form, CollectiveForm::Done(..)))
    };
    let seconds: HashMap<&str, f64> =
        spans.iter().map(|span| (span.name.as_str(), span.end_s - span.start_s)).collect();
    let insts = module.computations().iter().flat_map(|&comp| module.comp(comp).insts.iter().copied());
    let fact = |inst: InstId| CollectiveFact {
        record: CollectiveChange::inserted(module, inst, ""),
        origin: origin(module, inst),
        seconds: seconds.get(module.inst_name(inst)).copied(),
        n_runs: frequencies.of(module.inst(inst).parent),
    };
    insts.filter(is_collective).map(fact).collect()
}

/// Where an instruction comes from.
fn origin(module: &Module, inst: InstId) -> Origin {
    let marks = module.inst(inst).marks.as_ref();
    Origin {
        source: source_place(module, inst).map(|place| place.to_string()),
        op_name: marks.and_then(|marks| marks.op_name()).map(str::to_string),
    }
}
