//! Runs launch plans: the `unsafe` code and the input and output of running.
//!
//! [`run`] walks a plan of `hlo-gpu` on every device of this process. A device is a graphics processor ([`GpuProgram`]), or
//! memory of this process with the same kernels, compiled by the system's C++ compiler ([`HostProgram`]). Several processes
//! can share the devices of a plan ([`Ranks`]).

mod cuda;
mod error;
mod host;
mod memory_order;
mod ranks;
mod run;

pub use cuda::{GpuOptions, GpuProgram, first_card_model};
pub use error::{ExecutionError, SeatError};
pub use host::{Block, HostProgram, KernelCache, Library};
pub use ranks::{OnStuck, Ranks, Seat, SeatFlags, Secret, describe_frames, local_rank, sign_frames};
pub use run::{
    Backend, Device, ExecutionOptions, Finished, Meeting, OutputBytes, Session, Watch, all_devices, arrays, gather,
    run, with_session,
};
