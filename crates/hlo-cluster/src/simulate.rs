//! Predicted time of a collective: the load of every link, all groups at once, plus the latency of the longest way.
//!
//! Ring (devices of a group in the order of their ids, turned so that the root comes first), `n` devices, `B` bytes: every
//! edge of the closed ring carries `2(n-1)/n·B` (all-reduce) or `(n-1)/n·B` (reduce-scatter, all-gather); reduce and
//! broadcast are a chain of `n-1` edges, `B` each. Time = launch + steps · slowest hop + max over links of bytes / bandwidth,
//! with `2(n-1)` or `n-1` steps; a chain pays each hop once.

use crate::collective::{Algo, Collective, CollectiveCost, CostLine};
use crate::links::Links;
use crate::topology::Cluster;
use crate::{torus, tree};

impl Cluster {
    /// Predicted time in seconds of one collective that all `groups` run at the same time.
    ///
    /// `bytes` is the size on one device of the *whole* tensor: what an all-reduce, reduce or broadcast works on, what
    /// a reduce-scatter takes in (before), what an all-gather gives out (after). Groups are lists of device ids, the
    /// first being the root of a reduce or broadcast; groups of one device cost nothing, and devices may be left out.
    /// A device that the cluster does not have costs infinity.
    pub fn collective_s(&self, kind: Collective, bytes: f64, groups: &[Vec<u32>], algo: Algo) -> f64 {
        self.collective_cost(kind, groups, algo).seconds(bytes)
    }

    /// The same as a function of the size: ask once per set of groups, then [`CollectiveCost::seconds`] for each tensor.
    pub fn collective_cost(&self, kind: Collective, groups: &[Vec<u32>], algo: Algo) -> CollectiveCost {
        self.cost_of(kind, groups.iter().map(|g| (g.as_slice(), 1.0)).collect(), algo)
    }

    /// The same for groups that work on different shares of `bytes` at the same time.
    pub fn weighted_cost(&self, kind: Collective, groups: &[(Vec<u32>, f64)], algo: Algo) -> CollectiveCost {
        self.cost_of(kind, groups.iter().map(|(g, weight)| (g.as_slice(), *weight)).collect(), algo)
    }

    fn cost_of(&self, kind: Collective, mut groups: Vec<(&[u32], f64)>, algo: Algo) -> CollectiveCost {
        groups.retain(|(group, _)| group.len() > 1);
        if groups.is_empty() {
            return CollectiveCost::new(Vec::new());
        }
        if groups.iter().any(|(g, _)| g.iter().any(|&d| d >= self.n_devices())) {
            return CollectiveCost::new(vec![CostLine { algo, latency_s: f64::INFINITY, s_per_byte: 0.0 }]);
        }
        let links = Links::new(self);
        let ring = || line(Algo::Ring, self, &links, |load| ring(&links, kind, &groups, load));
        let tree = || {
            (kind == Collective::AllReduce)
                .then(|| line(Algo::Tree, self, &links, |load| tree::all_reduce(self, &links, &groups, load)))
        };
        let torus = || torus::line(self, kind, &groups);
        let lines = match algo {
            Algo::Ring => vec![ring()],
            Algo::Tree => vec![tree().unwrap_or_else(ring)],
            Algo::Torus => vec![torus().unwrap_or_else(ring)],
            Algo::Auto => std::iter::once(ring()).chain(tree()).chain(torus()).collect(),
        };
        CollectiveCost::new(lines)
    }
}

/// The cost of what `flows` says: it reports `(link, bytes per byte of the tensor)` and returns the latency in seconds.
fn line(
    algo: Algo,
    cluster: &Cluster,
    links: &Links<'_>,
    flows: impl FnOnce(&mut dyn FnMut(usize, f64)) -> f64,
) -> CostLine {
    let mut loads = vec![0.0; links.s_per_byte.len()];
    let latency_s = flows(&mut |link, share| loads[link] += share);
    let s_per_byte = loads.iter().zip(&links.s_per_byte).map(|(load, s)| load * s).fold(0.0, f64::max);
    CostLine { algo, latency_s: cluster.launch_s() + latency_s, s_per_byte }
}

/// Ring and chain; the latency is that of the slowest group.
pub(crate) fn ring(
    links: &Links<'_>,
    kind: Collective,
    groups: &[(&[u32], f64)],
    load: &mut dyn FnMut(usize, f64),
) -> f64 {
    let mut latest = 0.0f64;
    for &(group, weight) in groups {
        let order = ring_order(group);
        let n = order.len();
        let around = (n - 1) as f64 / n as f64;
        let (n_edges, share) = match kind {
            Collective::AllReduce => (n, 2.0 * around),
            Collective::ReduceScatter | Collective::AllGather => (n, around),
            Collective::Reduce | Collective::Broadcast => (n - 1, 1.0),
        };
        let (mut slowest, mut sum) = (0.0f64, 0.0);
        for i in 0..n_edges {
            let (here, next) = (order[i], order[(i + 1) % n]);
            let (a, b) = if kind == Collective::Reduce { (next, here) } else { (here, next) };
            let hop_s = links.for_each_on_way(a, b, &mut |link| load(link, share * weight));
            slowest = slowest.max(hop_s);
            sum += hop_s;
        }
        latest = latest.max(match kind {
            Collective::AllReduce => 2.0 * (n - 1) as f64 * slowest,
            Collective::ReduceScatter | Collective::AllGather => (n - 1) as f64 * slowest,
            Collective::Reduce | Collective::Broadcast => sum,
        });
    }
    latest
}

/// One tensor over every edge of each closed ring; the latency is that of a reduce-scatter.
pub(crate) fn around(links: &Links<'_>, groups: &[(&[u32], f64)], load: &mut dyn FnMut(usize, f64)) -> f64 {
    let mut latest = 0.0f64;
    for &(group, weight) in groups {
        let order = ring_order(group);
        let hop = |i: usize| (order[i], order[(i + 1) % order.len()]);
        let hops = (0..order.len()).map(|i| links.for_each_on_way(hop(i).0, hop(i).1, &mut |link| load(link, weight)));
        let slowest = hops.fold(0.0, f64::max);
        latest = latest.max((order.len() - 1) as f64 * slowest);
    }
    latest
}

/// The devices by id, turned so that the group's first comes first.
fn ring_order(group: &[u32]) -> Vec<u32> {
    let mut order = group.to_vec();
    order.sort();
    let root = group.first().and_then(|root| order.iter().position(|d| d == root)).unwrap_or(0);
    order.rotate_left(root);
    order
}
