//! `--replicated-params` is a promise: where the module's own annotations contradict it, every command that takes it says so.

use crate::cli::{folder, run, run_with_stdin, sample};

/// A module of `n_partitions` partitions whose only parameter has this shape and annotation.
fn module(n_partitions: usize, shape: &str, sharding: &str) -> String {
    format!(
        "HloModule one, num_partitions={n_partitions}\n\nENTRY %main (p: {shape}) -> {shape} {{\n  ROOT %p = {shape} \
         parameter(0){sharding}\n}}\n"
    )
}

/// The error that a promise of everything gets, if any.
fn contradiction(text: &str) -> Option<String> {
    let args = ["analyze", "replication", "--across", "partitions", "--replicated-params", "all", "-"];
    let out = run_with_stdin(&args, text);
    assert!(out.code <= 1 && out.stdout.is_empty() == (out.code == 1), "{text}\n{}", out.stderr);
    (out.code == 1).then_some(out.stderr)
}

#[test]
fn what_a_sharding_cuts_cannot_be_promised() {
    for (sharding, a, b) in [
        ("{devices=[4,1]<=[4]}", 0, 1),
        ("{devices=[1,4]<=[4]}", 0, 1),
        ("{devices=[4,1]0,1,2,3}", 0, 1),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 0, 2),
        ("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}", 0, 1),
        ("{devices=[2,1,2]0,2,1,3 last_tile_dims={replicated}}", 0, 1),
        ("{devices=[2,1,2]<=[4] last_tile_dims={manual}}", 0, 2),
        ("{devices=[2,1,2]<=[4] last_tile_dims={unreduced}}", 0, 2),
        ("{devices=[2,1]<=[2]}", 0, 1),
        ("{mesh['a'=2,'b'=2], [{'a'}, {}]}", 0, 2),
        ("{mesh['a'=2,'b'=2], [{}, {'b'}]}", 0, 1),
        ("{maximal device=2}", 0, 2),
    ] {
        // A dim of size 1 in four tiles: one device has the element and the others have padding.
        for shape in ["f32[8,8]{1,0}", "f32[1,1]{1,0}"] {
            let text = module(4, shape, &format!(", sharding={sharding}"));
            let error = contradiction(&text).unwrap_or_else(|| panic!("accepted: {sharding}"));
            let devices = format!("the same on devices {a} and {b}, found sharding={sharding}");
            for expected in ["--replicated-params all", "entry leaf 0 (parameter 0 `%p`)", &devices, "<stdin>:4:8"] {
                assert!(error.contains(expected), "expected `{expected}`, found {error}");
            }
            assert!(error.contains("leave --replicated-params out"), "{error}");
        }
    }
}

#[test]
fn what_no_sharding_cuts_may_be_promised() {
    for sharding in [
        "",
        ", sharding={replicated}",
        ", sharding={manual}",
        ", sharding={unknown}",
        ", sharding={unreduced}",
        ", sharding={devices=[1,1,4]<=[4] last_tile_dim_replicate}",
        ", sharding={devices=[1,1,4]<=[4] last_tile_dims={manual}}",
        ", sharding={devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}",
        ", sharding={mesh['a'=2,'b'=2], [{},{}]}",
        ", sharding={mesh['a'=2,'b'=2], [{},{}], manual={'a'}}",
    ] {
        let error = contradiction(&module(4, "f32[8,8]{1,0}", sharding));
        assert_eq!(error, None, "{sharding}");
    }
    // One partition holds everything, whatever an annotation says of others; a token holds nothing.
    assert_eq!(contradiction(&module(1, "f32[8]{0}", ", sharding={maximal device=0}")), None);
    assert_eq!(contradiction(&module(4, "token[]", ", sharding={maximal device=0}")), None);
    let replicas =
        module(1, "f32[8]{0}", ", parameter_replication={false}").replace("num_partitions=1", "replica_count=4");
    assert_eq!(contradiction(&replicas), None);
}

/// Leaves: a whole weight, a tuple of a whole and a cut array, a cut batch, and one that says nothing.
const STEP: &str = "HloModule step, num_partitions=2

