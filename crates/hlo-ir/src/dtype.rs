//! Element types of arrays: the names, sizes and number classes that HLO text uses.

use std::fmt;

/// One row of the element-type table: `(variant, text name, bits per element, class)`.
macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal $class:ident;)*) => {
        /// Element type of an array (XLA's `PrimitiveType`, array types only).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[allow(missing_docs)]
        pub enum DType { $($variant),* }

        impl DType {
            /// Every element type, in the table's order.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// The name in HLO text, e.g. `f32` or `f8e4m3fn`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name),* }
            }

            /// Bits of one element as stored logically (`pred` counts 8, `s4` counts 4).
            pub const fn bits(self) -> u32 {
                match self { $(DType::$variant => $bits),* }
            }

            /// Which arithmetic the type has.
            pub const fn class(self) -> NumberClass {
                match self { $(DType::$variant => NumberClass::$class),* }
            }

            /// The type with this text name; `None` if HLO has no such element type.
            pub fn from_name(name: &str) -> Option<DType> {
                match name { $($name => Some(DType::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    Pred       "pred"         8   Pred;
    S1         "s1"           1   Signed;
    S2         "s2"           2   Signed;
    S4         "s4"           4   Signed;
    S8         "s8"           8   Signed;
    S16        "s16"          16  Signed;
    S32        "s32"          32  Signed;
    S64        "s64"          64  Signed;
    U1         "u1"           1   Unsigned;
    U2         "u2"           2   Unsigned;
    U4         "u4"           4   Unsigned;
    U8         "u8"           8   Unsigned;
    U16        "u16"          16  Unsigned;
    U32        "u32"          32  Unsigned;
    U64        "u64"          64  Unsigned;
    F4E2M1FN   "f4e2m1fn"     4   Float;
    F6E2M3FN   "f6e2m3fn"     6   Float;
    F6E3M2FN   "f6e3m2fn"     6   Float;
    F8E3M4     "f8e3m4"       8   Float;
    F8E4M3     "f8e4m3"       8   Float;
    F8E4M3FN   "f8e4m3fn"     8   Float;
    F8E4M3B11FNUZ "f8e4m3b11fnuz" 8 Float;
    F8E4M3FNUZ "f8e4m3fnuz"   8   Float;
    F8E5M2     "f8e5m2"       8   Float;
    F8E5M2FNUZ "f8e5m2fnuz"   8   Float;
    F8E8M0FNU  "f8e8m0fnu"    8   Float;
    F16        "f16"          16  Float;
    BF16       "bf16"         16  Float;
    F32        "f32"          32  Float;
    F64        "f64"          64  Float;
    C64        "c64"          64  Complex;
    C128       "c128"         128 Complex;
}

/// The arithmetic that an element type has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum NumberClass {
    Pred,
    Signed,
    Unsigned,
    Float,
    Complex,
}

impl DType {
    /// Signed or unsigned integer; `pred` is not one.
    pub const fn is_integer(self) -> bool {
        matches!(self.class(), NumberClass::Signed | NumberClass::Unsigned)
    }

    /// Real floating point, f4 to f64.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), NumberClass::Float)
    }

    /// `c64` or `c128`.
    pub const fn is_complex(self) -> bool {
        matches!(self.class(), NumberClass::Complex)
    }

    /// Bytes of `n_elems` elements when packed; sub-byte types pack, as XLA's `ByteSizeOfElements` rounds up.
    pub const fn bytes_of(self, n_elems: u64) -> u64 {
        (n_elems.saturating_mul(self.bits() as u64)).div_ceil(8)
    }

    /// The real type of a complex type's parts (`c64` → `f32`); other types give themselves.
    pub const fn real_part(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
