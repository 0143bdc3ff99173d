//! What a collective op does, as data: one descriptor for each, a column of the op table.
//!
//! A collective takes one value from each device of a group and gives one value to each. Its [`CollectiveRule`] says from
//! where a member receives, whether it receives a part, whether parts are joined, and whether the op waits for the
//! outcome. Shape inference, the verifier, the evaluator, the replication analysis and the GPU backend read the
//! descriptor, so none of them names an opcode. [`crate::collective`] holds the view of an instruction's attributes.
//!
//! | op | source | scatters | gathers |
//! |---|---|---|---|
//! | all-reduce | reduction | | |
//! | reduce-scatter | reduction | yes | |
//! | all-gather | members | | yes |
//! | all-to-all | members | yes | yes |
//! | ragged-all-to-all | rows | | |
//! | collective-broadcast | root | | |
//! | collective-permute | pair | | |

// circle: a done names the opcode of its start, and the rows of the table name these descriptors

use super::{
    Begun, CostRule, Effects, EvalRoutine, EvalRule, FactorRule, Flow, LockstepRoutine, OpKind, Opcode, RuleColumns,
    ShapeRule, Signs,
};

/// What a collective op does with the values of the devices that take part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectiveRule {
    /// From where a member receives.
    pub source: CollectiveSource,
    /// Member `k` receives the `k`-th part along `dimensions` of what the source has, not the whole.
    pub scatters: bool,
    /// What a member receives from several devices is joined along `dimensions`, in group order.
    pub gathers: bool,
    /// Whether the op waits for the outcome.
    pub form: CollectiveForm,
}

/// From where a member of a group receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectiveSource {
    /// The reduction of all members' operands, element by element, by the computation `to_apply`.
    Reduction,
    /// All members, in group order.
    Members,
    /// The first member of the group. A device that is in no group gets zeros.
    Root,
    /// The source of the pair whose target is the device. A device that is no target gets zeros.
    Pair,
    /// Rows of all members, at offsets and in numbers that operands give at run time.
    Rows,
}

/// Who takes part in a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Participation {
    /// Each device in one group, and all groups have one size.
    EvenGroups,
    /// Each device in one group.
    Groups,
    /// Some devices, each in one group.
    SomeGroups,
    /// Sources and targets of pairs.
    Pairs,
}

/// Whether a collective op waits for its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectiveForm {
    /// The op gives its outcome.
    Synchronous,
    /// The op begins the exchange. Its done gives the outcome.
    Start(StartResult),
    /// The op ends the exchange that a start with this opcode and this result began.
    Done(Opcode, StartResult),
}

/// The shape of a start's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartResult {
    /// The outcome, as in the synchronous form.
    Outcome,
    /// `(operands, outcome)`.
    OperandsAndOutcome,
    /// `(operands, outcome, context…)`, where the contexts belong to the runtime and may have any shape.
    OperandsOutcomeAndContext,
}

const fn synchronous(source: CollectiveSource, scatters: bool, gathers: bool) -> CollectiveRule {
    CollectiveRule { source, scatters, gathers, form: CollectiveForm::Synchronous }
}

pub(super) const ALL_REDUCE: CollectiveRule = synchronous(CollectiveSource::Reduction, false, false);
pub(super) const REDUCE_SCATTER: CollectiveRule = synchronous(CollectiveSource::Reduction, true, false);
pub(super) const ALL_GATHER: CollectiveRule = synchronous(CollectiveSource::Members, false, true);
pub(super) const ALL_TO_ALL: CollectiveRule = synchronous(CollectiveSource::Members, true, true);
pub(super) const RAGGED_ALL_TO_ALL: CollectiveRule = synchronous(CollectiveSource::Rows, false, false);
pub(super) const COLLECTIVE_BROADCAST: CollectiveRule = synchronous(CollectiveSource::Root, false, false);
pub(super) const COLLECTIVE_PERMUTE: CollectiveRule = synchronous(CollectiveSource::Pair, false, false);

impl CollectiveRule {
    /// The op that begins this exchange.
    pub(super) const fn start(self, result: StartResult) -> CollectiveRule {
        CollectiveRule { form: CollectiveForm::Start(result), ..self }
    }

    /// The op that ends this exchange, begun by `start` with the result `result`.
    pub(super) const fn done(self, start: Opcode, result: StartResult) -> CollectiveRule {
        CollectiveRule { form: CollectiveForm::Done(start, result), ..self }
    }

    /// Whether a computation reduces the operands.
    pub const fn reduces(self) -> bool {
        matches!(self.source, CollectiveSource::Reduction)
    }

    /// Whether parts of all members change places: each member's operand is cut, and what a member receives is joined.
    pub const fn exchanges_parts(self) -> bool {
        self.scatters && self.gathers
    }

    /// Whether the attribute `dimensions` names a dim that is cut or joined.
    pub const fn has_dim(self) -> bool {
        self.scatters || self.gathers
    }

