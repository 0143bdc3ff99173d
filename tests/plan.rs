//! `hlo-opt plan`: what it prints for people and for programs, and how it refuses.

use crate::cli::{self, Outcome};
use serde_json::Value;

fn run(args: &[&str]) -> Outcome {
    cli::run(&[&["plan"], args].concat())
}

fn json(args: &[&str]) -> Value {
    let outcome = run(args);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    serde_json::from_str(&outcome.stdout).expect("one JSON document")
}

#[test]
fn a_reduction_as_json_has_programs_and_groups() {
    let plan = json(&["reduction", "--machine", "p2-a100", "--axes", "4,16", "--reduce", "1", "--format", "json"]);
    assert_eq!(plan["total"], 97);
    let matrices = plan["matrices"].as_array().expect("matrices");
    let rows: Vec<String> = matrices.iter().map(|m| m["matrix"].to_string()).collect();
    assert_eq!(rows, ["[[1,4],[4,4]]", "[[2,2],[2,8]]", "[[4,1],[1,16]]"]);
    let programs: Vec<u64> = matrices.iter().filter_map(|m| m["programs"].as_u64()).collect();
    assert_eq!(programs, [47, 47, 3]);
    let first = &matrices[0];
    assert!(first["best_s"].as_f64() < first["all_reduce_s"].as_f64() && first["faster"].as_u64() > Some(0));
    assert_eq!(first["best"][0]["form"], "InsideGroup");
    assert_eq!(first["best"][0]["ancestor"], Value::Null);
    assert_eq!(first["best"][0]["collective"], "ReduceScatter");
    assert_eq!(first["best"][0]["groups"][0], serde_json::json!([0, 1, 2, 3]));
    assert_eq!(first["best"][1]["form"], "Parallel");
    assert_eq!(first["best"][1]["ancestor"], 0);
    assert_eq!(first["best"][1]["groups"][1], serde_json::json!([1, 17, 33, 49]));
}

#[test]
fn options_narrow_the_plan() {
    let machine = ["reduction", "--machine", "[(node,2),(cpu,2),(gpu,4)]", "--axes", "4,4", "--format", "json"];
    let with = |more: &[&str]| json(&machine.iter().chain(more).copied().collect::<Vec<_>>());
    let one = with(&["--reduce", "0,1", "--matrix", "[[1,2,2],[2,1,2]]"]);
    assert_eq!((&one["total"], one["matrices"].as_array().map(Vec::len)), (&Value::from(1287), Some(1)));
    assert_eq!(with(&["--reduce", "0,1", "--matrix", "[[1,2,2],[2,1,2]]", "--max-size", "5"])["total"], 795);
    assert_eq!(with(&["--reduce", "0", "--matrix", "[[2,2,1],[1,1,4]]", "--rules", "literal"])["total"], 122);
    let best = |lowering: &str| {
        let plan = with(&["--reduce", "0,1", "--matrix", "[[1,2,2],[2,1,2]]", "--lowering", lowering]);
        plan["matrices"][0]["best_s"].as_f64().expect("a time")
    };
    assert_eq!(best("best"), best("level-major").min(best("axis-major")));
    let pareto = with(&["--reduce", "0,1", "--matrix", "[[1,2,2],[2,1,2]]", "--pareto"]);
    let points = pareto["matrices"][0]["pareto"].as_array().expect("a front").clone();
    let times: Vec<f64> = points.iter().filter_map(|p| p["seconds"].as_f64()).collect();
    assert!(times.len() > 1 && times.is_sorted_by(|a, b| a > b));
    assert_eq!(points[0]["program"], serde_json::json!(["(0, InsideGroup, AllReduce)"]));
}

#[test]
fn placements_are_ranked_by_cost() {
    let args = ["placement", "--machine", "p2-a100", "--axes", "4,16", "--reduce", "0=1.0,0+1=0.25"];
    let plan = json(&[&args[..], &["--format", "json"]].concat());
    let placements = plan["placements"].as_array().expect("placements");
    let costs: Vec<f64> = placements.iter().filter_map(|p| p["cost_s"].as_f64()).collect();
    assert!(costs.len() == 3 && costs.is_sorted());
    assert_eq!(placements[0]["matrix"].to_string(), "[[1,4],[4,4]]");
    let parts = placements[0]["reductions"].as_array().expect("reductions");
    let sum: f64 =
        parts.iter().map(|p| p["weight"].as_f64().unwrap_or(0.0) * p["best_s"].as_f64().unwrap_or(0.0)).sum();
    assert_eq!(sum, costs[0]);
    let text = run(&args).stdout;
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.starts_with("p2-a100: 4 node x 16 gpu; 64 devices; axes 4,16; "), "{text}");
}

#[test]
fn text_names_the_best_program() {
    let text =
        run(&["reduction", "--machine", "p2-a100:2", "--axes", "2,16", "--reduce", "1", "--algo", "ring"]).stdout;
    assert!(text.contains("(1, InsideGroup, ReduceScatter)  4 groups of 8: {0,1,2,3,4,5,6,7},"), "{text}");
    assert!(text.ends_with("50 programs on 2 matrices\n"), "{text}");
    let text = run(&["reduction", "--machine", "[(gpu,8)]", "--axes", "1,8", "--reduce", "0"]).stdout;
    assert!(text.contains("nothing to reduce"), "{text}");
}

