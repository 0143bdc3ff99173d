//! Which well-known reduction a reducer computation is: see [`hlo_ir::monoid`].

pub use hlo_ir::monoid::{Monoid as Reducer, find_monoid as find_reducer};
