//! What a choice of shardings costs, op by op: bytes that one device receives to bring operands and results into place and to sum
//! partial results, bytes that it reads and writes, and operations.
//!
//! An op is taken to compute in the sharding of its result, or, where operands are cut along what it sums over by atoms
//! that the result has elsewhere, in theirs; whichever is less. Bytes of a redistribution are what a device does not hold yet;
//! whether a plan reaches that is the partitioner's business. Where the machine is known, all of it is seconds on that machine
//! ([`crate::prices`], which the partitioner decides by too).

use super::project::Projector;
use super::ties::{FactorEffect, Tie, TieFactor, TieId, TieKind};
use super::values::{AtomSet, CutId, CutValue, bit, bits};
use crate::mesh::ModuleMesh;
use crate::prices::Prices;
use crate::sharding::{ArraySharding, Atom, AtomList};
use cranelift_entity::{PrimaryMap, SecondaryMap};
use hlo_ir::{ArrayShape, Module};

/// How much slower a link is than memory, and than arithmetic per operation: bytes of memory traffic, and operations, that take as
/// long as one byte over a link of some 50 GB/s on a device with 3 TB/s and 500 Tflop/s.
const MEMORY_BYTES_PER_LINK_BYTE: f64 = 60.0;
const FLOPS_PER_LINK_BYTE: f64 = 10_000.0;

/// Prices ties.
pub(super) struct Pricer<'a> {
    pub projector: Projector,
    /// How often each tie runs.
    pub often: &'a SecondaryMap<TieId, f64>,
    /// The machine, where its time decides.
    pub time: Option<TimePricer<'a>>,
}

/// Prices in seconds.
pub(super) struct TimePricer<'a> {
    prices: &'a Prices,
    mesh: &'a ModuleMesh,
    /// The whole arrays.
    shapes: SecondaryMap<CutId, Option<ArrayShape>>,
}

impl<'a> TimePricer<'a> {
    /// Prices of a module's values; `None` where bytes decide.
    pub(super) fn new(
        module: &Module,
        mesh: &'a ModuleMesh,
        values: &PrimaryMap<CutId, CutValue>,
        prices: &'a Prices,
    ) -> Option<TimePricer<'a>> {
        prices.cluster()?;
        let mut shapes = SecondaryMap::new();
        for (id, value) in values {
            let shape = module.shapes.leaf(module.inst(value.inst).shape, value.leaf as usize);
            shapes[id] = shape.and_then(|shape| shape.as_array()).cloned();
        }
        Some(TimePricer { prices, mesh, shapes })
    }
}

/// Bytes that a device receives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// To bring operands and results into place.
    pub resharded: f64,
    /// To sum partial results.
    pub summed: f64,
}

impl Moved {
    pub(super) fn total(self) -> f64 {
        self.resharded + self.summed
    }
}

/// The atoms of each factor while an op computes.
type Computed = Vec<AtomList>;

