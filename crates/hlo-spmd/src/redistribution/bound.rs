//! What a device must receive at least.

use super::space::{Place, Places, Space};
use hlo_ir::Dims;
use hlo_ir::axes::AxisSharding;

/// The most bytes of a target tile that a device does not hold, for states of one space: what no plan from here can save.
///
/// A device that holds partial results of its tile must receive all of it.
pub(super) fn missing_bytes(space: &Space, from: &Places, target: &Places) -> u64 {
    let wanted = space.tile_bytes(target);
    if from.iter().zip(target).any(|(a, b)| *a == Place::Partial && *b != Place::Partial) {
        return wanted;
    }
    let mut held = space.element_bytes as i64;
    for (segment, (a, b)) in space.lists(from).iter().zip(space.lists(target)).enumerate() {
        // Once two atoms differ, some device holds another tile of the segment than it wants.
        if a.iter().zip(&b).any(|(a, b)| a != b) {
            return wanted;
        }
        let longer = if a.len() > b.len() { a } else { &b };
        held *= space.segments[segment].size / space.n_places(longer);
    }
    wanted - held as u64
}

/// A box: where it begins and ends along each dim.
pub(super) type Extent = Vec<(i64, i64)>;

/// The elements of the array that each device holds, by device, padding left out.
pub(super) fn extents(sharding: &AxisSharding, dims: &[i64]) -> Vec<Extent> {
    let tiles = sharding.tiles();
    let extent = |tile: Dims| {
        let along = |((&place, &n), &size): ((&i64, &i64), &i64)| {
            let length = (size + n - 1) / n;
            ((place * length).min(size), ((place + 1) * length).min(size))
        };
        tile.iter().zip(&tiles).zip(dims).map(along).collect()
    };
    sharding.tile_of_device().into_iter().map(extent).collect()
}

/// The number of elements of a box.
pub(super) fn volume(extent: &Extent) -> i64 {
    extent.iter().map(|(low, high)| (high - low).max(0)).product()
}

/// What two boxes share.
pub(super) fn overlap(a: &Extent, b: &Extent) -> Extent {
    a.iter().zip(b).map(|(a, b)| (a.0.max(b.0), a.1.min(b.1))).collect()
}

/// The lower bound of a redistribution, in bytes: the most that a device must receive. Of partial results every device that holds
/// some must receive its whole tile; and all devices together must receive each element once for each that adds to it but one, and
/// once for each further one that wants it, which on average is the ring's reduce-scatter and all-reduce.
pub(super) fn lower_bound_bytes(source: &AxisSharding, target: &AxisSharding, dims: &[i64], element_bytes: u64) -> u64 {
    let (held, wanted) = (extents(source, dims), extents(target, dims));
    let n_partial: i64 = source.unreduced.iter().map(|part| part.size).product();
    let n_kept: i64 = target.unreduced.iter().map(|part| part.size).product();
    let is_reduced = n_partial > n_kept;
    let missing = held.iter().zip(&wanted).map(|(held, wanted)| match is_reduced {
        true => volume(wanted),
        false => volume(wanted) - volume(&overlap(held, wanted)),
    });
    let most = missing.max().unwrap_or(0);
    if !is_reduced {
        return most as u64 * element_bytes;
    }
    // Elements, counted once for each scope in which they are a different value.
    let n_devices = held.len().max(1) as i64;
    let n_manual: i64 = source.manual.iter().map(|part| part.size).product();
    let n_values = dims.iter().product::<i64>() * n_kept * n_manual;
    let n_wanted: i64 = wanted.iter().map(volume).sum();
    let received = n_values * (n_partial / n_kept - 1) + (n_wanted - n_values).max(0);
    most.max((received + n_devices - 1) / n_devices) as u64 * element_bytes
}
