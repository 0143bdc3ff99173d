//! The search over meshes: every ordered factorization of the devices into a few axes, those with fewer axes first.
//!
//! A plan on a coarse mesh is one on each mesh that refines it, so it is a start there; and the cost of the best plan so far ends the
//! search on a mesh whose bound reaches it. Meshes of the same axes in another order are searched too, also where all links are alike:
//! which axis is the more major on a dim decides what reshapes pass on and what a gather leaves in place. The bound is the least of
//! the bounds of the meshes that were searched; the report says which ones the effort did not reach.

mod by_ways;

use crate::ablation::{Part, without};
use crate::baselines::{Allowed, BASELINES, Baseline, KnownPlan, Restricted, lift};
use crate::draw::draw_assignment;
use crate::found::{BaselineFact, Found, MeshFact, MeshOutcome, NotFound};
use crate::memory::Lifetimes;
use crate::mesh::SearchMesh;
use crate::network::{Evenness, Facts, PlanNetwork};
use crate::pins::{Pins, like_given};
use crate::plan::ChosenPlan;
use crate::prices::Prices;
use crate::program::{CutId, Program};
use crate::roles::Roles;
use crate::solver::{
    Assignment, Cost, INFINITE, LeastDemand, Problem, Progress, SolveRequest, Solved, find_repeats, solve,
};
use cranelift_entity::SecondaryMap;
use hlo_ir::axes::AxisSharding;
use hlo_mesh::{Machine, Network};
use std::thread::ScopedJoinHandle;

/// What is asked for.
#[derive(Clone)]
pub(crate) struct SearchLimits<'a> {
    /// What has to be cut into equal tiles.
    pub even: Evenness,
    /// Table entries that may be read, in all.
    pub effort: u64,
    /// The gap that is small enough, relative to the cost.
    pub wanted_gap: f64,
    /// Bytes that a device has.
    pub memory_limit: Option<u64>,
    /// The meshes to be searched.
    pub meshes: Vec<SearchMesh>,
    /// What the user fixes.
    pub pins: Pins,
    /// Only the best plan of this kind is looked for.
    pub only: Option<Baseline>,
    /// What the search is kept from.
    pub without: Vec<Part>,
    /// How another plan of the same program (MindSpore's search) cuts values.
    pub given: Option<GivenPlan>,
    /// A plan to start from.
    pub start: Option<&'a (dyn KnownPlan + Sync)>,
    /// Only plans that cost less are looked for.
    pub to_beat: Cost,
    /// Asked now and then whether time is over.
    pub is_over: &'a (dyn Fn() -> bool + Sync),
    /// Told about each mesh, the best cost and the bound so far.
    pub progress: &'a dyn Fn(&str),
}

/// By value, how a plan cuts it.
pub(crate) type GivenPlan = SecondaryMap<CutId, Option<AxisSharding>>;

/// How often a mesh is searched again because a plan exceeds the limit at another moment.
const MOST_ROUNDS: usize = 8;

/// The most plans that are kept to start from.
const MOST_KNOWN: usize = 8;

/// The most axes of a mesh on which a given plan is read.
const MOST_AXES_OF_GIVEN: usize = 2;

/// How often a search reads the tables of a mesh before its bound says much.
const ENTRIES_READ: u64 = 8;

/// Parts of the effort for one baseline, and for one mesh of those that are left.
const BASELINE_SHARE: u64 = 40;

/// Whether a plan in which layers of one kind are cut alike is one of the starts.
#[derive(Clone, Copy)]
enum Layers {
    AlsoTied,
    Free,
}

struct MeshSearch<'a, 'p, 'm> {
    facts: &'a Facts<'p, 'm>,
    roles: Roles,
    links: &'a Network,
    limits: &'a SearchLimits<'a>,
    n_steps: u64,
    best: Option<(PlanNetwork, Assignment, Cost)>,
    /// The best plan on each mesh that was searched, to start finer ones from.
    known: Vec<(PlanNetwork, Assignment)>,
    meshes: Vec<MeshFact>,
    baselines: Vec<BaselineFact>,
    was_stopped: bool,
    /// From so many axes on the effort that is left does not suffice for a mesh.
    exhausted_by: Option<usize>,
    /// The mesh that is searched, in words.
    now: String,
    lifetimes: Lifetimes,
    /// Moments at which plans exceeded the limit, and bytes that the constraint there does not count.
    moments: Vec<(u32, u64)>,
    /// Where no plan keeps the limit, the least that one took.
    least_bytes: Option<u64>,
}

