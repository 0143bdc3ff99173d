//! The plans of an op on a mesh: for each axis a factor of the op that it cuts, or none, or that operands are partial sums along it.
//!
//! Factors are those of [`hlo_ir::factors`]. A factor is cut if every tensor that has it can be: an op wants dims whole that say so,
//! and dims of which a shard needs rows of its neighbours stay whole here (the partitioner can cut them, at the price of these rows).
//! Results are partial sums along axes that cut a reduced factor.

use crate::linear::{OperandSet, partial_forms};
use crate::mesh::SearchMesh;
use crate::program::SearchOp;
use crate::state::{Place, State};
use hlo_ir::Module;
use hlo_ir::factors::{FactorId, FactorRole, FactorSet, FactorUse, TensorFactors};
use hlo_ir::monoid::Monoid;
use smallvec::{SmallVec, smallvec};

/// What one axis does in a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AxisUse {
    /// Devices along it compute the same.
    Repeats,
    /// It cuts a factor.
    Cuts(FactorId),
    /// These operands are partial sums along it, and so is the result.
    PassesSums(OperandSet),
}

/// One way to run an op on shards.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plan {
    /// By axis.
    pub uses: SmallVec<[AxisUse; 4]>,
    /// The state of each operand.
    pub operands: SmallVec<[State; 3]>,
    /// The state of each result.
    pub results: SmallVec<[State; 1]>,
    /// The part of the op's arithmetic that a device does, from 0 to 1.
    pub share: f64,
}

/// How an op may be cut, on any mesh.
#[derive(Clone, Debug)]
pub(crate) struct OpRule {
    factors: FactorSet,
    /// Factors that may be cut.
    cuttable: Vec<FactorId>,
    /// Factors that are reduced, so that results are partial sums.
    reduced: Vec<FactorId>,
    forms: Vec<OperandSet>,
    ranks: [Vec<usize>; 2],
    /// Whether what a reduced factor leaves is a sum: another reduction is finished at once.
    pub sums: bool,
}

impl OpRule {
    /// The rule of an op.
    pub(crate) fn of(module: &Module, op: &SearchOp, may_be_partial: impl Fn(usize) -> bool) -> OpRule {
        let rank = |inst| module.shape(inst).as_array().map_or(0, |array| array.rank());
        let operand_ranks: Vec<usize> = module.inst(op.inst).operands.iter().map(|&operand| rank(operand)).collect();
        let mut result_ranks = Vec::new();
        module.shape(op.inst).for_each_leaf(&mut |_, leaf| result_ranks.push(leaf.as_array().map_or(0, |a| a.rank())));
        let forms = partial_forms(module, op.inst);
        // Operands that never are partial sums make a form useless.
        let is_useful = |form: &OperandSet| (0..8).any(|k| form & (1 << k) != 0 && may_be_partial(k));
        let forms = forms.into_iter().filter(is_useful).collect();
        let factors = op.factors.clone().unwrap_or_default();
        let (mut cuttable, mut reduced, mut sums) = (Vec::new(), Vec::new(), true);
        for factor in 0..factors.factors.len() {
            let is_operand_alone = factors.operands.iter().flatten().flatten();
            let owned = is_operand_alone.clone().any(|one| one.factor == factor && one.role == FactorRole::Own);
            let mut is_cuttable = factors.factors[factor].size > 1 && !owned;
            for one in factors.uses(factor) {
                match one.role {
                    FactorRole::Pass | FactorRole::Own => {}
                    FactorRole::Reduce(monoid) => {
                        sums &= monoid == Monoid::Add;
                        if !reduced.contains(&factor) {
                            reduced.push(factor);
                        }
                    }
                    FactorRole::Whole(_) | FactorRole::Shift => is_cuttable = false,
                }
            }
            if is_cuttable {
                cuttable.push(factor);
            }
        }
        OpRule { factors, cuttable, reduced, forms, ranks: [operand_ranks, result_ranks], sums }
    }

    /// Whether a result may be a partial sum that other ops can pass on.
    pub(crate) fn may_give_sums(&self) -> bool {
        !self.forms.is_empty() || (self.sums && self.reduced.iter().any(|factor| self.cuttable.contains(factor)))
    }

    /// The results of a plan that are no sums over the axes that cut a reduced factor, and so are finished where they are computed: which
    /// one, and its state before that.
    pub(crate) fn unfinished(&self, plan: &Plan) -> SmallVec<[(usize, State); 1]> {
        let is_open =
            |axis: &usize| matches!(plan.uses[*axis], AxisUse::Cuts(factor) if self.reduced.contains(&factor));
        let open: SmallVec<[usize; 4]> = (0..plan.uses.len()).filter(|axis| !self.sums && is_open(axis)).collect();
        if open.is_empty() {
            return SmallVec::new();
        }
        let before = |state: State| open.iter().fold(state, |state, &axis| state.with(axis, Place::Partial));
        plan.results.iter().map(|&state| before(state)).enumerate().collect()
    }

