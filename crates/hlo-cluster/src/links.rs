//! Which links a flow between two devices loads.
//!
//! A flow from `a` to `b` parts at the outermost level where they lie in different entities. There it goes from sibling
//! to sibling; at every level inside it leaves one entity and enters another. Links are numbered, the two directions
//! apart, so that loads are one vector.

use crate::topology::{Cluster, Count, Level, LevelNetwork};

/// The numbered links of a cluster.
pub(crate) struct Links<'c> {
    cluster: &'c Cluster,
    levels: Vec<Block>,
    /// By link: seconds for one byte.
    pub s_per_byte: Vec<f64>,
}

/// Where the links of one level start.
#[derive(Clone, Copy)]
struct Block {
    /// Switch: in and out of each entity (by entity / shared_by). Ring, torus: `2 × dims` edges of each entity.
    main: usize,
    /// In and out of each shared bypass link.
    bypass: usize,
}

impl<'c> Links<'c> {
    pub(crate) fn new(cluster: &'c Cluster) -> Links<'c> {
        let (mut levels, mut s_per_byte) = (Vec::new(), Vec::new());
        for (level, place) in cluster.levels().iter().zip(&cluster.place) {
            let per_entity = match &level.network {
                LevelNetwork::Switched | LevelNetwork::Ring => 2,
                LevelNetwork::Torus { dims, .. } => 2 * dims.len(),
            };
            let main = s_per_byte.len();
            s_per_byte.resize(main + per_entity * place.len(), 1.0 / level.bytes_per_s);
            let bypass = s_per_byte.len();
            if let Some(b) = &level.bypass {
                s_per_byte.resize(bypass + 2 * place.len(), 1.0 / b.bytes_per_s);
            }
            levels.push(Block { main, bypass });
        }
        Links { cluster, levels, s_per_byte }
    }

    /// Calls `load` with each link on the way from `a` to `b`, and returns the latency of the way in seconds.
    pub(crate) fn for_each_on_way(&self, a: u32, b: u32, load: &mut impl FnMut(usize)) -> f64 {
        let Some(parting) = self.cluster.parting_level(a, b) else { return 0.0 };
        for l in parting + 1..self.levels.len() {
            self.leave(l, self.cluster.entity[l][a as usize], 0, load);
            self.leave(l, self.cluster.entity[l][b as usize], 1, load);
        }
        self.between_siblings(parting, a, b, load)
    }

    /// Calls `load` with each link on the ways of the flows from each device of a group to each other, and with how many of
    /// these flows take the link there. Returns the latency of the longest way in seconds.
    pub(crate) fn for_each_between_all(&self, group: &[u32], load: &mut impl FnMut(usize, f64)) -> f64 {
        let mut devices = group.to_vec();
        devices.sort();
        devices.dedup();
        let mut longest_s = 0.0f64;
        // Of each entity of the level outside, the devices in it.
        let mut parents: Vec<&[u32]> = vec![&devices];
        for (l, of_device) in self.cluster.entity.iter().enumerate() {
            let mut entities: Vec<&[u32]> = Vec::new();
            for parent in parents {
                let siblings: Vec<&[u32]> =
                    parent.chunk_by(|&a, &b| of_device[a as usize] == of_device[b as usize]).collect();
                let n_outside = (devices.len() - parent.len()) as f64;
                for inside in &siblings {
                    let n_flows = inside.len() as f64 * n_outside;
                    if n_flows > 0.0 {
                        let entity = of_device[inside[0] as usize];
                        self.leave(l, entity, 0, &mut |link| load(link, n_flows));
                        self.leave(l, entity, 1, &mut |link| load(link, n_flows));
                    }
                }
                longest_s = longest_s.max(self.between_all_siblings(l, &siblings, load));
                entities.extend(siblings);
            }
            parents = entities;
        }
        longest_s
    }

    /// As [`Links::for_each_between_all`], at one level: `siblings` has the devices of each entity of one parent.
    fn between_all_siblings(&self, l: usize, siblings: &[&[u32]], load: &mut impl FnMut(usize, f64)) -> f64 {
        let level = &self.cluster.levels()[l];
        let n_devices: usize = siblings.iter().map(|devices| devices.len()).sum();
        let mut longest_s = 0.0f64;
        for (i, from) in siblings.iter().enumerate() {
            match &level.network {
                LevelNetwork::Switched if siblings.len() > 1 => {
                    let n_flows = (from.len() * (n_devices - from.len())) as f64;
                    let entity = self.cluster.entity[l][from[0] as usize];
                    self.leave(l, entity, 0, &mut |link| load(link, n_flows));
                    self.leave(l, entity, 1, &mut |link| load(link, n_flows));
                    longest_s = level.latency_s;
                }
                LevelNetwork::Switched => {}
                LevelNetwork::Ring | LevelNetwork::Torus { .. } => {
                    for (_, to) in siblings.iter().enumerate().filter(|(k, _)| *k != i) {
                        let n_flows = (from.len() * to.len()) as f64;
                        let way_s = self.between_siblings(l, from[0], to[0], &mut |link| load(link, n_flows));
                        longest_s = longest_s.max(way_s);
                    }
                }
            }
        }
        longest_s
    }

    /// A flow out of (`direction` 0) or into (1) the parent of an entity.
    fn leave(&self, l: usize, entity: u32, direction: usize, load: &mut impl FnMut(usize)) {
        let (level, block) = (&self.cluster.levels()[l], self.levels[l]);
        match (&level.bypass, &level.network) {
            (Some(b), _) => load(block.bypass + 2 * (entity / b.shared_by) as usize + direction),
            (None, LevelNetwork::Switched) => load(block.main + 2 * (entity / level.shared_by) as usize + direction),
            // The entity has its own way out, which no level describes: the levels outside are the limit.
            (None, LevelNetwork::Ring | LevelNetwork::Torus { .. }) => {}
        }
    }

    fn between_siblings(&self, l: usize, a: u32, b: u32, load: &mut impl FnMut(usize)) -> f64 {
        let level = &self.cluster.levels()[l];
        let (from, to) = (self.cluster.entity[l][a as usize], self.cluster.entity[l][b as usize]);
        match &level.network {
            LevelNetwork::Switched => {
                self.leave(l, from, 0, load);
                self.leave(l, to, 1, load);
                level.latency_s
            }
            LevelNetwork::Ring => self.on_ring(l, level, (from, to), a, load),
            LevelNetwork::Torus { dims, wraps } => {
                let hops = self.on_torus(l, dims, *wraps, (from, to), load);
                level.latency_s * f64::from(hops)
            }
        }
    }

    /// How many siblings the entity of `device` at level `l` has, itself included.
    fn n_siblings(&self, l: usize, device: u32) -> u32 {
        let parent = l.checked_sub(1).map_or(0, |outer| self.cluster.entity[outer][device as usize]);
        match &self.cluster.levels()[l].count {
            Count::Same(n) => *n,
            Count::Each(each) => each[parent as usize],
        }
    }

    /// Along the edge between neighbours; else over the bypass; without one the shorter way round.
    fn on_ring(&self, l: usize, level: &Level, (from, to): (u32, u32), a: u32, load: &mut impl FnMut(usize)) -> f64 {
        let place = &self.cluster.place[l];
        let (p, q) = (place[from as usize], place[to as usize]);
        let first = from - p;
        let n = self.n_siblings(l, a);
        let ahead = (q + n - p) % n;
        let is_neighbour = ahead == 1 || ahead == n - 1;
        match &level.bypass {
            Some(bypass) if !is_neighbour => {
                self.leave(l, from, 0, load);
                self.leave(l, to, 1, load);
                let crosses = bypass.domain.is_some_and(|domain| p / domain != q / domain);
                if crosses && l > 0 {
                    let parent = self.cluster.entity[l - 1][a as usize];
                    self.leave(l - 1, parent, 0, load);
                    self.leave(l - 1, parent, 1, load);
                    return level.latency_s + self.cluster.levels()[l - 1].latency_s;
                }
                level.latency_s
            }
            _ => {
                let block = self.levels[l].main;
                let is_forward = ahead <= n - ahead;
                let hops = if is_forward { ahead } else { n - ahead };
                for i in 0..hops {
                    let at = if is_forward { (p + i) % n } else { (p + n - i) % n };
                    load(block + 2 * (first + at) as usize + usize::from(!is_forward));
                }
                level.latency_s * f64::from(hops)
            }
        }
    }

    /// Dim by dim, the most significant first, the shorter way; returns the hops.
    fn on_torus(
        &self,
        l: usize,
        dims: &[u32],
        wraps: bool,
        (from, to): (u32, u32),
        load: &mut impl FnMut(usize),
    ) -> u32 {
        let place = &self.cluster.place[l];
        let (mut at, goal) = (place[from as usize], place[to as usize]);
        let first = from - at;
        let mut hops = 0;
        let mut stride: u32 = dims.iter().product();
        for (dim_idx, &extent) in dims.iter().enumerate() {
            stride /= extent;
            let (p, q) = (at / stride % extent, goal / stride % extent);
            let ahead = (q + extent - p) % extent;
            let is_forward = if wraps { ahead <= extent - ahead } else { q > p };
            let n = if is_forward { ahead } else { (extent - ahead) % extent };
            let mut x = p;
            for _ in 0..n {
                let edge = (first + at) as usize * 2 * dims.len() + 2 * dim_idx + usize::from(!is_forward);
                load(self.levels[l].main + edge);
                let next = if is_forward { (x + 1) % extent } else { (x + extent - 1) % extent };
                at = at - x * stride + next * stride;
                x = next;
            }
            hops += n;
        }
        hops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_on_a_torus_goes_dim_by_dim_and_each_the_shorter_way() {
        let text = "name=\"t\"\n[[level]]\nname=\"chip\"\ncount=12\nnetwork=\"torus\"\ndims=[3,4]\ngbytes_per_s=1\nlatency_us=1\n";
        let cluster = Cluster::from_toml(text).expect("a torus");
        let links = Links::new(&cluster);
        // A chip has links forward and backward along dim 0, and then along dim 1.
        let way = |from: u32, to: u32| {
            let mut edges = Vec::new();
            let latency_s = links.for_each_on_way(from, to, &mut |edge| edges.push(edge - links.levels[0].main));
            assert!((latency_s - 1e-6 * edges.len() as f64).abs() < 1e-12, "{latency_s}");
            edges.into_iter().map(|edge| (edge / 4, ["0+", "0-", "1+", "1-"][edge % 4])).collect::<Vec<_>>()
        };
        // Chip 4 i + j is at (i, j): (0, 1) to (2, 3), (2, 2) to (0, 0), (1, 0) to (1, 3).
        assert_eq!(way(1, 11), [(1, "0-"), (9, "1+"), (10, "1+")]);
        assert_eq!(way(10, 0), [(10, "0+"), (2, "1+"), (3, "1+")]);
        assert_eq!(way(4, 7), [(4, "1-")]);
        assert_eq!(way(5, 5), []);
    }
}
