//! The replication analysis on modules that are deep, wide or branch much: it ends soon, needs no stack, and stays right.

use crate::lockstep::parse;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::replication::{Across, Replication};
use hlo_ir::{InstId, Module};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Far above what is measured (some 0.1 s each on two cores), far below what a blow-up would take.
const LIMIT: Duration = Duration::from_secs(20);

fn compute(text: &str) -> (Module, Replication) {
    let module = parse("scale", text);
    let start = Instant::now();
    let facts = Replication::compute(&module, &ParamFacts::default());
    assert!(start.elapsed() < LIMIT, "took {:?}", start.elapsed());
    (module, facts)
}

fn find(module: &Module, name: &str) -> InstId {
    let mut all = module.computations().iter().flat_map(|&comp| module.comp(comp).insts.iter().copied());
    all.find(|&inst| module.inst_name(inst) == name).expect(name)
}

fn is_replicated(module: &Module, facts: &Replication, name: &str, leaf: usize) -> bool {
    facts.is_replicated(find(module, name), leaf, Across::Devices)
}

#[test]
fn a_chain_of_ten_thousand_calls() {
    let mut text = "HloModule deep, replica_count=2\n\n%c0 {\n  ROOT %p0 = f32[] parameter(0)\n}\n".to_string();
    for i in 1..10_000 {
        let _ = writeln!(
            text,
            "%c{i} {{\n  %p{i} = f32[] parameter(0)\n  ROOT %r{i} = f32[] call(%p{i}), to_apply=%c{}\n}}",
            i - 1
        );
    }
    text.push_str(
        "ENTRY %main {\n  %a = f32[] parameter(0), parameter_replication={true}\n  %u = f32[] parameter(1)\n  \
         %same = f32[] call(%a), to_apply=%c9999\n  %own = f32[] call(%u), to_apply=%c9999\n  \
         ROOT %t = (f32[], f32[]) tuple(%same, %own)\n}\n",
    );
    let (module, facts) = compute(&text);
    assert!(is_replicated(&module, &facts, "same", 0));
    assert!(!is_replicated(&module, &facts, "own", 0));
    assert!(!is_replicated(&module, &facts, "p0", 0));
}

#[test]
fn contexts_that_double_at_each_level() {
    // Level i calls level i - 1 three times with its two arguments in other places and met.
    let shape = "(f32[], f32[])";
    let mut text = "HloModule wide, replica_count=4, num_partitions=4\n\n".to_string();
    let _ = writeln!(
        text,
        "%c0 {{\n  %p0 = f32[] parameter(0)\n  %q0 = f32[] parameter(1)\n  ROOT %t0 = {shape} tuple(%p0, %q0)\n}}"
    );
    for i in 1..300 {
        let callee = i - 1;
        let _ = writeln!(
            text,
            "%c{i} {{\n  %p{i} = f32[] parameter(0)\n  %q{i} = f32[] parameter(1)\n  %sum{i} = f32[] add(%p{i}, %q{i})\n  \
             %x{i} = {shape} call(%q{i}, %p{i}), to_apply=%c{callee}\n  %y{i} = {shape} call(%sum{i}, %p{i}), to_apply=%c{callee}\n  \
             %z{i} = {shape} call(%q{i}, %sum{i}), to_apply=%c{callee}\n  %xx{i} = f32[] get-tuple-element(%x{i}), index=0\n  \
             %yy{i} = f32[] get-tuple-element(%y{i}), index=1\n  %zz{i} = f32[] get-tuple-element(%z{i}), index=0\n  \
             %w{i} = f32[] add(%xx{i}, %zz{i})\n  ROOT %t{i} = {shape} tuple(%w{i}, %yy{i})\n}}"
        );
    }
    let _ = writeln!(
        text,
        "ENTRY %main {{\n  %a = f32[] parameter(0), parameter_replication={{true}}\n  \
         %b = f32[] parameter(1), sharding={{replicated}}\n  ROOT %t = {shape} call(%a, %b), to_apply=%c299\n}}"
    );
    let (module, facts) = compute(&text);
    assert!(!is_replicated(&module, &facts, "t", 0));
}

