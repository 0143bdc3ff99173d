//! What a check is and what it reports.

use crate::context::AuditCx;
use crate::cost::Cost;
use hlo_ir::InstId;
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// The step computes something wrong, or work that gives nothing.
    Fault,
    /// The step could be better, at a price: other memory, another interface, or work that a later compiler may do itself.
    Advice,
}

impl Level {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Level::Fault => "fault",
            Level::Advice => "advice",
        }
    }
}

/// A check as the command line knows it.
pub struct CheckInfo {
    /// Kebab-case name, also of the file and of the sample folder.
    pub id: &'static str,
    /// How bad what it finds is.
    pub level: Level,
    /// One line for the list of checks.
    pub help: &'static str,
    /// Finds it.
    pub run: fn(&AuditCx<'_>) -> Vec<Finding>,
}

impl fmt::Debug for CheckInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The check that found it.
    pub check: &'static CheckInfo,
    /// Where.
    pub inst: InstId,
    /// Other instructions that belong to it.
    pub also: Vec<InstId>,
    /// What is wrong, beginning with the instruction.
    pub message: String,
    /// What it costs.
    pub cost: Cost,
    /// What to do, in one sentence.
    pub remedy: String,
}
