//! `cargo xtask gpu-check`: whether what we lower runs right on a card, and how fast, beside XLA on the same card.
//!
//! `xtask/gpu/check.py` does the work and needs no Cargo, so that a card's machine needs the tool and the source tree alone. Here the tool is built,
//! and the programs that are timed are lowered.

use std::path::PathBuf;
use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, wheel, workspace};

/// Runs the check: false if a part failed or is left.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut tool, mut on_card, mut out) = (None, PathBuf::from("python3"), workspace::target_dir().join("gpu-check"));
    let mut rest: Vec<String> = Vec::new();
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--hlo-opt" => tool = Some(PathBuf::from(arguments.value(&flag)?)),
            Word::Flag(flag) if flag == "--python" => on_card = arguments.value(&flag)?.into(),
            Word::Flag(flag) if flag == "--out" => out = arguments.value(&flag)?.into(),
            Word::Flag(flag) if flag == "--seconds" => {
                rest.extend([flag.clone(), arguments.number(&flag)?.to_string()])
            }
            Word::Flag(word) => return Err(unknown("gpu-check", &word)),
            Word::Plain(part) => rest.push(part),
        }
    }
    let tool = tool.map_or_else(|| workspace::build_tool_as("release"), Ok)?;
    let (scripts, programs) = (workspace::root().join("xtask/gpu"), out.join("programs"));
    if !programs.join("programs.json").exists() {
        println!("lowering the programs that are timed");
        let mut make = Command::new(python::interpreter()?);
        make.arg(scripts.join("make_programs.py")).arg("--out").arg(&programs);
        if !wheel::succeeds(&mut make)? {
            return Err("the programs that are timed could not be lowered".into());
        }
    }
    let mut check = Command::new(on_card);
    check.arg(scripts.join("check.py")).arg("--tool").arg(tool).arg("--out").arg(&out);
    check.arg("--programs").arg(&programs).args(rest);
    wheel::succeeds(&mut check)
}
