//! What the passes about strategies share: the program without annotations, and what is written into it.

use super::configure::{describe, entry_of, value_entry};
use super::file::StrategyFile;
use super::operators::{OperatorGraph, OperatorId};
use super::spread::Spread;
use super::write::{Decided, depends_on_itself, write};
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::propagate_shardings::annotate::{Openness, annotate};
use crate::propagate_shardings::calls::SpokenCall;
use crate::propagate_shardings::claims::ClaimReader;
use crate::propagate_shardings::constants::ConstantCopies;
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::values::CutId;
use hlo_analysis::program_kind::ProgramKind;
use hlo_analysis::{Analyses, Preserved};
use hlo_ir::diag::Entity;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{InstId, Module, shardy};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, PassCx, PassError};
use hlo_spmd::CallSiteCopies;

/// A program that is to get strategies.
pub(super) struct Prepared {
    work: Module,
    pub before: Module,
    copies: CallSiteCopies,
    constants: ConstantCopies,
    pub graph: ShardingGraph,
    n_dropped: usize,
}

/// Why a program gets no strategies.
pub(super) fn why_unchanged(module: &Module, analyses: &Analyses) -> Option<String> {
    let n = module.n_devices();
    match analyses.program_kind(module).kind {
        _ if n <= 1 => None,
        ProgramKind::PerDevice => Some(format!("it is a per-device program: {}", analyses.why_program_kind(module))),
        ProgramKind::Global | ProgramKind::OneDevice => {
            Some(format!("the header counts {n} devices: expected a program that nobody has cut yet"))
        }
    }
}

impl Prepared {
    /// Takes the user's annotations away and reads the values.
    ///
    /// # Errors
    /// Manual regions.
    pub(super) fn new(module: &Module) -> Result<Prepared, PartitionError> {
        let mut work = module.clone();
        let n_dropped = drop_annotations(&mut work)?;
        let copies = match CallSiteCopies::has_shared(&work) {
            true => CallSiteCopies::split(&mut work),
            false => CallSiteCopies::default(),
        };
        let constants = ConstantCopies::split(&mut work).map_err(depends_on_itself)?;
        let before = work.clone();
        let alone = ModuleMesh::ascending(Vec::new());
        let mut claims = ClaimReader::new(&before, &alone)?;
        let mut graph = ShardingGraph::build(&before, &mut claims)?;
        let open = Openness::All(true);
        annotate(&before, &mut graph, &mut claims, &open, &open)?;
        Ok(Prepared { work, before, copies, constants, graph, n_dropped })
    }

    /// All layouts of `spread` as a file says them.
    pub(super) fn file(&self, spread: &Spread<'_>, operators: &OperatorGraph, depth: usize) -> StrategyFile {
        let entry = |id: OperatorId| Some(entry_of(&operators.operators[id], spread.mesh, spread.assignment(id)?));
        let is_given = |&value: &CutId| operators.producer(value).is_none() && !operators.takers(value).is_empty();
        let given = self.graph.values.keys().filter(is_given);
        StrategyFile {
            devices: spread.mesh.n_devices() as i64,
            depth,
            operator: operators.operators.keys().filter_map(entry).collect(),
            value: given.filter_map(|value| value_entry(&self.before, spread, value)).collect(),
        }
    }

    /// Writes what was decided into `module`.
    ///
    /// # Errors
    /// The time is over, or a defect of this pass.
    pub(super) fn finish(
        self,
        module: &mut Module,
        decided: Decided,
        mesh: &ModuleMesh,
        cx: &mut PassCx<'_>,
    ) -> Result<Changed, PassError> {
        let (deadline, report) = (cx.deadline, &mut *cx.report);
        let Prepared { mut work, before, copies, constants, mut graph, n_dropped } = self;
        let written = write((&mut work, &before), &mut graph, decided, mesh, deadline)?;
        constants.merge(&mut work);
        for (what, n) in [
            ("annotations-dropped", n_dropped as u64),
            ("cut", written.n_cut as u64),
            ("copies", written.n_copies as u64),
            ("redistributions", written.n_redistributions as u64),
            ("redistribution-bytes-mindspore", written.greedy_bytes),
            ("redistribution-bytes-ours", written.planned_bytes),
        ] {
            report.count(what, n);
        }
        report.decisions.extend(written.decisions);
        let merged = copies.merge(&mut work);
        for told in &mut report.decisions {
            told.subject = merged.renamed(&told.subject);
            told.reason = merged.renamed(&told.reason);
            if let Some(name) = merged.name_now(&told.computation) {
                told.computation = name.to_string();
            }
        }
        let text = |module: &Module| print_module(module, &PrintOptions::default());
        // Where annotations were dropped, the same ones may be there again.
        if n_dropped > 0 && text(module) == text(&work) {
            report.unchanged_because = Some("every instruction has its sharding".into());
            return Ok(Changed::No);
        }
        *module = work;
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Tells an operator's layout.
pub(super) fn explain(
    prepared: &Prepared,
    (spread, operators, mesh): (&Spread<'_>, &OperatorGraph, &ModuleMesh),
    id: OperatorId,
    reason: &str,
) -> Option<Decision> {
    let operator = &operators.operators[id];
    let entry = entry_of(operator, mesh, spread.assignment(id)?);
    let reason = format!("{}, {}: {reason}", operator.kind.name(), describe(&entry));
    Some(Decision {
        subject: operator.name.clone(),
        ..Decision::about(&prepared.before, operator.inst, "strategy", reason)
    })
}

/// Removes all words about shardings. Returns how many instructions had some.
fn drop_annotations(module: &mut Module) -> Result<usize, PartitionError> {
    let mut n_dropped = 0;
    let insts: Vec<InstId> = module.computations().iter().flat_map(|&comp| module.comp(comp).insts.clone()).collect();
    for inst in insts {
        if matches!(SpokenCall::of(module, inst), Some(SpokenCall::Begin | SpokenCall::End)) {
            let text = "expected no manual region beside strategies, found one";
            return Err(PartitionError::about("strategy", Entity::Inst(inst), text));
        }
        let is_said = module.inst(inst).marks.as_ref().is_some_and(|marks| {
            marks.sharding.is_some() || marks.frontend_attributes.iter().any(|(key, _)| key.starts_with("xla.sdy."))
        });
        if is_said {
            n_dropped += 1;
            let marks = module.marks_mut(inst);
            marks.sharding = None;
            marks.frontend_attributes.retain(|(key, _)| key != shardy::SHARDING);
        }
    }
    module.header.frontend_attributes.retain(|(key, _)| key != shardy::MESHES);
    Ok(n_dropped)
}
