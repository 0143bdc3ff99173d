//! Collectives over whole lines of a torus, dim by dim, as TPU pods run them.
//!
//! A group takes part if its devices are a product: per torus dim either one position or the whole extent, and below the
//! torus either one device or all devices of each entity. A reduce-scatter first scatters inside the entities, then along
//! dim after dim; the tensor is cut into one part for each dim, each part starts with another dim, and each line is used
//! in both directions. An all-gather is the same backwards, an all-reduce is one after the other.
//!
//! A line of `d` entities scatters `b` bytes in `(d-1)/d·b / (2·bandwidth)` if it closes to a ring, in twice that
//! otherwise, with `d/2` (or `d-1`) hops. Source of the scheme: Kumar et al. 2019, *Scale MLPerf-0.6 models on Google
//! TPU-v3 Pods* (2-D gradient summation); the cut into parts is the usual way to keep all links busy (BlueConnect).

use crate::collective::{Algo, Collective, CostLine};
use crate::topology::{Cluster, Level, LevelNetwork};

/// The cost, if the cluster has one torus level and the groups are whole lines of it.
pub(crate) fn line(cluster: &Cluster, kind: Collective, groups: &[(&[u32], f64)]) -> Option<CostLine> {
    let phases = match kind {
        Collective::AllReduce => 2.0,
        Collective::ReduceScatter | Collective::AllGather => 1.0,
        Collective::Reduce | Collective::Broadcast => return None,
    };
    let mut tori = cluster.levels().iter().enumerate().filter(|(_, l)| matches!(l.network, LevelNetwork::Torus { .. }));
    let (l, level) = tori.next().filter(|_| tori.next().is_none())?;
    let LevelNetwork::Torus { dims, wraps } = &level.network else { return None };
    let boxes: Vec<Part> = groups.iter().map(|(group, _)| Part::of(cluster, l, dims, group)).collect::<Option<_>>()?;
    // All groups have the same form and lie in one torus each: then the links of a dim carry the same everywhere.
    let first = boxes.first()?;
    if boxes.iter().any(|b| b.whole != first.whole || b.n_inner != first.n_inner) {
        return None;
    }
    let weight = groups.first()?.1;
    if groups.iter().any(|(_, w)| *w != weight) {
        return None;
    }
    let crowd = most_groups_on_one_line(cluster, l, dims, &first.whole, groups);
    let (mut latency_s, mut s_per_byte) = inner(cluster, l, first.n_inner)?;
    let extents: Vec<u32> = dims.iter().zip(&first.whole).filter(|(_, whole)| **whole).map(|(d, _)| *d).collect();
    let (hops_s, s) = scatter(level, *wraps, &extents);
    latency_s += hops_s;
    s_per_byte += s * crowd;
    Some(CostLine {
        algo: Algo::Torus,
        latency_s: cluster.launch_s() + phases * latency_s,
        s_per_byte: phases * s_per_byte * weight,
    })
}

/// Seconds of latency and seconds per byte of a reduce-scatter along these extents.
fn scatter(level: &Level, wraps: bool, extents: &[u32]) -> (f64, f64) {
    let k = extents.len();
    let (mut latency_s, mut s_per_byte) = (0.0, 0.0);
    for phase in 0..k {
        let (mut slowest, mut longest) = (0.0f64, 0);
        for part in 0..k {
            let before: f64 = (0..phase).map(|i| f64::from(extents[(part + i) % k])).product();
            let d = extents[(part + phase) % k];
            let ways = if wraps && d > 2 { 2.0 } else { 1.0 };
            let share = f64::from(d - 1) / f64::from(d) / (k as f64) / before / ways;
            slowest = slowest.max(share / level.bytes_per_s);
            longest = longest.max(if wraps { d / 2 } else { d - 1 });
        }
        s_per_byte += slowest;
        latency_s += f64::from(longest) * level.latency_s;
    }
    (latency_s, s_per_byte)
}

/// Scattering inside each entity over its `n` devices, through the levels below the torus, as a ring each.
fn inner(cluster: &Cluster, l: usize, n: u32) -> Option<(f64, f64)> {
    if n == 1 {
        return Some((0.0, 0.0));
    }
    let slowest = cluster.levels().get(l + 1..)?.iter().map(|level| level.bytes_per_s).fold(f64::INFINITY, f64::min);
    let hop_s = cluster.levels().get(l + 1..)?.iter().map(|level| level.latency_s).fold(0.0, f64::max);
    Some((f64::from(n - 1) * hop_s, f64::from(n - 1) / f64::from(n) / slowest))
}

/// The form of a group.
struct Part {
    /// By torus dim: the whole extent, or one position.
    whole: Vec<bool>,
    /// Devices of the group in each entity.
    n_inner: u32,
}

impl Part {
    fn of(cluster: &Cluster, l: usize, dims: &[u32], group: &[u32]) -> Option<Part> {
        let n_places: usize = dims.iter().map(|d| *d as usize).product();
        let mut n_at = vec![0u32; n_places];
        let first_entity = cluster.entity[l][*group.first()? as usize];
        let torus = first_entity - cluster.place[l][first_entity as usize];
        for &device in group {
            let entity = cluster.entity[l][device as usize];
            let place = cluster.place[l][entity as usize];
            if entity - place != torus {
                return None;
            }
            n_at[place as usize] += 1;
        }
        let used: Vec<usize> = (0..n_places).filter(|&p| n_at[p] > 0).collect();
        let n_inner = n_at[*used.first()?];
        let of_entity = (cluster.n_devices() as usize / cluster.place[l].len()) as u32;
        if used.iter().any(|&p| n_at[p] != n_inner) || (n_inner != 1 && n_inner != of_entity) {
            return None;
        }
        let (mut whole, mut n_expected, mut stride) = (Vec::new(), 1, n_places);
        for &d in dims {
            stride /= d as usize;
            let coordinate = |p: usize| p / stride % d as usize;
            let is_one = used.iter().all(|&p| coordinate(p) == coordinate(used[0]));
            whole.push(!is_one);
            n_expected *= if is_one { 1 } else { d as usize };
        }
        (n_expected == used.len()).then_some(Part { whole, n_inner })
    }
}

/// How many groups share the links of the line, or plane, that each of them covers.
fn most_groups_on_one_line(cluster: &Cluster, l: usize, dims: &[u32], whole: &[bool], groups: &[(&[u32], f64)]) -> f64 {
    let mut counts = std::collections::BTreeMap::new();
    for (group, _) in groups {
        let entity = group.first().map_or(0, |d| cluster.entity[l][*d as usize]);
        let place = cluster.place[l][entity as usize];
        let (mut key, mut stride) = (vec![entity - place], dims.iter().product::<u32>());
        for (&d, &whole) in dims.iter().zip(whole) {
            stride /= d;
            key.push(if whole { 0 } else { place / stride % d });
        }
        *counts.entry(key).or_insert(0u32) += 1;
    }
    counts.values().copied().max().map_or(1.0, f64::from)
}
