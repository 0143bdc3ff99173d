//! A module with f64 in the place of shorter floats, in which differences are not lost among those of rounding.

use hlo_ir::attrs::Attrs;
use hlo_ir::{ConstantValue, DType, Module, Shape};

/// The module on longer floats; `None` if it is not valid then.
pub(super) fn widened(module: &Module) -> Option<Module> {
    let mut wide = module.clone();
    for &comp in module.computations() {
        for &inst in &module.comp(comp).insts {
            let shape = longer_shape(module.shape(inst));
            wide.inst_mut(inst).shape = wide.shapes.intern(shape);
            if let Some(ConstantValue::Array(literal)) = module.inst(inst).attrs.as_constant() {
                let literal = literal.convert(longer(literal.dtype()));
                wide.inst_mut(inst).attrs = Attrs::Constant(Box::new(ConstantValue::Array(literal)));
            }
        }
    }
    if let Some(layout) = &mut wide.header.entry_computation_layout {
        for shape in layout.params.iter_mut().chain([&mut layout.result]) {
            *shape = wide.shapes.intern(longer_shape(module.shapes.get(*shape)));
        }
    }
    hlo_ir::verify::verify(&wide).is_ok().then_some(wide)
}

fn longer_shape(shape: &Shape) -> Shape {
    let mut shape = shape.clone();
    match &mut shape {
        Shape::Array(array) | Shape::Buffer(array) => array.dtype = longer(array.dtype),
        Shape::Tuple(elements) => elements.iter_mut().for_each(|element| *element = longer_shape(element)),
        Shape::Token | Shape::Opaque => {}
    }
    shape
}

fn longer(dtype: DType) -> DType {
    let is_short = [DType::F32, DType::BF16, DType::F16].contains(&dtype);
    if is_short { DType::F64 } else { dtype }
}
