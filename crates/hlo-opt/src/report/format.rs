//! The form of the report of a run.

use clap::ValueEnum;

/// For people, for programs, or a page for a browser.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum DocumentFormat {
    Text,
    Json,
    Html,
}
