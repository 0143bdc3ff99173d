//! Write the program of each device for a global program whose values say how they are cut.
//!
//! Before, on two devices:
//! ```text
//! ENTRY %main (x: f32[4,8]) -> f32[4] {
//!   %x = f32[4,8] parameter(0), sharding={devices=[2,1]<=[2]}
//!   %zero = f32[] constant(0)
//!   ROOT %sum = f32[4] reduce(%x, %zero), dimensions={1}, to_apply=%add, sharding={devices=[2]<=[2]}
//! }
//! ```
//! after:
//! ```text
//! ENTRY %main (x: f32[2,8]) -> f32[2] {
//!   %x = f32[2,8] parameter(0), sharding={devices=[2,1]<=[2]}
//!   %zero = f32[] constant(0)
//!   ROOT %sum = f32[2] reduce(%x, %zero), dimensions={1}, to_apply=%add
//! }
//! ```
//!
//! **Why.** A global program says what is computed, not where. XLA's partitioner writes the per-device program within its
//! compiler, where nobody can see or change what it does. This pass writes it as HLO.
//!
//! **What it does not do.** It does not decide how values are cut: `propagate-shardings` does. A value without an annotation is cut as
//! is cheapest where it is computed. Ops with side effects outside of manual regions, fusions and asynchronous pairs are refused.
//!
//! **Algorithm.** All shardings are lists of atoms, prime axes of one mesh ([`ModuleMesh`](crate::ModuleMesh)). For each op, `choose`
//! decides which atoms cut which factors ([`hlo_ir::factors`]): operands are brought there (the planner of
//! [`hlo_spmd::redistribution`] finds the steps), the op's local form ([`hlo_ir::localize`]) is written with what it asks for before
//! and after (`adjust`, `halo`), results are partial along atoms that cut reduced factors, and then brought to what their
//! annotation says. Of ways to cut an op, the one is taken for which a device receives the fewest bytes, its own work and
//! launches counted as bytes, or with `price=time` the one that takes the least time on the machine (`prices`). Tiles of uneven dims are padded with any values, which are masked only before a reduction or where rows are read
//! from beyond the array. Computations that are called are written once for each way in which their parameters are cut.
//!
//! **Requires** one replica. **Ensures** the same results, cut as the annotations of parameters and results say. **Errors**: `sharding`,
//! `mesh` and `device-order` about annotations, `partition` about what cannot be cut; the module is then as it was.
//!
//! References: Xu et al., *GSPMD: General and Scalable Parallelization for ML Computation Graphs*, 2021, §4.

mod adjust;
mod choose;
mod control;
mod cut;
mod emit;
mod halo;
mod lowering;
mod ops;
mod regions;
mod rows;
mod scan;
mod shifts;

use crate::error::PartitionError;
use crate::prices::{PRICE, Price};
use crate::sharding::ArraySharding;
pub(crate) use choose::ComputeRule;
use hlo_analysis::code::code_computations;
use hlo_analysis::program_kind::{KnownProgram, ProgramKind};
use hlo_analysis::{Analyses, Preserved};
use hlo_ir::attrs::Attrs;
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::diag::Entity;
use hlo_ir::header::EntryLayout;
use hlo_ir::sharding::Sharding;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode, Shape, shardy};
use hlo_mesh::Machine;
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Deadline, Pass, PassCx, PassError, PassInfo};
use lowering::{LeafForm, Lowering};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "spmd-partition",
    help: "write the program of each device for a global program, as its shardings say",
    options: OPTIONS,
    build: |options| {
        let is_annotated_only = options.flag("annotate-only");
        let price = Price::new(options, options.int("launch-bytes").max(0));
        Ok(Box::new(SpmdPartition { price, rule: compute_rule(options), is_annotated_only }))
    },
};

/// The option that says how ops are cut.
pub(crate) const COMPUTE: OptionInfo = OptionInfo {
    name: "compute",
    kind: OptionKind::Word(&["cheapest", "as-cut"]),
    default: "cheapest",
    help: "how an op is cut: as is cheapest, or as its operands are, so that sums follow (Mesh-TensorFlow's rule)",
};

/// What the option [`COMPUTE`] says.
pub(crate) fn compute_rule(options: &Options) -> ComputeRule {
    if options.text(COMPUTE.name) == "as-cut" { ComputeRule::AsCut } else { ComputeRule::Cheapest }
}

