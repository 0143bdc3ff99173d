//! Predicted time of ring collectives on a flat set of equal links, and of streaming memory.
//!
//! The usual ring model (Thakur, Rabenseifner, Gropp 2005, *Optimization of Collective Communication Operations in
//! MPICH*, §3–4): with `n` devices, `B` bytes and one link of `bw` bytes/s and `α` seconds per step,
//! reduce-scatter and all-gather take `(n-1)·α + (n-1)/n · B/bw`, all-reduce twice that. It says which of two plans is cheaper;
//! its default numbers are nominal, not measurements of any machine.

/// One machine, as three numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CommModel {
    /// Bandwidth of one device's link, in and out, bytes per second.
    pub link_bytes_per_s: f64,
    /// Latency of one step of the ring, in nanoseconds.
    pub step_latency_ns: f64,
    /// Memory bandwidth of one device, bytes per second.
    pub memory_bytes_per_s: f64,
}

/// A collective whose time can be predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Ring {
    AllReduce,
    ReduceScatter,
    AllGather,
}

impl CommModel {
    /// Time of a collective over `n` devices, in nanoseconds; `bytes` is the whole (unscattered, gathered) tensor.
    pub fn collective_ns(&self, ring: Ring, bytes: u64, n: usize) -> f64 {
        if n < 2 {
            return 0.0;
        }
        let steps = (n - 1) as f64;
        let once = steps * self.step_latency_ns + steps / n as f64 * bytes as f64 / self.link_bytes_per_s * 1e9;
        match ring {
            Ring::AllReduce => 2.0 * once,
            Ring::ReduceScatter | Ring::AllGather => once,
        }
    }

    /// Time to read or write `bytes` once, in nanoseconds.
    pub fn memory_ns(&self, bytes: f64) -> f64 {
        bytes / self.memory_bytes_per_s * 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_reduce_costs_a_reduce_scatter_and_an_all_gather() {
        let model = CommModel { link_bytes_per_s: 1e9, step_latency_ns: 10.0, memory_bytes_per_s: 1e12 };
        let (all_reduce, half) =
            (model.collective_ns(Ring::AllReduce, 8000, 8), model.collective_ns(Ring::ReduceScatter, 8000, 8));
        assert_eq!(half, 70.0 + 7000.0);
        assert_eq!(all_reduce, 2.0 * half);
        assert_eq!(model.collective_ns(Ring::AllGather, 8000, 1), 0.0);
        assert_eq!(model.memory_ns(1000.0), 1.0);
    }
}
