//! One device on a card: how it does a plan's work, and how its two streams are waited for.
#![allow(unsafe_code)] // The driver is a C interface; handles live as long as the values that made them.

use std::time::{Duration, Instant};

use cudarc::driver::{DriverError, result, sys};

use super::GpuProgram;
use super::blas::Blas;
use super::card::Card;
use super::context::{DeviceContext, Event, Timing};
use super::graph::Graph;
use super::libraries::failed;
use super::nccl::Communicators;
use super::shared::Neighbours;
use crate::ExecutionError;
use crate::run::{Device, Meeting};
use hlo_gpu::plan::{BufferId, CollectiveCall, Gemm, KernelId, Stream};

/// Looks at a stream before the other processes are asked about.
const LOOKS_BEFORE_CHECK: u32 = 1 << 10;
/// How long this thread looks without a break: a nap takes several times as long as it should, and would be part of a run's time.
const LOOKS_FOR: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_micros(20);

/// How a device takes part in collectives.
enum Communication {
    /// The plan has none.
    None,
    /// Over NCCL.
    Nccl(Communicators),
    /// With devices of the same card.
    Shared(Neighbours),
}

/// One device of a [`GpuProgram`].
pub struct GpuDevice<'m> {
    // Fields end in this order: communicators before the memory that they use.
    communication: Communication,
    blas: Option<Blas>,
    context: DeviceContext<'m>,
    program: &'m GpuProgram<'m>,
}

impl<'m> GpuDevice<'m> {
    /// Makes ready what the device needs; all devices do this at the same time.
    pub(super) fn open(
        program: &'m GpuProgram<'m>,
        card: &'m Card,
        meeting: &'m Meeting<'m>,
        id: u32,
    ) -> Result<GpuDevice<'m>, ExecutionError> {
        card.enter()?;
        let context = DeviceContext::new(program.plan, card, meeting, id)?;
        let blas = program.needs.has_products.then(|| Blas::new(card)).transpose()?;
        let communication = match (program.needs.has_collectives, program.options.shares_card) {
            (false, _) => Communication::None,
            (true, false) => Communication::Nccl(Communicators::connect(&context)?),
            (true, true) => Communication::Shared(Neighbours::new(&context)?),
        };
        Ok(GpuDevice { communication, blas, context, program })
    }
}

/// Waits until a stream has done all its work, or the run has failed somewhere.
fn drain(
    context: &DeviceContext<'_>,
    communication: &Communication,
    stream: sys::CUstream,
) -> Result<(), ExecutionError> {
    let (start, mut n_looks) = (Instant::now(), 0u32);
    loop {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(stream) }.result() {
            Ok(()) => return Ok(()),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => {}
            Err(error) => return Err(failed(&context.card.name)(error)),
        }
        n_looks = n_looks.saturating_add(1);
        if n_looks.is_multiple_of(LOOKS_BEFORE_CHECK) {
            context.meeting.check()?;
            if let Communication::Nccl(communicators) = communication {
                communicators.check()?;
            }
        }
        if start.elapsed() > LOOKS_FOR {
            std::thread::sleep(NAP);
        }
    }
}

impl Drop for GpuDevice<'_> {
    fn drop(&mut self) {
        // After a failure a collective may wait on the card for ever; memory can be freed only once it was aborted.
        let has_failed = self.context.meeting.check().is_err();
        match &mut self.communication {
            Communication::Nccl(communicators) => communicators.close(has_failed),
            Communication::Shared(neighbours) if has_failed => neighbours.abandon(),
            Communication::Shared(_) | Communication::None => {}
        }
    }
}

