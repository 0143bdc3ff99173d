//! All-reduce over trees, as NCCL lays them: a chain through the devices of each node, and between the nodes two
//! binary trees that each carry half of the bytes, through the first device of each node.
//!
//! The trees follow Sanders, Speck and Träff 2009, *Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan*: a node that is inner in one is a leaf in the other. A node is an entity of the second innermost level; on a
//! cluster of one level every device counts as a node.

use crate::links::Links;
use crate::topology::Cluster;

/// Reports the loads of all groups; returns the latency of the slowest in seconds.
pub(crate) fn all_reduce(
    cluster: &Cluster,
    links: &Links<'_>,
    groups: &[(&[u32], f64)],
    load: &mut dyn FnMut(usize, f64),
) -> f64 {
    let mut latest = 0.0f64;
    for &(group, weight) in groups {
        let nodes = by_node(cluster, group);
        let mut up_and_down = |a: u32, b: u32, share: f64| {
            let up = links.for_each_on_way(a, b, &mut |link| load(link, share * weight));
            up + links.for_each_on_way(b, a, &mut |link| load(link, share * weight))
        };
        let mut chains_s = 0.0f64;
        for node in &nodes {
            let chain_s: f64 = node.windows(2).map(|pair| up_and_down(pair[1], pair[0], 1.0)).sum();
            chains_s = chains_s.max(chain_s);
        }
        let heads: Vec<u32> = nodes.iter().filter_map(|node| node.first().copied()).collect();
        let n = heads.len() as u32;
        let mut trees_s = 0.0f64;
        for second in [false, true] {
            let mut depth_s = vec![0.0f64; heads.len()];
            for (rank, parent) in tree(n, second) {
                let hop_s = up_and_down(heads[rank as usize], heads[parent as usize], 0.5);
                depth_s[rank as usize] = depth_s[parent as usize] + hop_s;
            }
            trees_s = depth_s.iter().copied().fold(trees_s, f64::max);
        }
        latest = latest.max(chains_s + trees_s);
    }
    latest
}

/// The devices of a group, sorted, node by node.
fn by_node(cluster: &Cluster, group: &[u32]) -> Vec<Vec<u32>> {
    let node_of = |device: u32| match cluster.levels().len() {
        0 | 1 => device,
        n => cluster.entity[n - 2][device as usize],
    };
    let mut devices = group.to_vec();
    devices.sort();
    devices.chunk_by(|a, b| node_of(*a) == node_of(*b)).map(<[u32]>::to_vec).collect()
}

/// The edges (child, parent) of one of the two trees over ranks `0..n`, parents before their children.
pub(crate) fn tree(n: u32, is_second: bool) -> Vec<(u32, u32)> {
    // The second tree is the first over renamed ranks: mirrored for an even number, else shifted by one.
    let rename = |rank: u32| match (is_second, n % 2) {
        (false, _) => rank,
        (true, 0) => n - 1 - rank,
        (true, _) => (rank + 1) % n,
    };
    // Rank 0 is the root; the others hang by their lowest set bit, highest first.
    let mut ranks: Vec<u32> = (1..n).collect();
    ranks.sort_by_key(|rank| std::cmp::Reverse(rank & rank.wrapping_neg()));
    ranks.into_iter().map(|rank| (rename(rank), rename(parent(n, rank)))).collect()
}

/// The parent of a rank above 0: the nearest number with a higher lowest set bit, if there is such a rank.
fn parent(n: u32, rank: u32) -> u32 {
    let bit = rank & rank.wrapping_neg();
    let up = (rank ^ bit) | (bit << 1);
    if up < n { up } else { rank ^ bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_span_all_ranks_and_no_rank_has_more_than_two_children() {
        for n in 1..40u32 {
            for second in [false, true] {
                let edges = tree(n, second);
                assert_eq!(edges.len(), n as usize - 1);
                let mut known = vec![false; n as usize];
                if let Some(&(_, root)) = edges.first() {
                    known[root as usize] = true;
                }
                let mut children = vec![0; n as usize];
                for (child, parent) in edges {
                    assert!(known[parent as usize] && !known[child as usize], "{n} {second} {child} {parent}");
                    known[child as usize] = true;
                    children[parent as usize] += 1;
                }
                assert!(n == 1 || known.iter().all(|k| *k));
                assert!(children.iter().all(|c| *c <= 2));
            }
        }
    }

    #[test]
    fn four_nodes_hang_as_in_the_library() {
        assert_eq!(tree(4, false), [(2, 0), (1, 2), (3, 2)]);
        assert_eq!(tree(4, true), [(1, 3), (2, 1), (0, 1)]);
    }
}
