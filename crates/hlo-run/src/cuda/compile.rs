//! Kernels as machine code: CUDA C++ through NVRTC, about a hundred kernels to a program.
#![allow(unsafe_code)] // NVRTC is a C interface; programs are destroyed where they were made.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::{result, sys};

use crate::ExecutionError;
use hlo_gpu::kernel::prelude;
use hlo_gpu::plan::Kernel;

/// Kernels of one program: as few as keep all cores busy, because one program is compiled by one thread, but not fewer than
/// pay for the prelude that each program begins with.
const PER_PROGRAM: std::ops::RangeInclusive<usize> = 8..=100;

/// Machine code of some kernels, in their order.
pub(crate) struct Cubin {
    /// As the driver loads it.
    pub code: Vec<u8>,
    /// The kernels in it.
    pub names: Vec<String>,
}

/// Compiles kernels for an architecture such as 90.
///
/// # Errors
/// NVRTC refuses a program: its first messages.
pub(crate) fn compile(kernels: &[&Kernel], arch: u32) -> Result<Vec<Cubin>, ExecutionError> {
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
    let per_program = kernels.len().div_ceil(n_cores).clamp(*PER_PROGRAM.start(), *PER_PROGRAM.end());
    let batches: Vec<&[&Kernel]> = kernels.chunks(per_program).collect();
    let next = AtomicUsize::new(0);
    let work = || -> Vec<(usize, Result<Cubin, ExecutionError>)> {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < batches.len());
        std::iter::from_fn(take).map(|i| (i, program(batches[i], arch))).collect()
    };
    let n_threads = n_cores.min(batches.len());
    let mut done: Vec<(usize, Result<Cubin, ExecutionError>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    if done.len() != batches.len() {
        return Err(wrong("a thread of the compiler crashed".to_string()));
    }
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, cubin)| cubin).collect()
}

fn wrong(reason: String) -> ExecutionError {
    ExecutionError::Device { what: "NVRTC".to_string(), reason }
}

fn program(kernels: &[&Kernel], arch: u32) -> Result<Cubin, ExecutionError> {
    let mut text = prelude();
    for kernel in kernels {
        text.push('\n');
        text.push_str(&kernel.source);
    }
    let text = CString::new(text).map_err(|e| wrong(e.to_string()))?;
    let failed = |error: result::NvrtcError| wrong(format!("{:?}", error.0));
    let program = result::create_program(&text, None).map_err(failed)?;
    let options = [format!("--gpu-architecture=sm_{arch}"), "--std=c++17".to_string()];
    // SAFETY: the program was just made; it is destroyed once, after its last use; `text` lives until then.
    unsafe {
        let compiled = result::compile_program(program, &options);
        let outcome = match compiled {
            Ok(()) => cubin(program).map_err(failed),
            Err(error) => Err(wrong(format!("{:?}: {}", error.0, first_errors(program)))),
        };
        let destroyed = result::destroy_program(program);
        let code = outcome?;
        destroyed.map_err(failed)?;
        Ok(Cubin { code, names: kernels.iter().map(|kernel| kernel.name.clone()).collect() })
    }
}

/// # Safety
/// `program` was compiled and is not destroyed.
unsafe fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0usize;
    // SAFETY: by the caller; the buffer has the size that NVRTC asks for.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &raw mut size).result()?;
        let mut code = vec![0u8; size];
        sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
        Ok(code)
    }
}

/// # Safety
/// `program` is not destroyed.
unsafe fn first_errors(program: sys::nvrtcProgram) -> String {
    // SAFETY: by the caller.
    let Ok(mut log) = (unsafe { result::get_program_log(program) }) else { return "no message".to_string() };
    log.push(0);
    let bytes: Vec<u8> = log.iter().map(|&c| c.cast_unsigned()).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("error")).take(5).collect();
    errors.join("; ")
}
