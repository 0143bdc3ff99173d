//! What a step costs: time on a cluster; without one, bytes that a device receives, then launches.

use super::StepKind;
use super::space::{Place, Places, Space, permutation};
use hlo_cluster::{Algo, Cluster, Collective, CollectiveCost};
use hlo_ir::names::FixedHash;
use hlo_mesh::Exchange;
use std::cmp::Ordering;
use std::collections::HashMap;

/// The cost of steps. Without a cluster all times are zero, so that bytes decide.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StepsPrice {
    /// Predicted time; zero without a cluster.
    pub seconds: f64,
    /// Bytes that a device receives at most.
    pub bytes: u64,
    /// Collectives.
    pub launches: u32,
}

impl StepsPrice {
    /// The price of both, one after the other.
    pub fn plus(self, other: StepsPrice) -> StepsPrice {
        StepsPrice {
            seconds: self.seconds + other.seconds,
            bytes: self.bytes + other.bytes,
            launches: self.launches + other.launches,
        }
    }

    /// Which is cheaper: by time, then bytes, then launches.
    pub fn order(&self, other: &StepsPrice) -> Ordering {
        let by_time = self.seconds.total_cmp(&other.seconds);
        by_time.then(self.bytes.cmp(&other.bytes)).then(self.launches.cmp(&other.launches))
    }
}

/// Bytes that a device receives in a collective over groups of `n`, on a ring: `tile` bytes go in on each device.
pub(super) fn received_bytes(kind: StepKind, tile: u64, n: u64) -> u64 {
    match kind {
        StepKind::Slice | StepKind::Pad | StepKind::Trim => 0,
        StepKind::Exchange(Exchange::AllGather) => tile * (n - 1),
        StepKind::Exchange(Exchange::AllToAll) | StepKind::Exchange(Exchange::ReduceScatter) => tile * (n - 1) / n,
        StepKind::Exchange(Exchange::AllReduce) => (2 * tile * (n - 1)).div_ceil(n),
        StepKind::Exchange(Exchange::Permute | Exchange::Broadcast) | StepKind::Pieces => tile,
    }
}

/// Prices of steps on a cluster, or in bytes.
pub(super) struct Prices<'a> {
    cluster: Option<&'a Cluster>,
    known: HashMap<(StepKind, u64), CollectiveCost, FixedHash>,
    /// No collective brings a byte to a device in less time.
    least_s_per_byte: f64,
}

