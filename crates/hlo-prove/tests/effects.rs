//! Effects are no part of a proof, and it says where the modules differ in them.

use hlo_ir::Module;
use hlo_prove::{ChangedEffect, Options, prove};

fn step(effects: &str) -> Module {
    let text = format!(
        "HloModule m\n\nENTRY main {{\n  x = f32[4] parameter(0)\n{effects}  t = token[] after-all()\n  ROOT y = f32[4] sine(x)\n}}\n"
    );
    hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module
}

const CALL: &str = "  c = f32[4] custom-call(x), custom_call_target=\"log\", custom_call_has_side_effect=true\n";
const ANNOTATION: &str =
    "  c = f32[4] custom-call(x), custom_call_target=\"Sharding\", custom_call_has_side_effect=true\n";
const OUTFEED: &str = "  s = token[] after-all()\n  o = token[] outfeed(x, s), outfeed_shape=f32[4]\n";

#[test]
fn effects_that_differ_are_named() {
    let changed = |before: &str, after: &str| {
        let proof = prove(&step(before), &step(after), &Options::default()).expect("a pair");
        assert!(proof.is_proved());
        proof.changed_effects
    };
    assert_eq!(changed(CALL, CALL), []);
    assert_eq!(changed(ANNOTATION, ""), []);
    let lost = |what: &str| ChangedEffect { what: what.to_string(), n_before: 1, n_after: 0 };
    assert_eq!(changed(CALL, ""), [lost("custom-call log")]);
    assert_eq!(changed(OUTFEED, ""), [lost("outfeed")]);
    assert_eq!(changed("", CALL), [ChangedEffect { what: "custom-call log".to_string(), n_before: 0, n_after: 1 }]);
}
