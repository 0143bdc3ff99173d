//! Collectives by NCCL: one communicator for each communicator of the plan that a device belongs to.
#![allow(unsafe_code)] // NCCL is a C interface; handles live until `Communicators::close`.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use cudarc::nccl::{result, sys};
use hlo_ir::DType;

use super::context::DeviceContext;
use crate::ExecutionError;
use hlo_gpu::plan::{BufferId, CollectiveCall, CollectiveKind, CommunicatorId, Reduction};

/// A group of devices that communicate, seen by one of them.
struct Group {
    /// Null where the device is alone.
    handle: sys::ncclComm_t,
    devices: Vec<u32>,
    /// This device's place in the group.
    place: usize,
}

/// The communicators of one device.
pub(super) struct Communicators {
    /// In the plan's order, so that all processes end them in one order: ending one may wait for the other members.
    groups: BTreeMap<CommunicatorId, Group>,
}

fn failed(what: &'static str) -> impl Fn(result::NcclError) -> ExecutionError {
    move |error| {
        // SAFETY: the library is loaded; the text is its own and lives for ever.
        let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(error.0)) }.to_string_lossy().into_owned();
        ExecutionError::Device { what: "NCCL".to_string(), reason: format!("{what}: {text} ({:?})", error.0) }
    }
}

impl Communicators {
    /// Makes the communicators; all devices of all processes do this at the same time. The first device of each group makes
    /// its id, and the others get it where all meet.
    pub(super) fn connect(context: &DeviceContext<'_>) -> Result<Communicators, ExecutionError> {
        let mut communicators = Communicators { groups: BTreeMap::new() };
        for (id, groups) in context.plan.communicators.iter() {
            let own = groups.iter().find(|group| group.contains(&context.id));
            let is_first = own.is_some_and(|group| group.len() > 1 && group.first() == Some(&context.id));
            let brought = if is_first { unique_id()? } else { Vec::new() };
            let name = format!("the ids of {id}");
            let taken = context.meeting.meet(context.id, &name, brought, |all| {
                let of_device = |device: usize| {
                    let group = groups.iter().find(|group| group.contains(&(device as u32)))?;
                    all.get(*group.first()? as usize).cloned()
                };
                Ok((0..all.len()).map(|device| of_device(device).unwrap_or_default()).collect())
            })?;
            let Some(devices) = own.cloned() else { continue };
            let place = devices.iter().position(|&device| device == context.id).unwrap_or(0);
            let handle = if devices.len() > 1 { join(&taken, devices.len(), place)? } else { std::ptr::null_mut() };
            communicators.groups.insert(id, Group { handle, devices, place });
        }
        Ok(communicators)
    }

    /// Issues all calls of a step as one group.
    pub(super) fn collective(
        &self,
        context: &DeviceContext<'_>,
        stream: CUstream,
        call: &CollectiveCall,
    ) -> Result<(), ExecutionError> {
        let Some(group) = self.groups.get(&call.communicator) else { return Ok(()) };
        if group.handle.is_null() {
            return call.calls.iter().try_for_each(|&(input, output)| alone(context, stream, call, input, output));
        }
        result::group_start().map_err(failed("group start"))?;
        let issued =
            call.calls.iter().try_for_each(|&(input, output)| group.issue(context, stream, &call.kind, input, output));
        let ended = result::group_end().map_err(failed("group end"));
        issued.and(ended.map(drop))
    }

    /// Whether a communicator has failed meanwhile.
    pub(super) fn check(&self) -> Result<(), ExecutionError> {
        for group in self.groups.values().filter(|group| !group.handle.is_null()) {
            let mut state = sys::ncclResult_t::ncclSuccess;
            // SAFETY: the communicator is alive.
            unsafe { sys::ncclCommGetAsyncError(group.handle, &raw mut state) }.result().map_err(failed("state"))?;
            state.result().map_err(failed("a collective"))?;
        }
        Ok(())
    }

    /// Ends the communicators: at once after a failure, in good order otherwise.
    pub(super) fn close(&mut self, has_failed: bool) {
        for (_, handle) in self.take_handles() {
            // SAFETY: each is ended once; nothing is issued afterwards.
            let _ = unsafe {
                match has_failed {
                    true => result::comm_abort(handle),
                    false => result::comm_destroy(handle),
                }
            };
        }
    }

