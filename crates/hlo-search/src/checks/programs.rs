//! Tiny programs on a few devices: the solver beside all assignments in turn, and the problem's cost beside a walk over the ops.

use super::random::Random;
use crate::mesh::{SearchMesh, factorizations};
use crate::network::{Evenness, Facts, PlanNetwork};
use crate::pins::Pins;
use crate::plan::ChosenPlan;
use crate::prices::Prices;
use crate::program::{CutId, Program, Taker};
use crate::search::{SearchLimits, search};
use crate::solver::{Assignment, Cost, INFINITE, Problem, SolveRequest, solve};
use crate::state::State;
use crate::tiles::Tiles;
use cranelift_entity::EntityRef;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_mesh::Machine;
use std::fmt::Write;

/// A program of a few ops as text.
struct Draft {
    body: String,
    callees: String,
    /// Names and dims of the values so far.
    values: Vec<(String, Vec<i64>)>,
}

impl Draft {
    fn add(&mut self, dims: Vec<i64>, op: &str) {
        let name = format!("v{}", self.values.len());
        let _ = writeln!(self.body, "  %{name} = f32{dims:?} {op}");
        self.values.push((name, dims));
    }

    fn pick(&self, random: &mut Random, fits: impl Fn(&[i64]) -> bool) -> Option<(String, Vec<i64>)> {
        let all: Vec<&(String, Vec<i64>)> = self.values.iter().filter(|(_, dims)| fits(dims)).collect();
        if all.is_empty() { None } else { Some(all[random.below(all.len() as u64) as usize].clone()) }
    }

    /// One more op, if what was drawn fits the values there are.
    fn extend(&mut self, random: &mut Random) -> Option<()> {
        let (x, dims) = self.pick(random, |dims| !dims.is_empty())?;
        match random.below(10) {
            0 | 1 if dims.len() == 2 => {
                let (y, other) = self.pick(random, |other| other.len() == 2 && other[0] == dims[1])?;
                let op = format!("dot(%{x}, %{y}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}");
                self.add(vec![dims[0], other[1]], &op);
            }
            2 | 3 => {
                let (y, _) = self.pick(random, |other| other == dims)?;
                let name = ["add", "multiply", "subtract", "maximum"][random.below(4) as usize];
                self.add(dims, &format!("{name}(%{x}, %{y})"));
            }
            4 => self.add(dims, &format!("{}(%{x})", ["negate", "exponential"][random.below(2) as usize])),
            5 => {
                let dim = random.below(dims.len() as u64) as usize;
                let mut left = dims.clone();
                left.remove(dim);
                let (start, by) = [("%zero", "%sum"), ("%least", "%most")][random.below(2) as usize];
                self.add(left, &format!("reduce(%{x}, {start}), dimensions={{{dim}}}, to_apply={by}"));
            }
            6 if dims.len() == 2 => {
                self.add(vec![dims[1], dims[0]], &format!("transpose(%{x}), dimensions={{1,0}}"));
            }
            7 if dims.len() == 2 => self.add(vec![dims[0] * dims[1]], &format!("reshape(%{x})")),
            7 if dims[0] % 2 == 0 => self.add(vec![dims[0] / 2, 2], &format!("reshape(%{x})")),
            8 if dims.len() == 1 => {
                let n = 2 + random.below(3) as i64;
                self.add(vec![dims[0], n], &format!("broadcast(%{x}), dimensions={{0}}"));
            }
            9 if random.below(3) == 0 => self.add_loop(random, &x, &dims),
            _ => return None,
        }
        Some(())
    }

    fn add_loop(&mut self, random: &mut Random, x: &str, dims: &[i64]) {
        let k = self.values.len();
        let shape = format!("(s32[], f32{dims:?})");
        let op = ["exponential(%x)", "add(%x, %x)"][random.below(2) as usize];
        let _ = write!(
            self.callees,
            "%body{k} (p: {shape}) -> {shape} {{\n  %p = {shape} parameter(0)\n  %i = s32[] get-tuple-element(%p), index=0\n  \
             %one = s32[] constant(1)\n  %next = s32[] add(%i, %one)\n  %x = f32{dims:?} get-tuple-element(%p), index=1\n  \
             %y = f32{dims:?} {op}\n  ROOT %r = {shape} tuple(%next, %y)\n}}\n\
             %test{k} (p: {shape}) -> pred[] {{\n  %p = {shape} parameter(0)\n  %i = s32[] get-tuple-element(%p), index=0\n  \
             %n = s32[] constant(3)\n  ROOT %c = pred[] compare(%i, %n), direction=LT\n}}\n"
        );
        let _ = writeln!(
            self.body,
            "  %c{k} = s32[] constant(0)\n  %t{k} = {shape} tuple(%c{k}, %{x})\n  \
             %w{k} = {shape} while(%t{k}), condition=%test{k}, body=%body{k}"
        );
        self.add(dims.to_vec(), &format!("get-tuple-element(%w{k}), index=1"));
    }
}

