//! What the local form of an op asks for before and after it: rows of neighbours, masks, indices that count from the tile.

use super::cut::FactorCut;
use super::halo::HaloRows;
use super::lowering::Lowering;
use crate::error::PartitionError;
use crate::sharding::Atom;
use hlo_ir::attrs::Comparison;
use hlo_ir::factors::FactorId;
use hlo_ir::localize::{OperandAdjust, OutsideValue, ResultAdjust};
use hlo_ir::monoid::Monoid;
use hlo_ir::{ArrayShape, ConstantValue, DType, InstId, Literal, Opcode, Scalar};

/// The local op in the making.
pub(super) struct LocalOp<'a> {
    pub cut: &'a FactorCut,
    /// Shapes of the whole operands.
    pub wholes: &'a [ArrayShape],
    /// What each operand is on this device so far.
    pub operands: Vec<InstId>,
}

impl LocalOp<'_> {
    fn atoms(&self, factor: FactorId) -> &[Atom] {
        self.cut.lists.get(factor).map_or(&[], |atoms| atoms.as_slice())
    }
}

impl Lowering<'_> {
    /// Does to an operand what is to be done before the local op.
    pub(super) fn adjust_operand(
        &mut self,
        op: &mut LocalOp<'_>,
        adjust: &OperandAdjust,
    ) -> Result<(), PartitionError> {
        let (operand, new) = match adjust {
            OperandAdjust::Halo { operand, dim, factor, starts, size, fill } => {
                let n_rows = op.wholes.get(*operand).and_then(|a| a.dims.get(*dim)).copied().unwrap_or(0);
                let rows = HaloRows { n_rows, starts, size: *size };
                (*operand, self.halo(op, (*operand, *dim), *factor, rows, *fill)?)
            }
            OperandAdjust::Mask { operand, dim, factor, minor, tile, size, monoid } => {
                let value = op.operands[*operand];
                let shape = self.array(value)?;
                let n_rows = shape.dims.get(*dim).copied().unwrap_or(1);
                let mut position = self.indices(n_rows);
                if *minor > 1 {
                    let by = self.numbers(*minor, &[n_rows])?;
                    position = self.binary(Opcode::Divide, position, by)?;
                }
                if n_rows > tile * minor {
                    let by = self.numbers(*tile, &[n_rows])?;
                    position = self.binary(Opcode::Remainder, position, by)?;
                }
                let starts: Vec<i64> = self.mesh.places(op.atoms(*factor)).iter().map(|place| place * tile).collect();
                let start = self.looked_up(&starts)?;
                let start = self.repeated(start, &[n_rows])?;
                position = self.binary(Opcode::Add, position, start)?;
                let end = self.numbers(*size, &[n_rows])?;
                let is_there = self.compare(position, end, Comparison::Lt)?;
                let is_there = self.along(is_there, &shape.dims, *dim)?;
                (*operand, self.or_identity(is_there, value, *monoid)?)
            }
            OperandAdjust::EnterOnce { operand, monoid, .. } if self.is_identity(op.operands[*operand], *monoid) => {
                return Ok(());
            }
            OperandAdjust::EnterOnce { operand, factors, monoid } => {
                let atoms: Vec<Atom> = factors.iter().flat_map(|&factor| op.atoms(factor).iter().copied()).collect();
                let places = self.mesh.places(&atoms);
                let place = self.looked_up(&places)?;
                let zero = self.number(0);
                let is_first = self.compare(place, zero, Comparison::Eq)?;
                (*operand, self.or_identity(is_first, op.operands[*operand], *monoid)?)
            }
            OperandAdjust::Margin { operand, dim, margin } => {
                (*operand, self.padded(op.operands[*operand], *dim, (*margin, *margin))?)
            }
            OperandAdjust::ShiftIndex { operand, component, factor, max, tile, add } => {
                let shift: Vec<i64> =
                    self.mesh.places(op.atoms(*factor)).iter().map(|place| place * tile - add).collect();
                (*operand, self.shifted_index(op.operands[*operand], *component, *max, &shift)?)
            }
        };
        op.operands[operand] = new;
        Ok(())
    }

    /// Whether a value is the identity as a constant, so that it may enter several times.
    pub(super) fn is_identity(&self, value: InstId, monoid: Monoid) -> bool {
        let node = self.module.inst(value);
        let (Some(ConstantValue::Array(literal)), Some(shape)) =
            (node.attrs.as_constant(), self.module.shape(value).as_array())
        else {
            return false;
        };
        let identity = monoid.identity(shape.dtype).map(|scalar| Literal::scalar(shape.dtype, scalar));
        shape.rank() == 0 && identity.is_some_and(|identity| identity == *literal)
    }

    /// The value where `pred` holds, and elsewhere the identity.
    pub(super) fn or_identity(
        &mut self,
        pred: InstId,
        value: InstId,
        monoid: Monoid,
    ) -> Result<InstId, PartitionError> {
        let shape = self.array(value)?;
        let identity = self.identity(monoid, shape.dtype)?;
        let identity = self.repeated(identity, &shape.dims)?;
        self.select(pred, value, identity)
    }

    /// An index, or one component of vectors of indices, clamped and then counted from this device's tile.
    fn shifted_index(
        &mut self,
        index: InstId,
        component: Option<(usize, usize)>,
        max: Option<i64>,
        shift: &[i64],
    ) -> Result<InstId, PartitionError> {
        let shape = self.array(index)?;
        let wide = match shape.dtype {
            DType::S64 | DType::U64 | DType::U32 => DType::S64,
            _ => DType::S32,
        };
        let dims = shape.dims.clone();
        let mut index = index;
        if let (DType::U64, Some(max)) = (shape.dtype, max) {
            // What is beyond the signed type is beyond the array.
            let high = self.scalar("number", DType::U64, Scalar::Uint(max.max(0) as u64));
            let high = self.repeated(high, &dims)?;
            let low = self.binary(Opcode::Minimum, index, high)?;
            index = self.only_at(component, &dims, low, index)?;
        }
        let index = self.converted(index, wide)?;
        let typed = |this: &mut Self, number: InstId| -> Result<InstId, PartitionError> {
            let number = this.converted(number, wide)?;
            this.repeated(number, &dims)
        };
        let mut moved = index;
        if let Some(max) = max {
            let (low, high) = (self.number(0), self.number(max));
            let (low, high) = (typed(self, low)?, typed(self, high)?);
            moved = self.binary(Opcode::Maximum, moved, low)?;
            moved = self.binary(Opcode::Minimum, moved, high)?;
        }
        let shift = self.looked_up(shift)?;
        let shift = typed(self, shift)?;
        moved = self.binary(Opcode::Subtract, moved, shift)?;
        self.only_at(component, &dims, moved, index)
    }

    /// One component of vectors of indices from `new`, the others from `old`; all from `new` if there is no component.
    fn only_at(
        &mut self,
        component: Option<(usize, usize)>,
        dims: &[i64],
        new: InstId,
        old: InstId,
    ) -> Result<InstId, PartitionError> {
        match component {
            Some((dim, place)) if dims.get(dim).is_some_and(|&n| n > 1) => {
                let at = self.indices(dims[dim]);
                let place = self.numbers(place as i64, &[dims[dim]])?;
                let is_it = self.compare(at, place, Comparison::Eq)?;
                let is_it = self.along(is_it, dims, dim)?;
                self.select(is_it, new, old)
            }
            Some(_) | None => Ok(new),
        }
    }

    /// The rows of an operand that this device's part of the op reads.
    fn halo(
        &mut self,
        op: &LocalOp<'_>,
        (operand, dim): (usize, usize),
        factor: FactorId,
        rows: HaloRows<'_>,
        fill: OutsideValue,
    ) -> Result<InstId, PartitionError> {
        let (plan, value) = (rows.plan(), op.operands[operand]);
        let atoms: Vec<Atom> = op.atoms(factor).to_vec();
        let places = self.mesh.places(&atoms);
        let mut windows = Vec::new();
        for piece in &plan.pieces {
            windows.push(self.fetched(value, dim, &atoms, piece)?);
        }
        if windows.is_empty() {
            // No shard reads a row of the array.
            let nothing = self.rows(value, dim, (0, 0))?;
            windows.push(nothing);
        }
        let offsets: Vec<i64> =
            places.iter().map(|&s| plan.offset_of_shard.get(s as usize).copied().unwrap_or(0)).collect();
        let n_joined = plan.joined_rows();
        let n_needed = offsets.iter().map(|offset| offset + rows.size).max().unwrap_or(rows.size);
        let joined = self.joined(&windows, dim)?;
        let joined = self.padded(joined, dim, (plan.front, (n_needed - plan.front - n_joined).max(0)))?;
        let is_whole = offsets.iter().all(|&offset| offset == 0) && (plan.front + n_joined).max(n_needed) == rows.size;
        let taken = match is_whole {
            true => joined,
            false => {
                let offset = self.looked_up(&offsets)?;
                self.rows_at(joined, dim, offset, rows.size)?
            }
        };
        if !plan.has_outside {
            return Ok(taken);
        }
        let fill = match fill {
            OutsideValue::Any => return Ok(taken),
            OutsideValue::Identity(monoid) => {
                let dtype = self.array(taken)?.dtype;
                self.identity(monoid, dtype)?
            }
            OutsideValue::Operand(k) => op.operands[k],
        };
        if self.is_identity(fill, Monoid::Add) && plan.leaves_zeros_outside(&rows) {
            // The zero of sums, as permutes leave it: there is nothing to mask.
            return Ok(taken);
        }
        let dims = self.array(taken)?.dims;
        let starts: Vec<i64> = places.iter().map(|&s| rows.starts.get(s as usize).copied().unwrap_or(0)).collect();
        let position = self.positions(rows.size, &starts)?;
        let (zero, end) = (self.numbers(0, &[rows.size])?, self.numbers(rows.n_rows, &[rows.size])?);
        let begins_before = starts.iter().any(|&start| start < 0);
        let ends_after = starts.iter().any(|&start| start + rows.size > rows.n_rows);
        let is_inside = match (begins_before, ends_after) {
            (true, true) => {
                let is_after = self.compare(position, zero, Comparison::Ge)?;
                let is_before = self.compare(position, end, Comparison::Lt)?;
                self.binary(Opcode::And, is_after, is_before)?
            }
            (true, false) => self.compare(position, zero, Comparison::Ge)?,
            (false, _) => self.compare(position, end, Comparison::Lt)?,
        };
        let (is_inside, fill) = (self.along(is_inside, &dims, dim)?, self.repeated(fill, &dims)?);
        self.select(is_inside, taken, fill)
    }

    /// Pairs of devices for pairs of places along some atoms, at every place along the others.
    pub(super) fn device_pairs(&self, atoms: &[Atom], pairs: &[(i64, i64)]) -> Vec<(i64, i64)> {
        let mut out = Vec::new();
        for group in self.mesh.groups(atoms) {
            for &(from, to) in pairs {
                if let (Some(&from), Some(&to)) = (group.get(from as usize), group.get(to as usize)) {
                    out.push((from, to));
                }
            }
        }
        out.sort();
        out
    }

    /// Does to a result what is to be done after the local op; what is combined over devices stays partial.
    pub(super) fn adjust_result(
        &mut self,
        op: &LocalOp<'_>,
        results: &mut [InstId],
        adjust: &ResultAdjust,
    ) -> Result<(), PartitionError> {
        match adjust {
            ResultAdjust::AddOffset { leaf, factor, step } => {
                let offsets: Vec<i64> = self.mesh.places(op.atoms(*factor)).iter().map(|place| place * step).collect();
                let shape = self.array(results[*leaf])?;
                let offset = self.looked_up(&offsets)?;
                let offset = self.repeated(offset, &shape.dims)?;
                results[*leaf] = self.binary(Opcode::Add, results[*leaf], offset)?;
            }
            ResultAdjust::MaskMisses { leaf, operand, component, tile, batch } => {
                let shape = self.array(results[*leaf])?;
                let hit = self.hits(op.operands[*operand], *component, *tile)?;
                let hit = self.spread(hit, &shape.dims, *component, batch)?;
                let monoid = if shape.dtype == DType::Pred { Monoid::Or } else { Monoid::Add };
                results[*leaf] = self.or_identity(hit, results[*leaf], monoid)?;
            }
            ResultAdjust::PickPieces { leaf, dim, factor, tile, ends } => {
                results[*leaf] = self.picked(results[*leaf], *dim, (op.atoms(*factor), *tile), ends)?;
            }
            ResultAdjust::Crop { leaf, dim, factor, starts, size } => {
                let places = self.mesh.places(op.atoms(*factor));
                let table: Vec<i64> =
                    places.iter().map(|&place| starts.get(place as usize).copied().unwrap_or(0)).collect();
                let first = table.first().copied().unwrap_or(0);
                results[*leaf] = match table.iter().all(|&start| start == first) {
                    true => self.rows(results[*leaf], *dim, (first, first + size))?,
                    false => {
                        let start = self.looked_up(&table)?;
                        self.rows_at(results[*leaf], *dim, start, *size)?
                    }
                };
            }
            ResultAdjust::Combine { .. } => {}
        }
        Ok(())
    }

    /// Whether the indices, or one component of them, lie in the tile.
    fn hits(
        &mut self,
        indices: InstId,
        component: Option<(usize, usize)>,
        tile: i64,
    ) -> Result<InstId, PartitionError> {
        let mut index = indices;
        if let Some((dim, place)) = component {
            index = self.rows(index, dim, (place as i64, place as i64 + 1))?;
        }
        let shape = self.array(index)?;
        let (low, high) = (self.number(0), self.number(tile));
        let (low, high) = (self.converted(low, shape.dtype)?, self.converted(high, shape.dtype)?);
        let (low, high) = (self.repeated(low, &shape.dims)?, self.repeated(high, &shape.dims)?);
        let (is_after, is_before) =
            (self.compare(index, low, Comparison::Ge)?, self.compare(index, high, Comparison::Lt)?);
        self.binary(Opcode::And, is_after, is_before)
    }

    /// Repeats what holds for each index over the result that the indices give.
    fn spread(
        &mut self,
        hit: InstId,
        dims: &[i64],
        component: Option<(usize, usize)>,
        batch: &[(usize, usize)],
    ) -> Result<InstId, PartitionError> {
        let shape = self.array(hit)?;
        let kept: Vec<i64> = shape
            .dims
            .iter()
            .enumerate()
            .filter(|&(dim, _)| component.is_none_or(|(vector, _)| vector != dim))
            .map(|(_, &size)| size)
            .collect();
        let hit = self.reshaped(hit, &kept)?;
        let mut pairs = batch.to_vec();
        pairs.sort();
        let dimensions = pairs.iter().map(|&(_, result_dim)| result_dim as i64).collect();
        let shape = ArrayShape::new(DType::Pred, dims.iter().copied()).with_row_major();
        if kept.is_empty() {
            return self.repeated(hit, dims);
        }
        Ok(self.add("broadcast", Opcode::Broadcast, shape, &[hit], hlo_ir::attrs::DimsAttrs { dimensions }))
    }

    /// The rows of a tile, each from the piece that holds its position.
    fn picked(
        &mut self,
        pieces: InstId,
        dim: usize,
        (atoms, tile): (&[Atom], i64),
        ends: &[i64],
    ) -> Result<InstId, PartitionError> {
        let starts: Vec<i64> = self.mesh.places(atoms).iter().map(|place| place * tile).collect();
        let mut out = None;
        for (k, &end) in ends.iter().enumerate().rev() {
            let piece = self.rows(pieces, dim, (k as i64 * tile, (k as i64 + 1) * tile))?;
            out = Some(match out {
                None => piece,
                Some(later) => {
                    let dims = self.array(piece)?.dims;
                    let position = self.positions(tile, &starts)?;
                    let end = self.numbers(end, &[tile])?;
                    let is_here = self.compare(position, end, Comparison::Lt)?;
                    let is_here = self.along(is_here, &dims, dim)?;
                    self.select(is_here, piece, later)?
                }
            });
        }
        Ok(out.unwrap_or(pieces))
    }
}
