//! What a search may be kept from, to see what each part of it gains (Unger et al. 2022, §7.3).
//!
//! An op's factors are of four kinds: the *batch*; what it *reduces* beside the batch; those that a *parameter* has (a weight or moment, what
//! is made of it element by element, its gradient and its update); and *attributes*, which are all others. A plan without cuts of one kind has
//! no op that cuts a factor of that kind; without cuts of parameters these are held whole as well.
//!
//! *Joint* is left out where fusion is chosen before placement, as a compiler for one device does it: a product is one op with
//! the elementwise op that takes its result, which therefore is no partial sum.

use crate::baselines::Allowed;
use crate::network::{Decides, PlanNetwork};
use crate::plans::{AxisUse, Plan};
use crate::program::{CutId, OpId, Program};
use crate::roles::Roles;
use crate::state::Place;
use cranelift_entity::EntitySet;
use hlo_ir::factors::{FactorId, FactorRole, TensorFactors};
use hlo_ir::op::FactorRule;

/// A part of the search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Cuts of weights, moments and updates.
    ParameterCuts,
    /// Cuts of dims that are neither batch nor parameters'.
    AttributeCuts,
    /// Cuts of what is reduced, but for the batch.
    ReductionCuts,
    /// The choice of fusion together with placement.
    Joint,
}

impl Part {
    /// Every part.
    pub const ALL: [Part; 4] = [Part::ParameterCuts, Part::AttributeCuts, Part::ReductionCuts, Part::Joint];

    /// Its word in options.
    pub fn word(self) -> &'static str {
        match self {
            Part::ParameterCuts => "parameter-cuts",
            Part::AttributeCuts => "attribute-cuts",
            Part::ReductionCuts => "reduction-cuts",
            Part::Joint => "joint",
        }
    }

    /// The part of a word.
    pub fn of_word(word: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.word() == word)
    }
}

/// The states that are left to variables without these parts.
pub(crate) fn without(parts: &[Part], program: &Program<'_>, roles: &Roles, network: &PlanNetwork) -> Allowed {
    let of_params = find_params(program);
    let mut allowed = Allowed::new();
    for (var, decides) in &network.decides {
        let is_off = network.off(var).map(|_| true);
        allowed[var] = match *decides {
            Decides::Plan(op) => {
                let forbidden = forbidden_factors(parts, program, roles, &of_params, op);
                let keeps_sums = !(parts.contains(&Part::Joint) && is_fused(program, op));
                let batch = roles.batch_factor(&program.ops[op]);
                let allows = |plan: &Plan| allows(plan, &forbidden, keeps_sums, batch);
                network.plans[op].iter().map(allows).chain(is_off).collect()
            }
            Decides::Kept(value) if parts.contains(&Part::ParameterCuts) && of_params.contains(value) => {
                let mesh = &network.mesh;
                network.states[value].iter().map(|state| state.cut(mesh) == 0).chain(is_off).collect()
            }
            Decides::Kept(_) | Decides::Way(_) | Decides::AtRegion(..) => Vec::new(),
        };
    }
    allowed
}

/// Whether a plan cuts none of these factors, and gives sums only where that is allowed or the batch is summed.
fn allows(plan: &Plan, forbidden: &[FactorId], keeps_sums: bool, batch: Option<FactorId>) -> bool {
    let is_kept = |(axis, one): (usize, &AxisUse)| match *one {
        AxisUse::Cuts(factor) if forbidden.contains(&factor) => false,
        AxisUse::Cuts(factor) => {
            keeps_sums || batch == Some(factor) || plan.results.iter().all(|s| s.place(axis) != Place::Partial)
        }
        AxisUse::Repeats | AxisUse::PassesSums(_) => true,
    };
    plan.uses.iter().enumerate().all(is_kept)
}

/// Weights and moments, and what is made of them or makes them anew element by element.
fn find_params(program: &Program<'_>) -> EntitySet<CutId> {
    let mut params: EntitySet<CutId> = EntitySet::new();
    params.extend(program.replaced.iter().flatten().copied());
    let is_local = |op: OpId| {
        let rule = program.module.inst(program.ops[op].inst).opcode.row().factors;
        matches!(rule, FactorRule::Elementwise | FactorRule::Transpose | FactorRule::Reshape)
    };
    loop {
        let n_before = params.iter().count();
        for (id, op) in program.ops.iter().filter(|(id, _)| is_local(*id)) {
            let ends = || op.operands.iter().chain(&op.results).filter_map(|value| value.expand());
            let is_array = |value: CutId| !program.values[value].dims.is_empty() && !program.values[value].is_free;
            if ends().any(|value| params.contains(value)) {
                params.extend(ends().filter(|&value| is_array(value)));
            }
            debug_assert!(program.ops.is_valid(id));
        }
        if params.iter().count() == n_before {
            return params;
        }
    }
}

fn forbidden_factors(
    parts: &[Part],
    program: &Program<'_>,
    roles: &Roles,
    of_params: &EntitySet<CutId>,
    op: OpId,
) -> Vec<FactorId> {
    let op = &program.ops[op];
    let Some(factors) = &op.factors else { return Vec::new() };
    let batch = roles.batch_factor(op);
    let has = |tensor: &TensorFactors, factor: FactorId| tensor.iter().flatten().any(|one| one.factor == factor);
    let tensors = || op.operands.iter().zip(&factors.operands).chain(op.results.iter().zip(&factors.results));
    let part_of = |factor: FactorId| {
        let is_reduced = factors.uses(factor).any(|one| matches!(one.role, FactorRole::Reduce(_)))
            || factors.results.iter().all(|tensor| !has(tensor, factor));
        let of_param = tensors()
            .any(|(value, tensor)| value.expand().is_some_and(|v| of_params.contains(v)) && has(tensor, factor));
        match (is_reduced, of_param) {
            (true, _) => Part::ReductionCuts,
            (false, true) => Part::ParameterCuts,
            (false, false) => Part::AttributeCuts,
        }
    };
    let all = 0..factors.factors.len();
    all.filter(|&factor| batch != Some(factor) && parts.contains(&part_of(factor))).collect()
}

/// Whether an op is a product whose result an elementwise op takes.
fn is_fused(program: &Program<'_>, op: OpId) -> bool {
    let rule = |op: OpId| program.module.inst(program.ops[op].inst).opcode.row().factors;
    let is_product = matches!(rule(op), FactorRule::Dot | FactorRule::Convolution);
    let results = program.ops[op].results.iter().filter_map(|value| value.expand());
    let mut takers = results.flat_map(|value| &program.values[value].takers);
    is_product && takers.any(|(taker, _)| taker.op().is_some_and(|taker| rule(taker) == FactorRule::Elementwise))
}
