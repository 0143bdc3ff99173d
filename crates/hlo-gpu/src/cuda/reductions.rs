//! Kernels that reduce arrays of several devices into one, for devices that share a card.

use hlo_ir::DType;

use crate::GpuError;
use crate::kernel::{CType, content_hash};
use crate::plan::{Access, Kernel, Reduction};

/// Threads of a block, and the most blocks of a launch; threads walk on in strides of the grid.
const BLOCK: u32 = 256;
const MOST_BLOCKS: u32 = 4096;

/// The kernel `out[i] = in0[i] ∘ in1[i] ∘ …` of `n_elems` elements, in this order. Small floats are added in `f32` and
/// rounded once. Arguments: the inputs, then the output.
///
/// # Errors
/// Elements that collectives do not reduce.
pub(crate) fn reduction(dtype: DType, how: Reduction, n_inputs: usize, n_elems: u64) -> Result<Kernel, GpuError> {
    // A sum of truth values is "or", which is the maximum of bytes; a product is "and".
    let (dtype, how) = match (dtype, how) {
        (DType::Pred, Reduction::Sum | Reduction::Max) => (DType::U8, Reduction::Max),
        (DType::Pred, Reduction::Product | Reduction::Min) => (DType::U8, Reduction::Min),
        other => other,
    };
    let ctype = CType::of(dtype, "a reduction between devices")?;
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
    Ok(Kernel {
        source: format!("extern \"C\" __global__ void {name}{text}"),
        name,
        grid: blocks,
        block: BLOCK,
        shared_bytes: 0,
        is_cooperative: false,
        arguments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::collective::reduce;
    use crate::host::{Block, Library};

    /// The kernel, run by the host executor, against the host's collectives, to the bit.
    #[test]
    fn kernels_reduce_as_the_host_does() {
        let (n_inputs, n_elems) = (5, 1000usize);
        let mut cases = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::S32, DType::U8, DType::S64, DType::Pred] {
            for how in [Reduction::Sum, Reduction::Product, Reduction::Min, Reduction::Max] {
                cases.push((dtype, how, reduction(dtype, how, n_inputs, n_elems as u64).unwrap()));
            }
        }
        let library = Library::new(cases.iter().map(|(_, _, kernel)| kernel)).unwrap();
        for (dtype, how, kernel) in &cases {
            let size = (dtype.bits() / 8) as usize;
            let element = |input: usize, i: usize| -> Vec<u8> {
                let x = ((i * 7 + input * 13) % 23) as f64 / 8.0 - 1.0;
                match dtype {
                    DType::F32 => (x as f32 * 1.1).to_le_bytes().to_vec(),
                    DType::F64 => (x * 1.1).to_le_bytes().to_vec(),
                    DType::BF16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
                    DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
                    DType::Pred => vec![(i >> input & 1) as u8],
                    _ => ((x * 8.0) as i64).to_le_bytes()[..size].to_vec(),
                }
            };
            let inputs: Vec<Vec<u8>> =
                (0..n_inputs).map(|input| (0..n_elems).flat_map(|i| element(input, i)).collect()).collect();
            let mut blocks: Vec<Block> = inputs.iter().map(|bytes| Block::from_bytes(bytes)).collect();
            blocks.push(Block::zeros(n_elems * size));
            let pointers: Vec<_> = blocks.iter_mut().map(|block| block.pointer(0)).collect();
            library.launch(kernel, &pointers).unwrap();
            let rows: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            assert_eq!(blocks[n_inputs].bytes(), reduce(*dtype, *how, &rows).unwrap(), "{dtype} {how:?}");
        }
    }

    #[test]
    fn complex_numbers_are_refused() {
        assert!(reduction(DType::C64, Reduction::Sum, 2, 8).is_err());
    }
}
