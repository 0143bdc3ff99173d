//! A module with smaller dims.

use super::atoms::{Atoms, Divisors};
use super::dims::{LeafDims, ModuleDims};
use super::units::Units;
use hlo_ir::attrs::{Attrs, DynamicSliceAttrs, GatherAttrs, PadAttrs, PadDim, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::{ConstantValue, Dims, InstId, Literal, Module, Scalar, Shape, ShapeId};

/// The module with each dim divided as the divisors say; `None` if some number is not divided evenly.
pub(super) fn rebuild(
    module: &Module,
    dims: &ModuleDims,
    units: &Units<'_>,
    atoms: &mut Atoms,
    divisors: &Divisors,
) -> Option<Module> {
    let mut small = module.clone();
    for &comp in module.computations() {
        for &inst in &module.comp(comp).insts {
            let by: Vec<Vec<i64>> = dims.get(&inst)?.iter().map(|leaf| of_dims(leaf, atoms, divisors)).collect();
            if by.iter().flatten().any(|&divisor| divisor > 1) {
                let shape = smaller_shape(module.shape(inst), &mut by.iter())?;
                small.inst_mut(inst).shape = small.shapes.intern(shape);
            }
            let operand = module.inst(inst).operands.first().and_then(|operand| dims.get(operand)?.first());
            let of_operand = operand.map(|leaf| of_dims(leaf, atoms, divisors)).unwrap_or_default();
            let of_result = by.first().map_or(&[][..], Vec::as_slice);
            let unit = units.divisor(inst, atoms, divisors);
            if let Some(attrs) = smaller_attrs(module, inst, (&of_operand, of_result), unit)? {
                small.inst_mut(inst).attrs = attrs;
            }
        }
    }
    layout(&mut small)?;
    hlo_ir::verify::verify(&small).is_ok().then_some(small)
}

fn of_dims(leaf: &LeafDims, atoms: &mut Atoms, divisors: &Divisors) -> Vec<i64> {
    leaf.iter().map(|&dim| atoms.divisor(&[dim], divisors)).collect()
}

/// The entry's layout says its shapes once more.
fn layout(small: &mut Module) -> Option<()> {
    let Some(mut known) = small.header.entry_computation_layout.take() else { return Some(()) };
    let entry = small.entry()?;
    let params = small.comp(entry).params.clone();
    let resized = |small: &mut Module, old: ShapeId, inst: InstId| -> Option<ShapeId> {
        let shape = resized(small.shapes.get(old), small.shape(inst))?;
        Some(small.shapes.intern(shape))
    };
    for (old, param) in known.params.iter_mut().zip(params) {
        *old = resized(small, *old, param)?;
    }
    let root = small.comp(entry).root.expand()?;
    known.result = resized(small, known.result, root)?;
    small.header.entry_computation_layout = Some(known);
    Some(())
}

/// A shape with the sizes of another one.
fn resized(shape: &Shape, like: &Shape) -> Option<Shape> {
    Some(match (shape, like) {
        (Shape::Array(array), Shape::Array(like)) => {
            let mut array = array.clone();
            array.dims = like.dims.clone();
            Shape::Array(array)
        }
        (Shape::Tuple(elements), Shape::Tuple(like)) if elements.len() == like.len() => {
            let elements: Option<Vec<Shape>> = elements.iter().zip(like).map(|(a, b)| resized(a, b)).collect();
            Shape::Tuple(elements?)
        }
        (shape, like) => (shape == like).then(|| shape.clone())?,
    })
}

fn smaller_shape<'a>(shape: &Shape, divisors: &mut impl Iterator<Item = &'a Vec<i64>>) -> Option<Shape> {
    Some(match shape {
        Shape::Array(array) => Shape::Array({
            let mut array = array.clone();
            divide(&mut array.dims, divisors.next()?)?;
            array
        }),
        Shape::Buffer(array) => Shape::Buffer({
            let mut array = array.clone();
            divide(&mut array.dims, divisors.next()?)?;
            array
        }),
        Shape::Tuple(elements) => {
            let elements: Option<Vec<Shape>> = elements.iter().map(|e| smaller_shape(e, divisors)).collect();
            Shape::Tuple(elements?)
        }
        Shape::Token | Shape::Opaque => {
            divisors.next()?;
            shape.clone()
        }
    })
}

