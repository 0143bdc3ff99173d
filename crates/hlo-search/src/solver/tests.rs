//! Random problems against brute force.

use super::blocks::Blocks;
use super::eliminate::{EliminationLimits, EliminationPlan};
use super::facts::{Eliminations, Search};
use super::model::Model;
use super::search::Task;
use super::solve::solve_with;
use super::sweep::Sweeper;
use super::tables::plus;
use super::tied::tied_states;
use super::*;
use cranelift_entity::{EntityRef, SecondaryMap};
use std::cell::Cell;
use std::sync::Arc;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn cost(&mut self, infinite_percent: u64) -> Cost {
        if self.below(100) < infinite_percent { INFINITE } else { self.below(1000) as Cost }
    }
}

/// A problem of at most 8 variables.
fn draw(random: &mut Random) -> Problem {
    let n = 1 + random.below(8) as usize;
    let infinite_percent = [0, 5, 30, 60][random.below(4) as usize];
    let mut problem = Problem::default();
    for _ in 0..n {
        let n_states = 1 + random.below(4);
        problem.variables.push((0..n_states).map(|_| random.cost(infinite_percent / 2)).collect());
    }
    let n_pairs = if n < 2 { 0 } else { random.below(2 * n as u64 + 2) };
    for _ in 0..n_pairs {
        let rows = random.below(n as u64) as usize;
        let columns = (rows + 1 + random.below(n as u64 - 1) as usize) % n;
        let [rows, columns] = [rows, columns].map(VarId::new);
        let [n_rows, n_columns] = [rows, columns].map(|var| problem.variables[var].len());
        // Some are one to one.
        let shift = random.below(12) as usize;
        let is_allowed = |pair: usize| shift >= n_rows || (pair / n_columns + shift) % n_rows == pair % n_columns;
        let mut cost = |pair: usize| if is_allowed(pair) { random.cost(infinite_percent) } else { INFINITE };
        let costs = (0..n_rows * n_columns).map(&mut cost).collect();
        problem.pairs.push(Pair { rows, columns, table: Arc::new(PairTable { n_rows, n_columns, costs }) });
    }
    problem
}

/// Limits under which elimination solves all, some or no parts, so that the other phases have to.
fn draw_eliminations(random: &mut Random) -> Eliminations {
    let [first, last] = [0, 1].map(|_| {
        let n = [0, 20, 200, u64::MAX][random.below(4) as usize];
        EliminationLimits { n_entries: n, n_steps: n }
    });
    Eliminations { first, last }
}

/// The least cost of all assignments.
fn brute_force(problem: &Problem) -> Cost {
    let mut states: Assignment = problem.variables.keys().map(|_| 0).collect();
    let mut least = INFINITE;
    loop {
        if problem.is_within_limits(&states) {
            least = least.min(problem.cost(&states));
        }
        let more = problem.variables.iter().find(|(var, costs)| {
            let state = &mut states[*var];
            *state = (*state + 1) % costs.len() as u32;
            *state != 0
        });
        if more.is_none() {
            return least;
        }
    }
}

fn request(problem: &Problem, effort: u64) -> SolveRequest<'_> {
    SolveRequest {
        problem,
        starts: &[],
        repeats: None,
        effort,
        cutoff: None,
        wanted_gap: 0.0,
        is_over: &|| false,
        progress: &|_| (),
    }
}

