//! The parallel operators on simulated devices: a value is an array for each device.

mod array;
mod identities;
mod movements;
mod number;
mod passing;
#[path = "../random/mod.rs"]
mod random;

/// Sizes of an axis.
const AXES: [u64; 4] = [2, 3, 4, 6];
