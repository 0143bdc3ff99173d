//! What the framework gets: the plugin's own table of functions, or a copy with our compile in it.
#![allow(unsafe_code)] // Copies a table of C functions and changes one of them.

use crate::c_api::{CLIENT_COMPILE, Compile, PjrtApi};
use crate::compile::{Interception, entry_for};
use crate::errors::Errors;
use crate::extensions::KnownApi;
use crate::log::Level;
use crate::native::{RegisterError, Stage, register};
use crate::rewrite::Optimizer;
use std::ffi::c_void;
use std::ptr::NonNull;

/// Makes the programs that a plugin compiles go through an optimizer, and gives the table for the framework. Where the plugin has the
/// extension XlaTransform, that is its own table, and a callback is registered with it; else a copy whose `PJRT_Client_Compile` is
/// ours. Where neither can be done, it is the plugin's own table, and a line says why.
///
/// # Safety
/// `real` points to the table of a plugin, which stays where it is until the process ends.
pub unsafe fn wrap(real: NonNull<PjrtApi>, optimizer: Optimizer) -> NonNull<PjrtApi> {
    if optimizer.settings().is_off {
        return real;
    }
    let say = |level: Level, line: &str| optimizer.settings().log.say(level, line);
    // SAFETY: by this function's contract.
    let api = match unsafe { KnownApi::of(real) } {
        Ok(api) => api,
        Err(why) => {
            say(Level::Warning, &format!("nothing is optimized: {why}"));
            return real;
        }
    };
    // SAFETY: by this function's contract.
    match unsafe { register(real, Stage::Partitioned, optimizer.clone()) } {
        Ok(()) => {
            say(Level::All, "registered with the plugin, before its scheduler (XlaTransform)");
            return real;
        }
        Err(RegisterError::NoExtension) => {}
        Err(error) => say(Level::Warning, &format!("{error}; programs of format `hlo` are optimized instead")),
    }
    match intercept(api, &optimizer) {
        Ok(copy) => copy,
        Err(why) => {
            say(Level::Warning, &format!("nothing is optimized: {why}"));
            real
        }
    }
}

/// A copy of the table with our compile in it.
fn intercept(api: KnownApi, optimizer: &Optimizer) -> Result<NonNull<PjrtApi>, String> {
    let real = api.function(CLIENT_COMPILE);
    let real = real.ok_or("expected a plugin that has PJRT_Client_Compile, found none")?;
    // SAFETY: the function at this place of the table has this type, in all minor versions.
    let real = unsafe { std::mem::transmute::<NonNull<c_void>, Compile>(real) };
    let entry = entry_for(Interception { real, errors: Errors::of(api), optimizer: optimizer.clone() })?;

    let n_bytes = api.struct_size();
    // Words, for the alignment of pointers. The copy is used until the process ends.
    let copy: &'static mut [usize] = vec![0; n_bytes.div_ceil(size_of::<usize>())].leak();
    let copy = NonNull::from(copy).cast::<PjrtApi>();
    // SAFETY: both have so many bytes, and do not overlap.
    unsafe { copy.cast::<u8>().copy_from_nonoverlapping(api.address().cast::<u8>(), n_bytes) };
    // SAFETY: the table reaches beyond this pointer, as it was read there.
    unsafe { copy.byte_add(CLIENT_COMPILE).cast::<Compile>().write(entry) };
    Ok(copy)
}
