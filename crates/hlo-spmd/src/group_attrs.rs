//! How the attributes of a new collective say who takes part, on which channel.

use hlo_ir::attrs::{Attrs, CombiningAttrs, ExchangingAttrs, GatheringAttrs};
use hlo_ir::groups::{GroupMode, ReplicaGroups};
use hlo_ir::{CompId, Dims, InstId, Module, Opcode};

/// Hands out channel ids that no collective of a module has.
#[derive(Clone, Debug)]
pub struct ChannelIds {
    next: i64,
    /// Whether the module's all-reduces fix the layouts of their operands: all of them do or none.
    fixes_layouts: bool,
}

impl ChannelIds {
    /// The free channel ids of a module as it is now.
    pub fn free_in(module: &Module) -> ChannelIds {
        let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
        let fixes_layouts = insts.any(|&inst| {
            let is_sum = module.inst(inst).opcode == Opcode::AllReduce;
            is_sum && module.inst(inst).attrs.collective().is_some_and(|collective| collective.constrain_layout)
        });
        ChannelIds { next: module.first_free_channel_id(), fixes_layouts }
    }

    /// The next free channel id.
    pub fn take(&mut self) -> i64 {
        let channel = self.next;
        self.next = channel.saturating_add(1);
        channel
    }

    /// Puts the attributes of a collective on a channel of its own, if they are on a channel.
    pub fn renew(&mut self, attrs: &mut Attrs) {
        if let Some(channel) = attrs.channel_id_mut() {
            *channel = self.take();
        }
    }
}

/// Who takes part in a collective, as its attributes say it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupAttrs {
    channel_id: Option<i64>,
    replica_groups: ReplicaGroups,
    use_global_device_ids: bool,
    /// What an all-reduce among others is to say of its layouts.
    fixes_layouts: bool,
}

impl GroupAttrs {
    /// Groups of flat device ids in any module: replica ids where it has one partition, else flat ids on a channel.
    pub fn new(module: &Module, groups: &[Vec<u32>], channels: &mut ChannelIds) -> GroupAttrs {
        let attrs = match module.header.num_partitions > 1 {
            true => GroupAttrs::by_device(groups, channels.take()),
            false => {
                GroupAttrs::by_replica(module, groups).unwrap_or_else(|| GroupAttrs::by_device(groups, channels.take()))
            }
        };
        GroupAttrs { fixes_layouts: channels.fixes_layouts, ..attrs }
    }

    /// Groups of flat device ids for what takes the place of the collective `old`: replica ids where `old` has replica ids
    /// and they can say it, else flat ids on `channel`.
    pub fn in_place_of(module: &Module, old: InstId, groups: &[Vec<u32>], channel: impl FnOnce() -> i64) -> GroupAttrs {
        let mode = module.inst(old).attrs.collective().and_then(|view| view.mode());
        let by_replica = match mode {
            Some(GroupMode::CrossReplica) => GroupAttrs::by_replica(module, groups),
            Some(GroupMode::CrossPartition | GroupMode::CrossReplicaAndPartition | GroupMode::Flattened) | None => None,
        };
        by_replica.unwrap_or_else(|| GroupAttrs::by_device(groups, channel()))
    }

    /// Flat device ids, which need a channel.
    fn by_device(groups: &[Vec<u32>], channel: i64) -> GroupAttrs {
        let lists = groups.iter().map(|group| group.iter().map(|&device| i64::from(device)).collect());
        GroupAttrs {
            channel_id: Some(channel),
            replica_groups: ReplicaGroups::List(lists.collect()),
            use_global_device_ids: true,
            fixes_layouts: false,
        }
    }

    /// Replica ids; `None` if the partitions do not all have the same groups of replicas.
    fn by_replica(module: &Module, groups: &[Vec<u32>]) -> Option<GroupAttrs> {
        let n_partitions = module.header.num_partitions.max(1);
        let of = |partition: i64| -> Vec<Vec<i64>> {
            let is_own = |group: &&Vec<u32>| group.first().is_some_and(|&d| i64::from(d) % n_partitions == partition);
            let own = groups.iter().filter(is_own);
            own.map(|group| group.iter().map(|&d| i64::from(d) / n_partitions).collect()).collect()
        };
        let sorted = |mut lists: Vec<Vec<i64>>| {
            lists.sort();
            lists
        };
        let first = of(0);
        let expected = sorted(first.clone());
        let is_same = (1..n_partitions).all(|partition| sorted(of(partition)) == expected);
        is_same.then_some(GroupAttrs {
            channel_id: None,
            replica_groups: ReplicaGroups::List(first),
            use_global_device_ids: false,
            fixes_layouts: false,
        })
    }

    /// The attributes of an all-reduce (no `dimensions`) or a reduce-scatter (along one dim).
    pub fn combining(self, dimensions: Dims, to_apply: Option<CompId>) -> CombiningAttrs {
        let GroupAttrs { channel_id, replica_groups, use_global_device_ids, fixes_layouts } = self;
        let constrain_layout = fixes_layouts && dimensions.is_empty();
        CombiningAttrs { channel_id, replica_groups, constrain_layout, use_global_device_ids, dimensions, to_apply }
    }

    /// The attributes of an all-gather along `dim`.
    pub fn gathering(self, dim: usize) -> GatheringAttrs {
        let GroupAttrs { channel_id, replica_groups, use_global_device_ids, .. } = self;
        let dimensions = along(dim);
        GatheringAttrs { channel_id, replica_groups, constrain_layout: false, dimensions, use_global_device_ids }
    }

    /// The attributes of an all-to-all of arrays along `dim`. It names replicas, or partitions where it has a channel.
    pub fn exchanging(self, dim: usize) -> ExchangingAttrs {
        let GroupAttrs { channel_id, replica_groups, .. } = self;
        ExchangingAttrs { channel_id, replica_groups, constrain_layout: false, dimensions: along(dim) }
    }
}

/// One dim, as attributes list it.
pub(crate) fn along(dim: usize) -> Dims {
    [dim as i64].into_iter().collect()
}
