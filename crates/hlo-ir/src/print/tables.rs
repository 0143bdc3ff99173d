//! The debug-info tables as XLA prints them: only what an instruction's metadata points to, numbered by first use.

use crate::header::{DebugTables, FileLocation, StackFrame};
use crate::module::Module;
use indexmap::IndexSet;

/// New tables under construction.
struct Renumbered<'a> {
    old: &'a DebugTables,
    file_names: IndexSet<&'a str>,
    function_names: IndexSet<&'a str>,
    file_locations: IndexSet<FileLocation>,
    /// Frames, parents before children.
    stack_frames: IndexSet<StackFrame>,
}

/// Drops unused entries and numbers the others anew; frames that the tables do not have lose their number.
pub(super) fn renumber(module: &mut Module) {
    let old = std::mem::take(&mut module.header.tables);
    let mut new = Renumbered {
        old: &old,
        file_names: IndexSet::new(),
        function_names: IndexSet::new(),
        file_locations: IndexSet::new(),
        stack_frames: IndexSet::new(),
    };
    for comp in module.computations().to_vec() {
        for inst in module.comp(comp).insts.clone() {
            let metadata = module.inst(inst).marks.as_ref().and_then(|marks| marks.metadata.as_ref());
            let Some(id) = metadata.and_then(|metadata| metadata.stack_frame_id) else { continue };
            if let Some(metadata) = &mut module.marks_mut(inst).metadata {
                metadata.stack_frame_id = new.frame(id);
            }
        }
    }
    let strings = |set: IndexSet<&str>| set.into_iter().map(str::to_string).collect();
    module.header.tables = DebugTables {
        file_names: strings(new.file_names),
        function_names: strings(new.function_names),
        file_locations: new.file_locations.into_iter().collect(),
        stack_frames: new.stack_frames.into_iter().collect(),
    };
}

impl Renumbered<'_> {
    /// The new number of the frame with the old number `id`.
    fn frame(&mut self, id: i64) -> Option<i64> {
        // From the frame up to its outermost caller; a parent's number is one more than its place, and 1 means none.
        let mut chain = Vec::new();
        let mut at = id;
        while at > 0 {
            let frame = *entry(&self.old.stack_frames, at)?;
            chain.push(frame.file_location_id);
            if chain.len() > self.old.stack_frames.len() {
                return None;
            }
            at = frame.parent_frame_id - 1;
        }
        let mut parent = 0;
        for &location in chain.iter().rev() {
            let file_location_id = self.location(location)?;
            let frame = StackFrame { file_location_id, parent_frame_id: parent + 1 };
            parent = self.stack_frames.insert_full(frame).0 as i64 + 1;
        }
        (parent > 0).then_some(parent)
    }

    fn location(&mut self, id: i64) -> Option<i64> {
        let location = *entry(&self.old.file_locations, id)?;
        let file = entry(&self.old.file_names, location.file_name_id)?;
        let function = entry(&self.old.function_names, location.function_name_id)?;
        let file_name_id = self.file_names.insert_full(file).0 as i64 + 1;
        let function_name_id = self.function_names.insert_full(function).0 as i64 + 1;
        let location = FileLocation { file_name_id, function_name_id, ..location };
        Some(self.file_locations.insert_full(location).0 as i64 + 1)
    }
}

/// The entry with the printed number `id`.
fn entry<T>(entries: &[T], id: i64) -> Option<&T> {
    entries.get(usize::try_from(id.checked_sub(1)?).ok()?)
}
