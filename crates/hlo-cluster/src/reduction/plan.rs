//! The planner: for one reduction the best program on every placement, for several the best placement.

use crate::collective::{Algo, Collective};
use crate::error::ClusterError;
use crate::reduction::cost::StepCosts;
use crate::reduction::graph::{Graph, Vocabulary};
use crate::reduction::instruction::{InstructionForm, ReductionInstruction, ReductionStep};
use crate::reduction::matrix::{Lowering, ParallelismMatrix};
use crate::reduction::paths::{Priced, ReductionProgram, is_less};
use crate::reduction::placed::{PlacedReduction, factors_above_one};
use crate::reduction::semantics::Rules;
use crate::topology::Cluster;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::thread::ScopedJoinHandle;

/// What is wanted of a reduction.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// The axes that are reduced together, by number.
    pub reduce: Vec<usize>,
    /// Bytes on each device.
    pub bytes: f64,
    /// The algorithm of every step.
    pub algo: Algo,
    /// How positions are numbered; none for the better of both.
    pub lowering: Option<Lowering>,
    /// Most steps of a program.
    pub max_size: Option<usize>,
}

/// The outcome for one matrix.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixPlan {
    /// The placement.
    pub matrix: ParallelismMatrix,
    /// The lowering that was taken.
    pub lowering: Lowering,
    /// Number of programs.
    pub n_programs: u128,
    /// How many of them are faster than a single all-reduce.
    pub n_faster: u128,
    /// Predicted time of a single all-reduce, in seconds.
    pub all_reduce_s: f64,
    /// Predicted time of the best program, in seconds.
    pub best_s: f64,
    /// The best program; empty where there is nothing to reduce.
    pub best: Vec<PlannedStep>,
    /// The Pareto front of time against steps: the fastest program of each size that no shorter one beats.
    pub front: Vec<(f64, Vec<ReductionStep>)>,
}

/// One step of a program with its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedStep {
    /// Slice level and form.
    pub instruction: ReductionInstruction,
    /// The collective.
    pub collective: Collective,
    /// Groups of device ids, each in the order of its positions, the root first.
    pub groups: Vec<Vec<u32>>,
}

/// Plans reductions on one cluster under one set of rules; keeps the graphs that it has built.
pub struct Planner<'c> {
    cluster: &'c Cluster,
    levels: Vec<u32>,
    rules: Rules,
    vocabulary: Vocabulary,
    graphs: BTreeMap<usize, Graph>,
}

impl<'c> Planner<'c> {
    /// A planner for a cluster. Where its entities have different numbers of children, it plans over blocks of equal size
    /// ([`Cluster::regular_hierarchy`]): programs are synthesized on those, and cost what they do on the real links.
    pub fn new(cluster: &'c Cluster, rules: Rules) -> Planner<'c> {
        Planner::with_vocabulary(cluster, rules, Vocabulary::All)
    }

    /// A planner whose programs are made of the steps of a vocabulary only.
    pub fn with_vocabulary(cluster: &'c Cluster, rules: Rules, vocabulary: Vocabulary) -> Planner<'c> {
        Planner { cluster, levels: cluster.regular_hierarchy(), rules, vocabulary, graphs: BTreeMap::new() }
    }

    /// Level counts of the hierarchy that is planned over, outermost first.
    pub fn levels(&self) -> &[u32] {
        &self.levels
    }

    /// Plans a reduction on every matrix of these axes, in the order of the matrices.
    ///
    /// # Errors
    /// Axes that do not fit the cluster, an axis that does not exist, too many levels.
    pub fn plan_all(&mut self, axes: &[u32], request: &Request) -> Result<Vec<MatrixPlan>, ClusterError> {
        check_reduce(&request.reduce, axes.len())?;
        let matrices = ParallelismMatrix::all(&self.levels, axes)?;
        for matrix in &matrices {
            graph(&mut self.graphs, factors_above_one(matrix, &request.reduce).len(), (self.rules, self.vocabulary))?;
        }
        let planner = &*self;
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let plan_some = |some: &[ParallelismMatrix]| -> Result<Vec<MatrixPlan>, ClusterError> {
            let mut known = BTreeMap::new();
            some.iter().map(|matrix| planner.plan_known(matrix.clone(), request, &mut known)).collect()
        };
        let plans = std::thread::scope(|scope| {
            let parts = matrices.chunks(matrices.len().div_ceil(n_threads).max(1));
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || plan_some(part))).collect();
            let join = |thread: ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(plans) => plans,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
        })?;
        Ok(plans.into_iter().flatten().collect())
    }

