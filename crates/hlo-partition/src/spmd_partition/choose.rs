//! Which atoms cut which factors of an op: the cheapest way, by estimate.
//!
//! For each factor, candidates are the lists of atoms that cut it in an operand as it is, or in a result as it is wanted, and their
//! prefixes. Every combination in which no atom stands twice is priced: bringing operands to what it takes, results from what it gives
//! to what is wanted, rows of neighbours, and the work of a device.

use super::cut::{FactorCut, lists_of};
use super::halo::HaloRows;
use crate::mesh::ModuleMesh;
use crate::prices::Prices;
use crate::sharding::{ArraySharding, AtomList};
use hlo_ir::factors::{FactorRole, FactorSet, FactorUse, TensorFactors};
use hlo_ir::localize::{LocalForm, OperandAdjust, localize};
use hlo_ir::op::{FactorRule, KernelForm};
use hlo_ir::{ArrayShape, InstId, Module};

/// Most combinations that are priced; beyond it prefixes are left out, and then later factors.
const MOST_COMBINATIONS: usize = 2048;

/// What decides how an op is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ComputeRule {
    /// The price alone: small operands may be gathered so that no large result has to be summed.
    Cheapest,
    /// As its operands are, wherever it can be computed so: Mesh-TensorFlow's rule, by which an einsum is a local one and a sum along the
    /// axes of the dims that it reduces out.
    AsCut,
}

/// An instruction, as far as the choice depends on it.
pub(super) struct OpView<'a> {
    pub module: &'a Module,
    pub inst: InstId,
    pub set: &'a FactorSet,
    /// The whole operands, how each is cut, and which value it is.
    pub operands: Vec<(ArrayShape, ArraySharding, InstId)>,
    /// The whole results, and how each is wanted.
    pub results: Vec<(ArrayShape, Option<ArraySharding>)>,
    pub prices: &'a Prices,
    pub rule: ComputeRule,
}

/// A way to run the op on shards.
pub(super) struct Choice {
    pub cut: FactorCut,
    /// How operands are to be cut.
    pub operands: Vec<ArraySharding>,
    /// How results are cut, and over which atoms they are partial.
    pub results: Vec<ArraySharding>,
    pub form: LocalForm,
}

/// A combination with its price so far.
struct Candidate {
    cut: FactorCut,
    operands: Vec<ArraySharding>,
    results: Vec<ArraySharding>,
    cost: f64,
    /// Whether an operand has to be brought elsewhere.
    moves_operands: bool,
}

