//! Our `PJRT_Client_Compile`: the plugin's, on another program.
//!
//! A C callback cannot tell which plugin it was called for, so each wrapped plugin has an entry of its own.
#![allow(unsafe_code)] // Called by C, with pointers to its structs.

use crate::bounded::panic_text;
use crate::c_api::{Compile, CompileArgs, PjrtError, Program};
use crate::errors::Errors;
use crate::log::Level;
use crate::rewrite::{Optimizer, Rewritten};
use crate::tool::program_name;
use std::ffi::c_char;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Plugins that one process can wrap. Frameworks wrap one or two; tests wrap one for each case.
const N_ENTRIES: usize = 64;

/// A program struct that is larger is none: the known fields have 48 bytes.
const MOST_PROGRAM_BYTES: usize = 1 << 12;

/// One wrapped plugin.
pub(crate) struct Interception {
    /// Its compile.
    pub real: Compile,
    /// How to read its errors.
    pub errors: Option<Errors>,
    /// What happens to programs.
    pub optimizer: Optimizer,
}

static INTERCEPTIONS: [OnceLock<Interception>; N_ENTRIES] = [const { OnceLock::new() }; N_ENTRIES];

macro_rules! entries {
    ($($number:literal)*) => { [$(compile::<$number>),*] };
}

const ENTRIES: [Compile; N_ENTRIES] = entries!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);

/// The function that compiles for a plugin.
///
/// # Errors
/// Too many plugins are wrapped.
pub(crate) fn entry_for(interception: Interception) -> Result<Compile, String> {
    let mut interception = Some(interception);
    for (place, entry) in INTERCEPTIONS.iter().zip(ENTRIES) {
        // Another thread may take the place first.
        place.get_or_init(|| interception.take().unwrap_or_else(|| unreachable!("taken once")));
        if interception.is_none() {
            return Ok(entry);
        }
    }
    Err(format!("expected at most {N_ENTRIES} wrapped plugins in a process, found more"))
}

unsafe extern "C" fn compile<const ENTRY: usize>(args: *mut CompileArgs) -> *mut PjrtError {
    let interception = INTERCEPTIONS[ENTRY].get();
    // SAFETY: `args` is the caller's, for the time of the call.
    let outcome = interception.map(|interception| unsafe { interception.compile(args) });
    // An entry is handed out after its place was filled.
    outcome.unwrap_or(std::ptr::null_mut())
}

impl Interception {
    /// Compiles what becomes of the program.
    ///
    /// # Safety
    /// `args` is null or points to arguments of `PJRT_Client_Compile` that nobody else uses during the call.
    unsafe fn compile(&self, args: *mut CompileArgs) -> *mut PjrtError {
        // SAFETY: by this function's contract.
        let Some(call) = (unsafe { Call::of(args) }) else {
            self.optimizer.say(Level::All, "", "left as it is: expected arguments of a known size, found others");
            // SAFETY: the arguments go on as they came.
            return unsafe { (self.real)(args) };
        };
        let work = AssertUnwindSafe(|| self.optimizer.of_compile(call.format(), call.code(), call.options()));
        let rewritten = catch_unwind(work).unwrap_or_else(|panic| {
            self.optimizer.failed(&program_name(call.code()), format!("internal error: {}", panic_text(&*panic)))
        });
        match rewritten {
            // SAFETY: the arguments go on as they came.
            Rewritten::Same => unsafe { (self.real)(args) },
            Rewritten::Other(proto) => self.compile_other(call, &proto),
            Rewritten::Refused(why) => self.refuse(call, &why),
        }
    }

    /// Compiles a program in place of the caller's; where the plugin refuses it, the caller's.
    fn compile_other(&self, call: Call, proto: &[u8]) -> *mut PjrtError {
        let error = call.with_program(proto, b"hlo", self.real);
        let (Some(errors), Some(refusal)) = (self.errors, NonNull::new(error)) else { return error };
        if self.optimizer.settings().is_strict {
            return error;
        }
        // SAFETY: the plugin just made the error, and it is not used afterwards.
        let why = unsafe { errors.take_message(refusal) };
        self.optimizer.failed(&program_name(call.code()), format!("the plugin refuses the optimized program: {why}"));
        // SAFETY: the arguments are as they came again.
        unsafe { (self.real)(call.args) }
    }

