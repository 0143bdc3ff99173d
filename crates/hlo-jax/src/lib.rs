//! The Python package `hlo_opt`: HLO modules as objects, the command line, and what the stage inside JAX asks of the compiler.
//!
//! Without the feature `extension-module` the crate has [`tool`] and [`words`] alone, and needs no Python. `pip install ./crates/hlo-jax` builds
//! the rest.

pub mod tool;
pub mod words;

#[cfg(feature = "extension-module")]
mod hook;
#[cfg(feature = "extension-module")]
mod module;
#[cfg(feature = "extension-module")]
mod python;
