//! Runs a plan: a thread for each device of this process walks the plan's steps, and all devices meet where they communicate.
//!
//! What a device is stands behind one trait, [`Device`]: memory of this process with kernels compiled by the C++ compiler
//! ([`crate::host`]), or a graphics processor ([`crate::cuda`]). Everything else is here and the same for both: the order
//! of steps, events between streams, loops and branches with their decisions, checks, and the [`Meeting`] at which the
//! devices of this process, and of other processes ([`crate::ranks`]), exchange bytes.

mod finite;
mod meeting;
mod steps;

pub use meeting::Meeting;

use std::ops::Range;

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
}

/// What one device of this process can do. Work is issued in order on streams and may end later; [`Device::read`] and
/// [`Device::finish`] wait for it.
pub trait Device {
    /// A point in a stream.
    type Event;

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

/// Runs a plan once on the devices of this process. `inputs` are theirs alone: `[device of this process][leaf]`.
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
) -> Result<Vec<OutputBytes>, ExecutionError> {
    let devices = meeting.devices();
    if inputs.len() != devices.len() {
        return Err(misfit(format!("expected inputs for {} devices, found {}", devices.len(), inputs.len())));
    }
    backend.check(devices.len())?;
    let outcomes: Vec<Result<OutputBytes, ExecutionError>> = std::thread::scope(|scope| {
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
    outcomes.into_iter().collect()
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
) -> Result<OutputBytes, ExecutionError> {
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
) -> Result<OutputBytes, ExecutionError> {
    for (&buffer, literal) in plan.parameters.iter().zip(leaves) {
        device.write(buffer, &to_memory(literal, &plan.buffers[buffer].shape)?)?;
    }
    steps::Walk::new(plan, meeting, id, options).run(device)?;
    let outputs = plan.outputs.iter().map(|&buffer| device.read(buffer)).collect();
    // No device may go away while another still reads from it.
    meeting.meet(id, "the end", Vec::new(), Ok)?;
    outputs
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
