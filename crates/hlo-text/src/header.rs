//! The `HloModule` line and the tables after it.

use crate::cursor::{Cursor, is_name_byte};
use crate::error::{DUPLICATE, EXPECTED, Fallible, UNKNOWN, failure};
use crate::groups::dims;
use crate::marks::frontend_attributes;
use crate::parser::Parser;
use crate::values::boolean;
use hlo_ir::attrs::RawBraces;
use hlo_ir::header::{AliasEntry, BufferDonor, EntryLayout, FileLocation, StackFrame};

const BRACES: (u8, u8) = (b'{', b'}');

/// Keys of the header line, in printed order.
const KEYS: [&str; 12] = [
    "is_scheduled",
    "input_output_alias",
    "buffer_donor",
    "alias_passthrough_params",
    "entry_computation_layout",
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "replica_count",
    "num_partitions",
    "frontend_attributes",
    "origin_recovery_table",
    "debug_attributes",
];

impl Parser<'_> {
    /// Takes `HloModule name, key=value, …`.
    pub(crate) fn header(&mut self) -> Fallible<()> {
        let name = self.cur.any_name("the name of the module")?;
        if name == "ENTRY" {
            // A forgotten name; a module that is called so could not be told from it when printed.
            self.cur.pos -= name.len();
            return Err(self.cur.expected("the name of the module"));
        }
        // XLA takes a colon for part of the name, and leaves it out.
        self.cur.pos += usize::from(self.cur.raw() == Some(b':'));
        self.module.name = name.to_string();
        let mut seen = [false; KEYS.len()];
        while self.cur.eat(b',') {
            let key = self.cur.key("a header field")?;
            let start = self.cur.pos - key.len() - 1;
            let Some(slot) = KEYS.iter().position(|&k| k == key).and_then(|i| seen.get_mut(i)) else {
                let shown = key.get(..key.len().min(60)).unwrap_or(key);
                return Err(failure(
                    UNKNOWN,
                    start,
                    start + key.len(),
                    format!("expected a header field, found `{shown}`"),
                )
                .with_help(format!("fields are {}", KEYS.join(", ")))
                .into());
            };
            if std::mem::replace(slot, true) {
                let message = format!("expected the header field `{key}` once, found it twice");
                return Err(failure(DUPLICATE, start, start + key.len(), message));
            }
            self.header_field(key)?;
        }
        Ok(())
    }

    fn header_field(&mut self, key: &str) -> Fallible<()> {
        if key == "entry_computation_layout" {
            let layout = self.entry_layout()?;
            self.module.header.entry_computation_layout = Some(layout);
            return Ok(());
        }
        let (cur, header) = (&mut self.cur, &mut self.module.header);
        match key {
            "is_scheduled" => header.is_scheduled = boolean(cur)?,
            "input_output_alias" => cur.list(BRACES, "of the aliases", &mut |cur| {
                header.input_output_alias.push(alias(cur)?);
                Ok(())
            })?,
            "buffer_donor" => cur.list(BRACES, "of the donors", &mut |cur| {
                cur.expect(b'(', "before the parameter number")?;
                let (param, param_index) = parameter_place(cur)?;
                cur.expect(b')', "after the tuple index")?;
                header.buffer_donor.push(BufferDonor { param, param_index });
                Ok(())
            })?,
            "alias_passthrough_params" => header.alias_passthrough_params = boolean(cur)?,
            "allow_spmd_sharding_propagation_to_parameters" => {
                header.allow_spmd_sharding_propagation_to_parameters = Some(booleans(cur)?);
            }
            "allow_spmd_sharding_propagation_to_output" => {
                header.allow_spmd_sharding_propagation_to_output = Some(booleans(cur)?);
            }
            "replica_count" => header.replica_count = cur.count("the number of replicas")?,
            "num_partitions" => header.num_partitions = cur.count("the number of partitions")?,
            "frontend_attributes" => header.frontend_attributes = frontend_attributes(cur)?,
            "debug_attributes" => header.debug_attributes = RawBraces(cur.braces("`{`")?.to_string()),
            _ => header.origin_recovery_table = RawBraces(cur.braces("`{`")?.to_string()),
        }
        Ok(())
    }

    /// Takes `{(params)->result}`.
    fn entry_layout(&mut self) -> Fallible<EntryLayout> {
        self.cur.expect(b'{', "of the entry layout")?;
        let mut params = Vec::new();
        self.list((b'(', b')'), "of the parameter shapes", &mut |p| {
            params.push(p.shape()?);
            Ok(())
        })?;
        self.cur.expect_str("->", "after the parameter shapes")?;
        let result = self.shape()?;
        self.cur.expect(b'}', "after the entry layout")?;
        Ok(EntryLayout { params, result })
    }

    /// Takes the table that comes next, if one does.
    pub(crate) fn table(&mut self) -> Fallible<bool> {
        let mut ahead = self.cur;
        let name = ahead.peek_word();
        ahead.pos += name.len();
        // A computation may have the same name, but then no entry follows.
        if !matches!(name, "FileNames" | "FunctionNames" | "FileLocations" | "StackFrames")
            || matches!(ahead.peek(), Some(b'{' | b'('))
        {
            return Ok(false);
        }
        self.cur = ahead;
        let mut number = 0i64;
        while self.cur.peek().is_some_and(|b| b.is_ascii_digit()) {
            number += 1;
            let start = self.cur.pos;
            let found = self.cur.count("an entry number")?;
            if found != number {
                let message = format!("`{name}`: expected entry number {number}, found {found}");
                return Err(failure(EXPECTED, start, self.cur.pos, message));
            }
            self.table_entry(name)?;
        }
        Ok(true)
    }

    fn table_entry(&mut self, table: &str) -> Fallible<()> {
        let (cur, tables) = (&mut self.cur, &mut self.module.header.tables);
        match table {
            "FileNames" => tables.file_names.push(cur.string("a quoted file name")?.into_owned()),
            "FunctionNames" => tables.function_names.push(cur.string("a quoted function name")?.into_owned()),
            "FileLocations" => {
                let mut place = FileLocation::default();
                record(cur, &mut |key, value| {
                    *match key {
                        "file_name_id" => &mut place.file_name_id,
                        "function_name_id" => &mut place.function_name_id,
                        "line" => &mut place.line,
                        "end_line" => &mut place.end_line,
                        "column" => &mut place.column,
                        "end_column" => &mut place.end_column,
                        _ => return false,
                    } = value;
                    true
                })?;
                tables.file_locations.push(place);
            }
            _ => {
                let mut frame = StackFrame::default();
                record(cur, &mut |key, value| {
                    *match key {
                        "file_location_id" => &mut frame.file_location_id,
                        "parent_frame_id" => &mut frame.parent_frame_id,
                        _ => return false,
                    } = value;
                    true
                })?;
                tables.stack_frames.push(frame);
            }
        }
        Ok(())
    }
}

