//! Which exchange of the cluster model a collective's time is.

use super::Network;
use hlo_cluster::{Collective, CollectiveCost};
use hlo_ir::op::{CollectiveRule, CollectiveSource};
use hlo_ir::{InstId, Module};

/// A pattern of messages that the cluster model prices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exchange {
    /// One that a communication library has an algorithm for.
    Groups(Collective),
    /// Each member of a group sends each other member a part.
    AllToAll,
    /// A message for each pair of devices.
    Permute,
}

/// The exchange of a collective op. Rows of a ragged all-to-all are taken to be equal parts.
pub fn exchange_of(rule: CollectiveRule) -> Exchange {
    match rule.source {
        CollectiveSource::Reduction if rule.scatters => Exchange::Groups(Collective::ReduceScatter),
        CollectiveSource::Reduction => Exchange::Groups(Collective::AllReduce),
        CollectiveSource::Members if rule.exchanges_parts() => Exchange::AllToAll,
        CollectiveSource::Members => Exchange::Groups(Collective::AllGather),
        CollectiveSource::Rows => Exchange::AllToAll,
        CollectiveSource::Root => Exchange::Groups(Collective::Broadcast),
        CollectiveSource::Pair => Exchange::Permute,
    }
}

impl Network {
    /// The cost of an exchange among disjoint `groups`, or along `pairs`, of flat device ids. It is a function of the bytes
    /// of the larger of what one device puts in and what it gets.
    pub fn exchange(&self, exchange: Exchange, groups: &[Vec<u32>], pairs: &[(u32, u32)]) -> CollectiveCost {
        match exchange {
            Exchange::Groups(kind) => self.collective(kind, groups),
            Exchange::AllToAll => self.all_to_all(groups),
            Exchange::Permute => self.permute(pairs),
        }
    }
}

/// Who takes part in a collective of a module, as flat device ids.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Members {
    /// The groups; none for a permute.
    pub groups: Vec<Vec<u32>>,
    /// The pairs of a permute.
    pub pairs: Vec<(u32, u32)>,
}

/// Who takes part in the collective `inst`; nobody where the groups do not fit the module, which no verified module has.
pub fn members_of(module: &Module, inst: InstId, exchange: Exchange) -> Members {
    match exchange {
        Exchange::Permute => Members { groups: Vec::new(), pairs: module.device_pairs(inst).unwrap_or_default() },
        Exchange::Groups(_) | Exchange::AllToAll => {
            let groups = module.device_groups(inst).map(|groups| groups.groups).unwrap_or_default();
            Members { groups, pairs: Vec::new() }
        }
    }
}

/// Bytes of the larger of what one device puts into the collective `inst` and what it gets.
pub fn exchanged_bytes(module: &Module, inst: InstId, rule: CollectiveRule) -> f64 {
    let operands = &module.inst(inst).operands;
    let bytes_in: f64 = operands.iter().map(|&operand| module.shape(operand).memory_bytes() as f64).sum();
    let bytes_out = module.shape(inst).memory_bytes() as f64;
    let bytes_out = if rule.has_operands_in_result() { bytes_out - bytes_in } else { bytes_out };
    bytes_in.max(bytes_out)
}
