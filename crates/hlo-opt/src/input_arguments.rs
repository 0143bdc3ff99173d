//! What several commands ask of a module's inputs.

use clap::{Args, ValueEnum};
use hlo_analysis::program_kind::ProgramKind;
use std::path::PathBuf;
use std::time::Duration;

/// How many devices a module runs on and what it is a program of, where the module does not say.
#[derive(Args, Clone, Copy, Default, Debug)]
pub(crate) struct CountArgs {
    /// Partitions, where the header does not say; found from the collectives if not given
    #[arg(long, alias = "num_partitions", value_name = "N", value_parser = clap::value_parser!(i64).range(1..1 << 24))]
    #[arg(hide_short_help = true)]
    pub num_partitions: Option<i64>,
    /// Replicas, where the header does not say
    #[arg(long, alias = "num_replicas", value_name = "N", value_parser = clap::value_parser!(i64).range(1..1 << 24))]
    #[arg(hide_short_help = true)]
    pub num_replicas: Option<i64>,
    /// What the (first) module is: of each device, or of all together; found from the module and its file's name if not
    /// given
    #[arg(long, value_name = "KIND", hide_short_help = true)]
    pub program: Option<ProgramChoice>,
}

/// `--program`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramChoice {
    /// The program of all devices together, with whole values
    Global,
    /// The program of each device, with tiles
    PerDevice,
}

impl From<ProgramChoice> for ProgramKind {
    fn from(choice: ProgramChoice) -> ProgramKind {
        match choice {
            ProgramChoice::Global => ProgramKind::Global,
            ProgramChoice::PerDevice => ProgramKind::PerDevice,
        }
    }
}

/// What the arrays that go in are: drawn at random, or read.
#[derive(Args, Clone, Debug)]
pub(crate) struct InputArgs {
    /// Seed of the random inputs
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// One word for each entry leaf: nS (normal of scale S), pS (its magnitude), uS (uniform below S), intK (integers below K), or a number
    ///
    /// Leaves without a word are drawn as the program needs them. What reaches a root, a logarithm or a divisor by steps that keep its sign is
    /// positive. Indices keep to their bounds. All others are n1, and integers int8. Trials after the first look further (`compare --trials`).
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    pub draw: String,
    /// Devices that get the same inputs, besides what --replicated-params promises: auto (as the entry says), all, none, or leaves for all
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub same: String,
    /// Entry leaves equal on all devices, and drawn so: 0-12,14 | all | /REGEX/ | like:FILE | stacked:0-12
    #[arg(long, value_name = "SPEC")]
    pub replicated_params: Option<String>,
    /// Take the shardings for --same auto from this module
    #[arg(long, value_name = "FILE")]
    pub like: Option<PathBuf>,
    /// Read the inputs from here: arrays in{leaf}_d{device}
    #[arg(long, value_name = "NPZ", conflicts_with_all = ["seed", "draw", "same", "like"])]
    pub inputs: Option<PathBuf>,
}

/// A positive number of seconds.
pub(crate) fn time_limit(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero()).ok_or_else(|| "expected a positive number of seconds, as 60 or 0.5".into())
}
