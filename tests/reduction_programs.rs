//! Synthesized reductions as HLO: every program that HLO can say sums every element in its place, in the evaluator.
//!
//! The 20 programs of two levels also stand in `ir-samples/reductions`, for real XLA (`cargo xtask xla-check --corpus
//! ir-samples/reductions`). With `INSTA_UPDATE=always` the file is written anew.

use crate::lockstep::draw;
use hlo_cluster::Collective;
use hlo_cluster::reduction::chunk_order::{ArrayStep, to_arrays};
use hlo_cluster::reduction::{Graph, ReductionStep, Rules, Vocabulary};
use hlo_eval::EvalOptions;
use hlo_ir::literal::Scalar;
use hlo_ir::print::{FormChoice, PrintOptions, print_module};
use hlo_ir::{DType, Module};
use std::fmt::Write;

/// Elements of a chunk.
const CHUNK: usize = 2;

fn programs(n_factors: usize) -> Vec<Vec<ReductionStep>> {
    let graph = Graph::build_with(n_factors, Rules::Pinned, Vocabulary::Hlo, true).expect("a graph");
    let mut all = Vec::new();
    graph.for_each_program(usize::MAX, &mut |edges| all.push(edges.iter().map(|e| graph.step(e)).collect()));
    all
}

/// `{{0,1},{2,3}}`.
fn groups_text(groups: &[Vec<usize>]) -> String {
    let group = |g: &Vec<usize>| format!("{{{}}}", g.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
    format!("{{{}}}", groups.iter().map(group).collect::<Vec<_>>().join(","))
}

/// A module that runs all programs on one input and returns all results.
fn module_text(name: &str, factors: &[usize], programs: &[Vec<ReductionStep>]) -> String {
    let k: usize = factors.iter().product();
    let whole = format!("f32[{}]", k * CHUNK);
    let (mut body, mut results) = (String::new(), Vec::new());
    for (p, program) in programs.iter().enumerate() {
        let (mut value, mut n) = ("%a".to_string(), k);
        for (s, step) in to_arrays(factors, program).expect("arrays").iter().enumerate() {
            let next = format!("%p{p}.{s}");
            n = emit(step, (&value, n), &next, &mut body);
            value = next;
        }
        assert_eq!(n, k);
        results.push(value);
    }
    let types = |suffix: &str| vec![format!("{whole}{suffix}"); results.len()].join(", ");
    format!(
        "HloModule {name}, entry_computation_layout={{({whole}{{0}})->({})}}, replica_count={k}\n\n\
         %add (x: f32[], y: f32[]) -> f32[] {{\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n  ROOT %z = f32[] \
         add(%x, %y)\n}}\n\nENTRY %main (a: {whole}) -> ({}) {{\n  %a = {whole}{{0}} parameter(0)\n{body}  ROOT %sums = \
         ({}) tuple({})\n}}\n\n",
        types("{0}"),
        types(""),
        types("{0}"),
        results.join(", ")
    )
}

/// One step on an array of `n` chunks; returns how many chunks the result has.
fn emit(step: &ArrayStep, (value, n): (&str, usize), next: &str, body: &mut String) -> usize {
    let shape = |n: usize| format!("f32[{}]{{0}}", n * CHUNK);
    match step {
        ArrayStep::Collective { collective, groups } => {
            let members = groups.first().map_or(1, Vec::len);
            let of = groups_text(groups);
            let (n_after, op, dims) = match collective {
                Collective::ReduceScatter => (n / members, "reduce-scatter", ", dimensions={0}, to_apply=%add"),
                Collective::AllGather => (n * members, "all-gather", ", dimensions={0}"),
                _ => (n, "all-reduce", ", to_apply=%add"),
            };
            let _ = writeln!(body, "  {next} = {} {op}({value}), replica_groups={of}{dims}", shape(n_after));
            n_after
        }
        ArrayStep::Reorder { order } => {
            let mut parts = Vec::new();
            for (i, from) in order.iter().enumerate() {
                let (start, limit) = (from * CHUNK, (from + 1) * CHUNK);
                let _ = writeln!(body, "  {next}.{i} = {} slice({value}), slice={{[{start}:{limit}]}}", shape(1));
                parts.push(format!("{next}.{i}"));
            }
            let _ = writeln!(body, "  {next} = {} concatenate({}), dimensions={{0}}", shape(n), parts.join(", "));
            n
        }
    }
}

fn parse(text: &str) -> Module {
    let module = hlo_text::parse_module(text).map(|parsed| parsed.module);
    module.unwrap_or_else(|diags| panic!("{}", hlo_text::render(&diags, "program", text, false)))
}

/// Runs a module on its own values on every device and compares each result with the sum.
fn check(module: &Module, k: usize) {
    let devices = (0..k as u32).collect::<Vec<u32>>();
    let inputs = draw(5, [(DType::F32, vec![(k * CHUNK) as i64], devices)].into_iter());
    let number = |literal: &hlo_ir::Literal, i: usize| match literal.get(i) {
        Some(Scalar::Float(value)) => value,
        other => panic!("expected a float, found {other:?}"),
    };
    let sums: Vec<f64> = (0..k * CHUNK).map(|i| inputs.leaves[0].iter().map(|a| number(a, i)).sum()).collect();
    let outputs = hlo_eval::run(module, &inputs, &EvalOptions::default()).expect("a run");
    for (leaf, row) in outputs.leaves.iter().enumerate() {
        for (device, array) in row.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                let found = number(array, i);
                assert!((found - sum).abs() < 1e-5, "result {leaf}, device {device}, element {i}: {found} {sum}");
            }
        }
    }
}

#[test]
fn programs_of_two_levels_are_right_as_hlo() {
    let all = programs(2);
    assert_eq!(all.len(), 20);
    let module = parse(&module_text("two_levels", &[2, 4], &all));
    check(&module, 8);
    let path = hlo_tests::root().join("reductions/two_levels.hlo");
    let header = "// what: the 20 programs of reduce-scatter, all-reduce and all-gather that sum over 2 x 4 devices\n// devices: 8\n";
    let sample = header.to_string()
        + &print_module(&module, &PrintOptions { form: FormChoice::Long, ..PrintOptions::default() });
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &sample).expect("the sample");
    }
    assert!(std::fs::read_to_string(&path).is_ok_and(|found| found == sample), "{path:?} is not what is generated");
}

#[test]
fn programs_of_three_levels_are_right_as_hlo() {
    let all = programs(3);
    assert_eq!(all.len(), 394);
    check(&parse(&module_text("three_levels", &[2, 2, 2], &all)), 8);
}
