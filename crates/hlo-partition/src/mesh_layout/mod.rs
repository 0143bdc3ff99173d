//! Named dims, and layouts of them on a mesh, after Mesh-TensorFlow.
//!
//! - [`classes`]: which dims of all values are one; [`names`]: what they are called;
//! - [`layout`]: which axis cuts which class, and whether that is legal.
//!
//! Reference: Shazeer et al., *Mesh-TensorFlow: Deep Learning for Supercomputers*, 2018, §4 to §6.

pub(crate) mod auto;
pub(crate) mod classes;
mod facts;
pub(crate) mod forecast;
pub(crate) mod layout;
pub(crate) mod names;
pub(crate) mod parts;
mod path;
pub(crate) mod search;
pub(crate) mod text;

pub use facts::{DimFact, DimFactPlace, find_dims};