impl Pricer<'_> {
    /// The cost of all ties.
    pub(super) fn total(&mut self, values: &PrimaryMap<CutId, CutValue>, ties: &PrimaryMap<TieId, Tie>) -> f64 {
        ties.iter().map(|(id, tie)| self.price(values, id, tie)).sum()
    }

    /// The cost of one tie, in bytes over a link or in seconds.
    pub(super) fn price(&mut self, values: &PrimaryMap<CutId, CutValue>, id: TieId, tie: &Tie) -> f64 {
        if tie.kind == TieKind::CountedRows {
            return 0.0;
        }
        self.projector.project(values, tie);
        let by_result = self.computed_by_result(tie);
        let by_operands = self.computed_by_operands(tie, &by_result);
        let first = self.cost(values, tie, &by_result);
        let second = by_operands.map_or(f64::INFINITY, |computed| self.cost(values, tie, &computed));
        first.min(second) * self.often[id]
    }

    /// The bytes that one run of a tie moves between devices: all, and those of them that are not sums of partial results.
    pub(super) fn moved_bytes(&mut self, values: &PrimaryMap<CutId, CutValue>, tie: &Tie) -> Moved {
        if tie.kind == TieKind::CountedRows {
            return Moved { resharded: 0.0, summed: 0.0 };
        }
        self.projector.project(values, tie);
        let by_result = self.computed_by_result(tie);
        let first = self.moved(values, tie, &by_result);
        match self.computed_by_operands(tie, &by_result).map(|computed| self.moved(values, tie, &computed)) {
            Some(second) if second.total() < first.total() => second,
            Some(_) | None => first,
        }
    }

    /// Factors of the result as it is cut, others as the first operand that is cut along them, without atoms that the result uses.
    fn computed_by_result(&self, tie: &Tie) -> Computed {
        let n_operands = tie.n_operands as usize;
        let mut computed: Computed = vec![AtomList::new(); self.projector.factors.len()];
        let mut used: AtomSet = 0;
        for (f, factor) in self.projector.factors.iter().enumerate() {
            let in_result = (n_operands..tie.tensors.len()).find(|&k| self.projector.slot(k, f).place.is_some());
            if let Some(k) = in_result.filter(|_| factor.effect != FactorEffect::Whole) {
                computed[f] = self.projector.slot(k, f).atoms.clone();
                used |= bits(&computed[f]);
            }
        }
        for (f, factor) in self.projector.factors.iter().enumerate() {
            if factor.effect != FactorEffect::Reduce {
                continue;
            }
            let longest = (0..n_operands).map(|k| &self.projector.slot(k, f).atoms).max_by_key(|atoms| atoms.len());
            for &atom in longest.into_iter().flatten() {
                if used & bit(atom) != 0 {
                    break;
                }
                used |= bit(atom);
                computed[f].push(atom);
            }
        }
        computed
    }

    /// Factors that are summed over as operands are cut, and of the result what atoms are left; `None` if that is the same.
    fn computed_by_operands(&self, tie: &Tie, by_result: &Computed) -> Option<Computed> {
        let mut computed = by_result.clone();
        let mut summed: AtomSet = 0;
        for (f, factor) in self.projector.factors.iter().enumerate() {
            if factor.effect == FactorEffect::Reduce {
                let of_operands = (0..tie.n_operands as usize).map(|k| &self.projector.slot(k, f).atoms);
                let longest = of_operands.max_by_key(|atoms| atoms.len()).cloned().unwrap_or_default();
                computed[f] = longest.iter().copied().take_while(|&atom| summed & bit(atom) == 0).collect();
                summed |= bits(&computed[f]);
            }
        }
        for (f, factor) in self.projector.factors.iter().enumerate() {
            if factor.effect != FactorEffect::Reduce
                && let Some(at) = computed[f].iter().position(|&atom| summed & bit(atom) != 0)
            {
                computed[f].truncate(at);
            }
        }
        (computed != *by_result).then_some(computed)
    }

    /// Seconds to bring operands to how the op computes, to compute, and to bring results to how they are cut.
    fn seconds(
        &self,
        values: &PrimaryMap<CutId, CutValue>,
        tie: &Tie,
        computed: &Computed,
        time: &TimePricer<'_>,
    ) -> f64 {
        let mut partial = AtomList::new();
        let factors = || self.projector.factors.iter().zip(computed).enumerate();
        for (_, (_, atoms)) in factors().filter(|(_, (factor, _))| factor.effect == FactorEffect::Reduce) {
            partial.extend(atoms.iter().copied());
        }
        partial.sort();
        let mut seconds = 0.0;
        for (k, tensor) in tie.tensors.iter().enumerate() {
            let value = &values[tensor.value];
            let Some(shape) = time.shapes[tensor.value].as_ref().filter(|_| value.elem_bytes > 0) else { continue };
            let (own, within) = (value.sharding().resolved(), self.while_computed(tie, k, computed, value.dims.len()));
            if k >= tie.n_operands as usize {
                let given = ArraySharding { partial: partial.clone(), ..within };
                seconds += time.prices.reshard(time.mesh, shape, (&given, &own));
                continue;
            }
            seconds += time.prices.reshard(time.mesh, shape, (&own, &within));
            let is_moved = |(f, (factor, atoms)): (usize, (&TieFactor, &AtomList))| {
                factor.effect == FactorEffect::Move && self.projector.slot(k, f).place.is_some() && !atoms.is_empty()
            };
            if factors().any(is_moved) {
                seconds += time.prices.permutes(time.mesh, 1, self.local(values, tensor.value, k, computed));
            }
        }
        let is_op = !matches!(tie.kind, TieKind::Edge | TieKind::Exit | TieKind::Barrier(_));
        let result = tie.tensors.get(tie.n_operands as usize).and_then(|tensor| time.shapes[tensor.value].as_ref());
        let n_steps = factors()
            .map(|(_, (factor, atoms))| (factor.size as f64 / self.projector.n_tiles(atoms).max(1) as f64).ceil());
        match result.filter(|_| is_op) {
            Some(result) => seconds + time.prices.work(n_steps.product(), self.multiplies(tie), result),
            None => seconds,
        }
    }

    /// How a tensor is cut while the op computes.
    fn while_computed(&self, tie: &Tie, k: usize, computed: &Computed, rank: usize) -> ArraySharding {
        let mut sharding = ArraySharding::replicated(rank);
        for (d, dim) in sharding.dims.iter_mut().enumerate() {
            match &tie.rule {
                Some(rule) => {
                    let of_dim = rule.tensors[k].get(d).into_iter().flatten();
                    dim.extend(of_dim.flat_map(|&f| computed.get(usize::from(f)).into_iter().flatten().copied()));
                }
                None => dim.extend(computed.get(d).into_iter().flatten().copied()),
            }
        }
        sharding
    }

    /// Whether the op multiplies and sums, as a matrix unit does.
    fn multiplies(&self, tie: &Tie) -> bool {
        tie.n_operands > 1
            && self.projector.factors.iter().enumerate().any(|(f, factor)| {
                factor.effect == FactorEffect::Reduce && (0..2).all(|k| self.projector.slot(k, f).place.is_some())
            })
    }

    fn cost(&self, values: &PrimaryMap<CutId, CutValue>, tie: &Tie, computed: &Computed) -> f64 {
        if let Some(time) = &self.time {
            return self.seconds(values, tie, computed, time);
        }
        let touched: f64 =
            tie.tensors.iter().enumerate().map(|(k, tensor)| self.local(values, tensor.value, k, computed)).sum();
        let work = self
            .projector
            .factors
            .iter()
            .zip(computed)
            .map(|(factor, atoms)| factor.size as f64 / self.projector.n_tiles(atoms).max(1) as f64);
        let flops: f64 = if self.multiplies(tie) { 2.0 * work.product::<f64>() } else { 0.0 };
        self.moved(values, tie, computed).total() + touched / MEMORY_BYTES_PER_LINK_BYTE + flops / FLOPS_PER_LINK_BYTE
    }

    /// Bytes of a tensor's tile while the op computes.
    fn local(&self, values: &PrimaryMap<CutId, CutValue>, value: CutId, k: usize, computed: &Computed) -> f64 {
        let tiles = computed.iter().enumerate().filter(|(f, _)| self.projector.slot(k, *f).place.is_some());
        let n_tiles: f64 = tiles.map(|(_, atoms)| self.projector.n_tiles(atoms) as f64).product();
        values[value].bytes() / n_tiles.max(1.0)
    }

    /// Bytes that a device receives.
    fn moved(&self, values: &PrimaryMap<CutId, CutValue>, tie: &Tie, computed: &Computed) -> Moved {
        let n_operands = tie.n_operands as usize;
        let mut moved = Moved::default();
        for (k, tensor) in tie.tensors.iter().enumerate().take(n_operands) {
            moved.resharded += self.redistributed(values, tensor.value, k, |f, held| (held, &computed[f]));
            // Where a dim begins elsewhere, most rows of a tile go to another device.
            let moves = self.projector.factors.iter().enumerate().filter(|(_, one)| one.effect == FactorEffect::Move);
            let is_moved = |(f, _): (usize, _)| self.projector.slot(k, f).place.is_some() && !computed[f].is_empty();
            if moves.into_iter().any(is_moved) {
                moved.resharded += self.local(values, tensor.value, k, computed);
            }
        }
        let mut summed = AtomList::new();
        for (factor, atoms) in self.projector.factors.iter().zip(computed) {
            if factor.effect == FactorEffect::Reduce {
                summed.extend(atoms.iter().copied());
            }
        }
        let n_summed = self.projector.n_tiles(&summed) as f64;
        for (k, tensor) in tie.tensors.iter().enumerate().skip(n_operands) {
            let local = self.local(values, tensor.value, k, computed);
            let is_scattered = values[tensor.value].used & bits(&summed) != 0;
            let ways = if is_scattered { 1.0 } else { 2.0 };
            moved.summed += ways * local * (n_summed - 1.0) / n_summed.max(1.0);
            if !is_scattered {
                moved.resharded += self.redistributed(values, tensor.value, k, |f, held| (&computed[f], held));
            }
        }
        moved
    }

    /// Bytes of a tensor that a device lacks; `ends` gives for a factor and the tensor's own atoms what it has and what it needs.
    fn redistributed<'s>(
        &'s self,
        values: &PrimaryMap<CutId, CutValue>,
        value: CutId,
        k: usize,
        ends: impl Fn(usize, &'s AtomList) -> (&'s AtomList, &'s AtomList),
    ) -> f64 {
        let (mut needed, mut common) = (1.0, 1.0);
        for f in 0..self.projector.factors.len() {
            let slot = self.projector.slot(k, f);
            if slot.place.is_none() {
                continue;
            }
            let (from, to) = ends(f, &slot.atoms);
            let n_equal = from.iter().zip(to.iter()).take_while(|(a, b)| a == b).count();
            let tiles = |atoms: &[Atom]| self.projector.n_tiles(atoms) as f64;
            needed *= tiles(to);
            common *= tiles(&to[..n_equal]) * tiles(&from[n_equal..]) * tiles(&to[n_equal..]);
        }
        values[value].bytes() * (1.0 / needed - 1.0 / common).max(0.0)
    }
}
