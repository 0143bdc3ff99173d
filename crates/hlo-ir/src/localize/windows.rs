//! Local forms along dims that shift: which rows of its operands a shard's rows need, and what padding remains.
//!
//! Notation, for one dim: result row `o` reads the positions `o * stride - low .. + extent` of the operand, whose rows lie
//! `dilation` positions apart. A shard's rows are `tile` consecutive ones, so its positions begin `tile * stride` after
//! those of the shard before. Where that is no whole number of rows, shards would begin at different phases. Then every shard
//! computes some rows more, from the last one on that has the phase of row 0, and drops what comes before its tile.

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

/// Which positions of an operand result rows read: row `o` those from `o * stride - low` on.
#[derive(Clone, Copy)]
struct Reach {
    low: i64,
    stride: i64,
    /// Positions that one row reads.
    extent: i64,
    /// Positions between two rows of the operand.
    dilation: i64,
}

/// The rows that lie at the positions that each shard reads.
struct RowRange {
    starts: Vec<i64>,
    size: i64,
    moved: Moved,
}

/// The result rows that each shard computes.
struct ComputedRows {
    /// The first one, by shard.
    starts: Vec<i64>,
    /// How many of them come before the shard's tile.
    before: Vec<i64>,
    size: i64,
}

impl ComputedRows {
    /// Tiles of `tile` rows, widened so that all begin at a multiple of `period`.
    fn at_multiples(period: i64, tile: i64, n_shards: i64) -> ComputedRows {
        let before: Vec<i64> = (0..n_shards).map(|s| s * tile % period.max(1)).collect();
        let size = tile + before.iter().copied().max().unwrap_or(0);
        ComputedRows { starts: before.iter().zip(0..).map(|(before, s)| s * tile - before).collect(), before, size }
    }

    /// Whether nothing but the tiles is computed.
    fn are_tiles(&self) -> bool {
        self.before.iter().all(|&n| n == 0)
    }
}

impl Reach {
    /// The rows that these result rows read; `None` if they read none.
    fn rows(self, computed: &ComputedRows) -> Option<RowRange> {
        let Reach { low, stride, extent, dilation } = self;
        let extent = (computed.size - 1) * stride + extent;
        if dilation < 1 || extent < 1 {
            return None;
        }
        let above = |position: i64| position.div_euclid(dilation) + i64::from(position.rem_euclid(dilation) != 0);
        let first = above(-low);
        let last = (extent - 1 - low).div_euclid(dilation);
        let moved =
            Moved { low: first * dilation + low, high: extent - 1 - low - last * dilation, extent, window: None };
        let starts = computed.starts.iter().map(|o| above(o * stride - low)).collect();
        (last >= first).then_some(RowRange { starts, size: last - first + 1, moved })
    }

