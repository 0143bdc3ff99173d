//! A plugin made up by a test: a table of any size and version, a chain of extensions, and a compile that remembers what it got.
#![allow(unsafe_code)] // Plays the C side of the interface.

use hlo_pjrt::c_api::{
    CLIENT_COMPILE, CompileArgs, ERROR_DESTROY, ERROR_MESSAGE, ErrorDestroyArgs, ErrorMessageArgs, ExtensionBase,
    FIRST_FUNCTION, PjrtApi, PjrtError, Program,
};
use hlo_pjrt::{Level, Log, Settings};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex};

/// The size of version 0.81's table.
pub(crate) const TABLE_BYTES: usize = FIRST_FUNCTION + 126 * 8;

/// What stands behind the known fields of a program.
pub(crate) const UNKNOWN: usize = 0x0807_0605_0403_0201;

/// What stands where the test puts no function.
pub(crate) const FILLER: usize = 0x5a5a_0000;

/// Compiles that arrived at the plugin.
#[derive(Default)]
pub(crate) struct Client {
    pub compiled: Mutex<Vec<Compiled>>,
    /// Whether a program that differs from this one is refused.
    pub only: Option<Vec<u8>>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Compiled {
    pub format: String,
    pub code: Vec<u8>,
    pub code_address: usize,
    /// What stands behind the known fields of the program.
    pub unknown: Vec<u8>,
}

/// A table of so many bytes whose functions are those below. It is never freed.
pub(crate) fn table(n_bytes: usize, major: c_int, extensions: *mut ExtensionBase) -> NonNull<PjrtApi> {
    // Room for more than the table says, so that a reader that goes too far finds what it should not.
    let words: &'static mut [usize] = vec![FILLER; (n_bytes.max(TABLE_BYTES)).div_ceil(8)].leak();
    for (i, word) in words.iter_mut().enumerate() {
        *word += i;
    }
    words[0] = n_bytes;
    words[1] = extensions.expose_provenance();
    words[2] = 24;
    words[3] = 0;
    words[4] = major as usize | 81 << 32;
    words[ERROR_DESTROY / 8] = error_destroy as *const () as usize;
    words[ERROR_MESSAGE / 8] = error_message as *const () as usize;
    words[CLIENT_COMPILE / 8] = compile as *const () as usize;
    NonNull::from(words).cast()
}

/// The word at an offset of a table.
pub(crate) fn word(api: NonNull<PjrtApi>, offset: usize) -> usize {
    // SAFETY: tests only ask for words of tables made above, or of copies of them.
    unsafe { api.byte_add(offset).cast::<usize>().read() }
}

/// Puts a word at an offset of a table.
pub(crate) fn set_word(api: NonNull<PjrtApi>, offset: usize, value: usize) {
    // SAFETY: as above.
    unsafe { api.byte_add(offset).cast::<usize>().write(value) }
}

thread_local! {
    /// Errors that were made on this thread and not freed yet.
    static N_ERRORS: Cell<usize> = const { Cell::new(0) };
}

/// How many errors of this thread nobody has freed.
pub(crate) fn n_errors() -> usize {
    N_ERRORS.get()
}

/// The error that a message is in: a boxed text.
fn error_of(message: String) -> *mut PjrtError {
    N_ERRORS.set(N_ERRORS.get() + 1);
    Box::into_raw(Box::new(message)).cast()
}

/// The message of an error, which is freed; none where there is no error.
pub(crate) fn message(error: *mut PjrtError) -> Option<String> {
    if error.is_null() {
        return None;
    }
    N_ERRORS.set(N_ERRORS.get() - 1);
    // SAFETY: all errors of this plugin are made by `error_of`, and tests use each once.
    Some(*unsafe { Box::from_raw(error.cast::<String>()) })
}

unsafe extern "C" fn error_destroy(args: *mut ErrorDestroyArgs) {
    // SAFETY: the wrapper gives complete arguments.
    message(unsafe { (*args).error });
}

unsafe extern "C" fn error_message(args: *mut ErrorMessageArgs) {
    // SAFETY: the wrapper gives complete arguments.
    let args = unsafe { &mut *args };
    // SAFETY: all errors of this plugin are made by `error_of`.
    let text = unsafe { &*args.error.cast::<String>() };
    (args.message, args.message_size) = (text.as_ptr().cast(), text.len());
}

unsafe extern "C" fn compile(args: *mut CompileArgs) -> *mut PjrtError {
    // SAFETY: tests give a client and a program, and name sizes that are true.
    let (args, client, program) = unsafe { (&mut *args, &*(*args).client.cast::<Client>(), &*(*args).program) };
    let slice = |data: *const i8, n: usize| match n {
        0 => Vec::new(),
        // SAFETY: as above.
        _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), n) }.to_vec(),
    };
    let n_unknown = program.struct_size.saturating_sub(size_of::<Program>());
    let behind = (&raw const *program).wrapping_add(1).cast::<i8>();
    let compiled = Compiled {
        format: String::from_utf8_lossy(&slice(program.format, program.format_size)).into_owned(),
        code: slice(program.code, program.code_size),
        code_address: program.code as usize,
        unknown: if n_unknown < 64 { slice(behind, n_unknown) } else { Vec::new() },
    };
    client.compiled.lock().expect("no test panics with it").push(compiled.clone());
    if compiled.format != "hlo" && compiled.format != "mlir" {
        return error_of(format!("Unknown program format '{}'.", compiled.format));
    }
    if client.only.as_ref().is_some_and(|only| *only != compiled.code) {
        return error_of("this program is too new".into());
    }
    args.executable = compiled.code.len() as *mut c_void;
    null_mut()
}