    /// Whether the result is `(operands, outcome, …)`, as that of most starts.
    pub const fn has_operands_in_result(self) -> bool {
        match self.form {
            CollectiveForm::Start(StartResult::OperandsAndOutcome | StartResult::OperandsOutcomeAndContext) => true,
            CollectiveForm::Start(StartResult::Outcome) | CollectiveForm::Synchronous | CollectiveForm::Done(..) => {
                false
            }
        }
    }

    /// Who takes part. Parts are equal, so the groups of an op that cuts or joins arrays have one size.
    pub const fn participation(self) -> Participation {
        match self.source {
            CollectiveSource::Reduction | CollectiveSource::Members if self.has_dim() => Participation::EvenGroups,
            CollectiveSource::Reduction | CollectiveSource::Members => Participation::Groups,
            CollectiveSource::Rows => Participation::EvenGroups,
            CollectiveSource::Root => Participation::SomeGroups,
            CollectiveSource::Pair => Participation::Pairs,
        }
    }

    /// The columns of the op's row.
    pub(super) const fn columns(self) -> RuleColumns {
        RuleColumns {
            shape: self.shape_rule(),
            factors: FactorRule::Whole("already a collective"),
            eval: EvalRule::Routine(EvalRoutine::Lockstep(self.eval_routine())),
            cost: self.cost_rule(),
            effects: Effects::Communicates,
            flow: self.flow(),
            kind: OpKind::Collective,
            collective: Some(self),
            signs: if self.reduces() { Signs::UNKNOWN } else { Signs::KEPT },
        }
    }

    /// How the result's shape follows: a done takes its start's result apart.
    const fn shape_rule(self) -> ShapeRule {
        match self.form {
            CollectiveForm::Synchronous | CollectiveForm::Start(_) => ShapeRule::Collective(self),
            CollectiveForm::Done(_, StartResult::Outcome) => ShapeRule::FirstOperand,
            CollectiveForm::Done(_, StartResult::OperandsAndOutcome | StartResult::OperandsOutcomeAndContext) => {
                ShapeRule::DoneOfPair
            }
        }
    }

    /// How the evaluator computes the op: the exchange takes place at the start.
    const fn eval_routine(self) -> LockstepRoutine {
        match self.form {
            CollectiveForm::Synchronous | CollectiveForm::Start(_) => LockstepRoutine::Collective(self),
            CollectiveForm::Done(..) => LockstepRoutine::AsyncDone,
        }
    }

    /// What the op costs: the start pays for the exchange.
    const fn cost_rule(self) -> CostRule {
        match self.form {
            CollectiveForm::Synchronous | CollectiveForm::Start(_) => CostRule::Communication,
            CollectiveForm::Done(..) => CostRule::Free,
        }
    }

    /// How tuple leaves of operands reach the result.
    const fn flow(self) -> Flow {
        match self.form {
            CollectiveForm::Synchronous => Flow::Collective(self),
            CollectiveForm::Start(_) => Flow::AsyncStart(Begun::Collective(self)),
            CollectiveForm::Done(..) => Flow::AsyncDone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::AttrFormat;
    use crate::op::Effects;

    #[test]
    fn descriptors_agree_with_the_attributes_of_their_ops() {
        for row in Opcode::ALL.iter().map(|op| op.row()) {
            let name = row.name;
            assert_eq!(row.collective.is_some(), row.effects == Effects::Communicates, "{name}");
            let Some(rule) = row.collective else { continue };
            let fits = match row.format {
                AttrFormat::Combining => rule.reduces(),
                AttrFormat::Gathering => !rule.reduces() && rule.gathers && !rule.scatters,
                AttrFormat::Exchanging => !rule.reduces() && rule.participation() != Participation::Pairs,
                AttrFormat::Permuting => rule.participation() == Participation::Pairs,
                AttrFormat::Plain => matches!(rule.form, CollectiveForm::Done(..)),
                _ => false,
            };
            assert!(fits, "{name}: {rule:?}");
        }
    }

    #[test]
    fn each_done_has_the_start_of_its_exchange() {
        let mut n_dones = 0;
        for rule in Opcode::ALL.iter().filter_map(|op| op.row().collective) {
            let CollectiveForm::Done(start, result) = rule.form else { continue };
            assert_eq!(start.row().collective, Some(rule.start(result)), "{start}");
            n_dones += 1;
        }
        let is_start =
            |op: &&Opcode| matches!(op.row().collective, Some(r) if matches!(r.form, CollectiveForm::Start(_)));
        assert_eq!(n_dones, Opcode::ALL.iter().filter(is_start).count());
        assert_eq!(n_dones, 3);
    }

    #[test]
    fn only_what_cuts_or_joins_needs_groups_of_one_size() {
        assert_eq!(ALL_REDUCE.participation(), Participation::Groups);
        assert_eq!(REDUCE_SCATTER.participation(), Participation::EvenGroups);
        assert_eq!(ALL_GATHER.participation(), Participation::EvenGroups);
        assert_eq!(RAGGED_ALL_TO_ALL.participation(), Participation::EvenGroups);
        assert_eq!(COLLECTIVE_BROADCAST.participation(), Participation::SomeGroups);
    }
}
