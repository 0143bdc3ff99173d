//! The vocabulary of per-device programs, for all pass families and back ends.
//!
//! A per-device program is one that every device runs on its own part of the data, with collectives where devices exchange
//! data. Pass families may not import each other, so what two of them need to read or write such programs stands here:
//!
//! - what a number is on each device: [`find_device_values`], and values that some devices hold alone: [`find_masked`];
//! - what a collective does, however it is written: [`find_all_reduce`];
//! - what keeps a pass from changing an instruction: [`check_free`], [`Obstacle`];
//! - the scalar that an array repeats, and scalings by it: [`find_splat`], [`find_scaling`];
//! - which device this is: [`DeviceIds`];
//! - how a cut goes through an op: [`DimRelation`];
//! - how an array is cut: [`ShardFormat`]; cutting, joining and reducing into shards: [`ShardBuilder`];
//! - over which devices a value may be cut: [`groupings`];
//! - the cheapest way from one sharding of an array to another: [`redistribution`];
//! - who takes part in a new collective, on which channel: [`GroupAttrs`], [`ChannelIds`];
//! - several arrays side by side in one: [`Packing`]; a collective of several as one for each: [`split_tuples`](split_tuples());
//! - new instructions: [`Appender`]; one computation under change: [`Rewrite`];
//! - a computation of its own for every call site: [`CallSiteCopies`];
//! - the record that explains a collective in a report: [`CollectiveChange`].

mod append;
mod call_sites;
mod collective;
mod device_ids;
mod device_values;
mod error;
mod format;
mod group_attrs;
mod grouping;
mod masked;
mod obstacle;
mod own_slice;
pub mod packing;
mod rebuild;
mod record;
pub mod redistribution;
mod relation;
mod rewrite;
mod scaling;
mod shards;
mod split_tuples;

pub use append::Appender;
pub use call_sites::{CallSiteCopies, KeptCopy, MergedCopies};
pub use collective::{AllReduce, array, check_free, find_all_reduce, is_async_collective};
pub use device_ids::{DeviceIds, DeviceTables};
pub use device_values::find_device_values;
pub use error::SpmdError;
pub use format::{DimRun, EvenSplit, ShardFormat, local_shape};
pub use group_attrs::{ChannelIds, GroupAttrs};
pub use grouping::{Grouping, groupings};
pub use masked::{Masked, find_masked};
pub use obstacle::Obstacle;
pub use own_slice::{NoOwnSlice, OwnSlice, find_own_slice};
pub use packing::Packing;
pub use rebuild::{is_broadcast, is_rebuilt};
pub use record::CollectiveChange;
pub use relation::{DimRelation, OperandCut, ResultCut, shard_attrs, with_shard_size};
pub use rewrite::{DependsOnItself, Rewrite};
pub use scaling::{Scaling, Splat, find_scaling, find_splat, is_floating};
pub use shards::{Joined, Scattered, ShardBuilder};
pub use split_tuples::{TupleCollective, split_tuples, takes_several};
