//! Frequencies against runs: what the analysis derives is what the evaluator counts.

use crate::lockstep::{draw, draw_for, entry_arrays, parse, samples};
use hlo_analysis::frequency::{Basis, Frequencies, FrequencyOptions};
use hlo_eval::{EvalError, EvalOptions, Inputs, run_observed};
use hlo_ir::{CompId, Module};
use hlo_tests::random_module::{Rng, Size, random_module};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How often device 0 enters each computation that has a parameter.
fn count_runs(module: &Module, inputs: &Inputs, max_steps: u64) -> Result<BTreeMap<CompId, u64>, EvalError> {
    let mut counts = BTreeMap::new();
    let options = EvalOptions { max_steps, n_threads: 1, ..EvalOptions::default() };
    let first_params: BTreeMap<_, _> =
        module.computations().iter().filter_map(|&comp| Some((*module.comp(comp).params.first()?, comp))).collect();
    run_observed(module, inputs, &options, &mut |inst, device, _| {
        if device == 0
            && let Some(&comp) = first_params.get(&inst)
        {
            *counts.entry(comp).or_insert(0) += 1;
        }
    })?;
    Ok(counts)
}

fn inputs_of(module: &Module) -> Inputs {
    let n_devices = module.n_devices() as u32;
    let arrays = entry_arrays(module).into_iter();
    draw(1, arrays.map(|(_, _, dtype, dims)| (dtype, dims, (0..n_devices).collect())))
}

/// Computations that the evaluator enters: not those that it runs element by element.
fn is_entered(module: &Module, comp: CompId) -> bool {
    use hlo_ir::op::Flow;
    let mut sites = module
        .computations()
        .iter()
        .flat_map(|&c| &module.comp(c).insts)
        .filter(|&&inst| module.called(inst).contains(&comp));
    sites.all(|&inst| matches!(module.inst(inst).opcode.row().flow, Flow::Call | Flow::While | Flow::Conditional))
}

/// Computations whose derived frequency is not what the run counted, and how many were compared.
fn compare(module: &Module, counts: &BTreeMap<CompId, u64>) -> (String, usize) {
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    let (mut differences, mut n_compared) = (String::new(), 0);
    for &comp in module.computations() {
        let is_sure = frequencies.basis(comp) <= Basis::Derived;
        if !is_sure || module.comp(comp).params.is_empty() || !is_entered(module, comp) {
            continue;
        }
        n_compared += 1;
        let counted = counts.get(&comp).copied().unwrap_or(0) as f64;
        // Shares of branches are quotients.
        if (frequencies.of(comp) - counted).abs() > 1e-6 * counted.max(1.0) {
            let _ = writeln!(
                differences,
                "%{}: expected the {counted} runs counted, found {}",
                module.comp_name(comp),
                frequencies.of(comp)
            );
        }
    }
    (differences, n_compared)
}

#[test]
fn samples_are_as_marked_and_as_run() {
    for (path, text) in samples("analysis/frequency") {
        let module = parse(&path, &text);
        let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
        for (line_idx, line) in text.lines().enumerate() {
            let Some((code, mark)) = line.split_once("{  // runs ") else { continue };
            let name = code.trim_start_matches("ENTRY ").trim().trim_start_matches('%');
            let &comp = module.computations().iter().find(|&&c| module.comp_name(c) == name).expect(name);
            let (is_sure, number) = match mark.strip_prefix("about ") {
                Some(number) => (false, number),
                None => (true, mark),
            };
            let expected: f64 = number.parse().expect(mark);
            let found = frequencies.of(comp);
            assert!((found - expected).abs() < 1e-9, "{path}:{}: %{name} runs {found}", line_idx + 1);
            assert_eq!(frequencies.basis(comp) <= Basis::Derived || found == 0.0, is_sure, "{path}: %{name}");
        }
        assert_eq!(text.matches("{  // runs ").count(), module.computations().len(), "{path}: unmarked computations");
        if !path.ends_with("assumed") {
            let counts = count_runs(&module, &inputs_of(&module), 100_000).expect("a run");
            assert_eq!(compare(&module, &counts).0, "", "{path}");
        }
    }
}

