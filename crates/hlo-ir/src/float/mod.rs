//! Placeholder until the numerics land.
/// stub
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Complex<T> {
    /// re
    pub re: T,
    /// im
    pub im: T,
}
/// stub
pub mod scalar_fn {
    use crate::op::IntType;
    /// s
    pub fn erf(x: f64) -> f64 {
        x
    }
    /// s
    pub fn max(x: f64, _: f64) -> f64 {
        x
    }
    /// s
    pub fn min(x: f64, _: f64) -> f64 {
        x
    }
    /// s
    pub fn int_divide(a: i64, _: i64, _: IntType) -> i64 {
        a
    }
    /// s
    pub fn int_power(a: i64, _: i64, _: IntType) -> i64 {
        a
    }
    /// s
    pub fn int_remainder(a: i64, _: i64, _: IntType) -> i64 {
        a
    }
    /// s
    pub fn shift_left(a: i64, _: i64, _: IntType) -> i64 {
        a
    }
    /// s
    pub fn shift_right_arithmetic(a: i64, _: i64, _: IntType) -> i64 {
        a
    }
    /// s
    pub fn shift_right_logical(a: i64, _: i64, _: IntType) -> i64 {
        a
    }
}
