//! Distributing matrix updates: which collectives are left, and mutants of the result are caught.

use crate::equivalence::check;
use crate::weight_update::{NEAR, run};
use hlo_analysis::annotations::ParamFacts;
use hlo_ir::{InstId, Module, Opcode};
use hlo_tests::samples;

/// A sample of the pass and what the pass makes of it.
fn distributed(name: &str) -> (Module, Module) {
    let samples = samples("passes/distribute-matrix-updates");
    let sample = samples.iter().find(|sample| sample.name() == name).unwrap_or_else(|| panic!("{name}: no sample"));
    let before = hlo_text::parse_module(&sample.text).unwrap_or_else(|e| panic!("{name}: {e:?}")).module;
    let mut after = before.clone();
    run("distribute-matrix-updates{profit=always}", &mut after, &ParamFacts::default());
    (before, after)
}

fn find(module: &Module, opcode: Opcode) -> Vec<InstId> {
    let entry = module.entry().expect("an entry");
    module.comp(entry).insts.iter().copied().filter(|&inst| module.inst(inst).opcode == opcode).collect()
}

#[test]
fn shards_along_any_dims_are_exchanged_without_gathers() {
    // All-gathers before and after, all-to-alls, and selects: one for each exchange and cut dim after the first.
    for (name, expected) in [
        ("cut-along-rows-and-columns", [5, 0, 3, 3]),
        ("cut-along-three-dims", [3, 0, 2, 4]),
        ("one-whole", [2, 2, 1, 1]),
        ("uneven-shards", [4, 0, 2, 2]),
        ("padded-with-ones", [2, 1, 1, 0]),
    ] {
        let (before, after) = distributed(name);
        let count = |module: &Module, opcode: Opcode| find(module, opcode).len();
        let found = [
            count(&before, Opcode::AllGather),
            count(&after, Opcode::AllGather),
            count(&after, Opcode::AllToAll),
            count(&after, Opcode::Select),
        ];
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_shard_read_along_the_wrong_dim_is_caught() {
    for name in ["cut-along-rows-and-columns", "cut-along-three-dims", "one-whole", "uneven-shards"] {
        let (before, after) = distributed(name);
        check(&before, &after, "", NEAR).unwrap_or_else(|e| panic!("{name}: {e}"));
        for select in find(&after, Opcode::Select) {
            let mut mutant = after.clone();
            mutant.inst_mut(select).operands.swap(1, 2);
            let name_of_select = after.inst_name(select);
            assert!(check(&before, &mutant, "", NEAR).is_err(), "{name}: `{name_of_select}` may choose the other form");
        }
    }
}