#[test]
fn real_loops_run_as_often_as_their_models_say() {
    let expected = [
        ("mlp_adam_fori", 20),
        ("mlp_adam_fori.opt", 20),
        ("mlp_adam_fori.repl", 20),
        ("mlp_adam_fori.unopt", 20),
        ("mlp_adam_fori.unopt_gspmd", 20),
        ("gpt2l_adamw_fori", 20),
        ("ncf_adam_fori", 20),
        ("mlp_adam_accum", 2),
        ("mlp_adam_summary", 1000),
        ("mlp_adam_summary.opt", 1000),
        ("mlp_adam_summary.repl", 1000),
        ("mlp_adam_summary.unopt", 1000),
    ];
    for (name, trips) in expected {
        let (_, text) =
            samples("programs").into_iter().find(|(path, _)| *path == format!("programs/{name}")).expect(name);
        // What XLA stated must be found without it too.
        for text in [text.clone(), text.replace("known_trip_count", "another_trip_count")] {
            let module = parse(name, &text);
            let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
            let all = || module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
            let loops: Vec<u64> = all().filter_map(|&inst| Some(frequencies.trip_count(inst)?.count)).collect();
            assert_eq!(loops, [trips], "{name}");
            let shares: Vec<_> = all().filter_map(|&inst| frequencies.branch_shares(inst)).collect();
            assert_eq!(shares.len(), usize::from(name.contains("summary")), "{name}");
            for branches in shares {
                // `step % 100 == 0` fires 10 times in 1000.
                assert_eq!((&*branches.shares, branches.basis), (&[0.99, 0.01][..], Basis::Derived), "{name}");
            }
        }
    }
}

/// How often a loop over one variable runs, and whether that is sure.
fn trips(shape: &str, init: &str, body: &str, condition: &str) -> (u64, bool) {
    let text = format!(
        "HloModule m\n%body {{\n  %p = ({shape}) parameter(0)\n  %i = {shape} get-tuple-element(%p), index=0\n  {body}\n  \
         ROOT %t = ({shape}) tuple(%next)\n}}\n%cond {{\n  %q = ({shape}) parameter(0)\n  %i = {shape} get-tuple-element(%q), index=0\n  \
         {condition}\n}}\nENTRY %main {{\n  %init = {shape} constant({init})\n  %s = ({shape}) tuple(%init)\n  \
         ROOT %w = ({shape}) while(%s), condition=%cond, body=%body\n}}\n"
    );
    let module = parse("a loop", &text);
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand()).expect("a root");
    let found = Frequencies::compute(&module, FrequencyOptions::default()).trip_count(root).expect("a loop");
    (found.count, found.basis <= Basis::Derived)
}

#[test]
fn loops_that_are_too_long_to_follow_are_counted_by_their_bounds() {
    let body = "%one = s64[] constant(1)\n  %next = s64[] add(%i, %one)";
    let bound = "%n = s64[] constant(1000000000000)\n  ROOT %c = pred[]";
    let right = format!("{bound} compare(%i, %n), direction=LT");
    let left = format!("{bound} compare(%n, %i), direction=GT");
    assert_eq!(trips("s64[]", "0", body, &right), (1_000_000_000_000, true));
    assert_eq!(trips("s64[]", "0", body, &left), (1_000_000_000_000, true));
}

#[test]
fn a_variable_that_wraps_around_before_its_bound_is_not_counted() {
    let body = |step: i64| format!("%by = s8[] constant({step})\n  %next = s8[] add(%i, %by)");
    let condition =
        |bound: i64| format!("%n = s8[] constant({bound})\n  ROOT %c = pred[] compare(%i, %n), direction=LE");
    assert_eq!(trips("s8[]", "0", &body(1), &condition(126)), (127, true));
    assert!(!trips("s8[]", "0", &body(1), &condition(127)).1, "it never ends");
    assert_eq!(trips("s8[]", "-128", &body(5), &condition(121)), (50, true));
}

