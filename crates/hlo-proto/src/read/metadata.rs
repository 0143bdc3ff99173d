//! Metadata of instructions.

use super::Fallible;
use super::value::read_value;
use crate::bindings::{At, bindings};
use crate::view::View;
use hlo_ir::attrs::{AttrFormat, Attrs, Metadata};

/// Reads metadata.
pub(crate) fn read_metadata(view: &View<'_>) -> Fallible<Box<Metadata>> {
    let mut attrs = Attrs::Metadata(Box::default());
    let mut places = bindings(AttrFormat::Metadata).iter();
    let mut outcome = Ok(());
    attrs.for_each_field_mut(&mut |field| {
        if let Some(At::Own(place)) = places.next()
            && view.has(*place)
            && outcome.is_ok()
        {
            outcome = read_value(view, *place, false, field);
        }
    });
    outcome?;
    let Attrs::Metadata(metadata) = attrs else { return Ok(Box::default()) };
    Ok(metadata)
}