/// A loop that moves each of `n` values to the next place: the fixpoint takes `n` rounds.
fn shifting_loop(n: usize, header: &str) -> String {
    let shape = format!("(s32[]{})", ", f32[]".repeat(n));
    let mut text = format!("HloModule shift, {header}\n\n%body {{\n  %s = {shape} parameter(0)\n");
    for i in 0..=n {
        let t = if i == 0 { "s32[]" } else { "f32[]" };
        let _ = writeln!(text, "  %e{i} = {t} get-tuple-element(%s), index={i}");
    }
    let _ = writeln!(text, "  %one = s32[] constant(1)\n  %next = s32[] add(%e0, %one)");
    // Place n keeps its own, place i takes that of i + 1; place 1 is nobody's source.
    let shifted: Vec<String> = (1..=n).map(|i| format!("%e{}", (i + 1).min(n))).collect();
    let _ = writeln!(text, "  ROOT %b = {shape} tuple(%next, {})\n}}", shifted.join(", "));
    let _ = writeln!(
        text,
        "%condition {{\n  %cs = {shape} parameter(0)\n  %ci = s32[] get-tuple-element(%cs), index=0\n  \
         %cn = s32[] constant(9)\n  ROOT %less = pred[] compare(%ci, %cn), direction=LT\n}}"
    );
    let sames = "%a, ".repeat(n - 1);
    let _ = writeln!(
        text,
        "ENTRY %main {{\n  %a = f32[] constant(1)\n  %zero = s32[] constant(0)\n  %u = f32[] parameter(0)\n  \
         %init = {shape} tuple(%zero, {sames}%u)\n  ROOT %loop = {shape} while(%init), condition=%condition, body=%body\n}}"
    );
    text
}

#[test]
fn a_loop_over_a_thousand_leaves_whose_fixpoint_takes_a_thousand_rounds() {
    let (module, facts) = compute(&shifting_loop(1000, "replica_count=32, num_partitions=32"));
    assert!(is_replicated(&module, &facts, "loop", 0));
    for leaf in [1, 500, 1000] {
        assert!(!is_replicated(&module, &facts, "loop", leaf), "leaf {leaf}");
        assert!(!is_replicated(&module, &facts, &format!("e{leaf}"), 0), "leaf {leaf}");
    }
}

#[test]
fn eighteen_thousand_instructions_on_a_thousand_devices() {
    let mut text = "HloModule long, replica_count=32, num_partitions=32\n\n%add {\n  %x = f32[] parameter(0)\n  \
                    %y = f32[] parameter(1)\n  ROOT %z = f32[] add(%x, %y)\n}\n\nENTRY %main {\n  \
                    %v0 = f32[] parameter(0), sharding={replicated}\n  %u = f32[] parameter(1)\n"
        .to_string();
    for i in 1..18_000 {
        let p = i - 1;
        let _ = match i % 30 {
            0 => writeln!(text, "  %v{i} = f32[] all-reduce(%u), replica_groups={{}}, to_apply=%add"),
            15 => writeln!(
                text,
                "  %v{i} = f32[] all-reduce(%v{p}), channel_id={i}, replica_groups=[32,32]<=[1024], use_global_device_ids=true, to_apply=%add"
            ),
            _ => writeln!(text, "  %v{i} = f32[] add(%v{p}, %v{})", i / 2),
        };
    }
    text.push_str("  ROOT %all = f32[] all-reduce(%v17999), channel_id=99999, replica_groups={}, to_apply=%add\n}\n");
    let (module, facts) = compute(&text);
    assert!(is_replicated(&module, &facts, "all", 0));
    assert!(!is_replicated(&module, &facts, "v17999", 0));
}
