//! `hlo-opt audit`: findings as text and JSON, and the exit codes that scripts rely on.

use hlo_opt::console::Console;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;

struct Outcome {
    code: u8,
    stdout: String,
    stderr: String,
}

/// Runs `hlo-opt audit` with these arguments on a module of stdin.
fn audit_text(args: &[&str], mut stdin: &[u8]) -> Outcome {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut console = Console {
        stdin: &mut stdin,
        stdout: &mut stdout,
        stderr: &mut stderr,
        shows_progress: false,
        has_color: false,
        stdin_is_terminal: true,
        stdout_is_terminal: false,
    };
    let args = ["hlo-opt", "audit"].iter().chain(args).map(OsString::from);
    let code = hlo_opt::run(args, &mut console);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8 output");
    Outcome { code, stdout: text(stdout), stderr: text(stderr) }
}

/// Runs `hlo-opt audit` on a sample.
fn audit(sample: &str, args: &[&str]) -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(sample);
    audit_text(&[args, &[&path.display().to_string()]].concat(), b"")
}

const FAULT: &str = "audit/redundant-all-reduce/sum-of-sum.hlo";
const ADVICE: &str = "audit/replicated-state/momentum.hlo";
const CLEAN: &str = "audit/missing-all-reduce/summed.hlo";

#[test]
fn findings_are_denied_by_name_by_level_or_all() {
    for (sample, deny, code) in [
        (FAULT, "", 0),
        (FAULT, "all", 4),
        (FAULT, "fault", 4),
        (FAULT, "advice", 0),
        (FAULT, "redundant-all-reduce", 4),
        (FAULT, "donation-missed, redundant-all-reduce", 4),
        (FAULT, "donation-missed", 0),
        (ADVICE, "fault", 0),
        (ADVICE, "advice", 4),
        (CLEAN, "all", 0),
    ] {
        let outcome = audit(sample, &["--deny", deny]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (code, ""), "{sample} --deny {deny}: {}", outcome.stdout);
    }
    assert_eq!(audit(FAULT, &["-D", "all", "--allow", "redundant-all-reduce"]).code, 0);
    assert_eq!(audit(FAULT, &["-D", "donation-missed", "-D", "fault"]).code, 4);
}

#[test]
fn exceeded_budgets_are_denied() {
    // Two collectives of 8 KiB each.
    for (budget, code) in [
        (["--max-collectives", "2"], 0),
        (["--max-collectives", "1"], 4),
        (["--max-collective-bytes", "16KiB"], 0),
        (["--max-collective-bytes", "16383"], 4),
        (["--max-peak-bytes", "1GiB"], 0),
        (["--max-peak-bytes", "1KiB"], 4),
    ] {
        let outcome = audit(FAULT, &budget);
        assert_eq!(outcome.code, code, "{budget:?}: {}", outcome.stdout);
        let verdict = if code == 4 { "exceeded" } else { "kept" };
        assert!(outcome.stdout.contains(&format!(": {verdict}, found ")), "{}", outcome.stdout);
    }
}

#[test]
fn text_names_the_place_the_cost_and_the_remedy() {
    let outcome = audit(FAULT, &["--deny", "fault"]);
    for part in [
        "sum-of-sum.hlo:14:8: fault[redundant-all-reduce], denied: %again reduces %sum over 4 devices",
        "\n  in %main: 8192 bytes moved, ",
        " us a step\n  remedy: ",
        "1 fault, 0 advice, 1 denied\n",
    ] {
        assert!(outcome.stdout.contains(part), "expected `{part}` in\n{}", outcome.stdout);
    }
}

#[test]
fn json_has_every_finding_with_its_place() {
    let outcome = audit(FAULT, &["--json", "--deny", "all", "--max-collectives", "1"]);
    assert_eq!(outcome.code, 4);
    assert_eq!(outcome.stdout, audit(FAULT, &["--format", "json", "-D", "all", "--max-collectives", "1"]).stdout);
    let facts: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let finding = &facts["findings"][0];
    for (key, value) in [
        ("check", Value::from("redundant-all-reduce")),
        ("level", Value::from("fault")),
        ("is_denied", Value::from(true)),
        ("computation", Value::from("main")),
        ("instruction", Value::from("again")),
        ("line", Value::from(14)),
        ("column", Value::from(8)),
        ("bytes", Value::from(8192)),
        ("bytes_are", Value::from("moved")),
    ] {
        assert_eq!(finding[key], value, "{key}");
    }
    assert!(finding["predicted_s"].as_f64().is_some_and(|seconds| seconds > 0.0));
    assert_eq!(finding["also"][0]["instruction"], "sum");
    assert_eq!(facts["budgets"][0]["is_exceeded"], true);
    assert_eq!(facts["totals"]["collectives"], 2.0);
}

#[test]
fn a_slower_machine_makes_findings_dearer() {
    let seconds = |args: &[&str]| {
        let facts: Value = serde_json::from_str(&audit(FAULT, &[&["--json"], args].concat()).stdout).expect("JSON");
        facts["findings"][0]["predicted_s"].as_f64().expect("seconds")
    };
    assert!(seconds(&["--machine", "[(node,2),(gpu,2)]"]) > seconds(&[]));
}

#[test]
fn wrong_usage_and_bad_input_are_clear_errors() {
    let unknown = audit(FAULT, &["--deny", "redundant-all-reduces"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("did you mean `redundant-all-reduce`?"), "{}", unknown.stderr);
    assert_eq!(audit(FAULT, &["--max-peak-bytes", "lots"]).code, 2);
    assert_eq!(audit(FAULT, &["--machine", "[(gpu,3)]"]).code, 2);
    assert_eq!(audit_text(&[], b"").code, 2);
    assert_eq!(audit_text(&["-"], b"HloModule broken\n\nENTRY %main {").code, 1);
    assert_eq!(audit("nowhere.hlo", &[]).code, 1);

    let global = audit("programs/mlp_sgd.unopt.hlo", &[]);
    assert_eq!(global.code, 1);
    assert!(global.stderr.contains("expected the program of each device"), "{}", global.stderr);
}

#[test]
fn checks_are_listed_with_their_levels() {
    let outcome = audit_text(&["--list-checks"], b"");
    assert_eq!(outcome.code, 0);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), hlo_audit::CHECKS.len());
    assert!(lines.iter().all(|line| line.contains(" fault ") || line.contains(" advice ")), "{}", outcome.stdout);
}
