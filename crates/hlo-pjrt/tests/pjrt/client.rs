//! A small PJRT client: what a framework does with a plugin, as far as the tests need it.
//!
//! Source of the structs and of the places of functions: OpenXLA's `xla/pjrt/c/pjrt_c_api.h`, version 0.81.
#![allow(unsafe_code)] // Calls a plugin's functions.

use hlo_pjrt::c_api::{
    CompileArgs, ErrorDestroyArgs, ErrorMessageArgs, ExtensionBase, FIRST_FUNCTION, PjrtApi, PjrtError, Program,
};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};

/// Where a function stands among those of the table.
mod place {
    pub(super) const ERROR_DESTROY: usize = 0;
    pub(super) const ERROR_MESSAGE: usize = 1;
    pub(super) const PLUGIN_INITIALIZE: usize = 3;
    pub(super) const EVENT_DESTROY: usize = 5;
    pub(super) const EVENT_AWAIT: usize = 8;
    pub(super) const CLIENT_CREATE: usize = 10;
    pub(super) const CLIENT_DESTROY: usize = 11;
    pub(super) const CLIENT_ADDRESSABLE_DEVICES: usize = 16;
    pub(super) const CLIENT_COMPILE: usize = 20;
    pub(super) const BUFFER_FROM_HOST: usize = 22;
    pub(super) const EXECUTABLE_DESTROY: usize = 40;
    pub(super) const EXECUTABLE_NUM_OUTPUTS: usize = 44;
    pub(super) const EXECUTABLE_OPTIMIZED_PROGRAM: usize = 48;
    pub(super) const LOADED_DESTROY: usize = 50;
    pub(super) const LOADED_GET_EXECUTABLE: usize = 51;
    pub(super) const LOADED_ADDRESSABLE_DEVICES: usize = 52;
    pub(super) const LOADED_EXECUTE: usize = 55;
    pub(super) const BUFFER_DESTROY: usize = 58;
    pub(super) const BUFFER_TO_HOST: usize = 70;
}

/// Structs that begin with their size and an extension, all zero but for the size.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => { $(
        $(#[$doc])*
        #[repr(C)]
        struct $name {
            struct_size: usize,
            extension_start: *mut ExtensionBase,
            $($field: $kind,)*
        }

        impl $name {
            fn new() -> $name {
                // SAFETY: numbers and pointers, for which zero is a value.
                $name { struct_size: size_of::<$name>(), ..unsafe { std::mem::zeroed() } }
            }
        }
    )* };
}

structs! {
    InitializeArgs {}
    /// Destroying and awaiting: one pointer.
    ObjectArgs { object: *mut c_void }
    NamedValue { name: *const c_char, name_size: usize, kind: c_int, int64: i64, value_size: usize }
    CreateArgs {
        options: *const NamedValue,
        n_options: usize,
        kv_get: *mut c_void,
        kv_get_argument: *mut c_void,
        kv_put: *mut c_void,
        kv_put_argument: *mut c_void,
        client: *mut c_void,
        kv_try_get: *mut c_void,
        kv_try_get_argument: *mut c_void,
    }
    /// What belongs to an object: a pointer to a list, and its length; or another object.
    PartsArgs { object: *mut c_void, parts: *const *mut c_void, n_parts: usize }
    PartArgs { object: *mut c_void, part: *mut c_void }
    OptimizedProgramArgs { executable: *mut c_void, program: *mut Program }
    BufferFromHostArgs {
        client: *mut c_void,
        data: *const c_void,
        kind: c_int,
        dims: *const i64,
        n_dims: usize,
        byte_strides: *const i64,
        n_byte_strides: usize,
        semantics: c_int,
        device: *mut c_void,
        memory: *mut c_void,
        layout: *mut c_void,
        done: *mut c_void,
        buffer: *mut c_void,
    }
    ToHostArgs { source: *mut c_void, layout: *mut c_void, target: *mut c_void, target_size: usize, event: *mut c_void }
    ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        n_send_ops: usize,
        n_recv_ops: usize,
        launch_id: c_int,
        non_donatable: *const i64,
        n_non_donatable: usize,
        context: *mut c_void,
        call_location: *const c_char,
        n_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
    }
    ExecuteArgs {
        executable: *mut c_void,
        options: *mut ExecuteOptions,
        arguments: *const *const *mut c_void,
        n_devices: usize,
        n_arguments: usize,
        results: *const *mut *mut c_void,
        complete: *mut *mut c_void,
        device: *mut c_void,
    }
}

/// The kinds of arrays that the samples have, by `PJRT_Buffer_Type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    S32 = 4,
    F32 = 11,
}

/// An array on the host, 4 bytes for each element.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Array {
    pub kind: Kind,
    pub dims: Vec<i64>,
    pub bytes: Vec<u8>,
}

/// Owned handles of one plugin.
pub(crate) struct Client {
    api: NonNull<PjrtApi>,
    client: *mut c_void,
    devices: Vec<*mut c_void>,
}