#[test]
fn a_plot_shows_every_matrix() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan.svg");
    let name = path.display().to_string();
    let outcome = run(&["reduction", "--machine", "p2-a100", "--axes", "4,16", "--reduce", "1", "--plot", &name]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let picture = std::fs::read_to_string(&path).expect("the picture");
    assert!(picture.contains("[[2,2],[2,8]]") && picture.matches("<circle").count() > 60);
    assert!(
        picture.contains("reduction over axis 1, ") && picture.contains("on each of 64 devices, p2-a100"),
        "a title"
    );
    assert!(picture.contains("axis 0: 4 ") && picture.contains(">best "), "words, and the best");
}

#[test]
fn what_does_not_fit_is_wrong_usage() {
    let base = ["reduction", "--axes", "4,16", "--reduce", "1", "--machine"];
    let refused = |args: &[&str]| {
        let outcome = run(args);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
        outcome.stderr
    };
    let error = refused(&[&base[..], &["[(node,4),(gpu)]"]].concat());
    assert!(error.contains("--machine: cluster, line 1, column 15: expected `,`, found `)]`"), "{error}");
    let error = refused(&[&base[..], &["p2-a100:2"]].concat());
    assert!(error.contains("axes: expected sizes that multiply to 32 devices, found [4, 16]"), "{error}");
    let error = refused(&[&base[..], &["p2-a100", "--matrix", "[[4,1],[4,4]]"]].concat());
    assert!(error.contains("--matrix: matrix, column 0: expected a product of 4, found 16"), "{error}");
    let error = refused(&[&base[..], &["p2-a100", "--matrix", "4x4"]].concat());
    assert!(error.contains("expected rows of numbers such as [[1,4],[4,4]]"), "{error}");
    let error = refused(&["placement", "--axes", "4,16", "--machine", "p2-a100", "--reduce", "0:2"]);
    assert!(error.contains("expected axes and a weight such as 0+2=0.25"), "{error}");
    let error = refused(&[&base[..], &["p2-a100", "--max-size", "0"]].concat());
    assert!(error.contains("expected a number of steps, at least 1"), "{error}");
    let missing = run(&[&base[..], &["no-such-file.toml"]].concat());
    assert_eq!(missing.code, 1);
}

#[test]
fn clusters_of_different_nodes_are_planned_over_blocks() {
    let text = run(&["reduction", "--machine", "[(node,2),(gpu,6+2)]", "--axes", "8", "--reduce", "0"]).stdout;
    assert!(
        text.starts_with("[(node,2),(gpu,6+2)]: 4 x 2 (counts differ: equal blocks within the entities); 8 "),
        "{text}"
    );
    assert!(text.ends_with("47 programs on 1 matrix\n"), "{text}");
}

#[test]
fn a_cluster_may_come_from_a_file() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let level = |name: &str, count: u32, speed: u32| {
        format!("[[level]]\nname = \"{name}\"\ncount = {count}\ngbytes_per_s = {speed}\n")
    };
    let file = folder.join("two-nodes.toml");
    std::fs::write(&file, format!("name = \"two\"\n{}{}", level("node", 2, 1), level("gpu", 4, 100))).expect("a file");
    let name = file.display().to_string();
    let plan = run(&["reduction", "--machine", &name, "--axes", "8", "--reduce", "0"]);
    assert!(plan.stdout.starts_with("two: 2 node x 4 gpu; 8 devices"), "{}", plan.stdout);
    let sample = hlo_tests::root().join("passes/decompose-collectives/two-levels.hlo").display().to_string();
    let with =
        |cluster: &str| cli::run(&["-q", "--machine", cluster, "--pass", "decompose-collectives{algo=ring}", &sample]);
    let (by_file, inline) = (with(&name), with("[(node,2,1,0),(gpu,4,100,0)]"));
    assert_eq!((by_file.code, by_file.stderr.as_str()), (0, ""));
    assert!(by_file.stdout.contains("reduce-scatter(") && by_file.stdout == inline.stdout, "{}", by_file.stdout);
    // A missing file and a wrong one are errors of the file.
    assert_eq!(with("no-such.toml").code, 1);
    std::fs::write(&file, "name = \"two\"\n[[level]]\nname = 3\n").expect("a file");
    let wrong = with(&name);
    assert!(wrong.code == 1 && wrong.stderr.contains("two-nodes.toml`: cluster, line 3"), "{}", wrong.stderr);
}

#[test]
fn the_commands_of_the_readme_work() {
    let readme = hlo_tests::root().join("../crates/hlo-cluster/README.md");
    let readme = std::fs::read_to_string(readme).expect("the crate's README");
    let block = readme.split("<!-- plan -->").nth(1).and_then(|rest| rest.split("```").nth(1)).expect("a block");
    let commands: Vec<&str> = block.lines().filter(|line| line.starts_with("hlo-opt plan ")).collect();
    assert_eq!(commands.len(), 2);
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().skip(2).map(|word| word.trim_matches('\'')).collect();
        let outcome = run(&words);
        assert_eq!(outcome.code, 0, "{command}: {}", outcome.stderr);
        assert!(command.contains("placement") || outcome.stdout.contains("47 programs"), "{}", outcome.stdout);
    }
}