/// Takes `{key=number key=number}` ; `store` says whether it knows the key.
fn record(cur: &mut Cursor<'_>, store: &mut dyn FnMut(&str, i64) -> bool) -> Fallible<()> {
    cur.expect(b'{', "of the table entry")?;
    while !cur.eat(b'}') {
        let key = cur.word("a key of the table entry")?;
        let start = cur.pos - key.len();
        cur.expect(b'=', "after the key")?;
        let value = cur.int("a number")?;
        if !store(key, value) {
            let shown = key.get(..key.len().min(60)).unwrap_or(key);
            return Err(failure(
                UNKNOWN,
                start,
                start + key.len(),
                format!("expected a key of the table entry, found `{shown}`"),
            ));
        }
        let _ = cur.eat(b',');
    }
    Ok(())
}

/// Takes `{output index}: (param, {param index}[, may-alias])`.
fn alias(cur: &mut Cursor<'_>) -> Fallible<AliasEntry> {
    let output_index = dims(cur, BRACES, "of the output index")?;
    cur.expect(b':', "after the output index")?;
    cur.expect(b'(', "before the parameter number")?;
    let (param, param_index) = parameter_place(cur)?;
    let mut is_must = false;
    if cur.eat(b',') {
        is_must = match cur.peek_word() {
            "may-alias" => false,
            "must-alias" => true,
            _ => return Err(cur.expected("`may-alias` or `must-alias`")),
        };
        cur.pos += cur.peek_word().len();
    }
    cur.expect(b')', "after the alias")?;
    Ok(AliasEntry { output_index, param, param_index, is_must })
}

/// Takes `param, {index}`.
fn parameter_place(cur: &mut Cursor<'_>) -> Fallible<(i64, hlo_ir::Dims)> {
    let param = cur.count("a parameter number")?;
    cur.expect(b',', "after the parameter number")?;
    Ok((param, dims(cur, BRACES, "of the tuple index")?))
}

fn booleans(cur: &mut Cursor<'_>) -> Fallible<Vec<bool>> {
    // A single flag needs no braces.
    if cur.peek().is_some_and(is_name_byte) {
        return boolean(cur).map(|flag| vec![flag]);
    }
    let mut out = Vec::new();
    cur.list(BRACES, "of the flags", &mut |cur| {
        out.push(boolean(cur)?);
        Ok(())
    })?;
    Ok(out)
}
