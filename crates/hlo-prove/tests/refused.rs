//! Pairs that are not equal and were once proved; each stands at the edge of one rule:
//! `sm`, `tb`, `sc`, `un`, `rl` elements beyond the first of a sum, a table, a unit; `lp` a loop's leaf under a wrong guess; `st` rows
//! beyond a stack; `dup` a step taken twice; `cov` places covered twice; `bcast`, `cc`, `tl` layouts; `ch` what groups mean; `io` numbers of an iota that wrap around;
//! `pid`, `el`, `lpw`, `lpl` what called computations may not read: the device's number, constants that are left out, the order of memory; `lo`,
//! `da` operands of dots that are rounded or wrap; `gp` what pads a tile, times zero; `gl` tiles in another order than the module says
//! itself, and numbers of devices in a global program; `cv` numbers that a conversion rounds; `cc1` attributes of custom calls; `sat` summands that count more
//! than 2^128 times (`sat3` may be equal, and nobody can tell); `mr` rows beyond a clamp's bounds; the others factors that are zero or infinite.

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

/// The pairs of a folder, with their names.
fn pairs(folder: &str) -> Vec<(String, Module, Module)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let entries = std::fs::read_dir(&folder).expect("the folder");
    let files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let name = |file: &Path| file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let befores = files.iter().filter(|file| name(file).ends_with(".before.hlo"));
    befores
        .map(|before| {
            let after = folder.join(name(before).replace(".before.hlo", ".after.hlo"));
            (name(before), read(before), read(&after))
        })
        .collect()
}

#[test]
fn pairs_that_are_not_equal_are_not_proved() {
    let pairs = pairs("refused");
    let proof = |before, after| prove(before, after, &Options::default()).expect("a pair");
    let proved = pairs.iter().filter(|(_, before, after)| proof(before, after).is_proved());
    let proved: Vec<&str> = proved.map(|(name, ..)| name.as_str()).collect();
    assert_eq!(proved, Vec::<&str>::new());
    assert_eq!(pairs.len(), 72);
}

/// Pairs at the ends of 64-bit numbers, or of many windows, which once gave no answer.
#[test]
fn pairs_with_large_numbers_are_answered() {
    let pairs = pairs("answered");
    for (_, before, after) in &pairs {
        assert!(prove(before, after, &Options::default()).is_ok());
    }
    assert_eq!(pairs.len(), 4);
}

/// Who feeds tiles as the global program says would get the halves in the other order.
#[test]
fn inputs_that_the_second_module_takes_in_another_order_are_no_pair() {
    let parse = |text: &str| match hlo_text::parse_module(text) {
        Ok(parsed) => parsed.module,
        Err(diagnostics) => panic!("{}", hlo_text::render(&diagnostics, "m", text, false)),
    };
    let global = parse(
        "HloModule m, num_partitions=2\n\nENTRY main {\n  x = f32[4] parameter(0), sharding={devices=[2]<=[2]}\n  \
         ROOT r = f32[4] copy(x), sharding={replicated}\n}\n",
    );
    let local = |order: &str, group: &str| {
        parse(&format!(
            "HloModule m, num_partitions=2\n\nENTRY main {{\n  x = f32[2] parameter(0), sharding={{devices=[2]{order}}}\n  \
             ROOT g = f32[4] all-gather(x), dimensions={{0}}, replica_groups={{{{{group}}}}}, channel_id=1, \
             use_global_device_ids=true\n}}\n"
        ))
    };
    let proof = |local: &Module| prove(&global, local, &Options::default());
    assert!(proof(&local("0,1", "0,1")).expect("a pair").is_proved());
    let error = proof(&local("1,0", "1,0")).map(|_| ()).expect_err("no pair").to_string();
    assert_eq!(error, "input 0: expected it cut as the global program says, found {devices=[2]1,0}");
}
