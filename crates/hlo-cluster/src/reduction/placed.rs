//! A reduction of a placement on a machine: what step costs are asked for.

use crate::collective::Algo;
use crate::reduction::matrix::{Lowering, ParallelismMatrix};
use crate::topology::Cluster;

/// One reduction on one machine.
#[derive(Clone, Copy)]
pub struct PlacedReduction<'a> {
    /// The machine; its levels must be those of the matrix.
    pub cluster: &'a Cluster,
    /// The placement.
    pub matrix: &'a ParallelismMatrix,
    /// The axes that are reduced together.
    pub reduce: &'a [usize],
    /// How positions are numbered.
    pub lowering: Lowering,
    /// Bytes on each device.
    pub bytes: f64,
    /// The algorithm of every step.
    pub algo: Algo,
}

/// The reduction's factors above one, outermost level first.
pub(super) fn factors_above_one(matrix: &ParallelismMatrix, reduce: &[usize]) -> Vec<usize> {
    matrix.reduction_factors(reduce).into_iter().map(|f| f as usize).filter(|f| *f > 1).collect()
}
