//! `hlo-opt plan rules`: rules that hold are accepted, others are refuted by sizes and inputs.

use crate::tool;
use hlo_tests::root;

const RIGHT: &str = "rule dot-of-concat reassoc
  x1: [m, k1]
  x2: [m, k2]
  w1: [k1, n]
  w2: [k2, n]
  left  = dot(concat(x1, x2, dim=1), concat(w1, w2, dim=0), contract=[1:0])
  right = add(dot(x1, w1, contract=[1:0]), dot(x2, w2, contract=[1:0]))
";

/// The exit code of `hlo-opt plan rules --check` for a file of this text, and what it prints to stdout and stderr.
fn check(name: &str, text: &str) -> (u8, String, String) {
    let folder = root().join("../target/tmp/plan-rules");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(name);
    std::fs::write(&file, text).expect("a file");
    let file = file.display().to_string();
    tool::run(["plan", "rules", "--check", &file])
}

#[test]
fn a_rule_that_holds_is_accepted_and_found_in_the_set() {
    let (code, stdout, stderr) = check("right.txt", RIGHT);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("dot-of-concat: accepted: reassoc, proved for all sizes"), "{stdout}");
    assert!(stdout.contains("in the set: dot-add-"), "{stdout}");
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn a_rule_that_does_not_hold_is_refuted_by_sizes_and_inputs() {
    let wrong = RIGHT.replace("w1, w2, dim=0", "w1, w1, dim=0").replace("k2", "k1");
    let (code, stdout, stderr) = check("wrong.txt", &wrong);
    assert_eq!(code, 4, "{stderr}");
    assert!(stdout.contains("rejected: with m = 2, k1 = 3, n = 2") && stdout.contains("the right side"), "{stdout}");
}

#[test]
fn an_unknown_op_is_an_error_at_its_place() {
    let (code, stdout, stderr) = check("unknown.txt", &RIGHT.replace("add(", "ad("));
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("unknown.txt:7:11: error: expected an op, found `ad`"), "{stderr}");
}

/// It holds of the exponential function and of relu, which proofs do not know: not proved is not wrong.
#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn what_holds_of_a_function_alone_is_not_proved_but_not_called_wrong() {
    let of_exp = "rule exp-of-sum\n  a: [m]\n  b: [m]\n  left = exp(add(a, b))\n  right = multiply(exp(a), exp(b))\n";
    let of_relu = "rule relu-twice\n  a: [m]\n  left = relu(relu(a))\n  right = relu(a)\n";
    let (code, stdout, stderr) = check("functions.txt", &format!("{of_exp}\n{of_relu}"));
    assert_eq!(code, 5, "{stdout}{stderr}");
    assert_eq!(stdout.matches("not proved: ").count(), 2, "{stdout}");
    assert!(!stdout.contains("rejected"), "{stdout}");
}

