//! Cumulative reductions along a cut dim: each device scans its tile, and the totals of the tiles before it come on top.
//!
//! Front ends write a cumulative sum as a `reduce-window` whose window reaches from each element to an end of the dim.

use super::lowering::{Leaves, Lowering, TileValue};
use crate::error::PartitionError;
use crate::sharding::ArraySharding;
use hlo_ir::attrs::{Attrs, Comparison, DimsAttrs, ReduceAttrs, ReduceWindowAttrs, Window, WindowDim};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, CompId, DType, Dims, InstId, Opcode, Shape};

/// A cumulative reduction.
struct Scan {
    dim: usize,
    /// Whether it begins at the end of the dim.
    is_reversed: bool,
    monoid: Monoid,
    reducer: CompId,
}

impl Scan {
    /// The cumulative reduction that a `reduce-window` is; `None` for any other window.
    fn of(attrs: &ReduceWindowAttrs, whole: &ArrayShape, monoid: Monoid, reducer: CompId) -> Option<Scan> {
        let mut moving = attrs.window.dims.iter().enumerate().filter(|(_, dim)| **dim != WindowDim::default());
        let (dim, window) = moving.next().filter(|_| moving.next().is_none())?;
        let size = *whole.dims.get(dim)?;
        let forward = WindowDim { size, pad_low: size - 1, ..WindowDim::default() };
        let backward = WindowDim { size, pad_high: size - 1, ..WindowDim::default() };
        let is_reversed = *window == backward;
        (is_reversed || *window == forward).then_some(Scan { dim, is_reversed, monoid, reducer })
    }
}

/// Whether another order of the terms shows: sums and products of short floats are left in the order in which they stand.
fn rounds_coarsely(monoid: Monoid, dtype: DType) -> bool {
    dtype.is_float() && dtype.bits() < 32 && matches!(monoid, Monoid::Add | Monoid::Multiply)
}

impl Lowering<'_> {
    /// The op as a scan of tiles, if it is a cumulative reduction along a dim that is cut.
    pub(super) fn lower_scan(
        &mut self,
        inst: InstId,
        operands: &[TileValue],
    ) -> Result<Option<Leaves>, PartitionError> {
        let (Attrs::ReduceWindow(attrs), [values, init]) = (self.module.inst(inst).attrs.clone(), operands) else {
            return Ok(None);
        };
        let Shape::Array(whole) = &values.whole else { return Ok(None) };
        let reducer = attrs.to_apply.and_then(|reducer| find_monoid(self.module, reducer).map(|m| (m, reducer)));
        let Some(scan) = reducer.and_then(|(monoid, reducer)| Scan::of(&attrs, whole, monoid, reducer)) else {
            return Ok(None);
        };
        if !self.is_identity(init.inst, scan.monoid) || rounds_coarsely(scan.monoid, whole.dtype) {
            return Ok(None);
        }
        let wanted = self.wanted(inst, 0)?;
        let is_cut = |sharding: &ArraySharding| sharding.n_tiles(&self.mesh, scan.dim) > 1;
        let cut = wanted.clone().filter(is_cut).or_else(|| Some(values.sharding.resolved()).filter(is_cut));
        let Some(cut) = cut else { return Ok(None) };
        let operand = self.reshard(values, &cut)?;
        let new = self.scan_of_tiles(inst, &scan, (&operand, whole), init.inst)?;
        let result = TileValue { inst: new, monoid: Monoid::Add, ..operand };
        let target = wanted.unwrap_or(cut);
        Ok(Some([self.reshard(&result, &target)?].into_iter().collect()))
    }

    fn scan_of_tiles(
        &mut self,
        inst: InstId,
        scan: &Scan,
        (operand, whole): (&TileValue, &ArrayShape),
        init: InstId,
    ) -> Result<InstId, PartitionError> {
        let dim = scan.dim;
        let shape = self.array(operand.inst)?;
        let (n_rows, size) = (shape.dims[dim], whole.dims[dim]);
        let atoms = operand.sharding.dims[dim].clone();
        let places = self.mesh.places(&atoms);
        let mut values = operand.inst;
        if scan.is_reversed && n_rows * self.mesh.n_places(&atoms) > size {
            // Rows beyond the end come first.
            let starts: Vec<i64> = places.iter().map(|place| place * n_rows).collect();
            let position = self.positions(n_rows, &starts)?;
            let end = self.numbers(size, &[n_rows])?;
            let is_there = self.compare(position, end, Comparison::Lt)?;
            let is_there = self.along(is_there, &shape.dims, dim)?;
            values = self.or_identity(is_there, values, scan.monoid)?;
        }
        let padding = n_rows - 1;
        let (pad_low, pad_high) = if scan.is_reversed { (0, padding) } else { (padding, 0) };
        let mut dims = vec![WindowDim::default(); shape.rank()];
        dims[dim] = WindowDim { size: n_rows, pad_low, pad_high, ..WindowDim::default() };
        let attrs = ReduceWindowAttrs { window: Window { dims }, to_apply: Some(scan.reducer) };
        let own = self.add("scan", Opcode::ReduceWindow, shape.clone(), &[values, init], attrs);
        self.keep_name(own, inst);
        self.keep_marks(own, inst);
        let last = if scan.is_reversed { 0 } else { padding };
        let total = self.rows(own, dim, (last, last + 1))?;
        let before = self.totals_before(scan, (operand, whole), total)?;
        self.binary(scan.monoid.opcode(), own, before)
    }

    /// What the tiles before this device's come to, in the shape of its tile.
    fn totals_before(
        &mut self,
        scan: &Scan,
        (operand, whole): (&TileValue, &ArrayShape),
        total: InstId,
    ) -> Result<InstId, PartitionError> {
        let dim = scan.dim;
        let atoms = operand.sharding.dims[dim].clone();
        let mut totals = ArrayShape { layout: None, ..whole.clone() }.with_row_major();
        totals.dims[dim] = self.mesh.n_places(&atoms);
        let one_each = TileValue { inst: total, whole: Shape::Array(totals), ..operand.clone() };
        let mut together = operand.sharding.clone();
        together.dims[dim].clear();
        let all = self.reshard(&one_each, &together)?.inst;
        let shape = self.array(all)?;
        let place = self.looked_up(&self.mesh.places(&atoms))?;
        let place = self.repeated(place, &[shape.dims[dim]])?;
        let position = self.indices(shape.dims[dim]);
        let direction = if scan.is_reversed { Comparison::Gt } else { Comparison::Lt };
        let is_before = self.compare(position, place, direction)?;
        let is_before = self.along(is_before, &shape.dims, dim)?;
        let all = self.or_identity(is_before, all, scan.monoid)?;
        let identity = self.identity(scan.monoid, shape.dtype)?;
        let mut rest = shape.clone();
        rest.dims.remove(dim);
        let rest = ArrayShape { layout: None, ..rest }.with_row_major();
        let attrs = ReduceAttrs { dimensions: Dims::from_slice(&[dim as i64]), to_apply: Some(scan.reducer) };
        let sum = self.add("before", Opcode::Reduce, rest, &[all, identity], attrs);
        let tile = self.array(operand.inst)?;
        let kept = (0..tile.rank()).filter(|&k| k != dim).map(|k| k as i64).collect();
        let tile = ArrayShape { layout: None, ..tile }.with_row_major();
        Ok(self.add("broadcast", Opcode::Broadcast, tile, &[sum], DimsAttrs { dimensions: kept }))
    }
}
