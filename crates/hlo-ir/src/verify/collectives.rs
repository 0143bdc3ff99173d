//! Collectives: groups, channels, source-target pairs.

use super::Verifier;
use crate::attrs::Attrs;
use crate::groups::{GroupMode, ReplicaGroups};
use crate::infer::group_size;
use crate::module::InstId;
use crate::op::ShapeRule;

/// The last groups found right: collectives of one module mostly share theirs.
#[derive(Default)]
pub(super) struct GroupMemo {
    last: Option<(ReplicaGroups, GroupMode, bool)>,
}

pub(super) fn check(cx: &mut Verifier<'_>, memo: &mut GroupMemo, inst: InstId) {
    let node = cx.module.inst(inst);
    match &node.attrs {
        Attrs::Combining(a) => {
            let must_be_uniform = node.opcode.row().shape == ShapeRule::ReduceScatter;
            check_channel(cx, inst, a.channel_id);
            check_groups(
                cx,
                memo,
                inst,
                &a.replica_groups,
                (a.channel_id, Some(a.use_global_device_ids)),
                must_be_uniform,
            );
        }
        Attrs::Gathering(a) => {
            check_channel(cx, inst, a.channel_id);
            check_groups(cx, memo, inst, &a.replica_groups, (a.channel_id, Some(a.use_global_device_ids)), true);
        }
        Attrs::Exchanging(a) => {
            check_channel(cx, inst, a.channel_id);
            let must_be_uniform = node.opcode.row().shape != ShapeRule::CollectiveBroadcast;
            check_groups(cx, memo, inst, &a.replica_groups, (a.channel_id, None), must_be_uniform);
            if node.opcode.row().shape == ShapeRule::AllToAll && a.dimensions.is_empty() {
                check_exchange(cx, inst);
            }
        }
        Attrs::Permuting(a) => {
            check_channel(cx, inst, a.channel_id);
            check_pairs(cx, inst, &a.source_target_pairs, a.channel_id.is_some());
        }
        Attrs::Transfer(a) => check_channel(cx, inst, a.channel_id),
        _ => {}
    }
}

fn check_channel(cx: &mut Verifier<'_>, inst: InstId, channel: Option<i64>) {
    if let Some(channel) = channel
        && channel <= 0
    {
        cx.at_inst("channel-id", inst, "a channel id of 1 or more", channel);
    }
}

fn check_groups(
    cx: &mut Verifier<'_>,
    memo: &mut GroupMemo,
    inst: InstId,
    groups: &ReplicaGroups,
    (channel, global_ids): (Option<i64>, Option<bool>),
    must_be_uniform: bool,
) {
    let mode = match GroupMode::of(channel.is_some(), global_ids) {
        Ok(mode) => mode,
        Err(_) => {
            return cx.at_inst(
                "groups-global-ids-without-channel",
                inst,
                "a channel_id with use_global_device_ids=true",
                "none",
            );
        }
    };
    if let Some((known, known_mode, uniform)) = &memo.last
        && *known_mode == mode
        && (*uniform || !must_be_uniform)
        && known == groups
    {
        return;
    }
    let n_before = cx.found.len();
    check_new_groups(cx, inst, groups, mode, must_be_uniform);
    if cx.found.len() == n_before {
        memo.last = Some((groups.clone(), mode, must_be_uniform));
    }
}

fn check_new_groups(
    cx: &mut Verifier<'_>,
    inst: InstId,
    groups: &ReplicaGroups,
    mode: GroupMode,
    must_be_uniform: bool,
) {
    let Some(lists) = groups.expand() else {
        return cx.at_inst(
            "groups-well-formed",
            inst,
            "groups that expand to lists of ids",
            "a malformed tile or mesh",
        );
    };
    if lists.is_empty() {
        if mode == GroupMode::Flattened {
            cx.at_inst("groups-flattened-empty", inst, "a list of groups of flat device ids", "none");
        }
        return;
    }
    if lists.iter().any(Vec::is_empty) {
        return cx.at_inst("groups-empty", inst, "an id or more in each group", "an empty group");
    }
    let n: usize = lists.iter().map(Vec::len).sum();
    let mut seen = vec![false; n];
    for &id in lists.iter().flatten() {
        match usize::try_from(id).ok().and_then(|i| seen.get_mut(i)) {
            Some(slot) if !*slot => *slot = true,
            Some(_) => return cx.at_inst("groups-unique-ids", inst, "each id once", format_args!("id {id} twice")),
            None => {
                // A duplicate of a larger id is still a duplicate.
                let is_twice = lists.iter().flatten().filter(|&&other| other == id).count() > 1;
                let (rule, found) = if is_twice {
                    ("groups-unique-ids", format!("id {id} twice"))
                } else {
                    ("groups-missing-id", format!("id {id} among {n}"))
                };
                return cx.at_inst(rule, inst, format_args!("ids 0 to {}", n - 1), found);
            }
        }
    }
    let header = &cx.module.header;
    let n_ids = mode.n_ids(header.replica_count, header.num_partitions);
    if n_ids > 1 && n as i64 != n_ids {
        let what = match mode {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => "replicas",
            GroupMode::CrossPartition => "partitions",
            GroupMode::Flattened => "devices",
        };
        return cx.at_inst("groups-device-count", inst, format_args!("ids of {n_ids} {what}"), format_args!("{n} ids"));
    }
    if must_be_uniform && lists.iter().any(|g| g.len() != lists[0].len()) {
        cx.at_inst("groups-uneven", inst, "groups of one size", "several sizes");
    }
}

fn check_exchange(cx: &mut Verifier<'_>, inst: InstId) {
    let node = cx.module.inst(inst);
    if let Some(n) = group_size(cx.module, &node.attrs)
        && n != node.operands.len() as i64
        && has_known_groups(cx, inst)
    {
        let expected = format!("{n} operands, one for each member of a group");
        cx.at_inst("all-to-all-arity", inst, expected, node.operands.len());
    }
}

/// False where the groups are empty and the header gives no count: then nobody knows how many members there are.
fn has_known_groups(cx: &Verifier<'_>, inst: InstId) -> bool {
    match &cx.module.inst(inst).attrs {
        Attrs::Exchanging(a) => !a.replica_groups.is_empty() || cx.module.n_devices() > 1,
        _ => false,
    }
}

fn check_pairs(cx: &mut Verifier<'_>, inst: InstId, pairs: &[(i64, i64)], has_channel: bool) {
    let header = &cx.module.header;
    let limit = if has_channel { header.num_partitions } else { header.replica_count };
    let (mut sources, mut targets) = (Vec::with_capacity(pairs.len()), Vec::with_capacity(pairs.len()));
    for &(source, target) in pairs {
        for id in [source, target] {
            if id < 0 || (id >= limit && limit > 1) {
                return cx.at_inst("permute-range", inst, format_args!("ids 0 to {}", limit - 1), id);
            }
        }
        sources.push(source);
        targets.push(target);
    }
    // The in-place form moves several slices between one pair of devices, so there pairs may repeat.
    let is_in_place = matches!(&cx.module.inst(inst).attrs, Attrs::Permuting(a) if !a.slice_sizes.0.is_empty());
    for (rule, what, ids) in [("permute-source", "source", &mut sources), ("permute-target", "target", &mut targets)] {
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|w| w[0] == w[1])
            && !is_in_place
        {
            return cx.at_inst(rule, inst, format_args!("each {what} once"), format_args!("{} twice", pair[0]));
        }
    }
}
