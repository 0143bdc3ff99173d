//! What stands beside the computations: entry shape, aliases, tables, schedule, counts.

use super::instruction::read_frontend_attributes;
use super::sharding::read_sharding;
use super::{Fallible, Reader};
use crate::table::*;
use crate::view::View;
use hashbrown::HashMap;
use hlo_ir::header::{AliasEntry, BufferDonor, DebugTables, FileLocation, StackFrame};

/// The schedules by the ids of their computations.
pub(crate) fn read_schedule(view: &View<'_>) -> HashMap<i64, Vec<i64>> {
    let Some(schedule) = view.message(hlo_module::schedule) else { return HashMap::new() };
    let entry = |entry: View<'_>| {
        let ids = entry.message(sequences_entry::value).unwrap_or_default();
        (entry.int(sequences_entry::key), ids.ints(instruction_sequence::instruction_ids).collect())
    };
    schedule.messages(hlo_schedule::sequences).map(entry).collect()
}

impl<'a> Reader<'a> {
    /// Reads all of the header but the schedule.
    pub(crate) fn header(&mut self, view: &View<'a>) -> Fallible<()> {
        if let Some(program) = view.message(hlo_module::host_program_shape) {
            let layout = self.shapes.program(&program, &mut self.module.shapes);
            let layout = layout.map_err(|error| format!("host_program_shape: {error}"))?;
            self.module.header.entry_computation_layout = Some(layout);
        }
        let header = &mut self.module.header;
        header.input_output_alias = read_aliases(view);
        header.buffer_donor = read_donors(view);
        if let Some(attributes) = view.message(hlo_module::frontend_attributes) {
            header.frontend_attributes = read_frontend_attributes(&attributes);
        }
        if let Some(tables) = view.message(hlo_module::stack_frame_index) {
            header.tables = read_tables(&tables);
        }
        if let Some(devices) = view.message(hlo_module::device_assignment) {
            header.replica_count = devices.int(device_assignment::replica_count).max(1);
            header.num_partitions = devices.int(device_assignment::computation_count).max(1);
        }
        self.parameter_shardings(view)
    }

    /// The module's shardings of parameters become those of parameters that have none.
    fn parameter_shardings(&mut self, view: &View<'a>) -> Fallible<()> {
        let shardings: Vec<View<'a>> = view.messages(hlo_module::spmd_parameters_shardings).collect();
        let params = self.module.entry().map(|entry| self.module.comp(entry).params.clone()).unwrap_or_default();
        if shardings.len() != params.len() {
            return Ok(());
        }
        for (param, sharding) in params.into_iter().zip(&shardings) {
            if self.module.sharding(param).is_none() {
                let sharding =
                    read_sharding(sharding).map_err(|error| format!("spmd_parameters_shardings: {error}"))?;
                self.module.marks_mut(param).sharding = Some(sharding);
            }
        }
        Ok(())
    }
}

fn read_aliases(view: &View<'_>) -> Vec<AliasEntry> {
    let Some(aliases) = view.message(hlo_module::input_output_alias) else { return Vec::new() };
    let entry = |entry: View<'_>| AliasEntry {
        output_index: entry.ints(alias_entry::output_shape_index).collect(),
        param: entry.int(alias_entry::parameter_number),
        param_index: entry.ints(alias_entry::parameter_shape_index).collect(),
        is_must: ALIAS_KIND.name_of(entry.int(alias_entry::kind)) == Some("MUST_ALIAS"),
    };
    aliases.messages(hlo_input_output_alias::entries).map(entry).collect()
}

fn read_donors(view: &View<'_>) -> Vec<BufferDonor> {
    let Some(donors) = view.message(hlo_module::buffer_donor) else { return Vec::new() };
    let entry = |entry: View<'_>| BufferDonor {
        param: entry.int(buffer_donor_entry::parameter_number),
        param_index: entry.ints(buffer_donor_entry::parameter_shape_index).collect(),
    };
    donors.messages(hlo_buffer_donor::entries).map(entry).collect()
}

fn read_tables(view: &View<'_>) -> DebugTables {
    use {file_location as l, stack_frame as f, stack_frame_index as t};
    let strings = |field| view.slices(field).map(crate::view::text_of).collect();
    let location = |v: View<'_>| FileLocation {
        file_name_id: v.int(l::file_name_id),
        function_name_id: v.int(l::function_name_id),
        line: v.int(l::line),
        end_line: v.int(l::end_line),
        column: v.int(l::column),
        end_column: v.int(l::end_column),
    };
    // Text has one more for a parent, so that 1 means none.
    let frame = |v: View<'_>| StackFrame {
        file_location_id: v.int(f::file_location_id),
        parent_frame_id: v.int(f::parent_frame_id).saturating_add(1),
    };
    DebugTables {
        file_names: strings(t::file_names),
        function_names: strings(t::function_names),
        file_locations: view.messages(t::file_locations).map(location).collect(),
        stack_frames: view.messages(t::stack_frames).map(frame).collect(),
    }
}
