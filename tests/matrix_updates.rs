//! Distributing matrix updates: which collectives are left, and mutants of the result are caught.

use crate::equivalence::check;
use crate::weight_update::{NEAR, run};
use hlo_analysis::annotations::ParamFacts;
use hlo_ir::{InstId, Module, Opcode};
use hlo_tests::samples;
use std::fmt::Write;

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

/// A module with two updates of each of these shapes, `[rows, 512]`, on eight devices.
fn module_of_kinds(rows: impl Iterator<Item = usize>) -> Module {
    let (mut params, mut body, mut outputs, mut shapes) = (Vec::new(), String::new(), Vec::new(), Vec::new());
    for (i, a) in rows.flat_map(|a| [a, a]).enumerate() {
        let shape = format!("f32[{a},512]");
        params.push(format!("g.{i}: {shape}"));
        let _ = write!(
            body,
            "  %g.{i} = {shape} parameter({i})\n  %s.{i} = {shape} all-reduce(%g.{i}), channel_id={}, \
             replica_groups={{{{0,1,2,3,4,5,6,7}}}}, use_global_device_ids=true, to_apply=%add\n  %p.{i} = f32[{a},{a}] \
             dot(%s.{i}, %s.{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}\n  %q.{i} = f32[{a},{a}] \
             dot(%p.{i}, %p.{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  %u.{i} = {shape} dot(%q.{i}, \
             %s.{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n",
            i + 1
        );
        outputs.push(format!("%u.{i}"));
        shapes.push(shape);
    }
    let text = format!(
        "HloModule kinds, num_partitions=8\n\n%add (x: f32[], y: f32[]) -> f32[] {{\n  %x = f32[] parameter(0)\n  %y = \
         f32[] parameter(1)\n  ROOT %sum = f32[] add(%x, %y)\n}}\n\nENTRY %main ({}) -> ({}) {{\n{body}  ROOT %out = ({}) \
         tuple({})\n}}\n",
        params.join(", "),
        shapes.join(", "),
        shapes.join(", "),
        outputs.join(", ")
    );
    hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{e:?}")).module
}

#[test]
fn many_kinds_are_tried_several_at_once_and_those_that_do_not_pay_are_left() {
    let mut module = module_of_kinds((4..8).chain((0..36).map(|k| 1024 + 8 * k)));
    let report = run("distribute-matrix-updates", &mut module, &ParamFacts::default());
    let count = |action: &str| report.decisions.iter().filter(|decision| decision.action == action).count();
    assert_eq!((count("distributed"), count("left")), (36, 4));
    assert_eq!(report.stats["distribute-matrix-updates.matrix-updates-distributed"], 72);
    for pair in report.decisions.windows(2) {
        assert!(pair[1].predicted_before_ns <= pair[0].predicted_before_ns, "a step became slower");
    }
}
