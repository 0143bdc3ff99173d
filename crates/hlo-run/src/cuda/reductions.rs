//! Kernels that reduce arrays of several devices into one, for devices that share a card.

use std::collections::HashMap;

use hlo_gpu::kernel::device_reduction;
use hlo_gpu::plan::{Kernel, Plan, Reduction};
use hlo_ir::{ArrayShape, DType};

use super::collective_steps;
use crate::ExecutionError;

/// Element type, reduction, number of inputs, number of elements.
type Key = (DType, Reduction, usize, u64);

/// The kernels that reduce between devices.
#[derive(Default)]
pub(super) struct Reductions {
    kernels: HashMap<Key, Kernel>,
}

impl Reductions {
    /// The kernels that a plan needs.
    pub(super) fn of(plan: &Plan) -> Result<Reductions, ExecutionError> {
        let mut kernels = HashMap::new();
        for call in collective_steps(&plan.steps) {
            let Some(how) = call.kind.reduction() else { continue };
            for &(_, output) in &call.calls {
                let shape = &plan.buffers[output].shape;
                for group in &plan.communicators[call.communicator] {
                    let key = (shape.dtype, how, group.len(), shape.n_elems());
                    kernels.insert(key, device_reduction(key.0, key.1, key.2, key.3));
                }
            }
        }
        Ok(Reductions { kernels })
    }

    /// The kernel that reduces `n_inputs` arrays of a shape.
    pub(super) fn find(&self, shape: &ArrayShape, how: Reduction, n_inputs: usize) -> Option<&Kernel> {
        self.kernels.get(&(shape.dtype, how, n_inputs, shape.n_elems()))
    }

    /// All of them, in an order that is the same in every process.
    pub(super) fn all(&self) -> Vec<&Kernel> {
        let mut kernels: Vec<&Kernel> = self.kernels.values().collect();
        kernels.sort_by(|a, b| a.name.cmp(&b.name));
        kernels.dedup_by(|a, b| a.name == b.name);
        kernels
    }
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
                cases.push((dtype, how, device_reduction(dtype, how, n_inputs, n_elems as u64)));
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
}
