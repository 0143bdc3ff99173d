//! Errors of the wrapped plugin: read and freed by its own functions.
#![allow(unsafe_code)] // Calls functions of the plugin.

use crate::c_api::{
    ERROR_DESTROY, ERROR_MESSAGE, ErrorDestroy, ErrorDestroyArgs, ErrorMessage, ErrorMessageArgs, PjrtError,
};
use crate::extensions::KnownApi;
use std::ffi::c_void;
use std::ptr::{NonNull, null, null_mut};

/// The plugin's functions for errors.
#[derive(Clone, Copy)]
pub(crate) struct Errors {
    destroy: ErrorDestroy,
    message: ErrorMessage,
}

impl Errors {
    /// Those of a table; none where it has none.
    pub(crate) fn of(api: KnownApi) -> Option<Errors> {
        let (destroy, message) = (api.function(ERROR_DESTROY)?, api.function(ERROR_MESSAGE)?);
        // SAFETY: the function at this place of the table has this type, in all minor versions.
        let destroy = unsafe { std::mem::transmute::<NonNull<c_void>, ErrorDestroy>(destroy) };
        // SAFETY: as above.
        let message = unsafe { std::mem::transmute::<NonNull<c_void>, ErrorMessage>(message) };
        Some(Errors { destroy, message })
    }

    /// Frees an error and gives its message.
    ///
    /// # Safety
    /// `error` came from this plugin, and nobody else frees or uses it.
    pub(crate) unsafe fn take_message(self, error: NonNull<PjrtError>) -> String {
        let mut args = ErrorMessageArgs {
            struct_size: size_of::<ErrorMessageArgs>(),
            extension_start: null_mut(),
            error: error.as_ptr(),
            message: null(),
            message_size: 0,
        };
        // SAFETY: the arguments are complete, and the error is alive.
        unsafe { (self.message)(&raw mut args) };
        let text = match args.message.is_null() {
            true => String::new(),
            // SAFETY: the plugin says that so many bytes lie there as long as the error lives.
            false => String::from_utf8_lossy(unsafe {
                std::slice::from_raw_parts(args.message.cast::<u8>(), args.message_size)
            })
            .into_owned(),
        };
        let mut args = ErrorDestroyArgs {
            struct_size: size_of::<ErrorDestroyArgs>(),
            extension_start: null_mut(),
            error: error.as_ptr(),
        };
        // SAFETY: the error is alive, and not used afterwards.
        unsafe { (self.destroy)(&raw mut args) };
        text
    }
}
