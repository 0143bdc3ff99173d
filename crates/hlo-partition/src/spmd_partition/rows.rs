//! Writing arrays that are put together from rows of one array ([`super::shifts`]), and fetching rows of other devices' tiles.

use super::halo::HaloPiece;
use super::lowering::{Leaves, Lowering, TileValue};
use super::shifts::{Interval, MAX_INTERVALS, Origin, Shift, find_shift};
use crate::error::PartitionError;
use crate::sharding::Atom;
use hlo_ir::InstId;
use hlo_ir::attrs::Comparison;
use std::collections::BTreeSet;

impl Lowering<'_> {
    /// A shift along a cut dim; `None` for other instructions, and where the parts are put together like any others.
    pub(super) fn lower_shift(&mut self, inst: InstId) -> Result<Option<Leaves>, PartitionError> {
        let Some(shift) = find_shift(self.module, inst) else { return Ok(None) };
        let source = self.leaf(shift.source)?;
        let atoms: Vec<Atom> = source.sharding.dims.get(shift.dim).map(|atoms| atoms.to_vec()).unwrap_or_default();
        let n_shards = self.mesh.n_places(&atoms);
        let is_as_wanted = self.wanted(inst, 0)?.is_none_or(|wanted| wanted == source.sharding);
        let fits = source.sharding.partial.is_empty() && n_shards > 1 && shift.n_rows % n_shards == 0 && is_as_wanted;
        let intervals = fits.then(|| shift.intervals(n_shards)).flatten().filter(|intervals| {
            let pieces = intervals.iter().flat_map(Interval::pieces);
            pieces.map(|piece| piece.rounds().len()).sum::<usize>() <= MAX_INTERVALS
        });
        let Some(intervals) = intervals else {
            self.lower_postponed(&shift)?;
            return Ok(None);
        };
        let mut rows = Vec::with_capacity(intervals.len());
        for interval in &intervals {
            rows.push(self.write_interval(&source, (shift.dim, &atoms), interval)?);
        }
        let joined = self.joined(&rows, shift.dim)?;
        if rows.len() > 1 {
            self.keep_name(joined, inst);
        }
        let whole = self.module.shape(inst).clone();
        Ok(Some(Leaves::from_iter([TileValue { inst: joined, whole, ..source }])))
    }

    /// The slices of a shift that is put together like any other array.
    fn lower_postponed(&mut self, shift: &Shift) -> Result<(), PartitionError> {
        let source = self.body.source;
        for &slice in &shift.slices {
            if !self.body.values.contains_key(&slice) {
                self.body.source = Some(slice);
                let leaves = self.lower_op(slice)?;
                self.body.values.insert(slice, leaves);
            }
        }
        self.body.source = source;
        Ok(())
    }

    /// Rows of the result on every device.
    fn write_interval(
        &mut self,
        source: &TileValue,
        (dim, atoms): (usize, &[Atom]),
        interval: &Interval,
    ) -> Result<InstId, PartitionError> {
        let places = self.mesh.places(atoms);
        let at = |place: i64| usize::try_from(place).ok().and_then(|place| interval.of_shard.get(place));
        let mut found: Option<InstId> = None;
        for piece in interval.pieces() {
            let rows = self.fetched(source.inst, dim, atoms, &piece)?;
            let is_its = |place: i64| matches!(at(place), Some(Origin::Tile(_, low)) if *low == piece.low);
            found = Some(self.where_device(&places, is_its, (rows, found))?);
        }
        let fills: BTreeSet<InstId> = interval
            .of_shard
            .iter()
            .filter_map(|origin| match *origin {
                Origin::Fill(scalar) => Some(scalar),
                Origin::Tile(..) => None,
            })
            .collect();
        for scalar in fills {
            let fill = self.leaf(scalar)?.inst;
            let mut dims = self.array(source.inst)?.dims;
            dims.get_mut(dim).into_iter().for_each(|rows| *rows = interval.n_rows);
            let filled = self.repeated(fill, &dims)?;
            let is_its = |place: i64| at(place) == Some(&Origin::Fill(scalar));
            found = Some(self.where_device(&places, is_its, (filled, found))?);
        }
        found.ok_or_else(|| self.defect("rows from nowhere".into()))
    }

    /// The rows of a piece on every device: its own tile's, or those that it is sent.
    pub(super) fn fetched(
        &mut self,
        value: InstId,
        dim: usize,
        atoms: &[Atom],
        piece: &HaloPiece,
    ) -> Result<InstId, PartitionError> {
        let places = self.mesh.places(atoms);
        let own = self.rows(value, dim, (piece.low, piece.high))?;
        let keeps_own = piece.tile_of_shard.iter().zip(0..).any(|(&tile, shard)| tile == Some(shard));
        let mut found = keeps_own.then_some(own);
        for round in piece.rounds() {
            let pairs = self.device_pairs(atoms, &round);
            let key = (value, dim, (piece.low, piece.high), pairs);
            let sent = match self.body.sent.get(&key) {
                Some(&sent) => sent,
                None => {
                    let sent = self.permuted(own, key.3.clone())?;
                    self.explain(sent, || format!("rows {}..{} of a tile along dim {dim}", piece.low, piece.high));
                    self.body.sent.insert(key, sent);
                    sent
                }
            };
            let is_target = |place: i64| round.iter().any(|&(_, to)| to == place);
            found = Some(self.where_device(&places, is_target, (sent, found))?);
        }
        Ok(found.unwrap_or(own))
    }

    /// One value on the devices at some places, and elsewhere another one, if there is one.
    fn where_device(
        &mut self,
        places: &[i64],
        is_there: impl Fn(i64) -> bool,
        (value, otherwise): (InstId, Option<InstId>),
    ) -> Result<InstId, PartitionError> {
        let Some(otherwise) = otherwise else { return Ok(value) };
        let table: Vec<i64> = places.iter().map(|&place| i64::from(is_there(place))).collect();
        let found = self.looked_up(&table)?;
        let zero = self.number(0);
        let is_it = self.compare(found, zero, Comparison::Ne)?;
        self.select(is_it, value, otherwise)
    }
}
