//! The form of what a command reports.

use clap::ValueEnum;

/// For people or for programs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum ReportFormat {
    Text,
    Json,
}