    /// Plans a reduction on one matrix.
    ///
    /// # Errors
    /// An axis that does not exist, too many levels.
    pub fn plan(&mut self, matrix: ParallelismMatrix, request: &Request) -> Result<MatrixPlan, ClusterError> {
        check_reduce(&request.reduce, matrix.rows().len())?;
        let n_factors = factors_above_one(&matrix, &request.reduce).len();
        graph(&mut self.graphs, n_factors, (self.rules, self.vocabulary))?;
        self.plan_known(matrix, request, &mut BTreeMap::new())
    }

    /// Plans a reduction whose graph is there; `known` has what was priced by symmetry, by the reduction's factors.
    fn plan_known(
        &self,
        matrix: ParallelismMatrix,
        request: &Request,
        known: &mut BTreeMap<Vec<u32>, Numbered>,
    ) -> Result<MatrixPlan, ClusterError> {
        let factors = factors_above_one(&matrix, &request.reduce);
        let Some(graph) = self.graphs.get(&factors.len()) else {
            return Err(ClusterError::new("levels", "a state graph of their depth", "none"));
        };
        let mut chosen: Option<Numbered> = None;
        for lowering in lowerings(&matrix, request) {
            let reduction = reduction(self.cluster, &matrix, request, lowering);
            let mut costs = StepCosts::new(graph, &reduction);
            let limit_s = chosen.as_ref().map(|other| other.best_s);
            if limit_s.is_some_and(|limit_s| !is_faster(graph, &mut costs, limit_s, request.max_size)) {
                continue;
            }
            chosen = Some(match costs.is_symmetric() {
                false => Numbered::new(graph, &mut costs, request, lowering),
                true => {
                    let key = matrix.reduction_factors(&request.reduce);
                    let new = || Numbered::new(graph, &mut costs, request, lowering);
                    Numbered { lowering, ..known.entry(key).or_insert_with(new).clone() }
                }
            });
        }
        let Some(Numbered { lowering, front, n_faster, all_reduce_s, best_s }) = chosen else {
            return Err(ClusterError::new("lowering", "one at least", "none"));
        };
        let steps = |program: &ReductionProgram| planned(graph, &matrix, request, lowering, program);
        Ok(MatrixPlan {
            lowering,
            n_programs: graph.n_programs(request.max_size),
            n_faster,
            all_reduce_s,
            best_s,
            best: front.last().map(steps).unwrap_or_default(),
            front: front.iter().map(|p| (p.seconds, p.steps.iter().map(|edge| graph.step(edge)).collect())).collect(),
            matrix,
        })
    }

    /// Predicted times in seconds of all programs on a matrix, in the order of their texts.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub fn times(
        &mut self,
        matrix: &ParallelismMatrix,
        request: &Request,
        lowering: Lowering,
    ) -> Result<Vec<f64>, ClusterError> {
        check_reduce(&request.reduce, matrix.rows().len())?;
        let n_factors = factors_above_one(matrix, &request.reduce).len();
        let graph = graph(&mut self.graphs, n_factors, (self.rules, self.vocabulary))?;
        let mut costs = StepCosts::new(graph, &reduction(self.cluster, matrix, request, lowering));
        let mut times = Vec::new();
        graph.for_each_program(request.max_size.unwrap_or(usize::MAX), &mut |steps| {
            times.push(steps.iter().map(|edge| costs.seconds(edge)).sum());
        });
        Ok(times)
    }

    /// The time of the best program only: what placements are compared by.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub fn best_s(&mut self, matrix: &ParallelismMatrix, request: &Request) -> Result<f64, ClusterError> {
        check_reduce(&request.reduce, matrix.rows().len())?;
        let n_factors = factors_above_one(matrix, &request.reduce).len();
        let graph = graph(&mut self.graphs, n_factors, (self.rules, self.vocabulary))?;
        let mut least_s = f64::INFINITY;
        for lowering in lowerings(matrix, request) {
            let mut costs = StepCosts::new(graph, &reduction(self.cluster, matrix, request, lowering));
            if least_s == f64::INFINITY || is_faster(graph, &mut costs, least_s, request.max_size) {
                least_s = Priced::new(graph, |edge| costs.seconds(edge)).least_s(request.max_size);
            }
        }
        Ok(least_s)
    }
}