ENTRY %main (w: f32[4], s: (f32[4], f32[2]), x: f32[2], m: f32[4]) -> f32[4] {
  %w = f32[4]{0} parameter(0), sharding={replicated}
  %s = (f32[4]{0}, f32[2]{0}) parameter(1), sharding={{replicated}, {devices=[2]<=[2]}}
  %x = f32[2]{0} parameter(2), sharding={devices=[2]<=[2]}, metadata={op_name=\"batch\"}
  ROOT %m = f32[4]{0} parameter(3), metadata={op_name=\"moment\"}
}
";

#[test]
fn the_error_names_the_leaf_and_the_rest_of_the_promise() {
    for (spec, leaf, more, rest) in [
        ("all", "leaf 2 (parameter 1{1} `%s`)", "; 1 more leaf contradicts it", "--replicated-params 0-1,4"),
        ("0-4", "leaf 2 (parameter 1{1} `%s`)", "; 1 more leaf contradicts it", "--replicated-params 0-1,4"),
        ("3,4", "leaf 3 (parameter 2 `%x`)", "different parts\n", "--replicated-params 4\n"),
        ("/batch|moment/", "leaf 3 (parameter 2 `%x`)", "different parts\n", "--replicated-params 4\n"),
        ("2", "leaf 2 (parameter 1{1} `%s`)", "different parts\n", "leave --replicated-params out"),
    ] {
        let out = run_with_stdin(&["--replicated-params", spec, "--pass", "dce", "-"], STEP);
        assert_eq!((out.code, out.stdout.as_str()), (1, ""), "{spec}: {}", out.stderr);
        for expected in [&format!("--replicated-params {spec} contradicts the module"), leaf, more, rest] {
            assert!(out.stderr.contains(expected), "{spec}: expected `{expected}`, found {}", out.stderr);
        }
    }
    for spec in ["0-1,4", "/moment/"] {
        let out = run_with_stdin(&["--replicated-params", spec, "--pass", "dce", "-"], STEP);
        assert_eq!(out.code, 0, "{spec}: {}", out.stderr);
    }
}

#[test]
fn a_sibling_may_say_what_the_module_says_and_no_more() {
    let directory = folder("promises");
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("a folder for tests");
        format!("like:{}", path.display())
    };
    let alike = write("alike.hlo", STEP);
    let out = run_with_stdin(&["--replicated-params", &alike, "-"], STEP);
    assert_eq!(out.code, 0, "{}", out.stderr);
    let whole = STEP.replacen("parameter(2), sharding={devices=[2]<=[2]}", "parameter(2), sharding={replicated}", 1);
    let other = write("other.hlo", &whole);
    let out = run_with_stdin(&["--replicated-params", &other, "-"], STEP);
    assert_eq!(out.code, 1, "{}", out.stderr);
    for expected in [&other, "leaf 3 (parameter 2 `%x`)", "<stdin>:6:3", "--replicated-params 0-1\n"] {
        assert!(out.stderr.contains(expected), "expected `{expected}`, found {}", out.stderr);
    }
}

#[test]
fn every_command_that_takes_a_promise_checks_it() {
    let sgd = sample("passes/shard-weight-update/sgd.hlo");
    for command in [
        &["--preset", "data-parallel"][..],
        &["--verify-only"],
        &["--emit", "plan"],
        &["analyze", "replication"],
        &["run", "--backend", "host"],
    ] {
        let out = run(&[command, &["--replicated-params", "all", &sgd]].concat());
        assert_eq!((out.code, out.stdout.as_str()), (1, ""), "{command:?}: {}", out.stderr);
        assert!(out.stderr.contains("contradicts the module"), "{command:?}: {}", out.stderr);
    }
    // The parts of a file are judged one by one.
    let parts = format!("{STEP}// -----\n{STEP}");
    let out = run_with_stdin(&["--split-input-file", "--replicated-params", "2", "-"], &parts);
    assert_eq!((out.code, out.stderr.matches("contradicts the module").count()), (1, 2), "{}", out.stderr);
    assert!(out.stderr.contains("<stdin>:14:3"), "{}", out.stderr);
}

#[test]
fn a_promise_is_of_the_module_as_it_was_read() {
    // In shards a leaf is not the same on all devices any more; nobody promised that it would be.
    let sgd = sample("passes/shard-weight-update/sgd.hlo");
    let pass = "shard-weight-update{min-bytes=0,state=parameters}";
    let out_at = folder("promises-in-shards").join("plan");
    let args = ["--pass", pass, "--emit", "plan", "--replicated-params", "0", &sgd, "-o", &out_at.to_string_lossy()];
    let out = run(&args);
    assert_eq!(out.code, 0, "{}", out.stderr);
}

/// One step of SGD on four partitions with a second term in its update: what `w` and `r` say of themselves.
fn step(w: &str, r: &str, extra: &str) -> String {
    format!(
        "HloModule step, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (w: f32[64,32], r: f32[64,32], local: f32[64,32]) -> f32[64,32] {{
  %w = f32[64,32]{{1,0}} parameter(0){w}
  %r = f32[64,32]{{1,0}} parameter(1){r}
  %local = f32[64,32]{{1,0}} parameter(2), sharding={{devices=[4,1]<=[4]}}
  %gradient = f32[64,32]{{1,0}} all-reduce(%local), channel_id=1, replica_groups={{{{0,1,2,3}}}}, \
         use_global_device_ids=true, to_apply=%add
  {extra}
  %terms = f32[64,32]{{1,0}} add(%w, %residual)
  ROOT %next = f32[64,32]{{1,0}} add(%terms, %gradient)
}}
"
    )
}

