//! The double-recursive search: halves every operator once for each halving of the devices.
//!
//! For 2^k devices there are k rounds. In each, every operator with a rule of cost halves one class whose part is still even, the one of
//! least cost. On current sizes a product `[i,k] x [k,j]` costs j k / 2 / 4 along i, i k / 2 along j, i j / 2 along k; in general the cost
//! of a class is half the elements of the tensors that do not have it: these are whole on both halves, and they or their
//! gradients are exchanged. Where a neighbour was halved in this round along another dim of the tensor between them, 16 times the
//! elements of that tensor are added. Ties: the first class. Convolutions halve the batch alone; normalization and softmax the
//! first even dim, whatever is around them; pooling a dim that has no windows.
//!
//! Reference: *Automatic Parallel Strategy Search*, MindSpore's design documents, "Double Recursive Strategy Search Algorithm". The text
//! has the idea (recursive halving, operators by weight, symbolic costs) and the list of operators, not the costs. Batched products,
//! segments, gathers, reshapes and concatenations, of which nothing else is known, follow the general rule.

use super::kinds::OperatorKind;
use super::operators::{Operator, OperatorGraph, OperatorId};
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::ties::FactorEffect;
use cranelift_entity::SecondaryMap;
use hlo_ir::Module;
use hlo_ir::attrs::ConvAttrs;
use hlo_pass::{Deadline, OutOfTime};

/// In which order operators are halved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SearchOrder {
    /// From the last one to the first.
    Topological,
    /// The heaviest first: normalization and softmax, then products by the largest of their costs; of equals the later one.
    Weight,
}

/// How much an element of a tensor counts that two operators halve along different dims.
const REDISTRIBUTION_WEIGHT: f64 = 16.0;

/// How much less it costs to halve the rows of a product: its weights' gradients are summed.
const ROWS_WEIGHT: f64 = 0.25;

/// One halving of an operator.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Halving {
    /// The class that is halved.
    pub class: usize,
    pub cost: f64,
    /// The next best class.
    pub runner_up: Option<(usize, f64)>,
}

/// The halvings of every operator.
pub(super) struct Halvings {
    /// How many parts each class has.
    pub cuts: SecondaryMap<OperatorId, Vec<i64>>,
    /// By round.
    pub rounds: SecondaryMap<OperatorId, Vec<Option<Halving>>>,
    /// Operators with a rule of cost, as they were visited.
    pub order: Vec<OperatorId>,
}

/// What a rule of cost says of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// Products: the first class is rows.
    Product,
    /// The batch alone.
    Batch,
    /// What no window slides over.
    Still,
    /// The first even dim, whatever the neighbours have.
    First,
    /// Any class, by what the tensors without it hold.
    General,
}

fn rule_of(kind: OperatorKind) -> Option<Rule> {
    match kind {
        OperatorKind::MatMul => Some(Rule::Product),
        OperatorKind::Conv2d | OperatorKind::Conv2dTranspose => Some(Rule::Batch),
        OperatorKind::Pooling => Some(Rule::Still),
        OperatorKind::BatchNorm | OperatorKind::Softmax | OperatorKind::SoftmaxCrossEntropy => Some(Rule::First),
        OperatorKind::BatchMatMul
        | OperatorKind::Elementwise
        | OperatorKind::PRelu
        | OperatorKind::UnsortedSegment
        | OperatorKind::Gather
        | OperatorKind::Reshape
        | OperatorKind::Concat => Some(Rule::General),
        OperatorKind::Broadcast | OperatorKind::Other => None,
    }
}

/// The class of a product's rows: the first of its left operand that is not summed over.
fn rows_class(operator: &Operator) -> Option<usize> {
    let classes = operator.inputs.first()?.classes.iter().map(|&class| usize::from(class));
    classes.into_iter().find(|&class| operator.classes[class].effect == FactorEffect::Pass)
}

/// A search over the operators of a program.
pub(super) struct Search<'a> {
    pub module: &'a Module,
    pub graph: &'a ShardingGraph,
    pub operators: &'a OperatorGraph,
    pub deadline: Deadline,
}