/// A refusal, for extensions of tests.
pub(crate) fn refusal(message: &str) -> *mut PjrtError {
    error_of(message.into())
}

/// One compile through a table: what came back, and whether the caller's arguments are as they were.
pub(crate) fn compile_through(
    api: NonNull<PjrtApi>,
    client: &Client,
    (format, code, options): (&str, &[u8], &[u8]),
    sizes: (usize, usize),
) -> Result<usize, String> {
    // Room behind the known fields, with something in it.
    let mut program = [UNKNOWN; 16];
    let known = program.as_mut_ptr().cast::<Program>();
    // SAFETY: there is room for a program and more.
    unsafe {
        known.write(Program {
            struct_size: sizes.1,
            extension_start: null_mut(),
            code: code.as_ptr().cast_mut().cast(),
            code_size: code.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
        });
    }
    let mut args = CompileArgs {
        struct_size: sizes.0,
        extension_start: null_mut(),
        client: (&raw const *client).cast_mut().cast(),
        program: known,
        compile_options: options.as_ptr().cast(),
        compile_options_size: options.len(),
        executable: null_mut(),
    };
    let compile = word(api, CLIENT_COMPILE) as *const ();
    // SAFETY: the table holds a function of this type there.
    let compile = unsafe { std::mem::transmute::<*const (), hlo_pjrt::c_api::Compile>(compile) };
    // SAFETY: the arguments are complete.
    let error = unsafe { compile(&raw mut args) };
    assert!(std::ptr::eq(args.program, known), "the caller's program is in its place");
    match message(error) {
        Some(message) => Err(message),
        None => Ok(args.executable as usize),
    }
}

/// The sizes that version 0.81 has.
pub(crate) const SIZES: (usize, usize) = (size_of::<CompileArgs>(), size_of::<Program>());

/// Lines that were said.
pub(crate) type Lines = Arc<Mutex<Vec<(Level, String)>>>;

/// Settings whose lines are kept.
pub(crate) fn settings() -> (Settings, Lines) {
    let lines = Lines::default();
    let sink = lines.clone();
    let log = Log::new(Level::All, move |level, line| {
        sink.lock().expect("no test panics with it").push((level, line.into()));
    });
    // A preset leaves to XLA what XLA does itself: combine collectives.
    (Settings { pipeline: "combine-collectives,dce".into(), log, ..Settings::default() }, lines)
}

/// The one line of a level.
pub(crate) fn only_line(lines: &Lines, level: Level) -> String {
    let lines = lines.lock().expect("no test panics with it");
    let found: Vec<&String> = lines.iter().filter(|(of, _)| *of == level).map(|(_, line)| line).collect();
    let [line] = found[..] else { panic!("expected one line of {level:?}, found {lines:?}") };
    line.clone()
}
