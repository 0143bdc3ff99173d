//! From a global program with a few annotations to the program of each device.
//!
//! - [`ModuleMesh`]: the prime axes (*atoms*) that all shardings of a module are lists of; [`ArraySharding`]: how one array is cut
//!   on them;
//! - [`find_dims`]: which dims of a program are one, and what they are called.

mod assign_mesh_layout;
mod error;
mod expand_batch_norms;
mod mesh;
mod mesh_layout;
mod prices;
mod propagate_shardings;
mod sharding;
mod spmd_partition;
mod strategies;

pub use error::PartitionError;
pub use mesh::{ModuleMesh, ReadSharding};
pub use mesh_layout::{DimFact, DimFactPlace, find_dims};
pub use sharding::{ArraySharding, Atom, AtomList};

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[
    &assign_mesh_layout::INFO,
    &expand_batch_norms::INFO,
    &propagate_shardings::INFO,
    &spmd_partition::INFO,
    &strategies::APPLY,
    &strategies::PROPAGATE,
    &strategies::SEARCH,
];