/// Searches the plan of least modelled time for so many devices.
pub(crate) fn search(
    program: &Program<'_>,
    machine: &Machine,
    links: Network,
    limits: &SearchLimits<'_>,
) -> Result<Found, NotFound> {
    let facts = Facts::new(program, machine, limits.even);
    let mut search = MeshSearch {
        facts: &facts,
        links: &links,
        roles: Roles::find(program),
        limits,
        n_steps: 0,
        best: None,
        known: Vec::new(),
        meshes: Vec::new(),
        baselines: Vec::new(),
        was_stopped: false,
        now: String::new(),
        exhausted_by: None,
        moments: Vec::new(),
        least_bytes: None,
        lifetimes: Lifetimes::find(program),
    };
    search.run_all();
    search.finish()
}

/// The problem on a mesh.
fn network_of(facts: &Facts<'_, '_>, links: &Network, mesh: &SearchMesh) -> PlanNetwork {
    PlanNetwork::build(facts, &Prices::new(mesh, links))
}

/// A legal plan by chance, on a mesh by chance.
pub(crate) fn drawn(
    program: &Program<'_>,
    machine: &Machine,
    links: &Network,
    limits: &SearchLimits<'_>,
    seed: u64,
) -> Found {
    let facts = Facts::new(program, machine, limits.even);
    let none = SearchMesh { sizes: Default::default() };
    let mesh = limits.meshes.get(seed as usize % limits.meshes.len().max(1)).unwrap_or(&none);
    let prices = Prices::new(mesh, links);
    let network = PlanNetwork::build(&facts, &prices);
    let assignment = draw_assignment(&network, seed);
    let cost = network.problem.cost(&assignment);
    let peak = Lifetimes::find(program).peak(program, &ChosenPlan { network: &network, assignment: &assignment });
    Found {
        network,
        assignment,
        cost,
        lower_bound: 0,
        is_exact: false,
        was_stopped: false,
        meshes: Vec::new(),
        baselines: Vec::new(),
        peak,
    }
}

fn nothing() -> Solved {
    Solved {
        assignment: None,
        cost: INFINITE,
        lower_bound: 0,
        is_exact: false,
        was_bounded: false,
        was_stopped: false,
        n_steps: 0,
        phases: Vec::new(),
        least_demands: Vec::new(),
    }
}

