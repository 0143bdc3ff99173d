//! `hlo-opt reduce`: large modules become small in few calls of the command, and every file that it leaves is whole and valid.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(name).to_string_lossy().into_owned()
}

fn tool(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hlo-opt"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    tool(args).output().expect("the tool runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A test's files.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reduce").join(test);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for files");
        Folder(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

/// Reduces a sample; gives the instructions that are left and the calls that it took.
fn reduced(name: &str, condition: &str, out: &str) -> (usize, usize) {
    let output = run(&["reduce", &sample(name), "--while", condition, "-o", out]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = said(&output);
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |place: usize| words[place].parse::<usize>().unwrap_or_else(|_| panic!("{text}"));
    assert!(number(0) > 1900, "{text}");
    let verified = run(&["--verify-only", out]);
    assert_eq!(verified.status.code(), Some(0), "{}", said(&verified));
    (number(4), number(6))
}

#[test]
fn two_thousand_instructions_become_a_few_in_less_than_200_calls() {
    let folder = Folder::new("few");
    let out = folder.path("small.hlo");
    let fires =
        format!("{} --pass 'shard-weight-update{{min-bytes=0}}' --require-change", env!("CARGO_BIN_EXE_hlo-opt"));
    let several = "grep -q -F 'tanh(' {} && grep -q -F 'scatter(' {} && grep -q -F 'log(' {} && grep -q -F 'rsqrt(' {}";
    for (name, condition, n_left) in [
        ("programs/gpt2l_clipadam.hlo", "grep -q -F 'all-reduce('", 6),
        ("programs/gpt2l_clipadam.hlo", several, 20),
        // Inside a loop.
        ("programs/gpt2l_adamw_fori.hlo", "grep -q -F 'tanh('", 3),
        ("programs/gpt2l_adam.hlo", &fires, 8),
    ] {
        let (n, n_calls) = reduced(name, condition, &out);
        assert!(n <= n_left && n_calls <= 200, "{condition}: {n} instructions in {n_calls} calls");
        let text = std::fs::read_to_string(&out).expect("the module");
        assert!(text.starts_with("HloModule "), "{text}");
    }
}

#[test]
fn a_command_that_fails_on_the_input_is_an_error() {
    let folder = Folder::new("fails");
    let (module, out) = (sample("passes/shard-weight-update/sgd.hlo"), folder.path("small.hlo"));
    for (condition, words) in [
        ("false", "expected a command that succeeds on"),
        ("exit 7; true", "but it ends with 7"),
        ("kill -9 $$;", "but it is ended by a signal"),
        ("sleep 100; true", "but it takes longer than 1 s (--timeout)"),
    ] {
        let output = run(&["reduce", &module, "--while", condition, "-o", &out, "--timeout", "1"]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(words), "{}", said(&output));
        assert!(!Path::new(&out).exists());
    }
    let nowhere = folder.path("no/such/folder.hlo");
    assert_eq!(run(&["reduce", &module, "--while", "true", "-o", &nowhere]).status.code(), Some(1));
    assert_eq!(run(&["reduce", &module]).status.code(), Some(2));
    let own = folder.path("own.hlo");
    std::fs::copy(&module, &own).expect("a copy");
    let over = run(&["reduce", &own, "--while", "true", "-o", &own]);
    assert_eq!(over.status.code(), Some(2), "{}", said(&over));
    assert!(said(&over).contains("expected another file than the input's"), "{}", said(&over));
}

#[test]
fn calls_are_counted_and_the_result_is_printed() {
    let module = sample("passes/shard-weight-update/sgd.hlo");
    let output = run(&["reduce", &module, "--while", "grep -q dot", "--max-evaluations", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("in 2 calls of the command; --max-evaluations ends it here"), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("HloModule ") && text.contains(" dot("), "{text}");
}

/// A command that never ends is killed, with what it started, and counts as one that fails.
#[test]
fn a_command_that_hangs_on_a_candidate_is_ended() {
    let module = sample("passes/shard-weight-update/sgd.hlo");
    let condition = "grep -q all-reduce {} && exit 0; sleep 1000";
    let started = Instant::now();
    let output = run(&["reduce", &module, "--while", condition, "--timeout", "1", "--max-evaluations", "6"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(String::from_utf8_lossy(&output.stdout).contains("all-reduce("));
}

#[test]
fn an_interrupt_leaves_the_smallest_module_so_far() {
    let folder = Folder::new("interrupt");
    let (module, out) = (sample("programs/gpt2l_clipadam.hlo"), folder.path("small.hlo"));
    let condition = "sleep 0.2; grep -q -F 'tanh('";
    let mut child = tool(&["reduce", &module, "--while", condition, "-o", &out]).spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !Path::new(&out).exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill is there").success());
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), None, "it ends as by the signal");
    let verified = run(&["--verify-only", &out]);
    assert_eq!(verified.status.code(), Some(0), "{}", said(&verified));
    let text = std::fs::read_to_string(&out).expect("the module");
    let before = std::fs::read_to_string(&module).expect("the sample");
    assert!(text.contains("tanh(") && text.lines().count() < before.lines().count());
    let left = std::fs::read_dir(std::env::temp_dir()).expect("the folder for temporary files").flatten();
    let mut names = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert!(!names.any(|name| name.starts_with(&format!("hlo-opt-reduce-{id}-"))), "no file is left");
}

#[test]
fn of_parameters_that_nothing_uses_those_that_matter_stay() {
    let folder = Folder::new("parameters");
    let (module, out) = (folder.path("many.hlo"), folder.path("small.hlo"));
    let params: String = (0..20)
        .map(|i| format!("  p{i} = {}[{}] parameter({i})\n", if i == 7 { "bf16" } else { "f32" }, i + 1))
        .collect();
    std::fs::write(&module, format!("HloModule many\n\nENTRY e {{\n{params}  ROOT n = f32[1] negate(p0)\n}}\n"))
        .expect("a file");
    let output = run(&["reduce", &module, "--while", "grep -q bf16", "-o", &out]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = std::fs::read_to_string(&out).expect("the module");
    assert!(text.matches("parameter(").count() <= 2 && text.contains("bf16[8]"), "{text}");
}
