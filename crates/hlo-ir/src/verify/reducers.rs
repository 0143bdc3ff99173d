//! Computations that an op applies to elements: reducers, comparators, mapped functions.

use super::Verifier;
use crate::attrs::CompUse;
use crate::dtype::DType;
use crate::infer::ShapeText;
use crate::module::{CompId, InstId};
use crate::op::ShapeRule;
use crate::shape::Shape;

/// Checks the computations that `inst` applies; called once its operands are known to be arrays as the op needs.
pub(super) fn check(cx: &mut Verifier<'_>, inst: InstId) {
    let module = cx.module;
    let node = module.inst(inst);
    let n = node.operands.len();
    let dtype = |i: usize| node.operands.get(i).and_then(|&o| module.shape(o).as_array()).map(|a| a.dtype);
    match node.attrs.comp_use() {
        CompUse::Reducer(comp) if node.opcode.row().shape == ShapeRule::Map => {
            let Some(comp) = comp else { return };
            check_signature(cx, inst, comp, &(0..n).map(dtype).collect::<Vec<_>>(), None);
        }
        CompUse::Reducer(comp) => check_reducer(cx, inst, comp, n / 2, &|i| dtype(i)),
        CompUse::Combiner(comp) => {
            // One reducer serves all operands; it works on scalars.
            let Some(comp) = comp else { return };
            let element = dtype(0);
            check_signature(cx, inst, comp, &[element, element], Some(Results::Like(&[element])));
        }
        CompUse::Comparator(comp) => {
            let Some(comp) = comp else { return };
            let params: Vec<_> = (0..n).flat_map(|i| [dtype(i), dtype(i)]).collect();
            check_signature_as(cx, "comparator-signature", inst, comp, &params, Some(Results::Pred));
        }
        CompUse::Selector { select, scatter } => {
            let (Some(select), Some(scatter)) = (select, scatter) else { return };
            let element = dtype(0);
            check_signature(cx, inst, select, &[element, element], Some(Results::Pred));
            check_signature(cx, inst, scatter, &[element, element], Some(Results::Like(&[element])));
        }
        CompUse::Step(comp) => {
            let Some(comp) = comp else { return };
            if module.comp(comp).params.len() != n {
                let found = format!("{} parameters of `%{}`", module.comp(comp).params.len(), module.comp_name(comp));
                cx.at_inst("reducer-signature", inst, format_args!("{n} parameters"), found);
            }
        }
        CompUse::Called | CompUse::None => {}
    }
}

/// What an applied computation returns.
enum Results<'a> {
    /// `pred[]`.
    Pred,
    /// Scalars of these types: one bare, several in a tuple.
    Like(&'a [Option<DType>]),
}

fn check_reducer(
    cx: &mut Verifier<'_>,
    inst: InstId,
    comp: Option<CompId>,
    n: usize,
    dtype: &dyn Fn(usize) -> Option<DType>,
) {
    let Some(comp) = comp else { return };
    let elements: Vec<_> = (0..n).map(dtype).collect();
    let params: Vec<_> = elements.iter().chain(&elements).copied().collect();
    check_signature(cx, inst, comp, &params, Some(Results::Like(&elements)));
}

/// Equal, or both floating: XLA lets a reducer accumulate in another precision.
fn fits(expected: Option<DType>, shape: Option<&Shape>) -> bool {
    match (expected, shape) {
        (Some(dtype), Some(Shape::Array(a))) => {
            a.rank() == 0 && (a.dtype == dtype || a.dtype.is_float() && dtype.is_float())
        }
        _ => false,
    }
}

fn check_signature(
    cx: &mut Verifier<'_>,
    inst: InstId,
    comp: CompId,
    params: &[Option<DType>],
    results: Option<Results<'_>>,
) {
    check_signature_as(cx, "reducer-signature", inst, comp, params, results);
}

fn check_signature_as(
    cx: &mut Verifier<'_>,
    rule: &'static str,
    inst: InstId,
    comp: CompId,
    params: &[Option<DType>],
    results: Option<Results<'_>>,
) {
    let module = cx.module;
    let name = module.comp_name(comp);
    let given = &module.comp(comp).params;
    if given.len() != params.len() {
        let found = format!("{} parameters of `%{name}`", given.len());
        return cx.at_inst(rule, inst, format_args!("{} parameters", params.len()), found);
    }
    for (i, (&param, &dtype)) in given.iter().zip(params).enumerate() {
        let shape = module.shape(param);
        if !fits(dtype, Some(shape)) {
            let expected = format!("{}[] as parameter {i} of `%{name}`", dtype.map_or("an element type", DType::name));
            return cx.at_inst(rule, inst, expected, ShapeText(shape));
        }
    }
    let Some(result) = module.result_shape(comp).map(|s| module.shapes.get(s)) else { return };
    let is_right = match &results {
        None => true,
        Some(Results::Pred) => fits(Some(DType::Pred), Some(result)),
        Some(Results::Like([only])) => fits(*only, Some(result)),
        Some(Results::Like(several)) => match result {
            Shape::Tuple(leaves) => {
                leaves.len() == several.len() && several.iter().zip(leaves).all(|(&d, s)| fits(d, Some(s)))
            }
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => false,
        },
    };
    if !is_right {
        let expected = match &results {
            Some(Results::Like(several)) => format!("{} scalar results of `%{name}` like the operands", several.len()),
            Some(Results::Pred) | None => format!("pred[] as the result of `%{name}`"),
        };
        cx.at_inst(rule, inst, expected, ShapeText(result));
    }
}