#[test]
fn a_variable_in_an_array_of_one_element_is_followed_and_one_in_a_small_float_is_not() {
    let body = "%one = s32[1]{0} constant({1})\n  %next = s32[1]{0} add(%i, %one)";
    let condition =
        "%n = s32[] constant(9)\n  %j = s32[] reshape(%i)\n  ROOT %c = pred[] compare(%j, %n), direction=LT";
    assert_eq!(trips("s32[1]{0}", "{4}", body, condition), (5, true));
    // 256 + 1 is 256 in bf16: the loop never ends.
    let body = "%one = bf16[] constant(1)\n  %next = bf16[] add(%i, %one)";
    let condition = "%n = bf16[] constant(300)\n  ROOT %c = pred[] compare(%i, %n), direction=LT";
    assert!(!trips("bf16[]", "0", body, condition).1);
}

#[test]
fn a_bound_from_many_call_sites_is_not_followed() {
    let trips_with = |n_sites: usize| {
        let mut text = "HloModule m\n%body {\n  %p = (s32[], s32[]) parameter(0)\n  %i = s32[] get-tuple-element(%p), index=0\n  \
                        %n = s32[] get-tuple-element(%p), index=1\n  %one = s32[] constant(1)\n  %next = s32[] add(%i, %one)\n  \
                        ROOT %t = (s32[], s32[]) tuple(%next, %n)\n}\n%cond {\n  %q = (s32[], s32[]) parameter(0)\n  \
                        %j = s32[] get-tuple-element(%q), index=0\n  %m = s32[] get-tuple-element(%q), index=1\n  \
                        ROOT %c = pred[] compare(%j, %m), direction=LT\n}\n%called {\n  %bound = s32[] parameter(0)\n  \
                        %zero = s32[] constant(0)\n  %s = (s32[], s32[]) tuple(%zero, %bound)\n  \
                        %w = (s32[], s32[]) while(%s), condition=%cond, body=%body\n  \
                        ROOT %r = s32[] get-tuple-element(%w), index=0\n}\nENTRY %main {\n  %five = s32[] constant(5)\n"
            .to_string();
        for site in 0..n_sites {
            let _ = writeln!(text, "  %call{site} = s32[] call(%five), to_apply=%called");
        }
        text.push_str("  ROOT %end = s32[] negate(%five)\n}\n");
        let module = parse("calls", &text);
        let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
        let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
        insts.find_map(|&inst| frequencies.trip_count(inst)).expect("a loop").basis
    };
    assert_eq!([1, 32, 33, 34].map(trips_with), [Basis::Derived, Basis::Derived, Basis::Assumed, Basis::Assumed]);
}

