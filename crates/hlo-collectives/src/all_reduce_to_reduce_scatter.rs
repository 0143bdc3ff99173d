//! Reduce and scatter in one collective where every device takes only its slice of an all-reduce.
//!
//! Before, each device reads the slice that its number says:
//! ```text
//! %sum = f32[16,8] all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%add
//! %start = s32[] multiply(%id, %four)
//! %slice = f32[4,8] dynamic-slice(%sum, %start, %zero), dynamic_slice_sizes={4,8}
//! ```
//! after, it gets no more than that:
//! ```text
//! %slice = f32[4,8] reduce-scatter(%a), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
//! ```
//! The sample `ir-samples/passes/all-reduce-to-reduce-scatter/product.hlo` runs this, `table.hlo` a start that is looked up.
//!
//! **Why.** A reduce-scatter moves half of what an all-reduce does, and the whole sum is stored nowhere. Partitioners and hand-written
//! sharding write the long form.
//!
//! Between the two may stand what computes one element from one: a mean, a conversion, a decay that is added. It is done on the
//! slice, and what it adds is sliced alike. A reshape or a transpose is done before the reduction.
//!
//! **What it does not do.** All users must take the same slice: equal parts along one dim, another for each device of a group.
//! Starts that depend on data stay; so do sums that are read by several chains of ops, tuple all-reduces
//! (`split-tuple-all-reduce` before), and all-reduces in control dependencies.
//!
//! **Algorithm.** [`path`] follows the only user of each all-reduce to the slices. Their starts are computed for every device from ids,
//! constants, tables, arithmetic and choices ([`hlo_spmd::find_device_values`]); if a group's starts are all multiples of the
//! slice's size, each once, they are the order of its members. Linear in users × devices.
//!
//! **Requires** nothing. **Ensures** the same results up to the order in which a reduction adds. Collectives across replicas stay so
//! where all partitions agree on the order; others name flat ids. **Errors**: none.

mod path;

use crate::refusal::{CollectiveRefusal, ScatterRefusal};
use cranelift_entity::EntitySet;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::groups::GroupMode;
use hlo_ir::module::UserMap;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{
    AllReduce, ChannelIds, CollectiveChange, GroupAttrs, OwnSlice, Rewrite, find_all_reduce, find_own_slice,
};
use path::Path;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "all-reduce-to-reduce-scatter",
    help: "reduce-scatter instead of an all-reduce of which every device takes its slice",
    options: &[],
    build: |_| Ok(Box::new(AllReduceToReduceScatter)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllReduceToReduceScatter;

impl Pass for AllReduceToReduceScatter {
    fn takes_single_all_reduces(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let users = module.users();
        let mut channels = ChannelIds::free_in(module);
        let mut n_scattered = 0;
        for comp in code_computations(module) {
            n_scattered += scatter_in(module, comp, &users, &mut channels, cx.report)?;
        }
        cx.report.count("all-reduces-scattered", n_scattered);
        if n_scattered == 0 {
            cx.report.unchanged_because = Some("no all-reduce is read in slices by device only".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

fn scatter_in(
    module: &mut Module,
    comp: CompId,
    users: &UserMap,
    channels: &mut ChannelIds,
    report: &mut PassReport,
) -> Result<u64, PassError> {
    let pinned = pinned_by_control(module, comp);
    let mut rewrite = Rewrite::new(module, comp);
    let mut live = EntitySet::with_capacity(module.n_inst_slots());
    live.extend(rewrite.live_insts(module));
    let mut n_scattered = 0;
    for inst in rewrite.live_insts(module) {
        let found = find_all_reduce(module, inst, &pinned).map_err(CollectiveRefusal::from).and_then(|found| {
            let Some(all_reduce) = found else { return Ok(None) };
            let path = path::find(module, &all_reduce, &|value| live_users(users, &live, value), &pinned)?;
            let slices = find_slices(module, &all_reduce, &path)?;
            Ok(Some((all_reduce, path, slices)))
        });
        let (all_reduce, path, slices) = match found {
            Ok(None) => continue,
            Ok(Some(found)) => found,
            Err(reason) => {
                report.decisions.push(Decision::about(module, inst, "left", reason));
                continue;
            }
        };
        let mut told = Decision::about(module, inst, "scattered", "every device takes its slice only");
        told.collectives.push(CollectiveChange::removed(module, inst, "gives every device the whole"));
        let new = emit(module, &rewrite, &all_reduce, (&slices, &path), channels);
        told.collectives.push(CollectiveChange::inserted(module, new, "gives every device its slice"));
        let result = path.redo(module, &rewrite, new);
        for &reader in &path.readers {
            let result = rewrite.with_shape_of(module, result, reader);
            rewrite.redirect(reader, result);
        }
        report.decisions.push(told);
        n_scattered += 1;
    }
    if n_scattered > 0 {
        rewrite.finish(module)?;
    }
    Ok(n_scattered)
}

/// The users of a value whose own values are needed, each once.
fn live_users(users: &UserMap, live: &EntitySet<InstId>, value: InstId) -> Vec<InstId> {
    let mut found: Vec<InstId> = users[value].iter().copied().filter(|&user| live.contains(user)).collect();
    found.dedup();
    found
}

/// What all readers take of an all-reduce.
///
/// # Errors
/// Why that is no scatter.
fn find_slices(module: &Module, all_reduce: &AllReduce, path: &Path) -> Result<OwnSlice, CollectiveRefusal> {
    let mut slices: Option<OwnSlice> = None;
    for &reader in &path.readers {
        let found = find_own_slice(module, reader, &all_reduce.groups).map_err(ScatterRefusal::from)?;
        if slices.as_ref().is_some_and(|known| *known != found) {
            return Err(ScatterRefusal::DifferentSlices.into());
        }
        slices = Some(found);
    }
    let slices = slices.ok_or(ScatterRefusal::Unused)?;
    // A scatter may reduce in another order: its groups are listed as the slices lie.
    if all_reduce.reducer.is_none() { Err(CollectiveRefusal::UnknownReducer) } else { Ok(slices) }
}

/// The reduce-scatter of what is rearranged on the path.
fn emit(
    module: &mut Module,
    rewrite: &Rewrite,
    all_reduce: &AllReduce,
    (slices, path): (&OwnSlice, &Path),
    channels: &mut ChannelIds,
) -> InstId {
    let old = all_reduce.inst;
    let view = module.inst(old).attrs.collective();
    let (reducer, channel) = view.map_or((None, None), |view| (view.to_apply, view.channel_id));
    let mut groups = slices.groups.clone();
    if view.is_some_and(|view| view.mode() == Some(GroupMode::CrossReplica)) {
        groups.sort();
    }
    let own_channel = || channel.unwrap_or_else(|| channels.take());
    let participants = GroupAttrs::in_place_of(module, old, &groups, own_channel);
    let attrs = participants.combining([slices.dim as i64].into_iter().collect(), reducer);
    let (operand, part) = path.rearrange(module, rewrite, all_reduce);
    let hint = module.inst_name(old).to_string();
    rewrite.add(module, old, (&hint, Opcode::ReduceScatter), Shape::Array(part), &[operand], attrs)
}
