//! A bucket as one collective that takes all operands and gives a tuple.

use super::attrs_on_own_channel;
use super::plan::Bucket;
use hlo_ir::attrs::TupleIndexAttrs;
use hlo_ir::{InstId, Module, Opcode, Shape};
use hlo_spmd::{ChannelIds, Rewrite};

/// Emits the collective and redirects the members' uses to its elements; the collective.
pub(crate) fn emit(module: &mut Module, rewrite: &mut Rewrite, bucket: &Bucket, channels: &mut ChannelIds) -> InstId {
    let first = bucket.members[0];
    let opcode = module.inst(first).opcode;
    let shapes = bucket.members.iter().map(|&member| module.shape(member).clone()).collect();
    let operands: Vec<InstId> = bucket.members.iter().map(|&member| module.inst(member).operands[0]).collect();
    let attrs = attrs_on_own_channel(module, first, channels);
    let what = format!("{}.combined", opcode.name());
    let combined = rewrite.add(module, first, (&what, opcode), Shape::Tuple(shapes), &operands, attrs);
    for (index, &member) in (0..).zip(&bucket.members) {
        let (hint, shape) = (module.inst_name(member).to_string(), module.shape(member).clone());
        let read = TupleIndexAttrs { index };
        let element = rewrite.add(module, member, (&hint, Opcode::GetTupleElement), shape, &[combined], read);
        rewrite.redirect(member, element);
    }
    combined
}
