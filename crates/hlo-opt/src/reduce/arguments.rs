//! The grammar of `hlo-opt reduce`.

use crate::input_arguments::{CountArgs, time_limit};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
Example: hlo-opt reduce step.hlo --while 'my-compiler {} 2>&1 | grep -q \"internal error\"' -o small.hlo
What -o names is rewritten, whole, whenever a smaller module is found: Ctrl-C leaves the smallest so far";

/// `reduce`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ReduceArgs {
    /// HLO text or proto, or - for stdin
    pub file: PathBuf,
    /// Shrink as long as this shell command succeeds; {} is the file, which else comes last
    #[arg(long = "while", value_name = "CMD")]
    pub condition: String,
    /// Write the smallest module here, not to stdout
    #[arg(short, long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Seconds that CMD may take: after that it is killed and has not succeeded
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = time_limit)]
    pub timeout: Duration,
    /// How often CMD runs at most
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_evaluations: u64,
    /// How many devices there are.
    #[command(flatten)]
    pub counts: CountArgs,
}
