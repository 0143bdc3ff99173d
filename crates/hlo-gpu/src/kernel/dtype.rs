//! Element types in C++: how an element is stored, the type it is computed in, and literals.
//!
//! `bf16` and `f16` values stand in `float` variables, rounded after every operation.

use hlo_ir::{DType, Literal, NumberClass, Scalar};

use crate::GpuError;

/// The C++ types of an element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CType {
    /// The element type.
    pub dtype: DType,
    /// In memory.
    pub stored: &'static str,
    /// In a variable.
    pub held: &'static str,
}

impl CType {
    /// The types of `dtype`, or an error that names the instruction.
    pub(super) fn of(dtype: DType, instruction: &str) -> Result<CType, GpuError> {
        let (stored, held) = match dtype {
            DType::Pred => ("hlo::pred", "bool"),
            DType::S8 => ("hlo::s8", "hlo::s8"),
            DType::S16 => ("hlo::s16", "hlo::s16"),
            DType::S32 => ("hlo::s32", "hlo::s32"),
            DType::S64 => ("hlo::s64", "hlo::s64"),
            DType::U8 => ("hlo::u8", "hlo::u8"),
            DType::U16 => ("hlo::u16", "hlo::u16"),
            DType::U32 => ("hlo::u32", "hlo::u32"),
            DType::U64 => ("hlo::u64", "hlo::u64"),
            DType::F16 => ("hlo::f16", "float"),
            DType::BF16 => ("hlo::bf16", "float"),
            DType::F32 => ("float", "float"),
            DType::F64 => ("double", "double"),
            _ => {
                return Err(GpuError::Unsupported {
                    instruction: instruction.to_string(),
                    reason: format!(
                        "expected pred, s8 to s64, u8 to u64, f16, bf16, f32 or f64 in a kernel, found {dtype}"
                    ),
                });
            }
        };
        Ok(CType { dtype, stored, held })
    }

    /// Bytes of a stored element.
    pub(super) fn size_bytes(self) -> usize {
        (self.dtype.bits() / 8) as usize
    }

    /// A variable's value from a stored element.
    pub(super) fn loaded(self, element: &str) -> String {
        match self.dtype {
            DType::Pred => format!("{element} != 0"),
            DType::BF16 => format!("hlo::from_bf16({element})"),
            DType::F16 => format!("hlo::from_f16({element})"),
            _ => element.to_string(),
        }
    }

    /// A stored element from the value of a variable that an operation of this type left: it needs no rounding.
    pub(super) fn exact_stored(self, value: &str) -> String {
        match self.dtype {
            DType::BF16 => format!("hlo::exact_bf16({value})"),
            _ => self.to_stored(value),
        }
    }

    /// A stored element from a variable's value, which is rounded.
    pub(super) fn to_stored(self, value: &str) -> String {
        match self.dtype {
            DType::Pred => format!("(hlo::pred)({value})"),
            DType::BF16 => format!("hlo::to_bf16({value})"),
            DType::F16 => format!("hlo::to_f16({value})"),
            _ => value.to_string(),
        }
    }

    /// `value`, computed in the held type, as an operation of this element type leaves it.
    pub(super) fn rounded(self, value: &str) -> String {
        match self.dtype {
            DType::BF16 => format!("hlo::round_bf16({value})"),
            DType::F16 => format!("hlo::round_f16({value})"),
            _ => value.to_string(),
        }
    }

    /// A scalar as a literal of the held type.
    pub(super) fn literal(self, value: Scalar) -> String {
        match value {
            Scalar::Pred(x) => x.to_string(),
            Scalar::Int(x) if x < 0 => format!("({}){}", self.held, negative(x)),
            Scalar::Int(x) => format!("({}){x}ll", self.held),
            Scalar::Uint(x) => format!("({}){x}ull", self.held),
            Scalar::Float(x) if self.dtype == DType::F64 => float64(x),
            Scalar::Float(x) | Scalar::Complex(x, _) => float32(x as f32),
        }
    }

    /// The C++ expression that converts `value` from `from` to `self`, as HLO's `convert` does.
    pub(super) fn converted(self, from: CType, value: &str) -> String {
        let (is_float, was_float) = (self.dtype.is_float(), from.dtype.is_float());
        if self.dtype == from.dtype {
            return value.to_string();
        }
        match self.dtype.class() {
            NumberClass::Pred => format!("({value} != ({})0)", from.held),
            NumberClass::Signed | NumberClass::Unsigned if was_float => {
                format!("hlo::saturate<{}>({value})", self.held)
            }
            NumberClass::Signed | NumberClass::Unsigned | NumberClass::Float | NumberClass::Complex => {
                let cast = if self.held == from.held { value.to_string() } else { format!("({}){value}", self.held) };
                if is_float { self.rounded(&cast) } else { cast }
            }
        }
    }
}

fn negative(x: i64) -> String {
    if x == i64::MIN { "(-9223372036854775807ll - 1)".to_string() } else { format!("({x}ll)") }
}

/// An `f32` as a literal.
pub(super) fn float32(x: f32) -> String {
    if x.is_finite() { format!("({x:e}f)") } else { format!("hlo::f32_bits({:#x}u)", x.to_bits()) }
}

/// An `f64` as a literal.
pub(super) fn float64(x: f64) -> String {
    if x.is_finite() { format!("({x:e})") } else { format!("hlo::f64_bits({:#x}ull)", x.to_bits()) }
}

/// The bits of a literal's elements as they are stored, as C++ initializers of `stored`.
pub(super) fn stored_literals(ctype: CType, literal: &Literal) -> Vec<String> {
    let element = |i: usize| {
        let value = literal.get(i)?;
        Some(match (ctype.dtype, value) {
            (DType::BF16, Scalar::Float(x)) => format!("{{{:#x}}}", half::bf16::from_f64(x).to_bits()),
            (DType::F16, Scalar::Float(x)) => format!("{{{:#x}}}", half::f16::from_f64(x).to_bits()),
            (DType::Pred, Scalar::Pred(x)) => u8::from(x).to_string(),
            _ => ctype.literal(value),
        })
    };
    (0..literal.n_elems()).filter_map(element).collect()
}
