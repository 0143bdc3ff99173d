//! Runs a plan without a graphics processor: the same steps and the same kernels, compiled by the system's C++ compiler.
//!
//! Streams are not modelled: every step is done when it was issued. Kernels are what is emitted for the device, unchanged;
//! products and collectives are written here.

mod cache;
pub(crate) mod collective;
mod compile;
mod gemm;
mod library;
pub(crate) mod memory;
mod run;

pub use cache::KernelCache;
pub use library::Library;
pub use memory::Block;
pub use run::HostProgram;
