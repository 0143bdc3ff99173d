//! Global programs: one logical program, whose shapes are those of whole values, and whose manual regions run on each device.
//!
//! A global program has one set of inputs and one of results. It runs on all its devices in lockstep. All of them hold the same whole values
//! outside of manual regions, which the engine therefore computes once; so a program without regions costs what it costs on one device.

mod manual;
mod program;
mod tiled;

pub use manual::find_manual_region;
pub use program::{GlobalProgram, WholeOutputs};
pub use tiled::{LeafTiles, TiledInterface};
