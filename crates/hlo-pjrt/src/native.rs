//! The native route: a callback of the extension XlaTransform, which the plugin calls with each module before its scheduler.
//!
//! By then XLA has partitioned the module, and has not yet combined its collectives, chosen layouts or fused: any framework's
//! programs come by here, in whatever format they were sent.
#![allow(unsafe_code)] // Called by C, with pointers to its structs.

use crate::bounded::panic_text;
use crate::c_api::{
    ClearArgs, ERROR_INTERNAL, PRE_SCHEDULER, PjrtApi, PjrtError, RegisterArgs, TRANSFORM_VERSION, TransformArgs,
    TransformCallbacks, TransformString,
};
use crate::compile::bytes;
use crate::errors::Errors;
use crate::extensions::{KnownApi, TransformFunctions};
use crate::rewrite::{Optimizer, Rewritten};
use crate::tool::program_name;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

/// What the callback is called in the plugin.
const NAME: &[u8] = b"hlo-opt";

/// What the callback does. A plugin may call it with a copy of what was registered, so nothing can be found beside it.
static CURRENT: RwLock<Option<Optimizer>> = RwLock::new(None);

/// Why no callback was registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegisterError {
    /// Nothing is known of the layout of the plugin's table.
    UnknownApi(String),
    /// The plugin has no extension XlaTransform.
    NoExtension,
    /// The plugin refused.
    Refused(String),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::UnknownApi(why) => f.write_str(why),
            RegisterError::NoExtension => f.write_str("expected a plugin with the extension XlaTransform, found none"),
            RegisterError::Refused(why) => write!(f, "the plugin refuses the callback: {why}"),
        }
    }
}

impl std::error::Error for RegisterError {}

/// Registers a callback with a plugin: each module that it compiles from now on goes through the optimizer before the scheduler. A
/// callback that was registered before, also by another copy of this library, is cleared. All plugins of a process share the optimizer
/// that was registered last.
///
/// In Python, `api` is what the capsule `"pjrt_c_api"` of jaxlib's `get_pjrt_plugin` holds.
///
/// # Safety
/// `api` points to the table of a plugin, which stays where it is until the process ends, and so does the code of this library.
///
/// # Errors
/// The plugin has no such extension, or refuses.
pub unsafe fn register(api: NonNull<PjrtApi>, optimizer: Optimizer) -> Result<(), RegisterError> {
    // SAFETY: by this function's contract.
    let api = unsafe { KnownApi::of(api) }.map_err(RegisterError::UnknownApi)?;
    let TransformFunctions { register, clear } = api.xla_transform().ok_or(RegisterError::NoExtension)?;
    set_current(optimizer);
    let message = |error: *mut PjrtError| {
        let error = NonNull::new(error)?;
        // SAFETY: the plugin just made the error, and it is not used afterwards.
        Some(Errors::of(api).map_or(String::new(), |errors| unsafe { errors.take_message(error) }))
    };
    if let Some(clear) = clear {
        let mut args = ClearArgs {
            struct_size: offset_of!(ClearArgs, cleared) + size_of::<bool>(),
            stage: PRE_SCHEDULER,
            name: NAME.as_ptr().cast(),
            name_size: NAME.len(),
            callbacks: std::ptr::null_mut(),
            cleared: false,
        };
        // SAFETY: the arguments are complete. That there was nothing to clear is no error for us.
        message(unsafe { clear(&raw mut args) });
    }
    // The plugin keeps the pointer.
    let callbacks =
        Box::leak(Box::new(TransformCallbacks { version: TRANSFORM_VERSION, dtor: None, transform: Some(transform) }));
    let mut args = RegisterArgs {
        struct_size: size_of::<RegisterArgs>(),
        name: NAME.as_ptr().cast(),
        name_size: NAME.len(),
        stage: PRE_SCHEDULER,
        callbacks,
    };
    // SAFETY: the arguments are complete, and the callbacks live until the process ends.
    match message(unsafe { register(&raw mut args) }) {
        None => Ok(()),
        Some(why) => Err(RegisterError::Refused(why)),
    }
}

/// Sends modules through this optimizer from now on: those of plugins with a callback, and those that [`transform_module`] is given.
pub fn set_current(optimizer: Optimizer) {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(optimizer);
}

/// What the callback makes of a module, for compilers that no callback can be registered with; `None` where it stays as it is.
///
/// # Errors
/// Why the program is not to be compiled: settings are strict.
pub fn transform_module(module: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let Some(optimizer) = current() else { return Ok(None) };
    optimizer.of_stage(module).into_result()
}

/// Says that nothing came of the module of this name, as a failure of the callback is said.
///
/// # Errors
/// As [`transform_module`].
pub fn module_failed(name: &str, why: String) -> Result<(), String> {
    let Some(optimizer) = current() else { return Ok(()) };
    optimizer.failed(name, why).into_result().map(drop)
}

/// Says why the module of this name stays as it is, as the callback does.
pub fn module_left(name: &str, why: &str) {
    if let Some(optimizer) = current() {
        optimizer.left(name, why);
    }
}

fn current() -> Option<Optimizer> {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Modules that plugins compile from now on stay as they are.
pub fn unregister() {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = None;
}

unsafe extern "C" fn transform(_: *mut TransformCallbacks, args: *mut TransformArgs) {
    let Some(mut args) = NonNull::new(args) else { return };
    // SAFETY: every version begins with its size.
    let struct_size = unsafe { (*args.as_ptr()).struct_size };
    if struct_size < offset_of!(TransformArgs, changed) + size_of::<bool>() {
        return;
    }
    // SAFETY: the arguments have all fields, and are the callback's for the time of the call. (The padding behind the last one is not
    // touched.)
    let args = unsafe { args.as_mut() };
    if args.header.api_version != TRANSFORM_VERSION {
        return;
    }
    let Some(optimizer) = current() else { return };
    // SAFETY: the plugin says that so many bytes lie there, for the time of the call.
    let module = unsafe { bytes(args.module.data, args.module.size) };
    let rewritten = catch_unwind(AssertUnwindSafe(|| optimizer.of_stage(module))).unwrap_or_else(|panic| {
        optimizer.failed(&program_name(module), format!("internal error: {}", panic_text(&*panic)))
    });
    match rewritten {
        Rewritten::Same => {}
        Rewritten::Other(proto) => {
            args.transformed = hand_over(args, proto);
            args.changed = true;
        }
        Rewritten::Refused(why) => {
            args.header.error_message = hand_over(args, format!("hlo-opt (HLO_OPT_STRICT=1): {why}").into_bytes());
            args.header.code = ERROR_INTERNAL;
            args.header.has_error = true;
        }
    }
}

/// Gives bytes to the caller, who calls `cleanup` when it has read them.
fn hand_over(args: &mut TransformArgs, bytes: Vec<u8>) -> TransformString {
    let bytes = Box::new(bytes);
    let text = TransformString { data: bytes.as_ptr().cast::<c_char>(), size: bytes.len() };
    args.header.data = Box::into_raw(bytes).cast();
    args.header.cleanup = Some(free);
    text
}

unsafe extern "C" fn free(data: *mut c_void) {
    if !data.is_null() {
        // SAFETY: `hand_over` made it of a box of this type, and the caller frees it once.
        drop(unsafe { Box::from_raw(data.cast::<Vec<u8>>()) });
    }
}
