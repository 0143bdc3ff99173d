//! Reductions across devices of types that the library does not reduce, in a wider type that it does.

use super::writer::Writer;
use hlo_ir::attrs::Attrs;
use hlo_ir::edit::Builder;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, DType, InstId, Opcode, Shape};

/// The type in which elements of `dtype` are added up: 8-bit floats in `f16`, as XLA does, integers in one that wraps alike.
fn wider(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F8E3M4
        | DType::F8E4M3
        | DType::F8E4M3FN
        | DType::F8E4M3B11FNUZ
        | DType::F8E4M3FNUZ
        | DType::F8E5M2
        | DType::F8E5M2FNUZ => Some(DType::F16),
        DType::S1 | DType::S2 | DType::S4 | DType::S16 => Some(DType::S32),
        DType::U1 | DType::U2 | DType::U4 | DType::U16 => Some(DType::U32),
        _ => None,
    }
}

/// Writes an all-reduce or reduce-scatter that adds arrays of such a type; none for others.
pub(super) fn expand_reduction(w: &mut Writer<'_>, inst: InstId) -> Option<InstId> {
    let instruction = w.module.inst(inst);
    let to_apply = instruction.attrs.collective()?.to_apply?;
    let result = w.module.shape(inst).as_array()?.clone();
    let (&[operand], to) = (instruction.operands.as_slice(), wider(result.dtype)?) else { return None };
    if find_monoid(w.module, to_apply) != Some(Monoid::Add) {
        return None;
    }
    let (opcode, mut attrs) = (instruction.opcode, instruction.attrs.clone());
    let Attrs::Combining(combining) = &mut attrs else { return None };
    let sum = *w.sums.entry(to).or_insert_with(|| w.module.add_sum("add", to));
    combining.to_apply = Some(sum);
    let given = w.module.shape(operand).as_array()?.clone();
    let wide = |array: &ArrayShape| Shape::Array(ArrayShape { dtype: to, ..array.clone() });
    let mut build = Builder::new(w.module, w.comp);
    let widened = build.add(&w.hint, Opcode::Convert, wide(&given), [operand], Attrs::Plain);
    let reduced = build.add(&w.hint, opcode, wide(&result), [widened], attrs);
    Some(build.add(&w.hint, Opcode::Convert, Shape::Array(result), [reduced], Attrs::Plain))
}
