//! Predicted times of modules, with fusion and overlap. `hlo-mesh` says how long one kernel and one exchange take.
//!
//! A kernel takes its launch and the longer of its memory traffic and its arithmetic (the roofline; Williams, Waterman and
//! Patterson 2009). A collective takes what the cluster model says for its groups. A module takes the critical path over
//! lanes, one for kernels, one for collectives and one for asynchronous copies ([`predict`]). The figures tell which of two programs is faster; they are no
//! measurements.

mod clock;
mod kernel;
mod lanes;
mod members;
mod sort;
mod timeline;
mod units;

pub use clock::{ModuleTime, predict, predict_as_ordered, predict_starts, predict_timeline};
pub use kernel::{Updates, arithmetic_dtype, instruction_cost, product_slowdown, region_cost, unit};
pub use lanes::{Lane, TaskSpan, Tasks};
pub use members::{Members, exchanged_bytes, members_of};
pub use sort::{SORTED_HALVES, says_sorted_halves};
pub use timeline::Span;
