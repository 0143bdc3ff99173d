//! Worked examples of factors.

use super::*;
use crate::attrs::{Attrs, ConvAttrs, ConvDims, ParameterAttrs, ReduceAttrs, ReshapeAttrs, Window, WindowDim};
use crate::edit::Builder;
use crate::shape::Dims;
use crate::{DType, Opcode};

/// An instruction of the operands given, and of the scalar computation `x + y`, which `attrs` may name.
pub(crate) fn instruction(
    opcode: Opcode,
    operands: &[&[i64]],
    result: &[i64],
    attrs: impl Fn(crate::CompId) -> Attrs,
) -> (Module, InstId) {
    let mut module = Module::new("m");
    let f32s = |dims: &[i64]| Shape::array(DType::F32, dims.iter().copied());
    let parameter = |number: usize| ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
    let name = module.names.intern("add");
    let add = module.add_computation(name);
    let mut b = Builder::new(&mut module, add);
    let params = [0, 1].map(|i| b.add("x", Opcode::Parameter, f32s(&[]), [], parameter(i)));
    let sum = b.add("sum", Opcode::Add, f32s(&[]), params, Attrs::Plain);
    module.comp_mut(add).root = Some(sum).into();
    let name = module.names.intern("entry");
    let entry = module.add_computation(name);
    let mut b = Builder::new(&mut module, entry);
    let operands: Vec<InstId> = operands
        .iter()
        .enumerate()
        .map(|(i, dims)| b.add("p", Opcode::Parameter, f32s(dims), [], parameter(i)))
        .collect();
    let inst = b.add("root", opcode, f32s(result), operands, attrs(add));
    module.comp_mut(entry).root = Some(inst).into();
    (module, inst)
}

/// The roles of each dim's factors, with their sizes.
fn roles(tensor: &TensorFactors) -> Vec<Vec<(i64, FactorRole)>> {
    tensor.iter().map(|uses| uses.iter().map(|one| (one.size, one.role)).collect()).collect()
}

#[test]
fn reshapes_share_the_greatest_common_divisor_and_the_rest_has_no_border() {
    let (module, inst) = instruction(Opcode::Reshape, &[&[12, 2]], &[8, 3], |_| ReshapeAttrs::default().into());
    let set = find_factors(&module, inst).expect("factors");
    let shared = set.operands[0][0][0];
    assert_eq!((shared.size, shared.role, shared), (4, FactorRole::Pass, set.results[0][0][0]));
    let sizes = |tensor: &TensorFactors| roles(tensor).iter().flatten().map(|one| one.0).collect::<Vec<_>>();
    assert_eq!((sizes(&set.operands[0]), sizes(&set.results[0])), (vec![4, 3, 2], vec![4, 2, 3]));
    let rest = set.operands[0].iter().chain(&set.results[0]).flatten().filter(|one| one.factor != shared.factor);
    assert!(rest.into_iter().all(|one| matches!(one.role, FactorRole::Whole(_))));
}

#[test]
fn a_reduction_passes_what_it_keeps_and_combines_by_its_reducer() {
    let dimensions = Dims::from_slice(&[0]);
    let (module, inst) = instruction(Opcode::Reduce, &[&[5, 3], &[]], &[3], |add| {
        ReduceAttrs { dimensions: dimensions.clone(), to_apply: Some(add) }.into()
    });
    let set = find_factors(&module, inst).expect("factors");
    let sum = FactorRole::Reduce(Monoid::Add);
    assert_eq!(roles(&set.operands[0]), [[(5, sum)], [(3, FactorRole::Pass)]]);
    assert_eq!(roles(&set.results[0]), [[(3, FactorRole::Pass)]]);
}

#[test]
fn groups_of_a_convolution_are_the_major_factor_of_its_features() {
    let dim_labels = ConvDims {
        input_batch: 0,
        input_spatial: Dims::from_slice(&[1]),
        input_feature: 2,
        kernel_spatial: Dims::from_slice(&[0]),
        kernel_input_feature: 1,
        kernel_output_feature: 2,
        output_batch: 0,
        output_spatial: Dims::from_slice(&[1]),
        output_feature: 2,
        unknown: Default::default(),
    };
    let window = Window { dims: vec![WindowDim { size: 3, ..WindowDim::default() }] };
    let attrs = ConvAttrs { window, dim_labels, feature_group_count: Some(2), ..ConvAttrs::default() };
    // Eight rows of 2 x 5 features, six windows, 2 x 7 features out.
    let operands: [&[i64]; 2] = [&[4, 8, 10], &[3, 5, 14]];
    let (module, inst) = instruction(Opcode::Convolution, &operands, &[4, 6, 14], |_| attrs.clone().into());
    let set = find_factors(&module, inst).expect("factors");
    let (pass, sum) = (FactorRole::Pass, FactorRole::Reduce(Monoid::Add));
    let input = [vec![(4, pass)], vec![(8, FactorRole::Shift)], vec![(2, pass), (5, sum)]];
    assert_eq!(roles(&set.operands[0]), input);
    assert_eq!(roles(&set.operands[1])[1..], [vec![(5, sum)], vec![(2, pass), (7, pass)]]);
    assert_eq!(roles(&set.results[0]), [vec![(4, pass)], vec![(6, pass)], vec![(2, pass), (7, pass)]]);
}
