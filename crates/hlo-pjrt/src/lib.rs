//! A PJRT plugin that wraps another one: the per-device programs that a framework compiles go through hlo-opt first.
//!
//! [`GetPjrtApi`] is what frameworks look up in the shared object. It loads the plugin that `HLO_OPT_PJRT_PLUGIN` names. Where that
//! plugin lets others transform its modules (the XlaTransform extension), it [registers](register) a native callback, and the
//! plugin's own functions are what the framework gets. Everywhere else the framework gets a copy of the plugin's table of functions
//! in which `PJRT_Client_Compile` is ours ([`wrap`]).
//!
//! Whatever goes wrong, the program that the framework sent is compiled, and one warning says why. `HLO_OPT_STRICT=1` makes it an error.
//!
//! ```text
//!             table.rs      copies the table, puts our compile into it
//!  C side     compile.rs    our PJRT_Client_Compile
//!             native.rs     the callback of the XlaTransform extension
//!             extensions.rs the walk along the chain; errors.rs, c_api.rs: what C hands over
//!             ---------------------------------------------------------------------------
//!  safe side  rewrite.rs    a program in, a program out: on a thread of its own, until the deadline
//!             tool.rs       the passes; signature.rs: what they must keep; compile_options.rs: is it a per-device program
//! ```

#[cfg(panic = "abort")]
#[deprecated(note = "built so, a defect of a pass ends the framework's process: build with --profile unwinding")]
const PANICS_END_THE_PROCESS: () = ();
#[cfg(panic = "abort")]
const _: () = PANICS_END_THE_PROCESS;

mod bounded;
pub mod c_api;
mod compile;
mod compile_options;
mod errors;
mod extensions;
mod log;
mod native;
mod plugin;
mod rewrite;
mod settings;
mod signature;
mod switch;
mod table;
mod tool;

pub use compile_options::{CompileOptions, DeviceCounts};
pub use log::{Level, Log};
pub use native::{
    RegisterError, Stage, module_failed, module_left, register, set_current, transform_module, unregister,
};
pub use plugin::GetPjrtApi;
pub use rewrite::Optimizer;
pub use settings::Settings;
pub use signature::check_signature;
pub use switch::read_switch;
pub use table::wrap;
pub use tool::{Made, Route, Tool};
