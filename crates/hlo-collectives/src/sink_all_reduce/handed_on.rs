//! A carried value that one device of each group puts into the sum that gives it to all.
//!
//! ```text
//! %is_other = pred[] convert(%partition)              false on one device of each group
//! %base = f32[24,6] select(%others, %zeros, %carried)
//! %local = f32[24,6] scatter(%base, %places, %rows), to_apply=%add
//! %next = f32[24,6] all-reduce(%local), to_apply=%add
//! ```

use super::loops::Body;
use hlo_ir::attrs::{Attrs, CompareAttrs, Comparison};
use hlo_ir::edit::Builder;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, DType, InstId, Literal, Module, Opcode, Scalar};
use hlo_spmd::{AllReduce, DeviceTables, Rewrite, Splat, array, check_free, find_device_values, find_splat};

/// How a carried value goes into an all-reduce.
pub(super) struct HandedOn {
    /// What is the carried value on one device of each group, and zero on the others.
    pub(super) choice: InstId,
    /// The carried value.
    pub(super) carried: InstId,
    /// For each device whether it puts the value in.
    puts_in: Vec<bool>,
}

/// The all-reduce that `sum` is, and how the element read by `reads` goes into it, if it does nothing else.
pub(super) fn find(body: &Body<'_>, reads: &[InstId], sum: InstId) -> Option<(AllReduce, HandedOn)> {
    let all_reduce = body.find_sum(sum)?;
    let n_uses = reads.iter().map(|&read| body.users[read].len()).sum::<usize>();
    if n_uses != 1 || body.users[sum].len() != 1 || all_reduce.operand == sum {
        return None;
    }
    let handed_on = find_choice(body, reads, all_reduce.operand)?;
    let is_once = |group: &Vec<u32>| {
        let puts_in = |device: &&u32| handed_on.puts_in.get(**device as usize).copied().unwrap_or(false);
        group.iter().filter(puts_in).count() == 1
    };
    all_reduce.groups.iter().all(is_once).then_some((all_reduce, handed_on))
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
        match (instruction.opcode, instruction.operands.as_slice()) {
            (Opcode::Add, terms) => work.extend(terms),
            (Opcode::Copy, &[term]) => work.push(term),
            (Opcode::Scatter, &[into, _, _]) => {
                let adds = module.called(term).first().and_then(|&comp| find_monoid(module, comp)) == Some(Monoid::Add);
                work.extend(adds.then_some(into));
            }
            (Opcode::Select, &[mask, on_true, on_false]) => {
                let is_zero = |inst: InstId| find_splat(module, inst).is_some_and(Splat::is_zero);
                let (carried, zeros, put_in_if) =
                    if reads.contains(&on_true) { (on_true, on_false, 1) } else { (on_false, on_true, 0) };
                if !reads.contains(&carried) || !is_zero(zeros) {
                    continue;
                }
                let mask = match find_splat(module, mask)? {
                    Splat::Scalar(scalar) => find_device_values(module, scalar)?,
                    Splat::Value(_) => return None,
                };
                let puts_in = mask.into_iter().map(|value| value == put_in_if).collect();
                return Some(HandedOn { choice: term, carried, puts_in });
            }
            (_, _) => {}
        }
    }
    None
}

impl HandedOn {
    /// `value`, which stands outside the loop, on the devices that put it in, and zeros on the others.
    pub(super) fn on_one_device(&self, module: &mut Module, outside: &Rewrite, value: InstId) -> Option<InstId> {
        let shape = array(module, value)?.clone();
        let at = outside.at(value);
        let table: Vec<i64> = self.puts_in.iter().map(|&puts_in| puts_in.into()).collect();
        let puts_in = DeviceTables::default().looked_up(module, at, &table).ok()?;
        let mut builder = Builder::new(module, at.computation());
        let none = builder.constant("none", Literal::scalar(DType::S32, Scalar::Int(0)));
        let attrs = CompareAttrs { direction: Comparison::Ne, ..CompareAttrs::default() };
        let scalar = ArrayShape::new(DType::Pred, []);
        let puts_in = at.add(module, "is_first", Opcode::Compare, scalar, &[puts_in, none], attrs);
        let masks = ArrayShape { dtype: DType::Pred, ..shape.clone() };
        let mask = outside.repeat(module, "is_first", Splat::Scalar(puts_in), &masks);
        let zero = if shape.dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) };
        let zeros = outside.splat(module, "zero", zero, &shape);
        Some(at.add(module, "on_one_device", Opcode::Select, shape, &[mask, value, zeros], Attrs::Plain))
    }
}
