//! Link loads against their definition, and against closed formulas.

use crate::random::Random;
use hlo_cluster::{Algo, Cluster, Collective};

/// The definition, written out: on a cluster of switches, an entity's out-link carries every flow whose source lies in it
/// and whose target does not; the in-link the reverse. `counts` and `bandwidths` by level, no latency.
fn slow_ring_s(counts: &[u32], bytes_per_s: &[f64], kind: Collective, bytes: f64, groups: &[Vec<u32>]) -> f64 {
    let mut flows: Vec<(u32, u32, f64)> = Vec::new();
    for group in groups.iter().filter(|g| g.len() > 1) {
        let mut order = group.clone();
        order.sort_unstable();
        while order[0] != group[0] {
            order.rotate_left(1);
        }
        let n = order.len();
        for i in 0..n {
            let (a, b) = (order[i], order[(i + 1) % n]);
            let part = bytes / n as f64;
            match kind {
                Collective::AllReduce => flows.push((a, b, 2.0 * (n - 1) as f64 * part)),
                Collective::ReduceScatter | Collective::AllGather => flows.push((a, b, (n - 1) as f64 * part)),
                Collective::Reduce if i + 1 < n => flows.push((b, a, bytes)),
                Collective::Broadcast if i + 1 < n => flows.push((a, b, bytes)),
                Collective::Reduce | Collective::Broadcast => {}
            }
        }
    }
    let mut slowest = 0.0f64;
    for (l, bandwidth) in bytes_per_s.iter().enumerate() {
        let inside: u32 = counts[l + 1..].iter().product();
        let n_entities: u32 = counts[..=l].iter().product();
        for entity in 0..n_entities {
            let carried = |is_out: bool| {
                let here = |d: u32| d / inside == entity;
                let counted = flows.iter().filter(|(a, b, _)| here(*a) != here(*b) && here(*a) == is_out);
                counted.map(|(_, _, size)| size).sum::<f64>()
            };
            slowest = slowest.max(carried(true) / bandwidth).max(carried(false) / bandwidth);
        }
    }
    slowest
}

#[test]
fn ring_loads_are_those_of_the_definition() {
    let mut random = Random(1);
    for _ in 0..300 {
        let n_levels = 1 + random.below(3);
        let counts: Vec<u32> = (0..n_levels).map(|_| 1 + random.below(4) as u32).collect();
        let gbytes: Vec<f64> = (0..n_levels).map(|_| 1.0 + random.below(20) as f64).collect();
        let levels: Vec<String> = counts.iter().zip(&gbytes).map(|(n, g)| format!("(l,{n},{g},0)")).collect();
        let cluster = Cluster::from_arg(&format!("[{}]", levels.join(","))).expect("a cluster").without_latency();
        let mut devices: Vec<u32> = (0..cluster.n_devices()).collect();
        random.shuffle(&mut devices);
        let mut groups = Vec::new();
        while !devices.is_empty() {
            let n = 1 + random.below(devices.len());
            groups.push(devices.split_off(devices.len() - n));
        }
        let bytes_per_s: Vec<f64> = gbytes.iter().map(|g| g * 1e9).collect();
        for kind in Collective::ALL {
            let fast = cluster.collective_s(kind, 1e9, &groups, Algo::Ring);
            let slow = slow_ring_s(&counts, &bytes_per_s, kind, 1e9, &groups);
            assert!((fast - slow).abs() <= 1e-12 * slow, "{counts:?} {kind} {groups:?}: {fast} {slow}");
        }
    }
}

#[test]
fn flat_clusters_follow_the_ring_formula() {
    let cluster = Cluster::flat(8, 10.0, 5.0);
    let group = [(0..8).collect::<Vec<u32>>()];
    let once = 7.0 * 5e-6 + 7.0 / 8.0 * 1e6 / 10e9;
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    near(cluster.collective_s(Collective::ReduceScatter, 1e6, &group, Algo::Ring), 5e-6 + once);
    near(cluster.collective_s(Collective::AllGather, 1e6, &group, Algo::Ring), 5e-6 + once);
    near(cluster.collective_s(Collective::AllReduce, 1e6, &group, Algo::Ring), 5e-6 + 2.0 * once);
    assert_eq!(cluster.collective_s(Collective::AllReduce, 1e6, &[vec![3]], Algo::Auto), 0.0);
    assert_eq!(cluster.collective_s(Collective::AllReduce, 1e6, &[vec![3, 8]], Algo::Auto), f64::INFINITY);
    // Small messages go over the tree, large ones over the ring.
    let auto = cluster.collective_cost(Collective::AllReduce, &group, Algo::Auto);
    assert_eq!(auto.fastest(8.0).map(|(algo, _)| algo), Some(Algo::Tree));
    assert_eq!(auto.fastest(1e9).map(|(algo, _)| algo), Some(Algo::Ring));
}

