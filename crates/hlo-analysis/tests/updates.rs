//! Updates in place, on modules of a few instructions.

use hlo_analysis::memory::InPlaceUpdates;
use hlo_ir::{Module, Opcode};

fn parse(text: &str) -> Module {
    hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{}", e[0].message)).module
}

/// Whether the update of a computation that is called for each of `arguments`, in this order, is in place.
fn is_in_place(arguments: [&str; 2]) -> bool {
    let [first, second] = arguments;
    let module = parse(&format!(
        "HloModule m, is_scheduled=true\nput {{\n  p = f32[8]{{0}} parameter(0)\n  u = f32[1]{{0}} constant({{1}})\n  \
         z = s32[] constant(0)\n  ROOT d = f32[8]{{0}} dynamic-update-slice(p, u, z)\n}}\nENTRY main {{\n  \
         kept = f32[8]{{0}} parameter(0)\n  fresh = f32[8]{{0}} negate(kept)\n  other = f32[8]{{0}} sine(kept)\n  \
         x = f32[8]{{0}} call({first}), to_apply=put\n  y = f32[8]{{0}} call({second}), to_apply=put\n  \
         ROOT end = f32[8]{{0}} add(x, y)\n}}\n"
    ));
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let update = insts.find(|&&inst| module.inst(inst).opcode == Opcode::DynamicUpdateSlice).expect("an update");
    InPlaceUpdates::find(&module).is_in_place(*update)
}

#[test]
fn an_argument_is_written_over_where_every_call_gives_it_up() {
    assert!(is_in_place(["fresh", "other"]));
    assert!(!is_in_place(["fresh", "kept"]), "a parameter of the entry is the caller's");
    assert!(!is_in_place(["kept", "fresh"]));
}
