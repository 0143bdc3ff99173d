//! The program as a process: what only a process can show.

use std::io::Write;
use std::process::{Command, Stdio};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hlo-opt"))
}

/// A module whose text fills a pipe many times over.
fn long_module() -> String {
    let mut text =
        String::from("HloModule long\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %v0 = f32[4]{0} parameter(0)\n");
    for i in 1..20_000 {
        let root = if i == 19_999 { "ROOT " } else { "" };
        text.push_str(&format!("  {root}%v{i} = f32[4]{{0}} negate(%v{})\n", i - 1));
    }
    text.push_str("}\n\n");
    text.replace("(x: ", "(v0: ")
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    let mut child = program()
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    child.stdin.take().expect("a pipe").write_all(long_module().as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn exit_codes_reach_the_shell() {
    let code = |args: &[&str]| program().args(args).stdin(Stdio::null()).output().expect("it runs").status.code();
    assert_eq!(code(&["--version"]), Some(0));
    assert_eq!(code(&["-"]), Some(1), "an empty module");
    assert_eq!(code(&["--nonsense"]), Some(2));
}

/// `/dev/null` is written to, not replaced.
#[cfg(unix)]
#[test]
fn devices_are_written_to() {
    use std::os::unix::fs::FileTypeExt;
    let mut child = program().args(["-", "-o", "/dev/null"]).stdin(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(long_module().as_bytes()).expect("it reads");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(std::fs::metadata("/dev/null").expect("it is there").file_type().is_char_device());
}
