//! Matrix products of a plan. `bf16` and `f16` are multiplied and added in `f32` and rounded once.
#![allow(unsafe_code)] // `matrixmultiply` takes pointers and strides; ranges are checked before.

use half::{bf16, f16};
use hlo_ir::DType;

use super::memory::Memory;
use crate::ExecutionError;
use hlo_gpu::plan::{Gemm, Matrix, Plan};

/// Elements of a view: one more than the largest offset.
fn extent(view: &Matrix, [outer, batch, rows, cols]: [u64; 4]) -> Option<u64> {
    if [outer, batch, rows, cols].contains(&0) {
        return Some(0);
    }
    let along = |n: u64, stride: u64| (n - 1).checked_mul(stride);
    along(outer, view.outer_stride_elems)?
        .checked_add(along(batch, view.batch_stride_elems)?)?
        .checked_add(along(rows, view.row_stride_elems)?)?
        .checked_add(along(cols, view.col_stride_elems)?)?
        .checked_add(1)
}

/// The products of one step.
pub(super) fn run(plan: &Plan, memory: &mut Memory<'_>, gemm: &Gemm) -> Result<(), ExecutionError> {
    let error = |reason: String| ExecutionError::Host { what: plan.buffers[gemm.output.buffer].name.clone(), reason };
    for (view, rows, cols) in [(&gemm.lhs, gemm.m, gemm.k), (&gemm.rhs, gemm.k, gemm.n), (&gemm.output, gemm.m, gemm.n)]
    {
        let has = plan.buffers[view.buffer].shape.n_elems();
        if extent(view, [gemm.outer_batch, gemm.batch, rows, cols]).is_none_or(|needed| needed > has) {
            return Err(error(format!("expected a view within {has} elements")));
        }
    }
    let dtype = |view: &Matrix| plan.buffers[view.buffer].shape.dtype;
    let lhs = memory.bytes(gemm.lhs.buffer)?;
    let rhs = memory.bytes(gemm.rhs.buffer)?;
    let to = dtype(&gemm.output);
    let out = memory.bytes(gemm.output.buffer)?;
    let bytes = match to {
        DType::F64 => {
            let (a, b) = (as_f64(lhs, dtype(&gemm.lhs)), as_f64(rhs, dtype(&gemm.rhs)));
            let (Some(a), Some(b)) = (a, b) else { return Err(error("expected f64 operands".to_string())) };
            let mut c = as_f64(out, to).unwrap_or_default();
            products(gemm, &a, &b, &mut c, matrixmultiply::dgemm);
            c.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()
        }
        _ => {
            let (a, b, c) = (as_f32(lhs, dtype(&gemm.lhs)), as_f32(rhs, dtype(&gemm.rhs)), as_f32(out, to));
            let (Some(a), Some(b), Some(mut c)) = (a, b, c) else {
                return Err(error(format!("expected a product of floats, found one of {to}")));
            };
            products(gemm, &a, &b, &mut c, matrixmultiply::sgemm);
            from_f32(&c, to)
        }
    };
    memory.bytes_mut(gemm.output.buffer)?.copy_from_slice(&bytes);
    Ok(())
}

/// `sgemm` or `dgemm`.
type Multiply<T> =
    unsafe fn(usize, usize, usize, T, *const T, isize, isize, *const T, isize, isize, T, *mut T, isize, isize);

fn products<T: Copy + From<u8>>(gemm: &Gemm, a: &[T], b: &[T], c: &mut [T], multiply: Multiply<T>) {
    let (m, k, n) = (gemm.m as usize, gemm.k as usize, gemm.n as usize);
    if m == 0 || n == 0 {
        return;
    }
    let at = |view: &Matrix, i: u64| {
        (i / gemm.batch * view.outer_stride_elems + i % gemm.batch * view.batch_stride_elems) as usize
    };
    for i in 0..gemm.outer_batch * gemm.batch {
        let (a_at, b_at, c_at) = (at(&gemm.lhs, i), at(&gemm.rhs, i), at(&gemm.output, i));
        let (a, b, c) = (&a[a_at.min(a.len())..], &b[b_at.min(b.len())..], &mut c[c_at..]);
        // SAFETY: `run` has checked that the three views end within their slices.
        unsafe {
            multiply(
                m,
                k,
                n,
                T::from(1),
                a.as_ptr(),
                gemm.lhs.row_stride_elems as isize,
                gemm.lhs.col_stride_elems as isize,
                b.as_ptr(),
                gemm.rhs.row_stride_elems as isize,
                gemm.rhs.col_stride_elems as isize,
                T::from(0),
                c.as_mut_ptr(),
                gemm.output.row_stride_elems as isize,
                gemm.output.col_stride_elems as isize,
            );
        }
    }
}

/// Elements of a float type up to 32 bits as `f32`.
pub(super) fn as_f32(bytes: &[u8], dtype: DType) -> Option<Vec<f32>> {
    let pairs = || bytes.as_chunks::<2>().0.iter().map(|&pair| u16::from_le_bytes(pair));
    match dtype {
        DType::F32 => Some(bytes.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect()),
        DType::BF16 => Some(pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
        DType::F16 => Some(pairs().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        _ => None,
    }
}

fn as_f64(bytes: &[u8], dtype: DType) -> Option<Vec<f64>> {
    (dtype == DType::F64).then(|| bytes.as_chunks::<8>().0.iter().map(|&word| f64::from_le_bytes(word)).collect())
}

/// The bytes of `f32` elements rounded to a float type.
pub(super) fn from_f32(elems: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::BF16 => elems.iter().flat_map(|&x| bf16::from_f32(x).to_bits().to_le_bytes()).collect(),
        DType::F16 => elems.iter().flat_map(|&x| f16::from_f32(x).to_bits().to_le_bytes()).collect(),
        _ => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}