    /// Forgets all communicators; those that there are to end, in the order in which to end them.
    fn take_handles(&mut self) -> impl Iterator<Item = (CommunicatorId, sys::ncclComm_t)> + use<> {
        let groups = std::mem::take(&mut self.groups).into_iter();
        groups.map(|(id, group)| (id, group.handle)).filter(|(_, handle)| !handle.is_null())
    }
}

impl Drop for Communicators {
    /// Whoever has not closed them has failed.
    fn drop(&mut self) {
        self.close(true);
    }
}

/// What a group of one device does.
fn alone(
    context: &DeviceContext<'_>,
    stream: CUstream,
    call: &CollectiveCall,
    input: BufferId,
    output: BufferId,
) -> Result<(), ExecutionError> {
    let (from, to) = (context.address(input)?, context.address(output)?);
    let is_kept = call.kind.pairs().is_none_or(|pairs| pairs.contains(&(context.id, context.id)));
    match is_kept {
        true if from == to => Ok(()),
        true => context.copy(stream, from, to, context.size_bytes(output)),
        false => context.fill(stream, to, 0, context.size_bytes(output)),
    }
}

fn unique_id() -> Result<Vec<u8>, ExecutionError> {
    let id = result::get_uniqueid().map_err(failed("unique id"))?;
    Ok(id.internal.iter().map(|&c| c.cast_unsigned()).collect())
}

fn join(id: &[u8], n: usize, place: usize) -> Result<sys::ncclComm_t, ExecutionError> {
    let mut unique = sys::ncclUniqueId { internal: [0; 128] };
    if id.len() != unique.internal.len() {
        let reason = format!("expected an id of {} bytes, found {}", unique.internal.len(), id.len());
        return Err(ExecutionError::Device { what: "NCCL".to_string(), reason });
    }
    unique.internal.iter_mut().zip(id).for_each(|(to, from)| *to = from.cast_signed());
    let mut handle = std::ptr::null_mut();
    // SAFETY: the pointer is to a handle that NCCL fills; the id is one that NCCL made.
    unsafe { result::comm_init_rank(&raw mut handle, n as i32, unique, place as i32) }
        .map_err(failed("communicator"))?;
    Ok(handle)
}

fn pointer(address: CUdeviceptr) -> *mut c_void {
    address as usize as *mut c_void
}

impl Group {
    fn issue(
        &self,
        context: &DeviceContext<'_>,
        stream: CUstream,
        kind: &CollectiveKind,
        input: BufferId,
        output: BufferId,
    ) -> Result<(), ExecutionError> {
        let (from, to) = (context.address(input)?, context.address(output)?);
        let (input_bytes, output_bytes) = (context.size_bytes(input), context.size_bytes(output));
        let shape = &context.plan.buffers[output].shape;
        let bytes = sys::ncclDataType_t::ncclUint8;
        let typed = |reduction: Reduction| {
            library_reduction(shape.dtype, reduction).ok_or_else(|| ExecutionError::Device {
                what: context.plan.buffers[output].name.clone(),
                reason: format!("expected elements that NCCL reduces, found {}", shape.dtype),
            })
        };
        let n_elems = shape.n_elems() as usize;
        let (source, target, comm) = (pointer(from), pointer(to), self.handle);
        // SAFETY: in all calls the buffers have the sizes that the counts say, and live until the stream was waited for.
        let issued = match kind {
            CollectiveKind::Groups { reduction: Some(reduction), scatters: false } => {
                let (dtype, how) = typed(*reduction)?;
                unsafe { result::all_reduce(source, target, n_elems, dtype, how, comm, stream.cast()) }
            }
            CollectiveKind::Groups { reduction: Some(reduction), scatters: true } => {
                let (dtype, how) = typed(*reduction)?;
                unsafe { result::reduce_scatter(source, target, n_elems, dtype, how, comm, stream.cast()) }
            }
            CollectiveKind::Groups { reduction: None, scatters: false } => unsafe {
                result::all_gather(source, target, input_bytes as usize, bytes, comm, stream.cast())
            },
            CollectiveKind::Groups { reduction: None, scatters: true } => {
                let part = input_bytes / self.devices.len() as u64;
                return (0..self.devices.len()).try_for_each(|other| {
                    self.send(from + other as u64 * part, part, other, stream)?;
                    self.receive(to + other as u64 * part, part, other, stream)
                });
            }
            CollectiveKind::Pairs(pairs) => {
                return self.permute(context, stream, pairs, (from, input_bytes), (to, output_bytes));
            }
        };
        issued.map(drop).map_err(failed("a collective"))
    }

