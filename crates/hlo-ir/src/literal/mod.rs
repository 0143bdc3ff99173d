//! Placeholder until the literal types land.
/// Placeholder.
#[derive(Clone, PartialEq, Debug)]
pub struct ConstantValue;
