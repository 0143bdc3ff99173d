//! The face of the solver: what is asked, what comes out, and the order of its stages.

use super::model::Model;
use super::problem::{Assignment, Cost, INFINITE, Problem, VarId};
use super::search::{Eliminations, Search, Task, minimize};
use super::tables::is_infinite;
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
    pub was_cut: bool,
    /// Whether time was over: another run may end elsewhere.
    pub was_stopped: bool,
    pub n_steps: u64,
}

/// Minimizes a problem.
pub(crate) fn solve(request: &SolveRequest) -> Solved {
    solve_with(request, Eliminations::default())
}

/// Minimizes a problem, with what elimination may cost.
pub(super) fn solve_with(request: &SolveRequest, eliminations: Eliminations) -> Solved {
    let problem = request.problem;
    let mut best = best_start(request);
    let report = |lower_bound, cost| (request.progress)(Progress { lower_bound, cost });
    let is_over = || (request.is_over)();
    let effort = request.effort;
    let mut search =
        Search { effort, n_steps: 0, is_over: &is_over, was_stopped: false, report: &report, eliminations };
    let outside = request.cutoff.unwrap_or(INFINITE);
    let cost = best.as_ref().map_or(INFINITE, |(cost, _)| *cost);
    let start: Option<Vec<u32>> = best.as_ref().map(|(_, states)| states.values().copied().collect());
    let slack = if is_infinite(cost) { 0 } else { (cost as f64 * request.wanted_gap) as Cost };
    let task = Task { start: start.as_deref(), cutoff: cost.min(outside), slack, depth: 0 };
    let outcome = minimize(&mut search, Model::of_problem(problem), task);
    if let Some(states) = outcome.states {
        if outcome.cost < cost {
            best = Some((outcome.cost, states.into_iter().collect()));
        }
    }
    let (cost, assignment) = best.map_or((INFINITE, None), |(cost, states)| (cost, Some(states)));
    let lower_bound = outcome.bound.min(cost).min(outside);
    Solved {
        assignment,
        cost,
        lower_bound,
        is_exact: !is_infinite(cost) && (cost - lower_bound) as f64 <= 1e-9 * (cost as f64).abs(),
        was_cut: outside < cost && lower_bound >= outside,
        was_stopped: search.was_stopped,
        n_steps: search.n_steps,
    }
}

fn best_start(request: &SolveRequest) -> Option<(Cost, Assignment)> {
    let allowed = request.starts.iter().filter(|start| request.problem.is_within_limits(start));
    let with_cost = allowed.map(|start| (request.problem.cost(start), start));
    let best = with_cost.filter(|(cost, _)| !is_infinite(*cost)).min_by_key(|(cost, _)| *cost)?;
    Some((best.0, best.1.clone()))
}
