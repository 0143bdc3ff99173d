//! The C structs of the PJRT C API that the wrapper reads or writes; nothing else of the interface is declared here.
//!
//! Source: OpenXLA's `xla/pjrt/c/pjrt_c_api.h`, field order of version 0.81 (the header inside the wheel `xla-cpu-pjrt` 0.0.1), which
//! version 0.116 (`jax-cuda13-pjrt` 0.12.0.1) still has; and `pjrt_c_api_xla_transform_extension.h`, version 1. Within major version 0
//! fields are only ever added at the end of a struct, and `struct_size` says how many the other side knows. C computes it as the end of
//! the last field, which may be less than what Rust's `size_of` gives.

use std::ffi::{c_char, c_int, c_void};

/// `PJRT_Api_Version.major_version` whose layouts these are.
pub const API_MAJOR: c_int = 0;

/// The beginning of `PJRT_Api`. Pointers to functions follow, 8 bytes each, the first one at [`FIRST_FUNCTION`].
#[repr(C)]
#[derive(Debug)]
pub struct PjrtApi {
    /// Bytes of the whole table.
    pub struct_size: usize,
    /// The first extension, or null.
    pub extension_start: *mut ExtensionBase,
    /// The version of the interface that the plugin was built with.
    pub version: ApiVersion,
}

/// `PJRT_Api_Version`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ApiVersion {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub major: c_int,
    pub minor: c_int,
}

/// Where the pointers to functions begin in `PJRT_Api`.
pub const FIRST_FUNCTION: usize = size_of::<PjrtApi>();
/// Where `PJRT_Error_Destroy` stands in `PJRT_Api`.
pub const ERROR_DESTROY: usize = FIRST_FUNCTION;
/// Where `PJRT_Error_Message` stands in `PJRT_Api`.
pub const ERROR_MESSAGE: usize = FIRST_FUNCTION + 8;
/// Where `PJRT_Client_Compile` stands in `PJRT_Api`: the 21st function.
pub const CLIENT_COMPILE: usize = FIRST_FUNCTION + 20 * 8;

/// `PJRT_Extension_Base`: a link of the chain of extensions.
#[repr(C)]
#[derive(Debug)]
pub struct ExtensionBase {
    /// Bytes of the whole extension.
    pub struct_size: usize,
    /// `PJRT_Extension_Type`.
    pub kind: c_int,
    /// The next one, or null.
    pub next: *mut ExtensionBase,
}

/// `PJRT_Extension_Type_XlaTransform`.
pub const XLA_TRANSFORM: c_int = 24;

/// A `PJRT_Error`: the plugin alone knows what is in it.
#[repr(C)]
#[derive(Debug)]
pub struct PjrtError {
    _opaque: [u8; 0],
}

/// `PJRT_Error_Code_INTERNAL`.
pub const ERROR_INTERNAL: c_int = 13;

/// `PJRT_Error_Destroy_Args`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct ErrorDestroyArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub error: *mut PjrtError,
}

/// `PJRT_Error_Message_Args`; the message lives as long as the error.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct ErrorMessageArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub error: *const PjrtError,
    pub message: *const c_char,
    pub message_size: usize,
}

/// `PJRT_Error_Destroy`.
pub type ErrorDestroy = unsafe extern "C" fn(*mut ErrorDestroyArgs);
/// `PJRT_Error_Message`.
pub type ErrorMessage = unsafe extern "C" fn(*mut ErrorMessageArgs);

/// `PJRT_Program`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Program {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub code: *mut c_char,
    pub code_size: usize,
    /// `hlo`: a serialized HloModuleProto; `mlir`: text or bytecode; no terminating zero is needed.
    pub format: *const c_char,
    pub format_size: usize,
}

/// `PJRT_Client_Compile_Args`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct CompileArgs {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub client: *mut c_void,
    pub program: *const Program,
    /// A serialized CompileOptionsProto.
    pub compile_options: *const c_char,
    pub compile_options_size: usize,
    /// What comes back.
    pub executable: *mut c_void,
}

/// `PJRT_Client_Compile`.
pub type Compile = unsafe extern "C" fn(*mut CompileArgs) -> *mut PjrtError;

/// `PJRT_XlaTransform_string`: bytes that may hold zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct TransformString {
    pub data: *const c_char,
    pub size: usize,
}

/// `PJRT_XlaTransform_version_and_error`.
#[repr(C)]
#[derive(Debug)]
pub struct TransformHeader {
    /// The version of the extension that the caller has.
    pub api_version: i64,
    /// What `cleanup` is called with, once the caller has read what it was given.
    pub data: *mut c_void,
    /// Frees `data`; null where there is nothing to free.
    pub cleanup: Option<unsafe extern "C" fn(*mut c_void)>,
    /// Whether the compile fails.
    pub has_error: bool,
    /// `PJRT_Error_Code`.
    pub code: c_int,
    /// Why it fails.
    pub error_message: TransformString,
}

/// `PJRT_XlaTransform_Args`.
#[repr(C)]
#[derive(Debug)]
pub struct TransformArgs {
    /// Bytes up to the end of `changed`.
    pub struct_size: usize,
    /// Version, and the error if there is one.
    pub header: TransformHeader,
    /// A serialized HloModuleProto.
    pub module: TransformString,
    /// What became of it, if `changed`.
    pub transformed: TransformString,
    /// Whether the caller is to read `transformed`.
    pub changed: bool,
}

