//! The collectives and what they cost: one line `latency + bytes · seconds per byte` for each algorithm.

use std::fmt;

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    Reduce,
    Broadcast,
}

impl Collective {
    /// All of them, in the order of the paper's figure.
    pub const ALL: [Collective; 5] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Reduce,
        Collective::Broadcast,
    ];

    /// Its name, as in `AllReduce`.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "AllReduce",
            Collective::ReduceScatter => "ReduceScatter",
            Collective::AllGather => "AllGather",
            Collective::Reduce => "Reduce",
            Collective::Broadcast => "Broadcast",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a collective moves its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Algo {
    /// One ring through the devices of a group, in the order of their ids; reduce and broadcast: a chain.
    Ring,
    /// All-reduce: chains inside the nodes, a double binary tree between them; everything else as [`Algo::Ring`].
    Tree,
    /// All-reduce, reduce-scatter and all-gather over whole lines of a torus: dim by dim, all dims and both directions
    /// at once; everything else as [`Algo::Ring`].
    Torus,
    /// The fastest of the others for the size at hand.
    Auto,
}

/// The cost of one algorithm.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostLine {
    /// Which algorithm.
    pub algo: Algo,
    /// Time for an empty message, in seconds.
    pub latency_s: f64,
    /// Time for each further byte, in seconds.
    pub s_per_byte: f64,
}

/// The cost of a collective on given groups as a function of its size: the lowest of some lines.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectiveCost {
    lines: Vec<CostLine>,
}

impl CollectiveCost {
    pub(crate) fn new(lines: Vec<CostLine>) -> CollectiveCost {
        CollectiveCost { lines }
    }

    /// The line of each algorithm that was allowed; none if there is nothing to do.
    pub fn lines(&self) -> &[CostLine] {
        &self.lines
    }

    /// Predicted time in seconds; what `bytes` means is said at [`Cluster::collective_s`](crate::Cluster::collective_s).
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.fastest(bytes).map_or(0.0, |(_, s)| s)
    }

    /// The fastest algorithm for this size and its time in seconds; none if there is nothing to do.
    pub fn fastest(&self, bytes: f64) -> Option<(Algo, f64)> {
        self.lines
            .iter()
            .map(|line| (line.algo, line.latency_s + bytes * line.s_per_byte))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
}
