//! The HLO intermediate representation: shapes, literals, the op table, the module graph, printer and verifier.

pub mod dtype;

pub use dtype::{DType, NumberClass};
