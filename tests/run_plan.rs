//! `hlo-opt run --backend host` against the evaluator, and what it says when something is wrong.

use crate::cli::run;
use hlo_eval::npz::NpzReader;
use hlo_ir::{Literal, Scalar};
use hlo_tests::root;
use std::path::Path;

fn folder(test: &str) -> impl Fn(&str) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(test);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder for files");
    move |name| dir.join(name).display().to_string()
}

fn arrays(path: &str) -> Vec<(String, Literal)> {
    let bytes = std::fs::read(path).expect("an archive");
    let mut archive = NpzReader::new(std::io::Cursor::new(bytes)).expect("an archive");
    let names: Vec<String> = archive.names().map(str::to_string).collect();
    names.into_iter().map(|name| (name.clone(), archive.read(&name).expect("an array"))).collect()
}

fn floats(array: &Literal) -> Vec<f64> {
    let float = |i| match array.get(i) {
        Some(Scalar::Float(x)) => x,
        Some(Scalar::Int(x)) => x as f64,
        Some(Scalar::Uint(x)) => x as f64,
        other => panic!("{other:?}"),
    };
    (0..array.n_elems()).map(float).collect()
}

/// The largest difference relative to the largest element.
fn difference(found: &Literal, expected: &Literal) -> f64 {
    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()));
    let (found, expected) = (floats(found), floats(expected));
    let largest = expected.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let errors = found.iter().zip(&expected).map(|(f, e)| if (f - e).is_nan() { f64::INFINITY } else { (f - e).abs() });
    errors.fold(0.0, f64::max) / largest
}

#[test]
fn the_host_backend_agrees_with_the_evaluator() {
    let file = folder("agrees");
    let (inputs, found) = (file("inputs.npz"), file("found.npz"));
    for (program, n_arrays) in [("passes/shard-weight-update/sgd.hlo", 4), ("programs/mlp_sgd.repl.hlo", 56)] {
        let program = root().join(program).display().to_string();
        let drawn = ["eval", &program, "--seed", "5", "--draw", "n.05 n.05 n.05", "--save-inputs", "-o", &inputs];
        assert_eq!(run(&drawn).code, 0);
        let out = run(&["run", "--backend", "host", &program, "--inputs", &inputs, "-o", &found]);
        assert_eq!((out.code, out.stdout.as_str(), out.stderr.as_str()), (0, "", ""), "{program}");
        let mut expected = arrays(&inputs);
        expected.retain(|(name, _)| name.starts_with("out"));
        let found = arrays(&found);
        assert_eq!(found.len(), n_arrays, "{program}");
        assert_eq!(found.len(), expected.len(), "{program}");
        for ((name, found), (expected_name, expected)) in found.iter().zip(&expected) {
            assert_eq!(name, expected_name);
            let difference = difference(found, expected);
            assert!(difference < 2e-5, "{program}: {name}: {difference}");
        }
    }
}

/// A dot whose algorithm rounds its operands: a library product of converted operands, or a kernel where the library has none.
#[test]
fn the_algorithm_of_a_dot_rounds_its_operands() {
    let file = folder("algorithm");
    let dots = [
        ("dot_bf16_bf16_f32", "f32"),
        ("dot_bf16_bf16_bf16", "f32"),
        ("dot_f16_f16_f32", "f32"),
        ("dot_bf16_bf16_f32", "f64"),
    ];
    for (algorithm, dtype) in dots {
        let text = format!(
            "HloModule rounded\n\nENTRY main {{\n  a = {dtype}[48,64] parameter(0)\n  b = {dtype}[64,40] parameter(1)\n  ROOT c = \
             {dtype}[48,40] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, algorithm={algorithm}\n}}\n"
        );
        let path = file("dot.hlo");
        std::fs::write(&path, &text).expect("it is written");
        let (inputs, found) = (file("inputs.npz"), file("found.npz"));
        assert_eq!(run(&["eval", &path, "--seed", "3", "--draw", "n1 n1", "--save-inputs", "-o", &inputs]).code, 0);
        let out = run(&["run", "--backend", "host", &path, "--inputs", &inputs, "-o", &found]);
        assert_eq!((out.code, out.stderr.as_str()), (0, ""), "{algorithm}");
        let output =
            |path: &str| arrays(path).into_iter().find(|(name, _)| name.starts_with("out")).expect("an output").1;
        let rounded = output(&inputs);
        assert!(difference(&output(&found), &rounded) < 2e-6, "{algorithm} of {dtype}");
        // The test can fail: without the algorithm the result differs by far more.
        std::fs::write(&path, text.replace(&format!(", algorithm={algorithm}"), "")).expect("it is written");
        let out = run(&["run", "--backend", "host", &path, "--inputs", &inputs, "-o", &found]);
        assert_eq!(out.code, 0);
        assert!(difference(&output(&found), &rounded) > 1e-5, "{algorithm} of {dtype}");
    }
}

