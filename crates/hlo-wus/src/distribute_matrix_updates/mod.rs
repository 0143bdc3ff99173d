//! Compute the updates of equal matrices each on one device, in place of all of them on every device.
//!
//! Before, every device multiplies the momentum of every matrix by its transpose:
//! ```text
//! %p.0 = f32[64,64] dot(%m.0, %m.0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
//! %p.1 = f32[64,64] dot(%m.1, %m.1), lhs_contracting_dims={1}, rhs_contracting_dims={1}
//! ```
//! after, device `d` of two does it for matrix `d`, and all devices gather the results:
//! ```text
//! %stack = f32[2,64,256] concatenate(%m.0.row, %m.1.row), dimensions={0}
//! %own = f32[1,64,256] dynamic-slice(%stack, %shard_start, %zero, %zero), dynamic_slice_sizes={1,64,256}
//! %p = f32[1,64,64] dot(%own, %own), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={2}
//! %all = f32[2,64,64] all-gather(%p), dimensions={0}
//! ```
//! The sample `ir-samples/passes/distribute-matrix-updates/muon.hlo` runs this.
//!
//! **Why.** Optimizers such as Muon, Shampoo and SOAP multiply, orthogonalize and invert whole matrices. No dim of such an
//! update can be cut without communication in each product, so that all devices repeat all products. Models have many
//! matrices of equal shape: `k` of them over `n` devices leave `⌈k/n⌉` to each.
//!
//! **What it does not do.** Updates that stand in loops of their own (a `fori_loop` of Newton–Schulz steps: unroll it), decompositions
//! (eigenvectors, Cholesky), and updates of which no other has the same shape. State in shards is gathered for its update,
//! and the update for its shards: an all-to-all would move fewer bytes.
//!
//! **Algorithm.** 1. [`find`]: products that are equal on the devices that sum gradients, what lies between them, and what is
//! computed for them or from them alone. 2. [`alike`]: updates that are the same graph of ops and shapes. 3. [`stacked`]: the ops of one
//! update, with a first dim for the stack; this device's part of the stack goes in, an all-gather puts the results together. With
//! `profit=auto` a kind is distributed if the module is predicted to be faster. Linear in the instructions, times the kinds.
//!
//! **Requires** a per-device module. **Ensures** the same results up to the order in which a library adds in a product
//! of another batch. **Errors**: the machine has another number of devices than the module.
//!
//! **References.** Xu et al. 2020, §3.1, replicate what has no dim to cut; this goes beyond it. The same distribution by hand:
//! Anil et al. 2020, *Scalable Second Order Optimization for Deep Learning*, §4.

mod alike;
mod find;
mod stacked;

