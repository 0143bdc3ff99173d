//! Update regions: the values round a gradient that have one sharding format.
//!
//! A region holds what meets a gradient in elementwise ops, transposes, reshapes, reductions of other dims, and on the way into and
//! out of loops, branches and calls. One format serves all of it: every value has as many units in each shard. Where something could not be
//! cut, multiples of the gradient's unit are tried with which reshapes merge fewer dims: 8-bit moments have a scale for each block of a
//! flat array, and are cut between blocks.

use crate::context::{ShardingContext, StateCuts};
use crate::error::GradientRefusal;
use crate::format::{CHEAP_PADDING, Rank, candidates, is_major_run};
use crate::tables::{IndexMap, IndexSet};
use hlo_analysis::values::{Origin, User, ValueId};
use hlo_ir::ArrayShape;
use hlo_spmd::{DimRun, EvenSplit, ShardFormat};
use hlo_spmd::{OperandCut, ResultCut};

/// Values of one format.
#[derive(Clone, Debug)]
pub struct UpdateRegion {
    /// How the run of the first gradient is cut.
    pub split: EvenSplit,
    /// The run of every value.
    pub runs: IndexMap<ValueId, DimRun>,
    /// The format of every value, in the order of `runs`.
    formats: Vec<Option<ShardFormat>>,
    /// Gradients, in order of discovery.
    pub gradients: Vec<ValueId>,
    /// Formats that were possible and why this one is better, for the report.
    pub rejected: Vec<(String, String)>,
}

impl UpdateRegion {
    /// The format of one of its values.
    pub fn format(&self, value: ValueId) -> Option<ShardFormat> {
        self.format_at(self.runs.get_index_of(&value)?)
    }

    /// The format of the value that stands there in `runs`.
    pub(crate) fn format_at(&self, place: usize) -> Option<ShardFormat> {
        *self.formats.get(place)?
    }
}

/// Whether an array is cut along one of its dims, into shards of one size without padding.
fn is_even((_, format): (&ArrayShape, ShardFormat)) -> bool {
    format.run.len == 1 && format.split.padding() == 0
}

/// Whether an array is large, and a format pads it by a small share.
pub(crate) fn is_padded_little(shape: &ArrayShape, format: &ShardFormat) -> bool {
    shape.size_bytes() >= LEAST_PADDED_BYTES && format.split.waste() <= CHEAP_PADDING
}

/// What gets a format with a gradient.
struct Grown {
    runs: IndexMap<ValueId, DimRun>,
    /// Multiples of the gradient's unit with which more could be cut.
    finer: IndexSet<i64>,
}

/// A format that was tried.
struct Tried {
    rank: Rank,
    format: ShardFormat,
    runs: IndexMap<ValueId, DimRun>,
    /// What is computed in shards with it.
    update: IndexSet<ValueId>,
}

/// State that is smaller than this is not padded: what it would save is not worth an array that is none.
const LEAST_PADDED_BYTES: u64 = 16 << 10;

/// Most multiples of a unit that are tried.
const MAX_UNITS: usize = 4;