/// Two reductions of equal length, of rows and of columns, in one kernel: the choice of its threads is the same in every process.
#[test]
fn emitted_kernels_are_the_same_in_every_process() {
    let path = folder("same")("sums.hlo");
    let text = "HloModule sums\n\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\nENTRY main \
                {\n  x = f32[64,64] parameter(0)\n  zero = f32[] constant(0)\n  rows = f32[64] reduce(x, zero), dimensions={1}, \
                to_apply=add\n  columns = f32[64] reduce(x, zero), dimensions={0}, to_apply=add\n  ROOT both = \
                f32[64] add(rows, columns)\n}\n";
    std::fs::write(&path, text).expect("it is written");
    let first = run(&["--preset", "gpu", "--emit", "cuda", &path]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    // With a choice that follows the seed of a hash, sixteen processes agree once in 32,768 times.
    assert!((0..15).all(|_| run(&["--preset", "gpu", "--emit", "cuda", &path]).stdout == first.stdout));
}

#[test]
fn outputs_are_told_where_no_file_is_asked_for() {
    let sgd = root().join("passes/shard-weight-update/sgd.hlo").display().to_string();
    let found = run(&["run", "--backend", "host", &sgd, "--seed", "7", "--sync"]);
    let drawn_again = run(&["run", "--backend", "host", &sgd, "--seed", "8"]);
    assert_eq!((found.code, found.stderr.as_str()), (0, ""));
    assert!(found.stdout.starts_with("out0  f32[64,32]"), "{}", found.stdout);
    assert!(found.stdout.contains("the same on all 4 devices"), "{}", found.stdout);
    assert_ne!(found.stdout, drawn_again.stdout);
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    let file = folder("finite");
    let text = "HloModule logs, replica_count=2\n\nENTRY main {\n  x = f32[16] parameter(0)\n  w = f32[16,16] \
                parameter(1)\n  l = f32[16] log(x)\n  y = f32[16] dot(l, w), lhs_contracting_dims={0}, \
                rhs_contracting_dims={0}\n  ROOT z = f32[16] dot(y, w), lhs_contracting_dims={0}, \
                rhs_contracting_dims={0}\n}\n";
    let path = file("logs.hlo");
    std::fs::write(&path, text).expect("it is written");
    let fine = run(&["run", "--backend", "host", &path, "--draw", "p1 n1", "--check-finite"]);
    assert_eq!((fine.code, fine.stderr.as_str()), (0, ""));
    // The logarithm of a negative number; everything after it is no number either.
    let wrong = run(&["run", "--backend", "host", &path, "--draw", "-1 n1", "--check-finite"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (1, ""));
    assert!(wrong.stderr.starts_with("error: l: expected finite values, found NaN on device"), "{}", wrong.stderr);
    assert_eq!(run(&["run", "--backend", "host", &path, "--draw", "-1 n1"]).code, 0);
}

#[test]
fn what_cannot_run_is_said_before_anything_runs() {
    let file = folder("cannot");
    let text = "HloModule custom\n\nENTRY main {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] custom-call(x), \
                custom_call_target=\"somewhere_else\"\n}\n";
    let path = file("custom.hlo");
    std::fs::write(&path, text).expect("it is written");
    let out = run(&["run", "--backend", "host", &path, "-o", &file("out.npz")]);
    assert_eq!((out.code, out.stdout.as_str()), (1, ""));
    assert!(out.stderr.contains("custom.hlo: y: "), "{}", out.stderr);
    assert!(!Path::new(&file("out.npz")).exists());
    let sgd = root().join("passes/shard-weight-update/sgd.hlo").display().to_string();
    let out = run(&["run", "--backend", "host", &sgd, "--inputs", "no/such.npz"]);
    assert_eq!(out.code, 1);
}

/// With a card this runs; without one it says which library is missing and what to do, in one line, and never crashes.
#[test]
fn the_gpu_backend_runs_or_says_what_is_missing() {
    let sgd = root().join("passes/shard-weight-update/sgd.hlo").display().to_string();
    let out = run(&["run", "--backend", "gpu", "--share-gpu", &sgd]);
    if out.code == 0 {
        assert!(out.stdout.contains("the same on all 4 devices"), "{}", out.stdout);
        return;
    }
    assert_eq!((out.code, out.stdout.as_str()), (1, ""));
    assert_eq!(out.stderr.lines().count(), 1, "{}", out.stderr);
    let libraries = ["the CUDA driver", "NVRTC", "cuBLASLt", "NCCL"];
    let is_missing = |name: &&&str| out.stderr.starts_with(&format!("error: {name}: expected a library `lib"));
    assert!(libraries.iter().any(|name| is_missing(&name)), "{}", out.stderr);
    assert!(out.stderr.contains("found none: install"), "{}", out.stderr);
}