    /// An error that says why. Only the plugin can make errors that its other functions understand, so it is given a program in a
    /// format that no plugin knows, and names the format when it refuses.
    fn refuse(&self, call: Call, why: &str) -> *mut PjrtError {
        let line = why.lines().collect::<Vec<_>>().join(" ");
        self.optimizer.say(Level::Warning, "", &format!("not compiled (HLO_OPT_STRICT): {line}"));
        call.with_program(&[], format!("hlo-opt (HLO_OPT_STRICT=1): {line}").as_bytes(), self.real)
    }
}

/// The arguments of one call, with all fields that are needed. They are the caller's, for the time of the call.
#[derive(Clone, Copy)]
struct Call {
    args: *mut CompileArgs,
    program: NonNull<Program>,
}

impl Call {
    /// Looks at arguments; none where their sizes say that fields are missing.
    ///
    /// # Safety
    /// As [`Interception::compile`].
    unsafe fn of(args: *mut CompileArgs) -> Option<Call> {
        let known = NonNull::new(args)?;
        // SAFETY: every version begins with its size.
        let struct_size = unsafe { (*known.as_ptr()).struct_size };
        if struct_size < offset_of!(CompileArgs, executable) {
            return None;
        }
        // SAFETY: the arguments reach beyond the program.
        let program = NonNull::new(unsafe { (*known.as_ptr()).program }.cast_mut())?;
        // SAFETY: every version begins with its size.
        let program_size = unsafe { (*program.as_ptr()).struct_size };
        if !(size_of::<Program>()..=MOST_PROGRAM_BYTES).contains(&program_size) {
            return None;
        }
        Some(Call { args, program })
    }

    /// The program's known fields.
    fn program(&self) -> &Program {
        // SAFETY: the program has all fields of `Program`.
        unsafe { self.program.as_ref() }
    }

    fn format(&self) -> &[u8] {
        let Program { format, format_size, .. } = *self.program();
        // SAFETY: the caller says that so many bytes lie there.
        unsafe { bytes(format, format_size) }
    }

    fn code(&self) -> &[u8] {
        let Program { code, code_size, .. } = *self.program();
        // SAFETY: as above.
        unsafe { bytes(code, code_size) }
    }

    fn options(&self) -> &[u8] {
        // SAFETY: the arguments reach beyond the options, and the caller says that so many bytes lie there.
        unsafe { bytes((*self.args).compile_options, (*self.args).compile_options_size) }
    }

    /// Calls the plugin with a copy of the program, unknown fields included, that has other code and another format.
    fn with_program(&self, code: &[u8], format: &[u8], real: Compile) -> *mut PjrtError {
        let n_bytes = self.program().struct_size;
        let mut copy = vec![0usize; n_bytes.div_ceil(size_of::<usize>())];
        let own = copy.as_mut_ptr().cast::<Program>();
        // SAFETY: both have so many bytes, and do not overlap.
        unsafe { own.cast::<u8>().copy_from_nonoverlapping(self.program.as_ptr().cast::<u8>(), n_bytes) };
        // SAFETY: the copy has all fields of `Program`; nobody else has it.
        let program = unsafe { &mut *own };
        program.code = code.as_ptr().cast::<c_char>().cast_mut();
        program.code_size = code.len();
        program.format = format.as_ptr().cast::<c_char>();
        program.format_size = format.len();
        // SAFETY: the arguments reach beyond the program. The caller's comes back before it looks.
        unsafe { (*self.args).program = own };
        // SAFETY: the arguments are the caller's but for the program, which lives until the end of this function.
        let error = unsafe { real(self.args) };
        // SAFETY: as above.
        unsafe { (*self.args).program = self.program.as_ptr() };
        error
    }
}

/// The bytes that C names by a pointer and a size.
///
/// # Safety
/// `data` is null or points to `size` bytes that stay as they are for `'c`.
pub(crate) unsafe fn bytes<'c>(data: *const c_char, size: usize) -> &'c [u8] {
    if data.is_null() || size == 0 || size > isize::MAX as usize {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }
}
