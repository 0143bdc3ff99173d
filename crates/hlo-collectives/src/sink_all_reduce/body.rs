//! The sums that a loop's body adds to an element of its state.

use super::branches::IsEqual;
use cranelift_entity::EntitySet;
use hlo_ir::dtype::NumberClass;
use hlo_ir::module::UserMap;
use hlo_ir::monoid::Monoid;
use hlo_ir::{DType, InstId, Module, Opcode};
use hlo_spmd::{AllReduce, Splat, array, check_free, find_all_reduce, find_scaling};

/// Most instructions between an all-reduce and the sum of a loop.
const MAX_STEPS: usize = 64;

/// The body of a loop, with what the search for sums asks of it.
pub(super) struct Body<'a> {
    pub(super) module: &'a Module,
    pub(super) users: &'a UserMap,
    pub(super) pinned: &'a EntitySet<InstId>,
    /// Whether sums may be done in a wider floating-point type.
    pub(super) reassoc: bool,
    pub(super) is_equal: IsEqual<'a>,
}

impl Body<'_> {
    /// The all-reduces that `sum` adds to the element read by `reads`; none if it does anything else.
    pub(super) fn find_terms(&self, reads: &[InstId], sum: InstId) -> Option<Vec<AllReduce>> {
        let (module, users) = (self.module, self.users);
        let shape = array(module, sum)?;
        let (mut n_carries, mut all_reduces) = (0, Vec::<AllReduce>::new());
        let mut work = vec![sum];
        while let Some(term) = work.pop() {
            // Whatever is in the sum must be used by the sum alone, and each read of the element is such a term.
            let same_type = array(module, term).is_some_and(|s| s.same_type(shape));
            if users[term].len() != 1 || !same_type || check_free(module, term, self.pinned).is_err() {
                return None;
            }
            if module.inst(term).opcode == Opcode::Add {
                work.extend(module.inst(term).operands.iter().copied());
            } else if reads.contains(&term) {
                n_carries += 1;
            } else {
                let all_reduce = self.find_linear_sum(term, MAX_STEPS)?;
                if all_reduces.first().is_some_and(|first| first.groups != all_reduce.groups) {
                    return None;
                }
                all_reduces.push(all_reduce);
            }
        }
        let all_reads = reads.iter().map(|&r| users[r].len()).sum::<usize>();
        (n_carries == 1 && all_reads == 1 && !all_reduces.is_empty()).then_some(all_reduces)
    }

    /// The all-reduce by addition of which `term`, a value with one user, is a linear function that is the same on all devices of a
    /// group: rearrangements, scalings, and conversions to a type in which the sum may be done later. At most `n_steps` of them.
    fn find_linear_sum(&self, term: InstId, n_steps: usize) -> Option<AllReduce> {
        if let Some(all_reduce) = self.find_sum(term) {
            return Some(all_reduce);
        }
        check_free(self.module, term, self.pinned).ok()?;
        let n_left = n_steps.checked_sub(1)?;
        self.linear_operands(term).into_iter().filter(|(next, _)| self.users[*next].len() == 1).find_map(
            |(next, scale)| {
                let all_reduce = self.find_linear_sum(next, n_left)?;
                scale.is_none_or(|scale| (self.is_equal)(scale, &all_reduce.groups)).then_some(all_reduce)
            },
        )
    }

    /// The all-reduce by addition that an instruction is.
    pub(super) fn find_sum(&self, inst: InstId) -> Option<AllReduce> {
        let found = find_all_reduce(self.module, inst, self.pinned).ok().flatten();
        found.filter(|all_reduce| all_reduce.reducer == Some(Monoid::Add))
    }

    /// The operands that `inst` rearranges, converts or scales, each with the scalar that scales it if that is no constant.
    fn linear_operands(&self, inst: InstId) -> Vec<(InstId, Option<InstId>)> {
        let module = self.module;
        let instruction = module.inst(inst);
        let Some(&first) = instruction.operands.first() else { return Vec::new() };
        if [Opcode::Transpose, Opcode::Reshape, Opcode::Copy].contains(&instruction.opcode) {
            return vec![(first, None)];
        }
        if instruction.opcode == Opcode::Convert {
            let [Some(from), Some(to)] = [first, inst].map(|inst| array(module, inst).map(|shape| shape.dtype)) else {
                return Vec::new();
            };
            let is_exact = narrows(from, to) || (self.reassoc && widens(from, to));
            return is_exact.then_some((first, None)).into_iter().collect();
        }
        let scaled = instruction.operands.iter().filter_map(|&value| match find_scaling(module, inst, value)?.splat {
            Splat::Scalar(scalar) => Some((value, Some(scalar))),
            Splat::Value(_) => Some((value, None)),
        });
        scaled.collect()
    }
}

/// Whether sums of integers that wrap are the same before and after a conversion.
fn narrows(from: DType, to: DType) -> bool {
    let is_integer = |t: DType| matches!(t.class(), NumberClass::Signed | NumberClass::Unsigned);
    is_integer(from) && is_integer(to) && to.bits() <= from.bits()
}

/// Whether every number of the one floating-point type is one of the other.
pub(super) fn widens(from: DType, to: DType) -> bool {
    let is_wide = |t: DType| matches!(t, DType::F32 | DType::F64);
    let is_narrow = |t: DType| matches!(t, DType::BF16 | DType::F16);
    (is_narrow(from) && is_wide(to)) || (from == DType::F32 && to == DType::F64)
}
