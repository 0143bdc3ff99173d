//! A walk through the answers as a person at a terminal gets them: one command after the other, on a pseudo-terminal (`script` of
//! util-linux) where it matters.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hlo-opt");

fn sample(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(path).display().to_string()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("walk-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// What a terminal shows of a command, stdout and stderr together, and the exit code.
fn at_a_terminal(args: &[&str]) -> (i32, String) {
    let words: Vec<String> = [PROGRAM].iter().chain(args).map(|word| format!("'{word}'")).collect();
    let shown = Command::new("script")
        .args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("`script` of util-linux");
    (shown.status.code().unwrap_or(-1), String::from_utf8_lossy(&shown.stdout).replace('\r', ""))
}

fn plainly(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).stdin(Stdio::null()).output().expect("the program")
}

/// Exit code and stdout.
fn printed(args: &[&str]) -> (i32, String) {
    let out = plainly(args);
    (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn the_first_command_answers_in_twelve_lines() {
    let folder = folder("first");
    let (wide, after) = (sample("programs/mlp_sgd_wide.hlo"), folder.join("after.hlo").display().to_string());
    let (code, shown) = at_a_terminal(&["--preset", "data-parallel", &wide, "-o", &after]);
    assert_eq!(code, 0, "{shown}");
    let lines: Vec<&str> = shown.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.len() <= 12 && lines.iter().all(|line| line.chars().count() <= 120), "{shown}");
    assert!(shown.contains("time, predicted") && shown.contains("--machine names another"), "{shown}");
    let (code, shown) = at_a_terminal(&["-q", "--preset", "data-parallel", &wide, "-o", &after]);
    assert_eq!((code, shown.trim()), (0, ""));
    assert_eq!(printed(&["--verify-only", &after]), (0, String::new()));
}

#[test]
fn a_terminal_gets_colours_and_no_bytes_and_nothing_waits_for_it() {
    let broken = folder("broken").join("broken.hlo");
    std::fs::write(&broken, "HloModule m\n\nENTRY e {\n  ROOT x = f32[2] parameter(0)\n  y = f33[] constant(1)\n}\n")
        .expect("a file");
    let (code, shown) = at_a_terminal(&["--pass", "dce", &broken.display().to_string()]);
    assert!(code == 1 && shown.contains("\u{1b}[") && shown.contains("broken.hlo:5:"), "{code} {shown}");
    let (code, shown) = at_a_terminal(&["--output-format", "proto", &sample("programs/mlp_sgd_wide.hlo")]);
    assert!(code == 2 && shown.contains("-o FILE"), "{code} {shown}");
}

#[test]
fn each_kind_of_answer_is_there() {
    let folder = folder("answers");
    let place = |name: &str| folder.join(name).display().to_string();
    let wide = sample("programs/mlp_sgd_wide.hlo");
    let (after, page, trace) = (place("after.hlo"), place("page.html"), place("trace.json"));
    let preset = ["-q", "--preset", "data-parallel", wide.as_str()];

    assert_eq!(printed(&[&preset[..], &["-o", &after, "--report", "html", "--report-file", &page]].concat()).0, 0);
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.starts_with("<!") && !html.contains("http://") && !html.contains("https://"), "nothing is fetched");
    assert_eq!(printed(&["--emit", "trace", &wide, "-o", &trace]).0, 0);
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).expect("a trace")).expect("JSON");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 10));

    let (code, differences) = printed(&["diff", &wide, &after]);
    assert!(code == 0 && differences.contains("reduce-scatter"), "{differences}");
    // The weights of the programs that are run here are smaller: the evaluator takes one step at a time.
    let (sgd, sharded) = (sample("passes/shard-weight-update/sgd.hlo"), place("sharded.hlo"));
    assert_eq!(printed(&["-q", "--pass", "shard-weight-update{min-bytes=0}", &sgd, "-o", &sharded]).0, 0);
    assert_eq!(printed(&["compare", &sgd, &sharded]).0, 0);
    let wrong = place("wrong.hlo");
    let text = std::fs::read_to_string(&sharded).expect("the module").replace("constant(-0.01)", "constant(-0.02)");
    std::fs::write(&wrong, text).expect("a module");
    let (code, told) = printed(&["compare", &sgd, &wrong]);
    assert!(code == 4 && told.contains("output 0"), "{code} {told}");
    assert_eq!(printed(&["bisect", &sgd, "--pass", "shard-weight-update{min-bytes=0},dce"]).0, 0);
    let small = place("small.hlo");
    assert_eq!(printed(&["reduce", &sgd, "--while", "grep -q all-reduce {}", "-o", &small]).0, 0);
    let small = std::fs::read_to_string(&small).expect("the small module");
    assert!(small.contains(" all-reduce(") && small.lines().count() < 20, "{small}");

    assert!(printed(&["analyze", "replication", &wide]).1.starts_with("jit_step: of "));
    assert!(printed(&["--emit", "dot", "--around", "%psum.18", &wide]).1.starts_with("digraph "));
}
