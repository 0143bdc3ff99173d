//! Memory of a device: blocks aligned as on a graphics processor, and the buffers of a plan within them.
#![allow(unsafe_code)] // Kernels get raw pointers; bytes are seen through slices of aligned lines.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;

use hlo_ir::{ArrayShape, Literal};

use crate::ExecutionError;
use crate::memory_order::{from_memory, to_memory};
use hlo_gpu::plan::{BufferId, Place, Plan, PlanBuffer};

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Pointer(*mut u8);

/// 64 aligned bytes, for the alignment of a block without any.
#[repr(C, align(64))]
struct Line;

/// Blocks lie as memory of a graphics processor does.
const ALIGN_BYTES: usize = 64;

/// A block of memory, aligned to 64 bytes. It is exactly as large as asked for, so that a sanitizer sees what lies outside.
pub struct Block {
    /// Dangling, but aligned, if there are no bytes.
    start: NonNull<u8>,
    n_bytes: usize,
}

// SAFETY: a block owns its bytes and hands them out as a `Vec` does.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(layout) = layout_of(self.n_bytes) {
            // SAFETY: `start` was allocated with this layout.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl Default for Block {
    fn default() -> Block {
        Block::zeros(0)
    }
}

/// The allocation of so many bytes; none for zero, or for more than there is address space.
fn layout_of(n_bytes: usize) -> Option<Layout> {
    (n_bytes > 0).then(|| Layout::from_size_align(n_bytes, ALIGN_BYTES).ok()).flatten()
}

impl Block {
    /// A block of zeros.
    pub fn zeros(n_bytes: usize) -> Block {
        let too_large = |layout| -> Block { std::alloc::handle_alloc_error(layout) };
        Block::try_zeros(n_bytes).unwrap_or_else(|| too_large(layout_of(n_bytes).unwrap_or(Layout::new::<Line>())))
    }

