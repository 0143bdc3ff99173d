//! The summary after a run: short, and its figures are those of the commands that print them one by one.

use crate::cli::{Outcome, run, sample};
use serde_json::Value;

/// The README's main command.
const COMMAND: [&str; 4] = ["--preset", "data-parallel", "--report", "text"];

fn json(args: &[&str]) -> Value {
    let Outcome { code, stdout, stderr } = run(args);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// The words of a row of the summary after what it is about.
fn row<'t>(summary: &'t str, what: &str) -> Vec<&'t str> {
    let line = summary.lines().find_map(|line| line.trim_start().strip_prefix(what));
    line.unwrap_or_else(|| panic!("{what}: {summary}")).split_whitespace().collect()
}

#[test]
fn the_summary_is_short_and_says_what_the_analyses_say() {
    let (before, folder) = (sample("programs/mlp_sgd_wide.hlo"), crate::cli::folder("summary"));
    let (after, report) = (folder.join("after.hlo"), folder.join("report.json"));
    let (after, report) = (after.to_str().expect("a path"), report.to_str().expect("a path"));
    let out = run(&[&COMMAND[..2], &[&before, "-o", after, "--report-file", report]].concat());
    assert_eq!(out.code, 0, "{}", out.stderr);
    let summary = out.stderr;
    assert!(summary.lines().count() <= 12 && summary.lines().all(|l| l.chars().count() <= 120), "{summary}");
    assert!(summary.starts_with("jit_step: updates in shards: "), "{summary}");
    assert!(
        summary
            .contains("time for 8 x h200, one switch; XLA combines collectives up to 30 MiB; --machine names another"),
        "{summary}"
    );
    assert!(summary.contains("try --preset sharded-state -o DIRECTORY: memory −42 %, time −"), "{summary}");

    // The same summary stands over the report.
    let told = run(&[&COMMAND[..], &[&before]].concat());
    assert!(told.stderr.starts_with(&summary), "{}", told.stderr);

    let document: Value = serde_json::from_str(&std::fs::read_to_string(report).expect("a report")).expect("JSON");
    let totals = &document["modules"][0]["totals"];
    let mut printed = Vec::new();
    for (when, module) in [("before", before.as_str()), ("after", after)] {
        let figures = &totals[when];
        let (time, memory) = (
            json(&["analyze", "time", "--format", "json", module]),
            json(&["analyze", "memory", "--format", "json", module]),
        );
        for name in ["critical_path_s", "compute_s", "communication_s", "is_partial"] {
            assert_eq!(figures["time"][name], time[name], "{when} {name}");
        }
        for name in ["peak_bytes", "argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"] {
            assert_eq!(figures[name], memory[name], "{when} {name}");
        }
        let plan = json(&["--emit", "plan-json", module]);
        assert_eq!(figures["argument_bytes"], plan["memory"]["argument_bytes"], "{when}");
        // A plan runs the module as it is; XLA would combine the reduce-scatters that the passes make.
        if when == "before" {
            assert_eq!(figures["time"]["critical_path_s"], plan["critical_path_s"], "{when}");
        }
        assert_eq!(totals["machine"], plan["machine"], "{when}");
        printed.push(format!("{:.1}", time["critical_path_s"].as_f64().expect("seconds") * 1e6));
    }
    let time = row(&summary, "time, predicted");
    assert_eq!([time[0], time[2]], [printed[0].as_str(), printed[1].as_str()], "{summary}");
    // Two weights of 64 MiB and a scalar: 2 · 7/8 of both. The halves of an all-reduce send as much as the whole.
    // XLA combines the two reduce-scatters into one.
    assert_eq!(row(&summary, "bytes sent"), ["224.0", "MiB", "224.0", "MiB", "="]);
    assert_eq!(row(&summary, "collectives")[..2], ["3", "4"]);
    assert_eq!(row(&summary, "arguments")[..2], ["128.3", "MiB"]);
}