/// 2²⁹ floats, ten times, as the P² paper measures; the expected seconds follow by hand from its bandwidths.
#[test]
fn the_papers_systems_by_hand() {
    const BYTES: f64 = 21_474_836_480.0;
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} {b}");
    let a100 = Cluster::from_arg("p2-a100:2").expect("shipped").without_latency();
    let nodes: Vec<Vec<u32>> = vec![(0..16).collect(), (16..32).collect()];
    near(a100.collective_s(Collective::AllReduce, BYTES, &nodes, Algo::Ring), 2.0 * 15.0 / 16.0 * BYTES / 270e9);
    let pairs: Vec<Vec<u32>> = (0..16).map(|i| vec![i, i + 16]).collect();
    near(a100.collective_s(Collective::AllReduce, BYTES, &pairs, Algo::Ring), 16.0 * BYTES / 8e9);
    // Two nodes, one edge of each tree, half of the bytes up and down in each.
    near(a100.collective_s(Collective::AllReduce, BYTES, &pairs, Algo::Tree), 16.0 * BYTES / 8e9);
    let v100 = Cluster::from_arg("p2-v100:2").expect("shipped").without_latency();
    let rings: Vec<Vec<u32>> = vec![(0..8).collect(), (8..16).collect()];
    near(v100.collective_s(Collective::AllGather, BYTES, &rings, Algo::Ring), 7.0 / 8.0 * BYTES / 135e9);
    // 0 and 2 hang at different PCIe switches of one CPU; 0 and 4 also meet outside of the node's card; 0 and 7 are
    // neighbours on the ring.
    let both = |a: u32, b: u32| v100.collective_s(Collective::AllReduce, BYTES, &[vec![a, b]], Algo::Ring);
    near(both(0, 2), BYTES / 32e9);
    near(both(0, 4), 2.0 * BYTES / 8e9);
    near(both(0, 7), BYTES / 135e9);
    near(both(0, 8), BYTES / 8e9);
}

#[test]
fn a_torus_uses_all_of_its_links() {
    let toml = |wraps: &str| {
        format!("name=\"t\"\n[[level]]\nname=\"chip\"\ncount=16\nnetwork=\"{wraps}\"\ndims=[4,4]\ngbytes_per_s=1\n")
    };
    let torus = Cluster::from_toml(&toml("torus")).expect("a torus");
    let mesh = Cluster::from_toml(&toml("mesh")).expect("a mesh");
    let all = [(0..16).collect::<Vec<u32>>()];
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    // Two halves, first 3/4, then 3/16 of each, in both directions of a ring.
    let once = (0.75 + 0.75 / 4.0) / 2.0;
    near(torus.collective_s(Collective::ReduceScatter, 1e9, &all, Algo::Torus), once / 2.0);
    near(mesh.collective_s(Collective::AllReduce, 1e9, &all, Algo::Torus), 2.0 * once);
    let rows: Vec<Vec<u32>> = (0..4).map(|r| (4 * r..4 * r + 4).collect()).collect();
    near(torus.collective_s(Collective::AllGather, 1e9, &rows, Algo::Torus), 0.75 / 2.0);
    // Not whole lines: a ring. 0, 1 are neighbours.
    near(torus.collective_s(Collective::AllReduce, 1e9, &[vec![0, 1]], Algo::Torus), 1.0);
    // No group can beat what enters and leaves a chip.
    let least = 2.0 * (15.0 / 16.0) / 4.0;
    let best = torus.collective_s(Collective::AllReduce, 1e9, &all, Algo::Auto);
    assert!(best >= least - 1e-12 && best < 1.01 * least, "{best} {least}");
}

#[test]
fn a_ring_level_routes_the_shorter_way() {
    let text = "name=\"r\"\n[[level]]\nname=\"d\"\ncount=6\nnetwork=\"ring\"\ngbytes_per_s=1\nlatency_us=1\n";
    let ring = Cluster::from_toml(text).expect("a ring");
    // 0→2→4→0: two hops each, every edge carries one flow.
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    near(ring.collective_s(Collective::AllGather, 3e9, &[vec![0, 2, 4]], Algo::Ring), 2.0 + 2.0 * 2e-6);
    near(ring.collective_s(Collective::AllGather, 3e9, &[vec![0, 2, 4], vec![1, 3, 5]], Algo::Ring), 4.0 + 2.0 * 2e-6);
}

#[test]
fn shared_cards_and_uneven_nodes_count() {
    let text = "name=\"s\"\n[[level]]\nname=\"node\"\ncount=4\ngbytes_per_s=1\nshared_by=2\n\
                [[level]]\nname=\"d\"\ncount=[2,2,2,1]\ngbytes_per_s=100\n";
    let cluster = Cluster::from_toml(text).expect("a cluster");
    assert_eq!(cluster.n_devices(), 7);
    // Nodes 0 and 1 share a card: both flows leave by it.
    let groups = [vec![0, 4], vec![2, 6]];
    let s = cluster.collective_s(Collective::AllReduce, 1e9, &groups, Algo::Ring);
    assert!((s - 2.0).abs() < 1e-12, "{s}");
}