/// Reports that devices differ, with the reason.
fn reasons(text: &str, args: &[&str]) -> String {
    let out = run_with_stdin(
        &[&["--pass", "shard-weight-update{min-bytes=0}", "--report", "text", "-"], args].concat(),
        text,
    );
    assert_eq!(out.code, 0, "{}", out.stderr);
    out.stderr
}

#[test]
fn advice_is_given_where_a_promise_can_be_true_and_helps() {
    const WHOLE: &str = ", sharding={replicated}";
    const CUT: &str = ", sharding={devices=[1,4]<=[4]}";
    const PLAIN: &str = "%residual = f32[64,32]{1,0} copy(%r)";
    const BY_ID: &str = "%id = u32[] partition-id()\n  %number = f32[] convert(%id)\n  %numbers = f32[64,32]{1,0} \
                         broadcast(%number), dimensions={}\n  %residual = f32[64,32]{1,0} multiply(%r, %numbers)";
    // What the module says of two leaves; what the report says, with the advised spec where there is one.
    for (w, r, extra, expected, spec) in [
        ("", WHOLE, PLAIN, "if parameter 0 `%w` is, say so with --replicated-params 0\n", Some("0")),
        ("", "", PLAIN, "if entry leaves 0-1 are, say so with --replicated-params 0-1\n", Some("0-1")),
        (
            WHOLE,
            CUT,
            PLAIN,
            "depends on parameter 1 `%r`, which is cut over the devices by sharding={devices=[1,4]<=[4]}",
            None,
        ),
        (
            "",
            CUT,
            PLAIN,
            "depends on parameter 1 `%r`, which is cut over the devices by sharding={devices=[1,4]<=[4]}",
            None,
        ),
        ("", ", sharding={maximal device=1}", PLAIN, "parameter 1 `%r`, which is cut over the devices by", None),
        ("", "", BY_ID, "depends on partition-id `%id`, whose result may differ from device to device", None),
    ] {
        let text = step(w, r, extra);
        let said = reasons(&text, &[]);
        assert!(said.contains(expected), "expected `{expected}`, found {said}");
        assert_eq!(said.contains("--replicated-params"), spec.is_some(), "{said}");
        if let Some(spec) = spec {
            let said = reasons(&text, &["--replicated-params", spec]);
            assert!(said.contains("sharded  %gradient"), "the advice {spec} must help: {said}");
        }
    }
    // Half of what is needed was said.
    let said = reasons(&step("", "", PLAIN), &["--replicated-params", "1"]);
    assert!(said.contains("if parameter 0 `%w` is, add 0 to --replicated-params\n"), "{said}");
}

/// A step with a stack of weights and a stack of gradients, as `jax.pmap` takes them.
fn stacked() -> String {
    std::fs::read_to_string(sample("passes/shard-weight-update/stacked.hlo")).expect("a sample")
}

#[test]
fn a_stack_of_copies_is_promised_as_such() {
    let args = ["--pass", "shard-weight-update{min-bytes=0},dce", "-"];
    let promised = |spec: &str| {
        let args: Vec<&str> = args.iter().copied().chain(["--replicated-params", spec]).collect();
        run_with_stdin(&args, &stacked())
    };
    let out = promised("stacked:0");
    assert_eq!(out.code, 0, "{}", out.stderr);
    assert!(out.stdout.contains(" reduce-scatter(") && !out.stdout.contains(" all-reduce("), "{}", out.stdout);
    let without = promised("0");
    assert_eq!(without.code, 1, "{}", without.stdout);
    assert!(without.stderr.contains("promise-contradicts-sharding"), "{}", without.stderr);
}

#[test]
fn what_is_no_stack_of_one_part_for_each_device_cannot_be_promised_as_one() {
    for (shape, sharding) in [
        ("f32[2,8]{1,0}", ", sharding={devices=[4,1]<=[4]}"),
        ("f32[1,8]{1,0}", ", sharding={devices=[1,4]<=[4]}"),
        ("f32[1,8]{1,0}", ", sharding={devices=[2,2]<=[4]}"),
        ("f32[1,8]{1,0}", ", sharding={replicated}"),
        ("f32[1,8]{1,0}", ""),
        ("f32[]", ", sharding={replicated}"),
    ] {
        let text = module(4, shape, sharding);
        let args = ["analyze", "replication", "--across", "partitions", "--replicated-params", "stacked:0", "-"];
        let out = run_with_stdin(&args, &text);
        assert_eq!(out.code, 2, "{text}\n{}", out.stdout);
        assert!(out.stderr.contains("expected a stack with one part for each device"), "{}", out.stderr);
    }
}
