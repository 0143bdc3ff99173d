//! A Transformer's training step under the layouts of the Mesh-TensorFlow paper (§9): how many all-reduces each needs, and that the program
//! of each device gives what the global program gives.

use crate::tool;
use hlo_tests::root;
use std::path::{Path, PathBuf};

/// The exit code of `hlo-opt`, and what it prints.
fn run(args: &[&str]) -> (u8, String) {
    let (code, stdout, stderr) = tool::run(args);
    (code, stdout + &stderr)
}

fn sample(name: &str) -> String {
    root().join("layouts").join(name).display().to_string()
}

/// The program of each device, by the paper's rule for einsums, held against the global program.
fn laid_out(name: &str, mesh: &str, layout: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mesh_layouts");
    std::fs::create_dir_all(&folder).expect("a folder");
    let local: PathBuf = folder.join(format!("{name}.hlo"));
    let (program, local_text) = (sample("transformer.hlo"), local.display().to_string());
    let pipeline = format!(
        "assign-mesh-layout{{names='{}',mesh='{mesh}',layout='{layout}'}},inline-calls,spmd-partition{{compute=as-cut}},cse,dce",
        sample("transformer.names")
    );
    let (code, said) = run(&[&program, "--pass", &pipeline, "-o", &local_text]);
    assert_eq!(code, 0, "{name}: {said}");
    let (code, said) = run(&["compare", &program, &local_text, "--draw", "n0.3", "--trials", "1"]);
    assert_eq!(code, 0, "{name}: {said}");
    std::fs::read_to_string(&local).expect("the program of each device")
}

/// The lines of the program's all-reduces. There is no other collective.
fn all_reduces(text: &str) -> Vec<&str> {
    for other in [" all-gather(", " all-to-all(", " reduce-scatter(", " collective-permute("] {
        assert!(!text.contains(other), "expected all-reduces alone, found{other}");
    }
    text.lines().filter(|line| line.contains(" all-reduce(")).collect()
}

/// Over the groups of an axis, as the line says them.
fn over<'t>(lines: &[&'t str], groups: &str) -> Vec<&'t str> {
    lines.iter().copied().filter(|line| line.contains(groups)).collect()
}

/// The batch is cut: each of the 37 weights has a gradient that is summed, and so is the loss.
#[test]
fn data_parallel() {
    let text = laid_out("data", "all:8", "batch:all");
    assert_eq!(all_reduces(&text).len(), 38);
}

/// What is summed if vocabulary, hidden units and heads are cut along one axis, in values of a device: in each block the results of two products
/// that reduce heads and hidden units, and backwards the gradients of the inputs of four (up, queries, keys, values); around them the
/// embedded tokens and the gradient of the last block's result, [batch, sequence, model] as well; the softmax's maximum, its sum, the
/// target's logit, and the sum in the softmax's gradient, [batch, sequence].
const N_OF_MODEL: usize = 2 * (2 + 4) + 2;
const N_OF_SOFTMAX: usize = 4;

#[test]
fn model_parallel() {
    let text = laid_out("model", "all:8", "vocab:all;d_ff:all;heads:all");
    let lines = all_reduces(&text);
    assert_eq!(lines.len(), N_OF_MODEL + N_OF_SOFTMAX);
    assert_eq!(lines.iter().filter(|line| line.contains("f32[8,12,32]")).count(), N_OF_MODEL);
    let maximum = |line: &&&str| is_maximum(&text, line);
    assert_eq!(lines.iter().filter(maximum).count(), 1, "the softmax's maximum");
}

/// Whether the reduction of a collective is a maximum.
fn is_maximum(text: &str, line: &str) -> bool {
    let name = line.split("to_apply=").nth(1).and_then(|rest| rest.split([',', ' ']).next()).unwrap_or_default();
    let body = text.split(&format!("\n{name} ")).nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
    body.contains(" maximum(")
}

#[test]
fn data_and_model_parallel() {
    let text = laid_out("both", "rows:2,cols:4", "batch:rows;vocab:cols;d_ff:cols;heads:cols");
    let lines = all_reduces(&text);
    let (rows, cols) = (over(&lines, "{{0,4},{1,5},{2,6},{3,7}}"), over(&lines, "{{0,1,2,3},{4,5,6,7}}"));
    // Each row of devices has a tile of the batch, each column a tile of the model.
    assert_eq!((rows.len(), cols.len()), (38, N_OF_MODEL + N_OF_SOFTMAX));
    assert_eq!(lines.len(), rows.len() + cols.len());
    assert_eq!(cols.iter().filter(|line| line.contains("f32[4,12,32]")).count(), N_OF_MODEL);
}

#[test]
fn dims_of_the_transformer_are_those_of_the_paper() {
    let (program, names) = (sample("transformer.hlo"), sample("transformer.names"));
    let (code, said) = run(&["analyze", "dims", &program, "--names", &names, "--format", "json"]);
    assert_eq!(code, 0, "{said}");
    let dims: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut given: Vec<(&str, i64)> = dims
        .iter()
        .filter(|dim| dim["is_given"] == true)
        .filter_map(|dim| Some((dim["name"].as_str()?, dim["size"].as_i64()?)))
        .collect();
    given.sort_unstable();
    let expected = [("batch", 8), ("d_ff", 128), ("d_model", 32), ("heads", 8), ("sequence", 12), ("vocab", 64)];
    assert_eq!(given, expected);
    // Queries meet keys, so scores have the sequence twice.
    let sequence = dims.iter().find(|dim| dim["name"] == "sequence").expect("the sequence");
    assert!(sequence["n_values_twice"].as_i64() > Some(0));
    let (code, said) = run(&["analyze", "dims", &program, "--names", "a = %nothing:0"]);
    assert_eq!(code, 1);
    assert!(said.contains("names, line 1: `a` at %nothing:0: expected an instruction, found no %nothing"), "{said}");
}
