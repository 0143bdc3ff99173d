//! Element types in C++: how an element is stored, the type it is computed in, and literals.
//!
//! Floats of 16 bits and less stand in `float` variables, rounded after every operation. What is below 8 bits has a byte
//! in memory, as XLA lays it out unless a layout packs it.

use hlo_ir::float::minifloat::Format;
use hlo_ir::{DType, Literal, NumberClass, Scalar};

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
    /// The types of `dtype`.
    pub(super) const fn of(dtype: DType) -> CType {
        let (stored, held) = match dtype {
            DType::Pred => ("hlo::pred", "bool"),
            DType::S1 => ("hlo::s8", "hlo::s1"),
            DType::S2 => ("hlo::s8", "hlo::s2"),
            DType::S4 => ("hlo::s8", "hlo::s4"),
            DType::S8 => ("hlo::s8", "hlo::s8"),
            DType::S16 => ("hlo::s16", "hlo::s16"),
            DType::S32 => ("hlo::s32", "hlo::s32"),
            DType::S64 => ("hlo::s64", "hlo::s64"),
            DType::U1 => ("hlo::u8", "hlo::u1"),
            DType::U2 => ("hlo::u8", "hlo::u2"),
            DType::U4 => ("hlo::u8", "hlo::u4"),
            DType::U8 => ("hlo::u8", "hlo::u8"),
            DType::U16 => ("hlo::u16", "hlo::u16"),
            DType::U32 => ("hlo::u32", "hlo::u32"),
            DType::U64 => ("hlo::u64", "hlo::u64"),
            DType::F4E2M1FN => ("hlo::f4e2m1fn", "float"),
            DType::F6E2M3FN => ("hlo::f6e2m3fn", "float"),
            DType::F6E3M2FN => ("hlo::f6e3m2fn", "float"),
            DType::F8E3M4 => ("hlo::f8e3m4", "float"),
            DType::F8E4M3 => ("hlo::f8e4m3", "float"),
            DType::F8E4M3FN => ("hlo::f8e4m3fn", "float"),
            DType::F8E4M3B11FNUZ => ("hlo::f8e4m3b11fnuz", "float"),
            DType::F8E4M3FNUZ => ("hlo::f8e4m3fnuz", "float"),
            DType::F8E5M2 => ("hlo::f8e5m2", "float"),
            DType::F8E5M2FNUZ => ("hlo::f8e5m2fnuz", "float"),
            DType::F8E8M0FNU => ("hlo::f8e8m0fnu", "float"),
            DType::F16 => ("hlo::f16", "float"),
            DType::BF16 => ("hlo::bf16", "float"),
            DType::F32 => ("float", "float"),
            DType::F64 => ("double", "double"),
            DType::C64 => ("hlo::c64", "hlo::c64"),
            DType::C128 => ("hlo::c128", "hlo::c128"),
        };
        CType { dtype, stored, held }
    }

    /// Whether it is a float of at most 8 bits.
    fn is_small(self) -> bool {
        self.dtype.is_float() && self.dtype.bits() <= 8
    }

    /// Whether it is an integer below 8 bits.
    fn is_narrow(self) -> bool {
        !self.dtype.is_float() && self.dtype.bits() < 8
    }

    /// Whether a stored element is a struct of the number's bits.
    pub(super) fn is_coded(self) -> bool {
        self.dtype.is_float() && self.dtype.bits() <= 16
    }

    /// Bytes of a stored element.
    pub(super) fn size_bytes(self) -> usize {
        self.dtype.bits().div_ceil(8) as usize
    }

    /// Bytes of a variable.
    pub(super) fn held_bytes(self) -> usize {
        if self.dtype.is_float() { self.size_bytes().max(4) } else { self.size_bytes() }
    }

    /// A variable's value from a stored element.
    pub(super) fn loaded(self, element: &str) -> String {
        match self.dtype {
            DType::Pred => format!("{element} != 0"),
            DType::BF16 => format!("hlo::from_bf16({element})"),
            DType::F16 => format!("hlo::from_f16({element})"),
            _ if self.is_small() => format!("hlo::from_small({element})"),
            _ if self.is_narrow() => format!("({}){element}", self.held),
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
            _ if self.is_small() => format!("hlo::to_small<{}>({value})", self.stored),
            _ if self.is_narrow() => format!("({}){value}", self.stored),
            _ => value.to_string(),
        }
    }

    /// What a function gives, as an operation of this element type leaves it: of floats of 8 bits, whose range `f16` has, by way of `f16`, in
    /// which XLA computes them.
    pub(super) fn computed(self, value: &str) -> String {
        let is_through = self.is_small() && self.dtype != DType::F8E8M0FNU;
        if is_through { self.rounded(&format!("hlo::round_f16({value})")) } else { self.rounded(value) }
    }

    /// `value`, in the held type, rounded to this element type.
    pub(super) fn rounded(self, value: &str) -> String {
        match self.dtype {
            DType::BF16 => format!("hlo::round_bf16({value})"),
            DType::F16 => format!("hlo::round_f16({value})"),
            _ if self.is_small() => format!("hlo::round_small<{}>({value})", self.stored),
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
            Scalar::Complex(re, im) => {
                let [re, im] = self.parts(re, im);
                format!("hlo::complex({re}, {im})")
            }
            Scalar::Float(x) => float32(x as f32),
        }
    }

    /// The parts of a complex number as literals.
    fn parts(self, re: f64, im: f64) -> [String; 2] {
        [re, im].map(|x| if self.dtype == DType::C64 { float32(x as f32) } else { float64(x) })
    }

    /// The C++ expression that converts `value` from `from` to `self`, as HLO's `convert` does.
    pub(super) fn converted(self, from: CType, value: &str) -> String {
        if self.dtype == from.dtype {
            return value.to_string();
        }
        if from.dtype.is_complex() {
            return self.converted_from_complex(from, value);
        }
        let (is_float, was_float) = (self.dtype.is_float(), from.dtype.is_float());
        match self.dtype.class() {
            NumberClass::Pred => format!("({value} != ({})0)", from.held),
            NumberClass::Signed | NumberClass::Unsigned if was_float => {
                format!("hlo::saturate<{}>({value})", self.held)
            }
            // Rounded once: the prelude's function takes a double.
            NumberClass::Float if self.is_small() && from.dtype.bits() > 16 => {
                self.rounded(&format!("(double){value}"))
            }
            NumberClass::Complex => {
                let part = if self.dtype == DType::C64 { "float" } else { "double" };
                format!("hlo::complex(({part}){value}, ({part})0)")
            }
            NumberClass::Signed | NumberClass::Unsigned | NumberClass::Float => {
                let cast = if self.held == from.held { value.to_string() } else { format!("({}){value}", self.held) };
                if is_float { self.rounded(&cast) } else { cast }
            }
        }
    }

    /// A complex number of another width, or the real part.
    fn converted_from_complex(self, from: CType, value: &str) -> String {
        match self.dtype {
            DType::C64 => format!("hlo::narrowed({value})"),
            DType::C128 => format!("hlo::widened({value})"),
            _ => {
                let part = CType::of(if from.dtype == DType::C64 { DType::F32 } else { DType::F64 });
                self.converted(part, &format!("{value}.re"))
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
            (_, Scalar::Complex(re, im)) => format!("{{{}}}", ctype.parts(re, im).join(", ")),
            (dtype, Scalar::Float(x)) if ctype.is_small() => format!("{{{:#x}}}", Format::of(dtype)?.encode(x)),
            (_, Scalar::Int(x)) if ctype.is_narrow() => x.to_string(),
            (_, Scalar::Uint(x)) if ctype.is_narrow() => x.to_string(),
            _ => ctype.literal(value),
        })
    };
    (0..literal.n_elems()).filter_map(element).collect()
}