/// A program of up to three parameters and six ops; now and then its last result takes the memory of a parameter.
fn draw_program(random: &mut Random) -> String {
    let mut draft = Draft { body: String::new(), callees: String::new(), values: Vec::new() };
    draft.body.push_str("  %zero = f32[] constant(0)\n  %least = f32[] constant(-inf)\n");
    let sizes = [2, 3, 4, 6, 12];
    let n_params = 1 + random.below(3);
    for k in 0..n_params {
        let rank = 1 + random.below(2);
        let dims = (0..rank).map(|_| sizes[random.below(sizes.len() as u64) as usize]).collect();
        draft.add(dims, &format!("parameter({k})"));
    }
    let (wanted, mut n_ops) = (1 + random.below(6), 0);
    for _ in 0..40 {
        n_ops += u64::from(n_ops < wanted && draft.extend(random).is_some());
    }
    let (last, dims) = draft.values[draft.values.len() - 1].clone();
    let aliased = draft.values[..n_params as usize].iter().position(|(_, param)| *param == dims);
    let alias = match aliased.filter(|_| random.below(2) == 0) {
        Some(param) => format!(", input_output_alias={{ {{0}}: ({param}, {{}}, may-alias) }}"),
        None => String::new(),
    };
    let mut results = vec![(last, dims)];
    if random.below(3) == 0 {
        results.push(draft.values[random.below(draft.values.len() as u64) as usize].clone());
    }
    let shapes: Vec<String> = results.iter().map(|(_, dims)| format!("f32{dims:?}")).collect();
    let names: Vec<String> = results.iter().map(|(name, _)| format!("%{name}")).collect();
    format!(
        "HloModule tiny{alias}\n\
         %sum (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}}\n\
         %most (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %m = f32[] maximum(%a, %b)\n}}\n\
         {}ENTRY %main {{\n{}  ROOT %out = ({}) tuple({})\n}}\n",
        draft.callees,
        draft.body,
        shapes.join(", "),
        names.join(", "),
    )
    .replace(", ", ",")
}

/// The least cost of all assignments, variable by variable; what costs more than the best so far is not followed.
fn brute_force(problem: &Problem) -> Cost {
    fn follow(problem: &Problem, at: usize, states: &mut Assignment, so_far: Cost, best: &mut Cost) {
        if so_far >= *best {
            return;
        }
        if at == problem.variables.len() {
            *best = so_far;
            return;
        }
        let var = crate::solver::VarId::new(at);
        for state in 0..problem.variables[var].len() {
            states[var] = state as u32;
            let known = |pair: &&crate::solver::Pair| pair.rows.max(pair.columns) == var;
            let pairs = problem.pairs.iter().filter(known).map(|pair| {
                let (row, column) = (states[pair.rows] as usize, states[pair.columns] as usize);
                pair.table.costs[row * pair.table.n_columns + column]
            });
            let more: Cost = pairs.fold(problem.variables[var][state], Cost::saturating_add);
            follow(problem, at + 1, states, so_far.saturating_add(more), best);
        }
    }
    let mut states: Assignment = problem.variables.keys().map(|_| 0).collect();
    let mut best = INFINITE;
    follow(problem, 0, &mut states, 0, &mut best);
    best
}

/// What a plan costs, op by op: its work and the redistribution of each operand; then what goes from value to value and what leaves.
fn walk(program: &Program<'_>, facts: &Facts<'_, '_>, prices: &Prices<'_>, plan: &ChosenPlan<'_>) -> Cost {
    let mesh = prices.mesh;
    let mut total: Cost = 0;
    let mut add = |cost: Cost, times: f64| {
        let cost = if cost >= INFINITE { INFINITE } else { (cost as f64 * times).round() as Cost };
        total = total.saturating_add(cost);
    };
    let moved = |value: CutId, from: State, to: State| {
        prices.redistribution(&Tiles::of(&program.values[value], mesh), from, to)
    };
    for (id, op) in &program.ops {
        let own = plan.plan(id).expect("every op has a plan");
        let work = facts.work.of_op[id].as_ref().expect("every op has its work");
        let mut once = work.cost(&program.values, mesh, facts.machine, own);
        for (k, value) in op.results.iter().enumerate() {
            once += value.expand().map_or(0, |value| moved(value, own.unfinished(k), own.results[k]));
        }
        add(once, op.frequency);
        for (k, value) in op.results.iter().enumerate() {
            if let Some((value, kept)) = value.expand().and_then(|value| Some((value, plan.kept(value)?))) {
                add(moved(value, own.results[k], kept), op.frequency);
            }
        }
        let mut brought: Vec<(CutId, State)> = Vec::new();
        for (k, value) in op.operands.iter().enumerate() {
            let Some(value) = value.expand().filter(|&value| !program.values[value].is_free) else { continue };
            let is_new = !brought.contains(&(value, own.operands[k]));
            if let Some(given) = plan.given(program, value).filter(|_| is_new) {
                add(moved(value, given, own.operands[k]), op.frequency);
                brought.push((value, own.operands[k]));
            }
        }
    }
    for (id, value) in program.values.iter().filter(|(_, value)| !value.is_free) {
        let Some(given) = plan.given(program, id) else { continue };
        for &(taker, times) in &value.takers {
            let to = match taker {
                Taker::Op { .. } => continue,
                Taker::Becomes(other) | Taker::Replaces { param: other, .. } => match plan.kept(other) {
                    Some(kept) => kept,
                    None => continue,
                },
                Taker::Exit(_) => given.resolved(mesh),
                Taker::Whole => State::WHOLE,
            };
            add(moved(id, given, to), times);
        }
    }
    total
}

