//! Random integer modules that are full of what the collectives' passes look for: sums of sums, sums of reductions, transposes behind
//! reductions, accumulating loops, many reductions of one kind. Integers wrap, so the order of additions does not matter and every
//! result must be the same bit for bit, on four devices.

use crate::lockstep::{are_equal, draw, parse_random};
use hlo_analysis::Analyses;
use hlo_eval::{EvalOptions, run};
use hlo_ir::DType;
use hlo_pass::runner::{RunOptions, bind_text, run_pipeline};
use hlo_tests::random_module::Rng;
use std::fmt::Write;

/// Modules for each pipeline.
const N_CASES: u64 = 150;

/// Dims of the values: both orders of one matrix, and what is left of it after a sum.
const DIMS: [&[i64]; 4] = [&[4, 8], &[8, 4], &[32], &[4]];

/// A computation's text, and the names of its values by dims.
#[derive(Default)]
struct Body {
    text: String,
    values: [Vec<String>; DIMS.len()],
}

struct Gen {
    rng: Rng,
    n_names: usize,
}

fn shape(of: usize) -> String {
    let dims: Vec<String> = DIMS[of].iter().map(i64::to_string).collect();
    format!("s32[{}]", dims.join(","))
}

impl Gen {
    fn emit(&mut self, body: &mut Body, of: usize, text: &str) -> String {
        self.n_names += 1;
        let name = format!("%v{}", self.n_names);
        let _ = writeln!(body.text, "  {name} = {} {text}", shape(of));
        body.values[of].push(name.clone());
        name
    }

    /// A value of these dims, often the last one: chains are what passes look for.
    fn pick(&mut self, body: &Body, of: usize) -> String {
        let values = &body.values[of];
        let at = if self.rng.one_in(2) { values.len() - 1 } else { self.rng.below(values.len()) };
        values[at].clone()
    }

    fn collective(&mut self, body: &mut Body, of: usize) {
        let x = self.pick(body, of);
        let groups = *self.rng.pick(&["{{0,1,2,3}}", "{{0,1,2,3}}", "{{0,1,2,3}}", "{{0,1},{2,3}}"]);
        let n = if groups.len() > 12 { 2 } else { 4 };
        let reducer = if self.rng.one_in(5) { "%max" } else { "%add" };
        match self.rng.below(8) {
            0 if DIMS[of].len() == 2 => {
                let dim = self.rng.below(2);
                let mut dims = DIMS[of].to_vec();
                dims[dim] /= n;
                self.n_names += 1;
                let (shard, cut) = (format!("%v{}", self.n_names), format!("s32[{},{}]", dims[0], dims[1]));
                let attrs = format!("replica_groups={groups}, dimensions={{{dim}}}");
                let _ = writeln!(body.text, "  {shard} = {cut} reduce-scatter({x}), {attrs}, to_apply={reducer}");
                self.emit(body, of, &format!("all-gather({shard}), {attrs}"));
            }
            _ => {
                self.emit(body, of, &format!("all-reduce({x}), replica_groups={groups}, to_apply={reducer}"));
            }
        }
    }

    fn step(&mut self, body: &mut Body) {
        let of = self.rng.below(DIMS.len());
        let mut x = self.pick(body, of);
        if self.rng.one_in(6) {
            x = self.reduced(body, of, &x);
        }
        match self.rng.below(9) {
            0..=2 => self.collective(body, of),
            3..=4 => {
                let y = self.pick(body, of);
                let [x, y] = if self.rng.one_in(3) { [x, y].map(|part| self.reduced(body, of, &part)) } else { [x, y] };
                self.emit(body, of, &format!("add({x}, {y})"));
            }
            5 => {
                let scale = self.emit(body, of, "broadcast(%three), dimensions={}");
                self.emit(body, of, &format!("multiply({x}, {scale})"));
            }
            6 if of < 2 => {
                self.emit(body, 1 - of, &format!("transpose({x}), dimensions={{1,0}}"));
            }
            6..=7 if of == 2 => {
                let to = self.rng.below(2);
                self.emit(body, to, &format!("reshape({x})"));
            }
            6..=7 if of < 2 => {
                self.emit(body, 2, &format!("reshape({x})"));
            }
            _ if of == 0 => {
                self.emit(body, 3, &format!("reduce({x}, %zero), dimensions={{1}}, to_apply=%add"));
            }
            _ => {
                self.emit(body, of, &format!("xor({x}, {x})"));
                let last = self.pick(body, of);
                self.emit(body, of, &format!("negate({last})"));
            }
        }
    }

