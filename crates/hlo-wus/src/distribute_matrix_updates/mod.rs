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
//! (eigenvectors, Cholesky), and updates of which no other has the same shape.
//!
//! **Algorithm.** 1. [`find`]: products that are equal on the devices that sum gradients, what lies between them, and what is
//! computed for them or from them alone. 2. [`alike`]: updates that are the same graph of ops and shapes. 3. [`stacked`]: the ops of one
//! update, with a first dim for the stack; this device's part of the stack goes in, an all-gather puts the results together. State
//! in shards comes by an all-to-all instead, and results go back to shards by one ([`exchange`]). With
//! `profit=auto` a kind is distributed if the module is predicted to be faster; of more than 32 kinds, those of like size together
//! if they are predicted to be, else each for itself. Linear in the instructions, times the kinds.
//!
//! **Requires** a per-device module. **Ensures** the same results up to the order in which a library adds in a product
//! of another batch. **Errors**: the machine has another number of devices than the module.
//!
//! **References.** Xu et al. 2020, §3.1, replicate what has no dim to cut; this goes beyond it. The same distribution by hand:
//! Anil et al. 2020, *Scalable Second Order Optimization for Deep Learning*, §4.

mod alike;
mod exchange;
mod find;
mod in_shards;
mod kinds;
mod stacked;

use crate::error::WusError;
use crate::tables::IndexSet;
use alike::Source;
use exchange::Exchange;
use hlo_analysis::Preserved;
use hlo_ir::diag::Entity;
use hlo_ir::module::UserMap;
use hlo_ir::{InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{CollectiveChange, DimRun, ShardBuilder, ShardFormat, SpmdError};
use in_shards::{InShards, find_gathered, find_sliced};
use kinds::{Kind, find_kinds, is_any_dependent};
use stacked::{Stacked, row_of, shape_of, stack_of, stack_shape, stacked_op};
use std::fmt::Write;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "distribute-matrix-updates",
    help: "compute the updates of equal matrices (Muon, Shampoo) each on one device, and gather them",
    options: OPTIONS,
    build: |options| Ok(Box::new(DistributeMatrixUpdates { is_forced: options.text("profit") == "always" })),
};

const OPTIONS: &[OptionInfo] = &[OptionInfo {
    name: "profit",
    kind: OptionKind::Word(&["auto", "always"]),
    default: "auto",
    help: "auto: where the module is predicted to be faster; always: wherever two updates are alike",
}];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct DistributeMatrixUpdates {
    is_forced: bool,
}

/// How often the module is predicted anew where all kinds are distributed. Of more kinds, several of like size are tried at once.
const MOST_BATCHES: usize = 32;

