//! A device in this process's memory.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use hlo_ir::Literal;

use super::cache::KernelCache;
use super::library::Library;
use super::memory::{Constants, Memory, check_available};
use super::{collective, gemm};
use crate::ExecutionError;
use crate::run::{self, Backend, Device, ExecutionOptions, Meeting};
use hlo_gpu::plan::{BufferId, CollectiveCall, Gemm, KernelId, Plan, Stream};

/// A plan with its kernels compiled for the host.
pub struct HostProgram<'p> {
    plan: &'p Plan,
    library: Library,
    constants: Constants,
}

impl<'p> HostProgram<'p> {
    /// Compiles the kernels of a plan.
    ///
    /// # Errors
    /// As [`Library::new`].
    pub fn new(plan: &'p Plan) -> Result<HostProgram<'p>, ExecutionError> {
        HostProgram::with_cache(plan, KernelCache::default())
    }

    /// As [`HostProgram::new`], with the kernels kept for the next run or not.
    ///
    /// # Errors
    /// As [`Library::new`].
    pub fn with_cache(plan: &'p Plan, cache: KernelCache) -> Result<HostProgram<'p>, ExecutionError> {
        let library = Library::with_cache(plan.kernels.values(), None, cache)?;
        Ok(HostProgram { plan, library, constants: Constants::new(plan)? })
    }

    /// Runs the plan on all devices: `inputs[device][leaf]` to `[device][leaf]`.
    ///
    /// # Errors
    /// Inputs that do not fit the plan's parameters; a predicate that differs between devices; a buffer outside its place.
    pub fn run(&self, inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>, ExecutionError> {
        let meeting = Meeting::alone(run::all_devices(self.plan));
        let shared = |leaves: &Vec<Literal>| leaves.iter().cloned().map(Arc::new).collect();
        let inputs: Vec<Vec<Arc<Literal>>> = inputs.iter().map(shared).collect();
        let finished = run::run(self, &meeting, &inputs, ExecutionOptions::default())?;
        run::arrays(self.plan, &finished.outputs)
    }
}

impl Backend for HostProgram<'_> {
    type Device<'m>
        = HostDevice<'m>
    where
        Self: 'm;

    fn plan(&self) -> &Plan {
        self.plan
    }

    fn check(&self, n_devices: usize) -> Result<(), ExecutionError> {
        check_available(self.plan, n_devices)
    }

    fn open<'m>(&'m self, id: u32, meeting: &'m Meeting<'m>) -> Result<HostDevice<'m>, ExecutionError> {
        let memory = Memory::new(self.plan, &self.constants, id)?;
        Ok(HostDevice { plan: self.plan, library: &self.library, memory, meeting, id })
    }
}

/// One device of a [`HostProgram`]. Work is done when it is issued.
pub struct HostDevice<'m> {
    plan: &'m Plan,
    library: &'m Library,
    memory: Memory<'m>,
    meeting: &'m Meeting<'m>,
    /// Flat id.
    id: u32,
}

impl Device for HostDevice<'_> {
    type Event = ();
    type Mark = Instant;
    type Recording = Infallible;

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), ExecutionError> {
        let to = self.memory.bytes_mut(buffer)?;
        if to.len() != bytes.len() {
            let reason = format!("expected {} bytes, found {}", to.len(), bytes.len());
            return Err(ExecutionError::Host { what: self.plan.buffers[buffer].name.clone(), reason });
        }
        to.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, buffer: BufferId) -> Result<Vec<u8>, ExecutionError> {
        Ok(self.memory.bytes(buffer)?.to_vec())
    }

    fn launch(&mut self, _: Stream, kernel: KernelId, arguments: &[BufferId]) -> Result<(), ExecutionError> {
        let pointers: Result<Vec<_>, ExecutionError> =
            arguments.iter().map(|&argument| self.memory.pointer(argument)).collect();
        self.library.launch(&self.plan.kernels[kernel], &pointers?)
    }

    fn gemm(&mut self, _: Stream, product: &Gemm) -> Result<(), ExecutionError> {
        gemm::run(self.plan, &mut self.memory, product)
    }

    fn copy(&mut self, _: Stream, from: BufferId, to: BufferId) -> Result<(), ExecutionError> {
        let bytes = self.memory.bytes(from)?.to_vec();
        self.write(to, &bytes)
    }

    fn fill(&mut self, _: Stream, to: BufferId, byte: u8) -> Result<(), ExecutionError> {
        self.memory.bytes_mut(to)?.fill(byte);
        Ok(())
    }

    fn collective(&mut self, _: Stream, name: &str, call: &CollectiveCall) -> Result<(), ExecutionError> {
        let brought = collective::brought(&self.memory, call)?;
        let combine = |all: Vec<Vec<u8>>| collective::combine(self.plan, call, &all);
        let taken = self.meeting.meet(self.id, name, brought, combine)?;
        collective::take(self.plan, &mut self.memory, call, &taken)
    }

    fn record(&mut self, _: Stream) -> Result<(), ExecutionError> {
        Ok(())
    }

    fn wait(&mut self, _: Stream, (): &()) -> Result<(), ExecutionError> {
        Ok(())
    }

    fn mark(&mut self, _: Stream) -> Result<Instant, ExecutionError> {
        Ok(Instant::now())
    }

    fn seconds_between(&mut self, before: &Instant, after: &Instant) -> Result<f64, ExecutionError> {
        Ok(after.duration_since(*before).as_secs_f64())
    }

    fn can_record(&self) -> bool {
        false
    }

    fn begin_recording(&mut self) -> Result<(), ExecutionError> {
        Err(never_records())
    }

    fn end_recording(&mut self) -> Result<Infallible, ExecutionError> {
        Err(never_records())
    }

    fn replay(&mut self, recording: &Infallible) -> Result<(), ExecutionError> {
        match *recording {}
    }

    fn finish(&mut self) -> Result<(), ExecutionError> {
        self.meeting.check()
    }
}

fn never_records() -> ExecutionError {
    ExecutionError::Host {
        what: "run".to_string(),
        reason: "expected work that is done at once, found a recording".to_string(),
    }
}
