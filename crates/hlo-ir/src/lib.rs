//! The HLO intermediate representation: shapes, literals, the op table, the module graph, printer and verifier.

pub mod attrs;
pub mod axes;
mod chunks;
pub mod collective;
pub mod cost;
pub mod custom_target;
pub mod devices;
pub mod diag;
pub mod dtype;
pub mod edit;
pub mod factors;
pub mod float;
pub mod groups;
pub mod header;
mod ids;
pub mod infer;
mod inst_map;
pub mod literal;
pub mod localize;
pub mod module;
pub mod monoid;
pub mod names;
pub mod op;
pub mod print;
pub mod shape;
pub mod sharding;
pub mod shardy;
pub mod tile_grid;
pub mod verify;
pub mod view;

pub use dtype::{DType, NumberClass};
pub use inst_map::InstMap;
pub use literal::{ConstantValue, Literal, Scalar};
pub use module::{CompId, Computation, InstId, Instruction, Module, TextForm};
pub use op::Opcode;
pub use shape::{ArrayShape, Dims, Layout, Shape, ShapeId};
