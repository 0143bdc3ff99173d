//! Chooses the dim along which an update is cut, and how far it is padded.
//!
//! The physically major-most dim of the state (parameters and carried values) comes first: cutting another one makes
//! reduce-scatter and all-gather move strided pieces (measured on the CPU backend for f32[2048,2048]: reduce-scatter 13 ms
//! along the major dim against 80 ms along the minor one, all-gather 21 against 129). Among equal ones the least padding wins.

use crate::cluster::{Cluster, Soil, Stop, grow};
use hlo_ir::{ArrayShape, CompId, InstId, Module};

/// What cutting along a dim that is not physically major-most costs, as a factor on its bytes (six, as measured above).
const STRIDED_PENALTY: u64 = 6;

/// How a dim is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Number of shards.
    pub n_shards: i64,
    /// Elements of the dim.
    pub size: i64,
    /// Elements of the dim on one device.
    pub shard_size: i64,
}

impl Cut {
    /// A dim of `size` elements in `n_shards` equal shards, padded at its end.
    pub fn new(size: i64, n_shards: usize) -> Cut {
        let n_shards = n_shards.max(1) as i64;
        Cut { n_shards, size, shard_size: size.max(0).div_euclid(n_shards) + i64::from(size.max(0) % n_shards != 0) }
    }

    /// Elements of the dim with padding.
    pub fn padded_size(&self) -> i64 {
        self.shard_size * self.n_shards
    }

    /// Elements added.
    pub fn padding(&self) -> i64 {
        self.padded_size() - self.size
    }
}

/// A cluster and how it is cut.
#[derive(Clone, Debug)]
pub struct Choice {
    /// What is computed on shards.
    pub cluster: Cluster,
    /// How.
    pub cut: Cut,
    /// Dims that were possible and why this one is better, for the report.
    pub rejected: Vec<(usize, String)>,
}

/// The best cut of the update of gradient `seed`.
///
/// # Errors
/// What is in the way along the first dim, if there is no possible cut.
pub fn choose(soil: &Soil<'_>, comp: CompId, seed: InstId, n_shards: usize) -> Result<Choice, Stop> {
    let array = soil.module.shape(seed).as_array();
    let dims = array.map_or(&[][..], |a| &a.dims);
    let mut best: Option<(u64, Choice)> = None;
    let mut first_stop = None;
    let mut rejected = Vec::new();
    for (dim, &size) in dims.iter().enumerate() {
        let cut = Cut::new(size, n_shards);
        if cut.padding() >= size {
            let reason =
                format!("dim {dim} has {size} elements: {n_shards} equal shards would pad it to {}", cut.padded_size());
            rejected.push((dim, reason.clone()));
            first_stop.get_or_insert(Stop { inst: None, reason });
            continue;
        }
        match grow(soil, comp, seed, dim) {
            Ok(cluster) => {
                let cost = cost(soil.module, &cluster, &cut);
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, Choice { cluster, cut, rejected: Vec::new() }));
                }
                rejected.push((dim, format!("dim {dim}: weighted traffic of {cost} bytes")));
            }
            Err(stop) => {
                rejected.push((dim, format!("dim {dim}: {}", stop.reason)));
                first_stop.get_or_insert(stop);
            }
        }
    }
    match best {
        Some((_, mut choice)) => {
            let own = choice.cluster.members[0];
            choice.rejected = rejected.into_iter().filter(|(dim, _)| *dim != own).collect();
            Ok(choice)
        }
        None => Err(first_stop.unwrap_or(Stop { inst: None, reason: "it has no dims".into() })),
    }
}

/// Padded bytes of all values that are sliced or made whole, strided ones weighted.
fn cost(module: &Module, cluster: &Cluster, cut: &Cut) -> u64 {
    let exits = cluster.exits.iter().map(|e| (e, cluster.members[e]));
    let values = cluster.sliced.iter().map(|(v, &d)| (v, d)).chain(exits);
    let mut total = 0u64;
    for (&value, dim) in values {
        let Some(array) = module.shape(value).as_array() else { continue };
        let weight = if is_major_most(array, dim) { 1 } else { STRIDED_PENALTY };
        let padded = array.size_bytes() / cut.size.max(1) as u64 * cut.padded_size() as u64;
        total = total.saturating_add(padded.saturating_mul(weight));
    }
    total
}

/// Whether a dim is the slowest in memory; dims of one element before it do not count.
fn is_major_most(array: &ArrayShape, dim: usize) -> bool {
    let row_major: Vec<usize> = (0..array.rank()).collect();
    let major_to_minor = match &array.layout {
        Some(layout) => layout.minor_to_major.iter().rev().map(|&d| d as usize).collect(),
        None => row_major,
    };
    major_to_minor.into_iter().find(|&d| d == dim || array.dims.get(d) != Some(&1)) == Some(dim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_sizes_are_padded_at_the_end() {
        let cut = Cut::new(10, 8);
        assert_eq!((cut.shard_size, cut.padded_size(), cut.padding()), (2, 16, 6));
        let cut = Cut::new(784, 8);
        assert_eq!((cut.shard_size, cut.padding()), (98, 0));
        assert_eq!(Cut::new(1001, 6).padded_size(), 1002);
    }
}