use crate::error::WusError;
use alike::{Constants, Ordered, Source};
use hlo_analysis::Preserved;
use hlo_analysis::code::code_computations;
use hlo_analysis::time::{Machine, predict};
use hlo_ir::attrs::{DimsAttrs, ReshapeAttrs};
use hlo_ir::diag::Entity;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{Appender, CollectiveChange, DimRun, ShardBuilder, ShardFormat, SpmdError, array};
use indexmap::IndexSet;
use stacked::{Stacked, stack_shape, stacked_op};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "distribute-matrix-updates",
    help: "compute the updates of equal matrices (Muon, Shampoo) each on one device, and gather them",
    options: OPTIONS,
    build: |options| Ok(Box::new(DistributeMatrixUpdates::new(options)?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "profit",
        kind: OptionKind::Word(&["auto", "always"]),
        default: "auto",
        help: "auto: where the module is predicted to be faster; always: wherever two updates are alike",
    },
    OptionInfo {
        name: "cluster",
        kind: OptionKind::Text,
        default: "",
        help: "how the devices are wired, for predicted times: [(node,2),(gpu,8)] or a shipped name; empty: one switch",
    },
    OptionInfo {
        name: "device",
        kind: OptionKind::Text,
        default: "h200",
        help: "the device, for predicted times: h200, a100, v100, tpuv3",
    },
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct DistributeMatrixUpdates {
    is_forced: bool,
    machine: Machine,
}

impl DistributeMatrixUpdates {
    fn new(options: &Options) -> Result<DistributeMatrixUpdates, WusError> {
        Ok(DistributeMatrixUpdates {
            is_forced: options.text("profit") == "always",
            machine: Machine::from_args(options.text("cluster"), options.text("device")).map_err(WusError::Machine)?,
        })
    }

    /// The predicted time of a module, in nanoseconds.
    fn predicted_ns(&self, module: &Module, cx: &mut PassCx<'_>) -> Result<f64, PassError> {
        let frequencies = cx.analyses.frequencies(module);
        let time = predict(module, &frequencies, &self.machine);
        let time = time.map_err(|error| PassError::about("machine-size", Entity::Module, error.to_string()))?;
        Ok(time.critical_path_s * 1e9)
    }
}

/// Updates that are alike.
struct Kind {
    comp: CompId,
    groups: Vec<Vec<u32>>,
    updates: Vec<Ordered>,
}

impl Pass for DistributeMatrixUpdates {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let kinds = find_kinds(module, cx);
        cx.report.count("matrix-updates-seen", kinds.iter().map(|kind| kind.updates.len() as u64).sum());
        cx.report.count("matrix-updates-distributed", 0);
        let mut before_ns = None;
        let mut is_changed = false;
        for kind in &kinds {
            let (first, n) = (kind.updates[0].insts[0], kind.updates.len());
            let mut work = module.clone();
            let gathers = match distribute(&mut work, kind) {
                Ok(gathers) => gathers,
                Err(reason) => {
                    cx.report.decisions.push(Decision::about(module, first, "left", reason.text()?));
                    continue;
                }
            };
            let now_ns = match before_ns {
                Some(known_ns) => known_ns,
                None => self.predicted_ns(module, cx)?,
            };
            cx.analyses.invalidate(Preserved { frequencies: true, ..Preserved::NONE });
            let then_ns = self.predicted_ns(&work, cx)?;
            let size = kind.groups.first().map_or(1, Vec::len);
            let what = format!("{n} updates are alike, {} for each of {size} devices", n.div_ceil(size));
            if !self.is_forced && then_ns >= now_ns {
                before_ns = Some(now_ns);
                let reason = format!("{what}: predicted to be slower than all of them on every device");
                cx.report.decisions.push(told(module, first, "left", reason, [now_ns, then_ns]));
                continue;
            }
            before_ns = Some(then_ns);
            let mut decision = told(module, first, "distributed", what, [now_ns, then_ns]);
            let why = "puts the results of all devices together";
            decision.collectives = gathers.iter().map(|&new| CollectiveChange::inserted(&work, new, why)).collect();
            cx.report.decisions.push(decision);
            cx.report.count("matrix-updates-distributed", n as u64);
            *module = work;
            is_changed = true;
        }
        if !is_changed {
            cx.report.unchanged_because = Some("no two updates of matrices are alike and better distributed".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

fn told(module: &Module, inst: InstId, action: &str, reason: String, [before_ns, after_ns]: [f64; 2]) -> Decision {
    let mut decision = Decision::about(module, inst, action, reason);
    (decision.predicted_before_ns, decision.predicted_after_ns) = (Some(before_ns), Some(after_ns));
    decision
}

/// The kinds of updates of which there are several, computation by computation.
fn find_kinds(module: &Module, cx: &mut PassCx<'_>) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let all_groups = groups_of_collectives(module);
    if all_groups.is_empty() {
        return kinds;
    }
    let (replication, users) = (cx.analyses.replication(module), module.users());
    for comp in code_computations(module) {
        let mut seen: IndexSet<InstId> = IndexSet::new();
        for groups in &all_groups {
            let mut constants = Constants::default();
            let updates = find::find_updates(module, comp, &users, &replication, groups);
            let updates = updates.iter().map(|update| alike::ordered(module, update, &mut constants));
            let updates = updates.filter(|update| !update.insts.iter().any(|inst| seen.contains(inst))).collect();
            let more = alike::alike(updates).into_iter().filter(|updates| updates.len() > 1);
            for updates in more {
                seen.extend(updates.iter().flat_map(|update| update.insts.iter().copied()));
                kinds.push(Kind { comp, groups: groups.clone(), updates });
            }
        }
    }
    kinds
}

/// The sets of groups of the module's collectives that hold all devices, the largest groups first.
fn groups_of_collectives(module: &Module) -> Vec<Vec<Vec<u32>>> {
    let mut found: IndexSet<Vec<Vec<u32>>> = IndexSet::new();
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        let Flow::Collective(_) = module.inst(inst).opcode.row().flow else { continue };
        let Ok(groups) = module.device_groups(inst) else { continue };
        let size = groups.uniform_size().unwrap_or(0);
        if size > 1 && size * groups.groups.len() == module.n_devices() {
            found.insert(groups.groups);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|groups| std::cmp::Reverse(groups.first().map_or(0, Vec::len)));
    found
}

/// Why a kind is left.
enum Obstacle {
    Dependent,
    NoForm(String),
    Spmd(SpmdError),
    Cycle(InstId),
}

impl Obstacle {
    /// What to say, or the error.
    fn text(self) -> Result<String, PassError> {
        match self {
            Obstacle::Dependent => Ok("one of the updates that are alike needs the result of another".into()),
            Obstacle::NoForm(name) => Ok(format!("`{name}` has no form for a stack of arrays")),
            Obstacle::Spmd(error) => Err(WusError::Spmd(error).about(Entity::Module)),
            Obstacle::Cycle(inst) => {
                Err(PassError::about("cycle", Entity::Inst(inst), "the instruction needs its own result"))
            }
        }
    }
}

/// Rewrites a kind; the all-gathers put in.
fn distribute(module: &mut Module, kind: &Kind) -> Result<Vec<InstId>, Obstacle> {
    if is_any_dependent(module, kind) {
        return Err(Obstacle::Dependent);
    }
    let Kind { comp, groups, updates } = kind;
    let n_devices = groups.first().map_or(1, Vec::len);
    let n = updates.len() as i64;
    let mut shards = ShardBuilder::new(module, groups.as_slice().into());
    let first = &updates[0];
    let mut inputs = Vec::with_capacity(first.inputs.len());
    for idx in 0..first.inputs.len() {
        let arrays: Vec<InstId> = updates.iter().map(|update| update.inputs[idx]).collect();
        if arrays.iter().all(|array| *array == arrays[0]) {
            inputs.push(Stacked::Shared(arrays[0]));
            continue;
        }
        let stack = stack_of(module, *comp, &arrays).ok_or_else(|| no_form(module, arrays[0]))?;
        let shape = array(module, stack).cloned().ok_or_else(|| no_form(module, stack))?;
        let format = ShardFormat::new(&shape, DimRun::dim(0), n_devices);
        inputs.push(Stacked::Stack(shards.cut(module, stack, &format).map_err(Obstacle::Spmd)?));
    }
    let n_own = updates.len().div_ceil(n_devices) as i64;
    let mut results: Vec<Stacked> = Vec::with_capacity(first.nodes.len());
    for (node, &inst) in first.nodes.iter().zip(&first.insts) {
        let operand = |source: &Source| match *source {
            Source::Member(member) => results[member],
            Source::Input(input) => inputs[input],
            Source::Constant(inst) => Stacked::Shared(inst),
        };
        let operands: Vec<Stacked> = node.operands.iter().map(operand).collect();
        let is_shared = operands.iter().all(|operand| matches!(operand, Stacked::Shared(_)));
        results.push(match stacked_op(module, inst, &operands, n_own) {
            Some(stack) => Stacked::Stack(stack),
            None if is_shared => Stacked::Shared(inst),
            None => return Err(no_form(module, inst)),
        });
    }
    let mut gathers = Vec::new();
    for &output in &first.outputs {
        // What is computed from shared inputs alone is the same for all updates.
        let Stacked::Stack(own) = results[output] else { continue };
        let old = array(module, first.insts[output]).cloned().ok_or_else(|| no_form(module, own))?;
        let shape = stack_shape(&old, n);
        let format = ShardFormat::new(&shape, DimRun::dim(0), n_devices);
        let joined = shards.join(module, own, &shape, &format);
        gathers.push(joined.all_gather);
        for (idx, update) in (0..).zip(updates) {
            let source = update.insts[output];
            let at = Appender::standing_for(*comp, source);
            let row = at.slice(module, "row", joined.whole, stack_shape(&old, 1), (0, idx));
            let new = at.add(module, "update", Opcode::Reshape, old.clone(), &[row], ReshapeAttrs::default());
            module.replace_all_uses(source, new);
        }
    }
    module.restore_order(*comp).map_err(Obstacle::Cycle)?;
    module.remove_dead(*comp);
    Ok(gathers)
}

fn no_form(module: &Module, inst: InstId) -> Obstacle {
    Obstacle::NoForm(module.inst_name(inst).to_string())
}

/// `[n, dims…]` of `n` arrays `[dims…]`.
fn stack_of(module: &mut Module, comp: CompId, arrays: &[InstId]) -> Option<InstId> {
    let at = Appender::new(comp);
    let of = array(module, *arrays.first()?)?.clone();
    let rows: Vec<InstId> = arrays
        .iter()
        .map(|&array| at.add(module, "row", Opcode::Reshape, stack_shape(&of, 1), &[array], ReshapeAttrs::default()))
        .collect();
    let shape = stack_shape(&of, rows.len() as i64);
    let attrs = DimsAttrs { dimensions: std::iter::once(0).collect() };
    Some(at.add(module, "stack", Opcode::Concatenate, shape, &rows, attrs))
}

/// Whether one update of a kind reads what is computed from another one.
fn is_any_dependent(module: &Module, kind: &Kind) -> bool {
    let members: IndexSet<InstId> = kind.updates.iter().flat_map(|update| update.insts.iter().copied()).collect();
    let mut follows: IndexSet<InstId> = IndexSet::new();
    for &inst in &module.comp(kind.comp).insts {
        if module.inst(inst).operands.iter().any(|o| members.contains(o) || follows.contains(o))
            && !members.contains(&inst)
        {
            follows.insert(inst);
        }
    }
    kind.updates
        .iter()
        .any(|update| update.inputs.iter().any(|input| follows.contains(input) || members.contains(input)))
}
