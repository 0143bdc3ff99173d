//! Reductions across devices of types that the library does not reduce, in a wider type that it does.

use hlo_ir::attrs::Attrs;
use hlo_ir::edit::Builder;
use hlo_ir::expand::Writer;
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
    let whole = w.module.shape(inst).clone();
    let results = whole.as_tuple().unwrap_or(std::slice::from_ref(&whole));
    let results: Vec<ArrayShape> = results.iter().map(|shape| shape.as_array().cloned()).collect::<Option<_>>()?;
    let to = wider(results.first()?.dtype)?;
    let is_one_type = results.iter().all(|result| wider(result.dtype) == Some(to));
    if !is_one_type || find_monoid(w.module, to_apply) != Some(Monoid::Add) {
        return None;
    }
    let (opcode, operands, mut attrs) = (instruction.opcode, instruction.operands.clone(), instruction.attrs.clone());
    let Attrs::Combining(combining) = &mut attrs else { return None };
    let sum = *w.sums.entry(to).or_insert_with(|| w.module.add_sum("add", to));
    combining.to_apply = Some(sum);
    let wide = |array: &ArrayShape| Shape::Array(ArrayShape { dtype: to, ..array.clone() });
    let mut widened = Vec::with_capacity(operands.len());
    for &operand in &operands {
        let shape = wide(w.module.shape(operand).as_array()?);
        widened.push(Builder::new(w.module, w.comp).add(&w.hint, Opcode::Convert, shape, [operand], Attrs::Plain));
    }
    let shapes: Vec<Shape> = results.iter().map(wide).collect();
    let is_tuple = whole.as_tuple().is_some();
    let shape = if is_tuple { Shape::Tuple(shapes) } else { shapes.into_iter().next()? };
    let reduced = Builder::new(w.module, w.comp).add(&w.hint, opcode, shape, widened, attrs);
    let mut narrowed = Vec::with_capacity(results.len());
    for (index, result) in results.into_iter().enumerate() {
        let part = if is_tuple { w.element(reduced, index)? } else { reduced };
        let shape = Shape::Array(result);
        narrowed.push(Builder::new(w.module, w.comp).add(&w.hint, Opcode::Convert, shape, [part], Attrs::Plain));
    }
    if is_tuple { Some(w.tuple(&narrowed)) } else { narrowed.pop() }
}
