//! What one device sends in a run of a module.
//!
//! The bytes are those of the algorithms that send least (Thakur, Rabenseifner and Gropp 2005, sections 4.1 to 4.5). With `n` devices
//! in a group and `S` bytes on the larger side of the collective, a device sends `2 (n − 1)/n · S` in an all-reduce,
//! `(n − 1)/n · S` in a reduce-scatter, an all-gather and an all-to-all, and `S` in a broadcast and along a pair of a permute. So an
//! all-reduce sends as much as the reduce-scatter and the all-gather that do the same.

use crate::frequency::Frequencies;
use crate::time::{Members, exchanged_bytes, members_of};
use hlo_ir::Module;
use hlo_ir::op::CollectiveForm;
use hlo_mesh::Exchange;
use std::collections::BTreeMap;

/// The collectives of one run of a module.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Traffic {
    /// How often collectives run, by opcode; in loops as often as the loop runs.
    pub n_runs: BTreeMap<&'static str, f64>,
    /// Bytes that one device sends, by opcode.
    pub sent_by: BTreeMap<&'static str, f64>,
    /// Bytes that one device sends in all of them; of the largest group where groups differ.
    pub sent_bytes: f64,
}

impl Traffic {
    /// The traffic of everything that the entry reaches. Cost: linear in the module's instructions and the members of groups.
    pub fn find(module: &Module, frequencies: &Frequencies) -> Traffic {
        let mut traffic = Traffic::default();
        for &comp in module.computations() {
            let n_runs = frequencies.of(comp);
            if n_runs <= 0.0 {
                continue;
            }
            for &inst in &module.comp(comp).insts {
                let row = module.inst(inst).opcode.row();
                let Some(rule) = row.collective.filter(|rule| !matches!(rule.form, CollectiveForm::Done(..))) else {
                    continue;
                };
                let exchange = Exchange::of(rule);
                let share = sent_share(exchange, &members_of(module, inst, exchange));
                *traffic.n_runs.entry(row.name).or_insert(0.0) += n_runs;
                let sent_bytes = n_runs * share * exchanged_bytes(module, inst, rule);
                *traffic.sent_by.entry(row.name).or_insert(0.0) += sent_bytes;
                traffic.sent_bytes += sent_bytes;
            }
        }
        traffic
    }
}

/// Returns the bytes that a device sends, for each byte of the larger side of the collective.
fn sent_share(exchange: Exchange, members: &Members) -> f64 {
    if exchange == Exchange::Permute {
        return f64::from(members.pairs.iter().any(|(from, to)| from != to));
    }
    exchange.sent_share(members.groups.iter().map(Vec::len).max().unwrap_or(1).max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_alone_sends_nothing() {
        let to_itself = Members { groups: Vec::new(), pairs: vec![(0, 0), (1, 1)] };
        assert_eq!(sent_share(Exchange::Permute, &to_itself), 0.0);
        let around = Members { groups: Vec::new(), pairs: vec![(0, 1), (1, 0)] };
        assert_eq!(sent_share(Exchange::Permute, &around), 1.0);
    }
}
