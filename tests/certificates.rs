//! The checker of certificates accepts what follows and nothing else.

use crate::sharded_loops::{read, sharded};
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_prove::{Options, certify};
use hlo_tests::certificate::{Checked, check};

const SEED: u64 = 11;
const WORK: usize = 10_000_000;

fn certificate(before: &Module, after: &Module) -> String {
    let (proof, certificate) = certify(before, &[after], &Options::default()).expect("a proof");
    assert!(proof.is_proved());
    certificate.to_string()
}

fn checked(before: &Module, after: &Module, certificate: &str) -> Checked {
    check(vec![before, after], certificate, SEED, WORK).expect("a certificate")
}

/// A module with one piece of its text exchanged for another.
fn edited(module: &Module, from: &str, to: &str) -> Module {
    let text = print_module(module, &PrintOptions::default());
    assert!(text.contains(from), "expected `{from}` in the module");
    hlo_text::parse_module(&text.replacen(from, to, 1)).expect("a module").module
}

#[test]
fn what_is_proved_follows() {
    for name in ["mlp_adam_6", "mlp_odd_adam", "mlp_adam_bf16", "scan_momentum", "mlp_adam_fori", "mlp_adam_accum"] {
        let before = read(&format!("programs/{name}.hlo"));
        let after = sharded(&before);
        let found = checked(&before, &after, &certificate(&before, &after));
        assert_eq!((found.failed.len(), found.dropped.len()), (0, 0), "{name}: {:?} {:?}", found.failed, found.dropped);
        assert!(found.held.len() >= 3 && found.n_held > found.held.len(), "{name}");
    }
}

/// Changes of a module that was sharded, none of which its certificate may cover.
const EDITS: &[(&str, &str)] = &[
    ("constant(0.9)", "constant(0.8)"),
    (" sqrt(", " rsqrt("),
    (" subtract(", " add("),
    ("direction=GT", "direction=LT"),
    ("{{0,1,2,3,4,5}}", "{{0,1,2},{3,4,5}}"),
    ("dynamic-slice(%param.4.padded, ", "dynamic-slice(%param.padded, "),
    ("reduce-scatter(%reduce_sum.97.padded)", "reduce-scatter(%reduce_sum.95.padded)"),
];

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn what_is_changed_does_not_follow() {
    let before = read("programs/mlp_adam_6.hlo");
    let after = sharded(&before);
    let text = certificate(&before, &after);
    for (from, to) in EDITS {
        let found = checked(&before, &edited(&after, from, to), &text);
        assert!(!found.failed.is_empty() && !found.dropped.is_empty(), "{from} -> {to}");
    }
}

#[test]
fn a_loop_that_runs_once_more_does_not_follow() {
    let before = read("programs/mlp_adam_fori.hlo");
    let after = sharded(&before);
    // The condition's constant.
    let (from, to) = ("137.clone = s32[] constant(20)", "137.clone = s32[] constant(21)");
    let found = checked(&before, &edited(&after, from, to), &certificate(&before, &after));
    assert!(!found.failed.is_empty());
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn a_wrong_equation_is_dropped_and_an_output_that_is_claimed_in_vain_fails() {
    let before = read("programs/mlp_adam_6.hlo");
    let after = sharded(&before);
    let text = certificate(&before, &after);
    // Without equations the outputs are computed as far as that goes: nothing is held to be equal because a text says so.
    let bare: String = text.lines().filter(|line| !line.starts_with("cut ")).map(|line| format!("{line}\n")).collect();
    let wrong = edited(&after, "constant(0.9)", "constant(0.8)");
    assert!(!checked(&before, &wrong, &bare).failed.is_empty());
    let first = text.lines().find(|line| line.starts_with("cut ")).expect("an equation");
    let (site, rest) = first.split_once(" = ").expect("two sides");
    let mut words: Vec<String> = rest.split(' ').map(str::to_string).collect();
    words[2] = "1".to_string();
    let moved = text.replacen(first, &format!("{site} = {}", words.join(" ")), 1);
    assert_ne!(moved, text);
    assert_eq!(checked(&before, &after, &moved).dropped.len(), 1);
}

#[test]
fn pairs_that_are_not_equal_do_not_follow() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/hlo-prove/tests/refused");
    let read = |file: &std::path::Path| {
        let text = std::fs::read_to_string(file).expect("a file");
        hlo_text::parse_module(&text).expect("a module").module
    };
    let files = std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut n_pairs = 0;
    let mut following = Vec::new();
    for file in files {
        let name = file.to_string_lossy().into_owned();
        if !name.ends_with(".before.hlo") {
            continue;
        }
        let (before, after) = (read(&file), read(std::path::Path::new(&name.replace(".before.", ".after."))));
        let found = check(vec![&before, &after], "hlo-prove certificate 1\noutput 0\n", SEED, WORK);
        n_pairs += 1;
        // Of global programs there are none.
        if found.is_ok_and(|found| found.failed.is_empty()) {
            following.push(name);
        }
    }
    // An infinite factor is a number like another one in a field.
    following.retain(|name| !name.ends_with("/mulinf.before.hlo"));
    assert_eq!(following, Vec::<String>::new());
    assert!(n_pairs >= 71);
}

#[test]
fn what_is_no_certificate_is_an_error_with_its_line() {
    let module = read("programs/mlp_adam_6.hlo");
    for (text, words) in [
        ("", "line 1: expected hlo-prove certificate 1"),
        ("hlo-prove certificate 1\ncut 0 * 0 = 0 * 0", "line 2: expected a site, equal, cut or output"),
        ("hlo-prove certificate 1\nsite 0 0 - nothing 0", "no module has %nothing"),
    ] {
        let error = check(vec![&module, &module], text, SEED, WORK).expect_err("an error");
        assert!(error.starts_with(words), "{error}");
    }
    let other = read("programs/mlp_adam.hlo");
    let error = check(vec![&module, &other], "hlo-prove certificate 1\n", SEED, WORK).expect_err("an error");
    assert!(error.starts_with("expected modules on 6 devices"), "{error}");
}