/// A program that can run.
pub(crate) struct Executable<'c> {
    client: &'c Client,
    loaded: *mut c_void,
    /// Where each argument list goes.
    devices: Vec<*mut c_void>,
}

impl Client {
    /// A client of a plugin for CPU devices.
    pub(crate) fn new(api: NonNull<PjrtApi>, n_devices: i64) -> Result<Client, String> {
        let mut client = Client { api, client: null_mut(), devices: Vec::new() };
        client.call(place::PLUGIN_INITIALIZE, &mut InitializeArgs::new())?;
        let name = b"cpu_device_count";
        let option = NamedValue {
            name: name.as_ptr().cast(),
            name_size: name.len(),
            kind: 1,
            int64: n_devices,
            value_size: 1,
            ..NamedValue::new()
        };
        let mut args = CreateArgs { options: &raw const option, n_options: 1, ..CreateArgs::new() };
        client.call(place::CLIENT_CREATE, &mut args)?;
        client.client = args.client;
        client.devices = client.parts(place::CLIENT_ADDRESSABLE_DEVICES, client.client)?;
        Ok(client)
    }

    /// How many devices there are.
    pub(crate) fn n_devices(&self) -> usize {
        self.devices.len()
    }

    /// Calls a function of the table.
    fn call<A>(&self, place: usize, args: &mut A) -> Result<(), String> {
        // SAFETY: version 0.81 has pointers to functions at all places that are named here.
        let function = unsafe { self.api.byte_add(FIRST_FUNCTION + 8 * place).cast::<*const ()>().read() };
        // SAFETY: all of these take a pointer to their arguments and give an error.
        let function =
            unsafe { std::mem::transmute::<*const (), unsafe extern "C" fn(*mut A) -> *mut PjrtError>(function) };
        // SAFETY: the arguments are complete.
        let error = unsafe { function(&raw mut *args) };
        if error.is_null() { Ok(()) } else { Err(self.take_message(error)) }
    }

    fn take_message(&self, error: *mut PjrtError) -> String {
        let mut args = ErrorMessageArgs {
            struct_size: size_of::<ErrorMessageArgs>(),
            extension_start: null_mut(),
            error,
            message: null(),
            message_size: 0,
        };
        self.tell(place::ERROR_MESSAGE, &mut args);
        // SAFETY: the plugin says that so many bytes lie there.
        let text = unsafe { std::slice::from_raw_parts(args.message.cast::<u8>(), args.message_size) };
        let text = String::from_utf8_lossy(text).into_owned();
        let struct_size = size_of::<ErrorDestroyArgs>();
        self.tell(place::ERROR_DESTROY, &mut ErrorDestroyArgs { struct_size, extension_start: null_mut(), error });
        text
    }

    /// Calls a function that gives nothing.
    fn tell<A>(&self, place: usize, args: &mut A) {
        // SAFETY: as in `call`.
        let function = unsafe { self.api.byte_add(FIRST_FUNCTION + 8 * place).cast::<*const ()>().read() };
        // SAFETY: these take a pointer to their arguments and give nothing.
        let function = unsafe { std::mem::transmute::<*const (), unsafe extern "C" fn(*mut A)>(function) };
        // SAFETY: the arguments are complete.
        unsafe { function(&raw mut *args) };
    }

    fn destroy(&self, place: usize, object: *mut c_void) {
        let destroyed = self.call(place, &mut ObjectArgs { object, ..ObjectArgs::new() });
        assert_eq!(destroyed, Ok(()), "destroying");
    }

    /// Waits for an event and frees it.
    fn finish(&self, event: *mut c_void) -> Result<(), String> {
        if event.is_null() {
            return Ok(());
        }
        let waited = self.call(place::EVENT_AWAIT, &mut ObjectArgs { object: event, ..ObjectArgs::new() });
        self.destroy(place::EVENT_DESTROY, event);
        waited
    }

    fn parts(&self, place: usize, object: *mut c_void) -> Result<Vec<*mut c_void>, String> {
        let mut args = PartsArgs { object, ..PartsArgs::new() };
        self.call(place, &mut args)?;
        // SAFETY: the plugin says that so many pointers lie there.
        Ok(unsafe { std::slice::from_raw_parts(args.parts, args.n_parts) }.to_vec())
    }

