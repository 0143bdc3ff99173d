//! Runs a plan: a thread for each device of this process walks the plan's steps, and all devices meet where they communicate.
//!
//! What a device is stands behind one trait, [`Device`]: memory of this process with kernels compiled by the C++ compiler
//! ([`crate::host`]), or a graphics processor ([`crate::cuda`]). Everything else is here and the same for both: the order
//! of steps, events between streams, loops and branches with their decisions, checks, and the [`Meeting`] at which the
//! devices of this process, and of other processes ([`crate::ranks`]), exchange bytes.

mod finite;
mod meeting;
mod segments;
mod steps;

pub use meeting::Meeting;

use std::ops::Range;
use std::time::Instant;

use hlo_ir::Literal;

use crate::ExecutionError;
use crate::memory_order::{from_memory, to_memory};
use crate::ranks::Ranks;
use hlo_gpu::plan::{BufferId, CollectiveCall, Gemm, KernelId, Plan, Stream};

/// Stack of a device's thread; kernels on the host may hold arrays there.
const STACK_BYTES: usize = 16 << 20;

/// How to run.
#[derive(Clone, Copy, Default, Debug)]
pub struct ExecutionOptions {
    /// After each step, read what it wrote and stop at the first value that is not finite.
    pub check_finite: bool,
    /// After each step, wait until it is done, so that an error names the step that made it.
    pub sync: bool,
    /// Runs after the first, with the same inputs, for their times.
    pub n_extra_runs: u32,
    /// After the runs, one more whose steps are timed one by one.
    pub times_steps: bool,
}

/// What a run gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// The outputs of the devices of this process, of the last run.
    pub outputs: Vec<OutputBytes>,
    /// Seconds of each run on the slowest device of this process: from the first step's issue to the end of all work, without
    /// the copies of inputs and outputs. The first run is slower than others: libraries choose their algorithms in it.
    pub run_seconds: Vec<f64>,
    /// Where [`ExecutionOptions::times_steps`] asks: the seconds of each step of the plan on the slowest device.
    pub step_seconds: Vec<f64>,
}

/// What one device gave.
#[derive(Default)]
struct DeviceFinished {
    outputs: OutputBytes,
    run_seconds: Vec<f64>,
    step_seconds: Vec<f64>,
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
/// not finite where [`ExecutionOptions::check_finite`] asks.
pub fn run<B: Backend>(
    backend: &B,
    meeting: &Meeting<'_>,
    inputs: &[Vec<Literal>],
    options: ExecutionOptions,
) -> Result<Finished, ExecutionError> {
    let devices = meeting.devices();
    if inputs.len() != devices.len() {
        return Err(misfit(format!("expected inputs for {} devices, found {}", devices.len(), inputs.len())));
    }
    backend.check(devices.len())?;
    let outcomes: Vec<Result<DeviceFinished, ExecutionError>> = std::thread::scope(|scope| {
        let spawn = |id: u32| {
            let leaves = inputs.get((id - devices.start) as usize).map(Vec::as_slice).unwrap_or_default();
            let body = move || {
                let outcome = run_device(backend, meeting, id, leaves, options);
                outcome.inspect_err(|error| meeting.fail(error))
            };
            std::thread::Builder::new().name(format!("device {id}")).stack_size(STACK_BYTES).spawn_scoped(scope, body)
        };
        let threads: Vec<_> = devices.clone().map(spawn).collect();
        if let Some(Err(error)) = threads.iter().find(|thread| thread.is_err()) {
            let reason = format!("expected a thread for each of {} devices: {error}", devices.len());
            meeting.fail(&ExecutionError::Host { what: "threads".to_string(), reason });
        }
        let crashed = || {
            let error =
                ExecutionError::Host { what: "run".to_string(), reason: "a device's thread crashed".to_string() };
            meeting.fail(&error);
            Err(error)
        };
        threads.into_iter().flatten().map(|thread| thread.join().unwrap_or_else(|_| crashed())).collect()
    });
    // The first failure is the cause; the others are its consequences.
    meeting.check()?;
    let mut finished = Finished { outputs: Vec::new(), run_seconds: Vec::new(), step_seconds: Vec::new() };
    for outcome in outcomes {
        let device = outcome?;
        finished.outputs.push(device.outputs);
        slowest(&mut finished.run_seconds, &device.run_seconds);
        slowest(&mut finished.step_seconds, &device.step_seconds);
    }
    Ok(finished)
}

/// Keeps the larger of both at each place.
fn slowest(kept: &mut Vec<f64>, others: &[f64]) {
    kept.resize(kept.len().max(others.len()), 0.0);
    kept.iter_mut().zip(others).for_each(|(kept, other)| *kept = kept.max(*other));
}

fn misfit(reason: String) -> ExecutionError {
    ExecutionError::Host { what: "inputs".to_string(), reason }
}

fn run_device<B: Backend>(
    backend: &B,
    meeting: &Meeting<'_>,
    id: u32,
    leaves: &[Literal],
    options: ExecutionOptions,
) -> Result<DeviceFinished, ExecutionError> {
    let plan = backend.plan();
    if leaves.len() != plan.parameters.len() {
        return Err(misfit(format!("expected {} arrays, found {}", plan.parameters.len(), leaves.len())));
    }
    let mut device = backend.open(id, meeting)?;
    let outcome = work(plan, meeting, &mut device, id, leaves, options);
    // Before the device goes away: it must know whether others may wait for it in vain.
    outcome.inspect_err(|error| meeting.fail(error))
}

/// From the inputs to the outputs on one device.
fn work<D: Device>(
    plan: &Plan,
    meeting: &Meeting<'_>,
    device: &mut D,
    id: u32,
    leaves: &[Literal],
    options: ExecutionOptions,
) -> Result<DeviceFinished, ExecutionError> {
    let mut finished = DeviceFinished::default();
    let mut walk = steps::Walk::new(plan, meeting, id, options);
    for _ in 0..=options.n_extra_runs {
        write(plan, device, leaves)?;
        meeting.meet(id, "the start of a run", Vec::new(), Ok)?;
        let start = Instant::now();
        walk.run(device)?;
        finished.run_seconds.push(start.elapsed().as_secs_f64());
        // Nobody overwrites or frees what another device still reads.
        meeting.meet(id, "the end of a run", Vec::new(), Ok)?;
    }
    if options.times_steps {
        write(plan, device, leaves)?;
        finished.step_seconds = walk.run_timed(device)?;
        meeting.meet(id, "the end of a run", Vec::new(), Ok)?;
    }
    finished.outputs = plan.outputs.iter().map(|&buffer| device.read(buffer)).collect::<Result<_, _>>()?;
    Ok(finished)
}

fn write<D: Device>(plan: &Plan, device: &mut D, leaves: &[Literal]) -> Result<(), ExecutionError> {
    let mut leaves = plan.parameters.iter().zip(leaves);
    leaves.try_for_each(|(&buffer, literal)| device.write(buffer, &to_memory(literal, &plan.buffers[buffer].shape)?))
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
            let size = plan.buffers[buffer].shape.size_bytes() as usize;
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
