//! Protos on the command line: told by their bytes, read from gzip and wrappers, written to files.

use hlo_opt::console::Console;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

struct Outcome {
    code: u8,
    stdout: Vec<u8>,
    stderr: String,
}

fn run_on(args: &[&str], mut stdin: &[u8], stdout_is_terminal: bool) -> Outcome {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut console = Console {
        stdin: &mut stdin,
        stdout: &mut stdout,
        stderr: &mut stderr,
        shows_progress: false,
        has_color: false,
        stdin_is_terminal: true,
        stdout_is_terminal,
    };
    let code = hlo_opt::run(["hlo-opt"].iter().chain(args).map(OsString::from), &mut console);
    Outcome { code, stdout, stderr: String::from_utf8(stderr).expect("UTF-8 messages") }
}

fn run(args: &[&str]) -> Outcome {
    run_on(args, b"", false)
}

fn sample(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(path)
}

fn path(path: &str) -> String {
    sample(path).display().to_string()
}

#[test]
fn every_wrapper_of_a_proto_prints_the_same_module() {
    let expected = fs::read(sample("protos/mlp_sgd_wide.expected")).expect("a text");
    for name in ["mlp_sgd_wide.hlo.pb", "mlp_sgd_wide.hlo_proto.pb.gz", "mlp_sgd_wide.snapshot.pb.gz"] {
        let outcome = run(&[&path(&format!("protos/{name}"))]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{name}");
        assert!(outcome.stdout == expected, "{name}");
    }
}

#[test]
fn a_proto_that_was_written_is_read_again() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("protos");
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("step.pb").display().to_string();
    let text = path("ops/all-reduce.flattened.hlo");
    assert_eq!(run(&[&text, "--output-format", "proto", "-o", &file]).code, 0);
    let (first, again) = (run(&[&text]), run(&[&file, "--format", "long"]));
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(again.stdout == first.stdout, "{:.500}", String::from_utf8_lossy(&again.stdout));
    let shown = run(&[&file, "--output-format", "proto-text"]);
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains("\nentry_computation_name: \""),
        "{} {:.300}",
        shown.stderr,
        String::from_utf8_lossy(&shown.stdout)
    );
}

#[test]
fn protos_are_not_for_terminals_and_not_for_plans() {
    let text = fs::read(sample("ops/add.hlo")).expect("a sample");
    let refused = run_on(&["-", "--output-format", "proto"], &text, true);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("expected -o FILE for a proto, found a terminal"), "{}", refused.stderr);
    let piped = run_on(&["-", "--output-format", "proto"], &text, false);
    assert!(piped.code == 0 && piped.stdout.first() == Some(&0x0a));
    assert_eq!(run_on(&["-", "--output-format", "proto", "--emit", "plan"], &text, false).code, 2);
}

#[test]
fn errors_name_instructions_or_bytes() {
    let proto = fs::read(sample("protos/mlp_sgd_wide.hlo.pb")).expect("a proto");
    let cut = run_on(&["-"], &proto[..proto.len() / 2], false);
    assert_eq!(cut.code, 1);
    assert!(cut.stderr.contains("<stdin>") && cut.stderr.contains("byte "), "{}", cut.stderr);
    // Another opcode of as many letters and another number of operands.
    let at = proto.windows(6).position(|bytes| bytes == b"\x12\x04tanh");
    let at = at.or_else(|| proto.windows(10).position(|bytes| bytes == b"\x12\x08multiply")).expect("a known opcode");
    let mut other = proto.clone();
    match &mut other[at + 2..] {
        [b't', rest @ ..] => rest[..3].copy_from_slice(b"frb"),
        rest => rest[..8].copy_from_slice(b"frobnica"),
    }
    let unknown = run_on(&["-"], &other, false);
    assert!(unknown.stderr.contains("expected an opcode"), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("computation `"), "{}", unknown.stderr);
}

#[test]
fn mlir_is_refused_with_advice() {
    for text in [&b"module @jit_f {\n}\n"[..], b"ML\xefR\x0dStableHLO"] {
        let outcome = run_on(&["-"], text, false);
        assert_eq!(outcome.code, 1);
        assert!(outcome.stderr.contains("compiler_ir('hlo').as_hlo_text()"), "{}", outcome.stderr);
    }
}

#[test]
fn damaged_gzip_is_an_error() {
    let refused = run_on(&["-"], &[0x1f, 0x8b, 1, 2, 3], false);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("gzip"), "{}", refused.stderr);
}
