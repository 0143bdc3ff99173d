//! The `HloModule` line and the debug-info tables.

use super::strings::{write_dict, write_quoted};
use super::{Printer, write_index_comment};
use crate::float::decimal::write_i64;
use crate::header::{AliasEntry, BufferDonor, DebugTables, EntryLayout};

impl Printer<'_> {
    pub(super) fn header(&mut self) {
        let module = self.module;
        let header = &module.header;
        self.out.push_str("HloModule ");
        self.out.push_str(&module.name);
        if header.is_scheduled {
            self.out.push_str(", is_scheduled=true");
        }
        if !header.input_output_alias.is_empty() {
            self.out.push_str(", input_output_alias={ ");
            for (i, entry) in header.input_output_alias.iter().enumerate() {
                self.separator(i, ", ");
                self.alias(entry);
            }
            self.out.push_str(" }");
        }
        if !header.buffer_donor.is_empty() {
            self.out.push_str(", buffer_donor={ ");
            for (i, donor) in header.buffer_donor.iter().enumerate() {
                self.separator(i, ", ");
                self.donor(donor);
            }
            self.out.push_str(" }");
        }
        if header.alias_passthrough_params {
            self.out.push_str(", alias_passthrough_params=true");
        }
        if let Some(layout) = &header.entry_computation_layout {
            self.entry_layout(layout);
        }
        self.flags(
            ", allow_spmd_sharding_propagation_to_parameters=",
            header.allow_spmd_sharding_propagation_to_parameters.as_deref(),
        );
        self.flags(
            ", allow_spmd_sharding_propagation_to_output=",
            header.allow_spmd_sharding_propagation_to_output.as_deref(),
        );
        for (key, count) in [(", replica_count=", header.replica_count), (", num_partitions=", header.num_partitions)] {
            if count != 1 {
                self.out.push_str(key);
                write_i64(count, &mut self.out);
            }
        }
        if !header.frontend_attributes.is_empty() {
            self.out.push_str(", frontend_attributes=");
            write_dict(&header.frontend_attributes, &mut self.out);
        }
        if !header.origin_recovery_table.0.is_empty() {
            self.out.push_str(", origin_recovery_table=");
            self.out.push_str(&header.origin_recovery_table.0);
            // The table is followed by one more blank line than the other fields.
            self.out.push('\n');
        }
        if !header.debug_attributes.0.is_empty() {
            self.out.push_str(",\ndebug_attributes=");
            self.out.push_str(&header.debug_attributes.0);
            self.out.push('\n');
        }
        self.out.push_str("\n\n");
        if !header.tables.is_empty() {
            self.tables(&header.tables);
        }
    }

    fn alias(&mut self, entry: &AliasEntry) {
        self.ints(&entry.output_index);
        self.out.push_str(": (");
        write_i64(entry.param, &mut self.out);
        self.out.push_str(", ");
        self.ints(&entry.param_index);
        self.out.push_str(if entry.is_must { ", must-alias)" } else { ", may-alias)" });
    }

    fn donor(&mut self, donor: &BufferDonor) {
        self.out.push('(');
        write_i64(donor.param, &mut self.out);
        self.out.push_str(", ");
        self.ints(&donor.param_index);
        self.out.push(')');
    }

    fn entry_layout(&mut self, layout: &EntryLayout) {
        self.out.push_str(", entry_computation_layout={(");
        for (i, &param) in layout.params.iter().enumerate() {
            self.separator(i, ", ");
            if i > 0 && i % 5 == 0 {
                write_index_comment(i, &mut self.out);
            }
            self.shapes.write(self.module, param, &mut self.out);
        }
        self.out.push_str(")->");
        self.shapes.write(self.module, layout.result, &mut self.out);
        self.out.push('}');
    }

    fn flags(&mut self, key: &str, flags: Option<&[bool]>) {
        if let Some(flags) = flags {
            self.out.push_str(key);
            self.list(flags, ",", |p, &flag| p.boolean(flag));
        }
    }

    fn tables(&mut self, tables: &DebugTables) {
        self.table("FileNames", &tables.file_names, |p, name| write_quoted(name, &mut p.out));
        self.table("FunctionNames", &tables.function_names, |p, name| write_quoted(name, &mut p.out));
        self.table("FileLocations", &tables.file_locations, |p, at| {
            p.numbers(&[
                ("file_name_id=", at.file_name_id),
                ("function_name_id=", at.function_name_id),
                ("line=", at.line),
                ("end_line=", at.end_line),
                ("column=", at.column),
                ("end_column=", at.end_column),
            ]);
        });
        self.table("StackFrames", &tables.stack_frames, |p, frame| {
            p.numbers(&[("file_location_id=", frame.file_location_id), ("parent_frame_id=", frame.parent_frame_id)]);
        });
        self.out.push('\n');
    }

    /// Appends a heading, the numbered entries and a blank line.
    fn table<T>(&mut self, heading: &str, entries: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.out.push_str(heading);
        self.out.push('\n');
        for (i, entry) in entries.iter().enumerate() {
            write_i64(i as i64 + 1, &mut self.out);
            self.out.push(' ');
            write(self, entry);
            self.out.push('\n');
        }
        self.out.push('\n');
    }

    /// Appends `{key=1 key=2}`.
    fn numbers(&mut self, entries: &[(&str, i64)]) {
        self.out.push('{');
        for (i, &(key, value)) in entries.iter().enumerate() {
            self.separator(i, " ");
            self.out.push_str(key);
            write_i64(value, &mut self.out);
        }
        self.out.push('}');
    }
}