const MOST_ASSIGNMENTS: f64 = 1e6;

/// Meshes by number of devices, and clusters of one and of two levels.
fn clusters(n_devices: i64) -> Vec<String> {
    let flat = format!("[(gpu,{n_devices},0.001,1)]");
    let mut all = vec![flat];
    if n_devices > 2 {
        all.push(format!("[(node,2,0.0005,2),(gpu,{},0.002,1)]", n_devices / 2));
    }
    all
}

#[test]
fn tiny_programs_get_the_best_of_all_plans() {
    let mut random = Random::new(2024);
    let (mut n_programs, mut n_problems, mut n_searches) = (0, 0, 0);
    let mut n_drawn = 0;
    while n_programs < 1000 {
        n_drawn += 1;
        assert!(n_drawn < 20_000, "too few programs are small: {n_programs}");
        let text = draw_program(&mut random);
        let module =
            hlo_text::parse_bytes(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors:?}\n{text}")).module;
        let n_devices = [2, 4, 6][random.below(3) as usize];
        let all = clusters(n_devices);
        let machine = Machine::parse(&all[random.below(all.len() as u64) as usize], 1).expect("a machine");
        let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
        let program = Program::read(&module, &frequencies).expect("a program");
        if program.ops.is_empty() {
            continue;
        }
        let even = if random.below(4) == 0 { Evenness::All } else { Evenness::None };
        let facts = Facts::new(&program, &machine, even);
        let links = machine.network(n_devices as usize).expect("links");
        let meshes = factorizations(n_devices, 3);
        let mut least = Some(INFINITE);
        for mesh in &meshes {
            let found = check_mesh(&program, &facts, mesh, &links, &text, &mut random);
            n_problems += u32::from(found.is_some());
            least = least.zip(found).map(|(least, found)| least.min(found));
        }
        let Some(least) = least else { continue };
        n_programs += 1;
        let limits = SearchLimits {
            even,
            only: None,
            effort: 1_000_000_000,
            wanted_gap: 0.0,
            memory_limit: None,
            meshes,
            start: None,
            without: Vec::new(),
            to_beat: INFINITE,
            pins: Pins::default(),
            given: None,
            is_over: &|| false,
            progress: &|_| {},
        };
        let Ok(found) = search(&program, &machine, links, &limits) else { panic!("expected a plan\n{text}") };
        assert!(found.lower_bound <= least, "the bound {} is above {least}\n{text}", found.lower_bound);
        assert_eq!(found.cost, least, "{n_devices} devices\n{text}");
        n_searches += 1;
    }
    println!("{n_programs} programs of {n_drawn}, {n_problems} problems, {n_searches} searches");
}

/// The least cost on a mesh, with everything checked; `None` where it has too many assignments.
fn check_mesh(
    program: &Program<'_>,
    facts: &Facts<'_, '_>,
    mesh: &SearchMesh,
    links: &hlo_mesh::Network,
    text: &str,
    random: &mut Random,
) -> Option<Cost> {
    let prices = Prices::new(mesh, links);
    let network = PlanNetwork::build(facts, &prices);
    let problem = &network.problem;
    let n_assignments: f64 = problem.variables.values().map(|costs| costs.len() as f64).product();
    if n_assignments > MOST_ASSIGNMENTS {
        return None;
    }
    let least = brute_force(problem);
    let solved = solve(&SolveRequest {
        problem,
        starts: &[],
        repeats: None,
        effort: u64::MAX,
        cutoff: None,
        wanted_gap: 0.0,
        is_over: &|| false,
        progress: &|_| {},
    });
    let on = mesh.describe();
    assert_eq!(solved.cost, least, "{on}\n{text}");
    assert!(solved.lower_bound <= least, "{on}: the bound {} is above {least}\n{text}", solved.lower_bound);
    let drawn =
        |random: &mut Random| problem.variables.values().map(|costs| random.below(costs.len() as u64) as u32).collect();
    let others: Vec<Assignment> = (0..3).map(|_| drawn(random)).collect();
    for assignment in solved.assignment.iter().chain(&others) {
        let walked = walk(program, facts, &prices, &ChosenPlan { network: &network, assignment });
        let said = problem.cost(assignment);
        assert_eq!(walked.min(INFINITE), said.min(INFINITE), "{on}\n{text}");
    }
    Some(least)
}
