//! What a device's work on a card needs: memory, streams, and points in streams.
#![allow(unsafe_code)] // The driver is a C interface; handles live as long as the values that made them.

use std::collections::HashMap;

use cudarc::driver::{DriverError, result, sys};

use super::card::Card;
use super::libraries::failed;
use crate::ExecutionError;
use crate::host::memory::{device_ids, sizes_of_places};
use crate::memory_order::to_memory;
use crate::run::Meeting;
use hlo_gpu::plan::{BufferId, Place, Plan, Stream};

/// Memory on a card.
pub(super) struct Allocation {
    /// Its first byte.
    pub address: sys::CUdeviceptr,
}

impl Allocation {
    /// Memory on the card of this thread; `what` it is for.
    pub(super) fn new(card: &Card, n_bytes: usize, what: &str) -> Result<Allocation, ExecutionError> {
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

/// Whether an event keeps the time at which it is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timing {
    Off,
    On,
}

impl Event {
    /// The point that the stream has reached.
    pub(super) fn record(card: &Card, stream: sys::CUstream, timing: Timing) -> Result<Event, ExecutionError> {
        let flags = match timing {
            Timing::Off => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
            Timing::On => sys::CUevent_flags::CU_EVENT_DEFAULT,
        };
        let event = Event { handle: result::event::create(flags).map_err(failed(&card.name))? };
        // SAFETY: both handles are alive.
        unsafe { result::event::record(event.handle, stream) }.map_err(failed(&card.name))?;
        Ok(event)
    }

    /// Seconds from this event to a later one; both keep their times and have been reached.
    pub(super) fn seconds_until(&self, card: &Card, later: &Event) -> Result<f64, ExecutionError> {
        // SAFETY: both handles are alive.
        let milliseconds = unsafe { result::event::elapsed(self.handle, later.handle) }.map_err(failed(&card.name))?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `record`. The driver keeps what streams still wait for.
        let _ = unsafe { result::event::destroy(self.handle) };
    }
}

/// Where a device's arrays lie, and its streams: what collectives work on.
pub(super) struct DeviceContext<'m> {
    pub plan: &'m Plan,
    pub card: &'m Card,
    pub meeting: &'m Meeting<'m>,
    /// Flat id.
    pub id: u32,
    places: HashMap<Place, Allocation>,
    /// Compute, communication.
    pub streams: [sys::CUstream; 2],
}

impl<'m> DeviceContext<'m> {
    pub(super) fn new(
        plan: &'m Plan,
        card: &'m Card,
        meeting: &'m Meeting<'m>,
        id: u32,
    ) -> Result<DeviceContext<'m>, ExecutionError> {
        let stream = || result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed(&card.name));
        let mut context =
            DeviceContext { plan, card, meeting, id, places: HashMap::new(), streams: [stream()?, stream()?] };
        let mut sizes: Vec<(Place, usize)> = sizes_of_places(plan)?.into_iter().collect();
        sizes.sort();
        for (place, n_bytes) in sizes {
            context.places.insert(place, Allocation::new(card, n_bytes, &place.to_string())?);
        }
        for buffer in plan.buffers.values() {
            if let Place::Constant(constant) = buffer.place
                && buffer.offset_bytes == 0
                && !context.places.contains_key(&buffer.place)
            {
                let bytes = to_memory(&plan.constants[constant], &buffer.shape)?;
                let place = Allocation::new(card, bytes.len(), &buffer.place.to_string())?;
                context.upload(place.address, &bytes)?;
                context.places.insert(buffer.place, place);
            }
        }
        if let Some(place) = context.places.get(&Place::DeviceIds) {
            context.upload(place.address, &device_ids(plan, id))?;
        }
        Ok(context)
    }

    /// Copies bytes from the host and waits for that.
    pub(super) fn upload(&self, to: sys::CUdeviceptr, bytes: &[u8]) -> Result<(), ExecutionError> {
        let stream = self.stream(Stream::Compute);
        // SAFETY: the allocation at `to` is at least as long; the bytes live until the stream was waited for.
        unsafe {
            result::memcpy_htod_async(to, bytes, stream).map_err(failed(&self.card.name))?;
            result::stream::synchronize(stream).map_err(failed(&self.card.name))
        }
    }

    pub(super) fn stream(&self, stream: Stream) -> sys::CUstream {
        match stream {
            Stream::Compute => self.streams[0],
            Stream::Communication => self.streams[1],
        }
    }

    /// Where a buffer begins.
    pub(super) fn address(&self, buffer: BufferId) -> Result<sys::CUdeviceptr, ExecutionError> {
        let buffer = &self.plan.buffers[buffer];
        let wrong = || ExecutionError::Device {
            what: buffer.name.clone(),
            reason: format!("expected memory for {}, found none", buffer.place),
        };
        Ok(self.places.get(&buffer.place).ok_or_else(wrong)?.address + buffer.offset_bytes)
    }

    /// Bytes of a buffer.
    pub(super) fn size_bytes(&self, buffer: BufferId) -> u64 {
        self.plan.buffers[buffer].shape.memory_bytes()
    }

    pub(super) fn copy(
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

    pub(super) fn fill(
        &self,
        stream: sys::CUstream,
        to: sys::CUdeviceptr,
        byte: u8,
        n_bytes: u64,
    ) -> Result<(), ExecutionError> {
        // SAFETY: within a live allocation of at least so many bytes from there.
        unsafe { result::memset_d8_async(to, byte, n_bytes as usize, stream) }.map_err(failed(&self.card.name))
    }

    pub(super) fn wait(&self, stream: sys::CUstream, event: sys::CUevent) -> Result<(), ExecutionError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: whoever made the event keeps it until all have issued their waits.
        unsafe { result::stream::wait_event(stream, event, flags) }.map_err(failed(&self.card.name))
    }
}

impl Drop for DeviceContext<'_> {
    fn drop(&mut self) {
        for stream in self.streams {
            // SAFETY: made in `new`; the driver lets issued work end.
            let _ = unsafe { result::stream::destroy(stream) };
        }
    }
}
