//! What terms are enumerated over.

use crate::rule::Rule;
use crate::size::Size;
use crate::term::TermId;

/// Inputs, ops and sizes that terms are made of.
#[derive(Clone, Debug, Default)]
pub struct Signature {
    /// Its name, and the inputs as a rule without sides.
    pub base: Rule,
    /// The inputs.
    pub inputs: Vec<TermId>,
    /// Names of the ops, each with where it stands.
    pub ops: Vec<String>,
    /// Windows of convolutions: stride, padding before, dilation of the input, dilation of the kernel, size of the output.
    pub windows: Vec<[Size; 5]>,
    /// Paddings before and after.
    pub pads: Vec<(Size, Size)>,
    /// Sizes of new dims.
    pub new: Vec<Size>,
    /// Values of unknowns at which terms are compared, where the usual ones do not suit.
    pub point: Vec<(Size, Size)>,
}
