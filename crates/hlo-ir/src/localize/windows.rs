//! Local forms along dims that shift: which rows of its operands a shard's rows need, and what padding remains.
//!
//! Notation, for one dim: result row `o` reads the positions `o * stride - low .. + extent` of the operand, whose rows lie
//! `dilation` positions apart. A shard's rows are `tile` consecutive ones, so its positions begin `tile * stride` after
//! those of the shard before. That is a whole number of rows, or else shards begin at different phases.

use super::*;
use crate::attrs::{PadDim, SliceDim, WindowDim};
use crate::factors::find_selected;

/// What a cut changes in one dim of an op's window, padding or slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moved {
    /// Positions before the first row that a shard takes.
    pub low: i64,
    /// Positions after the last one.
    pub high: i64,
    /// Positions in all.
    pub extent: i64,
    /// RowRange of the window, if the window is what is cut.
    pub window: Option<i64>,
}

/// The positions that a shard reads: those of shard 0, and how far those of the next one are from them.
#[derive(Clone, Copy)]
struct Positions {
    start: i64,
    step: i64,
    extent: i64,
    dilation: i64,
}

/// The rows that lie at the positions.
struct RowRange {
    first: i64,
    step: i64,
    size: i64,
    moved: Moved,
}

impl Positions {
    /// `None` if shards begin at different phases of the dilation, or read no row.
    fn rows(self) -> Option<RowRange> {
        let Positions { start, step, extent, dilation } = self;
        if dilation < 1 || extent < 1 || step % dilation != 0 {
            return None;
        }
        let first = start.div_euclid(dilation) + i64::from(start.rem_euclid(dilation) != 0);
        let last = (start + extent - 1).div_euclid(dilation);
        let moved =
            Moved { low: first * dilation - start, high: start + extent - 1 - last * dilation, extent, window: None };
        (last >= first).then(|| RowRange { first, step: step / dilation, size: last - first + 1, moved })
    }
}

/// The positions read by the windows of a tile of results.
fn windows_of(window: &WindowDim, tile: i64) -> Positions {
    Positions {
        start: -window.pad_low,
        step: tile * window.stride,
        extent: (tile - 1) * window.stride + window.dilated_size(),
        dilation: window.base_dilation,
    }
}

