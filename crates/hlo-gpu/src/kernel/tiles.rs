//! Transposes by way of shared memory: a tile is read along the operand's fastest dim and written along the result's.

use hlo_ir::attrs::DimsAttrs;
use hlo_ir::{InstId, Module, Opcode};
use smallvec::SmallVec;

use super::Signature;
use super::dtype::CType;
use super::emitter::{Argument, Atom, Element, Emitter, FrameId, Index, ScopeKind};
use super::group::{BlockRange, ResultGroup};
use super::reach::Root;
use crate::GpuError;

/// Elements of a tile's side.
const SIDE: i64 = 32;
/// Threads of a block along the other side.
const ROWS: i64 = 8;

/// What is read across.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tiles {
    /// The instruction whose elements are put into the tile.
    staged: InstId,
    /// The dim of the result along which its operand lies.
    read_dim: usize,
    /// The dim of the result that is fastest.
    write_dim: usize,
}

/// A transpose or layout change that all results of a group read in place, with both sides long enough.
pub(super) fn choose(module: &Module, signature: &Signature, group: &ResultGroup, roots: &[&Root]) -> Option<Tiles> {
    let shape = &signature.results[group.results[0]].shape;
    if !group.is_one_layout || shape.n_elems() < 4096 {
        return None;
    }
    let fastest = |order: SmallVec<[usize; 4]>, dims: &[i64]| order.into_iter().find(|&dim| dims[dim] != 1);
    let write_dim = fastest(shape.physical_order(), &shape.dims)?;
    let found = roots.first()?.in_place.iter().copied().find_map(|inst| {
        let node = module.inst(inst);
        let (own, &operand) = (module.shape(inst).as_array()?, node.operands.first()?);
        let from = module.shape(operand).as_array()?;
        let from_fastest = fastest(from.physical_order(), &from.dims)?;
        let read_dim = if node.opcode == Opcode::Transpose {
            let attrs = DimsAttrs::of(&node.attrs)?;
            attrs.dimensions.iter().position(|&dim| dim as usize == from_fastest)?
        } else {
            (node.opcode == Opcode::Copy).then_some(from_fastest)?
        };
        let fits = !signature.bindings.contains_key(&inst)
            && own.is_same_order(shape)
            && read_dim != write_dim
            && own.dims[read_dim] >= SIDE / 2
            && own.dims[write_dim] >= SIDE / 2
            && roots.iter().all(|root| root.in_place.contains(&inst) && !root.elsewhere.contains(&inst));
        fits.then_some(Tiles { staged: inst, read_dim, write_dim })
    })?;
    Some(found)
}

impl Tiles {
    /// Tiles that the result has.
    pub(super) fn n_tiles(&self, dims: &[i64]) -> i64 {
        let others: i64 = self.other_dims(dims).iter().map(|&dim| dims[dim]).product();
        others
            * (dims[self.read_dim] as u64).div_ceil(SIDE as u64) as i64
            * (dims[self.write_dim] as u64).div_ceil(SIDE as u64) as i64
    }

    fn other_dims(&self, dims: &[i64]) -> SmallVec<[usize; 4]> {
        (0..dims.len()).rev().filter(|&dim| dim != self.read_dim && dim != self.write_dim).collect()
    }

    /// Writes the loop over the tiles of a group's blocks.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        let dims = results[group.results[0]].shape.dims.clone();
        let dtype = e.leaf_shape(self.staged, 0)?.dtype;
        let held = CType::of(dtype).held;
        let table = e.fresh("s");
        e.is_cooperative = true;
        e.line(format!("__shared__ {held} {table}[{}];", SIDE * (SIDE + 1)));
        let tile = e.loop_variable();
        let header = blocks.loop_header(tile, self.n_tiles(&dims));
        e.scope(ScopeKind::Loop, header, |e| {
            let depth = e.depth();
            let n_write = (dims[self.write_dim] as u64).div_ceil(SIDE as u64) as i64;
            let n_read = (dims[self.read_dim] as u64).div_ceil(SIDE as u64) as i64;
            let (rest, write_tile) = e.divide(tile, n_write);
            let (others, read_tile) = e.divide(rest, n_read);
            let other_dims = self.other_dims(&dims);
            let sizes: SmallVec<[i64; 4]> = other_dims.iter().map(|&dim| dims[dim]).collect();
            let order: SmallVec<[usize; 4]> = (0..sizes.len()).collect();
            let found = e.index_at(others, &sizes, &order);
            let mut index: Index = SmallVec::from_elem(Atom::Const(0), dims.len());
            for (&dim, &atom) in other_dims.iter().zip(&found) {
                index[dim] = atom;
            }
            let column = e.bind("(idx)(threadIdx.x % 32)".to_string(), depth);
            let row = e.bind("(idx)(threadIdx.x / 32)".to_string(), depth);
            let (first_read, first_write) = (e.affine(read_tile, SIDE, 0), e.affine(write_tile, SIDE, 0));
            let read_at = e.sum(first_read, column);
            let write_at = e.sum(first_write, column);
            // In: neighbours in a warp are neighbours in the operand.
            self.rows(e, row, &mut |e, k| {
                let mut own = index.clone();
                own[self.read_dim] = read_at;
                own[self.write_dim] = e.sum(first_write, k);
                let inside = self.inside(&own, &dims);
                e.branch(&inside, |e| {
                    let value =
                        super::table::emit_value(e, Element { frame, inst: self.staged, leaf: 0, index: &own })?;
                    e.line(format!("{table}[{k} * {} + {column}] = {};", SIDE + 1, value.text));
                    Ok(())
                })
            })?;
            e.line("__syncthreads();");
            self.rows(e, row, &mut |e, k| {
                let mut own = index.clone();
                own[self.read_dim] = e.sum(first_read, k);
                own[self.write_dim] = write_at;
                let inside = self.inside(&own, &dims);
                e.branch(&inside, |e| {
                    let value = e.constant(held, &format!("{table}[{column} * {} + {k}]", SIDE + 1));
                    e.staged.insert((frame, self.staged), value);
                    let stores = group.values_at(e, frame, results, &own);
                    e.staged.clear();
                    for (result, at, value) in stores? {
                        e.line(format!("r{result}[{at}] = {value};"));
                    }
                    Ok(())
                })
            })?;
            e.line("__syncthreads();");
            Ok(())
        })
    }

    fn rows(
        &self,
        e: &mut Emitter<'_>,
        row: Atom,
        body: &mut dyn FnMut(&mut Emitter<'_>, Atom) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let k = e.loop_variable();
        let header = format!("for (idx {k} = {row}; {k} < {SIDE}; {k} += {ROWS})");
        e.scope(ScopeKind::Loop, header, |e| body(e, k))
    }

    fn inside(&self, index: &[Atom], dims: &[i64]) -> String {
        let (read, write) = (self.read_dim, self.write_dim);
        format!("{} < {} && {} < {}", index[read], dims[read], index[write], dims[write])
    }
}