fn n_cases() -> u64 {
    std::env::var("HLO_SEARCH_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

/// Adds up to three limits, some of which nothing keeps.
fn limit(problem: &mut Problem, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let most = [1, 10, 1_000_000_000_000][random.below(3) as usize];
        let mut terms: Vec<(VarId, Arc<[u64]>)> = Vec::new();
        for (var, costs) in problem.variables.iter() {
            if random.below(3) > 0 {
                terms.push((var, costs.iter().map(|_| random.below(most + 1)).collect()));
            }
        }
        let limit = random.below(1 + most * problem.variables.len() as u64 / 2);
        problem.constraints.push(Constraint { limit, terms });
    }
}

/// The least cost of the assignments in which each class has one state.
fn brute_force_tied(problem: &Problem, classes: &SecondaryMap<VarId, u32>) -> Cost {
    let mut least = INFINITE;
    let first_of = |var: VarId| {
        let is_same = |other: &VarId| {
            classes[*other] == classes[var] && problem.variables[*other].len() == problem.variables[var].len()
        };
        problem.variables.keys().find(is_same).unwrap_or(var)
    };
    let mut states: Assignment = problem.variables.keys().map(|_| 0).collect();
    loop {
        let tied: Assignment = problem.variables.keys().map(|var| states[first_of(var)]).collect();
        least = least.min(problem.cost(&tied));
        let firsts = problem.variables.iter().filter(|(var, _)| first_of(*var) == *var);
        let more = firsts.map(|(var, costs)| (var, costs.len() as u32)).find(|(var, n)| {
            states[*var] = (states[*var] + 1) % n;
            states[*var] != 0
        });
        if more.is_none() {
            return least;
        }
    }
}

#[test]
fn tied_solutions_come_out_as_brute_force_says() {
    for case in 0..n_cases() {
        let mut random = Random(case);
        let problem = draw(&mut random);
        let mut classes = SecondaryMap::new();
        problem.variables.keys().for_each(|var| classes[var] = random.below(4) as u32);
        let mut search = Search::new(u64::MAX, &|| false, &|_, _| ());
        search.eliminations = draw_eliminations(&mut random);
        let task = Task { start: None, cutoff: INFINITE, gap: 0.0, outside: 0, depth: 0 };
        let states = tied_states(&mut search, &Model::of_problem(&problem), &classes, task);
        let cost = states.map_or(INFINITE, |states| problem.cost(&states.into_iter().collect()));
        assert_eq!(cost, brute_force_tied(&problem, &classes), "case {case}");
    }
}

fn check_against_brute_force(case: u64, problem: &Problem, random: &mut Random) {
    let least = brute_force(problem);
    let eliminations = draw_eliminations(random);
    let solved = solve_with(&request(problem, u64::MAX), eliminations);
    assert_eq!(solved.cost, least, "case {case}");
    assert_eq!(solved.lower_bound, least, "case {case}");
    assert_eq!(solved.is_exact, least < INFINITE, "case {case}");
    if let Some(states) = &solved.assignment {
        assert_eq!(problem.cost(states), least, "case {case}");
        assert!(problem.is_within_limits(states), "case {case}");
    }
    assert_eq!(solved, solve_with(&request(problem, u64::MAX), eliminations), "case {case}: two runs");
    let effort = random.below(solved.n_steps + 1);
    let early = solve_with(&request(problem, effort), eliminations);
    assert_eq!(early, solve_with(&request(problem, effort), eliminations), "case {case}, effort {effort}: two runs");
    assert!(early.lower_bound <= least && least <= early.cost, "case {case}, effort {effort}");
}

#[test]
fn random_problems_come_out_as_brute_force_says() {
    for case in 0..n_cases() {
        let mut random = Random(case);
        let problem = draw(&mut random);
        check_against_brute_force(case, &problem, &mut random);
    }
}

#[test]
fn random_problems_with_limits_come_out_as_brute_force_says() {
    for case in 0..n_cases() {
        let mut random = Random(case);
        let mut problem = draw(&mut random);
        limit(&mut problem, &mut random);
        check_against_brute_force(case, &problem, &mut random);
    }
}

/// The least cost of a model, by elimination.
fn least_of(model: &Model) -> Cost {
    let all = EliminationLimits { n_entries: 1 << 20, n_steps: 1 << 20 };
    let plan = EliminationPlan::find(model, &model.incidence(), all).expect("eight variables are few");
    plus(plan.solve(model).0, model.constant)
}

#[test]
fn sweeps_bound_from_below_and_drop_no_better_state() {
    for case in 0..n_cases() {
        let problem = draw(&mut Random(case));
        let least = brute_force(&problem);
        let model = Model::of_problem(&problem);
        assert_eq!(least_of(&model), least, "case {case}");
        let mut sweeper = Sweeper::new(&model);
        for _ in 0..5 {
            let is_closed = sweeper.sweep(least.saturating_add(1)).is_err();
            assert!(!is_closed || least == INFINITE, "case {case}");
            assert!(sweeper.bound() <= least, "case {case}");
            if is_closed {
                break;
            }
        }
        assert_eq!(least_of(&sweeper.into_model()), least, "case {case}");
    }
}

#[test]
fn blocks_bound_from_below_and_drop_no_better_state() {
    for case in 0..n_cases() {
        let mut random = Random(case);
        let problem = draw(&mut random);
        let model = Model::of_problem(&problem);
        let least = least_of(&model);
        let mut blocks = Blocks::new(&model, [1, 20, 60, 200][random.below(4) as usize]);
        for _ in 0..5 {
            let is_closed = blocks.sweep(least.saturating_add(1), true).is_err();
            assert!(!is_closed || least == INFINITE, "case {case}");
            assert!(blocks.bound() <= least, "case {case}");
            if is_closed {
                break;
            }
        }
        assert_eq!(least_of(&blocks.into_model()), least, "case {case}");
    }
}

#[test]
fn runner_ups_are_the_best_with_each_state() {
    for case in 0..n_cases() / 10 {
        let mut random = Random(case);
        let mut problem = draw(&mut random);
        if case % 2 == 0 {
            limit(&mut problem, &mut random);
        }
        let solved = solve(&request(&problem, u64::MAX));
        let Some(best) = &solved.assignment else { continue };
        let runner_ups = RunnerUps::new(&problem, best);
        for (var, costs) in problem.variables.iter() {
            let mut fixed = problem.clone();
            let least = |state: usize| {
                fixed.variables[var] = costs.iter().map(|_| INFINITE).collect();
                fixed.variables[var][state] = costs[state];
                brute_force(&fixed)
            };
            let expected: Vec<Cost> = (0..costs.len()).map(least).collect();
            let found = runner_ups.costs(var);
            assert_eq!(found[best[var] as usize], solved.cost, "case {case}, {var}");
            // Under limits, variables that no pair joins could make room for one another.
            let is_right = |(found, least): (&Cost, &Cost)| found == least || case % 2 == 0 && found > least;
            assert!(found.iter().zip(&expected).all(is_right), "case {case}, {var}: {found:?}, {expected:?}");
        }
    }
}

#[test]
fn starts_cutoffs_and_progress() {
    for case in 0..n_cases() / 10 {
        let mut random = Random(case);
        let mut problem = draw(&mut random);
        if case % 2 == 0 {
            limit(&mut problem, &mut random);
        }
        let least = brute_force(&problem);
        let start: Assignment =
            problem.variables.values().map(|costs| random.below(costs.len() as u64) as u32).collect();
        let is_good = problem.is_within_limits(&start) && problem.cost(&start) < INFINITE;
        let last = Cell::new(Progress { lower_bound: -INFINITE, cost: INFINITE });
        let progress = |progress: Progress| {
            assert!(progress.lower_bound >= last.get().lower_bound && progress.cost <= last.get().cost, "case {case}");
            assert!(progress.lower_bound <= least && least <= progress.cost, "case {case}: {progress:?}");
            last.set(progress);
        };
        let starts = [start];
        let eliminations = draw_eliminations(&mut random);
        let with_start = SolveRequest { starts: &starts, progress: &progress, ..request(&problem, u64::MAX) };
        assert_eq!(solve_with(&with_start, eliminations).cost, least, "case {case}");
        let none = solve(&SolveRequest { effort: 0, progress: &|_| (), ..with_start });
        assert!(!is_good || none.cost <= problem.cost(&starts[0]), "case {case}");
        let cutoff = Some(random.below(2 * least.min(10_000) as u64 + 1) as Cost);
        let cut = solve_with(&SolveRequest { cutoff, ..request(&problem, u64::MAX) }, eliminations);
        assert!(cut.lower_bound <= least, "case {case}");
        assert!(cut.was_bounded || cut.cost == least, "case {case}: {cut:?}");
        assert!(!cut.was_bounded || cutoff <= Some(least), "case {case}");
        let stopped = solve(&SolveRequest { is_over: &|| true, ..request(&problem, u64::MAX) });
        assert!(stopped.lower_bound <= least && least <= stopped.cost, "case {case}");
    }
}

/// What others reached counts, less the gap that is small enough: a bound within the gap is proven, not one of twice the gap.
#[test]
fn a_cutoff_within_the_gap_is_reached_in_full() {
    let mut random = Random(31);
    let mut n_cut = 0;
    for case in 0..n_cases() / 4 {
        let problem = draw(&mut random);
        let least = brute_force(&problem);
        let known = least.saturating_add(random.below(300) as Cost).min(INFINITE);
        let gap = [0.04, 0.2][random.below(2) as usize];
        let near = known - (known as f64 * gap) as Cost;
        let asked = SolveRequest { cutoff: Some(near), wanted_gap: gap, ..request(&problem, u64::MAX) };
        let solved = solve_with(&asked, draw_eliminations(&mut random));
        assert!(solved.lower_bound <= least, "{case}");
        let best = solved.cost.min(known);
        assert!(solved.lower_bound >= (best - (best as f64 * gap) as Cost).min(least) - 1, "{case}");
        n_cut += usize::from(solved.was_bounded);
    }
    assert!(n_cut > 100);
}

/// A grid of 5 times 5 variables, all joined to their neighbours.
fn draw_grid(random: &mut Random) -> Problem {
    const WIDTH: usize = 5;
    let mut problem = Problem::default();
    for _ in 0..WIDTH * WIDTH {
        let n_states = 2 + random.below(3);
        problem.variables.push((0..n_states).map(|_| random.cost(0)).collect());
    }
    for at in 0..WIDTH * WIDTH {
        let right = (at % WIDTH + 1 < WIDTH).then_some(at + 1);
        let below = (at + WIDTH < WIDTH * WIDTH).then_some(at + WIDTH);
        for other in [right, below].into_iter().flatten() {
            let [rows, columns] = [at, other].map(VarId::new);
            let [n_rows, n_columns] = [rows, columns].map(|var| problem.variables[var].len());
            let costs = (0..n_rows * n_columns).map(|_| random.cost(5)).collect();
            problem.pairs.push(Pair { rows, columns, table: Arc::new(PairTable { n_rows, n_columns, costs }) });
        }
    }
    problem
}

#[test]
fn grids_come_out_alike_by_elimination_and_by_branching() {
    let all = EliminationLimits { n_entries: 1 << 24, n_steps: 1 << 24 };
    let none = EliminationLimits { n_entries: 0, n_steps: 0 };
    for case in 0..n_cases() / 200 {
        let problem = draw_grid(&mut Random(case));
        let eliminated = solve_with(&request(&problem, u64::MAX), Eliminations { first: all, last: all });
        let branched = solve_with(&request(&problem, u64::MAX), Eliminations { first: none, last: none });
        assert_eq!(branched.cost, eliminated.cost, "case {case}");
        assert_eq!(branched.lower_bound, eliminated.lower_bound, "case {case}");
        assert_eq!(branched.is_exact, eliminated.is_exact, "case {case}");
    }
}
