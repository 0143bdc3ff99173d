//! Ops as other ops: what a batch norm is in reductions and elementwise operations, and the [`Writer`] of such forms.

mod batch_norm;
mod writer;

pub use batch_norm::expand_batch_norm;
pub use writer::Writer;