impl Pass for DistributeMatrixUpdates {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut kinds = find_kinds(module, cx)?;
        cx.report.count("matrix-updates-seen", kinds.iter().map(|kind| kind.updates.len() as u64).sum());
        cx.report.count("matrix-updates-distributed", 0);
        let size = kinds.len().div_ceil(MOST_BATCHES).max(1);
        if size > 1 {
            kinds.sort_by_key(|kind| kind.given_bytes(module));
        }
        let mut now_ns = None;
        let mut is_changed = false;
        for batch in kinds.chunks(size) {
            cx.check_deadline()?;
            if batch.len() > 1 && self.distribute_batch(module, batch, cx, &mut now_ns)? {
                is_changed = true;
                continue;
            }
            for kind in batch {
                cx.check_deadline()?;
                is_changed |= self.distribute_batch(module, std::slice::from_ref(kind), cx, &mut now_ns)?;
            }
        }
        if !is_changed {
            cx.report.unchanged_because = Some("no two updates of matrices are alike and better distributed".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

impl DistributeMatrixUpdates {
    /// Distributes these kinds if all can be and the module is then predicted to be faster; whether it did. What is left is
    /// reported for one kind alone. `known_ns` is the module's predicted time, if known.
    fn distribute_batch(
        &self,
        module: &mut Module,
        kinds: &[Kind],
        cx: &mut PassCx<'_>,
        known_ns: &mut Option<f64>,
    ) -> Result<bool, PassError> {
        let mut work = module.clone();
        let mut collectives = Vec::with_capacity(kinds.len());
        for kind in kinds {
            match distribute(&mut work, kind) {
                Ok(new) => collectives.push(new),
                Err(_) if kinds.len() > 1 => return Ok(false),
                Err(reason) => {
                    cx.report.decisions.push(Decision::about(module, kind.first(), "left", reason.text()?));
                    return Ok(false);
                }
            }
        }
        let now_ns = match *known_ns {
            Some(now_ns) => now_ns,
            None => cx.predicted_s(module)? * 1e9,
        };
        cx.analyses.invalidate(Preserved { frequencies: true, ..Preserved::NONE });
        let then_ns = cx.predicted_s(&work)? * 1e9;
        if !self.is_forced && then_ns >= now_ns {
            *known_ns = Some(now_ns);
            if let [kind] = kinds {
                let reason = format!("{}: predicted to be slower than all of them on every device", kind.text());
                cx.report
                    .decisions
                    .push(Decision::about(module, kind.first(), "left", reason).with_step_times([now_ns, then_ns]));
            }
            return Ok(false);
        }
        *known_ns = Some(then_ns);
        for (kind, collectives) in kinds.iter().zip(collectives) {
            let mut reason = kind.text();
            if kinds.len() > 1 {
                let _ = write!(reason, "; predicted together with {} kinds of like size", kinds.len() - 1);
            }
            let mut decision =
                Decision::about(module, kind.first(), "distributed", reason).with_step_times([now_ns, then_ns]);
            let why = "brings matrices and results to where they are needed";
            decision.collectives = collectives.iter().map(|&new| CollectiveChange::inserted(&work, new, why)).collect();
            cx.report.decisions.push(decision);
            cx.report.count("matrix-updates-distributed", kind.updates.len() as u64);
        }
        *module = work;
        Ok(true)
    }
}

/// Why a kind is left.
enum Obstacle {
    Dependent,
    NoForm(String),
    Spmd(SpmdError),
    /// Beyond what [`is_any_dependent`] sees.
    Cycle,
    SameInputs,
}

impl Obstacle {
    /// What to say, or the error.
    fn text(self) -> Result<String, PassError> {
        match self {
            Obstacle::Dependent | Obstacle::Cycle => {
                Ok("one of the updates that are alike needs the result of another".into())
            }
            Obstacle::NoForm(name) => Ok(format!("`{name}` has no form for a stack of arrays")),
            Obstacle::Spmd(error) => Err(WusError::Spmd(error).about(Entity::Module)),
            Obstacle::SameInputs => Ok("the updates that are alike read the same: `cse` makes one of them".into()),
        }
    }
}

impl From<SpmdError> for Obstacle {
    fn from(error: SpmdError) -> Obstacle {
        Obstacle::Spmd(error)
    }
}

/// Rewrites a kind; the collectives put in.
fn distribute(module: &mut Module, kind: &Kind) -> Result<Vec<InstId>, Obstacle> {
    let members: IndexSet<InstId> = kind.updates.iter().flat_map(|update| update.insts.iter().copied()).collect();
    if is_any_dependent(module, kind, &members) {
        return Err(Obstacle::Dependent);
    }
    let users = module.users();
    let builder = ShardBuilder::new(module, kind.groups.as_slice().into());
    let n_devices = kind.groups.first().map_or(1, Vec::len);
    let mut emitter = Emitter { kind, members, users, builder, n_devices, collectives: Vec::new() };
    let (first, n_own) = (&kind.updates[0], kind.updates.len().div_ceil(n_devices) as i64);
    let inputs: Result<Vec<Stacked>, Obstacle> = (0..first.inputs.len()).map(|i| emitter.input(module, i)).collect();
    let inputs = inputs?;
    let mut results: Vec<Stacked> = Vec::with_capacity(first.nodes.len());
    for (node, &inst) in first.nodes.iter().zip(&first.insts) {
        let operand = |source: &Source| match *source {
            Source::Member(member) => results[member],
            Source::Input(input) => inputs[input],
        };
        let operands: Vec<Stacked> = node.operands.iter().map(operand).collect();
        let is_shared = operands.iter().all(|operand| matches!(operand, Stacked::Shared(_)));
        results.push(match stacked_op(module, inst, &operands, n_own) {
            Some(stack) => Stacked::Stack(stack),
            None if is_shared => Stacked::Shared(inst),
            None => return Err(no_form(module, inst)),
        });
    }
    for &output in &first.outputs {
        // What is computed from shared inputs alone is the same for all updates.
        if let Stacked::Stack(own) = results[output] {
            emitter.output(module, output, own)?;
        }
    }
    module.restore_order(kind.comp).map_err(|_| Obstacle::Cycle)?;
    module.remove_dead(kind.comp);
    if emitter.collectives.is_empty() {
        return Err(Obstacle::SameInputs);
    }
    Ok(emitter.collectives)
}

/// Builds what goes into the stacked update of a kind and what comes out of it.
struct Emitter<'k> {
    kind: &'k Kind,
    /// The instructions of all its updates.
    members: IndexSet<InstId>,
    /// Of the module as it was.
    users: UserMap,
    builder: ShardBuilder,
    n_devices: usize,
    collectives: Vec<InstId>,
}

impl Emitter<'_> {
    /// This device's part of an input's stack.
    fn input(&mut self, module: &mut Module, idx: usize) -> Result<Stacked, Obstacle> {
        let Kind { comp, groups, updates } = self.kind;
        let arrays: Vec<InstId> = updates.iter().map(|update| update.inputs[idx]).collect();
        if updates.iter().all(|update| update.input_keys[idx] == updates[0].input_keys[idx]) {
            return Ok(Stacked::Shared(arrays[0]));
        }
        let whole = shape_of(module, arrays[0])?;
        if let Some(found) = find_gathered(module, &arrays, groups)
            && let Some(gathered) = self.exchange(&found).gather_matrices(module, &whole)?
        {
            self.collectives.push(gathered.all_to_all);
            return Ok(Stacked::Stack(gathered.stack));
        }
        let stack = stack_of(module, *comp, &arrays, &stack_shape(&whole, 1))?;
        let format = ShardFormat::new(&stack_shape(&whole, arrays.len() as i64), DimRun::dim(0), self.n_devices);
        Ok(Stacked::Stack(self.builder.cut(module, stack, &format)?))
    }

    /// Puts the results of all devices in the place of an output of each update; `own` has this device's.
    fn output(&mut self, module: &mut Module, output: usize, own: InstId) -> Result<(), Obstacle> {
        let Kind { groups, updates, .. } = self.kind;
        let old: Vec<InstId> = updates.iter().map(|update| update.insts[output]).collect();
        let is_member = |inst: InstId| self.members.contains(&inst);
        if let Some(found) = find_sliced(module, &old, (&self.users, is_member), groups)
            && let Some(all_to_all) = self.exchange(&found).scatter_matrices(module, own)?
        {
            self.collectives.push(all_to_all);
            return put_rows(module, all_to_all, found.shards);
        }
        let shape = stack_shape(&shape_of(module, old[0])?, updates.len() as i64);
        let format = ShardFormat::new(&shape, DimRun::dim(0), self.n_devices);
        let joined = self.builder.join(module, own, &shape, &format);
        self.collectives.push(joined.all_gather);
        put_rows(module, joined.whole, old.into_iter().map(|source| vec![source]).collect())
    }

    fn exchange<'b>(&'b mut self, found: &'b InShards) -> Exchange<'b> {
        let n_devices = self.n_devices as i64;
        Exchange { comp: self.kind.comp, n_devices, builder: &mut self.builder, found }
    }
}

/// Puts each row of a stack in the place of these values.
fn put_rows(module: &mut Module, stack: InstId, old: Vec<Vec<InstId>>) -> Result<(), Obstacle> {
    for (idx, values) in (0..).zip(old) {
        for value in values {
            let new = row_of(module, stack, (idx, value))?;
            module.replace_all_uses(value, new);
        }
    }
    Ok(())
}

fn no_form(module: &Module, inst: InstId) -> Obstacle {
    Obstacle::NoForm(module.inst_name(inst).to_string())
}