    /// A sum over all devices, sometimes scaled.
    fn reduced(&mut self, body: &mut Body, of: usize, part: &str) -> String {
        let sum = self.emit(body, of, &format!("all-reduce({part}), replica_groups={{}}, to_apply=%add"));
        if self.rng.one_in(3) {
            let scale = self.emit(body, of, "broadcast(%three), dimensions={}");
            return self.emit(body, of, &format!("multiply({sum}, {scale})"));
        }
        sum
    }

    fn steps(&mut self, body: &mut Body, n: usize) {
        for _ in 0..n {
            self.step(body);
        }
    }

    /// A loop of three iterations that adds something up in an accumulator, mostly a reduction; its computations.
    fn accumulate(&mut self, entry: &mut Body) -> String {
        let of = self.rng.below(DIMS.len());
        let (start, x) = (self.pick(entry, of), self.pick(entry, 0));
        let from_zero = self.rng.one_in(2);
        self.n_names += 1;
        let n = self.n_names;
        let state = format!("(s32[], {}, {})", shape(of), shape(0));
        let mut body = Body::default();
        let _ = writeln!(
            body.text,
            "  %state{n} = {state} parameter(0)\n  %i{n} = s32[] get-tuple-element(%state{n}), index=0"
        );
        let _ = writeln!(body.text, "  %one{n} = s32[] constant(1)\n  %next{n} = s32[] add(%i{n}, %one{n})");
        let _ = writeln!(body.text, "  %sum{n} = {} get-tuple-element(%state{n}), index=1", shape(of));
        let _ = writeln!(body.text, "  %x{n} = {} get-tuple-element(%state{n}), index=2", shape(0));
        let _ = writeln!(body.text, "  %i_all{n} = {} broadcast(%i{n}), dimensions={{}}", shape(0));
        let constants = "  %three = s32[] constant(3)\n  %zero = s32[] constant(0)\n";
        body.text.push_str(&constants.replace("%three", &format!("%three{n}")).replace("%zero", &format!("%zero{n}")));
        self.emit(&mut body, 0, &format!("add(%x{n}, %i_all{n})"));
        self.seed(&mut body);
        self.steps(&mut body, 6);
        if self.rng.one_in(8) {
            body.values[of].push(format!("%sum{n}"));
            self.steps(&mut body, 3);
        }
        let term = self.pick(&body, of);
        let groups = "replica_groups={{0,1,2,3}}, to_apply=%add";
        let term = self.emit(&mut body, of, &format!("all-reduce({term}), {groups}"));
        let sum = self.emit(&mut body, of, &format!("add({term}, %sum{n})"));
        let _ = writeln!(body.text, "  ROOT %new{n} = {state} tuple(%next{n}, {sum}, %x{n})");
        let text = body.text.replace("(%three)", &format!("(%three{n})")).replace("%zero)", &format!("%zero{n})"));
        let condition = format!(
            "%condition{n} (state: {state}) -> pred[] {{\n  %cstate{n} = {state} parameter(0)\n  %ci{n} = s32[] \
             get-tuple-element(%cstate{n}), index=0\n  %limit{n} = s32[] constant(3)\n  ROOT %more{n} = pred[] \
             compare(%ci{n}, %limit{n}), direction=LT\n}}\n\n"
        );
        let start = if from_zero { self.emit(entry, of, "broadcast(%zero), dimensions={}") } else { start };
        let _ = writeln!(entry.text, "  %init{n} = {state} tuple(%zero, {start}, {x})");
        let _ = writeln!(entry.text, "  %loop{n} = {state} while(%init{n}), condition=%condition{n}, body=%body{n}");
        self.emit(entry, of, &format!("get-tuple-element(%loop{n}), index=1"));
        format!("%body{n} (state: {state}) -> {state} {{\n{text}}}\n\n{condition}")
    }

    /// Values of all dims, from the last one of the first dims.
    fn seed(&mut self, body: &mut Body) {
        let x = self.pick(body, 0);
        self.emit(body, 1, &format!("transpose({x}), dimensions={{1,0}}"));
        self.emit(body, 2, &format!("reshape({x})"));
        self.emit(body, 3, &format!("reduce({x}, %zero), dimensions={{1}}, to_apply=%add"));
    }
}