    /// All plans on a mesh; the first one repeats the op everywhere. With `even` each axis divides what it cuts.
    pub(crate) fn plans(&self, mesh: &SearchMesh, even: bool) -> Vec<Plan> {
        let mut out = Vec::new();
        let mut uses: SmallVec<[AxisUse; 4]> = smallvec![AxisUse::Repeats; mesh.n_axes()];
        self.add_plans(mesh, even, 0, &mut uses, &mut out);
        out
    }

    fn add_plans(
        &self,
        mesh: &SearchMesh,
        even: bool,
        axis: usize,
        uses: &mut SmallVec<[AxisUse; 4]>,
        out: &mut Vec<Plan>,
    ) {
        if axis == mesh.n_axes() {
            out.extend(self.plan(mesh, even, uses));
            return;
        }
        let cuts = self.cuttable.iter().map(|&factor| AxisUse::Cuts(factor));
        let sums = self.forms.iter().map(|&form| AxisUse::PassesSums(form));
        for one in std::iter::once(AxisUse::Repeats).chain(cuts).chain(sums) {
            uses[axis] = one;
            self.add_plans(mesh, even, axis + 1, uses, out);
        }
        uses[axis] = AxisUse::Repeats;
    }

    fn plan(&self, mesh: &SearchMesh, even: bool, uses: &SmallVec<[AxisUse; 4]>) -> Option<Plan> {
        let mut n_shards: SmallVec<[i64; 8]> = smallvec![1; self.factors.factors.len()];
        for (axis, one) in uses.iter().enumerate() {
            if let AxisUse::Cuts(factor) = *one {
                n_shards[factor] *= mesh.size(axis);
            }
        }
        let mut share = 1.0;
        for (factor, &n) in self.factors.factors.iter().zip(&n_shards) {
            if n > 1 {
                if factor.size < n || (even && factor.size % n != 0) {
                    return None;
                }
                share *= (factor.size as f64 / n as f64).ceil() / factor.size as f64;
            }
        }
        let cut = Cut { uses, n_shards: &n_shards };
        let whole = |rank: usize, tensor: Option<&TensorFactors>| match tensor {
            Some(tensor) if tensor.len() == rank => cut.tensor(tensor),
            Some(_) | None => Some(State::WHOLE),
        };
        let mut operands: SmallVec<[State; 3]> = SmallVec::new();
        for (k, &rank) in self.ranks[0].iter().enumerate() {
            let mut state = whole(rank, self.factors.operands.get(k))?;
            for (axis, one) in uses.iter().enumerate() {
                if let AxisUse::PassesSums(form) = *one
                    && form & (1u8.checked_shl(k as u32).unwrap_or(0)) != 0
                {
                    state = state.with(axis, Place::Partial);
                }
            }
            operands.push(state);
        }
        let mut results: SmallVec<[State; 1]> = SmallVec::new();
        for (k, &rank) in self.ranks[1].iter().enumerate() {
            let mut state = whole(rank, self.factors.results.get(k))?;
            for (axis, one) in uses.iter().enumerate() {
                let is_sum = match *one {
                    AxisUse::PassesSums(_) => true,
                    AxisUse::Cuts(factor) => self.sums && self.reduced.contains(&factor),
                    AxisUse::Repeats => false,
                };
                if is_sum {
                    state = state.with(axis, Place::Partial);
                }
            }
            results.push(state);
        }
        Some(Plan { uses: uses.clone(), operands, results, share })
    }
}

struct Cut<'a> {
    uses: &'a SmallVec<[AxisUse; 4]>,
    n_shards: &'a [i64],
}

impl Cut<'_> {
    /// The state of a tensor; `None` where its tiles would be no runs of rows, or in another order of axes.
    fn tensor(&self, tensor: &TensorFactors) -> Option<State> {
        let mut state = State::WHOLE;
        for (dim, uses) in tensor.iter().enumerate() {
            state = self.dim(dim, uses, state)?;
        }
        Some(state)
    }

    /// Where a dim is a product of factors, a minor one is cut only if the major ones are cut into single positions, all cuts are even,
    /// and the axes of major factors come before those of minor ones.
    fn dim(&self, dim: usize, uses: &[FactorUse], mut state: State) -> Option<State> {
        let is_product = uses.iter().filter(|one| one.size > 1).count() > 1;
        let (mut is_cut_through, mut first_free_axis) = (true, 0);
        for one in uses {
            let n = self.n_shards.get(one.factor).copied().unwrap_or(1);
            if n > 1 {
                if !is_cut_through || (is_product && one.size % n != 0) {
                    return None;
                }
                for (axis, axis_use) in self.uses.iter().enumerate() {
                    if *axis_use == AxisUse::Cuts(one.factor) {
                        if axis < first_free_axis {
                            return None;
                        }
                        first_free_axis = axis;
                        state = state.with(axis, Place::Dim(dim as u8));
                    }
                }
            }
            is_cut_through &= n == one.size;
        }
        Some(state)
    }
}
