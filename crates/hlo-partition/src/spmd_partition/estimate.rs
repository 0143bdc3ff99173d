//! What it costs, roughly, to bring an array from one sharding to another. Choices among ways to cut an op are made by this; the
//! planner of redistributions then finds the steps.
//!
//! Costs are in bytes that a device receives on a ring. Work of a device counts as the bytes that its links carry meanwhile.

use crate::mesh::ModuleMesh;
use crate::sharding::{ArraySharding, Atom, AtomList};
use hlo_ir::ArrayShape;

/// Operations of a matrix unit in the time in which a link carries a byte: some 5e14 against 4.5e11 per second.
const FLOPS_PER_BYTE: f64 = 1024.0;

/// Bytes of memory traffic in that time: some 3.4e12 against 4.5e11.
const MEMORY_BYTES_PER_BYTE: f64 = 8.0;

/// Bytes of a tile.
pub(super) fn tile_bytes(mesh: &ModuleMesh, shape: &ArrayShape, sharding: &ArraySharding) -> f64 {
    let elems: f64 = sharding.tile_dims(mesh, &shape.dims).iter().map(|&size| size as f64).product();
    elems * f64::from(shape.dtype.bits()) / 8.0
}

/// The cost of bringing an array of `shape` from one sharding to another, where one more collective costs `launch` bytes beside its own.
pub(super) fn reshard_cost(
    mesh: &ModuleMesh,
    shape: &ArrayShape,
    (from, to): (&ArraySharding, &ArraySharding),
    launch: f64,
) -> f64 {
    if from == to {
        return 0.0;
    }
    let mut cost = 0.0;
    let mut at = from.clone();
    let resolved: AtomList = from.partial.iter().copied().filter(|atom| !to.partial.contains(atom)).collect();
    if !resolved.is_empty() {
        // What the target cuts along partial atoms is reduced and scattered; the rest is reduced as a whole.
        let is_new = |atom: &Atom| to.cutting().any(|cut| cut == *atom);
        let (scattered, reduced): (AtomList, AtomList) = resolved.iter().copied().partition(is_new);
        let bytes = tile_bytes(mesh, shape, from);
        let (n_scattered, n_reduced) = (mesh.n_places(&scattered) as f64, mesh.n_places(&reduced) as f64);
        cost += bytes * (n_scattered - 1.0) / n_scattered;
        cost += 2.0 * bytes / n_scattered * (n_reduced - 1.0) / n_reduced;
        cost += launch * (f64::from(u8::from(!scattered.is_empty())) + f64::from(u8::from(!reduced.is_empty())));
        at.partial.retain(|atom| to.partial.contains(atom));
        for (dim, atoms) in to.dims.iter().enumerate() {
            for &atom in atoms.iter().filter(|atom| scattered.contains(atom)) {
                at.dims.get_mut(dim).into_iter().for_each(|list| list.push(atom));
            }
        }
    }
    let lacking = lacking_bytes(mesh, shape, &at, to);
    if lacking > 0.0 { cost + lacking + launch } else { cost }
}

/// The most bytes of a target tile that a device does not hold.
fn lacking_bytes(mesh: &ModuleMesh, shape: &ArrayShape, from: &ArraySharding, to: &ArraySharding) -> f64 {
    let (source, target) = (from.tile_dims(mesh, &shape.dims), to.tile_dims(mesh, &shape.dims));
    let mut held = 1.0;
    for (dim, (a, b)) in from.dims.iter().zip(&to.dims).enumerate() {
        let n = a.len().min(b.len());
        held *= match a[..n] == b[..n] {
            true => source[dim].min(target[dim]) as f64,
            false => 0.0,
        };
    }
    let wanted: f64 = target.iter().map(|&size| size as f64).product();
    (wanted - held).max(0.0) * f64::from(shape.dtype.bits()) / 8.0
}

/// The cost of a device's own work: `n_steps` of the op's loop nest.
pub(super) fn work_cost(n_steps: f64, is_product: bool, element_bytes: f64) -> f64 {
    match is_product {
        true => 2.0 * n_steps / FLOPS_PER_BYTE,
        false => n_steps * element_bytes / MEMORY_BYTES_PER_BYTE,
    }
}
