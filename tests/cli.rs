//! The command line's contract for scripts: streams, exit codes, files written whole or not at all.

use hlo_opt::console::Console;
use hlo_tests::root;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const GOOD: &str = "HloModule good\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n  ROOT %y = \
                    f32[4]{0} negate(%x)\n}\n\n";
const DEAD: &str = "HloModule dead\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n  %unused = \
                    f32[4]{0} sine(%x)\n  ROOT %y = f32[4]{0} negate(%x)\n}\n\n";
const INVALID: &str = "HloModule invalid\n\nENTRY %main (x: f32[4]) -> f32[5] {\n  %x = f32[4]{0} parameter(0)\n  ROOT %y \
                       = f32[5]{0} negate(%x)\n}\n\n";
const BROKEN: &str = "HloModule broken\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n  ROOT %y = \
                      f32[4]{0} negate(%nobody)\n}\n\n";

/// What a run of the program left.
pub(crate) struct Outcome {
    pub code: u8,
    pub stdout: String,
    pub stderr: String,
}

pub(crate) fn run_with_stdin(args: &[&str], stdin: &str) -> Outcome {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut stdin = stdin.as_bytes();
    let mut console = Console {
        stdin: &mut stdin,
        stdout: &mut stdout,
        stderr: &mut stderr,
        shows_progress: false,
        has_color: false,
        stdin_is_terminal: true,
        stdout_is_terminal: false,
    };
    let args = ["hlo-opt"].iter().chain(args).map(OsString::from);
    let code = hlo_opt::run(args, &mut console);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8 output");
    Outcome { code, stdout: text(stdout), stderr: text(stderr) }
}

/// Runs `hlo-opt` with these arguments.
pub(crate) fn run(args: &[&str]) -> Outcome {
    run_with_stdin(args, "")
}

pub(crate) fn sample(path: &str) -> String {
    root().join(path).display().to_string()
}

