//! Metadata of instructions.

use super::Fallible;
use super::value::read_value;
use crate::bindings::{At, bindings};
use crate::table::{op_metadata, payload};
use crate::view::{View, text_of};
use hlo_ir::attrs::{AttrFormat, Attrs, Metadata, QuotedText};

/// Reads metadata.
pub(crate) fn read_metadata(view: &View<'_>) -> Fallible<Box<Metadata>> {
    let mut attrs = Attrs::Metadata(Box::default());
    let mut places = bindings(AttrFormat::Metadata).iter();
    let mut outcome = Ok(());
    attrs.for_each_field_mut(&mut |field| match places.next() {
        Some(At::Own(place)) if view.has(*place) && outcome.is_ok() => {
            outcome = read_value(view, *place, false, field);
        }
        Some(At::In(message, place)) if outcome.is_ok() => {
            if let Some(inner) = view.message(*message).filter(|inner| inner.has(*place)) {
                outcome = read_value(&inner, *place, false, field);
            }
        }
        _ => {}
    });
    outcome?;
    let Attrs::Metadata(metadata) = attrs else { return Ok(Box::default()) };
    Ok(metadata)
}

/// Gives metadata its payload where that stands in the module's table, and the metadata has its place there.
pub(crate) fn read_payload(view: &View<'_>, payloads: &[&[u8]], metadata: &mut Metadata) -> Fallible<()> {
    let Some(payload) = view.message(op_metadata::metadata_payload).filter(|payload| payload.has(payload::id)) else {
        return Ok(());
    };
    let id = payload.int(payload::id);
    let text = usize::try_from(id).ok().and_then(|id| payloads.get(id));
    let text = text.ok_or_else(|| format!("expected the place of one of {} payloads, found {id}", payloads.len()))?;
    metadata.metadata_payload = Some(QuotedText(text_of(text)));
    Ok(())
}
