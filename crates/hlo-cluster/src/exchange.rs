//! Predicted time of collectives that move parts between devices without reducing them: all-to-all and permute.
//!
//! Each flow loads every link on its way; the busiest link decides. The flows of an all-to-all are counted for whole entities: of
//! `n` devices, `c` in an entity, `c · (n - c)` flows leave it. An all-to-all goes in `n-1` rounds, in each of which every
//! device exchanges with one other (pairwise exchange: Thakur, Rabenseifner and Gropp 2005, *Optimization of collective
//! communication operations in MPICH*); each round takes at least the latency of its longest hop. A permute is one round.

use crate::collective::{Algo, CollectiveCost, CostLine};
use crate::links::Links;
use crate::topology::Cluster;

impl Cluster {
    /// The cost of an all-to-all that all `groups` run at the same time, as a function of the bytes that one device puts in.
    ///
    /// Of these bytes a device keeps one part of `n` and sends one to each other device of its group. Groups of one device cost
    /// nothing. A device that the cluster does not have costs infinity. Linear in the devices of a group where siblings hang at
    /// switches; quadratic in the siblings with devices of a group on a ring or a torus.
    pub fn all_to_all_cost(&self, groups: &[Vec<u32>]) -> CollectiveCost {
        let devices = groups.iter().flatten().copied();
        if groups.iter().all(|group| group.len() <= 1) || !self.has(devices.clone()) {
            return self.nothing_or_impossible(devices);
        }
        let links = Links::new(self);
        let mut loads = vec![0.0; links.s_per_byte.len()];
        let mut latest = 0.0f64;
        for group in groups {
            let n = group.len();
            let share = 1.0 / n as f64;
            let slowest = links.for_each_between_all(group, &mut |link, n_flows| loads[link] += share * n_flows);
            latest = latest.max(n.saturating_sub(1) as f64 * slowest);
        }
        self.exchange_cost(&links, &loads, latest)
    }

    /// The cost of sending along all `(source, target)` pairs at the same time, as a function of the bytes of one message.
    ///
    /// A pair within one device costs nothing. A device that the cluster does not have costs infinity.
    pub fn permute_cost(&self, pairs: &[(u32, u32)]) -> CollectiveCost {
        let devices = pairs.iter().flat_map(|&(source, target)| [source, target]);
        if pairs.iter().all(|(source, target)| source == target) || !self.has(devices.clone()) {
            return self.nothing_or_impossible(devices);
        }
        let links = Links::new(self);
        let mut loads = vec![0.0; links.s_per_byte.len()];
        let hops = pairs.iter().map(|&(from, to)| links.for_each_on_way(from, to, &mut |link| loads[link] += 1.0));
        let latest = hops.fold(0.0, f64::max);
        self.exchange_cost(&links, &loads, latest)
    }

    fn has(&self, mut devices: impl Iterator<Item = u32>) -> bool {
        devices.all(|device| device < self.n_devices())
    }

    /// Nothing is sent, or a device is named that the cluster does not have.
    fn nothing_or_impossible(&self, devices: impl Iterator<Item = u32>) -> CollectiveCost {
        let impossible = CostLine { algo: Algo::Auto, latency_s: f64::INFINITY, s_per_byte: 0.0 };
        CollectiveCost::new(if self.has(devices) { Vec::new() } else { vec![impossible] })
    }

    fn exchange_cost(&self, links: &Links<'_>, loads: &[f64], latency_s: f64) -> CollectiveCost {
        let s_per_byte = loads.iter().zip(&links.s_per_byte).map(|(load, s)| load * s).fold(0.0, f64::max);
        // There is one way to send along given pairs: no algorithm is chosen.
        CollectiveCost::new(vec![CostLine { algo: Algo::Auto, latency_s: self.launch_s() + latency_s, s_per_byte }])
    }
}

#[cfg(test)]
mod tests {
    use crate::{Algo, Cluster, Collective};

    /// Seconds for a byte, without latency.
    fn s_per_byte(cost: &crate::CollectiveCost) -> f64 {
        cost.lines().iter().map(|line| line.s_per_byte).sum()
    }

    #[test]
    fn an_all_to_all_on_one_switch_sends_all_but_its_own_part() {
        let cluster = Cluster::flat(8, 100.0, 1.0);
        let all = [(0..8).collect::<Vec<u32>>()];
        let cost = cluster.all_to_all_cost(&all);
        assert!((s_per_byte(&cost) * 100e9 - 7.0 / 8.0).abs() < 1e-12);
        // An all-gather of the same bytes from each device moves eight times as much.
        let gathered = cluster.collective_cost(Collective::AllGather, &all, Algo::Ring);
        assert!((8.0 * s_per_byte(&gathered) / s_per_byte(&cost) - 8.0).abs() < 1e-9);
        // A launch and seven rounds.
        assert!((cost.seconds(0.0) - 8e-6).abs() < 1e-12);
    }