impl OpView<'_> {
    /// The cheapest way; `None` if the op has no local form at all, not even the whole op.
    pub(super) fn choose(&self, mesh: &ModuleMesh) -> Option<Choice> {
        let candidates = self.candidates(mesh);
        let (staying, moving) = match self.rule {
            ComputeRule::Cheapest => (candidates, Vec::new()),
            ComputeRule::AsCut => candidates.into_iter().partition(|candidate| !candidate.moves_operands),
        };
        self.cheapest(mesh, staying).or_else(|| self.cheapest(mesh, moving))
    }

    /// The cheapest of these that has a local form.
    fn cheapest(&self, mesh: &ModuleMesh, mut candidates: Vec<Candidate>) -> Option<Choice> {
        candidates.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        let mut best: Option<(f64, Choice)> = None;
        for candidate in candidates {
            if best.as_ref().is_some_and(|(cost, _)| candidate.cost >= *cost) {
                break;
            }
            let n_shards = candidate.cut.n_shards(mesh);
            let Ok(form) = localize(self.module, self.inst, self.set, &n_shards) else { continue };
            let cost = candidate.cost + self.halo_cost(mesh, &form);
            if best.as_ref().is_none_or(|(known, _)| cost < *known) {
                let Candidate { cut, operands, results, .. } = candidate;
                best = Some((cost, Choice { cut, operands, results, form }));
            }
        }
        best.map(|(_, choice)| choice)
    }

    fn candidates(&self, mesh: &ModuleMesh) -> Vec<Candidate> {
        let mut lists: Vec<Vec<AtomList>> = vec![vec![AtomList::new()]; self.set.factors.len()];
        let mut whole_lists = lists.clone();
        let mut note = |factor: usize, atoms: &AtomList| {
            for n in 1..=atoms.len() {
                let prefix: AtomList = atoms[..n].iter().copied().collect();
                let (known, is_whole) = (&mut lists[factor], n == atoms.len());
                if !known.contains(&prefix) {
                    known.push(prefix.clone());
                }
                if is_whole && !whole_lists[factor].contains(&prefix) {
                    whole_lists[factor].push(prefix);
                }
            }
        };
        for ((_, sharding, _), tensor) in self.operands.iter().zip(&self.set.operands) {
            lists_of(mesh, tensor, sharding).iter().for_each(|(factor, atoms)| note(*factor, atoms));
        }
        for ((_, wanted), tensor) in self.results.iter().zip(&self.set.results) {
            if let Some(wanted) = wanted {
                lists_of(mesh, tensor, wanted).iter().for_each(|(factor, atoms)| note(*factor, atoms));
            }
        }
        let n_all = lists.iter().fold(1usize, |n, lists| n.saturating_mul(lists.len()));
        let mut lists = if n_all <= MOST_COMBINATIONS { lists } else { whole_lists };
        let mut n = 1usize;
        for lists in &mut lists {
            if n.saturating_mul(lists.len()) > MOST_COMBINATIONS {
                lists.truncate(1);
            }
            n = n.saturating_mul(lists.len());
        }
        let mut out = Vec::new();
        self.combine(mesh, &lists, &mut FactorCut::none(self.set.factors.len()), (0, 0), &mut out);
        out
    }

    /// All combinations of lists of the factors from `factor` on, where the atoms of `used` are taken.
    fn combine(
        &self,
        mesh: &ModuleMesh,
        lists: &[Vec<AtomList>],
        cut: &mut FactorCut,
        (factor, used): (usize, u64),
        out: &mut Vec<Candidate>,
    ) {
        let Some(choices) = lists.get(factor) else {
            out.extend(self.priced(mesh, cut));
            return;
        };
        for list in choices {
            let atoms = list.iter().fold(0u64, |bits, atom| bits | 1 << atom.0);
            if used & atoms == 0 {
                cut.lists[factor] = list.clone();
                self.combine(mesh, lists, cut, (factor + 1, used | atoms), out);
            }
        }
        cut.lists[factor].clear();
    }

    fn priced(&self, mesh: &ModuleMesh, cut: &FactorCut) -> Option<Candidate> {
        let (mut cost, mut moves_operands) = (0.0, false);
        let mut operands: Vec<ArraySharding> = Vec::with_capacity(self.operands.len());
        for (k, ((shape, sharding, value), tensor)) in self.operands.iter().zip(&self.set.operands).enumerate() {
            // Of a dim that no other tensor has, such as one of one element that a reshape drops, the op needs all.
            let is_cut_alone = |one: &FactorUse| one.role == FactorRole::Own && !cut.lists[one.factor].is_empty();
            if tensor.iter().flatten().any(is_cut_alone) {
                return None;
            }
            let needed = cut.tensor(mesh, tensor)?;
            let same = |j: usize| self.operands[j].2 == *value && operands[j] == needed;
            if !(0..k).any(same) {
                cost += self.prices.reshard(mesh, shape, (sharding, &needed));
            }
            moves_operands |= *sharding != needed;
            operands.push(needed);
        }
        let mut results = Vec::with_capacity(self.results.len());
        let partial = cut.reduced(self.set);
        for ((shape, wanted), tensor) in self.results.iter().zip(&self.set.results) {
            let given = ArraySharding { partial: partial.clone(), ..cut.tensor(mesh, tensor)? };
            let target = wanted.clone().unwrap_or_else(|| given.resolved());
            cost += self.prices.reshard(mesh, shape, (&given, &target));
            results.push(given);
        }
        let n_shards = cut.n_shards(mesh);
        let is_product =
            matches!(self.module.inst(self.inst).opcode.row().factors, FactorRule::Dot | FactorRule::Convolution);
        if let Some((result, _)) = self.results.first() {
            cost += self.prices.work(self.points(&n_shards), is_product, result);
        }
        Some(Candidate { cut: cut.clone(), operands, results, cost, moves_operands })
    }

    /// Points that a device computes, for prices: those of all factors' tiles. What is looked up is not gone over, so a gather computes
    /// the elements of its result, and a scatter those of its larger tensor.
    fn points(&self, n_shards: &[i64]) -> f64 {
        let tile = |factor: usize| (self.set.factors[factor].size as f64 / n_shards[factor] as f64).ceil();
        let of_tensor =
            |tensor: &TensorFactors| tensor.iter().flatten().map(|used: &FactorUse| tile(used.factor)).product::<f64>();
        let mut results = self.set.results.iter().map(of_tensor);
        match self.module.inst(self.inst).opcode.row().factors.row().kernel {
            KernelForm::Picks => results.next().unwrap_or(0.0),
            KernelForm::Updates => results.chain(self.set.operands.iter().map(of_tensor)).fold(0.0, f64::max),
            KernelForm::Light | KernelForm::Reduction | KernelForm::Heavy => {
                (0..self.set.factors.len()).map(tile).product()
            }
        }
    }

    /// Rows of neighbours that the form asks for.
    fn halo_cost(&self, mesh: &ModuleMesh, form: &LocalForm) -> f64 {
        let mut cost = 0.0;
        for adjust in &form.before {
            let OperandAdjust::Halo { operand, dim, starts, size, .. } = adjust else { continue };
            let (Some((whole, ..)), Some(local)) = (self.operands.get(*operand), form.operands.get(*operand)) else {
                continue;
            };
            let n_rows = whole.dims.get(*dim).copied().unwrap_or(0);
            let plan = HaloRows { n_rows, starts, size: *size }.plan();
            let row_bytes = local.size_bytes() as f64 / (*size).max(1) as f64;
            cost += self.prices.permutes(mesh, plan.n_permutes(), plan.received_rows() as f64 * row_bytes);
        }
        cost
    }
}
