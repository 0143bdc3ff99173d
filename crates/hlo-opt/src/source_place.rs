//! The line of the user's program that an instruction comes from.

use hlo_ir::{InstId, Module};
use std::fmt;

/// A place in the user's program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourcePlace<'m> {
    /// The file, as the metadata has it.
    pub file: &'m str,
    /// The line in it, from 1.
    pub line: Option<i64>,
}

impl fmt::Display for SourcePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// Where an instruction comes from: the place that its metadata names, or the innermost frame of its stack.
pub fn source_place(module: &Module, inst: InstId) -> Option<SourcePlace<'_>> {
    let metadata = module.inst(inst).marks.as_ref()?.metadata.as_ref()?;
    if let Some(file) = &metadata.source_file {
        return Some(SourcePlace { file: &file.0, line: metadata.source_line });
    }
    // Entry `i` of a table has the number `i + 1`.
    let idx = |id: i64| usize::try_from(id).ok()?.checked_sub(1);
    let tables = &module.header.tables;
    let frame = tables.stack_frames.get(idx(metadata.stack_frame_id?)?)?;
    let location = tables.file_locations.get(idx(frame.file_location_id)?)?;
    let file = tables.file_names.get(idx(location.file_name_id)?)?;
    Some(SourcePlace { file, line: Some(location.line) })
}
