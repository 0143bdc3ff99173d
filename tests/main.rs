//! One test binary for everything that needs more than one crate.

mod cli;
mod decompose;
mod equivalence;
mod frequencies;
mod generator;
mod interface;
mod lockstep;
mod memory;
mod memory_twin;
mod passes;
mod placement_proof;
mod plan;
mod promises;
mod random_collectives;
mod random_passes;
mod random_steps;
mod readme;
mod reduction_programs;
mod replication_property;
mod replication_samples;
mod replication_scale;
mod roundtrip;
mod run_plan;
mod sharded_loops;
mod weight_update;
mod weight_update_scale;
