//! The patterns in which devices exchange data.

use crate::machine::Network;
use hlo_cluster::{Collective, CollectiveCost};
use hlo_ir::Opcode;
use hlo_ir::op::{CollectiveRule, CollectiveSource};

/// A pattern of messages between devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Exchange {
    /// The members of a group add up their arrays, and each gets the sum.
    AllReduce,
    /// The members of a group add up their arrays, and each gets a part of the sum.
    ReduceScatter,
    /// Each member of a group gets the arrays of all.
    AllGather,
    /// Each member of a group sends each other member a part.
    AllToAll,
    /// One message for each pair of devices.
    Permute,
    /// One member of a group sends its array to the others.
    Broadcast,
}

impl Exchange {
    /// Returns the exchange of a collective op. Rows of a ragged all-to-all are taken to be equal parts.
    pub fn of(rule: CollectiveRule) -> Exchange {
        match rule.source {
            CollectiveSource::Reduction if rule.scatters => Exchange::ReduceScatter,
            CollectiveSource::Reduction => Exchange::AllReduce,
            CollectiveSource::Members if rule.exchanges_parts() => Exchange::AllToAll,
            CollectiveSource::Members => Exchange::AllGather,
            CollectiveSource::Rows => Exchange::AllToAll,
            CollectiveSource::Root => Exchange::Broadcast,
            CollectiveSource::Pair => Exchange::Permute,
        }
    }

    /// Returns the bytes that one of `n_members` sends, for each byte of the larger side of the exchange. Reductions are those of
    /// the ring algorithms (Patarasuk and Yuan 2009).
    pub fn sent_share(self, n_members: f64) -> f64 {
        let others = (n_members - 1.0) / n_members;
        match self {
            Exchange::AllReduce => 2.0 * others,
            Exchange::ReduceScatter | Exchange::AllGather | Exchange::AllToAll => others,
            Exchange::Broadcast => f64::from(n_members > 1.0),
            Exchange::Permute => 1.0,
        }
    }

    /// Returns the opcode that does it.
    pub const fn opcode(self) -> Opcode {
        match self {
            Exchange::AllReduce => Opcode::AllReduce,
            Exchange::ReduceScatter => Opcode::ReduceScatter,
            Exchange::AllGather => Opcode::AllGather,
            Exchange::AllToAll => Opcode::AllToAll,
            Exchange::Permute => Opcode::CollectivePermute,
            Exchange::Broadcast => Opcode::CollectiveBroadcast,
        }
    }
}

impl Network {
    /// Returns the cost of an exchange among disjoint `groups`, or along `pairs`, of flat device ids. The cost is a function of
    /// the bytes of the larger of what one device puts in and what it gets.
    pub fn exchange(&self, exchange: Exchange, groups: &[Vec<u32>], pairs: &[(u32, u32)]) -> CollectiveCost {
        match exchange {
            Exchange::AllReduce => self.collective(Collective::AllReduce, groups),
            Exchange::ReduceScatter => self.collective(Collective::ReduceScatter, groups),
            Exchange::AllGather => self.collective(Collective::AllGather, groups),
            Exchange::Broadcast => self.collective(Collective::Broadcast, groups),
            Exchange::AllToAll => self.all_to_all(groups),
            Exchange::Permute => self.permute(pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_reduce_sends_what_its_two_halves_send() {
        for n in [1.0, 2.0, 3.0, 8.0, 1000.0] {
            let halves = Exchange::ReduceScatter.sent_share(n) + Exchange::AllGather.sent_share(n);
            assert!((Exchange::AllReduce.sent_share(n) - halves).abs() < 1e-12, "{n}");
        }
        assert_eq!(Exchange::AllReduce.sent_share(8.0), 1.75);
        assert_eq!(Exchange::Broadcast.sent_share(1.0), 0.0);
    }
}
