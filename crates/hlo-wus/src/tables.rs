//! Maps and sets in order of insertion, with a hash that is fast for ids. The order is never that of the hash.

use hlo_ir::names::FixedHash;

/// A map in order of insertion.
pub type IndexMap<K, V> = indexmap::IndexMap<K, V, FixedHash>;

/// A set in order of insertion.
pub type IndexSet<T> = indexmap::IndexSet<T, FixedHash>;
