//! Times the solver on made-up training steps of layers that repeat, on a mesh of 4x8 or 4x2x4, and prints the gap that it reaches.
//!
//! `cargo bench -p hlo-search --bench solver -- 24 0.01 5 0.2 3 2`: 24 layers, until a gap of 1 %, with costs disturbed by 5 %, no
//! more than 0.2 of the values with several uses on a device, three axes, and two moments. Without arguments some that fit in a minute. With
//! `VERBOSE=1` in the environment, also the phases.
//!
//! `cargo bench -p hlo-search --bench solver -- grid 10 8`: 10 times 10 variables of 8 states, with random costs.
//!
//! A variable is an operation's plan, or the form in which a value with several uses is kept. Its states say what each
//! axis of the mesh does. The costs are of arithmetic and of moving what a plan does not have where it needs it.

#[path = "../../src/solver/mod.rs"]
#[expect(dead_code, unused_imports, reason = "a benchmark needs a part of the solver's face")]
mod solver;
mod step;

use cranelift_entity::SecondaryMap;
use solver::{Constraint, Cost, INFINITE, Pair, PairTable, Problem, Progress, SolveRequest, VarId, solve};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use step::Form::{Dim, Partial, Replicated};
use step::{ACTIVATION, Form, Kind, Op, Step, step_of};

/// The sizes of the mesh's axes, and what moving a byte along them costs in picoseconds.
type Axes = &'static [(Cost, Cost)];
const AXES: [Axes; 2] = [&[(4, 80), (8, 20)], &[(4, 80), (2, 20), (4, 20)]];

/// What it costs to bring a value from one form to another.
fn moving_cost(axes: Axes, n_bytes: Cost, from: &[Form], to: &[Form]) -> Cost {
    let cuts = |axis: usize| if matches!(from[axis], Dim(_)) { axes[axis].0 } else { 1 };
    let all_cuts: Cost = (0..axes.len()).map(cuts).product();
    let mut cost = 0;
    for (axis, (n, per_byte)) in axes.iter().enumerate() {
        let whole = n_bytes / (all_cuts / cuts(axis)) / n * (n - 1) * per_byte;
        cost += match (from[axis], to[axis]) {
            (from, to) if from == to => 0,
            (Replicated, Dim(_)) => 0,
            (_, Partial) => return INFINITE,
            (Dim(_), Replicated) | (Partial, Dim(_)) => whole + 2_000_000 * n,
            (Partial, Replicated) => 2 * whole + 4_000_000 * n,
            (Dim(_), Dim(_)) => whole / n + 2_000_000 * n,
            (Replicated, Replicated) => 0,
        };
    }
    cost
}

struct Builder {
    axes: Axes,
    problem: Problem,
    tables: HashMap<(Kind, Kind, usize, Cost), Arc<PairTable>>,
    repeats: SecondaryMap<VarId, u32>,
    /// The forms in which values with several uses are kept, and the bytes of the whole values.
    hubs: Vec<(VarId, Cost)>,
}

impl Builder {
    fn join(&mut self, (from, producer): (VarId, Kind), (to, consumer): (VarId, Kind), operand: usize, n_bytes: Cost) {
        let axes = self.axes;
        let table = self.tables.entry((producer, consumer, operand, n_bytes)).or_insert_with(|| {
            let (rows, columns) = (producer.states(axes.len()), consumer.states(axes.len()));
            let needed = |state: &Vec<Form>| state.iter().map(|form| consumer.needs(operand, *form)).collect();
            let columns: Vec<Vec<Form>> = columns.iter().map(needed).collect();
            let costs = rows.iter().flat_map(|row| columns.iter().map(|to| moving_cost(axes, n_bytes, row, to)));
            Arc::new(PairTable { n_rows: rows.len(), n_columns: columns.len(), costs: costs.collect() })
        });
        self.problem.pairs.push(Pair { rows: from, columns: to, table: table.clone() });
    }

