//! The command line `hlo-opt`: reads HLO text, verifies it, runs passes, prints HLO text. The program proper is [`run`].
//!
//! The contract for scripts: HLO goes to stdout or `-o`, whole or not at all; everything else goes to stderr; the
//! codes are in [`exit`]. This crate alone reads and writes files.

mod analyze;
mod arguments;
mod arrays;
mod audit;
mod baseline;
mod bisect;
mod compare;
mod complete;
mod completion;
mod config;
pub mod console;
mod descriptions;
mod diff;
mod dump;
mod elided;
mod emit;
mod evaluate;
mod execute;
mod folder;
mod graph;
mod input;
mod input_arguments;
pub mod library;
mod machine;
mod notes;
mod optimize;
pub mod output;
mod output_format;
mod params;
mod plan;
mod preset_options;
pub mod presets;
mod progress;
mod prove;
mod reduce;
pub mod registry;
mod report;
mod report_format;
mod run_times;
mod secret;
mod sharding_picture;
mod shardings;
pub mod source_place;
mod target_arguments;
pub mod work;

use arguments::{Arguments, Command};
use clap::CommandFactory;
use console::Console;
use std::ffi::OsString;

/// Exit codes.
pub mod exit {
    /// All went well.
    pub const OK: u8 = 0;
    /// The input, the verifier or a pass says no; or a file cannot be read or written.
    pub const ERROR: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 2;
    /// Nothing changed, with `--require-change`.
    pub const UNCHANGED: u8 = 3;
    /// An audit has a finding that `--deny` names, or a budget is exceeded.
    pub const DENIED: u8 = 4;
    /// Results differ, in `compare`, `prove` and `bisect`.
    pub const DIFFERENT: u8 = 4;
    /// Neither proved nor refuted, in `prove` and with `--check=prove`; NaN hides too much, in `compare` and `bisect`.
    pub const UNKNOWN: u8 = 5;
}

/// Why a command stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The command line is wrong: what was expected and found.
    Usage(String),
    /// One line about a file.
    File(String),
    /// Diagnostics, rendered.
    Diagnostics(String),
}

/// Runs the program with `args` (the first is its name) and returns its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> u8 {
    let mut arguments = match Arguments::parse_words(args) {
        Ok(arguments) => arguments,
        Err(error) => {
            let text = error.render();
            let text = if console.has_color { text.ansi().to_string() } else { text.to_string() };
            if error.use_stderr() {
                console.say(&text);
                return exit::USAGE;
            }
            return console.print(text.as_bytes()).map_or_else(|e| fail(console, &e), |()| exit::OK);
        }
    };
    console.has_color = arguments.color.is_on(console.has_color);
    match config::apply(&mut arguments) {
        Ok(said) if !arguments.optimize.quiet => said.into_iter().for_each(|line| console.say(&line)),
        Ok(_) => {}
        Err(failure) => return fail(console, &failure),
    }
    let outcome = match &arguments.command {
        None => optimize::run(&arguments.optimize, console),
        Some(Command::Analyze(analyze)) => analyze::run(analyze, console),
        Some(Command::Audit(audit)) => audit::run(audit, console),
        Some(Command::Eval(eval)) => evaluate::run(eval, console),
        Some(Command::Compare(compare)) => compare::run(compare, console),
        Some(Command::Prove(prove)) => prove::run(prove, console),
        Some(Command::Bisect(bisect)) => bisect::run(bisect, console),
        Some(Command::Diff(diff)) => diff::run(diff, console),
        Some(Command::Reduce(reduce)) => reduce::run(reduce, console),
        Some(Command::Run(run)) => execute::run(run, console),
        Some(Command::Plan(plan)) => plan::run(plan, console),
        Some(Command::Completions { shell }) => {
            let script = completion_script(*shell);
            script.and_then(|script| console.print(&script)).map(|()| exit::OK)
        }
        Some(Command::Man) => manual().and_then(|page| console.print(&page)).map(|()| exit::OK),
    };
    outcome.unwrap_or_else(|failure| fail(console, &failure))
}

/// The variable in which a completion script asks the program what fits.
const COMPLETION_VARIABLE: &str = "HLO_OPT_COMPLETE";

/// Answers a completion script and ends the process, if it is one that asks.
pub fn complete_for_shell() {
    clap_complete::CompleteEnv::with_factory(Arguments::command).var(COMPLETION_VARIABLE).complete();
}

/// The script that makes a shell ask this program.
fn completion_script(shell: clap_complete::Shell) -> Result<Vec<u8>, Failure> {
    let shells = clap_complete::env::Shells::builtins();
    let Some(completer) = shells.completer(&shell.to_string()) else {
        return Err(Failure::Usage(format!("expected a shell that can be completed for, found `{shell}`")));
    };
    let mut script = Vec::new();
    let written = completer.write_registration(COMPLETION_VARIABLE, "hlo-opt", "hlo-opt", "hlo-opt", &mut script);
    written.map(|()| script).map_err(|error| Failure::File(format!("cannot write the script: {error}")))
}

/// The manual page, commands included.
fn manual() -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    // The page has the options that the short help leaves out.
    let grammar = Arguments::command().mut_args(|argument| argument.hide_short_help(false));
    let written = clap_mangen::Man::new(grammar).render(&mut page);
    written.map(|()| page).map_err(|error| Failure::File(format!("cannot write the page: {error}")))
}

fn fail(console: &mut Console<'_>, failure: &Failure) -> u8 {
    let prefix = if console.has_color { "\u{1b}[1m\u{1b}[31merror\u{1b}[0m" } else { "error" };
    match failure {
        Failure::Usage(text) => {
            console.say(&format!("{prefix}: {text}\n\nFor more information, try 'hlo-opt --help'.\n"));
            exit::USAGE
        }
        Failure::File(text) => {
            console.say(&format!("{prefix}: {text}\n"));
            exit::ERROR
        }
        Failure::Diagnostics(text) => {
            console.say(text);
            exit::ERROR
        }
    }
}