impl Device for GpuDevice<'_> {
    type Event = Event;
    type Mark = Event;
    type Recording = Graph;

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), ExecutionError> {
        let expected = self.context.size_bytes(buffer);
        if expected != bytes.len() as u64 {
            let reason = format!("expected {expected} bytes, found {}", bytes.len());
            return Err(ExecutionError::Device { what: self.context.plan.buffers[buffer].name.clone(), reason });
        }
        self.context.upload(self.context.address(buffer)?, bytes)
    }

    fn read(&mut self, buffer: BufferId) -> Result<Vec<u8>, ExecutionError> {
        self.finish()?;
        let mut bytes = vec![0; self.context.size_bytes(buffer) as usize];
        // SAFETY: the buffer has so many bytes; nothing writes to it, because all work is done.
        let copied = unsafe { result::memcpy_dtoh_sync(&mut bytes, self.context.address(buffer)?) };
        copied.map_err(failed(&self.context.card.name))?;
        Ok(bytes)
    }

    fn launch(&mut self, stream: Stream, kernel: KernelId, arguments: &[BufferId]) -> Result<(), ExecutionError> {
        let pointers: Result<Vec<_>, ExecutionError> =
            arguments.iter().map(|&argument| self.context.address(argument)).collect();
        self.context.card.launch(&self.context.plan.kernels[kernel], &pointers?, self.context.stream(stream))
    }

    fn gemm(&mut self, stream: Stream, gemm: &Gemm) -> Result<(), ExecutionError> {
        match &mut self.blas {
            Some(blas) => {
                let (context, communication) = (&self.context, &self.communication);
                let choices = self.program.choices.as_ref();
                let drain = |stream| drain(context, communication, stream);
                blas.multiply(context, context.stream(stream), gemm, choices, &drain)
            }
            None => {
                let reason = "expected a plan that says it has products".to_string();
                Err(ExecutionError::Device { what: "cuBLASLt".to_string(), reason })
            }
        }
    }

    fn copy(&mut self, stream: Stream, from: BufferId, to: BufferId) -> Result<(), ExecutionError> {
        let (expected, found) = (self.context.size_bytes(to), self.context.size_bytes(from));
        if expected != found {
            let reason = format!("expected a copy of {expected} bytes, found {found}");
            return Err(ExecutionError::Device { what: self.context.plan.buffers[to].name.clone(), reason });
        }
        let (from, to) = (self.context.address(from)?, self.context.address(to)?);
        self.context.copy(self.context.stream(stream), from, to, expected)
    }

    fn fill(&mut self, stream: Stream, to: BufferId, byte: u8) -> Result<(), ExecutionError> {
        let n_bytes = self.context.size_bytes(to);
        self.context.fill(self.context.stream(stream), self.context.address(to)?, byte, n_bytes)
    }

    fn collective(&mut self, stream: Stream, name: &str, call: &CollectiveCall) -> Result<(), ExecutionError> {
        let stream = self.context.stream(stream);
        match &mut self.communication {
            Communication::Nccl(communicators) => communicators.collective(&self.context, stream, call),
            Communication::Shared(neighbours) => {
                neighbours.collective(&self.context, stream, name, call, &self.program.reductions)
            }
            Communication::None => {
                let reason = "expected a plan that says it has collectives".to_string();
                Err(ExecutionError::Device { what: name.to_string(), reason })
            }
        }
    }

    fn record(&mut self, stream: Stream) -> Result<Event, ExecutionError> {
        Event::record(self.context.card, self.context.stream(stream), Timing::Off)
    }

    fn wait(&mut self, stream: Stream, event: &Event) -> Result<(), ExecutionError> {
        self.context.wait(self.context.stream(stream), event.handle)
    }

    fn mark(&mut self, stream: Stream) -> Result<Event, ExecutionError> {
        Event::record(self.context.card, self.context.stream(stream), Timing::On)
    }

    fn seconds_between(&mut self, before: &Event, after: &Event) -> Result<f64, ExecutionError> {
        before.seconds_until(self.context.card, after)
    }

    fn can_record(&self) -> bool {
        true
    }

    fn begin_recording(&mut self) -> Result<(), ExecutionError> {
        Graph::begin(self.context.card, self.context.stream(Stream::Compute))
    }

    fn end_recording(&mut self) -> Result<Graph, ExecutionError> {
        Graph::end(self.context.card, self.context.stream(Stream::Compute))
    }

    fn replay(&mut self, recording: &Graph) -> Result<(), ExecutionError> {
        recording.launch(self.context.card, self.context.stream(Stream::Compute))
    }

    fn finish(&mut self) -> Result<(), ExecutionError> {
        let streams = self.context.streams;
        streams.into_iter().try_for_each(|stream| drain(&self.context, &self.communication, stream))?;
        self.context.meeting.check()
    }
}