    /// Compiles an HloModuleProto.
    pub(crate) fn compile(&self, proto: &[u8], options: &[u8]) -> Result<Executable<'_>, String> {
        let format = "hlo";
        let program = Program {
            struct_size: size_of::<Program>(),
            extension_start: null_mut(),
            code: proto.as_ptr().cast_mut().cast(),
            code_size: proto.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
        };
        let mut args = CompileArgs {
            struct_size: size_of::<CompileArgs>(),
            extension_start: null_mut(),
            client: self.client,
            program: &raw const program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            executable: null_mut(),
        };
        self.call(place::CLIENT_COMPILE, &mut args)?;
        let devices = self.parts(place::LOADED_ADDRESSABLE_DEVICES, args.executable)?;
        Ok(Executable { client: self, loaded: args.executable, devices })
    }

    fn to_device(&self, array: &Array, device: *mut c_void) -> Result<*mut c_void, String> {
        let mut args = BufferFromHostArgs {
            client: self.client,
            data: array.bytes.as_ptr().cast(),
            kind: array.kind as c_int,
            dims: array.dims.as_ptr(),
            n_dims: array.dims.len(),
            semantics: 0, // The data stays as it is during the call only.
            device,
            ..BufferFromHostArgs::new()
        };
        self.call(place::BUFFER_FROM_HOST, &mut args)?;
        self.finish(args.done)?;
        Ok(args.buffer)
    }

    /// The bytes of a buffer, which is freed.
    fn take(&self, buffer: *mut c_void) -> Result<Vec<u8>, String> {
        let mut args = ToHostArgs { source: buffer, ..ToHostArgs::new() };
        self.call(place::BUFFER_TO_HOST, &mut args)?;
        self.finish(args.event)?;
        let mut bytes = vec![0; args.target_size];
        args.target = bytes.as_mut_ptr().cast();
        args.event = null_mut();
        self.call(place::BUFFER_TO_HOST, &mut args)?;
        self.finish(args.event)?;
        self.destroy(place::BUFFER_DESTROY, buffer);
        Ok(bytes)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.client.is_null() {
            self.destroy(place::CLIENT_DESTROY, self.client);
        }
    }
}

impl Executable<'_> {
    fn with_description<T>(&self, take: impl FnOnce(*mut c_void) -> Result<T, String>) -> Result<T, String> {
        let mut args = PartArgs { object: self.loaded, ..PartArgs::new() };
        self.client.call(place::LOADED_GET_EXECUTABLE, &mut args)?;
        let taken = take(args.part);
        self.client.destroy(place::EXECUTABLE_DESTROY, args.part);
        taken
    }

    /// The HloModuleProto after all of XLA's passes.
    pub(crate) fn optimized(&self) -> Result<Vec<u8>, String> {
        self.with_description(|executable| {
            // The first call says how long the program is, the second one writes it.
            let mut code = Vec::<u8>::new();
            for _ in 0..2 {
                let mut program = Program {
                    struct_size: size_of::<Program>(),
                    extension_start: null_mut(),
                    code: if code.is_empty() { null_mut() } else { code.as_mut_ptr().cast() },
                    code_size: code.len(),
                    format: null(),
                    format_size: 0,
                };
                let args = OptimizedProgramArgs::new();
                let mut args = OptimizedProgramArgs { executable, program: &raw mut program, ..args };
                self.client.call(place::EXECUTABLE_OPTIMIZED_PROGRAM, &mut args)?;
                code.resize(program.code_size, 0);
            }
            Ok(code)
        })
    }

    /// Runs the program once on all of its devices: results by device.
    pub(crate) fn run(&self, arguments: &[Vec<Array>]) -> Result<Vec<Vec<Vec<u8>>>, String> {
        assert_eq!(arguments.len(), self.devices.len(), "arguments for each device");
        let n_results = self.with_description(|executable| {
            let mut args = PartArgs { object: executable, ..PartArgs::new() };
            self.client.call(place::EXECUTABLE_NUM_OUTPUTS, &mut args)?;
            Ok(args.part as usize)
        })?;
        let mut buffers = Vec::new();
        for (list, &device) in arguments.iter().zip(&self.devices) {
            let list: Result<Vec<_>, String> = list.iter().map(|array| self.client.to_device(array, device)).collect();
            buffers.push(list?);
        }
        let mut results = vec![vec![null_mut(); n_results]; self.devices.len()];
        let lists: Vec<*const *mut c_void> = buffers.iter().map(|list| list.as_ptr()).collect();
        let result_lists: Vec<*mut *mut c_void> = results.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut events = vec![null_mut(); self.devices.len()];
        let mut options = ExecuteOptions::new();
        let mut args = ExecuteArgs {
            executable: self.loaded,
            options: &raw mut options,
            arguments: lists.as_ptr(),
            n_devices: self.devices.len(),
            n_arguments: buffers.first().map_or(0, Vec::len),
            results: result_lists.as_ptr(),
            complete: events.as_mut_ptr(),
            ..ExecuteArgs::new()
        };
        self.client.call(place::LOADED_EXECUTE, &mut args)?;
        let finished: Result<Vec<()>, String> = events.into_iter().map(|event| self.client.finish(event)).collect();
        finished?;
        buffers.iter().flatten().for_each(|&buffer| self.client.destroy(place::BUFFER_DESTROY, buffer));
        results.iter().map(|list| list.iter().map(|&buffer| self.client.take(buffer)).collect()).collect()
    }
}

impl Drop for Executable<'_> {
    fn drop(&mut self) {
        self.client.destroy(place::LOADED_DESTROY, self.loaded);
    }
}
