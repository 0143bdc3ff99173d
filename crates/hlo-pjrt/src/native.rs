//! The native route: callbacks of the extension XlaTransform, which the plugin calls with each module before its scheduler, and behind it.
//!
//! Before, XLA has partitioned the module, and has not yet combined its collectives, chosen layouts or fused: any framework's
//! programs come by here, in whatever format they were sent. Behind, the order of instructions is chosen and may be chosen anew.
#![allow(unsafe_code)] // Called by C, with pointers to its structs.

use crate::bounded::panic_text;
use crate::c_api::{
    ClearArgs, ERROR_INTERNAL, POST_SCHEDULER, PRE_SCHEDULER, PjrtApi, PjrtError, RegisterArgs, TRANSFORM_VERSION,
    TransformArgs, TransformCallbacks, TransformString,
};
use crate::compile::bytes;
use crate::errors::Errors;
use crate::extensions::{KnownApi, TransformFunctions};
use crate::rewrite::{Optimizer, Rewritten};
use crate::tool::{Route, program_name};
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

/// What the callback is called in the plugin.
const NAME: &[u8] = b"hlo-opt";

/// What the callbacks do, by stage. A plugin may call one with a copy of what was registered, so nothing can be found beside it.
static CURRENT: RwLock<[Option<Optimizer>; 2]> = RwLock::new([None, None]);

/// When a plugin calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Modules are partitioned; XLA's passes over collectives follow.
    Partitioned,
    /// Modules are scheduled.
    Scheduled,
}

impl Stage {
    fn number(self) -> c_int {
        match self {
            Stage::Partitioned => PRE_SCHEDULER,
            Stage::Scheduled => POST_SCHEDULER,
        }
    }

    fn callback(self) -> unsafe extern "C" fn(*mut TransformCallbacks, *mut TransformArgs) {
        match self {
            Stage::Partitioned => transform_partitioned,
            Stage::Scheduled => transform_scheduled,
        }
    }

    fn route(self) -> Route {
        match self {
            Stage::Partitioned => Route::Stage,
            Stage::Scheduled => Route::Scheduled,
        }
    }

    fn slot(self) -> usize {
        match self {
            Stage::Partitioned => 0,
            Stage::Scheduled => 1,
        }
    }
}

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

/// Registers a callback with a plugin: each module that it compiles from now on goes through the optimizer at this stage. A
/// callback that was registered before, also by another copy of this library, is cleared. All plugins of a process share the optimizer
/// that was registered last for a stage.
///
/// In Python, `api` is what the capsule `"pjrt_c_api"` of jaxlib's `get_pjrt_plugin` holds.
///
/// # Safety
/// `api` points to the table of a plugin, which stays where it is until the process ends, and so does the code of this library.
///
/// # Errors
/// The plugin has no such extension, or refuses.
pub unsafe fn register(api: NonNull<PjrtApi>, stage: Stage, optimizer: Optimizer) -> Result<(), RegisterError> {
    // SAFETY: by this function's contract.
    let api = unsafe { KnownApi::of(api) }.map_err(RegisterError::UnknownApi)?;
    let TransformFunctions { register, clear } = api.xla_transform().ok_or(RegisterError::NoExtension)?;
    set_current(stage, optimizer);
    let message = |error: *mut PjrtError| {
        let error = NonNull::new(error)?;
        // SAFETY: the plugin just made the error, and it is not used afterwards.
        Some(Errors::of(api).map_or(String::new(), |errors| unsafe { errors.take_message(error) }))
    };
    if let Some(clear) = clear {
        let mut args = ClearArgs {
            struct_size: offset_of!(ClearArgs, cleared) + size_of::<bool>(),
            stage: stage.number(),
            name: NAME.as_ptr().cast(),
            name_size: NAME.len(),
            callbacks: std::ptr::null_mut(),
            cleared: false,
        };
        // SAFETY: the arguments are complete. That there was nothing to clear is no error for us.
        message(unsafe { clear(&raw mut args) });
    }
    // The plugin keeps the pointer.
    let transform = Some(stage.callback());
    let callbacks = Box::leak(Box::new(TransformCallbacks { version: TRANSFORM_VERSION, dtor: None, transform }));
    let mut args = RegisterArgs {
        struct_size: size_of::<RegisterArgs>(),
        name: NAME.as_ptr().cast(),
        name_size: NAME.len(),
        stage: stage.number(),
        callbacks,
    };
    // SAFETY: the arguments are complete, and the callbacks live until the process ends.
    match message(unsafe { register(&raw mut args) }) {
        None => Ok(()),
        Some(why) => Err(RegisterError::Refused(why)),
    }
}

/// Sends modules through this optimizer from now on: those of plugins with a callback of this stage, and those that [`transform_module`] is
/// given.
pub fn set_current(stage: Stage, optimizer: Optimizer) {
    CURRENT.write().unwrap_or_else(PoisonError::into_inner)[stage.slot()] = Some(optimizer);
}

/// What the callback makes of a module, for compilers that no callback can be registered with; `None` where it stays as it is.
///
/// # Errors
/// Why the program is not to be compiled: settings are strict.
pub fn transform_module(module: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let Some(optimizer) = current(Stage::Partitioned) else { return Ok(None) };
    optimizer.of_stage(Stage::Partitioned.route(), module).into_result()
}

/// Says that nothing came of the module of this name, as a failure of the callback is said.
///
/// # Errors
/// As [`transform_module`].
pub fn module_failed(name: &str, why: String) -> Result<(), String> {
    let Some(optimizer) = current(Stage::Partitioned) else { return Ok(()) };
    optimizer.failed(name, why).into_result().map(drop)
}

/// Says why the module of this name stays as it is, as the callback does.
pub fn module_left(name: &str, why: &str) {
    if let Some(optimizer) = current(Stage::Partitioned) {
        optimizer.left(name, why);
    }
}

fn current(stage: Stage) -> Option<Optimizer> {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner)[stage.slot()].clone()
}

/// Modules that plugins compile from now on stay as they are.
pub fn unregister() {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = [None, None];
}

unsafe extern "C" fn transform_partitioned(_: *mut TransformCallbacks, args: *mut TransformArgs) {
    // SAFETY: the plugin calls it with arguments that are the callback's for the time of the call.
    unsafe { transform(Stage::Partitioned, args) }
}

unsafe extern "C" fn transform_scheduled(_: *mut TransformCallbacks, args: *mut TransformArgs) {
    // SAFETY: as above.
    unsafe { transform(Stage::Scheduled, args) }
}

/// # Safety
/// `args` is null, or points to the arguments of a callback, which are the callback's for the time of the call.
unsafe fn transform(stage: Stage, args: *mut TransformArgs) {
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
    let Some(optimizer) = current(stage) else { return };
    // SAFETY: the plugin says that so many bytes lie there, for the time of the call.
    let module = unsafe { bytes(args.module.data, args.module.size) };
    let rewritten =
        catch_unwind(AssertUnwindSafe(|| optimizer.of_stage(stage.route(), module))).unwrap_or_else(|panic| {
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