/// An op of a collection: its type, inputs as pairs of numbers, and parameters.
fn operator(name: &str, inputs: &[(i64, usize)], parameters: &[(&str, i64)]) -> String {
    let input = |&(op, result): &(i64, usize)| format!(r#"{{"opId": {op}, "tsId": {result}}}"#);
    let parameter = |&(key, value): &(&str, i64)| format!(r#"{{"key": "{key}", "value": {value}}}"#);
    let inputs: Vec<String> = inputs.iter().map(input).collect();
    let parameters: Vec<String> = parameters.iter().map(parameter).collect();
    format!(r#"{{"type": "{name}", "input": [{}], "para": [{}]}}"#, inputs.join(", "), parameters.join(", "))
}

/// A rule of a collection whose last ops have its one result.
fn published(name: &str, source: &[String], target: &[String]) -> String {
    let (from, to) = (source.len() - 1, target.len() - 1);
    format!(
        r#"{{"name": "{name}", "srcOp": [{}], "dstOp": [{}],
            "mappedOutput": [{{"srcOpId": {from}, "srcTsId": 0, "dstOpId": {to}, "dstTsId": 0}}]}}"#,
        source.join(", "),
        target.join(", ")
    )
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn rules_of_a_published_collection_are_counted_by_what_they_are() {
    let along = |dim| [("PM_PARALLEL_DIM", dim), ("PM_PARALLEL_DEGREE", 2)];
    let cut = |of, dim| operator("OP_PARTITION", &[of], &along(dim));
    let copies = |of, dim| operator("OP_REPLICATE", &[of], &along(dim));
    let sum = |of, dim| operator("OP_REDUCE", &[of], &along(dim));
    let linear = |x, w, relu| operator("OP_LINEAR", &[x, w], &[("PM_ACTI", relu)]);
    let relu = |of| operator("OP_RELU", &[of], &[]);
    let joined = |a, b, dim| operator("OP_CONCAT", &[a, b], &[("PM_AXIS", dim)]);
    let (x, y, v, w) = ((-1, 0), (-2, 0), (-3, 0), (-4, 0));
    let rules = [
        published("cut-later", &[cut(x, 1), relu((0, 0))], &[relu(x), cut((0, 0), 1)]),
        published("sum-of-copies", &[copies(x, 0), sum((0, 0), 0)], &[copies(x, 2), sum((0, 0), 2)]),
        published("copies-as-they-are", &[copies(x, 0), sum((0, 0), 0)], &[cut(x, 0)]),
        published("fused-relu", &[linear(x, w, 2)], &[linear(x, w, 0), relu((0, 0))]),
        published(
            "sum-of-products",
            &[linear(x, w, 0), linear(y, v, 0), operator("OP_EW_ADD", &[(0, 0), (1, 0)], &[])],
            &[joined(x, y, 2), joined(w, v, 2), linear((0, 0), (1, 0), 0)],
        ),
        published("relu-of-sum", &[sum(x, 1), relu((0, 0))], &[relu(x), sum((0, 0), 1)]),
        published("too-wide", &[linear(x, w, 0)], &[joined(x, y, 0), linear((0, 0), w, 0)]),
        published("unknown", &[operator("OP_TOPK", &[x], &[])], &[relu(x)]),
    ];
    let (code, stdout, stderr) = check("collection.json", &format!(r#"{{"rule": [{}]}}"#, rules.join(", ")));
    assert_eq!(code, 4, "{stderr}");
    for said in [
        "copies-as-they-are: rejected: with ",
        "relu-of-sum: rejected: with ",
        "too-wide: rejected: OP_LINEAR: no sizes of the inputs suit both sides",
        "unknown: not read: expected an op that is known, found OP_TOPK",
        "| add, concat, linear | 1 | 1 | 0 | 1 | 0 | 0 |",
        "| linear, relu | 1 | 1 | 1 | 0 | 0 | 0 |",
        "| parallel ops alone | 2 | 1 | 0 | 1 | 1 | 0 |",
        "| relu | 2 | 1 | 1 | 0 | 1 | 0 |",
        "| all | 8 | 4 | 2 | 2 | 3 | 1 |",
    ] {
        assert!(stdout.contains(said), "{said}: {stdout}");
    }
    for named in ["cut-later", "sum-of-copies", "fused-relu", "sum-of-products"] {
        assert!(!stdout.contains(named), "{named} is right, and derived: {stdout}");
    }
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn rules_that_are_too_large_or_say_nothing_are_not_read() {
    let copies = |of| operator("OP_REPLICATE", &[of], &[("PM_PARALLEL_DIM", 0), ("PM_PARALLEL_DEGREE", 64)]);
    let large = published("large", &[copies((-1, 0)), copies((0, 0))], &[copies((-1, 0)), copies((0, 0))]);
    let inputs: Vec<(i64, usize)> = (1..=60).map(|n| (-n, 0)).collect();
    let wide = operator("OP_CONCAT", &inputs, &[("PM_AXIS", 0)]);
    let wide = std::slice::from_ref(&wide);
    let wide = published("wide", wide, wide);
    let silent = r#"{"name": "silent", "srcOp": [], "dstOp": [], "mappedOutput": []}"#;
    let (code, stdout, stderr) = check("large.json", &format!(r#"{{"rule": [{large}, {wide}, {silent}]}}"#));
    assert_eq!(code, 5, "{stderr}");
    for said in [
        "large: not read: expected at most 16 ops a side",
        "wide: not read: expected at most 16 ops a side",
        "silent: not read: mappedOutput: expected operands that stand before it",
    ] {
        assert!(stdout.contains(said), "{said}: {stdout}");
    }
}

#[test]
fn what_is_no_collection_is_an_error_at_its_place() {
    let (code, stdout, stderr) = check("no-collection.json", "{\n  \"rules\": []\n}\n");
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("no-collection.json:3:1: error: expected a collection of rules"), "{stderr}");
    let (code, stdout, stderr) = check("no-rules.json", r#"{"rule": []}"#);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("no-rules.json:1:1: error: expected rules, found none"), "{stderr}");
}
