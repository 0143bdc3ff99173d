//! The vocabulary of per-device programs, for all pass families and back ends.
//!
//! A per-device program is one that every device runs on its own part of the data, with collectives where devices exchange
//! data. Pass families may not import each other, so what two of them need to read or write such programs stands here:
//!
//! - what a number is on each device: [`find_device_values`];
//! - what a collective does, however it is written: [`find_all_reduce`], [`check_free`];
//! - the scalar that an array repeats, and scalings by it: [`find_splat`], [`find_scaling`];
//! - one computation under change: [`Rewrite`];
//! - the record that explains a collective in a report: [`CollectiveChange`].

mod collective;
mod device_values;
mod record;
mod rewrite;
mod scaling;

pub use collective::{ASYNC, AllReduce, array, check_free, find_all_reduce, is_async_collective};
pub use device_values::find_device_values;
pub use record::CollectiveChange;
pub use rewrite::{DependsOnItself, Rewrite};
pub use scaling::{Scaling, Splat, find_scaling, find_splat, is_floating};
