//! An order of devices in which several shardings are axes of one mesh.
//!
//! In a list of devices those that hold equal tiles stand in any order: XLA sorts them. So shardings of one mesh whose devices do not
//! stand in the order of their ids come as lists that look like meshes of different orders.

use super::read::in_device_order;
use super::{AxisMesh, AxisSharding, SubAxis};

impl AxisSharding {
    /// Of each device the place along all axes that the sharding names, as one number.
    fn places(&self) -> Vec<i64> {
        let mut out = vec![0; self.mesh.devices.len()];
        for (position, &device) in self.mesh.devices.iter().enumerate() {
            let place = self.parts().fold(0, |at, part| at * part.size + self.mesh.place(position, part));
            if let Some(slot) = out.get_mut(device as usize) {
                *slot = place;
            }
        }
        out
    }

    /// Whether it is on the line of all devices and says nothing of their order: `{replicated}`, `{manual}`.
    fn has_no_places(&self) -> bool {
        let is_line = self.mesh.sizes.len() <= 1;
        self.is_replicated() || (is_line && self.parts().eq(self.manual.iter().copied()) && self.rest().is_empty())
    }

    /// The same sharding as axes of a mesh with the devices in this order; `None` if its axes cannot be said so.
    pub fn in_order(&self, order: &[u32]) -> Option<AxisSharding> {
        if self.has_no_places() {
            let line = AxisMesh { devices: order.to_vec(), ..AxisMesh::line(order.len()) };
            return Some(AxisSharding { mesh: line, ..self.clone() });
        }
        let mut position_of = vec![0u32; order.len()];
        for (position, &device) in order.iter().enumerate() {
            *position_of.get_mut(device as usize)? = position as u32;
        }
        let position = |device: usize| position_of.get(device).copied().unwrap_or(0);
        let mut places: Vec<(i64, u32)> =
            self.places().into_iter().enumerate().map(|(device, place)| (place, position(device))).collect();
        places.sort();
        let size = |parts: &[SubAxis]| -> i64 { parts.iter().map(|part| part.size).product() };
        let mut sizes: Vec<i64> = Vec::new();
        let mut axis = |size: i64| -> Vec<SubAxis> {
            if size < 2 {
                return Vec::new();
            }
            sizes.push(size);
            vec![SubAxis { axis: sizes.len() - 1, pre: 1, size }]
        };
        let dims = self.dims.iter().map(|parts| axis(size(parts))).collect();
        let (manual, unreduced) = (axis(size(&self.manual)), axis(size(&self.unreduced)));
        axis(size(&self.rest()));
        let devices = places.into_iter().map(|(_, position)| position).collect();
        let relabelled =
            AxisSharding { mesh: AxisMesh { sizes, devices }, dims, manual, unreduced, reduction: self.reduction };
        let mut found = in_device_order(relabelled);
        found.mesh.is_iota().then(|| {
            found.mesh.devices = order.to_vec();
            found
        })
    }
}

/// An order of devices in which all of these shardings are axes of a mesh, if there is one: by the places of the first sharding,
/// then by those of the second, and so on.
pub fn find_common_order(shardings: &[&AxisSharding], n_devices: usize) -> Option<Vec<u32>> {
    let mut keys: Vec<Vec<i64>> = vec![Vec::new(); n_devices];
    for sharding in shardings.iter().filter(|sharding| !sharding.has_no_places()) {
        keys.iter_mut().zip(sharding.places()).for_each(|(key, place)| key.push(place));
    }
    let mut order: Vec<u32> = (0..n_devices as u32).collect();
    order.sort_by(|&a, &b| keys.get(a as usize).cmp(&keys.get(b as usize)));
    shardings.iter().all(|sharding| sharding.in_order(&order).is_some()).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharding::{LeafSharding, ShardingKind, SubgroupKind, TileDevices, Tiling};

    fn list(dims: &[i64], last: &[SubgroupKind], ids: &[i64]) -> AxisSharding {
        let tiling = Tiling {
            dims: dims.iter().copied().collect(),
            devices: TileDevices::List(ids.to_vec()),
            last_dims: last.to_vec(),
            last_dim_short: false,
        };
        let rank = dims.len() - last.len();
        LeafSharding::new(ShardingKind::Tiled(Box::new(tiling))).axes(rank, ids.len()).expect("a sharding")
    }

    #[test]
    fn lists_that_sort_what_is_equal_have_an_order_in_common() {
        // A mesh of 2 x 4 whose devices stand as 5, 2, 7, 0, 3, 6, 1, 4; along x, along y, and along y outside of x.
        let along_x = list(&[2, 4], &[SubgroupKind::Replicated], &[0, 2, 5, 7, 1, 3, 4, 6]);
        let along_y = list(&[4, 2], &[SubgroupKind::Replicated], &[3, 5, 2, 6, 1, 7, 0, 4]);
        let both = list(&[4, 2], &[], &[5, 3, 2, 6, 7, 1, 0, 4]);
        let all = [&along_x, &along_y, &both];
        let order = find_common_order(&all, 8).expect("an order");
        for sharding in all {
            let found = sharding.in_order(&order).expect("axes of the mesh");
            assert_eq!(found.mesh.devices, order);
            assert!(found.has_tiles_of(sharding));
        }
    }

    #[test]
    fn lists_that_are_no_mesh_together_have_none() {
        let one = list(&[2, 4], &[SubgroupKind::Replicated], &[0, 1, 2, 3, 4, 5, 6, 7]);
        let other = list(&[2, 4], &[SubgroupKind::Replicated], &[0, 1, 2, 4, 3, 5, 6, 7]);
        assert!(find_common_order(&[&one, &other], 8).is_none());
    }
}
