//! Numbers as HLO defines them: the small float formats, their decimal text, complex values, scalar functions.

pub mod complex;
pub mod decimal;
pub mod minifloat;
pub mod rng;
pub mod scalar_fn;

pub use complex::Complex;
