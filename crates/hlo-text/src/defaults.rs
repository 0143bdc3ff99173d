//! What an instruction means where its text leaves something out.

use crate::error::{Fallible, LIMIT, MAX_DEPTH, MAX_INFERRED_PARTS, SHAPE};
use crate::instruction::OpWord;
use crate::parser::Parser;
use hlo_ir::attrs::{Attrs, CompareAttrs, ConvAttrs, WindowDim};
use hlo_ir::infer::{OpView, infer_result};
use hlo_ir::module::Operands;
use hlo_ir::{ArrayShape, Instruction, Layout, Opcode, Shape, ShapeId};

/// The bit of an attribute in the set of those seen, by its place in the format.
const DIMENSIONS: u64 = 1;
const LARGEST: u64 = 2;

impl Parser<'_> {
    /// Fills attributes whose default is not their type's, and leaves out those that state a default.
    #[inline]
    pub(crate) fn fill_default(&self, op: &OpWord<'_>, operands: &Operands, attrs: &mut Attrs, seen: &mut u64) {
        let array = |i: usize| operands.get(i).and_then(|&id| self.module.shape(id).as_array());
        let opcode = op.verb.attrs_of();
        if opcode == Opcode::Broadcast {
            // A scalar has no dims to place.
            let is_scalar = array(0).is_some_and(|array| array.rank() == 0);
            *seen |= if is_scalar { DIMENSIONS } else { 0 };
        } else if let Attrs::Reduce(attrs) = attrs
            && opcode == Opcode::Map
        {
            // A map goes over all dims, whatever it says.
            attrs.dimensions = (0..array(0).map_or(0, ArrayShape::rank) as i64).collect();
            *seen |= DIMENSIONS;
        } else if let Attrs::Compare(attrs) = attrs {
            fill_order(attrs, array(0));
        } else if let Attrs::Conv(attrs) = attrs
            && attrs.window.dims.is_empty()
        {
            fill_window(attrs, array(1));
        } else if let Attrs::TopK(attrs) = attrs
            && *seen & LARGEST == 0
        {
            attrs.largest = true;
        }
        self.module.normalize_attrs(operands, attrs);
    }

    /// The shape of an instruction that states none.
    #[cold]
    pub(crate) fn inferred_shape(&mut self, inst: &Instruction, op: &OpWord<'_>) -> Fallible<ShapeId> {
        let shapes: Vec<&Shape> = inst.operands.iter().map(|&id| self.module.shape(id)).collect();
        if inst.opcode == Opcode::Broadcast
            && let Some(shape) = shapes.first().and_then(|operand| broadcast_result(inst, operand))
        {
            return Ok(self.module.shapes.intern(shape));
        }
        let view = OpView { opcode: inst.opcode, operands: &shapes, attrs: &inst.attrs, stated: None };
        let n_parts: usize = shapes.iter().map(|shape| shape.n_leaves()).sum();
        if n_parts > MAX_INFERRED_PARTS {
            let message =
                format_args!("expected operands of at most {MAX_INFERRED_PARTS} leaves in all, found {n_parts}");
            return Err(op.failure(LIMIT, message));
        }
        match infer_result(&self.module, &view) {
            Ok(shape) if shape.n_levels() > MAX_DEPTH => {
                let message = format_args!("expected at most {MAX_DEPTH} levels of tuples, found more");
                Err(op.failure(LIMIT, message))
            }
            Ok(shape) => Ok(self.module.shapes.intern(shape)),
            Err(error) => {
                let help = format!("write the result's shape before `{}` to say what it is", op.text);
                Err(op
                    .failure(SHAPE, format_args!("expected {}, found {}", error.expected, error.found))
                    .with_help(help)
                    .into())
            }
        }
    }
}

/// A `compare` has the order of its operands' type.
#[inline]
fn fill_order(attrs: &mut CompareAttrs, operand: Option<&ArrayShape>) {
    let is_partial = operand.is_some_and(|array| array.dtype.is_float() || array.dtype.is_complex());
    match attrs.order.as_str() {
        "TOTAL" if is_partial => attrs.order = "TOTALORDER".into(),
        "PARTIAL" if is_partial => attrs.order = "".into(),
        "TOTAL" => attrs.order = "".into(),
        _ => {}
    }
}

/// A convolution without window moves the whole kernel in steps of one, as XLA compiles it.
#[cold]
fn fill_window(attrs: &mut ConvAttrs, kernel: Option<&ArrayShape>) {
    let Some(kernel) = kernel else { return };
    let size = |&dim: &i64| usize::try_from(dim).ok().and_then(|dim| kernel.dims.get(dim)).copied();
    let sizes: Option<Vec<i64>> = attrs.dim_labels.kernel_spatial.iter().map(size).collect();
    attrs.window.dims =
        sizes.unwrap_or_default().into_iter().map(|size| WindowDim { size, ..WindowDim::default() }).collect();
}

/// The result of a `broadcast` that states none. XLA takes `dimensions` for the sizes of new major dims, so the shape is this only
/// where that agrees with what the dims say; a scalar stays one.
fn broadcast_result(inst: &Instruction, operand: &Shape) -> Option<Shape> {
    let (Attrs::Dims(attrs), Shape::Array(from)) = (&inst.attrs, operand) else { return None };
    let dims = attrs.dimensions.iter().chain(&from.dims).copied();
    let mut result = ArrayShape::new(from.dtype, dims);
    result.layout = Some(Box::new(Layout::row_major(result.rank())));
    let agrees =
        |(&to, &size): (&i64, &i64)| usize::try_from(to).ok().and_then(|to| result.dims.get(to)) == Some(&size);
    attrs.dimensions.iter().zip(&from.dims).all(agrees).then_some(Shape::Array(result))
}
