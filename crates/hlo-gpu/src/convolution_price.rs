//! How long a convolution takes as our own kernel and as a product of patches.
//!
//! What is said of our own kernel was not measured: it is counted from the instructions of its inner loops, and stands here to be replaced.

use crate::kernel::conv_rounds;
use hlo_ir::attrs::Attrs;
use hlo_ir::{ArrayShape, DType, InstId, Module};
use hlo_mesh::{KernelWork, Machine};

/// Parts of one sum at most.
const MOST_PARTS: i64 = 128;

/// Which part of its arithmetic at best the largest tile of our own kernel reaches. Of f32, of the instructions of a slice four fifths are
/// multiplications and additions (as NVRTC 12.9 makes it for sm_90); the rest, and waits, are loads, barriers and indices. With 16-bit floats loads
/// from shared memory, which `mma.sync` cannot do without, take as long as the products.
fn own_share(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 | DType::F16 => 0.3,
        // The data sheets count tensor cores, which this kernel does not use.
        DType::F64 => 0.25,
        _ => 0.65,
    }
}

/// How many times longer the kernel of a convolution takes than its arithmetic at best, with `parts` parts of its sums side by side.
pub(crate) fn slowdown(module: &Module, conv: InstId, parts: i64) -> f64 {
    let Some(dtype) = module.inst(conv).operands.first().and_then(|&lhs| module.shape(lhs).as_array()).map(|a| a.dtype)
    else {
        return 1.0;
    };
    // What goes by single threads does not share what it loads.
    conv_rounds(module, conv, parts).map_or(10.0, |rounds| rounds / own_share(dtype))
}

/// Seconds of a convolution of so many operations as our own kernel, in `parts` parts, and of what adds these up.
pub(crate) fn own_s(machine: &Machine, module: &Module, conv: InstId, flops: f64, parts: i64) -> f64 {
    let node = module.inst(conv);
    let bytes = |inst: InstId| module.shape(inst).memory_bytes() as f64;
    let read: f64 = node.operands.iter().map(|&operand| bytes(operand)).sum();
    let dtype = node.operands.first().and_then(|&lhs| module.shape(lhs).as_array()).map_or(DType::F32, |a| a.dtype);
    let arithmetic_s = machine.matrix_s(flops * slowdown(module, conv, parts), dtype, false);
    let own = |bytes: f64| machine.kernel_s(KernelWork { bytes, arithmetic_s });
    if parts == 1 {
        return own(read + bytes(conv));
    }
    let n_elems = module.shape(conv).as_array().map_or(0.0, |array| array.n_elems() as f64);
    let partial = n_elems * parts as f64 * f64::from(bits_of_part(dtype)) / 8.0;
    own(read + partial) + machine.kernel_s(KernelWork { bytes: partial + bytes(conv), arithmetic_s: 0.0 })
}

/// In how many parts of its sums a convolution is the fastest as our own kernel, and the seconds of it.
pub(crate) fn fastest_parts(machine: &Machine, module: &Module, conv: InstId, flops: f64) -> (i64, f64) {
    let channels = || {
        let node = module.inst(conv);
        let (Attrs::Conv(attrs), &[_, rhs]) = (&node.attrs, node.operands.as_slice()) else { return None };
        let kernel = module.shape(rhs).as_array()?;
        kernel.dims.get(usize::try_from(attrs.dim_labels.kernel_input_feature).ok()?).copied()
    };
    let channels = channels().unwrap_or(1);
    let choices = (1..=MOST_PARTS.min(channels.max(1))).filter(|parts| channels % parts == 0);
    let priced = choices.map(|parts| (parts, own_s(machine, module, conv, flops, parts)));
    priced.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((1, f64::INFINITY))
}

/// Bits of an element of a part of a sum: 16-bit floats are added up in f32.
pub(crate) fn bits_of_part(dtype: DType) -> u32 {
    dtype.bits().max(32)
}

/// How many times longer the kernel that gathers patches takes than memory at best: on an H100 a convolution of 64 x 56 x 56 x 256 bf16 with 3 x 3 taps
/// took 1.641 ms so (27 November 2026), of which the product is 0.34 at most.
const GATHER: f64 = 4.0;

/// Which part of its arithmetic at best a library's product reaches.
const LIBRARY_SHARE: f64 = 0.8;

/// Seconds of so many operations as a product of patches, which are written and read.
pub(crate) fn patches_s(machine: &Machine, flops: f64, patches_bytes: f64, arrays: [&ArrayShape; 3]) -> f64 {
    let [input, kernel, output] = arrays.map(|array| array.memory_bytes() as f64);
    let gather = KernelWork { bytes: GATHER * (input + patches_bytes), arithmetic_s: 0.0 };
    let arithmetic_s = machine.matrix_s(flops / LIBRARY_SHARE, arrays[0].dtype, false);
    let product = KernelWork { bytes: patches_bytes + kernel + output, arithmetic_s };
    let written = if patches_bytes > 0.0 { machine.kernel_s(gather) } else { 0.0 };
    written + machine.kernel_s(product)
}
