//! What the README shows is what the tool does.

use crate::tool;
use hlo_audit::CHECKS;
use hlo_tests::{root, samples};

/// The fenced block that follows a line with `marker`.
fn block<'t>(readme: &'t str, marker: &str) -> &'t str {
    let after = readme.split_once(marker).unwrap_or_else(|| panic!("expected `{marker}` in the README")).1;
    let inside =
        after.split_once("```").and_then(|(_, rest)| rest.split_once('\n')).expect("a block after the marker").1;
    inside.split_once("```").expect("the end of the block").0
}

/// The instructions of the entry computation, without what every line has in common.
fn entry(text: &str) -> String {
    let from = text.find("ENTRY").expect("an entry computation");
    text[from..].trim_end().to_string() + "\n"
}

/// What `hlo-opt` prints to stdout when it is called with these words.
fn print(args: &[&str]) -> String {
    let (code, stdout, stderr) = tool::run(args);
    assert_eq!(code, 0, "{stderr}");
    stdout
}

#[test]
fn before_and_after_are_what_the_tool_prints() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let sgd = samples("passes/shard-weight-update").into_iter().find(|s| s.name() == "sgd").expect("the sample");
    let path = sgd.path.display().to_string();
    assert_eq!(block(&readme, "<!-- before -->"), entry(&print(&[&path])));
    let pipeline = "shard-weight-update{min-bytes=0}";
    assert!(readme.contains(&format!("--pass '{pipeline}'")), "the README names the pipeline");
    assert_eq!(block(&readme, "<!-- after -->"), entry(&print(&["--pass", pipeline, &path])));
}

/// The predicted seconds of one step of the module in this file.
fn predicted_s(path: &str) -> f64 {
    let facts = print(&["analyze", "time", "--format", "json", path]);
    let facts: serde_json::Value = serde_json::from_str(&facts).expect("JSON");
    facts["critical_path_s"].as_f64().expect("seconds")
}

#[test]
fn the_main_command_makes_its_module_faster_and_the_pictures_show_it() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let sample = "programs/mlp_sgd_wide.hlo";
    let command = format!("hlo-opt --preset data-parallel ir-samples/{sample} -o sharded.hlo");
    assert!(readme.contains(&command), "the README has the command `{command}`");
    let before = root().join(sample).display().to_string();
    let (code, sharded, summary) = tool::run(["--preset", "data-parallel", &before]);
    assert_eq!((code, summary.as_str()), (0, block(&readme, "<!-- summary -->")));
    let after = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("mlp_sgd_wide.sharded.hlo");
    std::fs::write(&after, &sharded).expect("a file for the result");
    let after = after.display().to_string();

    let is_scatter = |line: &&str| line.contains(" = f32[512,4096]") && line.contains(" reduce-scatter(");
    assert_eq!(sharded.lines().filter(is_scatter).count(), 2, "the gradient of each weight is scattered");
    let (before_s, after_s) = (predicted_s(&before), predicted_s(&after));
    assert!(after_s < before_s, "expected less than {before_s} s, found {after_s} s");
    for (name, module) in [("before", &before), ("after", &after)] {
        let picture = format!("docs/mlp_sgd_wide.{name}.svg");
        assert!(readme.contains(&picture), "the README shows {picture}");
        let shown = std::fs::read_to_string(root().join("..").join(&picture)).expect("the picture");
        let time_us = shown.split_once("modelled ").and_then(|(_, rest)| rest.split_once(" us")).expect("a title").0;
        let time_us: f64 = time_us.parse().expect("a number in the title");
        let caption = format!("![{name}: {time_us:.0} us]({picture})");
        assert!(readme.contains(&caption), "expected the caption of the picture's own time, {caption}");
        assert_eq!(shown, print(&["--emit", "plan-svg", module]), "{picture} is what the tool draws");
    }
}