    fn tie(&mut self, rows: VarId, columns: VarId) {
        let n = self.problem.variables[rows].len();
        let table = self.tables.entry((Kind::Leaf, Kind::Leaf, usize::MAX, 0)).or_insert_with(|| {
            let costs = (0..n * n).map(|pair| if pair / n == pair % n { 0 } else { INFINITE }).collect();
            Arc::new(PairTable { n_rows: n, n_columns: n, costs })
        });
        self.problem.pairs.push(Pair { rows, columns, table: table.clone() });
    }

    /// The costs of an operation's states by themselves.
    fn work(&self, op: &Op) -> Vec<Cost> {
        let is_cut = |form: Form| match op.kind {
            Kind::Dot | Kind::Pointwise => form != Replicated,
            Kind::Linear | Kind::Turned | Kind::Leaf | Kind::Hub => matches!(form, Dim(_)),
        };
        let cost = |state: &Vec<Form>| {
            let cut = state.iter().zip(self.axes).filter(|(form, _)| is_cut(**form));
            op.work / cut.map(|(_, (n, _))| n).product::<Cost>()
        };
        op.kind.states(self.axes.len()).iter().map(cost).collect()
    }

    fn add_step(&mut self, step: &Step) {
        let mut n_uses = vec![0; step.ops.len()];
        step.ops.iter().flat_map(|op| &op.inputs).for_each(|input| n_uses[*input] += 1);
        let mut own = Vec::new();
        let mut kept: Vec<(VarId, Kind)> = Vec::new();
        for (op, n_uses) in step.ops.iter().zip(n_uses) {
            let var = self.problem.variables.push(self.work(op));
            self.repeats[var] = 2 * op.class;
            own.push(var);
            for (operand, input) in op.inputs.iter().enumerate() {
                self.join(kept[*input], (var, op.kind), operand, step.ops[*input].n_bytes);
            }
            kept.push((var, op.kind));
            if n_uses > 1 {
                let hub = self.problem.variables.push(vec![0; Kind::Hub.states(self.axes.len()).len()]);
                self.repeats[hub] = 2 * op.class + 1;
                self.join((var, op.kind), (hub, Kind::Hub), 0, op.n_bytes);
                self.hubs.push((hub, op.n_bytes));
                kept.pop();
                kept.push((hub, Kind::Hub));
            }
        }
        for (first, second) in &step.tied {
            self.tie(own[*first], own[*second]);
        }
    }

    /// Adds up to a part of what moving the largest activation costs to each state, so that the parts of a layer disagree.
    fn disturb(&mut self, percent: f64) {
        let most = ((4 * ACTIVATION * self.axes[0].1) as f64 * percent / 100.0) as Cost;
        let mut bits: u64 = 1;
        for cost in self.problem.variables.values_mut().flatten() {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *cost += (bits >> 33) as Cost % (most + 1);
        }
    }

    /// Limits what a device keeps at some moments of the values with several uses to a part of them. A moment has a third of the
    /// values before and after it, if there is more than one.
    fn limit(&mut self, part: f64, n_moments: usize) {
        let states = Kind::Hub.states(self.axes.len());
        let n_local = |n_bytes: Cost, state: &Vec<Form>| {
            let cut = state.iter().zip(self.axes).filter(|(form, _)| matches!(form, Dim(_)));
            (n_bytes / cut.map(|(_, (n, _))| n).product::<Cost>()) as u64
        };
        let n = self.hubs.len();
        for moment in 0..n_moments {
            let middle = n * (2 * moment + 1) / (2 * n_moments);
            let reach = if n_moments == 1 { n } else { n / 3 };
            let kept = &self.hubs[middle.saturating_sub(reach)..(middle + reach).min(n)];
            let term =
                |(hub, n_bytes): &(VarId, Cost)| (*hub, states.iter().map(|state| n_local(*n_bytes, state)).collect());
            let n_bytes: Cost = kept.iter().map(|(_, n_bytes)| n_bytes).sum();
            let limit = (n_bytes as f64 * part) as u64;
            self.problem.constraints.push(Constraint { limit, terms: kept.iter().map(term).collect() });
        }
    }
}

/// What is made up.
#[derive(Debug)]
struct Case {
    n_layers: usize,
    wanted_gap: f64,
    percent: f64,
    part: f64,
    n_axes: usize,
    n_moments: usize,
}