const WORKED: [&str; 7] = [
    "reshard",
    "--shape",
    "f32[16,16,16]",
    "--from",
    "{devices=[2,1,4]<=[4,2]T(1,0)}",
    "--to",
    "{devices=[1,8,1]<=[8]}",
];

#[test]
fn a_reshard_is_what_its_readme_shows() {
    let path = hlo_tests::root().join("../crates/hlo-spmd/README.md");
    let readme = std::fs::read_to_string(path).expect("the README");
    let shown = readme.split_once("```text\n").and_then(|(_, after)| after.split_once("```")).expect("a block").0;
    assert_eq!(run(&WORKED).stdout, shown);
    let words = WORKED.map(|word| if word.contains(['[', '{']) { format!("'{word}'") } else { word.to_string() });
    assert!(readme.contains(&format!("hlo-opt plan {}", words.join(" "))), "the README names the command");
}

#[test]
fn a_reshard_as_json_names_groups_and_reasons() {
    let plan = json(&[&WORKED[..], &["--emit", "json"]].concat());
    assert_eq!(
        (&plan["bound_bytes"], &plan["total"]["bytes"], &plan["gap_bytes"]),
        (&1792.into(), &1792.into(), &0.into())
    );
    let step = &plan["steps"][0];
    assert_eq!(step["op"], "all-to-all");
    assert_eq!(step["groups"], serde_json::json!([[0, 1, 2, 3, 4, 5, 6, 7]]));
    assert_eq!(step["tile"], serde_json::json!([16, 2, 16]));
    assert_eq!(plan["greedy"]["mindspore"]["bytes"], 2560);
    assert_eq!(plan["total"]["seconds"], Value::Null);
    let timed = json(&[&WORKED[..], &["--emit", "json", "--machine", "[(node,2),(gpu,4)]"]].concat());
    assert!(timed["total"]["seconds"].as_f64() > Some(0.0), "{timed}");
    let parts =
        timed["steps"].as_array().expect("steps").iter().map(|step| step["cost"]["seconds"].as_f64().unwrap_or(0.0));
    assert!((parts.sum::<f64>() / timed["total"]["seconds"].as_f64().unwrap_or(0.0) - 1.0).abs() < 1e-9);
}

#[test]
fn a_reshard_as_hlo_and_as_a_picture() {
    let text = run(&[&WORKED[..], &["--emit", "hlo"]].concat()).stdout;
    let module = hlo_text::parse_module(&text).unwrap_or_else(|errors| panic!("{errors:?}")).module;
    assert_eq!(module.n_devices(), 8);
    assert_eq!(text.matches(" all-to-all(").count(), 1, "{text}");
    let picture = run(&[&WORKED[..], &["--emit", "svg"]].concat()).stdout;
    assert!(picture.ends_with("</svg>\n") && !picture.contains("NaN"), "{picture}");
    // Before and after one step: a grey bar and a coloured one for each of 8 devices and 3 dims.
    assert_eq!(picture.matches("#e4e4e4").count(), 2 * 8 * 3);
}

#[test]
fn a_reshard_of_what_does_not_fit_is_wrong_usage() {
    let refused = |shape: &str, from: &str, to: &str, more: &[&str]| {
        let outcome = run(&[&["reshard", "--shape", shape, "--from", from, "--to", to], more].concat());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""), "{}", outcome.stderr);
        outcome.stderr
    };
    let rows = "{devices=[4,1]<=[4]}";
    let cases = [
        (refused("f32[4", rows, rows, &[]), "--shape: expected an array such as f32[16,16], found `f32[4`"),
        (refused("f32[8,8]", "{devices=[4,1]<=[4", rows, &[]), "--from: expected `,` or `]`"),
        (
            refused("f32[8,8]", rows, "{devices=[4]<=[4]}", &[]),
            "--to: sharding: expected one entry for each of 2 dims, found 1",
        ),
        (refused("f32[8,8]", rows, "{devices=[4,2]<=[8]}", &[]), "--to: sharding: expected 4 devices, found 8"),
        (
            refused("f32[8,8]", "{replicated}", "{replicated}", &[]),
            "expected a sharding that lists its devices, or --devices",
        ),
        (refused("f32[0,8]", rows, "{replicated}", &[]), "dim 0: expected a size of at least 1, found 0"),
        (
            refused("f32[8,8]", rows, "{replicated}", &["--machine", "[(gpu,2)]"]),
            "--machine: expected at least 4 devices",
        ),
    ];
    for (found, expected) in &cases {
        assert!(found.contains(expected), "expected {expected}, found {found}");
    }
    let nothing =
        run(&["reshard", "--shape", "f32[8,8]", "--from", "{replicated}", "--to", "{replicated}", "--devices", "4"]);
    assert!(nothing.stdout.contains("nothing to do"), "{}", nothing.stdout);
}