impl<'a> Prices<'a> {
    pub(super) fn new(cluster: Option<&'a Cluster>, space: &Space) -> Prices<'a> {
        let mut prices = Prices { cluster, known: HashMap::default(), least_s_per_byte: 0.0 };
        prices.least_s_per_byte = prices.find_least(space);
        prices
    }

    fn find_least(&mut self, space: &Space) -> f64 {
        let Some(cluster) = self.cluster else { return 0.0 };
        let mut least = f64::INFINITY;
        let slope =
            |cost: &CollectiveCost| cost.lines().iter().map(|line| line.s_per_byte).fold(f64::INFINITY, f64::min);
        for mask in 1..1u64 << space.atoms.len().min(super::MOST_SEARCHED_ATOMS) {
            let atoms: Vec<usize> = (0..space.atoms.len()).filter(|a| mask >> a & 1 == 1).collect();
            let groups = space.groups(&atoms);
            let n = space.n_places(&atoms) as f64;
            for kind in [StepKind::Exchange(Exchange::AllGather), StepKind::Exchange(Exchange::AllToAll)] {
                least = least.min(slope(&self.group_cost(kind, mask, &groups)) * n / (n - 1.0));
            }
        }
        let n = cluster.n_devices();
        let near = (1..n).map(|device| slope(&cluster.permute_cost(&[(device - 1, device)])));
        // Rounding must not lift a bound over what it bounds.
        near.fold(least, f64::min) * (1.0 - 1e-9)
    }

    fn group_cost(&mut self, kind: StepKind, mask: u64, groups: &[Vec<u32>]) -> CollectiveCost {
        let Some(cluster) = self.cluster else { return Cluster::flat(1, 1.0, 0.0).permute_cost(&[]) };
        let cost = || {
            let collective = |kind| cluster.collective_cost(kind, groups, Algo::Auto);
            match kind {
                StepKind::Exchange(Exchange::AllGather) => collective(Collective::AllGather),
                StepKind::Exchange(Exchange::ReduceScatter) => collective(Collective::ReduceScatter),
                StepKind::Exchange(Exchange::AllReduce) => collective(Collective::AllReduce),
                StepKind::Exchange(Exchange::Broadcast) => collective(Collective::Broadcast),
                StepKind::Exchange(Exchange::AllToAll) => cluster.all_to_all_cost(groups),
                StepKind::Slice
                | StepKind::Pad
                | StepKind::Trim
                | StepKind::Exchange(Exchange::Permute)
                | StepKind::Pieces => cluster.permute_cost(&[]),
            }
        };
        self.known.entry((kind, mask)).or_insert_with(cost).clone()
    }

    /// A permute of `bytes` from each device along these pairs.
    pub(super) fn of_pairs(&self, pairs: &[(u32, u32)], bytes: u64) -> StepsPrice {
        let seconds = self.cluster.map_or(0.0, |cluster| cluster.permute_cost(pairs).seconds(bytes as f64));
        StepsPrice { seconds, bytes, launches: 1 }
    }

    /// The step that takes a value from one set of places to another.
    pub(super) fn of_step(&mut self, space: &Space, kind: StepKind, from: &Places, to: &Places) -> StepsPrice {
        let tile = space.tile_bytes(from);
        if kind == StepKind::Slice {
            return StepsPrice::default();
        }
        if kind == StepKind::Exchange(Exchange::Permute) {
            if self.cluster.is_none() {
                return StepsPrice { seconds: 0.0, bytes: tile, launches: 1 };
            }
            return self.of_pairs(&permutation((space, from), (space, to)), tile);
        }
        self.of_atoms(space, kind, tile, &moved_atoms(from, to))
    }

    /// A collective over these atoms, into which each device puts a tile.
    pub(super) fn of_atoms(&mut self, space: &Space, kind: StepKind, tile: u64, atoms: &[usize]) -> StepsPrice {
        let n = space.n_places(atoms) as u64;
        let bytes = received_bytes(kind, tile, n);
        let mut seconds = 0.0;
        if self.cluster.is_some() {
            let mask = atoms.iter().fold(0, |mask, a| mask | 1 << a);
            let whole = if kind == StepKind::Exchange(Exchange::AllGather) { tile * n } else { tile };
            let groups = if self.known.contains_key(&(kind, mask)) { Vec::new() } else { space.groups(atoms) };
            seconds = self.group_cost(kind, mask, &groups).seconds(whole as f64);
        }
        StepsPrice { seconds, bytes, launches: 1 }
    }

    /// Whether bytes decide, and not time.
    pub(super) fn are_bytes(&self) -> bool {
        self.cluster.is_none()
    }

    /// What it costs at least to bring a device so many bytes.
    pub(super) fn at_least(&self, bytes: u64) -> StepsPrice {
        StepsPrice { seconds: self.least_s_per_byte * bytes as f64, bytes, launches: u32::from(bytes > 0) }
    }
}

/// The atoms whose places differ.
pub(super) fn moved_atoms(from: &Places, to: &Places) -> Vec<usize> {
    let mut moved: Vec<usize> = (0..from.len()).filter(|&a| from[a] != to[a]).collect();
    // The order of the target's segments, then of the source's, so that members stand in the order in which they are laid out.
    let key = |&a: &usize| match (to[a], from[a]) {
        (place @ Place::On { .. }, _) | (_, place @ Place::On { .. }) => (place, a),
        (place, _) => (place, a),
    };
    moved.sort_by_key(key);
    moved
}
