//! Factors of the custom calls whose meaning is known.

use super::rules::WRONG_ATTRS;
use super::*;
use crate::attrs::Attrs;
use crate::custom_target::CustomTarget;

/// Which dims of its arrays a custom call takes whole.
#[derive(Clone, Copy)]
enum Needs {
    /// None: each element goes to its own place.
    Nothing,
    /// The last one, along which it selects or sorts.
    LastDim,
    /// The last two, which are a matrix.
    Matrix,
}

/// The targets of libraries whose meaning is known. Those that [`CustomTarget`] knows to be their operand need nothing, and all others
/// everything.
const TARGETS: [(&str, Needs); 6] = [
    ("LayoutConstraint", Needs::Nothing),
    ("mhlo.erf", Needs::Nothing),
    ("TopK", Needs::LastDim),
    ("mhlo.topk", Needs::LastDim),
    ("Eigh", Needs::Matrix),
    ("Qr", Needs::Matrix),
];

/// Leading dims pass through all arrays, as far as the target is known to treat them alike.
pub(super) fn custom_call(b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Custom(a) = attrs else { return Err(WRONG_ATTRS) };
    let known = TARGETS.iter().find(|(target, _)| *target == a.custom_call_target.0);
    let is_identity = CustomTarget::of(attrs).is_some_and(CustomTarget::is_identity);
    match known.map(|(_, needs)| *needs).or(is_identity.then_some(Needs::Nothing)) {
        Some(Needs::Nothing) => index_ops::leading_dims(b, 0, "the result lacks the dim"),
        Some(Needs::LastDim) => index_ops::leading_dims(b, 1, "any element of the last dim may come first"),
        Some(Needs::Matrix) => index_ops::leading_dims(b, 2, "a matrix is factored as a whole"),
        None => Err(NoFactors::OfInstruction("only the callee knows")),
    }
}
