//! Branches made one give what they gave, on programs by chance: as results, and as state that is held stacked.

use super::random::Random;
use crate::stack_branches::{StackedBranches, StateForm, pack_program, stack_branches, unpack_program};
use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, Inputs, Outputs, run};
use hlo_ir::{Literal, Module, Scalar};
use std::fmt::Write;
use std::sync::Arc;

fn parse(text: &str) -> Module {
    let module = hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

type Row = Vec<Arc<Literal>>;

fn eval(module: &Module, leaves: Vec<Row>) -> Vec<Row> {
    let Outputs { leaves } = run(module, &Inputs { leaves }, &EvalOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    leaves
}

/// The results of a program with branches made one, its state packed before and unpacked after.
fn eval_stacked(before: &Module, after: &Module, told: &StackedBranches, inputs: &[Row]) -> Vec<Row> {
    let (packed, n_results): (Vec<usize>, usize) = {
        let mut all: Vec<usize> = told.state.iter().flat_map(|param| param.of.clone()).collect();
        all.sort();
        let root = before.entry().and_then(|entry| before.comp(entry).root.expand()).expect("a result");
        (all, before.inst(root).operands.len())
    };
    if packed.is_empty() {
        return eval(after, inputs.to_vec());
    }
    let pack = pack_program(before, &told.state).expect("a program");
    let unpack = unpack_program(before, &told.state).expect("a program");
    for program in [&pack, &unpack] {
        hlo_ir::verify::verify(program).unwrap_or_else(|e| panic!("{e:?}"));
    }
    let state = eval(&pack, packed.iter().map(|&number| inputs[number].clone()).collect());
    let mut given: Vec<Option<Row>> = vec![None; inputs.len() - packed.len() + told.state.len()];
    told.state.iter().zip(state).for_each(|(param, row)| given[param.number] = Some(row));
    let mut kept = (0..inputs.len()).filter(|number| !packed.contains(number));
    for slot in given.iter_mut().filter(|slot| slot.is_none()) {
        *slot = kept.next().map(|number| inputs[number].clone());
    }
    let results = eval(after, given.into_iter().flatten().collect());
    let state = eval(&unpack, told.state.iter().map(|param| results[param.output].clone()).collect());
    let mut all: Vec<Option<Row>> = vec![None; n_results];
    // What is unpacked comes in the order of the parameters.
    for (number, row) in packed.iter().zip(state) {
        let param = told.state.iter().find(|param| param.of.contains(number)).expect("it was packed");
        let branch = param.of.iter().position(|one| one == number).expect("it is one of them");
        all[param.outputs[branch]] = Some(row);
    }
    let mut rest = (0..results.len()).filter(|output| told.state.iter().all(|param| param.output != *output));
    for slot in all.iter_mut().filter(|slot| slot.is_none()) {
        *slot = rest.next().map(|output| results[output].clone());
    }
    all.into_iter().flatten().collect()
}

fn numbers(literal: &Literal) -> Vec<f64> {
    let n: i64 = literal.dims().iter().product();
    (0..n as usize)
        .map(|i| match literal.get(i) {
            Some(Scalar::Float(x)) => x,
            other => panic!("expected a float, found {other:?}"),
        })
        .collect()
}

/// Checks a program in both forms of its state; gives what was stacked, if anything was.
fn check(text: &str, seed: u64) -> Option<StackedBranches> {
    let before = parse(text);
    let options = DrawOptions { seed, ..DrawOptions::default() };
    let inputs = draw_inputs(&before, None, &options).unwrap_or_else(|e| panic!("{e}")).leaves;
    let wanted = eval(&before, inputs.clone());
    let mut found = None;
    for form in [StateForm::Same, StateForm::Stacked] {
        for (after, told) in stack_branches(&before, form) {
            let printed = hlo_ir::print::print_module(&after, &hlo_ir::print::PrintOptions::default());
            hlo_ir::verify::verify(&after).unwrap_or_else(|e| panic!("{e:?}\n{text}\n{printed}"));
            let is = eval_stacked(&before, &after, &told, &inputs);
            assert_eq!(is.len(), wanted.len(), "{text}\n{printed}");
            for (k, (is, want)) in is.iter().zip(&wanted).enumerate() {
                assert_eq!((is[0].dtype(), is[0].dims()), (want[0].dtype(), want[0].dims()));
                for (is, want) in numbers(&is[0]).into_iter().zip(numbers(&want[0])) {
                    let is_close = (is - want).abs() <= 1e-4 * (1.0 + want.abs()) || is.is_nan() && want.is_nan();
                    assert!(is_close, "result {k}: {is} for {want}\n{text}\n{printed}");
                }
            }
            if found.as_ref().is_none_or(|known: &StackedBranches| known.sets.len() <= told.sets.len()) {
                found = Some(told);
            }
        }
    }
    found
}

/// A step as text, while it is drawn.
#[derive(Default)]
struct Step {
    params: Vec<String>,
    body: String,
    updates: String,
    /// New weights: name and shape.
    weights: Vec<(String, String)>,
}

impl Step {
    fn param(&mut self, shape: &str, name: &str) {
        self.params.push(format!("  {name} = {shape} parameter({})\n", self.params.len()));
    }

    fn add(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.body, "  {line}").expect("texts grow");
    }

    /// What stands behind a product: a bias, and an op of this kind.
    fn behind(&mut self, id: &str, [batch, n]: [u64; 2], kind: u64, has_bias: bool) {
        let out = format!("f32[{batch},{n}]");
        let mut last = format!("d{id}");
        if has_bias {
            self.param(&format!("f32[{n}]"), &format!("b{id}"));
            self.add(format_args!("bb{id} = {out} broadcast(b{id}), dimensions={{1}}"));
            self.add(format_args!("a{id} = {out} add({last}, bb{id})"));
            last = format!("a{id}");
        }
        match kind {
            0 => {
                self.add(format_args!("z{id} = f32[] constant(0)"));
                self.add(format_args!("zb{id} = {out} broadcast(z{id}), dimensions={{}}"));
                self.add(format_args!("h{id} = {out} maximum({last}, zb{id})"));
            }
            1 => self.add(format_args!("h{id} = {out} tanh({last})")),
            2 => {
                self.add(format_args!("t{id} = f32[{n},{batch}] transpose({last}), dimensions={{1,0}}"));
                self.add(format_args!("h{id} = {out} transpose(t{id}), dimensions={{1,0}}"));
            }
            3 => {
                self.add(format_args!("z{id} = f32[] constant(0)"));
                self.add(format_args!("s{id} = f32[{batch}] reduce({last}, z{id}), dimensions={{1}}, to_apply=sum"));
                self.add(format_args!("sb{id} = {out} broadcast(s{id}), dimensions={{0}}"));
                self.add(format_args!("h{id} = {out} subtract({last}, sb{id})"));
            }
            4 => {
                self.add(format_args!("z{id} = f32[] constant(0)"));
                self.add(format_args!("p{id} = f32[{batch},{}] pad({last}, z{id}), padding=0_0x1_0", n + 1));
                self.add(format_args!("h{id} = {out} slice(p{id}), slice={{[0:{batch}],[1:{}]}}", n + 1));
            }
            _ => {
                self.add(format_args!("r{id} = f32[{}] reshape({last})", batch * n));
                self.add(format_args!("h{id} = {out} reshape(r{id})"));
            }
        }
    }

    /// Branches alike from `inputs` on, with their gradients and updates; gives what joins them, and its width.
    fn stage(
        &mut self,
        rng: &mut Random,
        stage: usize,
        mut inputs: Vec<String>,
        batch: u64,
        mut width: u64,
    ) -> (String, u64) {
        let n_branches = inputs.len();
        for layer in 0..1 + rng.below(3) {
            let (next, kind, has_bias) = (1 + rng.below(4), rng.below(6), rng.below(2) == 0);
            for (b, input) in inputs.iter_mut().enumerate() {
                let (id, shape) = (format!("{stage}_{layer}_{b}"), format!("f32[{width},{next}]"));
                self.param(&shape, &format!("w{id}"));
                self.add(format_args!(
                    "d{id} = f32[{batch},{next}] dot({input}, w{id}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
                ));
                self.behind(&id, [batch, next], kind, has_bias);
                writeln!(
                    self.updates,
                    "  g{id} = {shape} dot({input}, d{id}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}\n  n{id} = {shape} subtract(w{id}, g{id})"
                )
                .expect("texts grow");
                self.weights.push((format!("n{id}"), shape));
                *input = format!("h{id}");
            }
            width = next;
        }
        let (name, out) = (format!("joined{stage}"), format!("f32[{batch},{width}]"));
        match rng.below(4) {
            3 => {
                // Sometimes with something else among the branches' values.
                let has_more = rng.below(2) == 0;
                let mut sum = inputs[0].clone();
                for (k, input) in inputs.iter().enumerate().skip(1) {
                    let is_last = k + 1 == n_branches && !has_more;
                    let next = if is_last { name.clone() } else { format!("s{stage}_{k}") };
                    self.add(format_args!("{next} = {out} add({sum}, {input})"));
                    sum = next;
                }
                if has_more {
                    self.param(&out, &format!("o{stage}"));
                    self.add(format_args!("{name} = {out} add(o{stage}, {sum})"));
                }
            }
            0 => {
                width *= n_branches as u64;
                let all = inputs.join(", ");
                self.add(format_args!("{name} = f32[{batch},{width}] concatenate({all}), dimensions={{1}}"));
            }
            1 => self.add(format_args!("{name} = {out} multiply({}, {})", inputs[0], inputs[n_branches - 1])),
            _ => self.add(format_args!("{name} = {out} add({}, {})", inputs[0], inputs[1])),
        }
        (name, width)
    }
}

/// A step of a few branches, once or twice: chains of ops, what joins them, the gradients of their weights, and updates.
fn draw_step(rng: &mut Random) -> String {
    let mut step = Step::default();
    let (batch, mut width) = (1 + rng.below(4), 1 + rng.below(4));
    let shares_input = rng.below(2) == 0;
    let mut inputs: Vec<String> =
        (0..2 + rng.below(3)).map(|b| format!("x{}", if shares_input { 0 } else { b })).collect();
    for name in inputs.iter().take(if shares_input { 1 } else { inputs.len() }) {
        step.param(&format!("f32[{batch},{width}]"), name);
    }
    let mut joined = String::new();
    for stage in 0..1 + rng.below(2) as usize {
        (joined, width) = step.stage(rng, stage, inputs, batch, width);
        inputs = vec![joined.clone(); 2 + rng.below(3) as usize];
    }
    let Step { params, body, updates, weights } = step;
    let number = |name: &str| params.iter().position(|param| param.starts_with(&format!("  w{} =", &name[1..])));
    let aliases: Vec<String> = weights
        .iter()
        .enumerate()
        .map(|(k, (name, _))| format!("{{{}}}: ({}, {{}}, may-alias)", k + 1, number(name).expect("a weight")))
        .collect();
    let (names, shapes): (Vec<String>, Vec<String>) = weights.into_iter().unzip();
    format!(
        "HloModule step, input_output_alias={{ {} }}\n\nsum {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\nENTRY main {{\n{}{body}{updates}  ROOT all = (f32[{batch},{width}], {}) tuple({joined}, {})\n}}\n",
        aliases.join(", "),
        params.concat(),
        shapes.join(", "),
        names.join(", "),
    )
}

#[test]
fn branches_of_random_steps_give_what_they_gave() {
    let (mut n_stacked, mut n_held, mut n_twice) = (0, 0, 0);
    for seed in 0..400 {
        let mut rng = Random::new(seed);
        let text = draw_step(&mut rng);
        if let Some(told) = check(&text, seed) {
            n_stacked += 1;
            n_held += usize::from(!told.state.is_empty());
            n_twice += usize::from(told.sets.len() > 1);
        }
    }
    println!("{n_stacked} stacked, {n_held} with their state, {n_twice} with two sets of branches");
    assert!(n_stacked > 300 && n_held > 300 && n_twice > 100, "{n_stacked} {n_held} {n_twice}");
}

/// What a reviewer broke: programs without a header line, with the state that is aliased by leaf and parameter.
const BROKEN_ONCE: [(&str, &str); 9] = [
    // A weight of one branch is what all branches multiply by.
    (
        "0:0 1:1",
        "w0 = f32[2,2] parameter(0)
  w1 = f32[2,2] parameter(1)
  x = f32[2,2] parameter(2)
  h0 = f32[2,2] dot(w0,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[2,2] dot(w1,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f32[2,2],f32[2,2],f32[2,2]) tuple(h0,h1,x)",
    ),
    // A weight is taken twice by an op of its branch.
    (
        "0:0 1:1",
        "w0 = f32[2,2] parameter(0)
  w1 = f32[2,2] parameter(1)
  x = f32[2,2] parameter(2)
  h0 = f32[2,2] dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[2,2] dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d0 = f32[2,2] subtract(w0,w0)
  d1 = f32[2,2] subtract(w1,w1)
  n0 = f32[2,2] add(h0,d0)
  n1 = f32[2,2] add(h1,d1)
  ROOT r = (f32[2,2],f32[2,2]) tuple(n0,n1)",
    ),
    // How the values lie is seen.
    (
        "",
        "x = f32[8,16] parameter(0)
  w0 = f32[16,16] parameter(1)
  w1 = f32[16,16] parameter(2)
  h0 = f32[8,16]{0,1} dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[8,16]{0,1} dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[8,16]{0,1} add(h0,h1)
  z = f32[128] bitcast(s)
  ROOT r = (f32[128]) tuple(z)",
    ),
    // How the sum alone lies is seen.
    (
        "",
        "x = f32[8,16] parameter(0)
  w0 = f32[16,16] parameter(1)
  w1 = f32[16,16] parameter(2)
  h0 = f32[8,16]{1,0} dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[8,16]{1,0} dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[8,16]{0,1} add(h0,h1)
  z = f32[128] bitcast(s)
  ROOT r = (f32[128]) tuple(z)",
    ),
    // An elementwise op that says which dims it goes over.
    (
        "",
        "x = f32[8,16] parameter(0)
  w0 = f32[16,16] parameter(1)
  w1 = f32[16,16] parameter(2)
  h0 = f32[8,16] dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  q0 = f32[8,16] map(h0), dimensions={0,1}, to_apply=sine
  h1 = f32[8,16] dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  q1 = f32[8,16] map(h1), dimensions={0,1}, to_apply=sine
  s = f32[8,16] add(q0,q1)
  ROOT r = (f32[8,16]) tuple(s)",
    ),
    // A sum beside that of the branches stays whole: its terms cancel.
    (
        "",
        "x = f32[8,16] parameter(0)
  w0 = f32[16,16] parameter(1)
  w1 = f32[16,16] parameter(2)
  scale = f32[] constant(1e10)
  many = f32[8,16] broadcast(scale), dimensions={}
  big = f32[8,16] multiply(x, many)
  n = f32[8,16] negate(big)
  h0 = f32[8,16] dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[8,16] dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a = f32[8,16] add(h0,h1)
  c = f32[8,16] add(big,n)
  s = f32[8,16] add(c,a)
  ROOT r = (f32[8,16]) tuple(s)",
    ),
    // The sign of a zero.
    (
        "",
        "x = f32[8,16] parameter(0)
  w0 = f32[16,16] parameter(1)
  w1 = f32[16,16] parameter(2)
  h0 = f32[8,16] dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[8,16] dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(-0)
  zeros = f32[8,16] broadcast(zero), dimensions={}
  a0 = f32[8,16] abs(h0)
  a1 = f32[8,16] abs(h1)
  y0 = f32[8,16] multiply(a0,zeros)
  y1 = f32[8,16] multiply(a1,zeros)
  s = f32[8,16] add(y0,y1)
  one = f32[] constant(1)
  ones = f32[8,16] broadcast(one), dimensions={}
  d = f32[8,16] divide(ones,s)
  half = f32[] constant(0.5)
  halves = f32[8,16] broadcast(half), dimensions={}
  m = f32[8,16] clamp(halves,d,ones)
  ROOT r = (f32[8,16]) tuple(m)",
    ),
    // Sums of which one takes the other's value, each with its own branch's.
    (
        "",
        "x = f32[8,16] parameter(0)
  w0 = f32[16,16] parameter(1)
  w1 = f32[16,16] parameter(2)
  h0 = f32[8,16] dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[8,16] dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  y0 = f32[8,16] tanh(h0)
  y1 = f32[8,16] tanh(h1)
  c = f32[8,16] cosine(x)
  a = f32[8,16] add(c,y0)
  b = f32[8,16] negate(a)
  s = f32[8,16] add(b,y1)
  ROOT r = (f32[8,16]) tuple(s)",
    ),
    // A weight goes out as it came in.
    (
        "0:0 1:1",
        "w0 = f32[16,16] parameter(0)
  w1 = f32[16,16] parameter(1)
  x = f32[8,16] parameter(2)
  h0 = f32[8,16] dot(x,w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h1 = f32[8,16] dot(x,w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[8,16] add(h0,h1)
  n0 = f32[16,16] negate(w0)
  ROOT r = (f32[16,16],f32[16,16],f32[8,16]) tuple(n0,w1,s)",
    ),
];

#[test]
fn what_was_broken_once_gives_what_it_gave() {
    let mut n_stacked = 0;
    for (seed, (aliases, body)) in BROKEN_ONCE.iter().enumerate() {
        let alias = |pair: &str| {
            let (output, param) = pair.split_once(':').expect("a pair");
            format!("{{{output}}}: ({param}, {{}}, may-alias)")
        };
        let aliases: Vec<String> = aliases.split_whitespace().map(alias).collect();
        let header = match aliases.is_empty() {
            true => String::new(),
            false => format!(", input_output_alias={{ {} }}", aliases.join(", ")),
        };
        let sine = "sine {\n  a = f32[] parameter(0)\n  ROOT b = f32[] sine(a)\n}";
        let text = format!("HloModule m{header}\n\n{sine}\n\nENTRY e {{\n  {body}\n}}\n");
        n_stacked += usize::from(check(&text, seed as u64).is_some());
    }
    assert_eq!(n_stacked, 9);
}

#[test]
fn many_branches_are_one() {
    let branch = |b: usize| {
        format!(
            "  w{b} = f32[4,4] parameter({})\n  h{b} = f32[4,4] dot(x,w{b}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  t{b} = f32[4,4] tanh(h{b})\n",
            b + 1
        )
    };
    let branches: String = (0..64).map(branch).collect();
    let sums: String = (1..64)
        .map(|b| {
            format!("  sum{b} = f32[4,4] add({}, t{b})\n", if b == 1 { "t0".into() } else { format!("sum{}", b - 1) })
        })
        .collect();
    let text = format!(
        "HloModule m\n\nENTRY e {{\n  x = f32[4,4] parameter(0)\n{branches}{sums}  ROOT r = (f32[4,4]) tuple(sum63)\n}}\n"
    );
    let told = check(&text, 1).expect("branches");
    assert_eq!(told.sets[0].n_branches, 64);
}
