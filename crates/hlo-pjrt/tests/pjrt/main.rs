//! The wrapper as C sees it: round plugins made up by the tests, and round a real one where there is one.

mod client;
mod compile;
mod cpu_plugin;
mod entry;
mod fake;
mod native;
mod programs;
mod table;
