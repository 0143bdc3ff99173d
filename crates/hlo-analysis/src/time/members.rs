//! The devices that take part in a module's exchanges, and their bytes.

use hlo_ir::op::CollectiveRule;
use hlo_ir::{InstId, Module};
use hlo_mesh::Exchange;

/// The devices that take part in a collective of a module, as flat ids.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Members {
    /// The groups; none for a permute.
    pub groups: Vec<Vec<u32>>,
    /// The pairs of a permute.
    pub pairs: Vec<(u32, u32)>,
}

/// Returns the devices that take part in the collective `inst`. Groups that do not fit the module give none; no verified
/// module has such groups.
pub fn members_of(module: &Module, inst: InstId, exchange: Exchange) -> Members {
    match exchange {
        Exchange::Permute => Members { groups: Vec::new(), pairs: module.device_pairs(inst).unwrap_or_default() },
        Exchange::AllReduce
        | Exchange::ReduceScatter
        | Exchange::AllGather
        | Exchange::AllToAll
        | Exchange::Broadcast => {
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
