//! `cargo xtask sanitize`: the tests of the crates with `unsafe` code, built by nightly Rust with the address sanitizer.
//!
//! What they do not reach is in the chore's last lines: the code that calls CUDA, where there is no card.

use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;

/// The crates with `unsafe` code that tests reach without Python: see `cargo xtask tidy` for the places.
const CRATES: [&str; 3] = ["hlo-eval", "hlo-run", "hlo-pjrt"];

/// Tests that load what is built with another sanitizer's runtime, or without its program's.
const SKIPPED: [&str; 2] = ["an_overrun_of_one_element_is_seen", "the_wrapper_does_not_wrap_itself"];

/// Whose `unsafe` code no test reaches here.
const NOT_REACHED: &str = "\
not reached: crates/hlo-run/src/cuda (every call of the driver, cuBLAS and NCCL), which needs a card;
             crates/hlo-jax/src/hook.rs (a pointer of Python's), which `cargo xtask gpu-compile-check` runs without a sanitizer";

/// Runs the chore: false if a test fails or the sanitizer finds something.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut arguments = Arguments::new(words);
    if let Some(Word::Flag(word) | Word::Plain(word)) = arguments.next_word() {
        return Err(unknown("sanitize", &word));
    }
    let target = host_triple()?;
    let mut is_clean = true;
    for name in CRATES {
        let status = Command::new("cargo")
            .args(["+nightly", "test", "--no-fail-fast", "--package", name, "--target", &target, "--target-dir"])
            .arg(workspace::target_dir().join("sanitize"))
            .arg("--")
            .args(SKIPPED.iter().flat_map(|test| ["--skip", test]))
            // This chore is run by another cargo, whose choices are not those of the nightly one.
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes")
            // Kernels are compiled while tests run, and loaded: what they leak at the end of a process is not looked for.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .current_dir(workspace::root())
            .status()
            .map_err(|e| format!("cargo +nightly test: {e}"))?;
        println!("{name}: {}", if status.success() { "no finding" } else { "failed" });
        is_clean &= status.success();
    }
    println!("skipped: {}\n{NOT_REACHED}", SKIPPED.join(", "));
    Ok(is_clean)
}

/// The platform of this machine. With a target named, build scripts and macros are built without the sanitizer.
fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc -vV: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let triple = text.lines().find_map(|line| line.strip_prefix("host: ")).map(String::from);
    triple.ok_or_else(|| "rustc -vV: expected a line `host: …`".to_string())
}