impl ShardingContext<'_> {
    /// Everything that gets a format if `seed` is cut along `run`.
    fn grow(&mut self, seed: ValueId, run: DimRun) -> Grown {
        let mut runs: IndexMap<ValueId, DimRun> = [(seed, run)].into_iter().collect();
        let (mut finer, mut is_stopped) = (IndexSet::default(), false);
        let (module, values) = (self.module, self.values);
        let mut next = 0;
        let mut found: Vec<(ValueId, DimRun)> = Vec::new();
        while let Some((&value, &run)) = runs.get_index(next) {
            next += 1;
            for taken in &values.uses[value] {
                match taken.user {
                    User::Op { inst, operand } => {
                        let Some(relation) = self.relation(inst) else { continue };
                        let cut = relation.result_cut(operand as usize, run);
                        finer.extend(relation.finer_unit(true, run));
                        is_stopped |= cut == ResultCut::Impossible;
                        if let (ResultCut::Run(run), Some(result)) = (cut, values.of(inst)) {
                            found.push((result, run));
                        }
                    }
                    User::Becomes(into) => found.push((into, run)),
                    User::Exit(_) | User::Opaque(_) => {}
                }
            }
            if values.values[value].origin == Origin::Computed && !self.gradients.contains(&value) {
                let inst = values.inst(value);
                for (k, &operand) in module.inst(inst).operands.iter().enumerate() {
                    let cut = self.relation(inst).map(|r| r.operand_cut(k, run));
                    if let (Some(OperandCut::Run(run)), Some(operand)) = (cut, values.of(operand)) {
                        found.push((operand, run));
                    }
                }
            }
            found.extend(values.sources[value].iter().map(|&source| (source, run)));
            for (value, run) in found.drain(..) {
                if !runs.contains_key(&value) && !self.taken[value] && self.is_eligible(value) {
                    runs.insert(value, run);
                }
            }
        }
        // Smaller pieces help only where something could not be cut.
        if !is_stopped {
            finer.clear();
        }
        Grown { runs, finer }
    }

    /// The update in a region: gradients, and what is computed forward from them in shards, up to the state that a loop carries.
    /// What a loop begins as a constant it collects from gradients.
    pub fn update(&mut self, runs: &IndexMap<ValueId, DimRun>) -> IndexSet<ValueId> {
        let mut update: IndexSet<ValueId> = runs.keys().copied().filter(|v| self.gradients.contains(v)).collect();
        let mut next = 0;
        while let Some(&value) = update.get_index(next) {
            next += 1;
            for taken in &self.values.uses[value] {
                let result = match taken.user {
                    User::Op { inst, .. } => self.values.of(inst),
                    User::Becomes(into) => Some(into).filter(|&v| {
                        let begins_as_constant = || self.values.sources[v].iter().any(|&s| self.is_rebuilt(s));
                        self.values.values[v].origin != Origin::Carry || begins_as_constant()
                    }),
                    User::Exit(_) | User::Opaque(_) => None,
                };
                let Some(result) = result else { continue };
                if runs.contains_key(&result) && !update.contains(&result) && self.can_shard(runs, result) {
                    update.insert(result);
                }
            }
        }
        update
    }

    /// The region of a gradient in the best format, and the update in it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn region(&mut self, seed: ValueId) -> Result<(UpdateRegion, IndexSet<ValueId>), GradientRefusal> {
        if self.taken[seed] {
            return Err(GradientRefusal::HasFormat);
        }
        if !self.is_eligible(seed) {
            return Err(GradientRefusal::NotReplicated);
        }
        let Some(shape) = self.values.shape(self.module, seed).cloned() else { return Err(GradientRefusal::NoArray) };
        let (mut tried, mut padded): (Vec<Tried>, Vec<Tried>) = Default::default();
        let mut refusal = GradientRefusal::NoDims;
        let mut open = candidates(&shape);
        open.reverse();
        while let Some(run) = open.pop() {
            let Grown { runs, finer } = self.grow(seed, run);
            if run.unit == 1 {
                let size = run.size(&shape.dims);
                let units = finer.into_iter().filter(|unit| unit.saturating_mul(self.n_shards as i64) <= size);
                open.extend(units.take(MAX_UNITS).map(|unit| DimRun { unit, ..run }));
            }
            let format = self.format(&runs, &shape, run);
            let is_even = self.cuts == StateCuts::Any || self.entry_formats(&runs, &format).all(is_even);
            let is_allowed = is_even || (self.cuts == StateCuts::Padded && self.pads_little(&runs, &format));
            if !is_allowed {
                refusal = match self.cuts {
                    StateCuts::Any | StateCuts::Even => GradientRefusal::NoEvenDim,
                    StateCuts::Padded => GradientRefusal::NoCheapPadding,
                };
                continue;
            }
            let update = self.update(&runs);
            let rank = self.rank(&runs, &update, &format);
            let of_kind = if is_even { &mut tried } else { &mut padded };
            of_kind.push(Tried { rank, format, runs, update });
        }
        // Padded arrays are no ordinary ones, so that they have to be worth much.
        let most_bytes = |of: &[Tried]| of.iter().map(|one| one.rank.computed_bytes).max().unwrap_or(0);
        if tried.is_empty() || most_bytes(&tried).saturating_mul(2) < most_bytes(&padded) {
            tried = padded;
        }
        let best = tried.iter().enumerate().min_by(|(_, a), (_, b)| a.rank.total_cmp(&b.rank)).map(|(i, _)| i);
        let Some(Tried { rank, format, runs, update }) = best.map(|i| tried.remove(i)) else { return Err(refusal) };
        let rejected = tried.iter().map(|other| (other.format.to_string(), other.rank.worse_than(&rank))).collect();
        let gradients = runs.keys().copied().filter(|v| self.gradients.contains(v)).collect();
        runs.keys().for_each(|&v| self.taken[v] = true);
        let of_value =
            |(&v, &run): (&ValueId, &DimRun)| self.values.shape(self.module, v).map(|shape| format.of_run(shape, run));
        let formats = runs.iter().map(of_value).collect();
        Ok((UpdateRegion { split: format.split, runs, formats, gradients, rejected }, update))
    }

    /// The format of a gradient whose run this is: its shards have as many units as the largest value of the region needs.
    fn format(&self, runs: &IndexMap<ValueId, DimRun>, shape: &ArrayShape, run: DimRun) -> ShardFormat {
        let units = runs.iter().filter_map(|(&value, run)| {
            let size = run.size(&self.values.shape(self.module, value)?.dims);
            Some(EvenSplit::in_units(size, run.unit, self.n_shards).shard_size / run.unit.max(1))
        });
        let shard_size = units.max().unwrap_or(0).saturating_mul(run.unit);
        let format = ShardFormat::new(shape, run, self.n_shards);
        ShardFormat {
            split: EvenSplit { shard_size: shard_size.max(format.split.shard_size), ..format.split },
            ..format
        }
    }

    /// The shape and format of each parameter of the entry in a region.
    fn entry_formats<'s>(
        &'s self,
        runs: &'s IndexMap<ValueId, DimRun>,
        format: &'s ShardFormat,
    ) -> impl Iterator<Item = (&'s ArrayShape, ShardFormat)> {
        let params = runs.iter().filter(|(value, _)| self.values.values[**value].origin == Origin::EntryParam);
        params.filter_map(|(&value, &run)| {
            let shape = self.values.shape(self.module, value)?;
            Some((shape, format.of_run(shape, run)))
        })
    }

    /// Whether the parameters of the entry that are merged or padded are large, and padded by a small share.
    fn pads_little(&self, runs: &IndexMap<ValueId, DimRun>, format: &ShardFormat) -> bool {
        let mut uneven = self.entry_formats(runs, format).filter(|&found| !is_even(found));
        uneven.all(|(shape, own)| is_padded_little(shape, &own))
    }

    /// Whether the parameters of the entry in a region are cut into shards of one size, each along one dim.
    pub(crate) fn cuts_evenly(&self, region: &UpdateRegion) -> bool {
        let params = region.runs.keys().zip(&region.formats).filter(|(value, _)| {
            let origin = self.values.values[**value].origin;
            origin == Origin::EntryParam
        });
        let shape = |value: ValueId| self.values.shape(self.module, value);
        params.filter_map(|(&value, format)| Some((shape(value)?, (*format)?))).all(is_even)
    }

    /// How good a format is with which these values are computed in shards.
    fn rank(&self, runs: &IndexMap<ValueId, DimRun>, update: &IndexSet<ValueId>, format: &ShardFormat) -> Rank {
        let own = format.run;
        let bytes = |v: &ValueId| self.values.shape(self.module, *v).map_or(0, ArrayShape::size_bytes);
        let computed_bytes = update.iter().fold(0u64, |sum, v| sum.saturating_add(bytes(v)));
        let mut state: Option<(u64, ValueId)> = None;
        for &value in runs.keys() {
            let is_state = matches!(self.values.values[value].origin, Origin::EntryParam | Origin::Carry);
            if is_state && state.is_none_or(|(most, _)| bytes(&value) > most) {
                state = Some((bytes(&value), value));
            }
        }
        let layout_of = state.map_or(own, |(_, v)| runs[&v]);
        let (value, _) = runs.get_index(0).map_or((None, own), |(&v, &r)| (Some(v), r));
        let holder = state.map(|(_, v)| v).or(value);
        let is_major =
            holder.and_then(|v| self.values.shape(self.module, v)).is_some_and(|shape| is_major_run(shape, layout_of));
        Rank { computed_bytes, has_state: state.is_some(), is_major, waste: format.split.waste(), len: own.len }
    }
}
