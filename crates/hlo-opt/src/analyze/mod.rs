//! `hlo-opt analyze`: facts about a module, as a table or as JSON lines. One file for each kind of fact.

mod dims;
mod frequency;
mod memory;
mod replication;
mod sharding;
mod time;

pub(crate) use memory::MemoryFacts;

use crate::Failure;
use crate::arguments::AnalyzeCommand;
use crate::console::Console;
use serde::Serialize;

/// Prints what was asked for.
///
/// # Errors
/// Wrong usage or an invalid input.
pub(crate) fn run(command: &AnalyzeCommand, console: &mut Console<'_>) -> Result<u8, Failure> {
    match command {
        AnalyzeCommand::Replication(args) => replication::run(args, console),
        AnalyzeCommand::Frequency(args) => frequency::run(args, console),
        AnalyzeCommand::Memory(args) => memory::run(args, console),
        AnalyzeCommand::Time(args) => time::run(args, console),
        AnalyzeCommand::Sharding(args) => sharding::run(args, console),
        AnalyzeCommand::Dims(args) => dims::run(args, console),
    }
}

/// Appends one line of JSON.
fn json_line(fact: &impl Serialize, out: &mut String) {
    // Text, numbers and lists of them: this cannot fail.
    if let Ok(line) = serde_json::to_string(fact) {
        out.push_str(&line);
        out.push('\n');
    }
}