    /// The number of result rows after which the same phase of the dilation comes again.
    fn period(self) -> i64 {
        self.dilation.max(1) / gcd(self.stride.abs(), self.dilation.max(1)).max(1)
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The positions read by windows.
fn windows_of(window: &WindowDim) -> Reach {
    Reach { low: window.pad_low, stride: window.stride, extent: window.dilated_size(), dilation: window.base_dilation }
}

impl Localizer<'_> {
    /// The operand takes these rows of its dim.
    fn halo(&mut self, (operand, dim): (usize, usize), factor: FactorId, rows: &RowRange, fill: OutsideValue) {
        if let Some(local) = self.operands.get_mut(operand).and_then(|a| a.dims.get_mut(dim)) {
            *local = rows.size;
        }
        let (starts, size) = (rows.starts.clone(), rows.size);
        self.before.push(OperandAdjust::Halo { operand, dim, factor, starts, size, fill });
    }

    /// All results have these rows along a dim, of which each shard keeps its tile.
    fn computed(&mut self, dim: usize, factor: FactorId, computed: &ComputedRows, tile: i64) {
        if computed.are_tiles() {
            return;
        }
        for leaf in 0..self.results.len() {
            if let Some(local) = self.results.get_mut(leaf).and_then(|a| a.dims.get_mut(dim)) {
                *local = computed.size;
            }
            let starts = computed.before.clone();
            self.after.push(ResultAdjust::Crop { leaf, dim, factor, starts, size: tile });
        }
    }

    fn set_moved(&mut self, place: usize, moved: Moved) {
        self.moved.resize(self.moved.len().max(place + 1), None);
        self.moved[place] = Some(moved);
    }

    /// Operand 0's rows along each dim that shifts, where `reach(dim)` says what a row of the result reads.
    fn shifted_dims(&mut self, fill: OutsideValue, reach: impl Fn(usize) -> Option<Reach>) -> Result<(), CannotCut> {
        for dim in 0..self.whole.first().map_or(0, |a| a.rank()) {
            let Some(one) = self.cut_operand(0, dim).filter(|one| one.role == FactorRole::Shift) else { continue };
            let tile = self.tile(one.factor, self.set.factors[one.factor].size);
            let misaligned = CannotCut::Misaligned { factor: one.factor };
            let reach = reach(dim).ok_or(misaligned)?;
            let computed = ComputedRows::at_multiples(reach.period(), tile, self.n_shards[one.factor]);
            let rows = reach.rows(&computed).ok_or(misaligned)?;
            self.halo((0, dim), one.factor, &rows, fill);
            self.set_moved(dim, rows.moved);
            self.computed(dim, one.factor, &computed, tile);
        }
        Ok(())
    }

    pub(super) fn slice(&mut self) -> Result<(), CannotCut> {
        let Attrs::Slice(attrs) = &self.instruction.attrs else { return Ok(()) };
        self.shifted_dims(OutsideValue::Any, |dim| {
            let &SliceDim { start, stride, .. } = attrs.slice.get(dim)?;
            Some(Reach { low: -start, stride, extent: 1, dilation: 1 })
        })
    }

    pub(super) fn pad(&mut self) -> Result<(), CannotCut> {
        let Attrs::Pad(attrs) = &self.instruction.attrs else { return Ok(()) };
        self.shifted_dims(OutsideValue::Operand(1), |dim| {
            let &PadDim { low, interior, .. } = attrs.padding.get(dim)?;
            Some(Reach { low, stride: 1, extent: 1, dilation: interior + 1 })
        })
    }

    /// The first tile of the result is the last one of the operand, each reversed.
    pub(super) fn reverse(&mut self) {
        for dim in 0..self.whole.first().map_or(0, |a| a.rank()) {
            let Some(one) = self.cut_operand(0, dim).filter(|one| one.role == FactorRole::Shift) else { continue };
            let tile = self.tile(one.factor, one.size);
            let moved = Moved { low: 0, high: 0, extent: tile, window: None };
            let starts = (1..=self.n_shards[one.factor]).map(|s| one.size - s * tile).collect();
            let rows = RowRange { starts, size: tile, moved };
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
                let starts = (0..self.n_shards[factor]).map(|s| s * tile - end).collect();
                let rows = RowRange { starts, size: tile, moved };
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
            let reach = windows_of(window);
            let computed = ComputedRows::at_multiples(reach.period(), tile, self.n_shards[factor]);
            let rows = reach.rows(&computed).ok_or(misaligned)?;
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
            self.computed(dim, factor, &computed, tile);
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
            let misaligned = CannotCut::Misaligned { factor };
            let n_shards = self.n_shards[factor];
            let computed = match by_kernel {
                false => ComputedRows::at_multiples(windows_of(window).period(), tile, n_shards),
                true => ComputedRows::at_multiples(1, tile, n_shards),
            };
            let rows = match by_kernel {
                false => windows_of(window).rows(&computed),
                true => kernel_rows(window, tile, self.result_size(place), n_shards),
            };
            let rows = rows.ok_or(misaligned)?;
            self.halo((0, from as usize), factor, &rows, OutsideValue::Identity(Monoid::Add));
            self.set_moved(place, Moved { window: by_kernel.then_some(tile), ..rows.moved });
            if !by_kernel {
                let to = attrs.dim_labels.output_spatial.get(place).map_or(usize::MAX, |&dim| dim as usize);
                self.computed(to, factor, &computed, tile);
            }
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
            if stride < 1 || extent < stride || window.base_dilation != 1 {
                return Err(CannotCut::Misaligned { factor });
            }
            let computed = ComputedRows::at_multiples(stride, tile, self.n_shards[factor]);
            let above = |a: i64, b: i64| a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0);
            let first = above(window.pad_low - extent + 1, stride);
            let n_windows = (computed.size - 1 + window.pad_low).div_euclid(stride) - first + 1;
            let start = first * stride - window.pad_low;
            let size = (n_windows - 1) * stride + extent;
            let moved = Moved { low: 0, high: 0, extent: size, window: None };
            let starts = computed.starts.iter().map(|row| row + start).collect();
            self.halo((0, dim), factor, &RowRange { starts, size, moved }, fill(selected));
            let starts = computed.starts.iter().map(|row| row / stride + first).collect();
            self.halo((1, dim), factor, &RowRange { starts, size: n_windows, moved }, fill(added));
            self.set_moved(dim, moved);
            if let Some(local) = self.results.first_mut().and_then(|a| a.dims.get_mut(dim)) {
                *local = size;
            }
            let starts = computed.before.iter().map(|before| before - start).collect();
            self.after.push(ResultAdjust::Crop { leaf: 0, dim, factor, starts, size: tile });
        }
        Ok(())
    }
}

/// The positions that all windows read by `tile` rows of the kernel. A reversed kernel's first rows meet the last positions.
/// `None` if shards would begin at different phases of the dilation.
fn kernel_rows(window: &WindowDim, tile: i64, n_windows: i64, n_shards: i64) -> Option<RowRange> {
    let (start, step) = match window.is_reversed {
        true => ((window.size - tile) * window.window_dilation - window.pad_low, -tile * window.window_dilation),
        false => (-window.pad_low, tile * window.window_dilation),
    };
    let extent = (n_windows - 1) * window.stride + (tile - 1) * window.window_dilation + 1;
    let reach = Reach { low: -start, stride: step, extent, dilation: window.base_dilation };
    let each = ComputedRows { starts: (0..n_shards).collect(), before: vec![0; n_shards as usize], size: 1 };
    let is_one_phase = reach.dilation > 0 && step % reach.dilation == 0;
    reach.rows(&each).filter(|_| is_one_phase)
}