impl Search<'_> {
    /// Halves all operators `n_rounds` times.
    ///
    /// # Errors
    /// The time is over.
    pub(super) fn run(&self, n_rounds: usize, order: SearchOrder) -> Result<Halvings, OutOfTime> {
        let mut cuts: SecondaryMap<OperatorId, Vec<i64>> = SecondaryMap::new();
        for (id, operator) in &self.operators.operators {
            cuts[id] = vec![1; operator.classes.len()];
        }
        let order = self.visited(&cuts, order);
        let mut rounds: SecondaryMap<OperatorId, Vec<Option<Halving>>> = SecondaryMap::new();
        for _ in 0..n_rounds {
            let mut halved: SecondaryMap<OperatorId, Option<usize>> = SecondaryMap::new();
            for &id in &order {
                self.deadline.check()?;
                let choice = self.halve(id, &cuts[id], &halved);
                if let Some(choice) = choice {
                    cuts[id][choice.class] *= 2;
                }
                // An operator that has nothing even left is whole on both halves, and its neighbours may know.
                halved[id] = Some(choice.map_or(usize::MAX, |choice| choice.class));
                rounds[id].push(choice);
            }
        }
        Ok(Halvings { cuts, rounds, order })
    }

    fn visited(&self, cuts: &SecondaryMap<OperatorId, Vec<i64>>, order: SearchOrder) -> Vec<OperatorId> {
        let has_rule = |id: &OperatorId| rule_of(self.operators.operators[*id].kind).is_some();
        let mut ids: Vec<OperatorId> = self.operators.topological().into_iter().filter(has_rule).collect();
        ids.reverse();
        if order == SearchOrder::Weight {
            let mut weighed: Vec<(f64, OperatorId)> =
                ids.into_iter().map(|id| (self.weight(id, &cuts[id]), id)).collect();
            // Stable: of equals the later one stays first.
            weighed.sort_by(|a, b| b.0.total_cmp(&a.0));
            ids = weighed.into_iter().map(|(_, id)| id).collect();
        }
        ids
    }

    fn weight(&self, id: OperatorId, cuts: &[i64]) -> f64 {
        let operator = &self.operators.operators[id];
        match rule_of(operator.kind) {
            Some(Rule::First) => f64::INFINITY,
            Some(Rule::Product | Rule::Batch | Rule::General) => {
                let costs = (0..operator.classes.len()).map(|class| self.own_cost(operator, class, cuts));
                costs.fold(0.0, f64::max)
            }
            Some(Rule::Still) | None => 0.0,
        }
    }

    fn halve(&self, id: OperatorId, cuts: &[i64], halved: &SecondaryMap<OperatorId, Option<usize>>) -> Option<Halving> {
        let operator = &self.operators.operators[id];
        let rule = rule_of(operator.kind)?;
        let mut costs: Vec<(usize, f64)> = Vec::new();
        for class in self.even_classes(operator, rule, cuts) {
            let cost = match rule {
                Rule::First => 0.0,
                Rule::Still => self.between(id, class, cuts, halved),
                Rule::Product | Rule::Batch | Rule::General => {
                    self.own_cost(operator, class, cuts) + self.between(id, class, cuts, halved)
                }
            };
            costs.push((class, cost));
        }
        // Stable: of equals the first class.
        costs.sort_by(|a, b| a.1.total_cmp(&b.1));
        let &(class, cost) = costs.first()?;
        Some(Halving { class, cost, runner_up: costs.get(1).copied() })
    }

    /// The classes that may be halved once more.
    fn even_classes(&self, operator: &Operator, rule: Rule, cuts: &[i64]) -> Vec<usize> {
        let n_named = super::layouts::n_named(operator);
        let is_even = |&class: &usize| {
            let of_class = &operator.classes[class];
            of_class.why_whole().is_none() && (of_class.granule / cuts[class]) % 2 == 0
        };
        let even = (0..n_named).filter(is_even);
        match rule {
            Rule::General => even.collect(),
            Rule::Product => {
                // Rows, columns, and what is summed over.
                let mut classes: Vec<usize> = even.collect();
                classes.sort_by_key(|&class| operator.classes[class].effect == FactorEffect::Reduce);
                classes
            }
            Rule::First => even.take(1).collect(),
            Rule::Still => even.filter(|&class| operator.classes[class].effect == FactorEffect::Pass).collect(),
            Rule::Batch => {
                let batch = self.batch_class(operator);
                even.filter(|&class| Some(class) == batch).collect()
            }
        }
    }

    /// The class of a convolution's batch.
    fn batch_class(&self, operator: &Operator) -> Option<usize> {
        let is_conv = |port: &&super::operators::Port| {
            port.users
                .first()
                .is_some_and(|&(inst, k)| k == 0 && ConvAttrs::of(&self.module.inst(inst).attrs).is_some())
        };
        let port = operator.inputs.iter().find(is_conv)?;
        let &(inst, _) = port.users.first()?;
        let conv = ConvAttrs::of(&self.module.inst(inst).attrs)?;
        let dim = usize::try_from(conv.dim_labels.input_batch).ok()?;
        port.classes.get(dim).map(|&class| usize::from(class))
    }

    /// Elements of a tensor of an operator, on one device as it is cut.
    fn size(&self, port: &super::operators::Port, cuts: &[i64]) -> f64 {
        let parts: f64 = port.classes.iter().map(|&class| cuts[usize::from(class)] as f64).product();
        self.graph.values[port.value].n_elems as f64 / parts
    }

    /// What halving a class costs within the operator: half of what the tensors without it hold; of rows of a product a quarter of that.
    fn own_cost(&self, operator: &Operator, class: usize, cuts: &[i64]) -> f64 {
        let ports = operator.inputs.iter().chain(&operator.outputs);
        let without = ports.filter(|port| !port.classes.iter().any(|&other| usize::from(other) == class));
        // Nothing is exchanged of what is computed from nothing.
        let is_moved = |port: &&super::operators::Port| self.graph.values[port.value].elem_bytes > 0;
        let half = without.filter(is_moved).map(|port| self.size(port, cuts)).sum::<f64>() / 2.0;
        let is_rows = rule_of(operator.kind) == Some(Rule::Product) && rows_class(operator) == Some(class);
        if is_rows { half * ROWS_WEIGHT } else { half }
    }

    /// What neighbours that were halved otherwise in this round add.
    fn between(
        &self,
        id: OperatorId,
        class: usize,
        cuts: &[i64],
        halved: &SecondaryMap<OperatorId, Option<usize>>,
    ) -> f64 {
        let operator = &self.operators.operators[id];
        let halved_dim = |classes: &[u16], class: usize| classes.iter().position(|&one| usize::from(one) == class);
        let mut cost = 0.0;
        for port in &operator.inputs {
            let Some(giver) = self.operators.producer(port.value).filter(|&giver| giver != id) else { continue };
            let Some(theirs) = halved[giver] else { continue };
            let given = self.operators.operators[giver].outputs.iter().find(|other| other.value == port.value);
            let dim = given.and_then(|given| halved_dim(&given.classes, theirs));
            if dim != halved_dim(&port.classes, class) {
                cost += REDISTRIBUTION_WEIGHT * self.size(port, cuts);
            }
        }
        for port in &operator.outputs {
            for &(taker, input) in self.operators.takers(port.value).iter().filter(|(taker, _)| *taker != id) {
                let Some(theirs) = halved[taker] else { continue };
                let taken = self.operators.operators[taker].inputs.get(usize::from(input));
                let dim = taken.and_then(|taken| halved_dim(&taken.classes, theirs));
                if dim != halved_dim(&port.classes, class) {
                    cost += REDISTRIBUTION_WEIGHT * self.size(port, cuts);
                }
            }
        }
        cost
    }
}
