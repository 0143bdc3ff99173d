//! The libraries of a machine with graphics processors, looked for before anything is called in them.
#![allow(unsafe_code)] // Loading a library runs its initializers.

use crate::ExecutionError;

/// A library that is loaded when it is first needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    /// The CUDA driver.
    Driver,
    /// The compiler of CUDA C++.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Collectives.
    Nccl,
}

impl Library {
    /// What it is called, the file that is looked for, and where it comes from.
    fn description(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Library::Driver => {
                ("the CUDA driver", "libcuda.so", "install NVIDIA's driver; `hlo-opt run --backend host` needs none")
            }
            Library::Nvrtc => {
                ("NVRTC", "libnvrtc.so", "install the CUDA toolkit's NVRTC and put its folder into LD_LIBRARY_PATH")
            }
            Library::CublasLt => (
                "cuBLASLt",
                "libcublasLt.so",
                "install the CUDA toolkit's cuBLAS and put its folder into LD_LIBRARY_PATH",
            ),
            Library::Nccl => (
                "NCCL",
                "libnccl.so",
                "install NCCL and put its folder into LD_LIBRARY_PATH (wheels name it `libnccl.so.2` only: make a link), or run \
                 with `--share-gpu`",
            ),
        }
    }

    fn is_present(self) -> bool {
        // SAFETY: the libraries are NVIDIA's; their initializers have no requirements of the process.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Nccl => cudarc::nccl::sys::is_culib_present(),
            }
        }
    }
}

/// Checks that libraries can be loaded, in this order. Without this their first use would be a panic.
///
/// # Errors
/// The first that cannot, and what to do.
pub(crate) fn require(libraries: &[Library]) -> Result<(), ExecutionError> {
    match libraries.iter().find(|library| !library.is_present()) {
        None => Ok(()),
        Some(missing) => {
            let (name, file, advice) = missing.description();
            Err(ExecutionError::Device {
                what: name.to_string(),
                reason: format!("expected a library `{file}`, found none: {advice}"),
            })
        }
    }
}

/// Turns a driver's error into ours; `what` is the device or what was tried.
pub(crate) fn failed(what: &str) -> impl Fn(cudarc::driver::DriverError) -> ExecutionError + '_ {
    move |error| {
        let text =
            error.error_string().map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned());
        ExecutionError::Device { what: what.to_string(), reason: format!("{text} ({:?})", error.0) }
    }
}