/// A module with one parameter `s32[4,8]`.
fn random_text(seed: u64) -> String {
    let mut of = Gen { rng: Rng::new(seed), n_names: 0 };
    let mut entry = Body::default();
    entry.text.push_str("  %p = s32[4,8] parameter(0)\n  %three = s32[] constant(3)\n  %zero = s32[] constant(0)\n");
    entry.values[0].push("%p".into());
    of.seed(&mut entry);
    of.steps(&mut entry, 10);
    let loops = of.accumulate(&mut entry);
    of.steps(&mut entry, 10);
    let mut text = String::from("HloModule random, replica_count=4\n\n");
    for (name, op) in [("add", "add"), ("max", "maximum")] {
        let _ = writeln!(
            text,
            "%{name} ({name}.a: s32[], {name}.b: s32[]) -> s32[] {{\n  %{name}.a = s32[] parameter(0)\n  %{name}.b = \
             s32[] parameter(1)\n  ROOT %{name}.r = s32[] {op}(%{name}.a, %{name}.b)\n}}\n"
        );
    }
    text.push_str(&loops);
    let last: Vec<String> = entry.values.iter().flat_map(|v| v.iter().rev().take(2)).cloned().collect();
    let shapes = entry.values.iter().enumerate().flat_map(|(i, v)| vec![shape(i); v.len().min(2)]);
    let shapes: Vec<String> = shapes.collect();
    let result = format!("({})", shapes.join(", "));
    let _ = writeln!(text, "ENTRY %main (p: s32[4,8]) -> {result} {{\n{}", entry.text.trim_end());
    let _ = writeln!(text, "  ROOT %out = {result} tuple({})\n}}", last.join(", "));
    text
}

/// Whether the pipeline changed the module of this seed, after comparing all results and running it a second time.
fn check(pipeline: &str, seed: u64) -> bool {
    let text = random_text(seed);
    let mut module = parse_random(seed, &text);
    let leaf = (DType::S32, vec![4, 8], (0..4).collect());
    let inputs = draw(seed, [leaf].into_iter());
    let evaluate = |module: &hlo_ir::Module| {
        run(module, &inputs, &EvalOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"))
    };
    let before = evaluate(&module);
    let registry = hlo_opt::registry::passes();
    let mut has_changed = Vec::new();
    for _ in 0..2 {
        let (passes, target) = bind_text(pipeline, &registry, module.n_devices()).expect(pipeline);
        let options = RunOptions { check: true, target: Some(&target), ..RunOptions::default() };
        let summary = run_pipeline(&mut module, &mut Analyses::default(), &passes, options);
        let summary = summary.unwrap_or_else(|e| panic!("{pipeline}, seed {seed}: {:?}\n{text}", e.diagnostics));
        has_changed.push(summary.reports.iter().any(|report| report.changed));
    }
    let after = evaluate(&module);
    for (a, b) in before.leaves.iter().zip(&after.leaves) {
        let is_same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b));
        assert!(is_same, "{pipeline}, seed {seed}: another result\n{text}");
    }
    // A later pass of a pipeline may give an earlier one something to do again.
    assert!(!has_changed[1] || pipeline.contains("},"), "{pipeline}, seed {seed}: a second run changes it\n{text}");
    has_changed[0]
}

#[test]
fn collectives_passes_keep_integer_results() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES);
    for (pipeline, least) in [
        ("sink-all-reduce", 3),
        ("sink-all-reduce{loops=false}", 15),
        ("reassociate-all-reduce", 10),
        ("fold-all-reduce-of-all-reduce", 4),
        ("@machine=[(node,2,1),(gpu,2,100)];decompose-collectives{algo=ring}", 2),
        ("@machine=[(node,2,0.001),(gpu,2,100)];decompose-collectives{min-gain=0}", 6),
        ("@machine=[(rack,2,0.001),(node,1),(gpu,2,50)];decompose-collectives{algo=tree}", 10),
        ("@machine=[(node,2,1),(gpu,2+2,100)];decompose-collectives{algo=ring}", 2),
        ("@machine=[(gpu,4,100)];decompose-collectives", 0),
        ("@machine=[(node,2,1),(gpu,2,100)];combine-collectives{mode=variadic},decompose-collectives{algo=ring}", 2),
        ("combine-collectives{mode=packed}", 2),
        ("combine-collectives{mode=variadic}", 2),
        ("combine-collectives{mode=packed,threshold-bytes=300}", 4),
        (
            "sink-all-reduce,reassociate-all-reduce,fold-all-reduce-of-all-reduce,sink-all-reduce,combine-collectives{},dce",
            2,
        ),
    ] {
        let n_changed = (0..n_cases).filter(|&seed| check(pipeline, seed)).count() as u64;
        // 0: there is nothing to do for it.
        let is_enough = if least == 0 { n_changed == 0 } else { n_changed * least >= n_cases };
        assert!(is_enough, "{pipeline} changed only {n_changed} of {n_cases} modules");
    }
}