/// A loop of random form whose body chooses between branches by a random function of its variable.
fn random_loop(rng: &mut Rng) -> String {
    let dtype = *rng.pick(&["s32", "u32", "s8", "u8", "s64"]);
    let is_signed = dtype.starts_with('s');
    let direction = *rng.pick(&["LT", "LE", "GT", "GE", "NE", "EQ"]);
    let is_down = rng.one_in(2);
    let low = |rng: &mut Rng| rng.below(40) as i64 - if is_signed { 20 } else { 0 };
    let (init, bound) = (low(rng), low(rng) + if is_signed { 0 } else { 3 });
    let step = rng.below(4) as i64 + i64::from(!rng.one_in(8));
    let by = if is_down { "subtract" } else { "add" };
    let compared = if rng.one_in(2) { "%j, %n" } else { "%n, %j" };
    let (period, which) = (1 + rng.below(6), rng.below(6));
    let test = *rng.pick(&["EQ", "LT", "GE", "NE"]);
    let next = if by == "add" && rng.one_in(2) { "%by, %i" } else { "%i, %by" };
    format!(
        "HloModule random_loop\n\n%yes {{\n  ROOT %yes_p = f32[] parameter(0)\n}}\n\n%no {{\n  ROOT %no_p = f32[] parameter(0)\n}}\n\n\
         %body {{\n  %p = ({dtype}[], f32[], {dtype}[]) parameter(0)\n  %i = {dtype}[] get-tuple-element(%p), index=0\n  \
         %x = f32[] get-tuple-element(%p), index=1\n  %k = {dtype}[] get-tuple-element(%p), index=2\n  \
         %by = {dtype}[] constant({step})\n  %next = {dtype}[] {by}({next})\n  %period = {dtype}[] constant({period})\n  \
         %rem = {dtype}[] remainder(%i, %period)\n  %which = {dtype}[] constant({which})\n  \
         %test = pred[] compare(%rem, %which), direction={test}\n  \
         %choice = f32[] conditional(%test, %x, %x), true_computation=%yes, false_computation=%no\n  \
         ROOT %t = ({dtype}[], f32[], {dtype}[]) tuple(%next, %choice, %k)\n}}\n\n\
         %cond {{\n  %q = ({dtype}[], f32[], {dtype}[]) parameter(0)\n  %j = {dtype}[] get-tuple-element(%q), index=0\n  \
         %n = {dtype}[] get-tuple-element(%q), index=2\n  ROOT %c = pred[] compare({compared}), direction={direction}\n}}\n\n\
         ENTRY %main {{\n  %v = f32[] parameter(0)\n  %from = {dtype}[] constant({init})\n  %to = {dtype}[] constant({bound})\n  \
         %init = ({dtype}[], f32[], {dtype}[]) tuple(%from, %v, %to)\n  \
         ROOT %loop = ({dtype}[], f32[], {dtype}[]) while(%init), condition=%cond, body=%body\n}}\n"
    )
}

#[test]
fn derived_counts_of_random_loops_are_those_of_a_run() {
    let (mut n_ended, mut n_derived) = (0, 0);
    for seed in 0..400 {
        let text = random_loop(&mut Rng::new(seed));
        let module = parse("random loop", &text);
        // A loop that wraps around a wide type, or never ends, is not run to its end.
        let Ok(counts) = count_runs(&module, &inputs_of(&module), 20_000) else { continue };
        n_ended += 1;
        let (differences, n_compared) = compare(&module, &counts);
        assert_eq!(differences, "", "seed {seed}\n{text}");
        n_derived += usize::from(n_compared == module.computations().len());
    }
    assert!(n_ended > 200 && n_derived == n_ended, "{n_derived} of {n_ended} loops that end were derived");
}

#[test]
fn random_modules_run_as_often_as_derived() {
    let mut n_compared = 0;
    for seed in 0..200 {
        let size = Size { replica_count: 1 + (seed % 2) as usize, num_partitions: 1, n_steps: 12 };
        let random = random_module(seed, size);
        let module = parse(&format!("seed {seed}"), &random.text);
        let Ok(counts) = count_runs(&module, &draw_for(seed, &random.inputs), 100_000) else { continue };
        let (differences, n) = compare(&module, &counts);
        assert_eq!(differences, "", "seed {seed}\n{}", random.text);
        n_compared += n;
    }
    assert!(n_compared > 300, "only {n_compared} computations were compared");
}

#[test]
fn the_option_says_what_an_unknown_loop_runs() {
    let (path, text) =
        samples("analysis/frequency").into_iter().find(|(p, _)| p.ends_with("assumed")).expect("a sample");
    let module = parse(&path, &text);
    let frequencies = Frequencies::compute(&module, FrequencyOptions { unknown_trip_count: 25 });
    let of = |name: &str| {
        let found = module.computations().iter().find(|&&comp| module.comp_name(comp) == name);
        found.map(|&comp| frequencies.of(comp))
    };
    // Firings at 0, 10 and 20 of 25.
    assert_eq!((of("body"), of("summary"), of("left")), (Some(25.0), Some(3.0), Some(12.5)));
}

