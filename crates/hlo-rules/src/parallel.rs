//! Parallel rules, derived: for each op and each factor of its row in the op table, "cut, run, recombine" gives what "run" gives.
//!
//! Nothing is enumerated here: which factors an op has, and what cutting one does to each tensor, is [`hlo_ir::factors`], which holds its
//! rows against evaluation. A rule is one op, one factor that may be cut, and one axis of a mesh.

use hlo_ir::attrs::{Attrs, ConvAttrs, ConvDims, DimsAttrs, DotAttrs, PadAttrs, PadDim, ParameterAttrs, ReduceAttrs};
use hlo_ir::attrs::{ReshapeAttrs, SliceAttrs, SliceDim, Window, WindowDim};
use hlo_ir::edit::Builder;
use hlo_ir::factors::{FactorRole, FactorSet, find_factors};
use hlo_ir::op::FactorRule;
use hlo_ir::shape::Dims;
use hlo_ir::{DType, InstId, Module, Opcode, Shape};

/// Parallel rules of the ops of one family.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParallelFamily {
    /// The family's name.
    pub name: &'static str,
    /// Ops with such rules.
    pub n_ops: usize,
    /// Factors that are cut in all tensors that have them: Partition before, Combine after.
    pub n_passed: usize,
    /// Factors whose shards compute partial results: Partition before, Reduce after.
    pub n_reduced: usize,
    /// Factors of one tensor alone.
    pub n_owned: usize,
    /// Factors that have to stay whole, or whose shards need rows of their neighbours: no rule.
    pub n_whole: usize,
}

impl ParallelFamily {
    /// Rules for one axis of a mesh.
    pub fn n_rules(&self) -> usize {
        self.n_passed + self.n_reduced + self.n_owned
    }

    fn count(&mut self, set: &FactorSet) {
        self.n_ops += 1;
        for factor in 0..set.factors.len() {
            let roles: Vec<FactorRole> = set.uses(factor).map(|one| one.role).collect();
            let has = |wanted: fn(&FactorRole) -> bool| roles.iter().any(wanted);
            if has(|r| matches!(r, FactorRole::Whole(_) | FactorRole::Shift)) {
                self.n_whole += 1;
            } else if has(|r| matches!(r, FactorRole::Reduce(_))) {
                self.n_reduced += 1;
            } else if has(|r| matches!(r, FactorRole::Own)) {
                self.n_owned += 1;
            } else {
                self.n_passed += 1;
            }
        }
    }
}

/// The parallel rules of the ops that algebraic rules are about, and of all elementwise ops, by family. Elementwise ops are counted on
/// matrices, dots on a batch of matrices, convolutions on two spatial dims.
pub fn parallel_families() -> Vec<ParallelFamily> {
    let mut elementwise = ParallelFamily { name: "elementwise", ..ParallelFamily::default() };
    for &opcode in Opcode::ALL.iter().filter(|o| o.row().factors == FactorRule::Elementwise) {
        let n = match opcode.row().arity {
            hlo_ir::op::Arity::Exactly(n) | hlo_ir::op::Arity::AtLeast(n) => usize::from(n),
        };
        let (module, inst) = instruction(opcode, &vec![&[4, 6][..]; n], &[4, 6], |_| Attrs::Plain);
        if let Ok(set) = find_factors(&module, inst) {
            elementwise.count(&set);
        }
    }
    let mut all = vec![elementwise];
    for (name, (module, inst)) in samples() {
        let mut family = ParallelFamily { name, ..ParallelFamily::default() };
        if let Ok(set) = find_factors(&module, inst) {
            family.count(&set);
        }
        all.push(family);
    }
    all
}

