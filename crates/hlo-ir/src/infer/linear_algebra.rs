//! Shape rules of fft and matrix factorisations.

use super::shape_text::DimsText;
use super::*;
use crate::dtype::DType;

pub(super) fn fft(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Fft(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let from = cx.array(0)?;
    let (n, rank) = (attrs.fft_length.len(), from.rank());
    if n == 0 || n > 3 || n > rank || attrs.fft_length.iter().any(|&l| l < 0) {
        return fail("fft.length", format_args!("1 to 3 lengths, at most {rank}"), DimsText(&attrs.fft_length));
    }
    let last_length = attrs.fft_length[n - 1];
    let kind = attrs.fft_type.as_str();
    let is_input_half = kind == "IRFFT";
    for (i, &length) in attrs.fft_length.iter().enumerate() {
        let size = from.dims[rank - n + i];
        let expected = if is_input_half && i + 1 == n { length / 2 + 1 } else { length };
        if !dim_agrees(size, expected) && length != 0 {
            return fail("fft.size", format_args!("size {expected} in dim {}", rank - n + i), size);
        }
    }
    let mut dims = from.dims.clone();
    let dtype = match (kind, from.dtype) {
        ("FFT" | "IFFT", DType::C64 | DType::C128) => from.dtype,
        ("RFFT", DType::F32) => DType::C64,
        ("RFFT", DType::F64) => DType::C128,
        ("IRFFT", DType::C64 | DType::C128) => from.dtype.real_part(),
        ("FFT" | "IFFT" | "RFFT" | "IRFFT", other) => {
            return fail("fft.element-type", format_args!("an element type that {kind} takes"), other);
        }
        (other, _) => return fail("fft.type", "FFT, IFFT, RFFT or IRFFT", other),
    };
    match kind {
        "RFFT" if last_length != 0 => dims[rank - 1] = last_length / 2 + 1,
        "IRFFT" => dims[rank - 1] = last_length,
        _ => {}
    }
    Ok(array_of(dtype, dims, from.dynamic))
}

fn check_square(constraint: &'static str, a: &ArrayShape) -> Checked<()> {
    match a.dims.as_slice() {
        [.., rows, columns] if dim_agrees(*rows, *columns) => Ok(()),
        dims => fail(constraint, "square matrices in the last two dims", DimsText(dims)),
    }
}

fn check_field(a: &ArrayShape) -> Checked<()> {
    if a.dtype.is_float() || a.dtype.is_complex() {
        return Ok(());
    }
    fail("linear-algebra.element-type", "a floating or complex element type", a.dtype)
}

pub(super) fn cholesky(cx: &Infer<'_>) -> Checked<Inferred> {
    let a = cx.array(0)?;
    check_field(a)?;
    check_square("cholesky.square", a)?;
    Ok(Inferred::Operand(0))
}

pub(super) fn triangular_solve(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::TriangularSolve(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (a, b) = (cx.array(0)?, cx.array(1)?);
    check_field(a)?;
    check_square("triangular-solve.square", a)?;
    if a.dtype != b.dtype || a.rank() != b.rank() {
        let expected = format!("{} of rank {}", a.dtype, a.rank());
        return fail("triangular-solve.b", expected, format_args!("{} of rank {}", b.dtype, b.rank()));
    }
    let rank = a.rank();
    let side = if attrs.left_side { rank - 2 } else { rank - 1 };
    if !dims_agree(&a.dims[..rank - 2], &b.dims[..rank - 2]) || !dim_agrees(b.dims[side], a.dims[rank - 1]) {
        let expected = format!("batch dims of a and {} in dim {side}", a.dims[rank - 1]);
        return fail("triangular-solve.b", expected, DimsText(&b.dims));
    }
    if !matches!(attrs.transpose_a.as_str(), "" | "NO_TRANSPOSE" | "TRANSPOSE" | "ADJOINT") {
        return fail("triangular-solve.transpose", "NO_TRANSPOSE, TRANSPOSE or ADJOINT", attrs.transpose_a.as_str());
    }
    Ok(Inferred::Operand(1))
}
