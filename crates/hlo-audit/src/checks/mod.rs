//! The checks, one file each.

mod added_all_reduces;
mod all_reduce_in_loop;
mod collectives_in_flight;
mod combinable_collectives;
mod donation_missed;
mod full_rematerialization;
mod gathered_statistics;
mod loop_invariant_collective;
mod missing_all_reduce;
mod one_device_collective;
mod redundant_all_reduce;
mod repeated_all_gather;
mod repeated_work;
mod replicated_state;
mod sliced_all_gather;
mod sliced_all_reduce;
mod unused_collective;
mod wide_collective;

use crate::finding::CheckInfo;

/// Every check: faults, then advice.
pub const CHECKS: &[&CheckInfo] = &[
    &missing_all_reduce::INFO,
    &all_reduce_in_loop::INFO,
    &redundant_all_reduce::INFO,
    &sliced_all_gather::INFO,
    &full_rematerialization::INFO,
    &repeated_work::INFO,
    &gathered_statistics::INFO,
    &unused_collective::INFO,
    &added_all_reduces::INFO,
    &sliced_all_reduce::INFO,
    &repeated_all_gather::INFO,
    &loop_invariant_collective::INFO,
    &wide_collective::INFO,
    &combinable_collectives::INFO,
    &collectives_in_flight::INFO,
    &one_device_collective::INFO,
    &replicated_state::INFO,
    &donation_missed::INFO,
];