/// A folder for one test's files, emptied first.
pub(crate) fn folder(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(test);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder for files");
    dir
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the folder");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn help_fits_a_screen_and_has_examples() {
    let all = run(&["--help"]);
    assert_eq!((all.code, all.stderr.as_str()), (0, ""));
    assert!(all.stdout.contains("--num-partitions <N>") && all.stdout.contains("--preset <NAME>"), "{}", all.stdout);
    let help = run(&["-h"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    assert!(help.stdout.lines().count() <= 40, "{} lines\n{}", help.stdout.lines().count(), help.stdout);
    assert!(help.stdout.lines().all(|l| l.chars().count() <= 120), "{}", help.stdout);
    assert!(help.stdout.contains("Examples:\n  hlo-opt --preset data-parallel"), "{}", help.stdout);
}

#[test]
fn passes_are_listed_with_help_and_options() {
    let list = run(&["--list-passes"]);
    assert_eq!(list.code, 0);
    for pass in hlo_opt::registry::passes() {
        let line = list.stdout.lines().find(|l| l.split_whitespace().next() == Some(pass.name));
        assert!(line.is_some_and(|l| l.ends_with(pass.help)), "{}", pass.name);
        for option in pass.options {
            assert!(list.stdout.contains(&format!("{}=", option.name)), "{}", option.name);
        }
    }
}

/// The report that a preset makes of a sample, and what it prints.
fn preset(preset: &str, sample: &str) -> (serde_json::Value, String) {
    let out = run(&["--preset", preset, "--report", "json", sample]);
    assert_eq!(out.code, 0, "{}", out.stderr);
    (serde_json::from_str(&out.stderr).expect("a report"), out.stdout)
}

#[test]
fn shardings_are_told_in_words() {
    let told = |name: &str| {
        let out = run(&["analyze", "sharding", &sample(name)]);
        assert_eq!(out.code, 0, "{}", out.stderr);
        out.stdout
    };
    let shardy = told("global/partial_manual.unopt.hlo");
    assert!(
        shardy.starts_with("jit_f: of 17 values on 8 devices 4 cut, 2 whole on every device, 11 without"),
        "{shardy}"
    );
    assert!(shardy.contains("  mesh x=2, y=4\n"), "{shardy}");
    let has = |text: &str, line: &str| text.lines().any(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") == line);
    assert!(
        has(&shardy, "%a.1 f32[32,64] dim 0 in 4 tiles of 8 over {y}; dim 1 in 2 tiles of 32 over {x}"),
        "{shardy}"
    );
    let gspmd = told("global/partial_manual.unopt_gspmd.hlo");
    let inside = "%shard_map.8 f32[32,32] replicated over {4 devices 1 apart}; manual over {2 devices 4 apart}";
    assert!(has(&gspmd, inside), "{gspmd}");
    let named = told("syntax/sharding-mesh.hlo");
    let parts = "%p1 f32[8,8] dim 0 in 4 tiles of 2 over {a, b:(2)2}; replicated over {b:(1)2}; open: dim 1";
    assert!(has(&named, parts), "{named}");
    assert_eq!(told("ops/add.hlo"), "add: none of 52 values has a sharding.\n");
    let out = run(&["analyze", "sharding", "--format", "json", &sample("global/partial_manual.unopt.hlo")]);
    let lines: Vec<serde_json::Value> = out.stdout.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let a = lines.iter().find(|line| line["instruction"] == "a.1").expect("a line for each value");
    assert_eq!((&a["dims"][0]["n_tiles"], &a["dims"][0]["tile_size"]), (&4.into(), &8.into()));
    assert_eq!(lines.len(), 17);
}

#[test]
fn a_sharding_is_drawn() {
    let program = sample("global/partial_manual.unopt.hlo");
    let drawn = |name: &str| run(&[&program, "--emit", "sharding-svg", "--around", name]);
    let svg = drawn("%w.1").stdout;
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    // Two tiles, each on four devices, and eight devices of the mesh.
    assert_eq!(svg.matches("<rect class=\"l\"").count(), 2 + 8, "{svg}");
    assert!(svg.contains(">0 1 2 3<") && svg.contains(">4 5 6 7<") && svg.contains("[32:64, 0:128]"), "{svg}");
    assert!(svg.contains("prefers-color-scheme:dark"), "{svg}");
    assert_eq!(run(&[&program, "--emit", "sharding-svg"]).code, 2);
    assert_eq!(drawn("%nobody").code, 2);
    assert!(drawn("%dot_general.2").stderr.contains("found `dot_general.2` without one"));
}

#[test]
fn a_preset_is_the_pipeline_that_its_report_names() {
    let step = sample("programs/mlp_sgd_wide.hlo");
    let (report, printed) = preset("data-parallel", &step);
    let choice = &report["modules"][0]["choice"];
    let chosen = &choice["candidates"][choice["chosen"].as_u64().expect("a number") as usize];
    assert_eq!(chosen["way"], "updates in shards");
    let pipeline = chosen["pipeline"].as_str().expect("a pipeline");
    assert_eq!(run(&["--pass", pipeline, &step]).stdout, printed);
    let more = run(&["--preset", "data-parallel", "--pass", "combine-collectives", &step]);
    let spelled = run(&["--pass", &format!("{pipeline},combine-collectives"), &step]);
    assert_eq!((more.code, more.stdout), (0, spelled.stdout));
    assert_eq!(run(&["--preset", "gpu", &step]).stdout, run(&["--pass", hlo_opt::presets::GPU, &step]).stdout);
}

#[test]
fn the_preset_of_the_gpu_backend_pads_products_that_are_rounded_to_tf32() {
    let step = "HloModule odd_rows\n\nENTRY %main (x: f32[2048,1024], w: f32[1024,1025]) -> f32[2048,1025] {\n  %x = \
                f32[2048,1024]{1,0} parameter(0)\n  %w = f32[1024,1025]{1,0} parameter(1)\n  ROOT %y = \
                f32[2048,1025]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n\n";
    let pads = |preset: &str, more: &[&str]| {
        let out = run_with_stdin(&[&["--preset", preset], more, &["-"]].concat(), step);
        assert_eq!(out.code, 0, "{}", out.stderr);
        out.stdout.contains(" pad(")
    };
    assert!(!pads("gpu", &[]));
    assert!(pads("gpu{tf32}", &[]));
    assert!(pads("gpu", &["--matmul", "tf32"]));
    assert!(!pads("gpu{tf32=false}", &["--matmul", "tf32"]));
}

#[test]
fn a_preset_takes_options_of_its_passes() {
    let step = sample("programs/mlp_adam.hlo");
    let (report, _) = preset("data-parallel{objective=memory,min-bytes=1MiB}", &step);
    let choice = &report["modules"][0]["choice"];
    assert_eq!(choice["machine"], "h200, one switch");
    let chosen = &choice["candidates"][choice["chosen"].as_u64().expect("a number") as usize];
    let pipeline = chosen["pipeline"].as_str().expect("a pipeline");
    assert!(pipeline.contains("shard-weight-update{min-bytes=1MiB}"), "{pipeline}");
    let directory = folder("a-preset");
    let parts = directory.join("parts");
    let parts = parts.to_string_lossy();
    let out = run(&["--preset", "sharded-state{objective=time}", &step, "-o", &parts]);
    assert_eq!((out.code, names_in(&directory.join("parts")).len()), (0, 4), "{}", out.stderr);
}

#[test]
fn no_way_continues_one_that_could_not_be_made() {
    // A tuple is a parameter of it, so no state can cross its interface in shards.
    let (report, _) = preset("data-parallel", &sample("passes/hoist-conversions/nested.hlo"));
    let candidates = report["modules"][0]["choice"]["candidates"].as_array().expect("candidates").clone();
    assert!(candidates.len() > 1 && candidates.iter().all(|way| way["is_reference"] == false), "{candidates:?}");
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn what_a_preset_makes_is_never_predicted_to_be_slower() {
    let mut n_faster = 0;
    for step in hlo_tests::samples("programs").iter().filter(|s| !s.name().contains("unopt")) {
        let path = step.path.to_string_lossy();
        let (report, printed) = preset("data-parallel", &path);
        let choice = &report["modules"][0]["choice"];
        let seconds = |candidate: &serde_json::Value| candidate["critical_path_s"].as_f64().expect("seconds");
        let candidates = choice["candidates"].as_array().expect("candidates");
        let chosen = choice["chosen"].as_u64().expect("a number") as usize;
        let (before_s, after_s) = (seconds(&candidates[0]), seconds(&candidates[chosen]));
        assert!(after_s <= before_s, "{path}: {before_s} s before, {after_s} s after");
        assert_eq!(chosen == 0, printed == step.text, "{path}: a module that no way makes faster stays as it is");
        n_faster += usize::from(after_s < before_s);
    }
    assert!(n_faster > 10, "{n_faster} programs are predicted to be faster");
}

#[test]
fn unchanged_text_goes_through_stdin_and_stdout_untouched() {
    let out = run_with_stdin(&["-"], GOOD);
    assert_eq!((out.code, out.stdout.as_str(), out.stderr.as_str()), (0, GOOD, ""));
    let out = run_with_stdin(&["--pass", "dce", "-"], GOOD);
    assert_eq!((out.code, out.stdout.as_str(), out.stderr.as_str()), (0, GOOD, ""));
    let out = run_with_stdin(&["--format", "short", "-"], GOOD);
    assert!(out.stdout.contains("ROOT y = f32[4]{0} negate(x)"), "{}", out.stdout);
}

#[test]
fn wrong_usage_is_two_and_suggests_the_nearest() {
    for (args, expected) in [
        (&["--pass", "dcd", "x.hlo"][..], "unknown pass: `dcd`, did you mean `dce`?"),
        (&["--pass", "zzz", "x.hlo"], "unknown pass: `zzz`; expected one of "),
        (&["--pass", "dce{x=1}", "x.hlo"], "unknown option of `dce`: `x`; there is none"),
        (
            &["--pass", "inline-calls{x=1}", "x.hlo"],
            "unknown option of `inline-calls`: `x`; expected one of max-instructions",
        ),
        (&["--pass", "inline-calls{max-instruction=1}", "x.hlo"], "did you mean `max-instructions`?"),
        (&["--pass", "inline-calls{max-instructions=many}", "x.hlo"], "expected a whole number"),
        (&["--pass", "shard-weight-update{min-bytes=-1}", "x.hlo"], "expected a whole number"),
        (&["--pass", "shard-weight-update{memory-weight=-1}", "x.hlo"], "expected a finite number, 0 or above"),
        (&["--pass", "dce{", "x.hlo"], "pipeline string"),
        (&["--print-ir-after=dcee", "x.hlo"], "did you mean `dce`?"),
        (&["--print-ir-after=dce", "x.hlo"], "`dce` is not in the pipeline; no pass runs"),
        (&["--print-ir-after=dce", "--pass", "cse", "x.hlo"], "`dce` is not in the pipeline; these run: cse"),
        (&["--verify-onyl", "x.hlo"], "--verify-only"),
        (&["--preset", "data-paralel", "x.hlo"], "did you mean `data-parallel`?"),
        (&["--format", "longer", "x.hlo"], "long"),
        (&["--report", "yaml", "x.hlo"], "json"),
        (&["analyze", "replicatoin", "x.hlo"], "replication"),
        (&["eval", "--draw", "n1 q3", "x.hlo"], "expected nS, pS, uS, intK or a number"),
        (&["eval", "--same", "some", "x.hlo"], "expected auto, all, none"),
        (&["run", "--backend", "hots", "x.hlo"], "host"),
        (&["run", "--backend", "host", "--rank", "1", "--ranks", "2", "x.hlo"], "--coordinator HOST:PORT"),
        (&["run", "--backend", "host", "--rank", "2", "--ranks", "2", "x.hlo"], "found"),
        (&["--verify-only", "--pass", "dce", "x.hlo"], "cannot be used with"),
        (&["analyse", "time", "x.hlo"], "found `analyse`, which is neither; did you mean `analyze`?"),
        (&["audi", "x.hlo"], "did you mean `audit`?"),
        (&["zzzzz"], "the commands are analyze, audit, "),
        (&["--pass", "dce", "audit", "x.hlo"], "before `audit` is an option of the main job"),
        (&["--preset", "sharded-state", "x.hlo"], "expected -o DIRECTORY, found no -o"),
        (&["--pass", "shard-weight-update{state=auto}", "x.hlo"], "expected -o DIRECTORY, found no -o"),
        (&["plan", "placement", "--machine", "h10", "--axes", "4,2", "--reduce", "0=1"], "did you mean `h100`?"),
        (&[], "expected a file"),
    ] {
        let out = run(args);
        assert_eq!((out.code, out.stdout.as_str()), (2, ""), "{args:?}: {}", out.stderr);
        assert!(out.stderr.contains(expected), "{args:?}: {}", out.stderr);
    }
    for args in [&["--replicated-params", "0-3", "-"][..], &["eval", "--same", "99", "-"]] {
        let out = run_with_stdin(args, GOOD);
        assert_eq!((out.code, out.stdout.as_str()), (2, ""), "{args:?}: {}", out.stderr);
        assert!(out.stderr.contains("expected leaf numbers below 1"), "{args:?}: {}", out.stderr);
    }
}

#[test]
fn a_negative_number_is_a_value_that_is_refused() {
    let step = sample("programs/mlp_sgd.hlo");
    for (words, expected) in [
        (["--timeout", "-1", &step, "-q"], "expected a positive number of seconds"),
        (["--num-partitions", "-1", &step, "-q"], "-1 is not in 1..16777216"),
        (["eval", &step, "--seed", "-1"], "invalid digit"),
        (["audit", &step, "--max-peak-bytes", "-1"], "expected a number of bytes"),
    ] {
        let Outcome { code, stdout, stderr } = run(&words);
        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}: {stderr}");
        assert!(stderr.contains(expected) && !stderr.contains("tip:"), "{words:?}: {stderr}");
    }
}

#[test]
fn options_without_effect_are_refused() {
    let step = sample("programs/mlp_sgd.hlo");
    for (words, expected) in [
        (&["--around", "%nope"][..], "expected `--emit dot` or `--emit sharding-svg`"),
        (&["--emit", "dot", "--depth", "2"], "`--around` beside it"),
        (&["--matmul", "tf32"], "expected `--emit plan`"),
        (&["--emit", "plan", "--output-format", "proto"], "expected no `--emit` of something else"),
        (&["--format", "long", "--output-format", "proto"], "no `--output-format proto`"),
    ] {
        let Outcome { code, stdout, stderr } = run(&[&[step.as_str(), "-q"][..], words].concat());
        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}: {stderr}");
        assert!(stderr.contains(expected), "{words:?}: {stderr}");
    }
}

#[test]
fn the_objective_of_memory_takes_the_least_peak() {
    for step in ["programs/mlp_adam_summary.hlo", "passes/sink-all-reduce/jax-accumulation.hlo"] {
        let peak = |objective: &str| {
            let (report, _) = preset(&format!("data-parallel{{objective={objective}}}"), &sample(step));
            report["modules"][0]["totals"]["after"]["peak_bytes"].as_u64().expect("a peak")
        };
        let (of_fastest, least) = (peak("time"), peak("memory"));
        assert!(least <= of_fastest, "{step}: {least} {of_fastest}");
    }
}

#[test]
fn errors_are_one_and_have_a_place() {
    for (text, place, what) in [
        (INVALID, "<stdin>:5:8", "shape"),
        (BROKEN, "<stdin>:5:", "nobody"),
        ("HloModule x", "<stdin>:1:", "computation"),
    ] {
        for args in [&["-"][..], &["--verify-only", "-"], &["--pass", "dce", "-"]] {
            let out = run_with_stdin(args, text);
            assert_eq!((out.code, out.stdout.as_str()), (1, ""), "{}", out.stderr);
            assert!(out.stderr.contains(place) && out.stderr.contains(what), "{args:?}: {}", out.stderr);
            assert!(out.stderr.contains('^'), "a caret: {}", out.stderr);
        }
    }
    let out = run(&["no/such/file.hlo"]);
    assert_eq!(out.code, 1);
    assert!(out.stderr.contains("no/such/file.hlo"), "{}", out.stderr);
    let out = run_with_stdin(&["--verify-only", "-"], GOOD);
    assert_eq!((out.code, out.stdout.as_str(), out.stderr.as_str()), (0, "", ""));
}

#[test]
fn colours_are_as_asked_for() {
    assert!(run_with_stdin(&["--color", "always", "-"], BROKEN).stderr.contains('\u{1b}'));
    assert!(!run_with_stdin(&["--color", "auto", "-"], BROKEN).stderr.contains('\u{1b}'));
}

#[test]
fn output_files_are_whole_or_not_there() {
    let dir = folder("output");
    let out = dir.join("out.hlo");
    let path = out.to_str().expect("a UTF-8 path");
    let good = run_with_stdin(&["-", "-o", path], GOOD);
    assert_eq!((good.code, good.stdout.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(&out).expect("the output"), GOOD);
    // A later failure leaves the old file and no other.
    assert_eq!(run_with_stdin(&["-", "-o", path], INVALID).code, 1);
    assert_eq!(run_with_stdin(&["--split-input-file", "-", "-o", path], &format!("{GOOD}// -----\n{BROKEN}")).code, 1);
    assert_eq!(std::fs::read_to_string(&out).expect("the output"), GOOD);
    assert_eq!(names_in(&dir), ["out.hlo"]);
    // In place.
    assert_eq!(run(&[path, "--pass", "dce", "-o", path]).code, 0);
    assert_eq!(std::fs::read_to_string(&out).expect("the output"), GOOD);
    // A folder that is not there, or a folder instead of a file.
    assert_eq!(run_with_stdin(&["-", "-o", dir.join("none/out.hlo").to_str().expect("a path")], GOOD).code, 1);
    assert_eq!(run_with_stdin(&["-", "-o", dir.to_str().expect("a path")], GOOD).code, 1);
    assert_eq!(names_in(&dir), ["out.hlo"]);
}

#[test]
fn parts_of_a_file_are_modules_of_their_own() {
    let out = run_with_stdin(&["--split-input-file", "--pass", "dce", "-"], &format!("{GOOD}// -----\n{DEAD}"));
    assert_eq!(out.code, 0, "{}", out.stderr);
    assert_eq!(out.stdout, format!("{GOOD}// -----\n{}", GOOD.replace("good", "dead")));
    // Places count from the start of the file, and every part's errors are told.
    let out = run_with_stdin(&["--split-input-file", "-"], &format!("{BROKEN}// -----\n{GOOD}// -----\n{INVALID}"));
    assert_eq!((out.code, out.stdout.as_str()), (1, ""));
    assert!(out.stderr.contains("<stdin>:5:") && out.stderr.contains("<stdin>:21:8"), "{}", out.stderr);
    // Without the flag the line is a comment, and two entries are an error.
    assert_eq!(run_with_stdin(&["-"], &format!("{GOOD}// -----\n{DEAD}")).code, 1);
}

#[test]
fn require_change_is_three_and_says_why() {
    let out = run_with_stdin(&["--pass", "dce", "--require-change", "--report", "text", "-"], GOOD);
    assert_eq!((out.code, out.stdout.as_str()), (3, GOOD));
    assert_eq!(out.stderr, "dce: unchanged: everything is needed\n");
    assert_eq!(run_with_stdin(&["--pass", "dce", "--require-change", "-"], DEAD).code, 0);
    let out = run_with_stdin(&["--pass", "shard-weight-update", "--require-change", "--report", "text", "-"], GOOD);
    assert_eq!(out.code, 3);
    assert!(out.stderr.starts_with("shard-weight-update: unchanged: the module runs on one device"), "{}", out.stderr);
}

#[test]
fn an_error_of_a_pass_says_of_what_kind_it_is() {
    let step = sample("programs/mlp_adam.hlo");
    let directory = folder("error_of_a_pass").join("sharded").display().to_string();
    let pass = "shard-weight-update{state=auto,state-pairs=[99:0]}";
    let out = run(&["--pass", pass, &step, "-o", &directory]);
    assert_eq!(out.code, 1);
    assert!(
        out.stderr.contains("error[state-pairs]") && out.stderr.contains("`shard-weight-update`"),
        "{}",
        out.stderr
    );
}

#[test]
fn the_report_is_one_json_document() {
    let sgd = sample("passes/shard-weight-update/sgd.hlo");
    let pipeline = "shard-weight-update{min-bytes=0},dce";
    let out = run(&["--pass", pipeline, "--report", "json", &sgd]);
    assert_eq!(out.code, 0, "{}", out.stderr);
    let report: Value = serde_json::from_str(&out.stderr).expect("a JSON document");
    assert_eq!((&report["file"], &report["pipeline"]), (&Value::from(sgd.as_str()), &Value::from(pipeline)));
    let reports = &report["modules"][0]["reports"];
    assert_eq!((&reports[0]["pass"], &reports[0]["changed"]), (&"shard-weight-update".into(), &true.into()));
    assert_eq!((&reports[1]["pass"], &reports[1]["changed"]), (&"dce".into(), &false.into()));
    let decision = &reports[0]["decisions"][0];
    assert_eq!(decision["collectives"].as_array().map(Vec::len), Some(3));
    assert!(decision["predicted_after_ns"].as_f64().is_some_and(|ns| ns > 0.0));

    let file = folder("report").join("report.json");
    let out = run(&["-q", "--pass", pipeline, "--report-file", file.to_str().expect("a path"), &sgd]);
    let note = report["modules"][0]["note"].as_str().expect("a small update is not worth it");
    assert!(note.starts_with("a step is predicted to take") && note.contains("--preset data-parallel"), "{note}");
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("the report")).expect("JSON");
    assert_eq!(written, report);
}

#[test]
fn module_and_report_are_both_written_or_neither_is() {
    let sgd = sample("passes/shard-weight-update/sgd.hlo");
    let folder = folder("both");
    let place = |name: &str| folder.join(name).to_str().expect("a path").to_owned();
    let written = || std::fs::read_dir(&folder).expect("the folder").count();
    let missing = place("no-such-folder/file");
    for (module, report) in
        [(place("a.hlo"), &*missing), (place("a.hlo"), "/dev/full"), (missing.clone(), &place("a.json"))]
    {
        let out = run(&["--pass", "dce", "-o", &module, "--report-file", report, &sgd]);
        assert_eq!(out.code, 1, "{module} {report}: {}", out.stderr);
        assert!(out.stderr.contains("cannot write"), "{}", out.stderr);
        assert_eq!(written(), 0, "{module} {report}");
    }
    let out = run(&["--pass", "dce", "-o", &place("a.hlo"), "--report-file", &place("a.json"), &sgd]);
    assert_eq!((out.code, written()), (0, 2), "{}", out.stderr);
}

#[test]
fn a_sharded_interface_fills_a_directory() {
    let sgd = sample("passes/shard-weight-update/sgd.hlo");
    let folder = folder("sharded-interface");
    let place = |name: &str| folder.join(name).to_str().expect("a path").to_owned();
    let pipeline = "shard-weight-update{min-bytes=0,state=auto}";
    let out = run(&["-q", "--pass", pipeline, "-o", &place("new"), &sgd]);
    assert_eq!((out.code, out.stdout.as_str(), out.stderr.as_str()), (0, "", ""));
    assert_eq!(names_in(&folder.join("new")), ["main.hlo", "manifest.json", "shard.hlo", "unshard.hlo"]);
    for name in ["main.hlo", "shard.hlo", "unshard.hlo"] {
        let out = run(&["--verify-only", &place(&format!("new/{name}"))]);
        assert_eq!(out.code, 0, "{name}: {}", out.stderr);
    }
    let out = run(&["--pass", pipeline, &sgd]);
    assert_eq!((out.code, out.stdout.as_str()), (2, ""));
    assert!(out.stderr.contains("expected -o DIRECTORY, found no -o"), "{}", out.stderr);
    // As for a file, the folder that the directory goes into is not made.
    let out = run(&["--pass", pipeline, "-o", &place("missing/new"), &sgd]);
    assert_eq!(out.code, 1, "{}", out.stderr);
    assert!(out.stderr.contains("missing/new`: No such file"), "{}", out.stderr);
    assert!(!folder.join("missing").exists());
    std::fs::write(folder.join("file"), "mine").expect("a file");
    let out = run(&["--pass", pipeline, "-o", &place("file"), &sgd]);
    assert_eq!(out.code, 2, "{}", out.stderr);
    assert_eq!(std::fs::read_to_string(folder.join("file")).expect("the file"), "mine");
}

#[test]
fn the_text_report_names_every_collective() {
    let out = run(&[
        "--pass",
        "shard-weight-update{min-bytes=0}",
        "--report",
        "text",
        &sample("passes/shard-weight-update/sgd.hlo"),
    ]);
    for expected in
        ["removed   all-reduce %gradient", "inserted  reduce-scatter", "inserted  all-gather", "4 devices", "µs"]
    {
        assert!(out.stderr.contains(expected), "{expected}: {}", out.stderr);
    }
}

#[test]
fn stats_times_and_dumps_go_to_stderr() {
    let out = run_with_stdin(&["--pass", "cse,dce", "--stats", "--time-passes", "-"], DEAD);
    assert_eq!(out.stdout, GOOD.replace("good", "dead"));
    for expected in ["instructions", "dce.instructions-removed", "pass dce", "total"] {
        assert!(out.stderr.contains(expected), "{expected}: {}", out.stderr);
    }
    let all = run_with_stdin(&["--pass", "cse,dce", "--print-ir-after", "-"], DEAD);
    assert_eq!(all.stderr.matches("// module after pass").count(), 2, "{}", all.stderr);
    let one = run_with_stdin(&["-q", "--pass", "cse,dce", "--print-ir-after=cse", "-"], DEAD);
    assert_eq!(one.stderr, format!("// module after pass `cse`\n{DEAD}"));
}

#[test]
fn replication_facts_are_json_lines() {
    let sgd = sample("passes/shard-weight-update/sgd.hlo");
    let out = run(&["analyze", "replication", "--format", "json", &sgd]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
    let facts: Vec<Value> = out.stdout.lines().map(|l| serde_json::from_str(l).expect("a JSON object")).collect();
    let of = |name: &str| facts.iter().find(|f| f["instruction"] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(
        out.stdout.lines().next(),
        Some(r#"{"computation":"step","instruction":"weight","index":[],"replicated":true,"groups":null}"#)
    );
    assert_eq!((&of("x")["replicated"], &of("gradient")["replicated"]), (&false.into(), &true.into()));
    assert!(facts.iter().all(|f| f["computation"] != "add"), "reducers have no facts");
    // The user's word counts too.
    let differs = sample("passes/shard-weight-update/weight-differs.hlo");
    let of_weight = |args: &[&str]| {
        let out = run(&[&["analyze", "replication", "--format", "json", &differs], args].concat());
        out.stdout.lines().next().map(str::to_string).unwrap_or(out.stderr)
    };
    assert!(of_weight(&[]).contains(r#""weight","index":[],"replicated":false"#), "{}", of_weight(&[]));
    let said = of_weight(&["--replicated-params", "0"]);
    assert!(said.contains(r#""weight","index":[],"replicated":true"#), "{said}");
    let like = format!("like:{sgd}");
    let out = run(&["analyze", "replication", "--replicated-params", &like, "--across", "partitions", &sgd]);
    assert!(out.stdout.contains("%weight") && out.stdout.contains("replicated"), "{}", out.stdout);
    // Two axes: the user says which.
    let tied = sample("passes/shard-weight-update/tied-weights.hlo");
    assert_eq!(run(&["analyze", "replication", &tied]).code, 2);
    assert_eq!(run(&["analyze", "replication", "--across", "replicas", &tied]).code, 0);
}

#[test]
fn frequencies_are_a_table_or_json_lines() {
    let branches = sample("analysis/frequency/branches.hlo");
    let out = run(&["analyze", "frequency", "--format", "json", &branches]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
    let facts: Vec<Value> = out.stdout.lines().map(|l| serde_json::from_str(l).expect("a JSON object")).collect();
    let find = |key: &str, name: &str| facts.iter().find(|f| f[key] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(find("computation", "fire")["frequency"], 3.0);
    assert_eq!(find("instruction", "loop")["trip_count"], 20);
    assert_eq!(find("instruction", "by_period")["branches"], serde_json::json!(["rest", "fire"]));
    assert_eq!(find("instruction", "by_period")["shares"], serde_json::json!([0.85, 0.15]));
    let out = run(&["analyze", "frequency", &branches]);
    assert!(out.stdout.contains("%loop        20 trips of %body (derived)\n"), "{}", out.stdout);
    let assumed = sample("analysis/frequency/assumed.hlo");
    let out = run(&["analyze", "frequency", "--unknown-trip-count", "7", &assumed]);
    assert!(out.stdout.contains("%body     runs 7 (assumed)\n"), "{}", out.stdout);
}

#[test]
fn memory_is_a_table_or_a_json_object() {
    let sample = sample("analysis/memory/loop.hlo");
    let out = run(&["analyze", "memory", "--format", "json", "--top", "2", &sample]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
    let facts: Value = serde_json::from_str(&out.stdout).expect("a JSON object");
    assert_eq!((&facts["peak_bytes"], &facts["temp_bytes"]), (&4368.into(), &2052.into()));
    assert_eq!(facts["peak_at"], serde_json::json!(["train", "both"]));
    let live = facts["live_at_peak"].as_array().expect("a list");
    assert_eq!((live.len(), &live[0]["kind"], &live[0]["shape"]), (2, &"argument".into(), &"f32[256]".into()));
    let out = run(&["analyze", "memory", &sample]);
    assert!(out.stdout.starts_with("peak                   4,368 bytes\n"), "{}", out.stdout);
    assert!(out.stdout.contains("at %train > %both, 9 buffers live:\n"), "{}", out.stdout);
    assert_eq!(run(&["analyze", "memory", "--computation", "body", &sample]).code, 0);
    assert_eq!(run(&["analyze", "memory", "--computation", "nobody", &sample]).code, 2);
}

#[test]
fn the_evaluator_reads_what_it_writes() {
    let dir = folder("eval");
    let [first, second, third] = ["a.npz", "b.npz", "c.npz"].map(|name| dir.join(name).display().to_string());
    let sgd = sample("passes/shard-weight-update/sgd.hlo");
    let draw = "n.05 n1 n1";
    let out = run(&["eval", &sgd, "--seed", "7", "--draw", draw, "--save-inputs", "-o", &first]);
    assert_eq!((out.code, out.stdout.as_str(), out.stderr.as_str()), (0, "", ""));
    assert_eq!(run(&["eval", &sgd, "--seed", "7", "--draw", draw, "--save-inputs", "-o", &second]).code, 0);
    let bytes = |path: &str| std::fs::read(path).expect("an archive");
    assert!(bytes(&first) == bytes(&second), "the same seed gives the same bytes");
    assert_eq!(run(&["eval", &sgd, "--inputs", &first, "-o", &third]).code, 0);
    let read = |path: &str, name: &str| {
        let mut archive = hlo_eval::npz::NpzReader::new(std::io::Cursor::new(bytes(path))).expect("an archive");
        archive.read(name).expect("an array")
    };
    for device in 0..4 {
        assert_eq!(read(&first, &format!("out0_d{device}")), read(&third, &format!("out0_d{device}")));
    }
    assert_eq!(read(&first, "in0_d0"), read(&first, "in0_d3"), "the weight is replicated");
    assert_ne!(read(&first, "in1_d0"), read(&first, "in1_d3"), "the batch is not");
    let out = run(&["eval", &sgd, "--draw", draw]);
    assert!(
        out.stdout.starts_with("out0  f32[64,32]") && out.stdout.contains("same on all 4 devices"),
        "{}",
        out.stdout
    );
    assert_eq!(run(&["eval", &sgd, "--inputs", "no/such.npz"]).code, 1);
    assert_eq!(run(&["eval", &sgd, "--inputs", &first, "--seed", "2"]).code, 2);
}

#[test]
fn what_cannot_be_evaluated_has_a_place() {
    let text = GOOD.replace("negate(%x)", "custom-call(%x), custom_call_target=\"somewhere_else\"");
    let out = run_with_stdin(&["eval", "-"], &text);
    assert_eq!((out.code, out.stdout.as_str()), (1, ""));
    assert!(out.stderr.contains("<stdin>:5:8") && out.stderr.contains("somewhere_else"), "{}", out.stderr);
}

#[test]
fn a_graph_shows_what_lies_around_an_instruction() {
    let wide = sample("programs/mlp_sgd_wide.hlo");
    let graph = |args: &[&str]| run(&[&["--emit", "dot"], args, &[&wide]].concat());
    let out = graph(&["--around", "%psum.18", "--depth", "1"]);
    assert_eq!((out.code, out.stderr.as_str()), (0, ""));
    assert!(out.stdout.starts_with("digraph ") && out.stdout.ends_with("}\n"), "{}", out.stdout);
    assert!(out.stdout.contains("\"psum.18\" [label=\"%psum.18\\nall-reduce f32[4096,4096]"), "{}", out.stdout);
    // Its operand and its user, and no instruction that is further away.
    let nodes = |text: &str| text.lines().filter(|line| line.contains(" [label=\"%")).count();
    assert_eq!(nodes(&out.stdout), 3, "{}", out.stdout);
    let wider = graph(&["--around", "psum.18", "--depth", "2"]);
    assert!(nodes(&wider.stdout) > 3, "{}", wider.stdout);
    assert!(nodes(&graph(&[]).stdout) > 1);
    let missing = graph(&["--around", "%nobody"]);
    assert!(missing.code == 2 && missing.stderr.contains("found `nobody`"), "{}", missing.stderr);
}

#[test]
fn analyses_begin_with_a_summary() {
    let wide = sample("programs/mlp_sgd_wide.hlo");
    let replication = run(&["analyze", "replication", &wide]).stdout;
    let mut lines = replication.lines();
    let first = lines.next().unwrap_or_default();
    assert!(
        first.starts_with("jit_step: of ") && first.contains(" are the same on all 8 partitions, 0 within"),
        "{first}"
    );
    assert!(lines.next().is_some_and(|line| line.starts_with("  parameters the same: 0 ")), "{replication}");
    let frequency = run(&["analyze", "frequency", &sample("analysis/frequency/branches.hlo")]).stdout;
    let first = frequency.lines().next().unwrap_or_default();
    assert!(first.contains(" computations: ") && first.contains(" more often, "), "{frequency}");
}

#[test]
fn a_report_never_takes_the_place_of_the_output() {
    let (dir, step) = (folder("one_file"), sample("programs/mlp_adam.hlo"));
    let out = dir.join("step.hlo").display().to_string();
    let outcome = run(&["--preset", "data-parallel", &step, "-o", &out, "--report-file", &out]);
    assert_eq!(outcome.code, 2);
    let expected = format!("--report-file: expected another file than the output's, found `{out}` for both");
    assert!(outcome.stderr.contains(&expected), "{}", outcome.stderr);
    let manifest = dir.join("manifest.json").display().to_string();
    let folder = dir.display().to_string();
    let outcome = run(&["--preset", "sharded-state", &step, "-o", &folder, "--report-file", &manifest, "-q"]);
    assert!(outcome.code == 2 && outcome.stderr.contains("--report-file: expected another file"), "{}", outcome.stderr);
    assert_eq!(names_in(&dir), Vec::<String>::new());
}

#[test]
fn what_is_no_module_never_takes_the_place_of_an_input() {
    let dir = folder("input_stays");
    let text = std::fs::read_to_string(sample("passes/make-async/annotated-result.hlo")).expect("the sample");
    let file = dir.join("step.hlo");
    std::fs::write(&file, &text).expect("the copy");
    let (step, also) = (file.display().to_string(), dir.join("./step.hlo").display().to_string());
    for (args, flag) in [
        (&["--report-file", &also, &step][..], "--report-file"),
        (&["--emit", "plan", &step, "-o", &also], "-o with --emit"),
        (&["eval", &step, "-o", &also], "-o"),
        (&["run", "--backend", "host", &step, "-o", &also], "-o"),
        (&["run", "--backend", "host", &step, "--times", &also], "--times"),
        (&["prove", &step, &step, "--certificate", &also], "--certificate"),
        (&["plan", "parallel", &step, "--dump-problem", &also], "--dump-problem"),
    ] {
        let outcome = run(args);
        let expected = format!("{flag}: expected another file than the input's");
        assert!(outcome.code == 2 && outcome.stderr.contains(&expected), "{args:?}: {}", outcome.stderr);
        assert_eq!(std::fs::read_to_string(&file).ok().as_ref(), Some(&text), "{args:?}");
    }
    // A module in the place of a module is what -o is for; a file that is named twice is one.
    let outcome = run(&["--pass", "dce", &step, &also, "-q", "-o", &also]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(std::fs::read_to_string(&file).is_ok_and(|now| now.contains("ENTRY")));
}

#[test]
fn notes_and_errors_say_what_helps() {
    let global = sample("programs/mlp_adam_pjit2d.unopt.hlo");
    let said = |args: &[&str]| run(args).stderr;
    assert!(!said(&["--preset", "auto-spmd", &global]).contains("note: a global program"));
    assert!(said(&["--preset", "data-parallel", &global]).contains("found a global program"));
    assert!(said(&["--pass", "dce", &global]).contains("note: a global program"));
    let utf16: Vec<u8> = GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let file = folder("languages").join("step.hlo");
    std::fs::write(&file, [&[0xff, 0xfe], utf16.as_slice()].concat()).expect("a file");
    assert!(said(&[&file.display().to_string()]).contains("expected UTF-8, found UTF-16"));
    let fields = run_with_stdin(&["--output-format", "proto-text", "-"], GOOD);
    let outcome = run_with_stdin(&["-"], &fields.stdout);
    assert!(outcome.code == 1 && outcome.stderr.contains("found a proto's text format"), "{}", outcome.stderr);
    let step = sample("programs/mlp_adam.hlo");
    assert!(
        said(&["eval", &step, "--timeout", "soon"]).contains("expected a positive number of seconds, as 60 or 0.5")
    );
    let outcome = run(&["--preset", "data-parallel", "--memory-limit", "1KiB", &step]);
    assert!(outcome.code == 1 && !outcome.stderr.contains("pass `"), "{}", outcome.stderr);
    let empty = "HloModule z\n\nENTRY %e (x: f32[0,3]) -> f32[0,3] {\n  ROOT %x = f32[0,3]{1,0} parameter(0)\n}\n\n";
    let outcome = run_with_stdin(&["eval", "-"], empty);
    assert!(outcome.stdout.contains("no elements"), "{}", outcome.stdout);
    let unknown = "HloModule u\n\nENTRY %e (x: f32[2]) -> f32[2] {\n  %x = f32[2]{0} parameter(0)\n  ROOT %n = f32[2]{0} negate(%x), foo=3\n}\n\n";
    let outcome = run_with_stdin(&["-"], unknown);
    assert!(outcome.stderr.contains("known here: sharding, "), "{}", outcome.stderr);
}

#[test]
fn a_file_that_is_missing_is_an_error_beside_others() {
    let step = sample("programs/mlp_adam.hlo");
    for args in
        [&["no/such.hlo", &step][..], &[&step, "no/such.hlo"], &["--preset", "data-parallel", &step, "no/such.hlo"]]
    {
        let out = run(args);
        assert_eq!((out.code, out.stdout.as_str()), (1, ""), "{args:?}: {}", out.stderr);
        assert!(out.stderr.contains("cannot read `no/such.hlo`"), "{args:?}: {}", out.stderr);
    }
    // What is there and no module is told.
    let text = folder("no_module").join("notes.txt");
    std::fs::write(&text, "no module\n").expect("a file");
    let text = text.display().to_string();
    let out = run(&["--verify-only", &step, &text]);
    assert!(out.code == 0 && out.stderr.contains(&format!("note: not a module, left out: `{text}`")), "{}", out.stderr);
}

#[test]
fn help_is_a_command_and_options_of_all_commands_stand_before_them() {
    let (flag, command) = (run(&["--help"]), run(&["help"]));
    assert_eq!((command.code, command.stdout.as_str()), (0, flag.stdout.as_str()));
    let (flag, command) = (run(&["audit", "--help"]), run(&["help", "audit"]));
    assert_eq!((command.code, command.stdout.as_str()), (0, flag.stdout.as_str()));
    let step = sample("audit/missing-all-reduce/sgd.hlo");
    let (before, after) = (run(&["--color", "always", "audit", &step]), run(&["audit", "--color", "always", &step]));
    assert_eq!((before.code, &before.stdout), (0, &after.stdout));
    assert!(before.stdout.contains("missing-all-reduce"), "{}", before.stdout);
    let none = run(&["--config", "none", "analyze", "time", &step]);
    assert_eq!(none.code, 0, "{}", none.stderr);
}

/// Every pass and preset with a limit says what happens where nothing keeps it.
#[test]
fn a_limit_that_is_not_met_is_an_error_with_the_least_that_was_found() {
    let (gpt, gathered) = (sample("programs/gpt2l_adam.hlo"), sample("passes/rematerialize-all-gather/worked.hlo"));
    let global = sample("passes/search-parallelization/memory-limit.hlo");
    let out = folder("limits").join("sharded").display().to_string();
    for (pass, file) in [
        ("@memory-limit=1000;rematerialize-all-gather", &gathered),
        ("@memory-limit=4MiB;offload-state", &gpt),
        ("offload-state{to=4MiB}", &gpt),
        ("@memory-limit=1000;shard-weight-update{state=auto}", &gpt),
        ("@memory-limit=1KiB;search-parallelization{devices=4}", &global),
        // No pass here looks at it.
        ("@memory-limit=1000;dce", &gpt),
    ] {
        let Outcome { code, stdout, stderr } = run(&["--pass", pass, file, "-o", &out]);
        assert_eq!((code, stdout.as_str()), (1, ""), "{pass}: {stderr}");
        assert!(stderr.contains("memory-limit") && stderr.contains("least"), "{pass}: {stderr}");
    }
    for (preset, file) in [("data-parallel", &gpt), ("sharded-state", &gpt), ("auto-parallel{devices=4}", &global)] {
        let Outcome { code, stdout, stderr } = run(&["--preset", preset, "--memory-limit", "1KiB", file, "-o", &out]);
        assert_eq!((code, stdout.as_str()), (1, ""), "{preset}: {stderr}");
        assert!(stderr.contains("least"), "{preset}: {stderr}");
    }
    // What one pass leaves, another one's limit is about.
    let both = run(&["--preset", "sharded-state", "--pass", "offload-state{to=4MiB}", &gpt, "-o", &out]);
    assert!(both.code == 1 && both.stderr.contains("expected a peak of at most 4194304 bytes"), "{}", both.stderr);
    assert!(!std::path::Path::new(&out).exists(), "nothing is written");
}
