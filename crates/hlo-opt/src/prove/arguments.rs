//! The grammar of `hlo-opt prove`.

use crate::compare::arguments::JudgeArgs;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How a proof is shown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProofFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `prove`.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes: 0 proved, 4 refuted, 5 neither")]
pub(crate) struct ProveArgs {
    /// HLO text or proto that says what is right, or - for stdin; also a global program, from before XLA's partitioner
    pub before: PathBuf,
    /// What is to give the same; or a folder of --preset sharded-state, whose modules run one after the other
    pub after: PathBuf,
    /// Entry leaves equal on all devices: optimizer | 0-12,14 | all | /REGEX/ | like:FILE | stacked:0-12
    #[arg(long, value_name = "SPEC")]
    pub replicated_params: Option<String>,
    /// How the proof is shown
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub report: ProofFormat,
    /// Write the equations that the proof found, for another checker
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// State the rules that the proof rests on
    #[arg(long)]
    pub explain: bool,
    /// Do not run the modules in the evaluator where a proof is not found
    #[arg(long)]
    pub no_eval: bool,
    /// How they are run where a proof is not found.
    #[command(flatten)]
    pub judge: JudgeArgs,
}