const OPTIONS: &[OptionInfo] = &[
    PRICE,
    OptionInfo {
        name: "launch-bytes",
        kind: OptionKind::Int,
        default: "1",
        help: "price=bytes: what one more collective costs beside its bytes, in bytes that a link carries meanwhile",
    },
    COMPUTE,
    OptionInfo {
        name: "annotate-only",
        kind: OptionKind::Bool,
        default: "false",
        help: "leave the program global, with sharding= on every value and the number of partitions, for XLA's partitioner",
    },
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct SpmdPartition {
    price: Price,
    rule: ComputeRule,
    is_annotated_only: bool,
}

impl Pass for SpmdPartition {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        if let Some(why) = why_not_global(module, cx.analyses) {
            cx.report.unchanged_because = Some(why);
            return Ok(Changed::No);
        }
        if self.is_annotated_only {
            return Ok(annotate_only(module)?);
        }
        let mut work = module.clone();
        let decisions = partition(&mut work, (self.price, &cx.target.machine), self.rule, cx.deadline)?;
        let n_collectives = decisions.iter().map(|decision| decision.collectives.len() as u64).sum();
        cx.report.count("collectives", n_collectives);
        cx.report.count("devices", work.n_devices() as u64);
        cx.report.decisions.extend(decisions);
        *module = work;
        cx.analyses.program = KnownProgram::partitioned(module);
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Says in the header how many partitions XLA's partitioner is to make of a program whose values all have a sharding, and that it may not
/// change those of parameters and results.
///
/// Loops lose theirs, which their initial values and bodies have too: on the way to XLA through StableHLO a loop gets more elements,
/// those that its body takes from outside, and XLA refuses a sharding of fewer.
fn annotate_only(module: &mut Module) -> Result<Changed, PartitionError> {
    let mut loops = Vec::new();
    for comp in code_computations(module) {
        for &inst in &module.comp(comp).insts {
            if module.inst(inst).opcode == Opcode::While {
                loops.extend(module.sharding(inst).is_some().then_some(inst));
                continue;
            }
            let has_arrays = module.shape(inst).n_leaves() > 0;
            if has_arrays && module.sharding(inst).is_none() {
                let text =
                    "annotate-only: expected a sharding on every value, as `propagate-shardings` leaves it, found none";
                return Err(PartitionError::about("sharding", Entity::Inst(inst), text));
            }
        }
    }
    let n_devices = hlo_ir::devices::find_n_devices(module) as i64;
    if module.header.num_partitions == n_devices && loops.is_empty() {
        return Ok(Changed::No);
    }
    loops.into_iter().for_each(|inst| module.marks_mut(inst).sharding = None);
    module.header.num_partitions = n_devices;
    module.header.allow_spmd_sharding_propagation_to_parameters = None;
    module.header.allow_spmd_sharding_propagation_to_output = None;
    Ok(Changed::Yes(Preserved::NONE))
}

/// Why there is nothing to partition.
fn why_not_global(module: &Module, analyses: &Analyses) -> Option<String> {
    if hlo_ir::devices::find_n_devices(module) <= 1 && module.header.replica_count <= 1 {
        return Some("the module names no mesh of several devices".into());
    }
    why_per_device(module, analyses)
}

/// Why a module is no global program but that of each device, as [`hlo_analysis::program_kind`] decides.
pub(crate) fn why_per_device(module: &Module, analyses: &Analyses) -> Option<String> {
    if module.header.replica_count > 1 {
        return Some(format!("expected one replica, found {}", module.header.replica_count));
    }
    match analyses.program_kind(module).kind {
        ProgramKind::OneDevice | ProgramKind::Global => None,
        ProgramKind::PerDevice => Some(format!("it is a per-device program: {}", analyses.why_program_kind(module))),
    }
}

/// Writes the program of each device into `module`.
pub(crate) fn partition(
    module: &mut Module,
    (price, machine): (Price, &Machine),
    rule: ComputeRule,
    deadline: Deadline,
) -> Result<Vec<Decision>, PartitionError> {
    let defect = |what: &str| PartitionError::about("partition", Entity::Module, what);
    let entry = module.entry().ok_or_else(|| defect("expected an entry computation"))?;
    let mut lowering = Lowering::new(module, entry, ((price, machine), rule), deadline)?;
    let mut params = Vec::new();
    let mut marks = Vec::new();
    for param in lowering.module.comp(entry).params.clone() {
        let mut wholes = Vec::new();
        lowering.module.shape(param).for_each_leaf(&mut |_, leaf| wholes.push(leaf.clone()));
        let first = params.len();
        for (leaf, whole) in wholes.into_iter().enumerate() {
            let rank = whole.as_array().map_or(0, |array| array.rank());
            let sharding = lowering.wanted(param, leaf)?.unwrap_or_else(|| ArraySharding::replicated(rank));
            params.push(LeafForm { whole, sharding, manual: Default::default() });
        }
        let leaves = params[first..].iter().map(|form| lowering.mesh.leaf(&form.sharding, &[])).collect::<Vec<_>>();
        let is_tuple = lowering.module.shape(param).as_tuple().is_some();
        marks.push(if is_tuple {
            Sharding::Tuple(leaves)
        } else {
            leaves.into_iter().next().map_or_else(Sharding::replicated, Sharding::Single)
        });
    }
    let (new_entry, results) = lowering.lower_computation(entry, &params, None)?;
    let Lowering { mesh, order, decisions, .. } = lowering;
    let leaves: Vec<_> = results.iter().map(|form| mesh.leaf(&form.sharding, &[])).collect();
    for (param, sharding) in module.comp(new_entry).params.clone().into_iter().zip(marks) {
        module.marks_mut(param).sharding = Some(sharding);
    }
    if let Some(root) = module.comp(new_entry).root.expand() {
        let is_tuple = module.shape(root).as_tuple().is_some();
        let single = leaves.first().cloned().map_or_else(Sharding::replicated, Sharding::Single);
        module.marks_mut(root).sharding = Some(if is_tuple { Sharding::Tuple(leaves) } else { single });
    }
    let mut decisions: Vec<Decision> = decisions.into_values().collect();
    finish(module, entry, new_entry, order);
    decisions.extend(write_header(module, entry, new_entry));
    Ok(decisions)
}

/// The new computations take the place of the old ones.
fn finish(module: &mut Module, entry: CompId, new_entry: CompId, new: Vec<CompId>) {
    let name = module.comp(entry).name;
    module.comp_mut(new_entry).name = name;
    let old = module.computations().iter().copied().filter(|comp| !new.contains(comp));
    let order: Vec<CompId> = old.chain(new.iter().copied()).collect();
    module.set_computation_order(order);
    module.set_entry(new_entry);
    module.remove_dead_computations();
    drop_annotations(module, &new);
    for comp in new {
        module.remove_dead(comp);
    }
}

/// Annotations within reducers and comparators, whose scalars nothing cuts, become copies.
fn drop_annotations(module: &mut Module, new: &[CompId]) {
    let others: Vec<CompId> = module.computations().iter().copied().filter(|comp| !new.contains(comp)).collect();
    let insts: Vec<InstId> = others.iter().flat_map(|&comp| module.comp(comp).insts.clone()).collect();
    for inst in insts {
        if module.inst(inst).marks.is_some() {
            let marks = module.marks_mut(inst);
            marks.sharding = None;
            marks.frontend_attributes.retain(|(key, _)| !key.starts_with("xla.sdy."));
        }
        if CustomTarget::of(&module.inst(inst).attrs) == Some(CustomTarget::Annotation) {
            let node = module.inst_mut(inst);
            (node.opcode, node.attrs) = (Opcode::Copy, Attrs::Plain);
        }
    }
}

/// Layouts, aliases and attributes of the new entry; gives what had to go.
fn write_header(module: &mut Module, entry: CompId, new_entry: CompId) -> Vec<Decision> {
    let mut decisions = Vec::new();
    let shape_of = |module: &Module, inst| module.inst(inst).shape;
    let params: Vec<_> = module.comp(new_entry).params.iter().map(|&param| shape_of(module, param)).collect();
    let root = module.comp(new_entry).root.expand();
    if let (Some(root), Some(old)) = (root, module.header.entry_computation_layout.take()) {
        let result = laid_out_as(module.shape(root), module.shapes.get(old.result));
        module.header.entry_computation_layout = Some(EntryLayout { params, result: module.shapes.intern(result) });
    }
    module.header.allow_spmd_sharding_propagation_to_parameters = None;
    module.header.allow_spmd_sharding_propagation_to_output = None;
    module.header.frontend_attributes.retain(|(key, _)| key != shardy::MESHES);
    let aliases = std::mem::take(&mut module.header.input_output_alias);
    let (kept, dropped): (Vec<_>, Vec<_>) = aliases.into_iter().partition(|alias| {
        let output = root.and_then(|root| module.shape(root).at(&alias.output_index).cloned());
        let param = usize::try_from(alias.param).ok().and_then(|k| module.comp(new_entry).params.get(k));
        let input = param.and_then(|&param| module.shape(param).at(&alias.param_index).cloned());
        matches!((output, input), (Some(a), Some(b)) if a.same_type(&b))
    });
    module.header.input_output_alias = kept;
    for alias in dropped {
        let old = usize::try_from(alias.param).ok().and_then(|k| module.comp(entry).params.get(k)).copied();
        let reason = format!("output {:?} is cut otherwise than the parameter", alias.output_index.as_slice());
        decisions.extend(old.map(|param| Decision::about(module, param, "no longer aliased", &reason)));
    }
    decisions
}

/// The shape with the layouts of `old`, leaf by leaf.
fn laid_out_as(shape: &Shape, old: &Shape) -> Shape {
    match (shape, old) {
        (Shape::Tuple(elements), Shape::Tuple(old)) => {
            Shape::Tuple(elements.iter().zip(old).map(|(element, old)| laid_out_as(element, old)).collect())
        }
        (Shape::Array(array), Shape::Array(old)) => {
            Shape::Array(ArrayShape { layout: old.layout.clone(), ..array.clone() })
        }
        (_, _) => shape.clone(),
    }
}