fn divide(dims: &mut Dims, divisors: &[i64]) -> Option<()> {
    for (size, &divisor) in dims.iter_mut().zip(divisors) {
        *size = divided(*size, divisor)?;
    }
    Some(())
}

fn divided(number: i64, divisor: i64) -> Option<i64> {
    (number % divisor == 0).then_some(number / divisor)
}

/// Attributes that say sizes and places, if some change. The divisors are of the first operand's dims and of the result's, and of
/// the integers of the result.
#[allow(clippy::option_option)] // what cannot be is told from what does not change
fn smaller_attrs(
    module: &Module,
    inst: InstId,
    (operand, result): (&[i64], &[i64]),
    unit: i64,
) -> Option<Option<Attrs>> {
    let by = |list: &[i64], dim: usize| list.get(dim).copied().unwrap_or(1);
    let attrs = &module.inst(inst).attrs;
    Some(if let Some(ConstantValue::Array(literal)) = attrs.as_constant() {
        let is_smaller = unit > 1 || result.iter().any(|&divisor| divisor > 1);
        if is_smaller { Some(Attrs::Constant(Box::new(smaller_constant(literal, result, unit)?))) } else { None }
    } else if let Some(slice) = SliceAttrs::of(attrs) {
        let ranges = slice.slice.iter().enumerate().map(|(dim, range)| {
            let divisor = by(operand, dim);
            Some(SliceDim {
                start: divided(range.start, divisor)?,
                limit: divided(range.limit, divisor)?,
                stride: range.stride,
            })
        });
        Some(SliceAttrs { slice: ranges.collect::<Option<_>>()? }.into())
    } else if let Some(pad) = PadAttrs::of(attrs) {
        let padding = pad.padding.iter().enumerate().map(|(dim, pad)| {
            let divisor = by(operand, dim);
            Some(PadDim { low: divided(pad.low, divisor)?, high: divided(pad.high, divisor)?, interior: pad.interior })
        });
        Some(PadAttrs { padding: padding.collect::<Option<_>>()? }.into())
    } else if let Some(slice) = DynamicSliceAttrs::of(attrs) {
        let mut sizes = slice.dynamic_slice_sizes.clone();
        divide(&mut sizes, result)?;
        Some(DynamicSliceAttrs { dynamic_slice_sizes: sizes }.into())
    } else if let Some(gather) = GatherAttrs::of(attrs) {
        let mut gather = gather.clone();
        divide(&mut gather.slice_sizes, operand)?;
        Some(gather.into())
    } else if ReshapeAttrs::of(attrs).is_some() {
        Some(ReshapeAttrs { inferred_dimension: None }.into())
    } else {
        None
    })
}

fn smaller_constant(literal: &Literal, dims: &[i64], unit: i64) -> Option<ConstantValue> {
    let element = |k: usize| {
        Some(match literal.get(k)? {
            Scalar::Int(value) => Scalar::Int(divided(value, unit)?),
            Scalar::Uint(value) => Scalar::Uint(u64::try_from(divided(i64::try_from(value).ok()?, unit)?).ok()?),
            other @ (Scalar::Pred(_) | Scalar::Float(_) | Scalar::Complex(..)) => other,
        })
    };
    let mut sizes: Dims = literal.dims().iter().copied().collect();
    divide(&mut sizes, dims)?;
    if literal.n_elems() > 0 && literal.is_splat() {
        return Some(ConstantValue::Array(Literal::splat(literal.dtype(), &sizes, element(0)?).ok()?));
    }
    let mut out = literal.clone();
    for k in 0..literal.n_elems() {
        if !out.set(k, element(k)?) {
            return None;
        }
    }
    (out.dims() == sizes.as_slice()).then_some(ConstantValue::Array(out))
}
