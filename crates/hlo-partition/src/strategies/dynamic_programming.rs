//! The search by dynamic programming: the cheapest candidates of all operators together, as far as elimination reaches.
//!
//! MindSpore had such a search before the double-recursive one; the text on which this crate rests does not describe it. Here a node is an
//! operator or a parameter that several operators take, an edge a tensor between two. A candidate cuts classes along at most two axes,
//! whose sizes multiply to the number of devices. Costs are those of the partitioner ([`crate::prices`]): a device's own work, sums of
//! partial results, and redistributions; in bytes, or in seconds on a machine. [`super::elimination`] finds the choice.

use super::elimination::{Choices, CostGraph, PairCosts};
use super::kinds::OperatorKind;
use super::layouts::{Assignment, n_named, sharding_of};
use super::operators::{Operator, OperatorGraph, OperatorId, Port};
use crate::mesh::ModuleMesh;
use crate::prices::Prices;
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::ties::FactorEffect;
use crate::propagate_shardings::values::CutId;
use crate::sharding::{ArraySharding, Atom, AtomList};
use cranelift_entity::SecondaryMap;
use hlo_ir::names::FixedHash;
use hlo_ir::{ArrayShape, Module};
use hlo_pass::{Deadline, OutOfTime};
use indexmap::{IndexMap, IndexSet};
use std::sync::Arc;

/// The most candidates of an operator, those of least own cost.
const MOST_CANDIDATES: usize = 24;

/// A program whose operators are to be cut.
pub(super) struct Program<'a> {
    pub module: &'a Module,
    pub graph: &'a ShardingGraph,
    pub operators: &'a OperatorGraph,
    pub mesh: &'a ModuleMesh,
    pub prices: &'a Prices,
    pub deadline: Deadline,
}

/// What was found.
pub(super) struct Found {
    /// By operator, in the order of their numbers, with the cost of the operator itself.
    pub operators: Vec<(OperatorId, Assignment, f64)>,
    /// Parameters that several operators take.
    pub values: Vec<(CutId, ArraySharding)>,
    pub choices: Choices,
}

type EdgeKey = (ArrayShape, Vec<ArraySharding>, Vec<ArraySharding>);

