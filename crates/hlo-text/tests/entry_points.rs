//! The parsers of single values, error recovery and its bounds.

use hlo_ir::groups::ReplicaGroups;
use hlo_ir::sharding::{Sharding, ShardingKind};
use hlo_text::{parse_bytes, parse_module, parse_replica_groups, parse_shape, parse_sharding, render};

#[test]
fn single_values_parse_whole_or_fail() {
    let shape = parse_shape(" (f32[2,<=3]{1,0:T(8,128)(2,1)S(5)}, token[], /*index=2*/b(u8[4])) ").unwrap();
    assert_eq!(shape.as_tuple().map(<[_]>::len), Some(3));
    assert!(shape.at(&[0]).and_then(|s| s.as_array()).is_some_and(|a| a.is_dynamic(1) && !a.is_dynamic(0)));
    assert!(parse_shape("f32[2] x").is_err());
    assert!(parse_shape("f32[2]{1,0}").is_err());

    let sharding = parse_sharding("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}").unwrap();
    let tiles = sharding.leaf(0).and_then(|leaf| leaf.tile_of_device(8)).unwrap();
    assert_eq!(tiles, [0, 1, 0, 1, 0, 1, 0, 1]);
    assert!(
        matches!(parse_sharding("{{replicated},{manual}}"), Ok(Sharding::Tuple(leaves)) if leaves[1].kind == ShardingKind::Manual)
    );
    assert!(parse_sharding("{replicated manual}").is_err());
    assert!(parse_sharding(r"{mesh['a\377'=2], [{'a\377'}]}").is_err());

    let groups = parse_replica_groups("mesh['a'=2,'b'=2] {'a'}").unwrap();
    assert_eq!(groups.expand().unwrap(), [[0, 2], [1, 3]]);
    assert_eq!(parse_replica_groups("{{0,1},{2,3}}"), Ok(ReplicaGroups::List(vec![vec![0, 1], vec![2, 3]])));
    assert!(parse_replica_groups("[2,2]<=[5]").is_err());
}

#[test]
fn after_an_error_the_next_instruction_is_read() {
    let text = "HloModule m\n\nENTRY e {\n  a = f32[2] parameter(0)\n  b = f32[2] ad(a, a)\n  c = f32[2] add(b, b)\n  \
                d = f32[2 negate(c)\n  ROOT t = (f32[2]) tuple(d, nowhere)\n}\n\nf {\n  x = f32[] parameter(zero)\n}\n";
    let diags = parse_module(text).unwrap_err();
    let rules: Vec<_> = diags.iter().map(|d| d.rule).collect();
    assert_eq!(rules, ["parse-unknown-name", "parse-expected", "parse-unknown-name", "parse-expected"]);
    let shown = render(&diags, "m.hlo", text, false);
    for part in ["m.hlo:5:14", "the nearest opcode is `add`", "m.hlo:7:13", "`nowhere`", "m.hlo:12:23", "found `zero`"]
    {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
}

#[test]
fn at_most_twenty_errors_are_reported() {
    let bad = "  x = f32[2] frobnicate()\n".repeat(100);
    let diags = parse_module(&format!("HloModule m\nENTRY e {{\n{bad}}}\n")).unwrap_err();
    assert_eq!(diags.len(), 20);
}

#[test]
fn bytes_that_are_no_text_are_placed() {
    let diags = parse_bytes(b"HloModule m\n\xff\n").unwrap_err();
    assert_eq!(diags[0].span.map(|s| s.start), Some(12));
}

#[test]
fn async_sugar_becomes_a_wrapped_computation_before_its_user() {
    let text = "HloModule m\n\nENTRY e {\n  p = f32[4] parameter(0)\n  s = ((f32[4]), f32[4], s32[]) negate-start(p)\n  \
                ROOT d = f32[4] negate-done(s)\n}\n\n";
    let module = parse_module(text).unwrap().module;
    assert_eq!(module.computations().len(), 2);
    assert_eq!(module.computations().last().copied(), module.entry());
    assert_eq!(module.n_instructions(), 5);
    assert_eq!(hlo_ir::print::print_module(&module, &hlo_ir::print::PrintOptions::default()), text);
}

/// Text of an asynchronous collective over eight devices, its result and its start as given.
fn asynchronous(op: &str, result: &str, start: &str, attributes: &str) -> String {
    format!(
        "HloModule m, num_partitions=8\n\nadd {{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}}\n\n\
         ENTRY e {{\n  a = f32[8] parameter(0)\n  b = {start} {op}-start(a), channel_id=1, {attributes}\n  \
         ROOT c = {result} {op}-done(b)\n}}\n\n"
    )
}

const ALL: &str = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true";

/// XLA's compiler for GPUs since jaxlib 0.12: a generic start of an op that has a start of its own is told by its shape.
#[test]
fn the_shape_tells_a_generic_start_from_an_opcode_of_that_name() {
    let sum = format!("{ALL}, to_apply=add");
    let gather = format!("{ALL}, dimensions={{0}}");
    let permute = "source_target_pairs={{0,1}}";
    for (op, result, own, generic, attributes) in [
        ("all-reduce", "f32[8]", "f32[8]", "((f32[8]), f32[8])", sum.as_str()),
        ("all-gather", "f32[64]", "(f32[8], f32[64])", "((f32[8]), f32[64])", gather.as_str()),
        ("collective-permute", "f32[8]", "(f32[8], f32[8])", "((f32[8]), f32[8])", permute),
    ] {
        for (start, is_generic) in [(own, false), (generic, true)] {
            let text = asynchronous(op, result, start, attributes);
            let module = parse_module(&text).unwrap_or_else(|errors| panic!("{text}{errors:?}")).module;
            hlo_ir::verify::verify(&module).unwrap_or_else(|errors| panic!("{text}{errors:?}"));
            let opcodes: Vec<&str> = module
                .computations()
                .iter()
                .flat_map(|&comp| &module.comp(comp).insts)
                .map(|&inst| module.inst(inst).opcode.name())
                .collect();
            for name in ["async-start", "async-done", op] {
                assert_eq!(opcodes.contains(&name), is_generic, "{name} in {opcodes:?}");
            }
            // What is printed is read as the same module.
            let print = |module| hlo_ir::print::print_module(module, &hlo_ir::print::PrintOptions::default());
            let printed = print(&module);
            assert_eq!(print(&parse_module(&printed).unwrap().module), printed);
        }
    }
    let aliases = format!("{sum}, output_to_operand_aliasing={{{{1}}: (0, {{}})}}");
    let text = asynchronous("all-reduce", "f32[8]", "((f32[8]), f32[8])", &aliases);
    assert!(parse_module(&text).is_ok(), "{text}");
    let text = asynchronous("all-reduce", "f32[8]", "f32[8]", &aliases);
    assert!(parse_module(&text).is_err(), "the opcode has no such attribute: {text}");
}
