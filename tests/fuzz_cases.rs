//! The cases that a fuzzer found worth keeping, through the checks of its targets.

use hlo_pass::STACK_BYTES;
use hlo_tests::fuzzing::{TARGETS, Target, kept_cases};
use std::fs;
use std::panic::catch_unwind;

fn defects(target: &Target) -> Vec<String> {
    let folder = kept_cases(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no cases in {}", folder.display());
    let defect = |bytes: &[u8]| match catch_unwind(|| (target.check)(bytes)) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some("a panic".to_string()),
    };
    let check = |file: &std::path::PathBuf| {
        let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        defect(&bytes).map(|defect| format!("{}: {defect}", file.display()))
    };
    files.iter().filter_map(check).collect()
}

#[test]
fn kept_cases_show_no_defect() {
    let run = || TARGETS.iter().flat_map(defects).collect::<Vec<_>>();
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).expect("a thread");
    let defects = thread.join().expect("the cases can be read");
    assert!(defects.is_empty(), "{}", defects.join("\n"));
}

#[test]
fn every_target_has_a_program() {
    for target in &TARGETS {
        let program = kept_cases("").join(format!("../fuzz_targets/{}.rs", target.name));
        let text = fs::read_to_string(&program).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        assert!(text.contains(&format!("run(\"{}\", bytes)", target.name)), "{}", program.display());
    }
}