/// A reduction under one lowering.
#[derive(Clone)]
struct Numbered {
    lowering: Lowering,
    front: Vec<ReductionProgram>,
    n_faster: u128,
    all_reduce_s: f64,
    best_s: f64,
}

impl Numbered {
    fn new(graph: &Graph, costs: &mut StepCosts<'_>, request: &Request, lowering: Lowering) -> Numbered {
        let priced = Priced::new(graph, |edge| costs.seconds(edge));
        let front = priced.front(request.max_size);
        let all_reduce_s = costs.all_reduce_s();
        let n_faster = if front.is_empty() { 0 } else { priced.n_faster(all_reduce_s, request.max_size) };
        let best_s = front.last().map_or(0.0, |p| p.seconds);
        Numbered { lowering, front, n_faster, all_reduce_s, best_s }
    }
}

/// Whether some program is faster than `limit_s`. What takes long to price is priced only where a program that would be
/// faster with its bounds goes through it.
fn is_faster(graph: &Graph, costs: &mut StepCosts<'_>, limit_s: f64, max_size: Option<usize>) -> bool {
    loop {
        let priced = Priced::new(graph, |edge| costs.bound_s(edge).0);
        if !is_less(priced.least_s(max_size), limit_s) {
            return false;
        }
        let Some(best) = priced.best(max_size) else { return false };
        let mut are_exact = true;
        for edge in &best.steps {
            are_exact &= costs.bound_s(edge).1;
            costs.seconds(edge);
        }
        if are_exact {
            return true;
        }
    }
}

fn reduction<'a>(
    cluster: &'a Cluster,
    matrix: &'a ParallelismMatrix,
    request: &'a Request,
    lowering: Lowering,
) -> PlacedReduction<'a> {
    PlacedReduction { cluster, matrix, reduce: &request.reduce, lowering, bytes: request.bytes, algo: request.algo }
}

/// The lowerings to try; both are the same where at most one of the axes is larger than one.
fn lowerings(matrix: &ParallelismMatrix, request: &Request) -> Vec<Lowering> {
    let is_large = |i: &&usize| matrix.rows().get(**i).is_some_and(|row| row.iter().any(|x| *x > 1));
    match request.lowering {
        Some(lowering) => vec![lowering],
        None if request.reduce.iter().filter(is_large).count() < 2 => vec![Lowering::LevelMajor],
        None => vec![Lowering::LevelMajor, Lowering::AxisMajor],
    }
}

fn graph(
    graphs: &mut BTreeMap<usize, Graph>,
    n_factors: usize,
    (rules, vocabulary): (Rules, Vocabulary),
) -> Result<&Graph, ClusterError> {
    match graphs.entry(n_factors) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => Ok(entry.insert(Graph::build_with(n_factors, rules, vocabulary, true)?)),
    }
}

fn planned(
    graph: &Graph,
    matrix: &ParallelismMatrix,
    request: &Request,
    lowering: Lowering,
    program: &ReductionProgram,
) -> Vec<PlannedStep> {
    let factors = factors_above_one(matrix, &request.reduce);
    let devices = matrix.reduction_groups(&request.reduce, lowering);
    let step = |edge: &crate::reduction::graph::Edge| {
        let instruction = graph.instructions[edge.instruction as usize];
        let positions = instruction.groups(&factors);
        let of = |all: &Vec<u32>| -> Vec<Vec<u32>> {
            positions.iter().map(|group| group.iter().map(|p| all[*p]).collect()).collect()
        };
        let mut groups: Vec<Vec<u32>> = devices.iter().flat_map(of).collect();
        groups.sort_by_key(|group| group.first().copied());
        PlannedStep { instruction, collective: edge.collective, groups }
    };
    program.steps.iter().map(step).collect()
}

fn check_reduce(reduce: &[usize], n_axes: usize) -> Result<(), ClusterError> {
    let mut seen = reduce.to_vec();
    seen.sort();
    seen.dedup();
    if reduce.is_empty() || seen.len() != reduce.len() || seen.last().is_some_and(|last| *last >= n_axes) {
        let expected = format!("different axes below {n_axes}");
        return Err(ClusterError::new("reduce", expected, format!("{reduce:?}")));
    }
    Ok(())
}

impl PlannedStep {
    /// The form's name as in the paper.
    pub fn form_name(&self) -> &'static str {
        match self.instruction.form {
            InstructionForm::InsideGroup => "InsideGroup",
            InstructionForm::Parallel(_) => "Parallel",
            InstructionForm::Master(_) => "Master",
        }
    }
}
