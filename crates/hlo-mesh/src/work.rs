//! The work of kernels, on any machine and on one.

use hlo_ir::DType;
use smallvec::SmallVec;

/// Which units of a device do some arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Elementwise and reducing operations.
    Vector,
    /// Matrix products and convolutions.
    Matrix,
}

/// Operations of one unit on one type.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Arithmetic {
    /// Where.
    pub unit: Unit,
    /// On elements of this type.
    pub dtype: DType,
    /// How many; a fused multiply-add counts two, those of a slow product as often as it is slower (`hlo_analysis::time::product_slowdown`).
    pub flops: f64,
}

/// Work of one kernel, on any machine.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct KernelCost {
    /// Bytes that it reads from memory.
    pub bytes_read: f64,
    /// Bytes that it writes to memory.
    pub bytes_written: f64,
    /// The operations that it computes.
    pub arithmetic: SmallVec<[Arithmetic; 2]>,
}

impl KernelCost {
    /// Adds operations of one unit on one type.
    pub fn add(&mut self, unit: Unit, dtype: DType, flops: f64) {
        if flops == 0.0 {
            return;
        }
        match self.arithmetic.iter_mut().find(|known| known.unit == unit && known.dtype == dtype) {
            Some(known) => known.flops += flops,
            None => self.arithmetic.push(Arithmetic { unit, dtype, flops }),
        }
    }
}

/// The work of one kernel on one machine.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct KernelWork {
    /// Bytes that it reads from and writes to memory.
    pub bytes: f64,
    /// Seconds of its arithmetic: [`Machine::vector_s`], [`Machine::matrix_s`], or a sum of these.
    pub arithmetic_s: f64,
}
