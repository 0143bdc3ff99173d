//! Local forms along dims that an index addresses: indices count from the shard's tile, and what they miss is masked.

use super::*;

impl Localizer<'_> {
    /// The index along `dim`, where the start indices are the operands from `first` on: scalars, or one vector.
    fn start_index(&self, first: usize, dim: usize) -> (usize, Option<(usize, usize)>) {
        match self.whole.get(first..) {
            Some([only]) if only.rank() == 1 => (first, Some((0, dim))),
            Some(_) | None => (first + dim, None),
        }
    }

    /// One row of a cut dim is read by the shard that holds it; on the others the result is zero.
    pub(super) fn dynamic_slice(&mut self) {
        for dim in 0..self.whole.first().map_or(0, |a| a.rank()) {
            let Some(one) = self.cut_operand(0, dim) else { continue };
            if let FactorRole::Reduce(_) = one.role {
                let (operand, component) = self.start_index(1, dim);
                self.read_row(one, operand, component, Vec::new());
            }
        }
    }

    /// The index of a single row of a cut dim, and the mask of what it misses.
    fn read_row(
        &mut self,
        one: FactorUse,
        operand: usize,
        component: Option<(usize, usize)>,
        batch: Vec<(usize, usize)>,
    ) {
        let (factor, tile) = (one.factor, self.tile(one.factor, one.size));
        let max = Some(one.size - 1);
        self.before.push(OperandAdjust::ShiftIndex { operand, component, factor, max, tile, add: 0 });
        self.after.push(ResultAdjust::MaskMisses { leaf: 0, operand, component, tile, batch });
    }

    /// A tile is widened by the update's rows on both sides, so that any update that reaches into it fits. What is written
    /// beside the tile is dropped.
    pub(super) fn dynamic_update_slice(&mut self) {
        for dim in 0..self.whole.first().map_or(0, |a| a.rank()) {
            let Some(one) = self.cut_operand(0, dim) else { continue };
            let margin = self.operands.get(1).and_then(|a| a.dims.get(dim)).copied().unwrap_or(0);
            if self.cut_operand(1, dim).is_some() {
                continue;
            }
            let (factor, tile) = (one.factor, self.tile(one.factor, one.size));
            let (operand, component) = self.start_index(2, dim);
            let max = Some(one.size - margin);
            self.before.push(OperandAdjust::Margin { operand: 0, dim, margin });
            self.before.push(OperandAdjust::ShiftIndex { operand, component, factor, max, tile, add: margin });
            let starts = vec![margin; self.n_shards[factor] as usize];
            self.after.push(ResultAdjust::Crop { leaf: 0, dim, factor, starts, size: tile });
            let arrays = self.operands.iter_mut().take(1).chain(self.results.iter_mut().take(1));
            arrays.filter_map(|a| a.dims.get_mut(dim)).for_each(|size| *size = tile + 2 * margin);
        }
    }

    pub(super) fn gather(&mut self) {
        let Attrs::Gather(attrs) = &self.instruction.attrs else { return };
        let vector = attrs.index_vector_dim as usize;
        let rank = |shape: Option<&&ArrayShape>| shape.map_or(0, |a| a.rank());
        let index_dims = (0..rank(self.whole.get(1))).filter(|&dim| dim != vector);
        let result_rank = self.results.first().map_or(0, ArrayShape::rank);
        let result_dims = (0..result_rank).filter(|&dim| !attrs.offset_dims.contains(&(dim as i64)));
        let batch: Vec<(usize, usize)> = index_dims.zip(result_dims).collect();
        for (place, &dim) in attrs.start_index_map.iter().enumerate() {
            let Some(one) = self.cut_operand(0, dim as usize) else { continue };
            if let FactorRole::Reduce(_) = one.role {
                self.read_row(one, 1, self.component(1, vector, place), batch.clone());
            }
        }
    }

    /// The place of an index: vectors stand along a dim of the indices, or each is a scalar.
    fn component(&self, indices: usize, vector: usize, place: usize) -> Option<(usize, usize)> {
        self.whole.get(indices).filter(|a| vector < a.rank()).map(|_| (vector, place))
    }

    /// Indices beside the tile are out of its bounds, and such updates are dropped. Along an index batch dim the operands
    /// count once, and padding of the updates changes nothing.
    pub(super) fn scatter(&mut self) {
        let Attrs::Scatter(attrs) = &self.instruction.attrs else { return };
        let n = self.operands.len() / 2;
        for (place, &dim) in attrs.scatter_dims_to_operand_dims.iter().enumerate() {
            let Some(one) = self.cut_operand(0, dim as usize) else { continue };
            let (factor, tile) = (one.factor, self.tile(one.factor, one.size));
            let mut updates = self.set.operands.get(n + 1).into_iter().flatten().flatten();
            if updates.any(|update| update.factor == factor) {
                // A dim written whole: an index other than 0 is out of the bounds of every tile.
                continue;
            }
            let component = self.component(n, attrs.index_vector_dim as usize, place);
            self.before.push(OperandAdjust::ShiftIndex { operand: n, component, factor, max: None, tile, add: 0 });
        }
        self.mask(n + 1..2 * n + 1);
        self.enter_once(0..n, n + 1);
    }
}
