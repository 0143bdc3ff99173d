//! Sharding formats (§4.1): which dims of a cluster of tensors are merged and cut, and how far they are padded.
//!
//! A cluster is everything that meets a gradient in elementwise ops, transposes, reshapes, reductions of other dims, and on
//! the way into and out of loops, branches and calls. One format serves all of it: a run of dims, merged by a trivial
//! reshape, padded at its end, and cut into equal shards.
//!
//! The physically major-most dims of the state (carried values and parameters) come first: cutting others makes
//! reduce-scatter and all-gather move strided pieces (measured on the CPU backend for f32[2048,2048]: reduce-scatter 13 ms along the
//! major dim against 80 ms along the minor one, all-gather 21 against 129). A merge of dims is trivial if they are
//! neighbours in memory and lie outside of the layout's tile.

use crate::relation::{OperandCut, Relation, ResultCut, Run};
use cranelift_entity::SecondaryMap;
use hlo_analysis::replication::Replication;
use hlo_analysis::values::{Origin, User, ValueId, Values};
use hlo_ir::op::FactorRule;
use hlo_ir::{ArrayShape, InstId, Module, Opcode};
use indexmap::{IndexMap, IndexSet};

/// Padding up to this share of the elements is not worth another format: it is less than what a merge of one more dim
/// costs in indexing, and collectives are no slower by more than this.
const CHEAP_PADDING: f64 = 0.02;

/// Padding up to this share is less than what strided pieces cost (six times the time, as measured above).
const BEARABLE_PADDING: f64 = 0.5;

/// How a run of dims is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Number of shards.
    pub n_shards: i64,
    /// Elements of the run.
    pub size: i64,
    /// Elements of the run on one device.
    pub shard_size: i64,
}

impl Cut {
    /// A run of `size` elements in `n_shards` equal shards, padded at its end.
    pub fn new(size: i64, n_shards: usize) -> Cut {
        let n_shards = n_shards.max(1) as i64;
        Cut { n_shards, size, shard_size: size.max(0).div_euclid(n_shards) + i64::from(size.max(0) % n_shards != 0) }
    }

    /// Elements of the run with padding.
    pub fn padded_size(&self) -> i64 {
        self.shard_size.saturating_mul(self.n_shards)
    }

    /// Elements added.
    pub fn padding(&self) -> i64 {
        self.padded_size() - self.size
    }

    /// Elements added, as a share of those there are.
    pub fn waste(&self) -> f64 {
        self.padding() as f64 / self.size.max(1) as f64
    }
}

/// Tensors of one format.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// How the run is cut.
    pub cut: Cut,
    /// The run of every value.
    pub runs: IndexMap<ValueId, Run>,
    /// Gradients, in order of discovery.
    pub gradients: Vec<ValueId>,
    /// Formats that were possible and why this one is better, for the report.
    pub rejected: Vec<(String, String)>,
}

/// What clusters are grown from.
pub struct Soil<'a> {
    /// The module.
    pub module: &'a Module,
    /// Its values.
    pub values: &'a Values,
    /// Which values are equal on which devices.
    pub replication: &'a Replication,
    /// The groups over which gradients are summed.
    pub groups: &'a [Vec<u32>],
    /// Number of shards.
    pub n_shards: usize,
    /// Gradients: results of all-reduces over these groups.
    pub gradients: IndexSet<ValueId>,
    relations: SecondaryMap<InstId, Option<Option<Box<Relation>>>>,
    eligible: SecondaryMap<ValueId, Option<bool>>,
    taken: SecondaryMap<ValueId, bool>,
}

