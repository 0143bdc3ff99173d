//! What entry parameters are for, and along which dim values hold the batch.
//!
//! A parameter whose memory a result takes is *state*. State that an op with weights takes (a product, a convolution, a gather), through
//! ops that move or convert it, is a *weight*; other state is a *moment*. Every other parameter is *data*, and its first dim the batch.
//! The batch dim is followed through ops by their factors; where a reshape merges it with others it has to be the major one.
//!
//! Only the plans to compare with ([`crate::baselines`]) and the report rest on this.

use crate::program::{CutId, OpId, Program, SearchOp, Taker};
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_ir::factors::{FactorId, FactorRole, TensorFactors};
use hlo_ir::op::{FactorRule, Linear, Reads};

/// What an entry parameter is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Weight,
    Moment,
    Data,
}

/// Roles of parameters and batch dims of values.
pub(crate) struct Roles {
    pub of_param: SecondaryMap<CutId, Option<Role>>,
    /// The dim along which a value holds the batch.
    pub batch_dim: SecondaryMap<CutId, Option<u8>>,
}

/// How many ops may stand between a weight and the op that takes it.
const MOST_STEPS: usize = 8;

/// How often the batch is followed round loops.
const MOST_ROUNDS: usize = 4;

impl Roles {
    /// Finds the roles of a program's parameters.
    pub(crate) fn find(program: &Program<'_>) -> Roles {
        let mut is_state: EntitySet<CutId> = EntitySet::new();
        is_state.extend(program.replaced.iter().flatten().copied());
        let mut roles = Roles { of_param: SecondaryMap::new(), batch_dim: SecondaryMap::new() };
        for (id, value) in program.values.iter().filter(|(_, value)| value.is_param) {
            let role = match (is_state.contains(id), is_weight(program, id, MOST_STEPS)) {
                (true, true) => Role::Weight,
                (true, false) => Role::Moment,
                (false, _) => Role::Data,
            };
            roles.of_param[id] = Some(role);
            if role == Role::Data && value.dims.first().is_some_and(|&size| size > 1) {
                roles.batch_dim[id] = Some(0);
            }
        }
        roles.follow(program);
        roles
    }

    /// The factor of an op that is the batch.
    pub(crate) fn batch_factor(&self, op: &SearchOp) -> Option<FactorId> {
        let factors = op.factors.as_ref()?;
        op.operands.iter().zip(&factors.operands).find_map(|(value, tensor)| {
            let dim = usize::from(self.batch_dim[value.expand()?]?);
            leading(tensor, dim)
        })
    }

    fn follow(&mut self, program: &Program<'_>) {
        for _ in 0..MOST_ROUNDS {
            let mut is_changed = false;
            for op in program.ops.values() {
                is_changed |= self.follow_op(op);
            }
            for (id, value) in &program.values {
                for (taker, _) in &value.takers {
                    if let Taker::Becomes(other) = *taker
                        && self.batch_dim[id].is_some()
                        && self.batch_dim[other].is_none()
                    {
                        self.batch_dim[other] = self.batch_dim[id];
                        is_changed = true;
                    }
                }
            }
            if !is_changed {
                return;
            }
        }
    }

    fn follow_op(&mut self, op: &SearchOp) -> bool {
        let (Some(factor), Some(factors)) = (self.batch_factor(op), op.factors.as_ref()) else { return false };
        let mut is_changed = false;
        for (value, tensor) in op.results.iter().zip(&factors.results) {
            let Some(value) = value.expand() else { continue };
            let dim = (0..tensor.len()).find(|&dim| leading(tensor, dim) == Some(factor));
            if let Some(dim) = dim.filter(|_| self.batch_dim[value].is_none()) {
                self.batch_dim[value] = Some(dim as u8);
                is_changed = true;
            }
        }
        is_changed
    }
}

/// The major factor of a dim that has several places.
fn leading(tensor: &TensorFactors, dim: usize) -> Option<FactorId> {
    let uses = tensor.get(dim)?;
    let wide = uses.iter().find(|one| one.size > 1)?;
    (!matches!(wide.role, FactorRole::Whole(_))).then_some(wide.factor)
}

fn is_weight(program: &Program<'_>, value: CutId, n_steps: usize) -> bool {
    program.values[value].takers.iter().any(|(taker, _)| match *taker {
        Taker::Op { op, .. } => takes_weight(program, op, n_steps),
        Taker::Becomes(other) => n_steps > 0 && is_weight(program, other, n_steps - 1),
        Taker::Exit(_) | Taker::Replaces { .. } | Taker::Whole => false,
    })
}

fn takes_weight(program: &Program<'_>, op: OpId, n_steps: usize) -> bool {
    let op = &program.ops[op];
    let rule = program.module.inst(op.inst).opcode.row().factors;
    if rule == FactorRule::Dot || rule == FactorRule::Convolution || rule == FactorRule::Gather {
        return true;
    }
    // An op that only moves elements of a weight gives a weight.
    let row = rule.row();
    let moves = row.linear == Linear::Each || row.reads == Reads::Picks;
    (moves || rule == FactorRule::Elementwise && op.operands.len() == 1) && passes_on(program, op, n_steps)
}

fn passes_on(program: &Program<'_>, op: &SearchOp, n_steps: usize) -> bool {
    n_steps > 0
        && op.results.iter().filter_map(|value| value.expand()).any(|value| is_weight(program, value, n_steps - 1))
}
