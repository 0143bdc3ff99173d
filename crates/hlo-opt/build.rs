//! Asks the linker for a smaller program, where it can make one: functions of equal code become one, and the addresses that the loader
//! adjusts take a bit each instead of 24 bytes. Rust's own linker on Linux does both; others say no to the flags, and are then not asked.
//! <https://lld.llvm.org/ELF/>, options `--icf=all` and `-z pack-relative-relocs`.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const FLAGS: [&str; 2] = ["-Wl,--icf=all", "-Wl,-z,pack-relative-relocs"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let same_machine = variable("HOST") == variable("TARGET");
    let for_users = variable("PROFILE") == "release" && variable("DEBUG") == "false";
    if variable("CARGO_CFG_TARGET_OS") != "linux" || !same_machine || !for_users {
        return;
    }
    if small_program_runs(&variable("RUSTC"), Path::new(&variable("OUT_DIR"))) {
        for flag in FLAGS {
            println!("cargo::rustc-link-arg-bins={flag}");
        }
    }
}

/// Whether a program that is linked with the flags starts: the loader must know the packed addresses too.
fn small_program_runs(compiler: &str, folder: &Path) -> bool {
    let (source, program) = (folder.join("small.rs"), folder.join("small"));
    if fs::write(&source, "fn main() { println!(\"{}\", std::env::args().count()); }\n").is_err() {
        return false;
    }
    let quiet = |command: &mut Command| {
        let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        ended.is_ok_and(|status| status.success())
    };
    let mut compile = Command::new(compiler);
    compile.arg(&source).arg("-o").arg(&program);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        compile.arg(format!("-Clinker={linker}"));
    }
    let theirs = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    compile.args(theirs.split('\x1f').filter(|flag| !flag.is_empty()));
    for flag in FLAGS {
        compile.arg(format!("-Clink-arg={flag}"));
    }
    quiet(&mut compile) && quiet(&mut Command::new(&program))
}