impl<'a> Soil<'a> {
    /// Soil without any cluster yet.
    pub fn new(
        module: &'a Module,
        values: &'a Values,
        replication: &'a Replication,
        groups: &'a [Vec<u32>],
        gradients: IndexSet<ValueId>,
    ) -> Soil<'a> {
        let n_shards = groups.first().map_or(1, Vec::len);
        let (relations, eligible, taken) = (SecondaryMap::new(), SecondaryMap::new(), SecondaryMap::new());
        Soil { module, values, replication, groups, n_shards, gradients, relations, eligible, taken }
    }

    /// How dims go through the instruction, if it can be computed on shards.
    pub fn relation(&mut self, inst: InstId) -> Option<&Relation> {
        if self.relations[inst].is_none() {
            self.relations[inst] = Some(Relation::find(self.module, inst).map(Box::new));
        }
        self.relations[inst].as_ref()?.as_deref()
    }

    /// Whether a value can be rebuilt on a shard from nothing: constants, iota, a scalar's broadcast. Such values have no
    /// format.
    pub fn is_rebuilt(&self, value: ValueId) -> bool {
        let inst = self.values.inst(value);
        is_rebuilt(self.module, inst) && self.values.values[value].origin == Origin::Computed
    }

    /// Whether a value may have a format: a whole array that is the same on all devices of a group.
    fn is_eligible(&mut self, value: ValueId) -> bool {
        if let Some(known) = self.eligible[value] {
            return known;
        }
        let shape = self.values.shape(self.module, value);
        let is_array = shape.is_some_and(|s| s.rank() > 0 && s.dynamic == 0 && s.n_elems() > 1);
        let sites = &self.values.values[value].sites;
        let is_equal =
            || sites.iter().all(|&(inst, leaf)| self.replication.is_equal_within(inst, leaf as usize, self.groups));
        let known = is_array && is_equal() && !self.is_rebuilt(value);
        self.eligible[value] = Some(known);
        known
    }

    /// Whether a value of a cluster can be computed in shards.
    pub fn can_shard(&mut self, runs: &IndexMap<ValueId, Run>, value: ValueId) -> bool {
        if self.gradients.contains(&value) {
            return true;
        }
        match self.values.values[value].origin {
            Origin::EntryParam => return false,
            Origin::Param | Origin::Carry | Origin::CallResult => return true,
            Origin::Computed => {}
        }
        let (inst, run) = (self.values.inst(value), runs[&value]);
        let (module, values) = (self.module, self.values);
        let is_fused = values.fused.contains(module.inst(inst).parent);
        let cuts: Vec<OperandCut> = match self.relation(inst) {
            Some(relation) => (0..module.inst(inst).operands.len()).map(|k| relation.operand_cut(k, run)).collect(),
            None => return false,
        };
        module.inst(inst).operands.iter().zip(cuts).all(|(&operand, cut)| match (cut, values.of(operand)) {
            (OperandCut::Whole, _) => true,
            (OperandCut::Run(run), Some(operand)) => match self.is_rebuilt(operand) {
                // A fusion's body has no shard id to cut a constant or to start an iota with.
                true => !is_fused || is_broadcast(module, values.inst(operand)),
                false => runs.get(&operand) == Some(&run),
            },
            (OperandCut::Run(_) | OperandCut::Impossible, _) => false,
        })
    }

    /// Everything that gets a format if `seed` is cut along `run`.
    fn grow(&mut self, seed: ValueId, run: Run) -> IndexMap<ValueId, Run> {
        let mut runs: IndexMap<ValueId, Run> = IndexMap::from([(seed, run)]);
        let (module, values) = (self.module, self.values);
        let mut next = 0;
        while let Some((&value, &run)) = runs.get_index(next) {
            next += 1;
            let mut found: Vec<(ValueId, Run)> = Vec::new();
            for taken in &values.uses[value] {
                match taken.user {
                    User::Op { inst, operand } => {
                        let cut = self.relation(inst).map(|r| r.result_cut(operand as usize, run));
                        if let (Some(ResultCut::Run(run)), Some(result)) = (cut, values.of(inst)) {
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
            for (value, run) in found {
                if !runs.contains_key(&value) && !self.taken[value] && self.is_eligible(value) {
                    runs.insert(value, run);
                }
            }
        }
        runs
    }

    /// The update in a cluster: gradients, and what is computed forward from them in shards, up to what a loop carries.
    pub fn update(&mut self, runs: &IndexMap<ValueId, Run>) -> IndexSet<ValueId> {
        let mut update: IndexSet<ValueId> = runs.keys().copied().filter(|v| self.gradients.contains(v)).collect();
        let mut next = 0;
        while let Some(&value) = update.get_index(next) {
            next += 1;
            for taken in &self.values.uses[value] {
                let result = match taken.user {
                    User::Op { inst, .. } => self.values.of(inst),
                    User::Becomes(into) => Some(into).filter(|&v| self.values.values[v].origin != Origin::Carry),
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

    /// The cluster of a gradient in the best format.
    ///
    /// # Errors
    /// Why there is none.
    pub fn cluster(&mut self, seed: ValueId) -> Result<Cluster, String> {
        if self.taken[seed] {
            return Err("it has a format already".into());
        }
        if !self.is_eligible(seed) {
            return Err("it is not known to be the same on all devices of its groups".into());
        }
        let Some(shape) = self.values.shape(self.module, seed).cloned() else { return Err("it is no array".into()) };
        let mut tried: Vec<(Rank, Cut, Run, IndexMap<ValueId, Run>)> = Vec::new();
        for run in candidates(&shape) {
            let cut = Cut::new(run.size(&shape.dims), self.n_shards);
            let runs = self.grow(seed, run);
            let rank = self.rank(&runs, &cut, run);
            tried.push((rank, cut, run, runs));
        }
        let best = tried.iter().enumerate().min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)).map(|(i, _)| i);
        let Some((rank, cut, _, runs)) = best.map(|i| tried.remove(i)) else { return Err("it has no dims".into()) };
        let rejected =
            tried.iter().map(|(other, cut, run, _)| (describe(*run, cut), other.worse_than(&rank))).collect();
        let gradients = runs.keys().copied().filter(|v| self.gradients.contains(v)).collect();
        runs.keys().for_each(|&v| self.taken[v] = true);
        Ok(Cluster { cut, runs, gradients, rejected })
    }

    /// How good a format is.
    fn rank(&mut self, runs: &IndexMap<ValueId, Run>, cut: &Cut, own: Run) -> Rank {
        let bytes = |v: &ValueId| self.values.shape(self.module, *v).map_or(0, ArrayShape::size_bytes);
        let sizes: IndexMap<ValueId, u64> = runs.keys().map(|v| (*v, bytes(v))).collect();
        let computed_bytes = self.update(runs).iter().map(|v| sizes[v]).sum();
        let mut state: Option<(u64, ValueId)> = None;
        for &value in runs.keys() {
            let is_state = matches!(self.values.values[value].origin, Origin::EntryParam | Origin::Carry);
            if is_state && state.is_none_or(|(most, _)| sizes[&value] > most) {
                state = Some((sizes[&value], value));
            }
        }
        let layout_of = state.map_or(own, |(_, v)| runs[&v]);
        let (value, _) = runs.get_index(0).map_or((None, own), |(&v, &r)| (Some(v), r));
        let holder = state.map(|(_, v)| v).or(value);
        let is_major =
            holder.and_then(|v| self.values.shape(self.module, v)).is_some_and(|shape| is_major_run(shape, layout_of));
        Rank { computed_bytes, is_major, waste: cut.waste(), len: own.len }
    }
}

/// What formats are compared by.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Rank {
    /// Bytes of values that are computed in shards: more is better.
    computed_bytes: u64,
    /// Whether the run is the physically major-most piece of the state.
    is_major: bool,
    /// Share of padding.
    waste: f64,
    /// Dims merged.
    len: usize,
}

impl Rank {
    /// Less is better.
    fn total_cmp(&self, other: &Rank) -> std::cmp::Ordering {
        let class = |r: &Rank| match (r.is_major, r.waste) {
            (true, waste) if waste <= CHEAP_PADDING => 0,
            (true, waste) if waste <= BEARABLE_PADDING => 1,
            (false, waste) if waste <= CHEAP_PADDING => 2,
            (_, _) => 3,
        };
        let waste = |r: &Rank| if r.waste <= CHEAP_PADDING { 0.0 } else { r.waste };
        (other.computed_bytes.cmp(&self.computed_bytes))
            .then(class(self).cmp(&class(other)))
            .then(waste(self).total_cmp(&waste(other)))
            .then(other.is_major.cmp(&self.is_major))
            .then(self.len.cmp(&other.len))
    }

    /// Why this format lost against `best`.
    fn worse_than(&self, best: &Rank) -> String {
        if self.computed_bytes < best.computed_bytes {
            let (few, many) = (self.computed_bytes, best.computed_bytes);
            return format!("{few} bytes of the update could be computed in shards, {many} in the format chosen");
        }
        if best.is_major && !self.is_major {
            return "it is not the major-most piece in memory: shards would be strided".into();
        }
        if self.waste > best.waste {
            return format!("{:.1} % padding, {:.1} % in the format chosen", self.waste * 100.0, best.waste * 100.0);
        }
        "it merges more dims without need".into()
    }
}

/// A format in words.
pub fn describe(run: Run, cut: &Cut) -> String {
    let dims = match run.len {
        1 => format!("dim {}", run.start),
        len => format!("dims {}-{} merged", run.start, run.start + len - 1),
    };
    match cut.padding() {
        0 => format!("{dims}: {} = {} shards of {}", cut.size, cut.n_shards, cut.shard_size),
        padding => format!("{dims}: {} + {padding} padding = {} shards of {}", cut.size, cut.n_shards, cut.shard_size),
    }
}

/// Whether an instruction repeats its operand.
pub fn is_broadcast(module: &Module, inst: InstId) -> bool {
    module.inst(inst).opcode.row().factors == FactorRule::Broadcast
}

/// Whether the instruction's value costs nothing to rebuild in any form.
pub fn is_rebuilt(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let is_scalar = |&operand: &InstId| module.shape(operand).as_array().is_some_and(|a| a.rank() == 0);
    let repeats_scalar = is_broadcast(module, inst) && instruction.operands.iter().all(is_scalar);
    repeats_scalar || instruction.opcode.row().factors == FactorRule::Iota || instruction.opcode == Opcode::Constant
}

/// Runs of a tensor that may be cut: every dim, and every trivial merge that starts at the major-most dim.
pub fn candidates(shape: &ArrayShape) -> Vec<Run> {
    let mut runs: Vec<Run> = (0..shape.rank()).filter(|&d| shape.dims[d] > 1).map(Run::dim).collect();
    for start in 0..shape.rank() {
        for len in 2..=shape.rank() - start {
            let run = Run { start, len };
            if is_trivial(shape, run) && is_major_run(shape, run) {
                runs.push(run);
            }
        }
    }
    runs
}

/// Whether merging the run's dims moves no byte: they are neighbours in memory in the same order, outside of the tile.
fn is_trivial(shape: &ArrayShape, run: Run) -> bool {
    let order = shape.major_to_minor();
    let n_tiled = shape.layout.as_ref().and_then(|l| l.tiles.first()).map_or(0, |tile| tile.len());
    let n_untiled = order.len().saturating_sub(n_tiled);
    let Some(place) = order.iter().position(|&d| d == run.start) else { return false };
    let is_in_order = run.dims().enumerate().all(|(i, dim)| order.get(place + i) == Some(&dim));
    is_in_order && place + run.len <= n_untiled
}

/// Whether the run is the slowest piece of memory; dims of one element before it do not count.
fn is_major_run(shape: &ArrayShape, run: Run) -> bool {
    let mut order = shape.major_to_minor();
    order.retain(|d| run.dims().contains(d) || shape.dims.get(*d) != Some(&1));
    let mut dims: Vec<usize> = order.into_iter().take(run.len).collect();
    dims.sort_unstable();
    dims.into_iter().eq(run.dims())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::DType;

    fn best(shape: &ArrayShape, n_shards: usize) -> (Run, Cut) {
        let ranked = candidates(shape).into_iter().map(|run| {
            let cut = Cut::new(run.size(&shape.dims), n_shards);
            let rank = Rank { computed_bytes: 1, is_major: is_major_run(shape, run), waste: cut.waste(), len: run.len };
            (rank, run, cut)
        });
        let best = ranked.min_by(|a, b| a.0.total_cmp(&b.0)).expect("a candidate");
        (best.1, best.2)
    }

    #[test]
    fn the_papers_example_is_merged_as_the_paper_says() {
        let mut shape = ArrayShape::new(DType::F32, [3, 3, 256, 256]).with_row_major();
        let (run, cut) = best(&shape, 10);
        assert_eq!((run, cut.size, cut.padded_size()), (Run { start: 0, len: 3 }, 2304, 2310));
        let mut layout = shape.layout.as_deref().cloned().expect("a layout");
        layout.tiles = vec![[8, 128].into_iter().collect()];
        shape.layout = Some(layout.into());
        let (run, cut) = best(&shape, 10);
        assert_eq!((run, cut.size, cut.padded_size()), (Run { start: 0, len: 2 }, 9, 10));
    }

    #[test]
    fn odd_sizes_are_padded_at_the_end() {
        let cut = Cut::new(10, 8);
        assert_eq!((cut.shard_size, cut.padded_size(), cut.padding()), (2, 16, 6));
        let cut = Cut::new(784, 8);
        assert_eq!((cut.shard_size, cut.padding()), (98, 0));
        assert_eq!(Cut::new(1001, 6).padded_size(), 1002);
    }

    #[test]
    fn a_dim_that_divides_is_cut_as_it_is_and_a_small_one_is_merged() {
        let shape = |dims: [i64; 2]| ArrayShape::new(DType::F32, dims).with_row_major();
        assert_eq!(best(&shape([784, 512]), 8).0, Run::dim(0));
        assert_eq!(best(&shape([1001, 64]), 8).0, Run::dim(0));
        assert_eq!(best(&shape([10, 3]), 8), (Run { start: 0, len: 2 }, Cut::new(30, 8)));
        assert_eq!(best(&shape([1, 4096]), 8).0, Run::dim(1));
    }
}