/// One instruction of each op that moves data, sums or multiplies.
fn samples() -> Vec<(&'static str, (Module, InstId))> {
    let dims = |dims: &[i64]| Dims::from_slice(dims);
    let dot = DotAttrs {
        lhs_batch_dims: dims(&[0]),
        rhs_batch_dims: dims(&[0]),
        lhs_contracting_dims: dims(&[2]),
        rhs_contracting_dims: dims(&[1]),
        ..DotAttrs::default()
    };
    let window = WindowDim { size: 3, pad_low: 1, pad_high: 1, ..WindowDim::default() };
    let conv = ConvAttrs {
        window: Window { dims: vec![window; 2] },
        dim_labels: ConvDims {
            input_feature: 1,
            input_spatial: dims(&[2, 3]),
            kernel_input_feature: 1,
            kernel_spatial: dims(&[2, 3]),
            output_feature: 1,
            output_spatial: dims(&[2, 3]),
            ..ConvDims::default()
        },
        ..ConvAttrs::default()
    };
    let part = |start, limit| SliceDim { start, limit, stride: 1 };
    let padding = vec![PadDim { low: 1, high: 2, interior: 0 }, PadDim::default()];
    let reduce = |to_apply| ReduceAttrs { dimensions: dims(&[0]), to_apply: Some(to_apply) }.into();
    let one = |list: &[i64]| DimsAttrs { dimensions: dims(list) };
    vec![
        ("dot", instruction(Opcode::Dot, &[&[2, 3, 4], &[2, 4, 5]], &[2, 3, 5], |_| dot.clone().into())),
        (
            "convolution",
            instruction(Opcode::Convolution, &[&[2, 3, 7, 7], &[5, 3, 3, 3]], &[2, 5, 7, 7], |_| conv.clone().into()),
        ),
        ("reduce", instruction(Opcode::Reduce, &[&[4, 6], &[]], &[6], reduce)),
        ("broadcast", instruction(Opcode::Broadcast, &[&[6]], &[4, 6], |_| one(&[1]).into())),
        ("transpose", instruction(Opcode::Transpose, &[&[4, 6]], &[6, 4], |_| one(&[1, 0]).into())),
        ("reshape", instruction(Opcode::Reshape, &[&[4, 6]], &[24], |_| ReshapeAttrs::default().into())),
        ("concatenate", instruction(Opcode::Concatenate, &[&[4, 6], &[4, 2]], &[4, 8], |_| one(&[1]).into())),
        (
            "slice",
            instruction(Opcode::Slice, &[&[4, 6]], &[4, 2], |_| {
                SliceAttrs { slice: vec![part(0, 4), part(1, 3)] }.into()
            }),
        ),
        ("pad", instruction(Opcode::Pad, &[&[4, 6], &[]], &[7, 6], |_| PadAttrs { padding: padding.clone() }.into())),
    ]
}

/// An instruction of the operands given; `attrs` may name the computation `x + y`.
fn instruction(
    opcode: Opcode,
    operands: &[&[i64]],
    result: &[i64],
    attrs: impl Fn(hlo_ir::CompId) -> Attrs,
) -> (Module, InstId) {
    let mut module = Module::new("sample");
    let array = |dims: &[i64]| Shape::array(DType::F32, dims.iter().copied());
    let parameter = |number: usize| ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
    let name = module.names.intern("add");
    let sum = module.add_computation(name);
    let mut b = Builder::new(&mut module, sum);
    let params = [0, 1].map(|i| b.add("x", Opcode::Parameter, array(&[]), [], parameter(i)));
    let root = b.add("sum", Opcode::Add, array(&[]), params, Attrs::Plain);
    module.comp_mut(sum).root = Some(root).into();
    let name = module.names.intern("entry");
    let entry = module.add_computation(name);
    let mut b = Builder::new(&mut module, entry);
    let mut params = Vec::new();
    for (i, dims) in operands.iter().enumerate() {
        params.push(b.add("p", Opcode::Parameter, array(dims), [], parameter(i)));
    }
    let inst = b.add("root", opcode, array(result), params, attrs(sum));
    module.comp_mut(entry).root = Some(inst).into();
    (module, inst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_has_three_factors_that_pass_and_one_that_is_reduced() {
        let families = parallel_families();
        let dot = families.iter().find(|f| f.name == "dot").expect("a family");
        assert_eq!((dot.n_passed, dot.n_reduced, dot.n_whole), (3, 1, 0));
        let elementwise = &families[0];
        assert!(elementwise.n_ops >= 50 && elementwise.n_passed == 2 * elementwise.n_ops, "{elementwise:?}");
        assert!(families.iter().all(|f| f.n_rules() > 0), "{families:?}");
    }
}
