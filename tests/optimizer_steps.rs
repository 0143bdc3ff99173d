//! Random steps of optimizers: `state=optimizer` and `state=gradients` shard the state of each, and nothing else.
//!
//! Elements are whole numbers that wrap, so that results are the same bit for bit in any order.

use crate::lockstep::parse_random;
use crate::random_steps::{artifacts, equals_source, number};
use hlo_analysis::Analyses;
use hlo_ir::DType;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::random_module::{Input, Rng};
use hlo_tests::training_step::TrainingStep;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Steps, where the environment does not say how many.
const N_CASES: u64 = 150;

/// How a gradient comes to an update.
const UPDATES: [&str; 7] = ["summed", "preconditioned", "not summed", "flattened", "rolled", "sorted", "reset"];

/// The part of a parameter in the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Weight,
    State,
    Other,
    Batch,
}

/// A step under construction.
struct Step {
    rng: Rng,
    n_devices: usize,
    lines: String,
    /// Name, dims and part of each parameter.
    params: Vec<(String, Vec<i64>, Part)>,
    /// The next values of the parameters that have one, in order.
    next: Vec<String>,
    n_names: usize,
}

fn shape(dims: &[i64]) -> String {
    format!("s32[{}]", dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

impl Step {
    fn param(&mut self, dims: &[i64], part: Part) -> String {
        let name = format!("p{}_", self.params.len());
        self.params.push((name.clone(), dims.to_vec(), part));
        name
    }

    /// Appends an instruction; its name.
    fn add(&mut self, dims: &[i64], op: &str) -> String {
        self.n_names += 1;
        let name = format!("v{}_", self.n_names);
        let _ = writeln!(self.lines, "  {name} = {} {op}", shape(dims));
        name
    }

    /// `value` through a few ops on single elements.
    fn elementwise(&mut self, dims: &[i64], value: &str) -> String {
        let mut value = value.to_string();
        for _ in 0..self.rng.below(3) {
            let factor = self.rng.below(5) as i64 - 2;
            let scalar = self.add(&[], &format!("constant({factor})"));
            let all = self.add(dims, &format!("broadcast({scalar}), dimensions={{}}"));
            let op = *self.rng.pick(&["add", "multiply", "maximum", "subtract"]);
            value = self.add(dims, &format!("{op}({value}, {all})"));
        }
        value
    }

    /// A weight and the sum of its gradient over all devices.
    fn summed(&mut self, dims: &[i64]) -> (String, String) {
        let (weight, batch) = (self.param(dims, Part::Weight), self.param(dims, Part::Batch));
        let own = self.add(dims, &format!("multiply({weight}, {batch})"));
        let devices = (0..self.n_devices).map(|d| d.to_string()).collect::<Vec<_>>().join(",");
        self.n_names += 1;
        let groups =
            format!("channel_id={}, replica_groups={{{{{devices}}}}}, use_global_device_ids=true", self.n_names);
        let sum = self.add(dims, &format!("all-reduce({own}), {groups}, to_apply=sum"));
        (weight, sum)
    }

    /// Momentum: the next value of a new parameter.
    fn momentum(&mut self, dims: &[i64], gradient: &str) -> String {
        let momentum = self.param(dims, Part::State);
        let (kept, gradient) = (self.elementwise(dims, &momentum), self.elementwise(dims, gradient));
        let next = self.add(dims, &format!("add({kept}, {gradient})"));
        self.next.push(format!("{momentum}={next}"));
        next
    }

    fn update(&mut self, dims: &[i64], weight: &str, update: &str) {
        let update = self.elementwise(dims, update);
        let next = self.add(dims, &format!("subtract({weight}, {update})"));
        self.next.push(format!("{weight}={next}"));
    }

    /// Adds an update of this kind.
    fn kind(&mut self, kind: &str) {
        let dims = [2 + self.rng.below(9) as i64, 2 + self.rng.below(9) as i64];
        let square = [dims[0], dims[0]];
        match kind {
            "preconditioned" => {
                let (weight, sum) = self.summed(&dims);
                let outer = self.add(
                    &square,
                    &format!("dot({sum}, {sum}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}"),
                );
                let statistic = self.momentum(&square, &outer);
                let product =
                    format!("dot({statistic}, {sum}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}");
                let turned = self.add(&dims, &product);
                let momentum = self.momentum(&dims, &turned);
                self.update(&dims, &weight, &momentum);
            }
            "not summed" => {
                // The gradient of the second weight is computed from it alone; the first weight reads the second.
                let (weight, sum) = self.summed(&dims);
                let other = self.param(&dims, Part::Weight);
                let outer = self.add(
                    &square,
                    &format!("dot({other}, {other}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}"),
                );
                let gradient = self.add(
                    &dims,
                    &format!("dot({outer}, {other}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"),
                );
                let zero = self.add(&[], "constant(0)");
                let size = self.add(&[], &format!("reduce({outer}, {zero}), dimensions={{0,1}}, to_apply=sum"));
                let sizes = self.add(&dims, &format!("broadcast({size}), dimensions={{}}"));
                let both = self.add(&dims, &format!("add({sum}, {sizes})"));
                self.update(&dims, &weight, &both);
                let momentum = self.momentum(&dims, &gradient);
                self.update(&dims, &other, &momentum);
            }
            "flattened" => {
                let all = [dims, [dims[1], 3]].map(|dims| (dims, self.summed(&dims)));
                let parts = all.clone().map(|(dims, (_, sum))| {
                    (dims[0] * dims[1], self.add(&[dims[0] * dims[1]], &format!("reshape({sum})")))
                });
                let n: i64 = parts.iter().map(|(n, _)| n).sum();
                let flat = self.add(&[n], &format!("concatenate({}, {}), dimensions={{0}}", parts[0].1, parts[1].1));
                let momentum = self.momentum(&[n], &flat);
                let mut start = 0;
                for (dims, (weight, _)) in all {
                    let end = start + dims[0] * dims[1];
                    let part = self.add(&[end - start], &format!("slice({momentum}), slice={{[{start}:{end}]}}"));
                    let update = self.add(&dims, &format!("reshape({part})"));
                    self.update(&dims, &weight, &update);
                    start = end;
                }
            }
            "rolled" | "sorted" => {
                let (weight, sum) = self.summed(&dims);
                let turned = match kind {
                    "rolled" => {
                        let last = self.add(
                            &[1, dims[1]],
                            &format!("slice({sum}), slice={{[{}:{}], [0:{}]}}", dims[0] - 1, dims[0], dims[1]),
                        );
                        let rest = self.add(
                            &[dims[0] - 1, dims[1]],
                            &format!("slice({sum}), slice={{[0:{}], [0:{}]}}", dims[0] - 1, dims[1]),
                        );
                        self.add(&dims, &format!("concatenate({last}, {rest}), dimensions={{0}}"))
                    }
                    _ => {
                        let dim = self.rng.below(2);
                        self.add(&dims, &format!("sort({sum}), dimensions={{{dim}}}, to_apply=less"))
                    }
                };
                let momentum = self.momentum(&dims, &turned);
                self.update(&dims, &weight, &momentum);
            }
            "reset" => {
                let (weight, sum) = self.summed(&dims);
                let kept = self.param(&dims, Part::Other);
                let both = self.add(&dims, &format!("add({sum}, {kept})"));
                let momentum = self.momentum(&dims, &both);
                self.update(&dims, &weight, &momentum);
                let zero = self.add(&[], "constant(0)");
                let empty = self.add(&dims, &format!("broadcast({zero}), dimensions={{}}"));
                self.next.push(format!("{kept}={empty}"));
            }
            _ => {
                let (weight, sum) = self.summed(&dims);
                let momentum = self.momentum(&dims, &sum);
                self.update(&dims, &weight, &momentum);
                // An average of the weights, which evaluation reads.
                let average = self.param(&dims, Part::Other);
                let next = self.add(&dims, &format!("maximum({average}, {weight})"));
                self.next.push(format!("{average}={next}"));
            }
        }
    }
}

/// A random step, what its parameters are, and the results that are their next values.
fn optimizer_step(seed: u64) -> (TrainingStep, Vec<Part>, String, Vec<&'static str>) {
    let mut rng = Rng::new(seed);
    let n_devices = *rng.pick(&[2usize, 3, 4, 6]);
    let (params, next) = (Vec::new(), Vec::new());
    let mut step = Step { rng, n_devices, lines: String::new(), params, next, n_names: 0 };
    let kinds: Vec<&str> = (0..1 + step.rng.below(3)).map(|_| *step.rng.pick(&UPDATES)).collect();
    kinds.iter().for_each(|kind| step.kind(kind));
    let mut text = format!("HloModule step_{seed}, num_partitions={n_devices}\n\n");
    for (name, op) in [("sum", "add"), ("less", "compare")] {
        let (result, more) = if op == "add" { ("s32", "") } else { ("pred", ", direction=LT") };
        let _ = writeln!(
            text,
            "{name} {{\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  ROOT r = {result}[] {op}(a, b){more}\n}}\n"
        );
    }
    text += "ENTRY main {\n";
    for (number, (name, dims, part)) in step.params.iter().enumerate() {
        let sharding = match part {
            Part::Batch => format!("devices=[{n_devices}{}]<=[{n_devices}]", ",1".repeat(dims.len() - 1)),
            Part::Weight | Part::State | Part::Other => "replicated".into(),
        };
        let _ = writeln!(text, "  {name} = {} parameter({number}), sharding={{{sharding}}}", shape(dims));
    }
    text += &step.lines;
    let (mut shapes, mut results, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for (output, next) in step.next.iter().enumerate() {
        let (param, value) = next.split_once('=').expect("a pair");
        let number = step.params.iter().position(|(name, ..)| name == param).expect("a parameter");
        shapes.push(shape(&step.params[number].1));
        results.push(value.to_string());
        pairs.push(format!("{number}:{output}"));
    }
    let _ = writeln!(text, "  ROOT out = ({}) tuple({})\n}}", shapes.join(", "), results.join(", "));
    let key = |part: &Part| if *part == Part::Batch { (0..n_devices as u32).collect() } else { vec![0; n_devices] };
    let input = |(_, dims, part): &(String, Vec<i64>, Part)| Input {
        dtype: DType::S32,
        dims: dims.clone(),
        key_of_device: key(part),
    };
    let inputs = step.params.iter().map(input).collect();
    let parts = step.params.iter().map(|(.., part)| *part).collect();
    (TrainingStep { text, inputs, is_exact: true, n_devices }, parts, pairs.join(","), kinds)
}

/// Checks a step: the same results, and all of its state in shards, and nothing else.
fn check(seed: u64, form: &str) -> Result<Vec<&'static str>, String> {
    let (step, parts, pairs, kinds) = optimizer_step(seed);
    let module = parse_random(seed, &step.text);
    let pipeline = format!("shard-weight-update{{min-bytes=0,state={form},state-pairs=[{pairs}]}}");
    let passes = bind(&parse_pipeline(&pipeline).expect("a pipeline"), hlo_wus::PASSES).expect("the pass");
    let mut main = module.clone();
    let options = RunOptions { check: true, ..RunOptions::default() };
    let mut summary = run_pipeline(&mut main, &mut Analyses::default(), &passes, options)
        .map_err(|error| error.diagnostics[0].message.clone())?;
    let report = summary.reports.pop().ok_or("no report")?;
    let (shard, unshard, manifest) = artifacts(&report).ok_or("expected three files")?;
    equals_source(&module, [shard, &main, unshard], &step, seed)?;
    for (number, part) in parts.iter().enumerate() {
        let leaf = &manifest["params"][number];
        if (leaf["sharded"] == true) != (*part == Part::State) {
            return Err(format!("{part:?} {number} is cut or whole: {leaf}\n{}", step.text));
        }
    }
    Ok(kinds)
}

#[test]
fn all_state_of_random_optimizers_is_in_shards_and_nothing_else() {
    let (from, n_cases) = (number("HLO_PROPTEST_FROM", 0), number("HLO_PROPTEST_CASES", N_CASES));
    let (mut wrong, mut n_of): (Vec<String>, BTreeMap<&str, usize>) = Default::default();
    for seed in from..from + n_cases {
        for form in ["optimizer", "gradients"] {
            match check(seed, form) {
                Ok(kinds) => kinds.into_iter().for_each(|kind| *n_of.entry(kind).or_default() += 1),
                Err(why) => wrong.push(format!("seed {seed}, state={form}: {why}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    println!("{n_of:?}");
    assert!(UPDATES.iter().all(|kind| n_of.get(kind).is_some_and(|&n| n > 0)), "{n_of:?}");
}
