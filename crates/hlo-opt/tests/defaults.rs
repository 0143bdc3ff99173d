//! What the program takes where the command line says nothing: stdin, a configuration, words that a shell completes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hlo-opt");

fn sample(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(path)
}

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("defaults-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn run(args: &[&str], stdin: Option<&[u8]>) -> Output {
    let mut child = Command::new(PROGRAM)
        .args(args)
        .stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    if let (Some(bytes), Some(mut pipe)) = (stdin, child.stdin.take()) {
        pipe.write_all(bytes).expect("the program reads");
    }
    child.wait_with_output().expect("the program ends")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn stdin_is_read_where_no_file_is_named() {
    let text = std::fs::read(sample("passes/shard-weight-update/sgd.hlo")).expect("the sample");
    let piped = run(&["-q", "--pass", "dce"], Some(&text));
    let named = run(&["-q", "--pass", "dce", "-"], Some(&text));
    assert_eq!((piped.status.code(), errors(&piped)), (Some(0), String::new()));
    assert!(!piped.stdout.is_empty() && piped.stdout == named.stdout);
    let nothing = run(&["--pass", "dce"], None);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(errors(&nothing).contains("expected a file, or HLO on stdin"), "{}", errors(&nothing));
}

#[test]
fn a_configuration_above_the_file_gives_defaults_and_the_command_line_wins() {
    let top = folder("config");
    let below = top.join("runs/today");
    std::fs::create_dir_all(&below).expect("a folder");
    let step = below.join("step.hlo");
    std::fs::copy(sample("programs/mlp_sgd_wide.hlo"), &step).expect("a copy");
    let step = step.to_str().expect("a path");
    let config = top.join("hlo-opt.toml");
    std::fs::write(&config, "machine = \"h100:2\"\npreset = \"data-parallel\"\n").expect("a configuration");

    let told = errors(&run(&[step], None));
    assert!(told.starts_with("note: machine h100:2, preset data-parallel, by /"), "{told}");
    assert!(told.contains("time for 8 x h100, 2 x dgx-h100"), "{told}");
    let own = errors(&run(&["--machine", "h200", "--pass", "shard-weight-update", step], None));
    assert!(!own.contains("note: machine") && own.contains("time for 8 x h200, one dgx-h200"), "{own}");
    let none = run(&["--config", "none", step], None);
    assert_eq!((errors(&none), none.stdout), (String::new(), std::fs::read(step).expect("the step")));
    assert_eq!(errors(&run(&["--verify-only", step], None)), "");
    let analyzed = run(&["analyze", "time", step], None);
    assert!(String::from_utf8_lossy(&analyzed.stdout).starts_with("predicted on 8 x h100, 2 x dgx-h100"));
    assert_eq!(run(&["analyze", "memory", step], None).status.code(), Some(0));
    let quiet = run(&["-q", step], None);
    assert_eq!((quiet.status.code(), errors(&quiet)), (Some(0), String::new()));

    std::fs::write(&config, "preset = \"data-parallel\"\nmachine = \"a100:switch\"\n").expect("a configuration");
    let device = errors(&run(&[step], None));
    assert!(device.contains("time for 8 x a100, one switch"), "{device}");
    assert!(device.contains("try --machine a100:switch --preset sharded-state -o DIRECTORY"), "{device}");

    std::fs::write(&config, "preset = \"data-parallel\"\nmachines = \"h100\"\n").expect("a configuration");
    let wrong = run(&[step], None);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(errors(&wrong).contains("hlo-opt.toml`: line 2: unknown field `machines`"), "{}", errors(&wrong));
    let missing = run(&["--config", "no/such.toml", step], None);
    assert!(missing.status.code() == Some(1) && errors(&missing).contains("cannot read `no/such.toml`"));
}

#[test]
fn bash_completes_passes_options_and_machines() {
    let script = run(&["completions", "bash"], None).stdout;
    let file = folder("bash").join("script");
    std::fs::write(&file, &script).expect("the script");
    let complete = |words: &[&str]| {
        let asked = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let (last, word) = (words.len(), words.last().expect("a word"));
        let program = Path::new(PROGRAM).parent().expect("a folder").display();
        let line = format!(
            "PATH={program}:$PATH; source {}; COMP_WORDS=(hlo-opt {asked}); COMP_CWORD={last}; COMP_TYPE=9; COMPREPLY=(); \
             $(complete -p hlo-opt | sed 's/.*-F \\([^ ]*\\).*/\\1/') hlo-opt '{word}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &line]).output().expect("bash");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", errors(&output));
        text.lines().map(|line| line.trim_end().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["--preset", "data"]), ["data-parallel"]);
    assert_eq!(complete(&["--pass", "dce,shard-weight-update{prof"]), ["dce,shard-weight-update{profit="]);
    assert_eq!(complete(&["--machine", "b"]), ["b200"]);
    assert!(complete(&["--emit", "plan"]).contains(&"plan-json".to_string()));
    assert!(complete(&["analyze", "ti"]).contains(&"time".to_string()));
}

#[test]
fn the_manual_page_has_the_options() {
    let page = String::from_utf8(run(&["man"], None).stdout).expect("text");
    assert!(
        page.contains(".TH hlo-opt 1") && page.contains("\\-\\-preset") && page.contains("\\-\\-machine"),
        "{page}"
    );
}
