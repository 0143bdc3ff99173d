//! Collectives: groups, channels, source-target pairs.

use super::Verifier;
use crate::attrs::Attrs;
use crate::groups::{GroupMode, ReplicaGroups};
use crate::infer::group_size;
use crate::module::InstId;
use crate::op::ShapeRule;

/// What an op asks of its groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cover {
    /// Every id once, in groups of one size.
    AllEvenly,
    /// Every id once.
    All,
    /// Some ids, each once.
    Some,
}

/// The last groups found right: collectives of one module mostly share theirs.
#[derive(Default)]
pub(super) struct GroupMemo {
    last: Option<(ReplicaGroups, GroupMode, Cover)>,
}

pub(super) fn check(cx: &mut Verifier<'_>, memo: &mut GroupMemo, inst: InstId) {
    let node = cx.module.inst(inst);
    match &node.attrs {
        Attrs::Combining(a) => {
            let is_cut = node.opcode.row().shape == ShapeRule::ReduceScatter;
            let cover = if is_cut { Cover::AllEvenly } else { Cover::All };
            check_channel(cx, inst, a.channel_id);
            check_groups(cx, memo, inst, &a.replica_groups, (a.channel_id, Some(a.use_global_device_ids)), cover);
        }
        Attrs::Gathering(a) => {
            check_channel(cx, inst, a.channel_id);
            check_groups(
                cx,
                memo,
                inst,
                &a.replica_groups,
                (a.channel_id, Some(a.use_global_device_ids)),
                Cover::AllEvenly,
            );
        }
        Attrs::Exchanging(a) => {
            check_channel(cx, inst, a.channel_id);
            let is_broadcast = node.opcode.row().shape == ShapeRule::CollectiveBroadcast;
            let cover = if is_broadcast { Cover::Some } else { Cover::AllEvenly };
            check_groups(cx, memo, inst, &a.replica_groups, (a.channel_id, None), cover);
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
    cover: Cover,
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
    if let Some((known, known_mode, known_cover)) = &memo.last
        && *known_mode == mode
        && *known_cover == cover
        && known == groups
    {
        return;
    }
    let n_before = cx.found.len();
    check_new_groups(cx, inst, groups, mode, cover);
    if cx.found.len() == n_before {
        memo.last = Some((groups.clone(), mode, cover));
    }
}

fn check_new_groups(cx: &mut Verifier<'_>, inst: InstId, groups: &ReplicaGroups, mode: GroupMode, cover: Cover) {
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
    let mut ids: Vec<i64> = lists.iter().flatten().copied().collect();
    ids.sort_unstable();
    let n = ids.len() as i64;
    if let Some(pair) = ids.windows(2).find(|w| w[0] == w[1]) {
        return cx.at_inst("groups-unique-ids", inst, "each id once", format_args!("id {} twice", pair[0]));
    }
    let header = &cx.module.header;
    let n_ids = mode.n_ids(header.replica_count, header.num_partitions);
    let what = match mode {
        GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => "replicas",
        GroupMode::CrossPartition => "partitions",
        GroupMode::Flattened => "devices",
    };
    if cover == Cover::Some {
        if let Some(id) = ids.iter().find(|&&id| id < 0 || (n_ids > 1 && id >= n_ids)) {
            cx.at_inst("groups-device-count", inst, format_args!("ids of {n_ids} {what}"), format_args!("id {id}"));
        }
        return;
    }
    if let Some((i, _)) = ids.iter().enumerate().find(|&(i, &id)| id != i as i64) {
        return cx.at_inst("groups-missing-id", inst, format_args!("ids 0 to {}", n - 1), format_args!("no id {i}"));
    }
    if n_ids > 1 && n < n_ids {
        return cx.at_inst("groups-missing-id", inst, format_args!("ids of {n_ids} {what}"), format_args!("no id {n}"));
    }
    if n_ids > 1 && n > n_ids {
        return cx.at_inst("groups-device-count", inst, format_args!("ids of {n_ids} {what}"), format_args!("{n} ids"));
    }
    if cover == Cover::AllEvenly && lists.iter().any(|g| g.len() != lists[0].len()) {
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
