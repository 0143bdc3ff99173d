//! Pairs that are not equal and were once proved; each stands at the edge of one rule:
//! `sm`, `tb`, `sc`, `un`, `rl` elements beyond the first of a sum, a table, a unit; `lp` a loop's leaf under a wrong guess; `st` rows
//! beyond a stack; `dup` a step taken twice; `cov` places covered twice; `bcast`, `cc` layouts; `ch` what groups mean; `io` numbers of an iota that wrap around;
//! `pid`, `el`, `lpw`, `lpl` computations that ask for the device, have constants left out, or read elements in another order of memory; `lo`, `da` dots that
//! round their operands; `gp` what pads a tile, times zero; `gl` tiles in another order than the module says
//! itself, and numbers of devices in a global program; `cv` a conversion that rounds twice; `sat` summands that count more than 2^128 times (`sat3` may be equal, and nobody can tell); `mr` rows beyond a clamp's bounds; the others
//! factors that are zero or infinite.

use hlo_ir::Module;
use hlo_prove::{Options, prove};
use std::path::{Path, PathBuf};

fn read(file: &Path) -> Module {
    let text = std::fs::read_to_string(file).expect("a file");
    let parsed = hlo_text::parse_module(&text);
    parsed
        .unwrap_or_else(|diags| panic!("{}", hlo_text::render(&diags, &file.display().to_string(), &text, false)))
        .module
}

#[test]
fn pairs_that_are_not_equal_are_not_proved() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused");
    let entries = std::fs::read_dir(&folder).expect("the folder");
    let files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let name = |file: &Path| file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut n_pairs = 0;
    for before in files.iter().filter(|file| name(file).ends_with(".before.hlo")) {
        let after = folder.join(name(before).replace(".before.hlo", ".after.hlo"));
        let proof = prove(&read(before), &read(&after), &Options::default()).expect("a pair");
        assert!(!proof.is_proved(), "{} is proved", name(before));
        n_pairs += 1;
    }
    assert_eq!(n_pairs, 64);
}