impl Program<'_> {
    /// Finds the cheapest candidates.
    ///
    /// # Errors
    /// The time is over.
    pub(super) fn search(&self) -> Result<Found, OutOfTime> {
        let mut costs = CostGraph::default();
        let mut node_of: SecondaryMap<OperatorId, usize> = SecondaryMap::new();
        let mut candidates: Vec<Vec<Assignment>> = Vec::new();
        for (id, operator) in &self.operators.operators {
            self.deadline.check()?;
            let all = self.candidates(operator);
            node_of[id] = costs.add_node(all.iter().map(|(cost, _)| *cost).collect());
            candidates.push(all.into_iter().map(|(_, candidate)| candidate).collect());
        }
        let own: Vec<Vec<f64>> = costs.nodes.clone();
        let mut known: IndexMap<EdgeKey, Arc<Vec<f64>>, FixedHash> = IndexMap::default();
        let mut shared: Vec<(CutId, usize, Vec<ArraySharding>)> = Vec::new();
        let ends = |port: &Port, id: OperatorId| -> Vec<ArraySharding> {
            candidates[node_of[id]].iter().map(|candidate| sharding_of(port, candidate)).collect()
        };
        for value in self.graph.values.keys() {
            self.deadline.check()?;
            let takers = self.operators.takers(value);
            let shape = self.shape(value);
            let (Some(shape), false) = (shape, takers.is_empty()) else { continue };
            let wanted = |&(taker, input): &(OperatorId, u16)| {
                let port = self.operators.operators[taker].inputs.get(usize::from(input))?;
                Some((node_of[taker], ends(port, taker)))
            };
            let wanted: Vec<(usize, Vec<ArraySharding>)> = takers.iter().filter_map(wanted).collect();
            let giver = self.operators.producer(value).and_then(|giver| {
                let outputs = &self.operators.operators[giver].outputs;
                let port = outputs.iter().find(|port| port.value == value)?;
                Some((node_of[giver], ends(port, giver)))
            });
            let (node, from) = match giver {
                Some(giver) => giver,
                None if wanted.len() < 2 => continue,
                None => {
                    let all: IndexSet<ArraySharding, FixedHash> =
                        wanted.iter().flat_map(|(_, layouts)| layouts.iter().cloned()).collect();
                    let all: Vec<ArraySharding> = all.into_iter().take(2 * MOST_CANDIDATES).collect();
                    let node = costs.add_node(vec![0.0; all.len()]);
                    shared.push((value, node, all.clone()));
                    (node, all)
                }
            };
            for (taker, to) in wanted {
                let n_columns = to.len();
                let key = (shape.clone(), from.clone(), to);
                let pairs =
                    known.entry(key).or_insert_with_key(|(shape, from, to)| Arc::new(self.pairs(shape, from, to)));
                costs.add_edge(node, taker, PairCosts { n_columns, costs: pairs.clone() });
            }
        }
        let choices = costs.solve(self.deadline)?;
        let chosen = |id: OperatorId| {
            let (node, k) = (node_of[id], choices.of[node_of[id]]);
            Some((id, candidates[node].get(k)?.clone(), own[node].get(k).copied()?))
        };
        let operators = self.operators.operators.keys().filter_map(chosen).collect();
        let layout = |(value, node, all): (CutId, usize, Vec<ArraySharding>)| {
            Some((value, all.into_iter().nth(*choices.of.get(node)?)?))
        };
        Ok(Found { operators, values: shared.into_iter().filter_map(layout).collect(), choices })
    }

    fn pairs(&self, shape: &ArrayShape, from: &[ArraySharding], to: &[ArraySharding]) -> Vec<f64> {
        let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| self.prices.reshard(self.mesh, shape, (a, b))).collect()
    }

    /// The shape of a value that has to be moved where its layout changes.
    fn shape(&self, value: CutId) -> Option<ArrayShape> {
        let value = &self.graph.values[value];
        let shape = self.module.shapes.leaf(self.module.inst(value.inst).shape, value.leaf as usize);
        shape.and_then(|shape| shape.as_array()).filter(|_| value.elem_bytes > 0).cloned()
    }

    /// The candidates of an operator with their own costs, the cheapest first.
    fn candidates(&self, operator: &Operator) -> Vec<(f64, Assignment)> {
        let atoms: Vec<Atom> = self.mesh.atoms().collect();
        let n = n_named(operator);
        let fits = |class: usize, part: &[Atom]| {
            let of_class = &operator.classes[class];
            of_class.why_whole().is_none() && of_class.granule % self.mesh.n_places(part) == 0
        };
        let mut all: IndexSet<Assignment, FixedHash> = IndexSet::default();
        for n_major in 0..=atoms.len() {
            let (major, minor) = atoms.split_at(n_major);
            for a in (0..n).map(Some).chain([None]) {
                for b in (0..n).map(Some).chain([None]) {
                    let mut candidate: Assignment = smallvec::smallvec![AtomList::new(); operator.classes.len()];
                    for (class, part) in [(a, major), (b, minor)] {
                        if let Some(class) = class {
                            candidate[class].extend(part.iter().copied());
                        }
                    }
                    if (0..n).all(|class| candidate[class].is_empty() || fits(class, &candidate[class])) {
                        all.insert(candidate);
                    }
                }
            }
        }
        let mut priced: Vec<(f64, Assignment)> =
            all.into_iter().map(|candidate| (self.own_cost(operator, &candidate), candidate)).collect();
        priced.sort_by(|a, b| a.0.total_cmp(&b.0));
        priced.truncate(MOST_CANDIDATES);
        priced
    }

    /// A device's own work, and the sums of its partial results.
    fn own_cost(&self, operator: &Operator, candidate: &Assignment) -> f64 {
        let mut partial = AtomList::new();
        for (class, atoms) in operator.classes.iter().zip(candidate) {
            if class.effect == FactorEffect::Reduce {
                partial.extend(atoms.iter().copied());
            }
        }
        partial.sort();
        let is_product = matches!(
            operator.kind,
            OperatorKind::MatMul | OperatorKind::BatchMatMul | OperatorKind::Conv2d | OperatorKind::Conv2dTranspose
        );
        let part = |atoms: &AtomList| self.mesh.n_places(atoms) as f64;
        let local = |port: &Port| {
            let n_parts: f64 = port.classes.iter().map(|&class| part(&candidate[usize::from(class)])).product();
            self.graph.values[port.value].n_elems as f64 / n_parts
        };
        let mut cost = 0.0;
        for port in &operator.outputs {
            let Some(shape) = self.shape(port.value) else { continue };
            let whole = sharding_of(port, candidate);
            if !partial.is_empty() && operator.outputs.len() == 1 {
                let summed = ArraySharding { partial: partial.clone(), ..whole.clone() };
                cost += self.prices.reshard(self.mesh, &shape, (&summed, &whole));
            }
            let n_steps = match is_product {
                true => operator.classes.iter().zip(candidate).map(|(c, a)| c.granule as f64 / part(a)).product(),
                false => operator.inputs.iter().map(local).fold(local(port), f64::max),
            };
            cost += self.prices.work(n_steps, is_product, &shape);
        }
        cost
    }
}
