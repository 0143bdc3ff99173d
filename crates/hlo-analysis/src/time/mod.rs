//! Predicted times: the one place that says how long work takes on a machine.
//!
//! A kernel takes its launch and the longer of its memory traffic and its arithmetic (the roofline; Williams, Waterman and
//! Patterson 2009). A collective takes what the cluster model says for its groups. The figures tell which of two plans is
//! cheaper; they are no measurements.

mod machine;

pub use machine::{DEFAULT_DEVICE, DEFAULT_GBYTES_PER_S, KernelWork, Machine, Network, SizeMismatch};
