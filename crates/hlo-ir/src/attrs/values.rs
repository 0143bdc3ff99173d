//! Value types of attribute fields that are more than a number or a list.

use crate::shape::Dims;

/// An `f32` compared and hashed by its bits (NaN equals itself, 0 differs from -0).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct F32Bits(pub u32);

impl F32Bits {
    /// The number.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl From<f32> for F32Bits {
    fn from(value: f32) -> F32Bits {
        F32Bits(value.to_bits())
    }
}

/// Text that stands in quotes, unescaped.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct QuotedText(pub String);

/// A bare word such as `kLoop`, `LT`, `rng_uniform`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Word(pub String);

impl Word {
    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Word {
    fn from(text: &str) -> Word {
        Word(text.to_string())
    }
}

/// Balanced text between braces, braces included, kept as written; empty when absent.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct RawBraces(pub String);

/// `s32[2]{0} {1, 2}`: a shape and a literal, kept as written; empty when absent.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct RawLiteral(pub String);

/// One dim of a `slice`: `[start:limit:stride]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SliceDim {
    /// First index taken.
    pub start: i64,
    /// First index not taken.
    pub limit: i64,
    /// Step; 1 is not printed.
    pub stride: i64,
}

/// One dim of a `pad`: `low_high_interior`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PadDim {
    /// Elements before; negative ones are cut off.
    pub low: i64,
    /// Elements after; negative ones are cut off.
    pub high: i64,
    /// Elements between each two; printed if not 0.
    pub interior: i64,
}

/// A window over some dims (convolution: spatial ones; reduce-window: all).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Window {
    /// One entry for each windowed dim.
    pub dims: Vec<WindowDim>,
}

/// One dim of a [`Window`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowDim {
    /// Elements in the window.
    pub size: i64,
    /// Step between two windows.
    pub stride: i64,
    /// Padding before.
    pub pad_low: i64,
    /// Padding after.
    pub pad_high: i64,
    /// Dilation of the operand (`lhs_dilate`): holes between its elements, +1.
    pub base_dilation: i64,
    /// Dilation of the window (`rhs_dilate`).
    pub window_dilation: i64,
    /// `rhs_reversal`.
    pub is_reversed: bool,
}

impl Default for WindowDim {
    fn default() -> WindowDim {
        WindowDim {
            size: 1,
            stride: 1,
            pad_low: 0,
            pad_high: 0,
            base_dilation: 1,
            window_dilation: 1,
            is_reversed: false,
        }
    }
}

impl WindowDim {
    /// Extent of the dilated window, in elements.
    pub fn dilated_size(&self) -> i64 {
        if self.size <= 0 { 0 } else { (self.size - 1).saturating_mul(self.window_dilation).saturating_add(1) }
    }

    /// Number of windows over a dim of `n` elements; 0 if none fits.
    pub fn n_outputs(&self, n: i64) -> i64 {
        let dilated = if n <= 0 { 0 } else { (n - 1).saturating_mul(self.base_dilation).saturating_add(1) };
        let room = dilated.saturating_add(self.pad_low).saturating_add(self.pad_high);
        let extent = self.dilated_size();
        if self.stride <= 0 || room < extent || (n == 0 && room == 0) { 0 } else { (room - extent) / self.stride + 1 }
    }
}

/// `dim_labels=b01f_01io->b01f`: which dim of each array is which.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConvDims {
    /// Batch dim of the input.
    pub input_batch: i64,
    /// Feature dim of the input.
    pub input_feature: i64,
    /// Spatial dims of the input, in window order.
    pub input_spatial: Dims,
    /// Input-feature dim of the kernel.
    pub kernel_input_feature: i64,
    /// Output-feature dim of the kernel.
    pub kernel_output_feature: i64,
    /// Spatial dims of the kernel, in window order.
    pub kernel_spatial: Dims,
    /// Batch dim of the output.
    pub output_batch: i64,
    /// Feature dim of the output.
    pub output_feature: i64,
    /// Spatial dims of the output, in window order.
    pub output_spatial: Dims,
    /// The text's `?` (unknown) dims of input, kernel and output, kept for printing.
    pub unknown: [Dims; 3],
}

/// One entry of `output_to_operand_aliasing={{0}: (1, {})}`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct OperandAlias {
    /// Tuple index of the output.
    pub output_index: Dims,
    /// Operand number.
    pub operand: i64,
    /// Tuple index in the operand.
    pub operand_index: Dims,
}

/// `domain={kind="sharding", entry={…}, exit={…}}`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DomainSharding {
    /// Kind, always `sharding` today.
    pub kind: String,
    /// Sharding of the operand's side.
    pub entry: crate::sharding::Sharding,
    /// Sharding of the user's side.
    pub exit: crate::sharding::Sharding,
}

/// `direction=` of a `compare`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs)]
pub enum Comparison {
    #[default]
    Eq,
    Ne,
    Ge,
    Gt,
    Le,
    Lt,
}

impl Comparison {
    /// All six.
    pub const ALL: [Comparison; 6] =
        [Comparison::Eq, Comparison::Ne, Comparison::Ge, Comparison::Gt, Comparison::Le, Comparison::Lt];

    /// The text name.
    pub const fn name(self) -> &'static str {
        match self {
            Comparison::Eq => "EQ",
            Comparison::Ne => "NE",
            Comparison::Ge => "GE",
            Comparison::Gt => "GT",
            Comparison::Le => "LE",
            Comparison::Lt => "LT",
        }
    }

    /// The comparison that says the same of the operands in the other order.
    pub const fn swapped(self) -> Comparison {
        match self {
            Comparison::Eq => Comparison::Eq,
            Comparison::Ne => Comparison::Ne,
            Comparison::Ge => Comparison::Le,
            Comparison::Gt => Comparison::Lt,
            Comparison::Le => Comparison::Ge,
            Comparison::Lt => Comparison::Gt,
        }
    }

    /// The comparison of a text name.
    pub fn from_name(name: &str) -> Option<Comparison> {
        Comparison::ALL.into_iter().find(|c| c.name() == name)
    }
}