#[test]
fn deep_and_wide_programs_end_soon() {
    // A loop of 2^40 trips is divided, not run; 300 branches over it are counted over its first million at most.
    let mut text = String::from("HloModule long\n\n%b {\n  ROOT %bp = f32[] parameter(0)\n}\n\n%body {\n");
    text.push_str("  %p = (s64[], f32[]) parameter(0)\n  %i = s64[] get-tuple-element(%p), index=0\n");
    text.push_str(
        "  %x0 = f32[] get-tuple-element(%p), index=1\n  %one = s64[] constant(1)\n  %zero = s64[] constant(0)\n",
    );
    for k in 1..=300 {
        let _ = writeln!(
            text,
            "  %n{k} = s64[] constant({})\n  %r{k} = s64[] remainder(%i, %n{k})\n  %is{k} = pred[] compare(%r{k}, %zero), direction=EQ\n  \
             %x{k} = f32[] conditional(%is{k}, %x{}, %x{}), true_computation=%b, false_computation=%b",
            k + 1,
            k - 1,
            k - 1
        );
    }
    text.push_str("  %next = s64[] add(%i, %one)\n  ROOT %t = (s64[], f32[]) tuple(%next, %x300)\n}\n\n%cond {\n");
    text.push_str("  %q = (s64[], f32[]) parameter(0)\n  %j = s64[] get-tuple-element(%q), index=0\n");
    text.push_str("  %n = s64[] constant(1099511627776)\n  ROOT %lt = pred[] compare(%j, %n), direction=LT\n}\n\n");
    text.push_str(
        "ENTRY %main {\n  %v = f32[] parameter(0)\n  %z = s64[] constant(0)\n  %init = (s64[], f32[]) tuple(%z, %v)\n",
    );
    text.push_str("  ROOT %loop = (s64[], f32[]) while(%init), condition=%cond, body=%body\n}\n");
    let module = parse("long", &text);
    let start = Instant::now();
    let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
    // Measured: 1 s; without limits it would be hours.
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    let main = module.computations().iter().copied().find(|&comp| module.comp_name(comp) == "body").expect("a body");
    assert_eq!(frequencies.of(main), (1u64 << 40) as f64);
    let all = || module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let first = all().find_map(|&inst| frequencies.branch_shares(inst)).expect("a conditional");
    assert_eq!((&*first.shares, first.basis), (&[0.5, 0.5][..], Basis::Estimated));

    // A chain of calls deeper than is followed: no stack is needed, and the loop's count is not known.
    let mut text = String::from("HloModule deep\n\n%c0 {\n  ROOT %p0 = s32[] parameter(0)\n}\n\n");
    for i in 1..10_000 {
        let _ = writeln!(
            text,
            "%c{i} {{\n  %p{i} = s32[] parameter(0)\n  %q{i} = s32[] add(%p{i}, %p{i})\n  ROOT %r{i} = s32[] call(%q{i}), to_apply=%c{}\n}}\n",
            i - 1
        );
    }
    text.push_str("%still {\n  ROOT %sp = s32[] parameter(0)\n}\n\n%check {\n  %cp = s32[] parameter(0)\n  %five = s32[] constant(5)\n  ");
    text.push_str("ROOT %le = pred[] compare(%cp, %five), direction=EQ\n}\n\n");
    text.push_str("ENTRY %main {\n  %one = s32[] constant(1)\n  %deep = s32[] call(%one), to_apply=%c9999\n  ");
    text.push_str("ROOT %loop = s32[] while(%deep), condition=%check, body=%still\n}\n");
    let module = parse("deep", &text);
    let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
    let loop_ = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let trips: Vec<_> = loop_.filter_map(|&inst| frequencies.trip_count(inst)).collect();
    assert_eq!(trips.len(), 1);
    assert_eq!(trips[0].basis, Basis::Assumed);
}
