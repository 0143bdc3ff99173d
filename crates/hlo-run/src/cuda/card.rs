//! A card: its context, and the kernels loaded into it. Devices that share a card share this.
#![allow(unsafe_code)] // The driver is a C interface; handles live as long as the `Card` that made them.

use std::collections::HashMap;
use std::ffi::CString;
use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::compile::Cubin;
use super::libraries::{Library, failed, require};
use crate::ExecutionError;
use hlo_gpu::plan::Kernel;

/// Shared memory that a kernel gets without asking.
const SHARED_BYTES: u32 = 48 << 10;

/// A card with its primary context.
pub(crate) struct Card {
    /// For messages: number and name.
    pub name: String,
    /// The architecture, such as 90.
    pub arch: u32,
    device: sys::CUdevice,
    context: sys::CUcontext,
    modules: Vec<sys::CUmodule>,
    functions: HashMap<String, sys::CUfunction>,
}

// SAFETY: contexts, modules and functions are handles that the driver lets every thread use.
unsafe impl Send for Card {}
// SAFETY: as above; nothing in a `Card` changes after it was made ready.
unsafe impl Sync for Card {}

/// How many cards this process may use.
///
/// # Errors
/// The driver cannot start.
pub(crate) fn count() -> Result<u32, ExecutionError> {
    result::init().map_err(failed("the CUDA driver"))?;
    let n = result::device::get_count().map_err(failed("the CUDA driver"))?;
    Ok(u32::try_from(n).unwrap_or(0))
}

/// What the driver calls the first card, as `NVIDIA H200`.
///
/// # Errors
/// There is no driver or no card.
pub fn first_card_model() -> Result<String, ExecutionError> {
    require(&[Library::Driver])?;
    result::init().map_err(failed("the CUDA driver"))?;
    let device = result::device::get(0).map_err(failed("GPU 0"))?;
    result::device::get_name(device).map_err(failed("GPU 0"))
}

