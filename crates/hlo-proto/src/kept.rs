//! What a module cannot hold, kept beside it so that writing restores it: fields that no row of the table has, and rows marked as
//! kept.

use crate::table::Field;
use crate::wire::{Value, push_varint, take_field};
use hlo_ir::{CompId, InstId, Opcode};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// One step into a message: the field, and which of its messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Step {
    /// The field's number.
    pub(crate) number: u32,
    /// Which of the messages of that number.
    pub(crate) index: u32,
}

/// Where a message stands in another.
pub(crate) type Place = SmallVec<[Step; 4]>;

/// One kept field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeptField {
    /// The message that has it, seen from the instruction, the computation or the module.
    pub(crate) place: Place,
    /// Its bytes, number and all.
    pub(crate) bytes: Box<[u8]>,
}

impl KeptField {
    /// Whether this is a field of the module, the computation or the instruction itself.
    pub(crate) fn is_of(&self, field: Field) -> bool {
        self.place.is_empty() && take_field(&self.bytes, &mut 0).is_ok_and(|(number, _)| number == field.number)
    }
}

/// The kept fields of an instruction, and what tells whether it still is the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OfInstruction {
    pub(crate) opcode: Opcode,
    pub(crate) name: Box<str>,
    pub(crate) fields: Vec<KeptField>,
}

/// The fields of an input that a module cannot hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    pub(crate) module: Vec<KeptField>,
    pub(crate) comps: BTreeMap<CompId, (Box<str>, Vec<KeptField>)>,
    pub(crate) insts: BTreeMap<InstId, OfInstruction>,
}

impl Kept {
    /// The number of fields.
    pub fn n_fields(&self) -> usize {
        let of_comps = self.comps.values().map(|(_, fields)| fields.len());
        let of_insts = self.insts.values().map(|kept| kept.fields.len());
        self.module.len() + of_comps.chain(of_insts).sum::<usize>()
    }
}

/// The index of one more message of a field, after those counted so far.
pub(crate) fn next_index(counts: &mut SmallVec<[(u32, u32); 4]>, number: u32) -> u32 {
    if let Some((_, count)) = counts.iter_mut().find(|(known, _)| *known == number) {
        *count += 1;
        return *count;
    }
    counts.push((number, 0));
    0
}

/// Puts fields back into the bytes of a message, each in front of the first field with a larger number. Fields whose message is
/// no more are left out; gives the number of those that are back.
pub(crate) fn restore(bytes: &[u8], fields: &[KeptField], out: &mut Vec<u8>) -> usize {
    let all: Vec<(&[Step], &[u8])> = fields.iter().map(|field| (&*field.place, &*field.bytes)).collect();
    restore_at(bytes, &all, out)
}

fn restore_at(bytes: &[u8], fields: &[(&[Step], &[u8])], out: &mut Vec<u8>) -> usize {
    let mut own: Vec<(u32, &[u8])> = Vec::new();
    for (place, kept) in fields {
        if place.is_empty() {
            own.push((take_field(kept, &mut 0).map_or(0, |(number, _)| number), kept));
        }
    }
    own.sort_by_key(|(number, _)| *number);
    let mut n_restored = own.len();
    let mut own = own.into_iter().peekable();
    let mut counts: SmallVec<[(u32, u32); 4]> = SmallVec::new();
    let mut pos = 0;
    while pos < bytes.len() {
        let begin = pos;
        let Ok((number, value)) = take_field(bytes, &mut pos) else { break };
        while let Some((_, kept)) = own.next_if(|(kept, _)| *kept < number) {
            out.extend_from_slice(kept);
        }
        let here = Step { number, index: next_index(&mut counts, number) };
        let below: Vec<_> =
            fields.iter().filter(|(place, _)| place.first() == Some(&here)).map(|(p, b)| (&p[1..], *b)).collect();
        match value {
            Value::Bytes(inner) if !below.is_empty() => {
                let mut changed = Vec::with_capacity(inner.len() + 64);
                n_restored += restore_at(inner, &below, &mut changed);
                push_varint(out, u64::from(number) << 3 | 2);
                push_varint(out, changed.len() as u64);
                out.extend_from_slice(&changed);
            }
            Value::Bytes(_) | Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) => {
                out.extend_from_slice(&bytes[begin..pos]);
            }
        }
    }
    own.for_each(|(_, kept)| out.extend_from_slice(kept));
    n_restored
}
