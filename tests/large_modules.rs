//! Modules of many computations, and values of many users: what is linear in the module must stay so.

use crate::cli::run_with_stdin;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Far above what is measured without optimisation (some 1 s each on two cores), far below what a blow-up would take.
const LIMIT: Duration = Duration::from_secs(15);

/// A chain of calls: each of `n` computations calls the one before.
fn chain_of_calls(n: usize) -> String {
    let mut text =
        "HloModule deep\n\nf0.c {\n  a = f32[16] parameter(0)\n  ROOT r = f32[16] negate(a)\n}\n".to_string();
    for i in 1..n {
        let _ = writeln!(
            text,
            "f{i}.c {{\n  a = f32[16] parameter(0)\n  b = f32[16] exponential(a)\n  ROOT r = f32[16] call(b), to_apply=f{}.c\n}}",
            i - 1
        );
    }
    let _ =
        writeln!(text, "ENTRY e {{\n  a = f32[16] parameter(0)\n  ROOT r = f32[16] call(a), to_apply=f{}.c\n}}", n - 1);
    text
}

/// A value that `n` instructions read, which a tuple collects.
fn wide(n: usize) -> String {
    let mut text =
        "HloModule wide\n\nENTRY e {\n  a = f32[16] parameter(0)\n  v = f32[16] exponential(a)\n".to_string();
    for i in 0..n {
        let _ = writeln!(text, "  r{i} = f32[16] reverse(v), dimensions={{0}}");
        let _ = writeln!(text, "  n{i} = f32[16] negate(r{i})");
    }
    let list = |item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(", ");
    let (shapes, values) = (list(&|_| "f32[16]".into()), list(&|i| format!("n{i}")));
    let _ = writeln!(text, "  ROOT t = ({shapes}) tuple({values})\n}}");
    text
}

/// A network of `n` convolutions, each with a long chain of elementwise operations behind it and a residual.
fn deep(n: usize) -> String {
    let images = "f32[2,6,6,16]";
    let mut text = format!(
        "HloModule network\n\nENTRY e {{\n  x0 = {images} parameter(0)\n  w = f32[3,3,16,16] parameter(1)\n  zero = f32[] constant(0)\n  \
         zeros = {images} broadcast(zero), dimensions={{}}\n"
    );
    for i in 0..n {
        let _ = writeln!(
            text,
            "  conv{i} = {images} convolution(x{i}, w), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f"
        );
        let mut last = format!("conv{i}");
        for j in 0..60 {
            let _ = writeln!(text, "  e{i}_{j} = {images} {}({last}, zeros)", ["maximum", "add"][j % 2]);
            last = format!("e{i}_{j}");
        }
        let _ = writeln!(text, "  x{} = {images} add({last}, x{i})", i + 1);
    }
    let _ = writeln!(text, "  ROOT r = {images} negate(x{n})\n}}");
    text
}

fn check(args: &[&str], text: &str) {
    let start = Instant::now();
    let outcome = run_with_stdin(args, text);
    assert_eq!(outcome.code, 0, "{args:?}: {}", outcome.stderr);
    assert!(start.elapsed() < LIMIT, "{args:?} took {:?}", start.elapsed());
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn a_module_of_many_computations_takes_linear_time() {
    let text = chain_of_calls(10_000);
    check(&["analyze", "time", "-"], &text);
    check(&["analyze", "memory", "-"], &text);
    check(&["--pass", "fuse", "-"], &text);
    check(&["--pass", "inline-calls", "-"], &text);
}

#[test]
fn values_and_instructions_of_many_edges_take_linear_time() {
    let text = wide(30_000);
    check(&["analyze", "time", "-"], &text);
    check(&["--pass", "fuse", "-"], &text);
}

#[test]
fn the_passes_of_the_gpu_backend_take_linear_time_for_deep_networks() {
    check(&["--pass", "split-convolutions,propagate-layouts", "-"], &deep(300));
    check(&["--pass", "fuse", "-"], &deep(100));
}
