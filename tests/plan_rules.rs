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
fn what_holds_of_a_function_alone_is_not_proved_but_not_called_wrong() {
    let of_exp = "rule exp-of-sum\n  a: [m]\n  b: [m]\n  left = exp(add(a, b))\n  right = multiply(exp(a), exp(b))\n";
    let of_relu = "rule relu-twice\n  a: [m]\n  left = relu(relu(a))\n  right = relu(a)\n";
    for (name, text) in [("exp.txt", of_exp), ("relu.txt", of_relu)] {
        let (code, stdout, stderr) = check(name, text);
        assert_eq!(code, 5, "{stdout}{stderr}");
        assert!(stdout.contains("not proved: ") && !stdout.contains("rejected"), "{stdout}");
    }
}
