//! Compiled kernels as functions.
#![allow(unsafe_code)] // Calls functions of a shared object that this crate generated and compiled.

use std::collections::HashMap;

use super::cache::KernelCache;
use super::compile::{program, shared_object};
use super::memory::Pointer;
use crate::ExecutionError;
use hlo_gpu::plan::Kernel;

/// `name_run(arguments, grid, block)` of the generated program.
type Run = unsafe extern "C" fn(*const Pointer, u32, u32);

/// Kernels that can be launched on the host.
#[derive(Debug)]
pub struct Library {
    entries: HashMap<String, Run>,
    /// Holds the code that `entries` point to.
    _object: Option<libloading::Library>,
}

impl Library {
    /// Compiles kernels, or finds them compiled. Kernels of one name must be equal.
    ///
    /// # Errors
    /// No C++ compiler, or one that refuses the program; a cache folder that cannot be written.
    pub fn new<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> Result<Library, ExecutionError> {
        Library::with_cache(kernels, None, KernelCache::default())
    }

    /// As [`Library::new`], with `-fsanitize=` a list of sanitizers, whose runtime must be loaded into this process.
    ///
    /// # Errors
    /// As [`Library::new`].
    pub fn with_sanitizers<'a>(
        kernels: impl IntoIterator<Item = &'a Kernel>,
        sanitizers: Option<&str>,
    ) -> Result<Library, ExecutionError> {
        Library::with_cache(kernels, sanitizers, KernelCache::default())
    }

    /// As [`Library::with_sanitizers`], kept for the next run or not.
    ///
    /// # Errors
    /// As [`Library::new`].
    pub fn with_cache<'a>(
        kernels: impl IntoIterator<Item = &'a Kernel>,
        sanitizers: Option<&str>,
        cache: KernelCache,
    ) -> Result<Library, ExecutionError> {
        let mut distinct: Vec<&Kernel> = Vec::new();
        let mut seen: HashMap<&str, &Kernel> = HashMap::new();
        for kernel in kernels {
            match seen.insert(&kernel.name, kernel) {
                None => distinct.push(kernel),
                Some(other) if other.source == kernel.source => {}
                Some(_) => {
                    let reason = "expected one source for a name, found two".to_string();
                    return Err(ExecutionError::Host { what: kernel.name.clone(), reason });
                }
            }
        }
        if distinct.is_empty() {
            return Ok(Library { entries: HashMap::new(), _object: None });
        }
        let compiled = shared_object(&program(distinct.iter().copied()), sanitizers, cache)?;
        let path = &compiled.path;
        let load_error =
            |e: libloading::Error| ExecutionError::Host { what: path.display().to_string(), reason: e.to_string() };
        // SAFETY: the object is this crate's own program; loading it runs no code but the C++ runtime's initializers.
        let object = unsafe { libloading::Library::new(path) }.map_err(load_error)?;
        let mut entries = HashMap::new();
        for kernel in distinct {
            let symbol = format!("{}_run", kernel.name);
            // SAFETY: the program defines the symbol with the type `Run`, and `object` outlives the pointer.
            let run = unsafe { object.get::<Run>(symbol.as_bytes()) }.map_err(load_error)?;
            entries.insert(kernel.name.clone(), *run);
        }
        Ok(Library { entries, _object: Some(object) })
    }

    /// Runs all threads of a kernel. `arguments` are in the kernel's order.
    ///
    /// # Errors
    /// A kernel that was not compiled, or another number of arguments.
    pub fn launch(&self, kernel: &Kernel, arguments: &[Pointer]) -> Result<(), ExecutionError> {
        let error = |reason: String| ExecutionError::Host { what: kernel.name.clone(), reason };
        let run = self.entries.get(&kernel.name).ok_or_else(|| error("the kernel was not compiled".to_string()))?;
        if arguments.len() != kernel.arguments.len() {
            return Err(error(format!("expected {} arguments, found {}", kernel.arguments.len(), arguments.len())));
        }
        // SAFETY: each pointer is valid for its whole array (`memory` checks places and sizes), nothing else uses the memory
        // during the call, and the kernel reads and writes within its arrays.
        unsafe { run(arguments.as_ptr(), kernel.grid, kernel.block) };
        Ok(())
    }
}