#[test]
fn the_proof_is_what_the_tool_prints() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let sample = "ir-samples/programs/mlp_adam.hlo";
    let pass = "shard-weight-update{profit=always}";
    assert!(readme.contains(&format!("`hlo-opt {sample} --pass '{pass}' -q -o sharded.hlo`")));
    let path = root().join("..").join(sample).display().to_string();
    let sharded = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme_proof.hlo").display().to_string();
    assert_eq!(tool::run([&path, "--pass", pass, "-q", "-o", &sharded]).0, 0);
    let (code, printed, _) = tool::run(["prove", &path, &sharded]);
    assert_eq!((code, printed.as_str()), (0, block(&readme, "<!-- prove -->")));
    let step = |kind: &str| hlo_tests::root().join(format!("programs/mlp_adam_pjit2d.{kind}")).display().to_string();
    let (code, printed, _) = tool::run(["prove", &step("unopt.hlo"), &step("hlo")]);
    assert_eq!((code, printed.as_str()), (0, block(&readme, "<!-- prove-global -->")));
}

#[test]
fn the_audit_is_what_the_tool_prints() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let sample = "ir-samples/audit/missing-all-reduce/sgd.hlo";
    assert!(
        readme.contains("`hlo-opt audit --deny fault\n")
            && readme.contains(&format!("{sample}` prints this and exits with 4"))
    );
    let path = root().join("..").join(sample).display().to_string();
    let (code, printed, _) = tool::run(["audit", "--deny", "fault", &path]);
    assert_eq!((code, printed.replace(&path, sample).as_str()), (4, block(&readme, "<!-- audit -->")));
}

#[test]
fn every_check_of_the_audit_is_listed() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    assert!(readme.contains(&format!("| an audit of steps: {} checks, ", CHECKS.len())), "the number of checks");
    let audit = std::fs::read_to_string(root().join("../crates/hlo-audit/README.md")).expect("the audit's README");
    let rows: Vec<(&str, &str)> = (audit.lines())
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.trim_end_matches('`'), cells.next()?))
        })
        .collect();
    let listed: Vec<_> = CHECKS.iter().map(|check| (check.id, check.level.name())).collect();
    assert_eq!(rows, listed, "a row for each check, in the order of `audit --list-checks`");
}

#[test]
fn a_machine_that_is_described_by_options_takes_the_sample() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let machine = "a100:[(node,2),(gpu,4)]";
    assert!(readme.contains(&format!("`--machine '{machine}'`")), "the README has the machine `{machine}`");
    let sample = root().join("programs/mlp_sgd_wide.hlo").display().to_string();
    let (code, _, summary) = tool::run(["--machine", machine, "--preset", "data-parallel", &sample]);
    assert_eq!(code, 0, "{summary}");
    assert!(summary.contains("8 x a100"), "{summary}");
}

#[test]
fn the_described_machine_is_one() {
    let readme = std::fs::read_to_string(root().join("../crates/hlo-cluster/README.md")).expect("the README");
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme-pod.toml");
    std::fs::write(&file, block(&readme, "<!-- machine -->")).expect("a file");
    let (file, sample) = (file.display().to_string(), root().join("programs/mlp_sgd_wide.hlo").display().to_string());
    for (machine, said) in [
        (file.as_str(), "8 x a100, pod"),
        ("h200:4", "8 x h200, 4 x dgx-h200"),
        ("[(node,2),(gpu,4)]", "8 x h200, [(node,2),(gpu,4)]"),
        ("a100:switch", "8 x a100, one switch"),
    ] {
        let (code, stdout, stderr) = tool::run(["analyze", "time", "--machine", machine, &sample]);
        assert_eq!(code, 0, "{machine}: {stderr}");
        assert!(stdout.starts_with(&format!("predicted on {said}")), "{machine}: {stdout}");
    }
}

#[test]
fn every_pass_is_in_the_table() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let table = readme.split_once("## Passes\n").and_then(|(_, rest)| rest.split_once("\n\n`")).expect("the table").0;
    let first_cells = table.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once(" | ")?.0));
    let mut named: Vec<&str> = first_cells.flat_map(|cell| cell.split('`')).collect();
    named.retain(|word| !word.is_empty() && *word != ", ");
    let known: Vec<&str> = hlo_opt::registry::passes().iter().map(|pass| pass.name).collect();
    let missing: Vec<_> = known.iter().filter(|name| !named.contains(name)).collect();
    let unknown: Vec<_> = named.iter().filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not in the table: {missing:?}; no passes: {unknown:?}");
}