fn run(case: &Case) {
    let mut builder = Builder {
        axes: AXES[case.n_axes - 2],
        problem: Problem::default(),
        tables: HashMap::new(),
        repeats: SecondaryMap::new(),
        hubs: Vec::new(),
    };
    builder.add_step(&step_of(case.n_layers));
    builder.disturb(case.percent);
    if case.part > 0.0 {
        builder.limit(case.part, case.n_moments);
    }
    time(&builder.problem, &builder.repeats, case.wanted_gap, &format!("{case:?}"));
}

/// A grid of variables with random tables: what messages bound badly.
fn run_grid(n_rows: usize, n_states: usize) {
    let mut problem = Problem::default();
    let mut bits: u64 = 1;
    let mut random = || {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (bits >> 33) as Cost % 1_000_000
    };
    let vars: Vec<VarId> =
        (0..n_rows * n_rows).map(|_| problem.variables.push((0..n_states).map(|_| random()).collect())).collect();
    for (at, rows) in vars.iter().enumerate() {
        let others = [(at % n_rows + 1 < n_rows).then_some(at + 1), Some(at + n_rows)];
        for columns in others.into_iter().flatten().filter_map(|at| vars.get(at)) {
            let costs = (0..n_states * n_states).map(|_| random()).collect();
            let table = PairTable { n_rows: n_states, n_columns: n_states, costs };
            problem.pairs.push(Pair { rows: *rows, columns: *columns, table: Arc::new(table) });
        }
    }
    time(&problem, &SecondaryMap::new(), 0.0, &format!("grid of {n_rows}x{n_rows}"));
}

fn time(problem: &Problem, repeats: &SecondaryMap<VarId, u32>, wanted_gap: f64, name: &str) {
    let n = problem.variables.len();
    let n_states: usize = problem.variables.values().map(Vec::len).sum();
    let started = Instant::now();
    let mean = n_states as f64 / n as f64;
    println!("{name}: {n} variables of {mean:.1} states, {} pairs", problem.pairs.len());
    let is_verbose = std::env::var_os("VERBOSE").is_some();
    let progress = |progress: Progress| {
        if is_verbose {
            let seconds = started.elapsed().as_secs_f64();
            println!("  {seconds:7.3} s  {:e} .. {:e}", progress.lower_bound as f64, progress.cost as f64);
        }
    };
    let solved = solve(&SolveRequest {
        problem,
        starts: &[],
        repeats: Some(repeats),
        effort: 40_000_000_000,
        cutoff: None,
        wanted_gap,
        is_over: &|| started.elapsed().as_secs() >= 100,
        progress: &progress,
    });
    let seconds = started.elapsed().as_secs_f64();
    let gap = (solved.cost - solved.lower_bound) as f64 / solved.cost as f64;
    println!(
        "  {seconds:.2} s, cost {:e}, gap {:.4} %, {:.2e} steps",
        solved.cost as f64,
        gap * 100.0,
        solved.n_steps as f64
    );
    if is_verbose {
        solved.phases.iter().for_each(|phase| println!("  {phase:?}"));
    }
}

fn main() {
    let numbers: Vec<f64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let number = |at: usize, otherwise: f64| numbers.get(at).copied().unwrap_or(otherwise);
    let case = |n_layers: f64, wanted_gap: f64| Case {
        n_layers: n_layers as usize,
        wanted_gap,
        percent: number(2, 0.0),
        part: number(3, 0.0),
        n_axes: number(4, 2.0) as usize,
        n_moments: number(5, 1.0) as usize,
    };
    if std::env::args().any(|argument| argument == "grid") {
        run_grid(number(0, 8.0) as usize, number(1, 8.0) as usize);
        return;
    }
    match numbers[..] {
        [] => [(2.0, 0.0), (24.0, 0.04), (24.0, 0.01), (96.0, 0.01)].iter().for_each(|(n, gap)| run(&case(*n, *gap))),
        [n_layers, ..] => run(&case(n_layers, number(1, 0.0))),
    }
}