    /// Sends to each target and receives from the source; zeros without one.
    fn permute(
        &self,
        context: &DeviceContext<'_>,
        stream: CUstream,
        pairs: &[(u32, u32)],
        (from, input_bytes): (CUdeviceptr, u64),
        (to, output_bytes): (CUdeviceptr, u64),
    ) -> Result<(), ExecutionError> {
        let place = |device: u32| self.devices.iter().position(|&other| other == device);
        let me = self.devices.get(self.place).copied();
        for &(source, target) in pairs {
            if let (true, Some(target)) = (Some(source) == me, place(target)) {
                self.send(from, input_bytes, target, stream)?;
            }
            if let (true, Some(source)) = (Some(target) == me, place(source)) {
                self.receive(to, output_bytes, source, stream)?;
            }
        }
        let has_source = pairs.iter().any(|&(_, target)| Some(target) == me);
        if has_source { Ok(()) } else { context.fill(stream, to, 0, output_bytes) }
    }

    fn send(&self, from: CUdeviceptr, n_bytes: u64, to: usize, stream: CUstream) -> Result<(), ExecutionError> {
        let dtype = sys::ncclDataType_t::ncclUint8;
        // SAFETY: the buffer has so many bytes from there and lives until the stream was waited for.
        let sent =
            unsafe { result::send(pointer(from), n_bytes as usize, dtype, to as i32, self.handle, stream.cast()) };
        sent.map(drop).map_err(failed("send"))
    }

    fn receive(&self, to: CUdeviceptr, n_bytes: u64, from: usize, stream: CUstream) -> Result<(), ExecutionError> {
        let dtype = sys::ncclDataType_t::ncclUint8;
        // SAFETY: as in `send`.
        let received =
            unsafe { result::recv(pointer(to), n_bytes as usize, dtype, from as i32, self.handle, stream.cast()) };
        received.map(drop).map_err(failed("receive"))
    }
}

/// A type and a reduction as NCCL has them. Truth values are bytes of 0 and 1.
fn library_reduction(dtype: DType, reduction: Reduction) -> Option<(sys::ncclDataType_t, sys::ncclRedOp_t)> {
    use sys::ncclDataType_t as Type;
    let is_pred = dtype == DType::Pred;
    let how = match reduction {
        Reduction::Sum if is_pred => sys::ncclRedOp_t::ncclMax,
        Reduction::Product if is_pred => sys::ncclRedOp_t::ncclMin,
        Reduction::Sum => sys::ncclRedOp_t::ncclSum,
        Reduction::Product => sys::ncclRedOp_t::ncclProd,
        Reduction::Min => sys::ncclRedOp_t::ncclMin,
        Reduction::Max => sys::ncclRedOp_t::ncclMax,
    };
    let dtype = match dtype {
        DType::S8 => Type::ncclInt8,
        DType::U8 | DType::Pred => Type::ncclUint8,
        DType::S32 => Type::ncclInt32,
        DType::U32 => Type::ncclUint32,
        DType::S64 => Type::ncclInt64,
        DType::U64 => Type::ncclUint64,
        DType::F16 => Type::ncclFloat16,
        DType::BF16 => Type::ncclBfloat16,
        DType::F32 => Type::ncclFloat32,
        DType::F64 => Type::ncclFloat64,
        _ => return None,
    };
    Some((dtype, how))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;

    #[test]
    fn communicators_end_in_the_order_of_the_plan() {
        let id = |n: usize| CommunicatorId::new(n);
        let group = |handle| Group { handle, devices: vec![0, 1], place: 0 };
        // Handles that nothing follows: the test takes them before they would be ended.
        let mut open = Communicators { groups: BTreeMap::new() };
        for n in (0..40).map(|n| n * 7 % 40) {
            let handle = if n == 3 { std::ptr::null_mut() } else { std::ptr::dangling_mut() };
            open.groups.insert(id(n), group(handle));
        }
        let expected: Vec<CommunicatorId> = (0..40).filter(|n| *n != 3).map(id).collect();
        assert_eq!(open.take_handles().map(|(id, _)| id).collect::<Vec<_>>(), expected);
        assert!(open.groups.is_empty());
    }
}