    #[test]
    fn an_all_to_all_over_two_nodes_is_bound_by_the_way_out_of_a_node() {
        let cluster = Cluster::from_arg("[(node,2,10,0),(gpu,4,100,0)]").expect("a cluster");
        let cost = cluster.all_to_all_cost(&[(0..8).collect()]);
        // Four devices send an eighth to each of four others.
        assert!((s_per_byte(&cost) * 10e9 - 2.0).abs() < 1e-12, "{}", s_per_byte(&cost));
        let within = cluster.all_to_all_cost(&[(0..4).collect(), (4..8).collect()]);
        assert!((s_per_byte(&within) * 100e9 - 0.75).abs() < 1e-12);
    }

    #[test]
    fn flows_counted_by_entities_are_those_of_all_pairs() {
        let ring = "name = \"r\"\n[[level]]\nname = \"node\"\ncount = 2\ngbytes_per_s = 3\nshared_by = 2\n\
                    [[level]]\nname = \"gpu\"\ncount = 8\nnetwork = \"ring\"\ngbytes_per_s = 50\nlatency_us = 2\n";
        let clusters = ["[(pod,2,1,9),(node,3,10,4),(gpu,4,100,1)]", "[(node,3,10,4),(gpu,5+2+3,100,1)]", ring]
            .map(|text| Cluster::from_arg(text).expect("a cluster"));
        let shipped = ["p2-v100:2", "tpuv3-slice:4x4", "p2-a100:2", "dgx-h100:2"]
            .map(|name| Cluster::from_arg(name).expect("a cluster"));
        for cluster in clusters.iter().chain(&shipped) {
            let n = cluster.n_devices();
            let groupings: [Vec<Vec<u32>>; 5] = [
                vec![(0..n).collect()],
                vec![(0..n).rev().step_by(2).collect(), (0..n).step_by(2).collect()],
                (0..3).map(|first| (first..n).step_by(3).collect()).collect(),
                vec![(n / 4..n).collect(), (0..n / 4).collect()],
                vec![vec![0, n - 1, n / 2], vec![1]],
            ];
            for groups in groupings.map(|groups| groups.into_iter().filter(|g| !g.is_empty()).collect::<Vec<_>>()) {
                let counted = cluster.all_to_all_cost(&groups);
                let paired = all_to_all_of_pairs(cluster, &groups);
                let (Some(a), Some(b)) = (counted.lines().first(), paired.lines().first()) else { panic!("two costs") };
                assert_eq!(a.latency_s, b.latency_s, "{} {groups:?}", cluster.name());
                assert!((a.s_per_byte / b.s_per_byte - 1.0).abs() < 1e-12, "{} {groups:?} {a:?} {b:?}", cluster.name());
            }
        }
    }

    /// As [`Cluster::all_to_all_cost`], flow by flow.
    fn all_to_all_of_pairs(cluster: &Cluster, groups: &[Vec<u32>]) -> crate::CollectiveCost {
        let links = super::Links::new(cluster);
        let (mut loads, mut latest) = (vec![0.0; links.s_per_byte.len()], 0.0f64);
        for group in groups {
            for (&from, &to) in group.iter().flat_map(|from| group.iter().map(move |to| (from, to))) {
                let share = 1.0 / group.len() as f64;
                let latency_s = links.for_each_on_way(from, to, &mut |link| loads[link] += share);
                latest = latest.max((group.len() - 1) as f64 * latency_s);
            }
        }
        cluster.exchange_cost(&links, &loads, latest)
    }

    #[test]
    fn an_all_to_all_of_many_devices_takes_little_time_to_price() {
        let cluster = Cluster::flat(100_000, 100.0, 1.0);
        let cost = cluster.all_to_all_cost(&[(0..100_000).collect()]);
        assert!((s_per_byte(&cost) * 100e9 - 0.99999).abs() < 1e-9);
    }

    #[test]
    fn messages_of_a_permute_share_links() {
        let cluster = Cluster::from_arg("[(node,2,10,0),(gpu,4,100,0)]").expect("a cluster");
        let shift = |by: u32| (0..8).map(|d| (d, (d + by) % 8)).collect::<Vec<(u32, u32)>>();
        // One message leaves each node, or four do.
        assert!((s_per_byte(&cluster.permute_cost(&shift(1))) * 10e9 - 1.0).abs() < 1e-12);
        assert!((s_per_byte(&cluster.permute_cost(&shift(4))) * 10e9 - 4.0).abs() < 1e-12);
        assert!(cluster.permute_cost(&shift(0)).lines().is_empty());
    }

    #[test]
    fn unknown_devices_cost_infinity() {
        let cluster = Cluster::flat(2, 100.0, 1.0);
        assert_eq!(cluster.permute_cost(&[(0, 2)]).seconds(1.0), f64::INFINITY);
        assert_eq!(cluster.all_to_all_cost(&[vec![0, 5]]).seconds(1.0), f64::INFINITY);
        assert_eq!(cluster.all_to_all_cost(&[vec![0], vec![1]]).seconds(1.0), 0.0);
    }
}
