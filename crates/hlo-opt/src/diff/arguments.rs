//! The grammar of `hlo-opt diff`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `diff`.
#[derive(Args, Debug)]
#[command(after_help = "Names, metadata and numbers of channels are no difference; what is computed from what is")]
pub(crate) struct DiffArgs {
    /// HLO text or proto, or - for stdin
    pub a: PathBuf,
    /// What it became
    pub b: PathBuf,
    /// Lines to show around each difference
    #[arg(short = 'U', long, value_name = "N", default_value_t = 1)]
    pub context: usize,
    /// Only the counts
    #[arg(long)]
    pub stat: bool,
    /// Exit with 1 if the modules differ
    #[arg(long)]
    pub exit_code: bool,
    /// Text, or one HTML page
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: DiffFormat,
}

/// `--format`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum DiffFormat {
    Text,
    Html,
}