/// `PJRT_XlaTransform_Callbacks`.
#[repr(C)]
#[derive(Debug)]
pub struct TransformCallbacks {
    /// [`TRANSFORM_VERSION`].
    pub version: i64,
    /// Called when the callback is cleared; null where there is nothing to free.
    pub dtor: Option<unsafe extern "C" fn(*mut TransformCallbacks)>,
    /// Called with each module at the registered stage.
    pub transform: Option<unsafe extern "C" fn(*mut TransformCallbacks, *mut TransformArgs)>,
}

/// `PJRT_API_XLA_TRANSFORM_EXTENSION_VERSION`.
pub const TRANSFORM_VERSION: i64 = 1;
/// `PJRT_XlaTransform_PipelineStage_kPreScheduler`: after the SPMD partitioner and before collectives, layouts and fusions.
pub const PRE_SCHEDULER: c_int = 0;
/// `PJRT_XlaTransform_PipelineStage_kPostScheduler`: the order of instructions is chosen, and what follows keeps to it.
pub const POST_SCHEDULER: c_int = 1;

/// `PJRT_Register_Xla_Transform_Args`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct RegisterArgs {
    pub struct_size: usize,
    pub name: *const c_char,
    pub name_size: usize,
    pub stage: c_int,
    pub callbacks: *mut TransformCallbacks,
}

/// `PJRT_Clear_Xla_Transform_Args`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct ClearArgs {
    pub struct_size: usize,
    pub stage: c_int,
    pub name: *const c_char,
    pub name_size: usize,
    pub callbacks: *mut TransformCallbacks,
    pub cleared: bool,
}

/// `PJRT_Xla_Transform_Extension`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs)]
pub struct XlaTransformExtension {
    pub base: ExtensionBase,
    pub register: Option<unsafe extern "C" fn(*mut RegisterArgs) -> *mut PjrtError>,
    pub clear: Option<unsafe extern "C" fn(*mut ClearArgs) -> *mut PjrtError>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The numbers are what `offsetof` and `PJRT_STRUCT_SIZE` of the header give where pointers have 8 bytes.
    #[test]
    fn structs_lie_as_in_the_header() {
        assert_eq!(
            (size_of::<ApiVersion>(), offset_of!(ApiVersion, major), offset_of!(ApiVersion, minor)),
            (24, 16, 20)
        );
        assert_eq!((offset_of!(PjrtApi, extension_start), offset_of!(PjrtApi, version)), (8, 16));
        assert_eq!((FIRST_FUNCTION, ERROR_DESTROY, ERROR_MESSAGE, CLIENT_COMPILE), (40, 40, 48, 200));
        let base = (size_of::<ExtensionBase>(), offset_of!(ExtensionBase, kind), offset_of!(ExtensionBase, next));
        assert_eq!(base, (24, 8, 16));
        assert_eq!((size_of::<ErrorDestroyArgs>(), offset_of!(ErrorDestroyArgs, error)), (24, 16));
        let message = (offset_of!(ErrorMessageArgs, message), offset_of!(ErrorMessageArgs, message_size));
        assert_eq!((size_of::<ErrorMessageArgs>(), message), (40, (24, 32)));
    }

    #[test]
    fn programs_lie_as_in_the_header() {
        assert_eq!((offset_of!(Program, code), offset_of!(Program, code_size)), (16, 24));
        let format = (offset_of!(Program, format), offset_of!(Program, format_size), size_of::<Program>());
        assert_eq!(format, (32, 40, 48));
        assert_eq!((offset_of!(CompileArgs, client), offset_of!(CompileArgs, program)), (16, 24));
        let options = (offset_of!(CompileArgs, compile_options), offset_of!(CompileArgs, compile_options_size));
        assert_eq!(options, (32, 40));
        assert_eq!((offset_of!(CompileArgs, executable), size_of::<CompileArgs>()), (48, 56));
    }

    #[test]
    fn transforms_lie_as_in_the_header() {
        let header = (offset_of!(TransformHeader, data), offset_of!(TransformHeader, cleanup));
        assert_eq!(header, (8, 16));
        let error = (offset_of!(TransformHeader, has_error), offset_of!(TransformHeader, code));
        assert_eq!((error, offset_of!(TransformHeader, error_message)), ((24, 28), 32));
        assert_eq!((offset_of!(TransformArgs, header), offset_of!(TransformArgs, module)), (8, 56));
        assert_eq!((offset_of!(TransformArgs, transformed), offset_of!(TransformArgs, changed)), (72, 88));
        let callbacks = (offset_of!(TransformCallbacks, dtor), offset_of!(TransformCallbacks, transform));
        assert_eq!((callbacks, size_of::<TransformCallbacks>()), ((8, 16), 24));
        assert_eq!((offset_of!(RegisterArgs, stage), offset_of!(RegisterArgs, callbacks)), (24, 32));
        assert_eq!((offset_of!(ClearArgs, name), offset_of!(ClearArgs, callbacks)), (16, 32));
        assert_eq!(offset_of!(ClearArgs, cleared), 40);
        assert_eq!((offset_of!(XlaTransformExtension, register), offset_of!(XlaTransformExtension, clear)), (24, 32));
    }
}
