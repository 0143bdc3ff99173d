//! What stands beside the computations: entry shape, aliases, tables, schedule.

use super::ModuleWriter;
use super::instruction::write_frontend_attributes;
use crate::table::*;
use crate::writer::Writer;
use hlo_ir::header::{AliasEntry, BufferDonor, DebugTables};
use hlo_ir::{CompId, ShapeId};

/// Larger machines are not listed device by device.
const MAX_LISTED_DEVICES: usize = 1 << 20;

impl ModuleWriter<'_> {
    /// Appends the fields of the module.
    pub(crate) fn whole(&mut self, w: &mut Writer, order: &[CompId]) {
        use hlo_module as m;
        let module = self.module;
        w.text(m::name, &module.name);
        if let Some(entry) = module.entry() {
            w.bytes(m::entry_computation_name, self.comp_name(entry).as_bytes());
        }
        self.computations(w, order);
        self.host_program_shape(w);
        if let Some(entry) = module.entry() {
            w.int(m::entry_computation_id, self.comp_id(entry));
        }
        if module.header.is_scheduled {
            w.message(m::schedule, |w| self.schedule(w, order));
        }
        w.message_if_any(m::input_output_alias, |w| write_aliases(w, &module.header.input_output_alias));
        w.message_if_any(m::device_assignment, |w| self.device_assignment(w));
        w.message_if_any(m::stack_frame_index, |w| write_tables(w, &module.header.tables));
        w.message_if_any(m::buffer_donor, |w| write_donors(w, &module.header.buffer_donor));
        w.message_if_any(m::frontend_attributes, |w| {
            write_frontend_attributes(w, &module.header.frontend_attributes);
        });
    }

    /// The shapes and layouts of the entry's parameters and result, which must be there.
    fn host_program_shape(&mut self, w: &mut Writer) {
        let module = self.module;
        let Some(entry) = module.entry() else { return };
        let params = &module.comp(entry).params;
        let names = self.param_names(entry);
        let names = names.iter().map(String::as_str);
        let own: Vec<ShapeId> = params.iter().map(|&id| module.inst(id).shape).collect();
        let root = module.comp(entry).root.expand();
        let shapes = match (&module.header.entry_computation_layout, root) {
            (Some(layout), _) => (layout.params.as_slice(), layout.result),
            (None, Some(root)) => (own.as_slice(), module.inst(root).shape),
            (None, None) => return,
        };
        w.message(hlo_module::host_program_shape, |w| self.shapes.write_program(w, shapes, names, &module.shapes));
    }

    /// The counts of replicas and partitions, which no other field has: devices in the order of their ids. Where the input had such
    /// an assignment, that one is kept.
    fn device_assignment(&self, w: &mut Writer) {
        use device_assignment as d;
        let header = &self.module.header;
        let (replicas, partitions) = (header.replica_count.max(1), header.num_partitions.max(1));
        let is_kept = self.kept.module.iter().any(|field| field.is_of(hlo_module::device_assignment));
        if is_kept || self.module.n_devices() == 1 {
            return;
        }
        w.int(d::replica_count, replicas);
        w.int(d::computation_count, partitions);
        if self.module.n_devices() > MAX_LISTED_DEVICES {
            return;
        }
        for partition in 0..partitions {
            w.message(d::computation_devices, |w| {
                w.ints(computation_device::replica_device_ids, (0..replicas).map(|r| r * partitions + partition));
            });
        }
    }

    /// The order of each computation's instructions; fused ones have none.
    fn schedule(&self, w: &mut Writer, order: &[CompId]) {
        for &comp in order.iter().filter(|&&comp| !self.is_fused[comp]) {
            w.message(hlo_schedule::sequences, |w| {
                w.int(sequences_entry::key, self.comp_id(comp));
                w.message(sequences_entry::value, |w| {
                    let ids = self.module.comp(comp).insts.iter().map(|&id| self.id_of(id));
                    w.ints(instruction_sequence::instruction_ids, ids);
                });
            });
        }
    }
}

fn write_aliases(w: &mut Writer, aliases: &[AliasEntry]) {
    let kind = |is_must| ALIAS_KIND.number_of_word(if is_must { "MUST_ALIAS" } else { "MAY_ALIAS" }).unwrap_or(0);
    for alias in aliases {
        w.message(hlo_input_output_alias::entries, |w| {
            w.ints(alias_entry::output_shape_index, alias.output_index.iter().copied());
            w.int(alias_entry::parameter_number, alias.param);
            w.ints(alias_entry::parameter_shape_index, alias.param_index.iter().copied());
            w.int(alias_entry::kind, kind(alias.is_must));
        });
    }
}

fn write_donors(w: &mut Writer, donors: &[BufferDonor]) {
    for donor in donors {
        w.message(hlo_buffer_donor::entries, |w| {
            w.int(buffer_donor_entry::parameter_number, donor.param);
            w.ints(buffer_donor_entry::parameter_shape_index, donor.param_index.iter().copied());
        });
    }
}

fn write_tables(w: &mut Writer, tables: &DebugTables) {
    use {file_location as l, stack_frame as f, stack_frame_index as t};
    tables.file_names.iter().for_each(|name| w.text_or_none(t::file_names, name));
    tables.function_names.iter().for_each(|name| w.text_or_none(t::function_names, name));
    for place in &tables.file_locations {
        w.message(t::file_locations, |w| {
            w.int(l::file_name_id, place.file_name_id);
            w.int(l::function_name_id, place.function_name_id);
            w.int(l::line, place.line);
            w.int(l::column, place.column);
            w.int(l::end_line, place.end_line);
            w.int(l::end_column, place.end_column);
        });
    }
    for frame in &tables.stack_frames {
        w.message(t::stack_frames, |w| {
            w.int(f::file_location_id, frame.file_location_id);
            // Text has one more, so that 1 means none.
            w.int(f::parent_frame_id, frame.parent_frame_id.saturating_sub(1).max(0));
        });
    }
}
