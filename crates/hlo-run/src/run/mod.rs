//! Runs a plan: a thread for each device of this process walks the plan's steps, and all devices meet where they communicate.
//!
//! What a device is stands behind one trait, [`Device`]: memory of this process with kernels compiled by the C++ compiler
//! ([`crate::host`]), or a graphics processor ([`crate::cuda`]). Everything else is here and the same for both: the order
//! of steps, events between streams, loops and branches with their decisions, checks, and the [`Meeting`] at which the
//! devices of this process, and of other processes ([`crate::ranks`]), exchange bytes.

mod finite;
mod meeting;
mod segments;
mod session;
mod steps;

pub use meeting::Meeting;
pub use session::{Session, with_session};

use std::ops::Range;
use std::sync::Arc;

use hlo_ir::Literal;

use crate::ExecutionError;
use crate::memory_order::from_memory;
use crate::ranks::Ranks;
use hlo_gpu::plan::{BufferId, CollectiveCall, Gemm, KernelId, Plan, Stream};

/// What is looked at after each step of the plan.
#[derive(Clone, Copy, Default, Debug)]
pub struct Watch {
    /// Read what it wrote and stop at the first value that is not finite.
    pub check_finite: bool,
    /// Wait until it is done, so that an error names the step that made it.
    pub sync: bool,
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct ExecutionOptions {
    /// What is looked at.
    pub watch: Watch,
    /// How often the program is run in each run, each time on the state that the time before left.
    pub n_steps: u32,
    /// Runs after the first, with the same inputs, for their times.
    pub n_extra_runs: u32,
    /// After the runs, one more step whose parts are timed one by one.
    pub times_steps: bool,
}

impl Default for ExecutionOptions {
    fn default() -> ExecutionOptions {
        ExecutionOptions { watch: Watch::default(), n_steps: 1, n_extra_runs: 0, times_steps: false }
    }
}

/// What a run gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// The outputs of the devices of this process, of the last run's last step.
    pub outputs: Vec<OutputBytes>,
    /// Seconds of each run on the slowest device of this process: from the first launch to the end of all work, without
    /// the copies of inputs and outputs. The first run is slower than others: libraries choose their algorithms in it.
    pub run_seconds: Vec<f64>,
    /// How many steps each run took.
    pub n_steps: u32,
    /// Where [`ExecutionOptions::times_steps`] asks: the seconds of each step of the plan on the slowest device.
    pub step_seconds: Vec<f64>,
}

/// What one device of this process can do. Work is issued in order on streams and may end later; [`Device::read`] and
/// [`Device::finish`] wait for it.
pub trait Device {
    /// A point in a stream.
    type Event;
    /// A point in a stream whose time is kept.
    type Mark;
    /// Steps of the compute stream that are launched as one.
    type Recording;

    /// Fills a buffer before any step runs.
    ///
    /// # Errors
    /// The bytes do not fit the buffer, or the device fails.
    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), ExecutionError>;

    /// The bytes of a buffer after all work issued so far.
    ///
    /// # Errors
    /// The device fails, in this work or in earlier.
    fn read(&mut self, buffer: BufferId) -> Result<Vec<u8>, ExecutionError>;

    /// Launches a kernel.
    ///
    /// # Errors
    /// The launch is refused.
    fn launch(&mut self, stream: Stream, kernel: KernelId, arguments: &[BufferId]) -> Result<(), ExecutionError>;

    /// A matrix product.
    ///
    /// # Errors
    /// The product is refused.
    fn gemm(&mut self, stream: Stream, gemm: &Gemm) -> Result<(), ExecutionError>;

    /// Copies all bytes of a buffer.
    ///
    /// # Errors
    /// The buffers differ in size, or the device fails.
    fn copy(&mut self, stream: Stream, from: BufferId, to: BufferId) -> Result<(), ExecutionError>;

    /// Sets every byte of a buffer.
    ///
    /// # Errors
    /// The device fails.
    fn fill(&mut self, stream: Stream, to: BufferId, byte: u8) -> Result<(), ExecutionError>;

    /// This device's part in a collective. Every device of every process calls it, in the same order.
    ///
    /// # Errors
    /// Another device failed or was lost; the elements cannot be reduced.
    fn collective(&mut self, stream: Stream, name: &str, call: &CollectiveCall) -> Result<(), ExecutionError>;

    /// Marks the point that the stream has reached.
    ///
    /// # Errors
    /// The device fails.
    fn record(&mut self, stream: Stream) -> Result<Self::Event, ExecutionError>;

    /// Lets the stream wait until a point of another stream is reached.
    ///
    /// # Errors
    /// The device fails.
    fn wait(&mut self, stream: Stream, event: &Self::Event) -> Result<(), ExecutionError>;

    /// Marks the point that the stream has reached, with the time at which it is reached.
    ///
    /// # Errors
    /// The device fails.
    fn mark(&mut self, stream: Stream) -> Result<Self::Mark, ExecutionError>;

    /// Seconds between two marks of one stream whose work has ended.
    ///
    /// # Errors
    /// The device fails.
    fn seconds_between(&mut self, before: &Self::Mark, after: &Self::Mark) -> Result<f64, ExecutionError>;

    /// Whether steps can be recorded: launches, products, copies and fills on the compute stream.
    fn can_record(&self) -> bool;

    /// From now on what is issued on the compute stream is recorded and not done.
    ///
    /// # Errors
    /// The device fails, or cannot record.
    fn begin_recording(&mut self) -> Result<(), ExecutionError>;

    /// Ends what [`Device::begin_recording`] began.
    ///
    /// # Errors
    /// The device refuses what was issued since.
    fn end_recording(&mut self) -> Result<Self::Recording, ExecutionError>;

    /// Issues all that was recorded, on the compute stream.
    ///
    /// # Errors
    /// The launch is refused.
    fn replay(&mut self, recording: &Self::Recording) -> Result<(), ExecutionError>;

    /// Waits for all work issued so far.
    ///
    /// # Errors
    /// The device failed in it.
    fn finish(&mut self) -> Result<(), ExecutionError>;
}

