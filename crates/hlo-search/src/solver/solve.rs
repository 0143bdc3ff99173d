//! The face of the solver: what is asked, what comes out, and the order of its phases.

use super::facts::{Eliminations, PhaseFact, Search};
use super::limits::{demand_only, has_demands};
use super::model::Model;
use super::problem::{Assignment, Cost, INFINITE, Problem, VarId};
use super::search::{Task, minimize};
use super::tables::is_infinite;
use super::tied::tied_states;
use super::within::{Beginning, minimize_within};
use cranelift_entity::SecondaryMap;

/// What is to be minimized, and how far.
pub(crate) struct SolveRequest<'a> {
    pub problem: &'a Problem,
    /// Assignments that others found. What comes out is at least as good as the best one that is allowed; the others are only
    /// where descents begin.
    pub starts: &'a [Assignment],
    /// By variable, a class: for one of the upper bounds the variables of a class take the same state. The lower bound ties nothing.
    pub repeats: Option<&'a SecondaryMap<VarId, u32>>,
    /// How many table entries may be read, about. The same effort gives the same result in every run.
    pub effort: u64,
    /// A cost that others reached: the search ends as soon as the lower bound does.
    pub cutoff: Option<Cost>,
    /// The gap that is small enough, relative to the cost; 0 asks for the least cost.
    pub wanted_gap: f64,
    /// Asked now and then whether time is over.
    pub is_over: &'a (dyn Fn() -> bool + Sync),
    /// Told the bound and the best cost as they get better.
    pub progress: &'a dyn Fn(Progress),
}

/// How far a search has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub lower_bound: Cost,
    /// [`INFINITE`] while there is no assignment.
    pub cost: Cost,
}

/// What came out.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Solved {
    /// The best assignment within all limits, if one was found.
    pub assignment: Option<Assignment>,
    /// What it costs; [`INFINITE`] without one.
    pub cost: Cost,
    /// No assignment within the limits costs less. [`INFINITE`] where there is none.
    pub lower_bound: Cost,
    /// Whether cost and bound differ by at most 1e-9 of the cost.
    pub is_exact: bool,
    /// Whether the bound reached the request's cutoff: the bound is no higher than that.
    pub was_bounded: bool,
    /// Whether time was over: another run may end elsewhere.
    pub was_stopped: bool,
    pub n_steps: u64,
    pub phases: Vec<PhaseFact>,
    /// Where nothing was found, by constraint; otherwise empty.
    pub least_demands: Vec<LeastDemand>,
}

/// How little can be taken of a limit, the others and the cost not looked at.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LeastDemand {
    pub lower_bound: u64,
    /// None where no assignment is allowed, or none was found in time.
    pub found: Option<u64>,
    /// The assignment that takes it.
    pub assignment: Option<Assignment>,
}

/// Minimizes a problem.
pub(crate) fn solve(request: &SolveRequest) -> Solved {
    solve_with(request, Eliminations::default())
}

/// Minimizes a problem, with what elimination may cost.
pub(super) fn solve_with(request: &SolveRequest, eliminations: Eliminations) -> Solved {
    let progress = |lower_bound, cost| (request.progress)(Progress { lower_bound, cost });
    let is_over = || (request.is_over)();
    let mut search = Search { eliminations, ..Search::new(request.effort, &is_over, &progress) };
    let model = Model::of_problem(request.problem);
    let mut best = Best::of_starts(request);
    let outside = request.cutoff.unwrap_or(INFINITE);
    let task = Task { start: None, cutoff: INFINITE, gap: request.wanted_gap, outside: 0, depth: 0 };
    if let Some(classes) = request.repeats {
        let tied = tied_states(&mut search, &model, classes, task);
        tied.into_iter().for_each(|states| best.offer(request.problem, states.into_iter().collect()));
    }
    search.best.1 = best.cost;
    let start: Option<Vec<u32>> = best.states.as_ref().map(|states| states.values().copied().collect());
    let task = Task { start: start.as_deref(), cutoff: best.cost.min(outside), ..task };
    let outcome = if has_demands(&model) {
        let starts: Vec<Vec<u32>> = request.starts.iter().map(|start| start.values().copied().collect()).collect();
        minimize_within(&mut search, model.clone(), task, Beginning { prices: None, starts: &starts })
    } else {
        minimize(&mut search, model.clone(), task)
    };
    outcome.states.into_iter().for_each(|states| best.offer(request.problem, states.into_iter().collect()));
    let least_demands = if best.states.is_none() { least_demands(&mut search, &model, task) } else { Vec::new() };
    let lower_bound = outcome.bound.min(best.cost).min(outside);
    let gap = (best.cost - lower_bound) as f64;
    Solved {
        is_exact: best.states.is_some() && gap <= 1e-9 * (best.cost as f64).abs(),
        assignment: best.states,
        cost: best.cost,
        lower_bound,
        was_bounded: outside < best.cost && lower_bound >= outside,
        was_stopped: search.was_stopped,
        n_steps: search.n_steps,
        phases: search.phases,
        least_demands,
    }
}

/// The best assignment within the limits.
struct Best {
    cost: Cost,
    states: Option<Assignment>,
}

impl Best {
    fn of_starts(request: &SolveRequest) -> Self {
        let mut best = Best { cost: INFINITE, states: None };
        request.starts.iter().for_each(|start| best.offer(request.problem, start.clone()));
        best
    }

    fn offer(&mut self, problem: &Problem, states: Assignment) {
        let cost = problem.cost(&states);
        if cost < self.cost && !is_infinite(cost) && problem.is_within_limits(&states) {
            (self.cost, self.states) = (cost, Some(states));
        }
    }
}

/// The least that can be taken of each limit, whatever it costs.
fn least_demands(search: &mut Search, model: &Model, task: Task) -> Vec<LeastDemand> {
    let least = |limit: usize| {
        let task = Task { start: None, cutoff: INFINITE, ..task };
        let left = search.effort.saturating_sub(search.n_steps);
        search.effort = search.n_steps.saturating_add(left.max(LEAST_DEMAND_EFFORT));
        let outcome = search.aside(|search| minimize(search, demand_only(model, limit), task));
        let amount = |cost: Cost| u64::try_from(cost.max(0)).unwrap_or(0);
        LeastDemand {
            lower_bound: amount(outcome.bound),
            found: outcome.states.is_some().then(|| amount(outcome.cost)),
            assignment: outcome.states.map(|states| states.into_iter().collect()),
        }
    };
    (0..model.limits.len()).map(least).collect()
}

/// The table entries that may be read for each limit where nothing was found, when the effort was used up before.
const LEAST_DEMAND_EFFORT: u64 = 1 << 28;
