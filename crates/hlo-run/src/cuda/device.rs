//! One device on a card: its memory, its two streams, and how they are waited for.
#![allow(unsafe_code)] // The driver is a C interface; handles live as long as the values that made them.

use std::collections::HashMap;
use std::time::Duration;

use cudarc::driver::{DriverError, result, sys};

use super::blas::Blas;
use super::card::Card;
use super::libraries::failed;
use super::nccl::Communicators;
use super::shared::Neighbours;
use super::{GpuProgram, Matmul};
use crate::ExecutionError;
use crate::host::memory::{device_ids, sizes_of_places};
use crate::memory_order::to_memory;
use crate::run::{Device, Meeting};
use hlo_gpu::plan::{BufferId, CollectiveCall, Gemm, KernelId, Place, Plan, Stream};

/// Looks at a stream before the other processes are asked about, and before this thread sleeps between two looks.
const LOOKS_BEFORE_CHECK: u32 = 1 << 10;
const LOOKS_BEFORE_SLEEP: u32 = 1 << 12;
const NAP: Duration = Duration::from_micros(20);

/// Memory on a card.
pub(super) struct Allocation {
    /// Its first byte.
    pub address: sys::CUdeviceptr,
}

impl Allocation {
    /// Memory on the card of this thread; `what` it is for.
    pub fn new(card: &Card, n_bytes: usize, what: &str) -> Result<Allocation, ExecutionError> {
        // SAFETY: freed once, in `drop`.
        match unsafe { result::malloc_sync(n_bytes.max(16)) } {
            Ok(address) => Ok(Allocation { address }),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let free = result::mem_get_info()
                    .map_or(String::new(), |(free, total)| format!(", found {free} free of {total}"));
                let reason = format!("out of memory: expected {n_bytes} bytes for {what}{free}");
                Err(ExecutionError::Device { what: card.name.clone(), reason })
            }
            Err(error) => Err(failed(&card.name)(error)),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` on the context of this thread. An error would be that of earlier work.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// A point in a stream.
pub struct Event {
    pub(super) handle: sys::CUevent,
}

impl Event {
    /// The point that the stream has reached.
    pub(super) fn record(card: &Card, stream: sys::CUstream) -> Result<Event, ExecutionError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = Event { handle: result::event::create(flags).map_err(failed(&card.name))? };
        // SAFETY: both handles are alive.
        unsafe { result::event::record(event.handle, stream) }.map_err(failed(&card.name))?;
        Ok(event)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `record`. The driver keeps what streams still wait for.
        let _ = unsafe { result::event::destroy(self.handle) };
    }
}

/// Where a device's arrays lie, and its streams: what collectives work on.
pub(super) struct Ground<'m> {
    pub plan: &'m Plan,
    pub card: &'m Card,
    pub meeting: &'m Meeting<'m>,
    /// Flat id.
    pub id: u32,
    places: HashMap<Place, Allocation>,
    /// Compute, communication.
    streams: [sys::CUstream; 2],
}

impl<'m> Ground<'m> {
    fn new(plan: &'m Plan, card: &'m Card, meeting: &'m Meeting<'m>, id: u32) -> Result<Ground<'m>, ExecutionError> {
        let stream = || result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed(&card.name));
        let mut ground = Ground { plan, card, meeting, id, places: HashMap::new(), streams: [stream()?, stream()?] };
        let mut sizes: Vec<(Place, usize)> = sizes_of_places(plan)?.into_iter().collect();
        sizes.sort();
        for (place, n_bytes) in sizes {
            ground.places.insert(place, Allocation::new(card, n_bytes, &place.to_string())?);
        }
        for buffer in plan.buffers.values() {
            if let Place::Constant(constant) = buffer.place
                && buffer.offset_bytes == 0
                && !ground.places.contains_key(&buffer.place)
            {
                let bytes = to_memory(&plan.constants[constant], &buffer.shape)?;
                let place = Allocation::new(card, bytes.len(), &buffer.place.to_string())?;
                ground.upload(place.address, &bytes)?;
                ground.places.insert(buffer.place, place);
            }
        }
        if let Some(place) = ground.places.get(&Place::DeviceIds) {
            ground.upload(place.address, &device_ids(plan, id))?;
        }
        Ok(ground)
    }

    /// Copies bytes from the host and waits for that.
    fn upload(&self, to: sys::CUdeviceptr, bytes: &[u8]) -> Result<(), ExecutionError> {
        let stream = self.stream(Stream::Compute);
        // SAFETY: the allocation at `to` is at least as long; the bytes live until the stream was waited for.
        unsafe {
            result::memcpy_htod_async(to, bytes, stream).map_err(failed(&self.card.name))?;
            result::stream::synchronize(stream).map_err(failed(&self.card.name))
        }
    }

    pub fn stream(&self, stream: Stream) -> sys::CUstream {
        match stream {
            Stream::Compute => self.streams[0],
            Stream::Communication => self.streams[1],
        }
    }

    /// Where a buffer begins.
    pub fn address(&self, buffer: BufferId) -> Result<sys::CUdeviceptr, ExecutionError> {
        let buffer = &self.plan.buffers[buffer];
        let wrong = || ExecutionError::Device {
            what: buffer.name.clone(),
            reason: format!("expected memory for {}, found none", buffer.place),
        };
        Ok(self.places.get(&buffer.place).ok_or_else(wrong)?.address + buffer.offset_bytes)
    }

    /// Bytes of a buffer.
    pub fn size_bytes(&self, buffer: BufferId) -> u64 {
        self.plan.buffers[buffer].shape.size_bytes()
    }

    pub fn copy(
        &self,
        stream: sys::CUstream,
        from: sys::CUdeviceptr,
        to: sys::CUdeviceptr,
        n_bytes: u64,
    ) -> Result<(), ExecutionError> {
        // SAFETY: both are within live allocations of at least so many bytes from there.
        let copied = unsafe { result::memcpy_dtod_async(to, from, n_bytes as usize, stream) };
        copied.map_err(failed(&self.card.name))
    }

    pub fn fill(
        &self,
        stream: sys::CUstream,
        to: sys::CUdeviceptr,
        byte: u8,
        n_bytes: u64,
    ) -> Result<(), ExecutionError> {
        // SAFETY: within a live allocation of at least so many bytes from there.
        unsafe { result::memset_d8_async(to, byte, n_bytes as usize, stream) }.map_err(failed(&self.card.name))
    }

    pub fn wait(&self, stream: sys::CUstream, event: sys::CUevent) -> Result<(), ExecutionError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: whoever made the event keeps it until all have issued their waits.
        unsafe { result::stream::wait_event(stream, event, flags) }.map_err(failed(&self.card.name))
    }
}

impl Drop for Ground<'_> {
    fn drop(&mut self) {
        for stream in self.streams {
            // SAFETY: made in `new`; the driver lets issued work end.
            let _ = unsafe { result::stream::destroy(stream) };
        }
    }
}

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
    ground: Ground<'m>,
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
        let ground = Ground::new(program.plan, card, meeting, id)?;
        let blas =
            program.needs.has_products.then(|| Blas::new(card, program.options.matmul == Matmul::Tf32)).transpose()?;
        let communication = match (program.needs.has_collectives, program.options.shares_card) {
            (false, _) => Communication::None,
            (true, false) => Communication::Nccl(Communicators::connect(&ground)?),
            (true, true) => Communication::Shared(Neighbours::new(&ground)?),
        };
        Ok(GpuDevice { communication, blas, ground, program })
    }

    /// Waits until a stream has done all its work, or the run has failed somewhere.
    fn drain(&self, stream: sys::CUstream) -> Result<(), ExecutionError> {
        let mut n_looks = 0u32;
        loop {
            // SAFETY: the stream is alive.
            match unsafe { sys::cuStreamQuery(stream) }.result() {
                Ok(()) => return Ok(()),
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => {}
                Err(error) => return Err(failed(&self.ground.card.name)(error)),
            }
            n_looks = n_looks.saturating_add(1);
            if n_looks.is_multiple_of(LOOKS_BEFORE_CHECK) {
                self.ground.meeting.check()?;
                if let Communication::Nccl(communicators) = &self.communication {
                    communicators.check()?;
                }
            }
            if n_looks > LOOKS_BEFORE_SLEEP {
                std::thread::sleep(NAP);
            }
        }
    }
}

impl Drop for GpuDevice<'_> {
    fn drop(&mut self) {
        // After a failure a collective may wait on the card for ever; memory can be freed only once it was aborted.
        let has_failed = self.ground.meeting.check().is_err();
        match &mut self.communication {
            Communication::Nccl(communicators) => communicators.close(has_failed),
            Communication::Shared(neighbours) if has_failed => neighbours.abandon(),
            Communication::Shared(_) | Communication::None => {}
        }
    }
}

impl Device for GpuDevice<'_> {
    type Event = Event;

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), ExecutionError> {
        let expected = self.ground.size_bytes(buffer);
        if expected != bytes.len() as u64 {
            let reason = format!("expected {expected} bytes, found {}", bytes.len());
            return Err(ExecutionError::Device { what: self.ground.plan.buffers[buffer].name.clone(), reason });
        }
        self.ground.upload(self.ground.address(buffer)?, bytes)
    }

    fn read(&mut self, buffer: BufferId) -> Result<Vec<u8>, ExecutionError> {
        self.finish()?;
        let mut bytes = vec![0; self.ground.size_bytes(buffer) as usize];
        // SAFETY: the buffer has so many bytes; nothing writes to it, because all work is done.
        let copied = unsafe { result::memcpy_dtoh_sync(&mut bytes, self.ground.address(buffer)?) };
        copied.map_err(failed(&self.ground.card.name))?;
        Ok(bytes)
    }

    fn launch(&mut self, stream: Stream, kernel: KernelId, arguments: &[BufferId]) -> Result<(), ExecutionError> {
        let pointers: Result<Vec<_>, ExecutionError> =
            arguments.iter().map(|&argument| self.ground.address(argument)).collect();
        self.ground.card.launch(&self.ground.plan.kernels[kernel], &pointers?, self.ground.stream(stream))
    }

    fn gemm(&mut self, stream: Stream, gemm: &Gemm) -> Result<(), ExecutionError> {
        match &mut self.blas {
            Some(blas) => blas.multiply(&self.ground, self.ground.stream(stream), gemm),
            None => {
                let reason = "expected a plan that says it has products".to_string();
                Err(ExecutionError::Device { what: "cuBLASLt".to_string(), reason })
            }
        }
    }

    fn copy(&mut self, stream: Stream, from: BufferId, to: BufferId) -> Result<(), ExecutionError> {
        let (expected, found) = (self.ground.size_bytes(to), self.ground.size_bytes(from));
        if expected != found {
            let reason = format!("expected a copy of {expected} bytes, found {found}");
            return Err(ExecutionError::Device { what: self.ground.plan.buffers[to].name.clone(), reason });
        }
        let (from, to) = (self.ground.address(from)?, self.ground.address(to)?);
        self.ground.copy(self.ground.stream(stream), from, to, expected)
    }

    fn fill(&mut self, stream: Stream, to: BufferId, byte: u8) -> Result<(), ExecutionError> {
        let n_bytes = self.ground.size_bytes(to);
        self.ground.fill(self.ground.stream(stream), self.ground.address(to)?, byte, n_bytes)
    }

    fn collective(&mut self, stream: Stream, name: &str, call: &CollectiveCall) -> Result<(), ExecutionError> {
        let stream = self.ground.stream(stream);
        match &mut self.communication {
            Communication::Nccl(communicators) => communicators.collective(&self.ground, stream, call),
            Communication::Shared(neighbours) => {
                neighbours.collective(&self.ground, stream, name, call, &self.program.reductions)
            }
            Communication::None => {
                let reason = "expected a plan that says it has collectives".to_string();
                Err(ExecutionError::Device { what: name.to_string(), reason })
            }
        }
    }

    fn record(&mut self, stream: Stream) -> Result<Event, ExecutionError> {
        Event::record(self.ground.card, self.ground.stream(stream))
    }

    fn wait(&mut self, stream: Stream, event: &Event) -> Result<(), ExecutionError> {
        self.ground.wait(self.ground.stream(stream), event.handle)
    }

    fn finish(&mut self) -> Result<(), ExecutionError> {
        self.ground.streams.into_iter().try_for_each(|stream| self.drain(stream))?;
        self.ground.meeting.check()
    }
}
