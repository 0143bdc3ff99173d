//! A data-parallel step on another number of devices, to model what it would take there.

use hlo_ir::attrs::{Attrs, Marks};
use hlo_ir::groups::{GroupsError, IotaTile, ReplicaGroups};
use hlo_ir::op::CollectiveSource;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind, TileDevices, Tiling};
use hlo_ir::{InstId, Module};

/// The same step on `n_devices` devices, each with the same part of the batch. Constants that depend on the number of devices
/// stay as they are, so that times and sizes are right and results are not.
///
/// # Errors
/// Why there is none, in words: an instruction does not treat all devices alike, or its shape depends on their number.
pub(crate) fn on_devices(module: &Module, n_devices: usize) -> Result<Module, String> {
    if n_devices == module.n_devices() {
        return Ok(module.clone());
    }
    let mut out = module.clone();
    let (replicas, partitions) = (module.header.replica_count, module.header.num_partitions);
    if replicas > 1 && partitions > 1 {
        return Err(format!("expected replicas or partitions, found {replicas} replicas of {partitions} partitions"));
    }
    let all: Vec<i64> = (0..n_devices as i64).collect();
    let insts: Vec<InstId> = module.computations().iter().flat_map(|&comp| module.comp(comp).insts.clone()).collect();
    for inst in insts {
        check(module, inst)?;
        if let Attrs::Combining(attrs) = &mut out.inst_mut(inst).attrs {
            // No group is one of all devices.
            if !attrs.replica_groups.is_empty() {
                attrs.replica_groups = ReplicaGroups::List(vec![all.clone()]);
            }
        }
        if let Some(Marks { sharding: Some(sharding), .. }) = module.inst(inst).marks.as_deref()
            && partitions > 1
        {
            let cut = cut_among(sharding, partitions, n_devices as i64).map_err(|n| {
                let name = module.inst_name(inst);
                format!("`%{name}`: expected a value that is whole, or cut along one dim among all devices, found one cut among {n}")
            })?;
            out.marks_mut(inst).sharding = Some(cut);
        }
    }
    match replicas > 1 {
        true => out.header.replica_count = n_devices as i64,
        false => out.header.num_partitions = n_devices as i64,
    }
    Ok(out)
}

/// The sharding among `n_devices` partitions of what is cut along one dim among all of `own`; others stay while their devices are there.
///
/// # Errors
/// The number of devices that a sharding lists, of which some would not be there.
fn cut_among(sharding: &Sharding, own: i64, n_devices: i64) -> Result<Sharding, usize> {
    let leaf = |leaf: &LeafSharding| {
        let tiles = leaf.tiles_of_dims().unwrap_or_default();
        let mut cut = tiles.iter().enumerate().filter(|(_, n)| **n > 1);
        if let (Some((dim, &n)), None) = (cut.next(), cut.next())
            && n == own
        {
            let mut dims = tiles.clone();
            dims[dim] = n_devices;
            let tile = IotaTile {
                dims: dims.clone(),
                reshape_dims: [n_devices].into_iter().collect(),
                perm: [0].into_iter().collect(),
            };
            let devices = TileDevices::Iota(tile);
            let tiling = Tiling { dims, devices, last_dims: Default::default(), last_dim_short: false };
            return Ok(LeafSharding { kind: ShardingKind::Tiled(Box::new(tiling)), ..leaf.clone() });
        }
        match leaf.n_listed_devices() {
            Some(n) if n as i64 > n_devices && !leaf.kind.is_replicated() => Err(n),
            Some(_) | None => Ok(leaf.clone()),
        }
    };
    Ok(match sharding {
        Sharding::Single(one) => Sharding::Single(leaf(one)?),
        Sharding::Tuple(leaves) => Sharding::Tuple(leaves.iter().map(leaf).collect::<Result<_, _>>()?),
    })
}

/// Whether an instruction is one of a step that all devices run alike, but for their part of the batch.
fn check(module: &Module, inst: InstId) -> Result<(), String> {
    let opcode = module.inst(inst).opcode;
    let Some(rule) = opcode.row().collective else { return Ok(()) };
    let name = module.inst_name(inst);
    if rule.source != CollectiveSource::Reduction || rule.scatters || rule.gathers {
        return Err(format!(
            "`%{name}`: expected all-reduces alone, found `{}`, whose shapes name the devices",
            opcode.name()
        ));
    }
    match module.device_groups(inst) {
        Ok(found) => match found.groups.as_slice() {
            [all] if all.len() == module.n_devices() => Ok(()),
            several => Err(format!("`%{name}`: expected one group of all devices, found {} groups", several.len())),
        },
        // The second half of a pair: the first one has the groups.
        Err(GroupsError::NoGroups) => Ok(()),
        Err(error) => Err(format!("`%{name}`: {error}")),
    }
}
