//! Collectives beside other work: as pairs of a start and an end, in an order in which something stands between the two.
//!
//! [`make_async`] makes the pairs, [`schedule_collectives`] the order. Both keep the rule of [`hlo_analysis::in_flight`]: no two collectives
//! are in flight at once that share more than one device.

pub(crate) mod make_async;
mod order;
mod pairs;
pub(crate) mod schedule_collectives;
