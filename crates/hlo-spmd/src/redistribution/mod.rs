//! How an array goes from one sharding to another with the least time, or the fewest bytes.
//!
//! A state is where each prime axis of the mesh is: on a segment of a dim, free (the value is replicated along it) or partial (the
//! value is yet to be reduced along it). Steps are slices, all-gathers, all-to-alls of several axes at once, permutes to any state
//! of equal tiles, reduce-scatters and all-reduces; [`plan_redistribution`] finds the cheapest with Dijkstra's algorithm. No state
//! on the way is larger than both ends. Beside it stand permutes of pieces of tiles, which come down to the lower bound
//! (the most bytes of a target tile that a device does not hold), and are taken where they are cheaper.
//!
//! Where source and target have different device orders, a permute comes first. Dims that are no multiple of their tiles are
//! padded; where tiles of source and target then end at different places, pieces of tiles are sent, whose sizes differ.

mod bound;
mod candidate;
mod constructive;
mod describe;
mod error;
mod greedy;
mod lower;
mod moves;
mod pieces;
mod plan;
mod price;
mod ranges;
mod route;
mod search;
mod space;
mod tile_builder;
mod write_blocks;

pub use candidate::RedistributionStep;
pub use error::{End, RedistributionError};
pub use greedy::GreedyPrices;
pub use plan::{Redistribution, RedistributionRequest, plan_redistribution};
pub use price::StepsPrice;
pub use ranges::{HeldParts, HeldRanges};

use hlo_mesh::Exchange;

/// Beyond so many atoms that move, a plan is constructed and not searched for.
const MOST_SEARCHED_ATOMS: usize = 6;

/// Steps between states that a search looks at before it gives up: counted in bytes, and priced on a cluster, which takes longer.
const MOST_SEARCHED_STEPS: [usize; 2] = [1_000_000, 60_000];

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StepKind {
    /// The source tile is padded to what even tiles need.
    Pad,
    /// A device keeps a part of its tile.
    Slice,
    /// Devices exchange tiles or parts of them: an all-to-all moves axes from dims to other dims, a permute whole tiles. No plan has a
    /// broadcast.
    Exchange(Exchange),
    /// Pieces of tiles go to the devices that want them.
    Pieces,
    /// The padding is dropped.
    Trim,
}

impl StepKind {
    /// Its name: a collective's opcode where it is one.
    pub fn name(self) -> &'static str {
        match self {
            StepKind::Pad => "pad",
            StepKind::Slice | StepKind::Trim => "slice",
            StepKind::Exchange(exchange) => exchange.opcode().name(),
            StepKind::Pieces => Exchange::Permute.opcode().name(),
        }
    }
}
