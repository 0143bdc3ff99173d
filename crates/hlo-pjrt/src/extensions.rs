//! The chain of extensions of a table of functions.
#![allow(unsafe_code)] // Structs of a plugin are read through its pointers.

use crate::c_api::{API_MAJOR, ApiVersion, ExtensionBase, PjrtApi, XLA_TRANSFORM, XlaTransformExtension};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;

/// Links that are followed: a chain that leads back into itself ends here. Version 0.116 knows some 25 kinds.
const MOST_LINKS: usize = 1 << 10;

/// A table that is larger is none: version 0.116 has some 1,200 bytes.
const MOST_BYTES: usize = 1 << 16;

/// A table of functions whose layout is known.
#[derive(Clone, Copy)]
pub(crate) struct KnownApi {
    api: NonNull<PjrtApi>,
    struct_size: usize,
}

impl KnownApi {
    /// Looks at a table.
    ///
    /// # Safety
    /// `api` points to a `PJRT_Api` of whatever version, which stays where it is.
    ///
    /// # Errors
    /// Why nothing is known of its layout.
    pub(crate) unsafe fn of(api: NonNull<PjrtApi>) -> Result<KnownApi, String> {
        // SAFETY: every version begins with its size.
        let struct_size = unsafe { (*api.as_ptr()).struct_size };
        let least = size_of::<PjrtApi>();
        if !(least..=MOST_BYTES).contains(&struct_size) {
            return Err(format!("expected a PJRT_Api of {least} to {MOST_BYTES} bytes, found {struct_size}"));
        }
        // SAFETY: the struct has at least the fields of `PjrtApi`.
        let ApiVersion { major, minor, .. } = unsafe { (*api.as_ptr()).version };
        if major != API_MAJOR {
            return Err(format!("expected version {API_MAJOR} of the PJRT C API, found {major}.{minor}"));
        }
        Ok(KnownApi { api, struct_size })
    }

    /// The bytes of the table.
    pub(crate) fn struct_size(self) -> usize {
        self.struct_size
    }

    /// Where the table lies.
    pub(crate) fn address(self) -> NonNull<PjrtApi> {
        self.api
    }

    /// The function at an offset; none where the table ends before, or has none there.
    pub(crate) fn function(self, offset: usize) -> Option<NonNull<c_void>> {
        if offset + size_of::<*mut c_void>() > self.struct_size {
            return None;
        }
        // SAFETY: the pointer lies within the table, which is aligned as pointers are, and so is the offset.
        let function = unsafe { self.api.as_ptr().byte_add(offset).cast::<*mut c_void>().read() };
        NonNull::new(function)
    }

    /// The extension of a kind, with at least so many bytes.
    fn extension(self, kind: c_int, least_bytes: usize) -> Option<NonNull<ExtensionBase>> {
        // SAFETY: the table has at least the fields of `PjrtApi`.
        let mut next = unsafe { (*self.api.as_ptr()).extension_start };
        for _ in 0..MOST_LINKS {
            let extension = NonNull::new(next)?;
            // SAFETY: each link begins with its size.
            let struct_size = unsafe { (*extension.as_ptr()).struct_size };
            if struct_size < size_of::<ExtensionBase>() {
                return None;
            }
            // SAFETY: the link has at least the fields of `ExtensionBase`.
            let base = unsafe { extension.as_ref() };
            if base.kind == kind && struct_size >= least_bytes {
                return Some(extension);
            }
            next = base.next;
        }
        None
    }

    /// The functions of the extension XlaTransform: the one that registers, and the one that clears where it is there.
    pub(crate) fn xla_transform(self) -> Option<TransformFunctions> {
        let least_bytes = offset_of!(XlaTransformExtension, clear);
        let extension = self.extension(XLA_TRANSFORM, least_bytes)?.cast::<XlaTransformExtension>().as_ptr();
        // SAFETY: an extension of this kind that reaches up to `clear` has `register`.
        let register = unsafe { (*extension).register }?;
        // SAFETY: it has a size, as all do.
        let struct_size = unsafe { (*extension).base.struct_size };
        let has_clear = struct_size >= size_of::<XlaTransformExtension>();
        // SAFETY: the extension reaches beyond `clear`.
        let clear = if has_clear { unsafe { (*extension).clear } } else { None };
        Some(TransformFunctions { register, clear })
    }
}

/// What the extension XlaTransform can do.
#[derive(Clone, Copy)]
pub(crate) struct TransformFunctions {
    pub register: unsafe extern "C" fn(*mut crate::c_api::RegisterArgs) -> *mut crate::c_api::PjrtError,
    pub clear: Option<unsafe extern "C" fn(*mut crate::c_api::ClearArgs) -> *mut crate::c_api::PjrtError>,
}