impl MeshSearch<'_, '_, '_> {
    fn best_cost(&self) -> Cost {
        self.best.as_ref().map_or(INFINITE, |(_, _, cost)| *cost)
    }

    /// Searches the meshes in turn. While one is searched, another thread computes the prices of the next.
    fn run_all(&mut self) {
        let (facts, links, limits) = (self.facts, self.links, self.limits);
        std::thread::scope(|scope| {
            let mut ahead = None;
            for (k, mesh) in limits.meshes.iter().enumerate() {
                let built = ahead.take().and_then(|thread: ScopedJoinHandle<'_, PlanNetwork>| thread.join().ok());
                if !self.is_in_reach(mesh) {
                    self.meshes.push(MeshFact::new(mesh, MeshOutcome::NotReached));
                    continue;
                }
                self.now = mesh.describe();
                let network = built.unwrap_or_else(|| network_of(facts, links, mesh));
                if let Some(next) = limits.meshes.get(k + 1) {
                    let build = move || network_of(facts, links, next);
                    ahead = std::thread::Builder::new().spawn_scoped(scope, build).ok();
                }
                self.run(mesh, network, limits.meshes.len() - k);
            }
        });
    }

    /// Whether effort and time are left for a mesh.
    fn is_in_reach(&mut self, mesh: &SearchMesh) -> bool {
        let is_out = self.n_steps >= self.limits.effort;
        let is_too_large = self.exhausted_by.is_some_and(|n_axes| mesh.n_axes() >= n_axes);
        let is_late = !is_out && !is_too_large && (self.limits.is_over)();
        self.was_stopped |= is_late;
        !(is_out || is_too_large || is_late)
    }

    fn run(&mut self, mesh: &SearchMesh, mut network: PlanNetwork, n_left: usize) {
        let fact = |outcome| MeshFact::new(mesh, outcome);
        let left = self.limits.effort.saturating_sub(self.n_steps);
        if !self.limits.pins.apply(self.facts.program, &mut network) {
            self.meshes.push(fact(MeshOutcome::Unpinnable));
            return;
        }
        let best = self.best.iter().map(|(coarse, found, _)| ChosenPlan { network: coarse, assignment: found });
        let known = self.known.iter().map(|(coarse, found)| ChosenPlan { network: coarse, assignment: found });
        let mut starts: Vec<Assignment> = best.chain(known).filter_map(|coarse| lift(&coarse, &network)).collect();
        starts.extend(self.limits.start.and_then(|start| lift(start as &dyn KnownPlan, &network)));
        // Every mesh gets its part, but no less than what it takes to look at its tables some times.
        let n_entries: u64 = network.problem.pairs.iter().map(|pair| pair.table.costs.len() as u64).sum();
        let effort = (left / n_left as u64).max(ENTRIES_READ * n_entries);
        if effort > left && self.best.is_some() {
            self.exhausted_by = Some(mesh.n_axes());
            self.meshes.push(fact(MeshOutcome::NotReached));
            return;
        }
        let restriction = match self.limits.only {
            Some(only) => Some(only.allowed(self.facts.program, &self.roles, &network)),
            None if self.limits.without.is_empty() => None,
            None => Some(without(&self.limits.without, self.facts.program, &self.roles, &network)),
        };
        if let Some(allowed) = restriction {
            return self.run_restricted(&allowed, mesh, network, effort);
        }
        // Of a program with several ways, the plans by hand are those of the program as it is, and are known.
        let by_hand = BASELINES.into_iter().filter(|_| self.limits.start.is_none());
        for baseline in by_hand.filter(|baseline| baseline.n_axes() == mesh.n_axes()) {
            let allowed = baseline.allowed(self.facts.program, &self.roles, &network);
            starts.extend(self.run_baseline(baseline, &allowed, &mut network, left / BASELINE_SHARE));
        }
        if let Some(given) = self.limits.given.as_ref().filter(|_| mesh.n_axes() <= MOST_AXES_OF_GIVEN) {
            let allowed = like_given(self.facts.program, &network, given);
            starts.extend(self.run_baseline(Baseline::MindSpore, &allowed, &mut network, left / BASELINE_SHARE));
        }
        // A mesh whose bound comes so near is good enough, too.
        let near = |cost: Cost| cost - (cost as f64 * self.limits.wanted_gap) as Cost;
        let cutoff = Some(self.best_cost().min(self.limits.to_beat)).filter(|&cost| cost < INFINITE).map(near);
        let solved = match self.facts.program.choices.n_ways.is_empty() {
            true => self.solve_within(&mut network, None, &starts, effort, cutoff),
            false => self.solve_by_ways(&mut network, &starts, effort, cutoff),
        };
        let outcome = if solved.was_bounded { MeshOutcome::Bounded } else { MeshOutcome::Searched };
        self.meshes.push(MeshFact {
            cost: solved.cost,
            lower_bound: solved.lower_bound,
            n_variables: network.problem.variables.len(),
            n_steps: solved.n_steps,
            ..fact(outcome)
        });
        self.keep(network, solved);
    }

    /// The best plan of one kind; its bound is one of that kind alone.
    fn run_restricted(&mut self, allowed: &Allowed, mesh: &SearchMesh, mut network: PlanNetwork, effort: u64) {
        let solved = self.solve_within(&mut network, Some(allowed), &[], effort, None);
        self.meshes.push(MeshFact {
            cost: solved.cost,
            lower_bound: solved.lower_bound,
            n_variables: network.problem.variables.len(),
            n_steps: solved.n_steps,
            ..MeshFact::new(mesh, MeshOutcome::Searched)
        });
        self.keep(network, solved);
    }

    fn keep(&mut self, network: PlanNetwork, solved: Solved) {
        let Some(assignment) = solved.assignment else { return };
        let beaten = match solved.cost < self.best_cost() {
            true => self.best.replace((network, assignment, solved.cost)).map(|(network, found, _)| (network, found)),
            false => Some((network, assignment)),
        };
        // Of a plan to start from, the costs are not needed.
        if let Some((mut network, found)) = beaten.filter(|_| self.known.len() < MOST_KNOWN) {
            network.problem = Problem::default();
            self.known.push((network, found));
        }
    }

    fn solve(
        &mut self,
        problem: &Problem,
        layers: Layers,
        starts: &[Assignment],
        effort: u64,
        cutoff: Option<Cost>,
    ) -> Solved {
        let (best, tell, now) = (self.best_cost(), self.limits.progress, &self.now);
        let progress = |at: Progress| {
            let ms = |cost: Cost| format!("{:.3} ms", cost as f64 / 1e9);
            let cost = if at.cost.min(best) < INFINITE { ms(at.cost.min(best)) } else { "none".into() };
            tell(&format!("searches mesh {now}: best plan {cost}, bound on this mesh {}", ms(at.lower_bound.max(0))));
        };
        let repeats = match layers {
            Layers::AlsoTied => find_repeats(problem),
            Layers::Free => None,
        };
        let solved = solve(&SolveRequest {
            problem,
            starts,
            repeats: repeats.as_ref(),
            effort,
            cutoff,
            wanted_gap: self.limits.wanted_gap,
            is_over: self.limits.is_over,
            progress: &progress,
        });
        self.n_steps += solved.n_steps;
        self.was_stopped |= solved.was_stopped;
        solved
    }

    /// Solves the problem of a mesh, in a baseline's restriction, until the plan keeps the memory limit at every moment. What is
    /// found is an assignment of the whole problem.
    ///
    /// What a plan takes beyond what a moment's constraint counts is taken off that moment's limit for the next round. The bound is one
    /// of rounds before that: another plan may take less beyond.
    fn solve_within(
        &mut self,
        network: &mut PlanNetwork,
        restriction: Option<&Allowed>,
        starts: &[Assignment],
        effort: u64,
        cutoff: Option<Cost>,
    ) -> Solved {
        let (mut solved, mut bound) = (nothing(), 0);
        let end = self.n_steps.saturating_add(effort);
        self.loosen();
        for _ in 0..MOST_ROUNDS {
            let is_loose = self.moments.iter().all(|(_, uncounted)| *uncounted == 0);
            self.constrain(network);
            let effort = end.saturating_sub(self.n_steps);
            if effort == 0 {
                break;
            }
            solved = self.solve_once(network, restriction, starts, effort, cutoff);
            bound = if is_loose { solved.lower_bound.max(bound) } else { bound };
            if self.limits.memory_limit.is_some() && solved.assignment.is_none() {
                let is_told = restriction.is_none() || self.limits.only.is_some();
                (solved.assignment, solved.cost) = self.find_small(network, &solved.least_demands, is_told);
            }
            let (Some(limit), Some(assignment)) = (self.limits.memory_limit, &solved.assignment) else { break };
            let peak = self.lifetimes.peak(self.facts.program, &ChosenPlan { network, assignment });
            if peak.bytes <= limit {
                break;
            }
            self.least_bytes = Some(peak.bytes).into_iter().chain(self.least_bytes).min();
            match self.moments.iter_mut().find(|(moment, _)| *moment == peak.moment) {
                Some((_, uncounted)) => *uncounted += peak.bytes - limit,
                None => self.moments.push((peak.moment, 0)),
            }
            // A plan over the limit is none.
            (solved.assignment, solved.cost) = (None, INFINITE);
        }
        // What is not allowed as it is counted may be within the limit all the same: then there is no bound.
        let is_within = solved.assignment.is_some() && bound >= INFINITE;
        solved.lower_bound = if is_within { 0 } else { bound.min(solved.cost) };
        let gap = (solved.cost - solved.lower_bound) as f64;
        solved.is_exact = solved.assignment.is_some() && gap <= 1e-9 * (solved.cost as f64).abs();
        solved.was_bounded &= cutoff.is_some_and(|cutoff| bound >= cutoff);
        // A dump has the constraints of the bound.
        self.loosen();
        self.constrain(network);
        solved
    }

    /// Every moment's limit is that of the user.
    fn loosen(&mut self) {
        self.moments.iter_mut().for_each(|(_, uncounted)| *uncounted = 0);
    }

    fn solve_once(
        &mut self,
        network: &PlanNetwork,
        restriction: Option<&Allowed>,
        starts: &[Assignment],
        effort: u64,
        cutoff: Option<Cost>,
    ) -> Solved {
        let Some(allowed) = restriction else {
            return self.solve(&network.problem, Layers::AlsoTied, starts, effort, cutoff);
        };
        let restricted = Restricted::new(&network.problem, allowed);
        let mut solved = self.solve(&restricted.problem, Layers::Free, starts, effort, cutoff);
        solved.assignment = solved.assignment.as_ref().map(|found| restricted.widen(found));
        for demand in &mut solved.least_demands {
            demand.assignment = demand.assignment.as_ref().map(|found| restricted.widen(found));
        }
        solved
    }

    /// Of the plans that take least at single moments, the cheapest that is within the limit at all of them. What is counted for a plan
    /// is too much where states are alike, so that there may be one although no assignment keeps the constraints.
    fn find_small(
        &mut self,
        network: &PlanNetwork,
        demands: &[LeastDemand],
        is_told: bool,
    ) -> (Option<Assignment>, Cost) {
        let mut best: (Option<Assignment>, Cost) = (None, INFINITE);
        for assignment in demands.iter().filter_map(|demand| demand.assignment.as_ref()) {
            let peak = self.lifetimes.peak(self.facts.program, &ChosenPlan { network, assignment });
            let cost = network.problem.cost(assignment);
            if is_told && cost < INFINITE {
                self.least_bytes = Some(peak.bytes).into_iter().chain(self.least_bytes).min();
            }
            if self.limits.memory_limit.is_some_and(|limit| peak.bytes <= limit) && cost < best.1 {
                best = (Some(assignment.clone()), cost);
            }
        }
        best
    }

    /// Adds what must hold at each moment that is known to matter.
    fn constrain(&self, network: &mut PlanNetwork) {
        let Some(limit) = self.limits.memory_limit else { return };
        let program = self.facts.program;
        let of_moment = |&(moment, uncounted): &(u32, u64)| {
            self.lifetimes.constraint(program, network, moment, limit.saturating_sub(uncounted))
        };
        network.problem.constraints = self.moments.iter().map(of_moment).collect();
    }

    /// The best plan within a baseline; it is also a start.
    fn run_baseline(
        &mut self,
        baseline: Baseline,
        allowed: &Allowed,
        network: &mut PlanNetwork,
        effort: u64,
    ) -> Option<Assignment> {
        // Where a baseline takes too much, the search may not.
        let moments = self.moments.clone();
        let solved = self.solve_within(network, Some(allowed), &[], effort, None);
        self.moments = moments;
        self.note_baseline(baseline, &network.mesh, solved.assignment.as_ref().map(|_| solved.cost));
        solved.assignment
    }

    fn note_baseline(&mut self, baseline: Baseline, mesh: &SearchMesh, cost: Option<Cost>) {
        let known = self.baselines.iter_mut().find(|fact| fact.baseline == baseline);
        let is_better = |fact: &BaselineFact| cost.is_some_and(|cost| fact.cost.is_none_or(|known| cost < known));
        match known {
            Some(fact) if is_better(fact) => *fact = BaselineFact { baseline, mesh: mesh.clone(), cost },
            Some(_) => {}
            None => self.baselines.push(BaselineFact { baseline, mesh: mesh.clone(), cost }),
        }
    }

    fn finish(self) -> Result<Found, NotFound> {
        let Some((network, assignment, cost)) = self.best else {
            let is_unreached = |fact: &MeshFact| fact.outcome == MeshOutcome::NotReached;
            // A mesh that was not searched has the bound 0.
            let bounds = self.meshes.iter().filter(|fact| fact.outcome != MeshOutcome::Unpinnable);
            let lower_bound = bounds.map(|fact| fact.lower_bound).min().unwrap_or(0);
            let was_ended =
                self.was_stopped || self.n_steps >= self.limits.effort || self.meshes.iter().any(is_unreached);
            return Err(NotFound { least_bytes: self.least_bytes, was_ended, lower_bound });
        };
        let peak = self.lifetimes.peak(self.facts.program, &ChosenPlan { network: &network, assignment: &assignment });
        let bounds = self.meshes.iter().filter_map(|fact| match fact.outcome {
            MeshOutcome::Searched | MeshOutcome::Bounded => Some(fact.lower_bound),
            MeshOutcome::Unpinnable | MeshOutcome::NotReached => None,
        });
        let lower_bound = bounds.min().unwrap_or(0).min(cost);
        let is_exact = (cost - lower_bound) as f64 <= 1e-9 * cost as f64;
        Ok(Found {
            peak,
            network,
            assignment,
            cost,
            lower_bound,
            is_exact,
            was_stopped: self.was_stopped,
            meshes: self.meshes,
            baselines: self.baselines,
        })
    }
}
