//! A carried value that one device of each group puts into the sum that gives it to all.
//!
//! ```text
//! %is_other = pred[] convert(%partition)              false on one device of each group
//! %base = f32[24,6] select(%others, %zeros, %carried)
//! %local = f32[24,6] scatter(%base, %places, %rows), to_apply=%add
//! %next = f32[24,6] all-reduce(%local), to_apply=%add
//! ```

use super::body::Body;
use hlo_ir::attrs::{Attrs, CompareAttrs, Comparison};
use hlo_ir::edit::Builder;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, DType, InstId, Literal, Module, Opcode, Scalar};
use hlo_spmd::{AllReduce, DeviceTables, Masked, Rewrite, Splat, array, check_free, find_masked};

/// How a carried value goes into an all-reduce.
pub(super) struct HandedOn {
    /// The instruction that gives the carried value on one device of each group, and zero on the others.
    pub(super) choice: InstId,
    /// The carried value, and who holds it.
    pub(super) masked: Masked,
}

/// The all-reduce that `sum` is, and how the element read by `reads` goes into it, if it does nothing else.
pub(super) fn find(body: &Body<'_>, reads: &[InstId], sum: InstId) -> Option<(AllReduce, HandedOn)> {
    let all_reduce = body.find_sum(sum)?;
    let n_uses = reads.iter().map(|&read| body.users[read].len()).sum::<usize>();
    if n_uses != 1 || body.users[sum].len() != 1 {
        return None;
    }
    let handed_on = find_choice(body, reads, all_reduce.operand)?;
    handed_on.masked.is_held_once(&all_reduce.groups).then_some((all_reduce, handed_on))
}

/// The choice between a read and zeros that is a term of `sum`.
fn find_choice(body: &Body<'_>, reads: &[InstId], sum: InstId) -> Option<HandedOn> {
    let module = body.module;
    let mut work = vec![sum];
    while let Some(term) = work.pop() {
        if body.users[term].len() != 1 || check_free(module, term, body.pinned).is_err() {
            continue;
        }
        let instruction = module.inst(term);
        let operands = instruction.operands.as_slice();
        let adds = || module.called(term).first().and_then(|&comp| find_monoid(module, comp)) == Some(Monoid::Add);
        if instruction.opcode == Opcode::Scatter && operands.len() == 3 && adds() {
            work.extend(operands.first());
        } else if [Opcode::Add, Opcode::Copy].contains(&instruction.opcode) {
            work.extend(operands);
        } else if let Some(masked) = find_masked(module, term).filter(|masked| reads.contains(&masked.value)) {
            return Some(HandedOn { choice: term, masked });
        }
    }
    None
}

impl HandedOn {
    /// `value`, which stands outside the loop, on the devices that hold it in the loop, and zeros on the others.
    pub(super) fn on_one_device(&self, module: &mut Module, outside: &Rewrite, value: InstId) -> Option<InstId> {
        let shape = array(module, value)?.clone();
        let at = outside.at(value);
        let table: Vec<i64> = self.masked.is_held.iter().map(|&is_held| is_held.into()).collect();
        let is_held = DeviceTables::default().looked_up(module, at, &table).ok()?;
        let mut builder = Builder::new(module, at.computation());
        let none = builder.constant("none", Literal::scalar(DType::S32, Scalar::Int(0)));
        let attrs = CompareAttrs { direction: Comparison::Ne, ..CompareAttrs::default() };
        let scalar = ArrayShape::new(DType::Pred, []);
        let is_held = at.add(module, "is_first", Opcode::Compare, scalar, &[is_held, none], attrs);
        let masks = ArrayShape { dtype: DType::Pred, ..shape.clone() };
        let mask = outside.repeat(module, "is_first", Splat::Scalar(is_held), &masks);
        let zero = if shape.dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) };
        let zeros = outside.splat(module, "zero", zero, &shape);
        Some(at.add(module, "on_one_device", Opcode::Select, shape, &[mask, value, zeros], Attrs::Plain))
    }
}
