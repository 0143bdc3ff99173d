//! Over which devices a value is cut: over whole groups, or within the parts that a level of the cluster makes of them (Xu et al.
//! 2020, §5).

use hlo_cluster::Cluster;

/// A way to cut a value over groups of devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grouping {
    /// Devices that hold the shards of one copy, in the order of the shards.
    pub shard: Vec<Vec<u32>>,
    /// Devices that hold the same shard of different copies; empty where there is one copy.
    pub across: Vec<Vec<u32>>,
    /// The level of the cluster within which the value is cut, for reports.
    pub level: Option<String>,
}

/// All groupings of the devices of `groups`, which are flat ids. The first one cuts over whole groups.
pub fn groupings(cluster: Option<&Cluster>, groups: &[Vec<u32>]) -> Vec<Grouping> {
    let mut found = vec![Grouping { shard: groups.to_vec(), across: Vec::new(), level: None }];
    let Some((cluster, counts)) = cluster.and_then(|c| Some((c, c.hierarchy()?))) else { return found };
    let mut n_within: u32 = counts.iter().product();
    for (level, count) in cluster.levels().iter().zip(&counts) {
        n_within /= count.max(&1);
        if let Some((shard, across)) = split(groups, n_within) {
            let grouping = Grouping { shard, across, level: Some(level.name.clone()) };
            if found.iter().all(|known| known.shard != grouping.shard) {
                found.push(grouping);
            }
        }
    }
    found
}

/// Groups of flat device ids.
type Groups = Vec<Vec<u32>>;

/// Splits each group by entities of `n_within` devices; `None` unless all parts are of one size above 1, and more than one to a
/// group.
fn split(groups: &[Vec<u32>], n_within: u32) -> Option<(Groups, Groups)> {
    let (mut shard, mut across) = (Vec::new(), Vec::new());
    let mut size = None;
    for group in groups {
        let mut parts: Vec<(u32, Vec<u32>)> = Vec::new();
        for &device in group {
            let entity = device / n_within.max(1);
            match parts.iter_mut().find(|(known, _)| *known == entity) {
                Some((_, part)) => part.push(device),
                None => parts.push((entity, vec![device])),
            }
        }
        let first = parts.first()?.1.len();
        let is_even = parts.iter().all(|(_, part)| part.len() == first) && *size.get_or_insert(first) == first;
        if !is_even || first < 2 || parts.len() < 2 {
            return None;
        }
        across.extend((0..first).map(|place| parts.iter().map(|(_, part)| part[place]).collect::<Vec<u32>>()));
        shard.extend(parts.into_iter().map(|(_, part)| part));
    }
    Some((shard, across))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_make_parts_of_one_size() {
        let cluster = Cluster::from_arg("[(node,2),(gpu,4)]").expect("a cluster");
        let all = vec![(0..8).collect::<Vec<u32>>()];
        let found = groupings(Some(&cluster), &all);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].shard, all);
        assert_eq!(found[1].shard, [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(found[1].across, [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(found[1].level.as_deref(), Some("node"));
        assert_eq!(groupings(None, &all).len(), 1);
        // One device of each node: no level has two of them.
        assert_eq!(groupings(Some(&cluster), &[vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]]).len(), 1);
        // Uneven parts.
        assert_eq!(groupings(Some(&cluster), &[vec![0, 1, 4]]).len(), 1);
    }
}
