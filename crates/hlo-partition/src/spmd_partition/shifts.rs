//! Arrays that are put together from rows of one array: shifted, rolled, with other borders.
//!
//! `concatenate(slice(x, [n-1:n]), slice(x, [0:n-1]))` turns a cut array round by a row. Every tile of the result is rows of tiles of `x`, so each
//! device gets the rows that it lacks from whoever holds them, and puts them beside its own: one permute of one row. Slices of sizes
//! that tiles do not divide would be cut, filled up, and sent there and back.

use super::halo::HaloPiece;
use cranelift_entity::EntitySet;
use hlo_ir::attrs::{DimsAttrs, PadAttrs, PadDim, SliceAttrs, SliceDim};
use hlo_ir::{InstId, Module, Opcode};
use std::collections::{BTreeMap, BTreeSet};

/// Most intervals of a tile that are put together, and most permutes that bring their rows.
pub(super) const MAX_INTERVALS: usize = 8;

/// An array put together along one dim from rows of another one of the same shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shift {
    /// The array whose rows these are.
    pub source: InstId,
    pub dim: usize,
    /// Rows of the dim.
    pub n_rows: i64,
    /// The parts, in order.
    parts: Vec<Part>,
    /// The slices that this is made of.
    pub slices: Vec<InstId>,
}

/// Rows that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    n_rows: i64,
    /// The first row of the source; none where a scalar is repeated.
    first: Option<i64>,
    fill: Option<InstId>,
}

/// Where rows of one shard's tile come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A tile, and the row in it.
    Tile(i64, i64),
    /// A scalar that they repeat.
    Fill(InstId),
}

/// Rows of a tile that lie at the same places on all devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Interval {
    pub n_rows: i64,
    pub of_shard: Vec<Origin>,
}

/// The slices that nothing but shifts reads.
pub(super) fn only_shifted(module: &Module) -> EntitySet<InstId> {
    let (users, mut found) = (module.users(), EntitySet::new());
    for &comp in module.computations() {
        let root = module.comp(comp).root.expand();
        let shifts = module.comp(comp).insts.iter().filter_map(|&inst| Some((inst, find_shift(module, inst)?)));
        let shifts: BTreeMap<InstId, Shift> = shifts.collect();
        for &slice in shifts.values().flat_map(|shift| &shift.slices) {
            if root != Some(slice) && users[slice].iter().all(|user| shifts.contains_key(user)) {
                found.insert(slice);
            }
        }
    }
    found
}

/// Finds the rows that `inst` is put together from, if it is a shift.
pub(super) fn find_shift(module: &Module, inst: InstId) -> Option<Shift> {
    let instruction = module.inst(inst);
    let padding = PadAttrs::of(&instruction.attrs).map(|attrs| &attrs.padding);
    let (dim, pieces) = match padding {
        Some(padding) => {
            let padded: Vec<usize> = (0..padding.len()).filter(|&dim| padding[dim] != PadDim::default()).collect();
            let &[dim] = padded.as_slice() else { return None };
            (dim, vec![*instruction.operands.first()?])
        }
        None => {
            let attrs = DimsAttrs::of(&instruction.attrs).filter(|_| instruction.opcode == Opcode::Concatenate)?;
            (usize::try_from(*attrs.dimensions.first()?).ok()?, instruction.operands.to_vec())
        }
    };
    let n_rows = *module.shape(inst).as_array()?.dims.get(dim)?;
    let (mut parts, mut slices, mut source) = (Vec::new(), Vec::new(), None);
    for piece in pieces {
        let (of, (low, high)) = rows_of(module, piece, dim)?;
        if of == piece || source.is_some_and(|source| source != of) {
            return None;
        }
        source = Some(of);
        slices.push(piece);
        parts.push(Part { n_rows: high - low, first: Some(low), fill: None });
    }
    if let Some(padding) = padding {
        let (pad, fill) = (padding[dim], instruction.operands.get(1).copied());
        if pad.interior != 0 || pad.low < 0 || pad.high < 0 {
            return None;
        }
        parts.insert(0, Part { n_rows: pad.low, first: None, fill });
        parts.push(Part { n_rows: pad.high, first: None, fill });
    }
    let source = source?;
    let is_alike = module.shape(source).as_array()?.dims == module.shape(inst).as_array()?.dims;
    is_alike.then_some(Shift { source, dim, n_rows, parts, slices })
}

/// The array of which `piece` is a slice along `dim` alone, and which rows; the piece itself where it is no such slice.
fn rows_of(module: &Module, piece: InstId, dim: usize) -> Option<(InstId, (i64, i64))> {
    let whole = (piece, (0, *module.shape(piece).as_array()?.dims.get(dim)?));
    let Some(SliceAttrs { slice }) = SliceAttrs::of(&module.inst(piece).attrs) else { return Some(whole) };
    let &of = module.inst(piece).operands.first()?;
    let dims = &module.shape(of).as_array()?.dims;
    let is_row =
        |(k, at): (usize, &SliceDim)| at.stride == 1 && (k == dim || (at.start, Some(&at.limit)) == (0, dims.get(k)));
    let rows = slice.get(dim).map(|at| (at.start, at.limit))?;
    Some(if slice.iter().enumerate().all(is_row) { (of, rows) } else { whole })
}

impl Shift {
    /// Where the rows of each shard's tile come from, in intervals that are the same for all shards; none if these are too many.
    pub(super) fn intervals(&self, n_shards: i64) -> Option<Vec<Interval>> {
        let tile = self.n_rows / n_shards;
        let mut borders = BTreeSet::from([0, tile]);
        let mut begin = 0;
        for part in &self.parts {
            borders.insert(begin % tile);
            // Where the rows pass from one tile of the source to the next one.
            borders.extend(part.first.map(|first| (begin - first).rem_euclid(tile)));
            begin += part.n_rows;
        }
        if borders.len() > MAX_INTERVALS + 1 {
            return None;
        }
        let borders: Vec<i64> = borders.into_iter().collect();
        let interval = |pair: &[i64]| {
            let (low, high) = (*pair.first()?, *pair.last()?);
            let of_shard = (0..n_shards).map(|shard| self.origin(shard * tile + low, tile)).collect::<Option<_>>()?;
            Some(Interval { n_rows: high - low, of_shard })
        };
        borders.windows(2).map(interval).collect()
    }

    /// Where a row of the result comes from.
    fn origin(&self, row: i64, tile: i64) -> Option<Origin> {
        let mut begin = 0;
        for part in &self.parts {
            if row < begin + part.n_rows {
                return match part.first {
                    Some(first) => Some(Origin::Tile((first + row - begin) / tile, (first + row - begin) % tile)),
                    None => part.fill.map(Origin::Fill),
                };
            }
            begin += part.n_rows;
        }
        None
    }
}

impl Interval {
    /// Lists the pieces to fetch: one for each row where they begin in their tiles.
    pub(super) fn pieces(&self) -> Vec<HaloPiece> {
        let lows = self.of_shard.iter().filter_map(|origin| match *origin {
            Origin::Tile(_, low) => Some(low),
            Origin::Fill(_) => None,
        });
        let piece = |low: i64| {
            let of_shard = |origin: &Origin| match *origin {
                Origin::Tile(tile, at) if at == low => Some(tile),
                Origin::Tile(..) | Origin::Fill(_) => None,
            };
            HaloPiece { low, high: low + self.n_rows, tile_of_shard: self.of_shard.iter().map(of_shard).collect() }
        };
        lows.collect::<BTreeSet<i64>>().into_iter().map(piece).collect()
    }
}
