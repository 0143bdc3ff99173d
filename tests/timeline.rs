//! When tasks run, and the memory at every moment: both say over a whole run what the analyses say in one figure.

use crate::lockstep::{parse, samples};
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::memory::{memory_curve, peak_memory};
use hlo_analysis::time::{Lane, Span, predict, predict_timeline};
use hlo_ir::{Module, Opcode};
use hlo_mesh::Machine;

fn timeline(module: &Module) -> (f64, f64, Vec<Span>) {
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    let machine = Machine::unnamed().expect("the default machine");
    let known = predict(module, &frequencies, &machine).expect("a time");
    let (time, spans) = predict_timeline(module, &frequencies, &machine).expect("a time");
    assert_eq!(time, known);
    (time.critical_path_s, time.compute_s + time.communication_s, spans)
}

/// A loop of three rounds of a product and a sum over devices.
const LOOP: &str = "HloModule rounds, num_partitions=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

body {
  p = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[64,64] get-tuple-element(p), index=1
  y = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sum = f32[64,64] all-reduce(y), replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true, to_apply=add
  ROOT t = (s32[], f32[64,64]) tuple(next, sum)
}

condition {
  p = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY e {
  x = f32[64,64] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[64,64]) tuple(zero, x)
  w = (s32[], f32[64,64]) while(t), condition=condition, body=body
  r = f32[64,64] get-tuple-element(w), index=1
  ROOT result = f32[64,64] negate(r)
}
";

#[test]
fn spans_fill_the_critical_path_of_every_program() {
    let mut n_checked = 0;
    for (path, text) in samples("programs") {
        let module = parse(&path, &text);
        if module.n_devices() == 0 {
            continue;
        }
        let (critical_path_s, busy_s, spans) = timeline(&module);
        let end_s = spans.iter().map(|span| span.end_s).fold(0.0, f64::max);
        assert_eq!(end_s, critical_path_s, "{path}: the last span ends with the critical path");
        for lane in [Lane::Compute, Lane::Communication, Lane::Copy] {
            let mut on_lane: Vec<&Span> =
                spans.iter().filter(|span| span.lane.is_none() || span.lane == Some(lane)).collect();
            on_lane.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
            for two in on_lane.windows(2) {
                let overlap_s = two[0].end_s - two[1].start_s;
                assert!(overlap_s <= critical_path_s * 1e-12, "{path}: {two:?}");
            }
        }
        let counted = |span: &&Span| matches!(span.lane, Some(Lane::Compute | Lane::Communication));
        let told_s: f64 = spans.iter().filter(counted).map(|span| (span.end_s - span.start_s) * span.n_runs).sum();
        if spans.iter().all(|span| span.lane.is_some() || span.opcode == Opcode::While) {
            assert!((told_s / busy_s - 1.0).abs() < 1e-9, "{path}: spans of {told_s} s, busy for {busy_s} s");
        }
        n_checked += 1;
    }
    assert!(n_checked > 40, "{n_checked}");
}

#[test]
fn of_a_loop_the_first_round_is_told_and_then_the_rest() {
    let (critical_path_s, _, spans) = timeline(&parse("loop", LOOP));
    let told: Vec<(&str, Option<Lane>, f64)> =
        spans.iter().map(|span| (span.name.as_str(), span.lane, span.n_runs)).collect();
    let of = |name: &str| told.iter().filter(|(n, ..)| *n == name).collect::<Vec<_>>();
    assert_eq!(of("c"), [&("c", Some(Lane::Compute), 4.0)]);
    assert_eq!(of("y"), [&("y", Some(Lane::Compute), 3.0)]);
    assert_eq!(of("sum"), [&("sum", Some(Lane::Communication), 3.0)]);
    assert_eq!(of("result"), [&("result", Some(Lane::Compute), 1.0)]);
    let rest = spans.iter().find(|span| span.lane.is_none()).expect("the rounds after the first");
    let last = spans.last().expect("a span");
    assert_eq!((rest.name.as_str(), rest.end_s, last.end_s), ("w", last.start_s, critical_path_s));
}

#[test]
fn the_highest_point_of_the_curve_of_memory_is_the_peak() {
    for folder in ["programs", "analysis/memory"] {
        for (path, text) in samples(folder) {
            let module = parse(&path, &text);
            let (report, points) = memory_curve(&module);
            assert_eq!(report, peak_memory(&module), "{path}");
            let highest = points.iter().max_by_key(|point| point.bytes).expect("a point");
            assert_eq!(highest.bytes, report.sizes.peak_bytes, "{path}");
            let given = report.sizes.argument_bytes + report.sizes.constant_bytes;
            assert!(points.iter().all(|point| point.bytes <= report.sizes.peak_bytes), "{path}");
            assert_eq!(points[0].bytes, given, "{path}: at the start there is what is given");
            assert!(points.iter().any(|point| point.inst == report.peak_at.last().copied()), "{path}");
        }
    }
}