#[test]
fn quiet_and_json_runs_have_no_summary() {
    let wide = sample("programs/mlp_sgd_wide.hlo");
    let quiet = run(&["-q", "--preset", "data-parallel", &wide]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
    let report = run(&["--preset", "data-parallel", "--report", "json", &wide]);
    let document: Value = serde_json::from_str(&report.stderr).expect("stderr is one document");
    assert!(document["modules"][0]["totals"]["before"]["sent_bytes"].as_f64().is_some_and(|bytes| bytes > 2e8));
    let recommended = &document["modules"][0]["recommendation"];
    assert_eq!(recommended["command"], "--preset sharded-state -o DIRECTORY");
    assert_eq!(run(&["-q", "-v", &wide]).code, 2);
}

#[test]
fn a_report_tells_decisions_of_one_kind_together_and_a_verbose_one_each() {
    let wide = sample("programs/mlp_sgd_wide.hlo");
    let lines = |more: &[&str]| {
        let out = run(&[&COMMAND[..], more, &[&wide]].concat());
        assert_eq!(out.code, 0, "{}", out.stderr);
        out.stderr
    };
    let (grouped, verbose) = (lines(&[]), lines(&["--verbose"]));
    assert!(grouped.contains("sharded  2 values, 128.0 MiB: "), "{grouped}");
    assert!(grouped.contains("removed   2 all-reduce       128.0 MiB    8 devices"), "{grouped}");
    assert!(
        grouped.contains("unchanged: scatter-to-select, hoist-invariants, ") && !grouped.contains("rejected "),
        "{grouped}"
    );
    for each in [
        "sharded  %psum.18 ",
        "sharded  %psum.19 ",
        "all-reduce %psum.19 ",
        "rejected  dim 1",
        "hoist-invariants: unch",
    ] {
        assert!(verbose.contains(each), "{each}: {verbose}");
    }
    // `--verbose` alone asks for a report.
    let alone = run(&["--verbose", "--preset", "data-parallel", &wide]);
    assert_eq!(alone.stderr, verbose);
}

#[test]
fn a_module_that_stays_as_it_is_has_a_summary_only_where_something_of_size_was_declined() {
    let scalar = run(&["--pass", "dce", &sample("passes/shard-weight-update/sgd.hlo")]);
    assert_eq!((scalar.code, scalar.stderr.as_str()), (0, ""));
    let small = run(&["--pass", "shard-weight-update{min-bytes=1GiB}", &sample("programs/mlp_sgd_wide.hlo")]);
    assert!(small.stderr.starts_with("jit_step: left as it is: shard-weight-update: "), "{}", small.stderr);
    assert!(small.stderr.contains("bytes sent                  224.0 MiB    224.0 MiB   =\n"), "{}", small.stderr);
}

#[test]
fn a_machine_by_name_sets_what_nothing_else_names() {
    let wide = sample("programs/mlp_sgd_wide.hlo");
    let seconds = |args: &[&str]| {
        let facts = json(&[&["analyze", "time", "--format", "json"], args, &[&wide]].concat());
        facts["critical_path_s"].as_f64().expect("seconds")
    };
    let summary = |args: &[&str]| {
        let out = run(&[args, &[&wide]].concat());
        assert_eq!(out.code, 0, "{args:?}: {}", out.stderr);
        out.stderr
    };
    // A slower device, and slower links between two nodes.
    let (one, old, two) =
        (seconds(&["--machine", "h200"]), seconds(&["--machine", "a100"]), seconds(&["--machine", "h200:2"]));
    assert!(old > one * 1.2 && two > one * 1.05, "{one} {old} {two}");
    let flat = seconds(&["--machine", "h200:[(gpu,8,450,0.6)]"]);
    assert!((flat / one - 1.0).abs() < 1e-6, "links and a device in one word: {flat} {one}");
    assert!(seconds(&["--machine", "a100:[(gpu,8,450,0.6)]"]) > flat, "a slower device at the same links");

    // A preset, a pass and a plan are priced on it, and the summary names it.
    let preset = summary(&["--machine", "h200:2", "--preset", "data-parallel"]);
    assert!(
        preset.contains(
            "time for 8 x h200, 2 x dgx-h200; XLA combines collectives up to 30 MiB; --machine names another"
        ),
        "{preset}"
    );
    assert_eq!(row(&preset, "time, predicted")[0], format!("{:.1}", two * 1e6), "{preset}");
    assert!(preset.contains("try --machine h200:2 --preset sharded-state -o DIRECTORY: "), "{preset}");
    let pass = summary(&["--machine", "h200:2", "--pass", "shard-weight-update"]);
    assert!(
        pass.contains(
            "time for 8 x h200, 2 x dgx-h200; XLA combines collectives up to 30 MiB; --machine names another"
        ),
        "{pass}"
    );
    let mixed = summary(&["--machine", "a100:[(node,2),(gpu,4)]", "--preset", "data-parallel"]);
    assert!(
        mixed.contains(
            "time for 8 x a100, [(node,2),(gpu,4)]; XLA combines collectives up to 30 MiB; --machine names another"
        ),
        "{mixed}"
    );
    assert_eq!(json(&["--machine", "h200:2", "--emit", "plan-json", &wide])["critical_path_s"], two);
    // A pass over the levels of a machine says so where there are none.
    assert_eq!(run(&["--machine", "h200:2", "--pass", "decompose-collectives", &wide]).code, 0);
    let switch = run(&["--pass", "decompose-collectives", &wide]);
    assert!(switch.code == 1 && switch.stderr.contains("expected a machine with levels"), "{}", switch.stderr);
    // Settings in front of a pipeline are the same; said twice and otherwise they are refused.
    let front = summary(&["--pass", "@machine=h200:2;shard-weight-update"]);
    assert_eq!(row(&front, "time, predicted"), row(&pass, "time, predicted"));
    let twice = run(&["--machine", "a100", "--pass", "@machine=h200:2;shard-weight-update", &wide]);
    assert!(twice.code == 2 && twice.stderr.contains("two settings of the target differ"), "{}", twice.stderr);
    let preset = run(&["--preset", "@machine=h200:2;data-parallel", &wide]);
    assert!(preset.code == 2 && preset.stderr.contains("the setting `@machine`"), "{}", preset.stderr);
    for (args, expected) in [
        (&["--pass", "shard-weight-update{cluster=[(gpu,8)]}"][..], "'@machine=[(gpu,8)];…'"),
        (&["--preset", "data-parallel{device=a100}"], "--machine 'a100:switch'"),
        (&["--preset", "data-parallel{memory-limit=1GiB}"], "--memory-limit"),
        (&["--device", "a100", "--preset", "data-parallel"], "'a100:switch' for one switch"),
        (&["analyze", "time", "--cluster", "a100:2"], "`p2-a100` now"),
    ] {
        let out = run(&[args, &[&wide]].concat());
        assert!(out.code == 2 && out.stderr.contains(expected), "{args:?}: {}", out.stderr);
    }

    for (machine, expected) in [
        ("h2", "expected a100, b200, h100, h200, p2-a100, "),
        ("h200:3", "expected a divisor of the 8 devices, found 3 nodes"),
        ("h200:many", "expected a number such as `4`, found `many`"),
    ] {
        let out = run(&["--machine", machine, "--preset", "data-parallel", &wide]);
        assert!(out.code == 2 && out.stderr.contains(expected), "{machine}: {}", out.stderr);
    }
    let large = run(&["analyze", "time", "--machine", "p2-a100", &wide]);
    assert!(large.code == 2 && large.stderr.contains("a machine by name, such as h200"), "{}", large.stderr);
}