impl Card {
    /// Opens the card with this number among those that the process may use.
    ///
    /// # Errors
    /// There is no such card, or it cannot be used.
    pub(super) fn open(ordinal: u32) -> Result<Card, ExecutionError> {
        let number = format!("GPU {ordinal}");
        let error = failed(&number);
        let device = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX)).map_err(&error)?;
        let model = result::device::get_name(device).map_err(&error)?;
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        // SAFETY: the device was just given by the driver. The primary context is released in `drop`.
        let (major, minor, context) = unsafe {
            let major = result::device::get_attribute(device, MAJOR).map_err(&error)?;
            let minor = result::device::get_attribute(device, MINOR).map_err(&error)?;
            (major, minor, result::primary_ctx::retain(device).map_err(&error)?)
        };
        let arch = u32::try_from(major * 10 + minor).unwrap_or(0);
        let name = format!("GPU {ordinal} ({model})");
        Ok(Card { name, arch, device, context, modules: Vec::new(), functions: HashMap::new() })
    }

    /// Makes the card that of the calling thread.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn enter(&self) -> Result<(), ExecutionError> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed(&self.name))
    }

    /// Loads machine code; `kernels` say how much shared memory they want.
    ///
    /// # Errors
    /// The driver refuses the code, or the shared memory.
    pub(super) fn load(&mut self, cubins: &[Cubin], kernels: &[&Kernel]) -> Result<(), ExecutionError> {
        self.enter()?;
        let name = self.name.clone();
        let error = failed(&name);
        for cubin in cubins {
            // SAFETY: the code is NVRTC's, whole; the driver copies it.
            let module = unsafe { result::module::load_data(cubin.code.as_ptr().cast()) }.map_err(&error)?;
            self.modules.push(module);
            for name in &cubin.names {
                let symbol = CString::new(name.as_str()).unwrap_or_default();
                // SAFETY: the module was just loaded.
                let function = unsafe { result::module::get_function(module, symbol) }.map_err(failed(name))?;
                self.functions.insert(name.clone(), function);
            }
        }
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        for kernel in kernels.iter().filter(|kernel| kernel.shared_bytes > SHARED_BYTES) {
            let bytes = i32::try_from(kernel.shared_bytes).unwrap_or(i32::MAX);
            if let Some(&function) = self.functions.get(&kernel.name) {
                // SAFETY: the function belongs to a loaded module.
                let set = unsafe { result::function::set_function_attribute(function, attribute, bytes) };
                set.map_err(failed(&kernel.name))?;
            }
        }
        Ok(())
    }

    /// Launches a kernel with these pointers on a stream of this card.
    ///
    /// # Errors
    /// The kernel was not loaded, or the driver refuses.
    pub(super) fn launch(
        &self,
        kernel: &Kernel,
        pointers: &[sys::CUdeviceptr],
        stream: sys::CUstream,
    ) -> Result<(), ExecutionError> {
        let unloaded =
            || ExecutionError::Device { what: kernel.name.clone(), reason: "the kernel was not loaded".to_string() };
        let function = *self.functions.get(&kernel.name).ok_or_else(unloaded)?;
        if pointers.len() != kernel.arguments.len() {
            let reason = format!("expected {} arguments, found {}", kernel.arguments.len(), pointers.len());
            return Err(ExecutionError::Device { what: kernel.name.clone(), reason });
        }
        let mut arguments: Vec<*mut c_void> =
            pointers.iter().map(|pointer| std::ptr::from_ref(pointer).cast_mut().cast()).collect();
        let (grid, block) = ((kernel.grid, 1, 1), (kernel.block, 1, 1));
        // SAFETY: the driver reads the arguments during the call; the kernel stays within the arrays that they point to,
        // which live until the stream has been waited for.
        unsafe { result::launch_kernel(function, grid, block, kernel.shared_bytes, stream, &mut arguments) }
            .map_err(failed(&kernel.name))
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        for &module in &self.modules {
            // SAFETY: loaded by this card, and no device uses it any more.
            let _ = unsafe { result::module::unload(module) };
        }
        // SAFETY: retained in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Which cards the devices of this process run on: `n_visible` are there, this is process `local_rank` of its machine.
///
/// # Errors
/// There are too few.
pub(crate) fn ordinals(
    n_devices: u32,
    n_visible: u32,
    local_rank: Option<u32>,
    shares: bool,
) -> Result<Vec<u32>, ExecutionError> {
    let wrong = |reason: String| ExecutionError::Device { what: "GPUs".to_string(), reason };
    if n_visible == 0 {
        return Err(wrong("expected at least one, found none".to_string()));
    }
    if shares {
        return Ok(vec![0; n_devices as usize]);
    }
    // A launcher may show each process its own cards alone.
    let first = if n_visible == n_devices { 0 } else { local_rank.unwrap_or(0) * n_devices };
    if first + n_devices > n_visible {
        let place = local_rank.map_or(String::new(), |rank| format!(" for process {rank} of this machine"));
        return Err(wrong(format!(
            "expected {n_devices} for as many devices{place}, found {n_visible}: start more processes, or use --share-gpu"
        )));
    }
    Ok((first..first + n_devices).collect())
}

#[cfg(test)]
mod tests {
    use super::ordinals;

    #[test]
    fn cards_are_dealt_out() {
        assert_eq!(ordinals(8, 8, None, false), Ok((0..8).collect()));
        assert_eq!(ordinals(2, 8, Some(3), false), Ok(vec![6, 7]));
        assert_eq!(ordinals(1, 1, Some(5), false), Ok(vec![0]), "each process sees its own card");
        assert_eq!(ordinals(8, 1, None, true), Ok(vec![0; 8]));
        assert!(ordinals(8, 4, None, false).is_err_and(|e| e.to_string().contains("--share-gpu")));
        assert!(ordinals(2, 4, Some(2), false).is_err());
        assert!(ordinals(1, 0, None, true).is_err());
    }
}
