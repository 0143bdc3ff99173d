//! Which field of a literal holds the elements of which type.

use crate::table::{Field, literal};
use hlo_ir::DType;

/// The field for the elements of a type.
pub(crate) fn field_of(dtype: DType) -> Field {
    match dtype {
        DType::Pred => literal::preds,
        DType::S1 => literal::s1s,
        DType::S2 => literal::s2s,
        DType::S4 => literal::s4s,
        DType::S8 => literal::s8s,
        DType::S16 => literal::s16s,
        DType::S32 => literal::s32s,
        DType::S64 => literal::s64s,
        DType::U1 => literal::u1s,
        DType::U2 => literal::u2s,
        DType::U4 => literal::u4s,
        DType::U8 => literal::u8s,
        DType::U16 => literal::u16s,
        DType::U32 => literal::u32s,
        DType::U64 => literal::u64s,
        DType::F4E2M1FN => literal::f4e2m1fns,
        DType::F6E2M3FN => literal::f6e2m3fns,
        DType::F6E3M2FN => literal::f6e3m2fns,
        DType::F8E3M4 => literal::f8e3m4s,
        DType::F8E4M3 => literal::f8e4m3s,
        DType::F8E4M3FN => literal::f8e4m3fns,
        DType::F8E4M3B11FNUZ => literal::f8e4m3b11fnuzs,
        DType::F8E4M3FNUZ => literal::f8e4m3fnuzs,
        DType::F8E5M2 => literal::f8e5m2s,
        DType::F8E5M2FNUZ => literal::f8e5m2fnuzs,
        DType::F8E8M0FNU => literal::f8e8m0fnus,
        DType::F16 => literal::f16s,
        DType::BF16 => literal::bf16s,
        DType::F32 => literal::f32s,
        DType::F64 => literal::f64s,
        DType::C64 => literal::c64s,
        DType::C128 => literal::c128s,
    }
}