    /// A block of zeros; `None` where the system has not so much memory.
    pub fn try_zeros(n_bytes: usize) -> Option<Block> {
        let Some(layout) = layout_of(n_bytes) else {
            return (n_bytes == 0).then(|| Block { start: NonNull::<Line>::dangling().cast(), n_bytes: 0 });
        };
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Block { start, n_bytes })
    }

    /// A block with this content.
    pub fn from_bytes(bytes: &[u8]) -> Block {
        let mut block = Block::zeros(bytes.len());
        block.bytes_mut().copy_from_slice(bytes);
        block
    }

    /// A block with an array in the layout of `shape`.
    ///
    /// # Errors
    /// The array has another element type or other dims.
    pub fn from_array(array: &Literal, shape: &ArrayShape) -> Result<Block, ExecutionError> {
        Ok(Block::from_bytes(&to_memory(array, shape)?))
    }

    /// The array that lies here in the layout of `shape`.
    ///
    /// # Errors
    /// The block has another size.
    pub fn array(&self, shape: &ArrayShape) -> Result<Literal, ExecutionError> {
        from_memory(self.bytes(), shape)
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` points to `n_bytes` initialized bytes, and u8 has no alignment.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.n_bytes) }
    }

    /// The content, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the slice borrows the block mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.n_bytes) }
    }

    /// A pointer to a byte of the block, for a kernel.
    pub fn pointer(&mut self, offset_bytes: usize) -> Pointer {
        let offset_bytes = offset_bytes.min(self.n_bytes);
        Pointer(self.bytes_mut()[offset_bytes..].as_mut_ptr())
    }
}

/// What is the same on all devices and only read, filled once for all of them.
pub(super) struct Constants {
    blocks: HashMap<Place, Block>,
}

impl Constants {
    /// The contents of a plan's constants.
    pub(super) fn new(plan: &Plan) -> Result<Constants, ExecutionError> {
        let mut blocks = HashMap::new();
        for buffer in plan.buffers.values() {
            if let Place::Constant(constant) = buffer.place
                && buffer.offset_bytes == 0
                && !blocks.contains_key(&buffer.place)
            {
                let bytes = to_memory(&plan.constants[constant], &buffer.shape)?;
                blocks.insert(buffer.place, Block::from_bytes(&bytes));
            }
        }
        Ok(Constants { blocks })
    }
}

/// The size of every place that the plan's buffers lie in, except constants.
pub(crate) fn sizes_of_places(plan: &Plan) -> Result<HashMap<Place, usize>, ExecutionError> {
    let mut sizes: HashMap<Place, usize> = HashMap::new();
    for buffer in plan.buffers.values() {
        let end = size_of_buffer(buffer)?;
        let size = sizes.entry(buffer.place).or_default();
        *size = (*size).max(end);
    }
    if let Some(&used) = sizes.get(&Place::Arena)
        && used as u64 > plan.arena_bytes
    {
        let reason = format!("expected buffers within {} bytes, found one that ends at {used}", plan.arena_bytes);
        return Err(ExecutionError::Host { what: "arena".to_string(), reason });
    }
    sizes.retain(|place, _| !matches!(place, Place::Constant(_)));
    Ok(sizes)
}

/// Refuses a plan for so many devices that this machine has not the memory for, before any of it is taken: the system may give
/// addresses without memory behind them.
pub(super) fn check_available(plan: &Plan, n_devices: usize) -> Result<(), ExecutionError> {
    let sizes = sizes_of_places(plan)?;
    let asked = sizes.values().fold(0u64, |sum, &size| sum.saturating_add(size as u64));
    match available_bytes() {
        Some(available) if asked.saturating_mul(n_devices as u64) > available => {
            Err(too_little(asked, n_devices, Some(available)))
        }
        Some(_) | None => Ok(()),
    }
}

fn too_little(asked: u64, n_devices: usize, available: Option<u64>) -> ExecutionError {
    let has =
        available.map_or_else(|| "the system refuses".to_string(), |bytes| format!("{bytes} bytes are available"));
    let reason = format!("{asked} bytes are asked for each of {n_devices} devices of this process, and {has}");
    ExecutionError::Host { what: "memory".to_string(), reason }
}

/// The memory that can still be taken, as Linux estimates it; `None` where nothing says so.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The content of [`Place::DeviceIds`] of the device with this flat id.
pub(crate) fn device_ids(plan: &Plan, id: u32) -> [u8; 8] {
    let n_partitions = plan.n_partitions.max(1);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(id / n_partitions).to_le_bytes());
    bytes[4..].copy_from_slice(&(id % n_partitions).to_le_bytes());
    bytes
}

/// All places of one device.
pub(super) struct Memory<'p> {
    plan: &'p Plan,
    constants: &'p Constants,
    blocks: HashMap<Place, Block>,
}

impl<'p> Memory<'p> {
    /// Memory for every place that the plan's buffers lie in; device ids are filled in.
    pub(super) fn new(plan: &'p Plan, constants: &'p Constants, id: u32) -> Result<Memory<'p>, ExecutionError> {
        let sizes = sizes_of_places(plan)?;
        let asked = sizes.values().fold(0u64, |sum, &size| sum.saturating_add(size as u64));
        let block = |(place, size): (Place, usize)| {
            let mut block = Block::try_zeros(size).ok_or_else(|| too_little(asked, 1, None))?;
            if place == Place::DeviceIds {
                let n = size.min(8);
                block.bytes_mut()[..n].copy_from_slice(&device_ids(plan, id)[..n]);
            }
            Ok((place, block))
        };
        let blocks = sizes.into_iter().map(block).collect::<Result<_, ExecutionError>>()?;
        Ok(Memory { plan, constants, blocks })
    }

    fn range(&self, buffer: BufferId) -> Result<(Place, Range<usize>), ExecutionError> {
        let buffer = &self.plan.buffers[buffer];
        let end = size_of_buffer(buffer)?;
        Ok((buffer.place, buffer.offset_bytes as usize..end))
    }

    /// A buffer's bytes.
    pub(super) fn bytes(&self, buffer: BufferId) -> Result<&[u8], ExecutionError> {
        let (place, range) = self.range(buffer)?;
        let block = self.blocks.get(&place).or_else(|| self.constants.blocks.get(&place));
        block.and_then(|block| block.bytes().get(range)).ok_or_else(|| self.outside(buffer))
    }

    /// A buffer's bytes, to be written.
    pub(super) fn bytes_mut(&mut self, buffer: BufferId) -> Result<&mut [u8], ExecutionError> {
        let (place, range) = self.range(buffer)?;
        let error = self.outside(buffer);
        self.blocks.get_mut(&place).and_then(|block| block.bytes_mut().get_mut(range)).ok_or(error)
    }

    /// A buffer as a kernel's argument. The plan's verifier has seen that no step writes to a constant.
    pub(super) fn pointer(&mut self, buffer: BufferId) -> Result<Pointer, ExecutionError> {
        let (place, range) = self.range(buffer)?;
        let error = self.outside(buffer);
        match (self.blocks.get_mut(&place), self.constants.blocks.get(&place)) {
            (Some(block), _) if range.end <= block.n_bytes => Ok(block.pointer(range.start)),
            (None, Some(block)) => {
                let bytes = block.bytes().get(range).ok_or(error)?;
                Ok(Pointer(bytes.as_ptr().cast_mut()))
            }
            _ => Err(error),
        }
    }

    fn outside(&self, buffer: BufferId) -> ExecutionError {
        let buffer = &self.plan.buffers[buffer];
        let reason = format!("expected a buffer that may be used this way, found one in {:?}", buffer.place);
        ExecutionError::Host { what: buffer.name.clone(), reason }
    }
}

/// Where a buffer ends in its place.
fn size_of_buffer(buffer: &PlanBuffer) -> Result<usize, ExecutionError> {
    let end = buffer.offset_bytes.checked_add(buffer.shape.memory_bytes());
    end.and_then(|end| usize::try_from(end).ok()).filter(|&end| end < 1 << 44).ok_or_else(|| ExecutionError::Host {
        what: buffer.name.clone(),
        reason: "expected a buffer that fits into memory".to_string(),
    })
}
