//! Shapes in messages: element types and dims without layouts.

use crate::shape::{ArrayShape, Shape, UNBOUNDED_DIM};
use std::fmt::{self, Display};

/// Prints a shape as HLO text without layouts, at most eight elements of a tuple.
pub struct ShapeText<'a>(pub &'a Shape);

/// Prints dims as `[2,3]`.
pub(super) struct DimsText<'a>(pub &'a [i64]);

impl Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Shape::Array(a) => write_array(f, a),
            Shape::Buffer(a) => {
                f.write_str("b(")?;
                write_array(f, a)?;
                f.write_str(")")
            }
            Shape::Token => f.write_str("token[]"),
            Shape::Opaque => f.write_str("opaque[]"),
            Shape::Tuple(elements) => {
                f.write_str("(")?;
                for (i, element) in elements.iter().take(8).enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    ShapeText(element).fmt(f)?;
                }
                if elements.len() > 8 {
                    write!(f, ", … {} in all", elements.len())?;
                }
                f.write_str(")")
            }
        }
    }
}

fn write_array(f: &mut fmt::Formatter<'_>, array: &ArrayShape) -> fmt::Result {
    write!(f, "{}[", array.dtype)?;
    for (i, &dim) in array.dims.iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        match (dim, array.is_dynamic(i)) {
            (UNBOUNDED_DIM, _) => f.write_str("?")?,
            (dim, true) => write!(f, "<={dim}")?,
            (dim, false) => write!(f, "{dim}")?,
        }
    }
    f.write_str("]")
}

impl Display for DimsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, &dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            if dim == UNBOUNDED_DIM { f.write_str("?")? } else { write!(f, "{dim}")? }
        }
        f.write_str("]")
    }
}
