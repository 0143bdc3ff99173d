//! Runs a target of the fuzzer on files, with the compiler of every day: `replay TARGET FILE…`.

use hlo_pass::STACK_BYTES;

fn main() {
    let mut words = std::env::args().skip(1);
    let target = words.next().unwrap_or_default();
    let files: Vec<String> = words.collect();
    assert!(hlo_tests::fuzzing::target(&target).is_some(), "expected a target, found `{target}`");
    let replay = move || {
        for file in files {
            let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
            eprintln!("{file}: {} bytes", bytes.len());
            hlo_tests::fuzzing::run(&target, &bytes);
        }
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(replay);
    let outcome = thread.map(std::thread::JoinHandle::join);
    if !matches!(outcome, Ok(Ok(()))) {
        std::process::exit(1);
    }
}