/// A plan made ready for a kind of device.
pub trait Backend: Sync {
    /// That device.
    type Device<'m>: Device
    where
        Self: 'm;

    /// The plan.
    fn plan(&self) -> &Plan;

    /// Looks whether so many devices of this process can be made ready, before any of them is.
    ///
    /// # Errors
    /// They need more than there is.
    fn check(&self, _n_devices: usize) -> Result<(), ExecutionError> {
        Ok(())
    }

    /// Makes a device ready, in the thread that uses it: `id` is its flat id.
    ///
    /// # Errors
    /// There is no such device, or not enough memory on it.
    fn open<'m>(&'m self, id: u32, meeting: &'m Meeting<'m>) -> Result<Self::Device<'m>, ExecutionError>;
}

/// The bytes of the outputs of one device, `[leaf]`, in the layouts that the plan says.
pub type OutputBytes = Vec<Vec<u8>>;

/// Runs a plan on the devices of this process. `inputs` are theirs alone: `[device of this process][leaf]`.
/// The result has the outputs of the same devices.
///
/// # Errors
/// Inputs that do not fit the plan's parameters; a step that fails on a device, here or in another process; a value that is
/// not finite where [`Watch::check_finite`] asks; several steps of a plan that uses up its inputs ([`Session::steps`]).
pub fn run<B: Backend>(
    backend: &B,
    meeting: &Meeting<'_>,
    inputs: &[Vec<Arc<Literal>>],
    options: ExecutionOptions,
) -> Result<Finished, ExecutionError> {
    with_session(backend, meeting, options.watch, |session| {
        let mut run_seconds = Vec::new();
        for _ in 0..=options.n_extra_runs {
            session.write(inputs)?;
            run_seconds.push(session.steps(options.n_steps)?);
        }
        let outputs = session.outputs()?;
        let mut step_seconds = Vec::new();
        if options.times_steps {
            session.write(inputs)?;
            step_seconds = session.timed_step()?;
        }
        Ok(Finished { outputs, run_seconds, n_steps: options.n_steps, step_seconds })
    })
}

fn misfit(reason: String) -> ExecutionError {
    ExecutionError::Host { what: "inputs".to_string(), reason }
}

/// The outputs of some devices as arrays: `[device][leaf]`.
///
/// # Errors
/// The bytes do not fit the plan's outputs.
pub fn arrays(plan: &Plan, outputs: &[OutputBytes]) -> Result<Vec<Vec<Literal>>, ExecutionError> {
    let of_device = |leaves: &OutputBytes| {
        let leaves = plan.outputs.iter().zip(leaves);
        leaves.map(|(&buffer, bytes)| from_memory(bytes, &plan.buffers[buffer].shape)).collect()
    };
    outputs.iter().map(of_device).collect()
}

/// Brings the outputs of all ranks to rank 0; the others are left with none.
///
/// # Errors
/// A rank was lost or failed.
pub fn gather(plan: &Plan, ranks: &Ranks, outputs: &[OutputBytes]) -> Result<Vec<OutputBytes>, ExecutionError> {
    let gathered = ranks.gather("outputs", outputs.iter().map(|leaves| leaves.concat()).collect())?;
    let split = |bytes: &Vec<u8>| {
        let mut rest = bytes.as_slice();
        let leaf = |&buffer: &BufferId| {
            let size = plan.buffers[buffer].shape.memory_bytes() as usize;
            let (leaf, tail) = rest.split_at_checked(size)?;
            rest = tail;
            Some(leaf.to_vec())
        };
        let leaves: Option<OutputBytes> = plan.outputs.iter().map(leaf).collect();
        leaves.ok_or_else(|| ExecutionError::Ranks {
            reason: "expected the outputs of a device, found fewer bytes".into(),
        })
    };
    gathered.iter().map(split).collect()
}

/// The flat ids of all devices of a plan.
pub fn all_devices(plan: &Plan) -> Range<u32> {
    0..plan.n_replicas.max(1) * plan.n_partitions.max(1)
}