#[test]
fn the_plan_is_what_the_tool_prints() {
    let crates = root().join("../crates/hlo-search");
    let readme = std::fs::read_to_string(crates.join("README.md")).expect("the README");
    let command = "plan parallel crates/hlo-search/examples/mlp.24.hlo --devices 24 --machine h100";
    assert!(readme.contains(&format!("`hlo-opt {command}`")), "the README names the command");
    let file = crates.join("examples/mlp.24.hlo").display().to_string();
    let words: Vec<&str> =
        command.split(' ').map(|word| if word.ends_with(".hlo") { file.as_str() } else { word }).collect();
    let printed = print(&words).replace(&file, "crates/hlo-search/examples/mlp.24.hlo");
    assert_eq!(block(&readme, "<!-- plan -->"), printed);
    // Of the second example the lines about algebra are shown.
    let command =
        "plan parallel crates/hlo-search/examples/tables.64.hlo --devices 8 --machine h100 --axes 2 --regions";
    assert!(readme.contains(&format!("`hlo-opt {command}`")), "the README names the command");
    let file = crates.join("examples/tables.64.hlo").display().to_string();
    let words: Vec<&str> =
        command.split(' ').map(|word| if word.ends_with(".hlo") { file.as_str() } else { word }).collect();
    let is_shown =
        |line: &&str| ["  no algebra", "  partitioned,", "algebra,"].iter().any(|start| line.starts_with(start));
    let shown: Vec<String> = print(&words).lines().filter(is_shown).map(|line| format!("{line}\n")).collect();
    assert_eq!(block(&readme, "<!-- regions -->"), shown.concat());
}

#[test]
fn the_number_of_checks_is_that_of_the_list() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let n_checks = print(&["audit", "--list-checks"]).lines().count();
    assert!(readme.contains(&format!("an audit of steps: {n_checks} checks,")), "the README says {n_checks} checks");
}

/// The README's line for PyTorch/XLA, on a step that it dumped with four replicas: all gradients are one all-reduce of
/// a tuple.
#[test]
fn the_line_for_pytorch_shards_a_step_that_stays_the_same() {
    let readme = std::fs::read_to_string(root().join("../README.md")).expect("the README");
    let line = readme.lines().find(|line| line.ends_with("# PyTorch/XLA")).expect("a line for PyTorch/XLA");
    let dump = root().join("dumps/torch-2.9/ddp/module_0005.SyncTensorsGraph.402.before_optimizations.txt");
    let dump = dump.display().to_string();
    let sharded = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme_torch.hlo").display().to_string();
    let command = line.split('#').next().unwrap_or_default().trim();
    let words: Vec<String> = command
        .split_whitespace()
        .skip(1)
        .map(|word| match word {
            "dump/*.before_optimizations.txt" => dump.clone(),
            "sharded.hlo" => sharded.clone(),
            word => word.to_string(),
        })
        .collect();
    assert!(words.contains(&dump) && words.contains(&sharded), "{words:?}");
    let (code, _, stderr) = tool::run(words.iter().map(String::as_str));
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("--replicated-params optimizer promises 1-6,9-26\n"), "{stderr}");
    let text = std::fs::read_to_string(&sharded).expect("the sharded step");
    assert!(text.matches(" reduce-scatter(").count() >= 5, "{text}");
    let (code, proof, _) = tool::run(["prove", "--replicated-params", "optimizer", &dump, &sharded]);
    assert_eq!((code, proof.as_str()), (0, "proved: 32 of 32 outputs proved on 4 devices, bit for bit\n"));
    let (code, compared, _) = tool::run(["compare", "--same", "1-6,9-26", &dump, &sharded]);
    assert_eq!(code, 0, "{compared}");
}
