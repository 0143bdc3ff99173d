//! Kernels that reduce arrays of several devices into one, for devices that share a card.

use hlo_ir::DType;

use super::content_hash;
use super::dtype::CType;
use crate::plan::{Access, Kernel, Reduction};

/// Threads of a block, and the most blocks of a launch; threads walk on in strides of the grid.
const BLOCK: u32 = 256;
const MOST_BLOCKS: u32 = 4096;

/// The kernel `out[i] = in0[i] ∘ in1[i] ∘ …` of `n_elems` elements, in this order. Small floats are added in `f32` and
/// rounded once. Arguments: the inputs, then the output.
pub fn device_reduction(dtype: DType, how: Reduction, n_inputs: usize, n_elems: u64) -> Kernel {
    // A sum of truth values is "or", which is the maximum of bytes; a product is "and".
    let (dtype, how) = match (dtype, how) {
        (DType::Pred, Reduction::Sum | Reduction::Max) => (DType::U8, Reduction::Max),
        (DType::Pred, Reduction::Product | Reduction::Min) => (DType::U8, Reduction::Min),
        other => other,
    };
    let ctype = CType::of(dtype);
    let (stored, held) = (ctype.stored, ctype.held);
    let function = match how {
        Reduction::Sum => "hlo::add",
        Reduction::Product => "hlo::multiply",
        Reduction::Min => "hlo::minimum",
        Reduction::Max => "hlo::maximum",
    };
    let mut parameters: Vec<String> = (0..n_inputs).map(|i| format!("const {stored}* in{i}")).collect();
    parameters.push(format!("{stored}* out"));
    let mut body = format!("        {held} x = {};\n", ctype.loaded("in0[i]"));
    for i in 1..n_inputs {
        body.push_str(&format!("        x = {function}(x, {});\n", ctype.loaded(&format!("in{i}[i]"))));
    }
    body.push_str(&format!("        out[i] = {};\n", ctype.to_stored("x")));
    let text = format!(
        "({}) {{\n    for (hlo::u64 i = (hlo::u64)blockIdx.x * {BLOCK}u + threadIdx.x; i < {n_elems}ull; i += (hlo::u64)gridDim.x * \
         {BLOCK}u) {{\n{body}    }}\n}}\n",
        parameters.join(", ")
    );
    let name = format!("between_devices_{:016x}", content_hash(&text));
    let blocks = n_elems.div_ceil(u64::from(BLOCK)).clamp(1, u64::from(MOST_BLOCKS)) as u32;
    let mut arguments = vec![Access::Read; n_inputs];
    arguments.push(Access::Write);
    Kernel {
        source: format!("extern \"C\" __global__ void {name}{text}"),
        name,
        grid: blocks,
        block: BLOCK,
        shared_bytes: 0,
        is_cooperative: false,
        arguments,
    }
}