impl Localizer<'_> {
    /// The operand takes these rows of its dim.
    fn halo(&mut self, (operand, dim): (usize, usize), factor: FactorId, rows: &RowRange, fill: OutsideValue) {
        let RowRange { first, step, size, .. } = *rows;
        if let Some(local) = self.operands.get_mut(operand).and_then(|a| a.dims.get_mut(dim)) {
            *local = size;
        }
        self.before.push(OperandAdjust::Halo { operand, dim, factor, first, step, size, fill });
    }

    fn set_moved(&mut self, place: usize, moved: Moved) {
        self.moved.resize(self.moved.len().max(place + 1), None);
        self.moved[place] = Some(moved);
    }

    /// Operand 0's rows along each dim that shifts, where `positions(dim, tile)` are those that a tile reads.
    fn shifted_dims(
        &mut self,
        fill: OutsideValue,
        positions: impl Fn(usize, i64) -> Option<Positions>,
    ) -> Result<(), CannotCut> {
        for dim in 0..self.whole.first().map_or(0, |a| a.rank()) {
            let Some(one) = self.cut_operand(0, dim).filter(|one| one.role == FactorRole::Shift) else { continue };
            let tile = self.tile(one.factor, self.set.factors[one.factor].size);
            let misaligned = CannotCut::Misaligned { factor: one.factor };
            let rows = positions(dim, tile).and_then(Positions::rows).ok_or(misaligned)?;
            self.halo((0, dim), one.factor, &rows, fill);
            self.set_moved(dim, rows.moved);
        }
        Ok(())
    }

    pub(super) fn slice(&mut self) -> Result<(), CannotCut> {
        let Attrs::Slice(attrs) = &self.instruction.attrs else { return Ok(()) };
        self.shifted_dims(OutsideValue::Any, |dim, tile| {
            let &SliceDim { start, stride, .. } = attrs.slice.get(dim)?;
            Some(Positions { start, step: tile * stride, extent: (tile - 1) * stride + 1, dilation: 1 })
        })
    }

    pub(super) fn pad(&mut self) -> Result<(), CannotCut> {
        let Attrs::Pad(attrs) = &self.instruction.attrs else { return Ok(()) };
        self.shifted_dims(OutsideValue::Operand(1), |dim, tile| {
            let &PadDim { low, interior, .. } = attrs.padding.get(dim)?;
            Some(Positions { start: -low, step: tile, extent: tile, dilation: interior + 1 })
        })
    }

    /// The first tile of the result is the last one of the operand, each reversed.
    pub(super) fn reverse(&mut self) {
        for dim in 0..self.whole.first().map_or(0, |a| a.rank()) {
            let Some(one) = self.cut_operand(0, dim).filter(|one| one.role == FactorRole::Shift) else { continue };
            let tile = self.tile(one.factor, one.size);
            let moved = Moved { low: 0, high: 0, extent: tile, window: None };
            let rows = RowRange { first: one.size - tile, step: -tile, size: tile, moved };
            self.halo((0, dim), one.factor, &rows, OutsideValue::Any);
        }
    }

    /// Every operand gives the rows that a tile of the result would have if it were the only operand. Each row of the result
    /// is picked from the operand that has it.
    pub(super) fn concatenate(&mut self) {
        for dim in 0..self.whole.first().map_or(0, |a| a.rank()) {
            let Some(one) = self.cut_operand(0, dim).filter(|one| one.role == FactorRole::Shift) else { continue };
            let (factor, n_operands) = (one.factor, self.operands.len());
            let tile = self.tile(factor, self.set.factors[factor].size);
            let moved = Moved { low: 0, high: 0, extent: tile, window: None };
            let (mut end, mut ends) = (0, Vec::new());
            for operand in 0..n_operands {
                let rows = RowRange { first: -end, step: tile, size: tile, moved };
                self.halo((operand, dim), factor, &rows, OutsideValue::Any);
                end += self.whole[operand].dims.get(dim).copied().unwrap_or(0);
                ends.push(end);
            }
            if let Some(local) = self.results.first_mut().and_then(|a| a.dims.get_mut(dim)) {
                *local = tile * n_operands as i64;
            }
            self.after.push(ResultAdjust::PickPieces { leaf: 0, dim, factor, tile, ends });
        }
    }

    pub(super) fn reduce_window(&mut self) -> Result<(), CannotCut> {
        let Attrs::ReduceWindow(attrs) = &self.instruction.attrs else { return Ok(()) };
        let n_inputs = self.operands.len() / 2;
        let monoids = attrs.to_apply.and_then(|comp| crate::monoid::find_monoids(self.module, comp, n_inputs));
        for (dim, window) in attrs.window.dims.iter().enumerate() {
            let Some(one) = self.cut_operand(0, dim).filter(|one| one.role == FactorRole::Shift) else { continue };
            let factor = one.factor;
            let tile = self.tile(factor, self.set.factors[factor].size);
            let misaligned = CannotCut::Misaligned { factor };
            let rows = windows_of(window, tile).rows().ok_or(misaligned)?;
            for operand in 0..n_inputs {
                let monoid = monoids.as_ref().and_then(|m| m.get(operand));
                self.halo(
                    (operand, dim),
                    factor,
                    &rows,
                    monoid.map_or(OutsideValue::Any, |&m| OutsideValue::Identity(m)),
                );
            }
            self.set_moved(dim, rows.moved);
        }
        Ok(())
    }

    /// A spatial dim is cut by windows or by rows of the kernel; features and batches as in a dot.
    pub(super) fn convolution(&mut self) -> Result<(), CannotCut> {
        let Attrs::Conv(attrs) = &self.instruction.attrs else { return Ok(()) };
        let spatial = attrs.dim_labels.input_spatial.iter().zip(&attrs.dim_labels.kernel_spatial);
        for (place, (window, (&from, &by))) in attrs.window.dims.iter().zip(spatial).enumerate() {
            let Some(one) = self.cut_operand(0, from as usize).filter(|one| one.role == FactorRole::Shift) else {
                continue;
            };
            let (factor, size) = (one.factor, self.set.factors[one.factor].size);
            let tile = self.tile(factor, size);
            let by_kernel = self.cut_operand(1, by as usize).is_some();
            if by_kernel && size % self.n_shards[factor] != 0 {
                // Padding of the kernel would meet elements of the input, which may be infinite.
                return Err(CannotCut::Uneven { factor });
            }
            let positions =
                if by_kernel { kernel_rows(window, tile, self.result_size(place)) } else { windows_of(window, tile) };
            let rows = positions.rows().ok_or(CannotCut::Misaligned { factor })?;
            self.halo((0, from as usize), factor, &rows, OutsideValue::Identity(Monoid::Add));
            self.set_moved(place, Moved { window: by_kernel.then_some(tile), ..rows.moved });
        }
        // Only features are masked: rows of a kernel that is cut divide.
        self.mask(0..2);
        Ok(())
    }

    /// Windows of a convolution along one spatial dim.
    fn result_size(&self, place: usize) -> i64 {
        let Attrs::Conv(attrs) = &self.instruction.attrs else { return 0 };
        let dim = attrs.dim_labels.output_spatial.get(place).map_or(usize::MAX, |&d| d as usize);
        self.results.first().and_then(|a| a.dims.get(dim)).copied().unwrap_or(0)
    }

    /// A tile of the result takes all windows that reach into it, with their rows and sources, and drops the rows around it.
    pub(super) fn select_and_scatter(&mut self) -> Result<(), CannotCut> {
        let Attrs::SelectAndScatter(attrs) = &self.instruction.attrs else { return Ok(()) };
        let selected = find_selected(self.module, attrs.select);
        let added = attrs.scatter.and_then(|comp| crate::monoid::find_monoid(self.module, comp));
        let fill = |monoid: Option<Monoid>| monoid.map_or(OutsideValue::Any, OutsideValue::Identity);
        for (dim, window) in attrs.window.dims.iter().enumerate() {
            let Some(one) = self.cut_operand(0, dim).filter(|one| one.role == FactorRole::Shift) else { continue };
            let (factor, tile) = (one.factor, self.tile(one.factor, one.size));
            let (extent, stride) = (window.dilated_size(), window.stride);
            if stride < 1 || tile % stride != 0 || extent < stride || window.base_dilation != 1 {
                return Err(CannotCut::Misaligned { factor });
            }
            let first = (window.pad_low - extent + 1).div_euclid(stride)
                + i64::from((window.pad_low - extent + 1).rem_euclid(stride) != 0);
            let n_windows = (tile - 1 + window.pad_low).div_euclid(stride) - first + 1;
            let start = first * stride - window.pad_low;
            let size = (n_windows - 1) * stride + extent;
            let moved = Moved { low: 0, high: 0, extent: size, window: None };
            let rows = RowRange { first: start, step: tile, size, moved };
            self.halo((0, dim), factor, &rows, fill(selected));
            let sources = RowRange { first, step: tile / stride, size: n_windows, moved };
            self.halo((1, dim), factor, &sources, fill(added));
            self.set_moved(dim, moved);
            if let Some(local) = self.results.first_mut().and_then(|a| a.dims.get_mut(dim)) {
                *local = size;
            }
            self.after.push(ResultAdjust::Crop { leaf: 0, dim, start: -start, size: tile });
        }
        Ok(())
    }
}

/// The positions that all windows read by `tile` rows of the kernel. A reversed kernel's first rows meet the last positions.
fn kernel_rows(window: &WindowDim, tile: i64, n_windows: i64) -> Positions {
    let (start, step) = if window.is_reversed {
        ((window.size - tile) * window.window_dilation - window.pad_low, -tile * window.window_dilation)
    } else {
        (-window.pad_low, tile * window.window_dilation)
    };
    let extent = (n_windows - 1) * window.stride + (tile - 1) * window.window_dilation + 1;
    Positions { start, step, extent, dilation: window.base_dilation }
}
