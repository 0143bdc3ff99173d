//! Attributes that any instruction can carry: sharding, metadata, frontend attributes, …

use crate::cursor::Cursor;
use crate::error::{DUPLICATE, Fallible, MISSING, UNKNOWN, failure};
use crate::parser::Parser;
use crate::sharding::sharding;
use hlo_ir::CompId;
use hlo_ir::attrs::{AttrFormat, Attrs, Marks, Presence, RawBraces};
use std::sync::Arc;

impl Parser<'_> {
    /// Takes the value of a common attribute into `marks`; false if `key` is none.
    pub(crate) fn mark(
        &mut self,
        comp: CompId,
        key: &str,
        start: usize,
        marks: &mut Option<Arc<Marks>>,
    ) -> Fallible<bool> {
        const KEYS: [&str; 8] = [
            "sharding",
            "metadata",
            "backend_config",
            "frontend_attributes",
            "control-predecessors",
            "statistics",
            "origin",
            "result_accuracy",
        ];
        if !KEYS.contains(&key) {
            return Ok(false);
        }
        let marks = Arc::make_mut(marks.get_or_insert_default());
        let is_repeated = match key {
            "sharding" => marks.sharding.replace(sharding(&mut self.cur)?).is_some(),
            "metadata" => marks.metadata.replace(self.metadata()?).is_some(),
            "backend_config" => marks.backend_config.replace(json_or_string(&mut self.cur)?).is_some(),
            "frontend_attributes" => {
                let pairs = frontend_attributes(&mut self.cur)?;
                !std::mem::replace(&mut marks.frontend_attributes, pairs).is_empty()
            }
            "control-predecessors" => {
                let mut before = Vec::new();
                self.list((b'{', b'}'), "of the control predecessors", &mut |p| {
                    before.push(p.inst_ref(comp)?);
                    Ok(())
                })?;
                !std::mem::replace(&mut marks.control_predecessors, before).is_empty()
            }
            "statistics" => raw(&mut self.cur, &mut marks.statistics)?,
            "origin" => raw(&mut self.cur, &mut marks.origin)?,
            _ => raw(&mut self.cur, &mut marks.result_accuracy)?,
        };
        if is_repeated {
            let message = format!("expected the attribute `{key}` once, found it twice");
            return Err(failure(DUPLICATE, start, start + key.len(), message));
        }
        Ok(true)
    }

    /// Takes `{op_name="…" source_line=3 …}`.
    fn metadata(&mut self) -> Fallible<Box<hlo_ir::attrs::Metadata>> {
        let mut attrs = Attrs::Metadata(Box::default());
        let mut seen = 0u64;
        self.cur.expect(b'{', "of the metadata")?;
        while self.cur.peek() != Some(b'}') {
            let start = self.cur.pos;
            let key = self.cur.key("a metadata key such as `op_name`")?;
            if !self.field(&mut attrs, key, start, &mut seen)? {
                return Err(unknown_key("a metadata key", key, start, AttrFormat::Metadata, ""));
            }
            let _ = self.cur.eat(b',');
        }
        self.cur.pos += 1;
        let Attrs::Metadata(metadata) = attrs else { return Ok(Box::default()) };
        Ok(metadata)
    }

    /// Takes the value of `attrs`' own attribute `key`; false if it has none of that name.
    #[inline]
    pub(crate) fn field(&mut self, attrs: &mut Attrs, key: &str, start: usize, seen: &mut u64) -> Fallible<bool> {
        let format = attrs.format();
        let Some((place, field)) = attrs.field_mut(key) else { return Ok(false) };
        let bit = 1u64 << (place & 63);
        if *seen & bit != 0 {
            let message = format!("expected the attribute `{key}` once, found it twice");
            return Err(failure(DUPLICATE, start, start + key.len(), message));
        }
        *seen |= bit;
        self.value(format, key, field)?;
        Ok(true)
    }
}

/// Fails if an attribute that must stand was not seen.
#[inline]
pub(crate) fn check_required(format: AttrFormat, seen: u64, op: &str, start: usize) -> Fallible<()> {
    for (place, (key, presence)) in format.fields().iter().enumerate() {
        if *presence == Presence::Required && seen >> (place & 63) & 1 == 0 {
            let message = format!("`{op}`: expected the attribute `{key}`, found none");
            return Err(failure(MISSING, start, start + op.len(), message));
        }
    }
    Ok(())
}

/// An error that lists the keys that would do.
#[cold]
pub(crate) fn unknown_key(
    what: &str,
    key: &str,
    start: usize,
    format: AttrFormat,
    also: &str,
) -> Box<hlo_ir::diag::Diagnostic> {
    let own = format.fields().iter().map(|f| f.0);
    let known: Vec<&str> = own.chain(Some(also).filter(|also| !also.is_empty())).collect();
    let shown = key.get(..key.len().min(60)).unwrap_or(key);
    let message = format!("expected {what}, found `{shown}`");
    failure(UNKNOWN, start, start + key.len(), message).with_help(format!("known here: {}", known.join(", "))).into()
}

/// Takes balanced braces into `slot`; true if it held some before.
fn raw(cur: &mut Cursor<'_>, slot: &mut RawBraces) -> Fallible<bool> {
    let text = cur.braces("`{`")?.to_string();
    Ok(!std::mem::replace(&mut slot.0, text).is_empty())
}

/// Takes a quoted string, unescaped, or a JSON object as it stands.
pub(crate) fn json_or_string(cur: &mut Cursor<'_>) -> Fallible<String> {
    match cur.peek() {
        Some(b'{') => Ok(cur.braces("a JSON object")?.to_string()),
        _ => Ok(cur.string("a quoted string or a JSON object")?.into_owned()),
    }
}

/// Takes `{key="value",key={…}}`.
pub(crate) fn frontend_attributes(cur: &mut Cursor<'_>) -> Fallible<Vec<(String, String)>> {
    let mut out = Vec::new();
    cur.list((b'{', b'}'), "of the frontend attributes", &mut |cur| {
        let key = match cur.peek() {
            Some(b'"' | b'\'') => cur.string("a key")?.into_owned(),
            _ => cur.word("a key")?.to_string(),
        };
        cur.expect(b'=', "after the key")?;
        out.push((key, json_or_string(cur)?));
        Ok(())
    })?;
    Ok(out)
}
