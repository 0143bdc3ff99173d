//! Collectives: groups, channels, source-target pairs.

use super::Verifier;
use crate::attrs::Attrs;
use crate::collective::{CollectiveView, Participants};
use crate::groups::{GroupMode, ReplicaGroups};
use crate::infer::group_size;
use crate::module::InstId;
use crate::op::{CollectiveRule, Participation};

/// The last groups found right: collectives of one module mostly share theirs.
#[derive(Default)]
pub(super) struct GroupMemo {
    last: Option<(ReplicaGroups, GroupMode, Participation)>,
}

pub(super) fn check(cx: &mut Verifier<'_>, memo: &mut GroupMemo, inst: InstId) {
    let node = cx.module.inst(inst);
    if let Attrs::Transfer(a) = &node.attrs {
        check_channel(cx, inst, a.channel_id);
    }
    let (Some(rule), Some(view)) = (node.opcode.row().collective, node.attrs.collective()) else { return };
    check_channel(cx, inst, view.channel_id);
    match view.participants {
        Participants::Pairs(pairs) => check_pairs(cx, inst, pairs, &view),
        Participants::Groups { .. } => check_groups(cx, memo, inst, &view, rule.participation()),
    }
    // Without a dim the parts of an exchange are separate operands.
    if rule.exchanges_parts() && view.dimensions.is_empty() {
        check_exchange(cx, inst, rule, &view);
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
    view: &CollectiveView<'_>,
    cover: Participation,
) {
    let (groups, mode) = match view.groups() {
        Some(Ok(found)) => found,
        Some(Err(_)) => {
            return cx.at_inst(
                "groups-global-ids-without-channel",
                inst,
                "a channel_id with use_global_device_ids=true",
                "none",
            );
        }
        None => return,
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

fn check_new_groups(
    cx: &mut Verifier<'_>,
    inst: InstId,
    groups: &ReplicaGroups,
    mode: GroupMode,
    cover: Participation,
) {
    let Some(lists) = groups.expand() else {
        return cx.at_inst("groups-well-formed", inst, "groups that expand to lists of ids", groups.fault());
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
    ids.sort();
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
    let (r, p) = (header.replica_count, header.num_partitions);
    let expected = format!("ids of {n_ids} {what} (the header says replica_count={r}, num_partitions={p})");
    if cover == Participation::SomeGroups {
        if let Some(id) = ids.iter().find(|&&id| id < 0 || (n_ids > 1 && id >= n_ids)) {
            cx.at_inst("groups-device-count", inst, expected, format_args!("id {id}"));
        }
        return;
    }
    if let Some((i, _)) = ids.iter().enumerate().find(|&(i, &id)| id != i as i64) {
        return cx.at_inst("groups-missing-id", inst, format_args!("ids 0 to {}", n - 1), format_args!("no id {i}"));
    }
    if n_ids > 1 && n < n_ids {
        return cx.at_inst("groups-missing-id", inst, expected, format_args!("no id {n}"));
    }
    if n_ids > 1 && n > n_ids {
        return cx.at_inst("groups-device-count", inst, expected, format_args!("id {}", n - 1));
    }
    if cover == Participation::EvenGroups && lists.iter().any(|g| g.len() != lists[0].len()) {
        cx.at_inst("groups-uneven", inst, "groups of one size", "several sizes");
    }
}

fn check_exchange(cx: &mut Verifier<'_>, inst: InstId, rule: CollectiveRule, view: &CollectiveView<'_>) {
    let node = cx.module.inst(inst);
    let n_operands = cx.module.n_exchanged(inst, rule);
    // Where the groups are empty and the header gives no count, nobody knows how many members there are.
    let is_known = match view.participants {
        Participants::Groups { groups, .. } => !groups.is_empty() || cx.module.n_devices() > 1,
        Participants::Pairs(_) => false,
    };
    if let Some(n) = group_size(cx.module, &node.attrs)
        && n != n_operands as i64
        && is_known
    {
        let expected = format!("{n} operands, one for each member of a group");
        cx.at_inst("all-to-all-arity", inst, expected, n_operands);
    }
}

fn check_pairs(cx: &mut Verifier<'_>, inst: InstId, pairs: &[(i64, i64)], view: &CollectiveView<'_>) {
    let header = &cx.module.header;
    let limit = if view.channel_id.is_some() { header.num_partitions } else { header.replica_count };
    let (mut sources, mut targets) = (Vec::with_capacity(pairs.len()), Vec::with_capacity(pairs.len()));
    for &(source, target) in pairs {
        for id in [source, target] {
            if id < 0 || (id >= limit && limit > 1) {
                let of = if view.channel_id.is_some() { "num_partitions" } else { "replica_count" };
                let expected = format_args!("ids 0 to {} ({of}={limit} in the header)", limit - 1);
                return cx.at_inst("permute-range", inst, expected, id);
            }
        }
        sources.push(source);
        targets.push(target);
    }
    // The in-place form moves several slices between one pair of devices, so there pairs may repeat.
    for (rule, what, ids) in [("permute-source", "source", &mut sources), ("permute-target", "target", &mut targets)] {
        ids.sort();
        if let Some(pair) = ids.windows(2).find(|w| w[0] == w[1])
            && !view.is_in_place
        {
            return cx.at_inst(rule, inst, format_args!("each {what} once"), format_args!("{} twice", pair[0]));
        }
    }
}
