//! Effects are compared in order, with their operands and tokens, on every device.

use hlo_ir::Module;
use hlo_prove::{ChangedEffect, Options, Proof, Verdict, prove};

fn parsed(text: &str) -> Module {
    let module = hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

/// A step on two devices that gives `y`, with these lines before.
fn step(lines: &str) -> Module {
    let lines: String = lines.split(';').map(|line| format!("  {}\n", line.trim())).collect();
    parsed(&format!(
        "HloModule m, num_partitions=2\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  z = f32[4] parameter(1)\n  \
         s = token[] after-all()\n{lines}  ROOT y = f32[4] sine(x)\n}}\n"
    ))
}

fn proof(before: &Module, after: &Module) -> Proof {
    let proof = prove(before, after, &Options::default()).expect("a pair");
    assert_eq!(proof.effects.difference.is_some(), proof.effects.verdict == Verdict::Unknown);
    proof
}

fn is_proved(before: &Module, after: &Module) -> bool {
    proof(before, after).is_proved()
}

/// Why the effects are not proved, of modules whose output is.
fn difference(before: &Module, after: &Module) -> String {
    let proof = proof(before, after);
    assert!(proof.has_proved_outputs() && !proof.is_proved());
    proof.effects.difference.expect("a difference")
}

const CALL: &str = "c = f32[4] custom-call(x), custom_call_target=\"log\", custom_call_has_side_effect=true";
const ANNOTATION: &str = "c = f32[4] custom-call(x), custom_call_target=\"Sharding\", custom_call_has_side_effect=true";
const OUTFEED: &str = "o = token[] outfeed(x, s), outfeed_shape=f32[4]";
const NOTHING: &str = "nothing = f32[4] cosine(x)";

#[test]
fn effects_that_are_lost_or_made_are_named() {
    let changed = |before: &str, after: &str, name: &str| {
        assert!(difference(&step(before), &step(after)).contains(name));
        proof(&step(before), &step(after)).effects.changed
    };
    let twice = format!("{OUTFEED}; p = token[] outfeed(x, o), outfeed_shape=f32[4]");
    assert!(proof(&step(&twice), &step(&twice)).effects.changed.is_empty());
    let lost = |what: &str| ChangedEffect { what: what.to_string(), n_before: 1, n_after: 0 };
    assert_eq!(changed(CALL, NOTHING, "`custom-call log` %c"), [lost("custom-call log")]);
    assert_eq!(changed(OUTFEED, NOTHING, "`outfeed` %o of the first module is missing"), [lost("outfeed")]);
    let made = ChangedEffect { what: "custom-call log".to_string(), n_before: 0, n_after: 1 };
    assert_eq!(changed(NOTHING, CALL, "`custom-call log` %c"), [made]);
    assert!(is_proved(&step(ANNOTATION), &step(NOTHING)));
}

/// Each line has effects; no two have the same.
const UNLIKE: [&str; 16] = [
    NOTHING,
    OUTFEED,
    "o = token[] outfeed(z, s), outfeed_shape=f32[4]",
    "o = token[] outfeed(x, s), outfeed_shape=f32[4], outfeed_config=\"other\"",
    "o = token[] outfeed(x, s), outfeed_shape=f32[4]; p = token[] outfeed(z, o), outfeed_shape=f32[4]",
    "o = token[] outfeed(z, s), outfeed_shape=f32[4]; p = token[] outfeed(x, o), outfeed_shape=f32[4]",
    "o = token[] outfeed(x, s), outfeed_shape=f32[4]; p = token[] outfeed(z, s), outfeed_shape=f32[4]",
    "o = token[] outfeed(x, s), outfeed_shape=f32[4]; p = token[] outfeed(x, o), outfeed_shape=f32[4]",
    "n = f32[4] negate(x); o = token[] outfeed(n, s), outfeed_shape=f32[4]",
    "i = (f32[4], token[]) infeed(s)",
    "i = (f32[4], token[]) infeed(s); v = f32[4] get-tuple-element(i), index=0; t = token[] get-tuple-element(i), index=1; \
     o = token[] outfeed(v, t), outfeed_shape=f32[4]",
    "i = (f32[4], token[]) infeed(s); v = f32[4] get-tuple-element(i), index=0; o = token[] outfeed(v, s), \
     outfeed_shape=f32[4]",
    CALL,
    "c = f32[4] custom-call(z), custom_call_target=\"log\", custom_call_has_side_effect=true",
    "b = (f32[4], u32[], token[]) send(x, s), channel_id=7; e = token[] send-done(b), channel_id=7",
    "b = (f32[4], u32[], token[]) send(x, s), channel_id=8; e = token[] send-done(b), channel_id=8",
];

#[test]
fn effects_are_proved_if_they_are_the_same_and_not_else() {
    for (k, before) in UNLIKE.iter().enumerate() {
        for (other, after) in UNLIKE.iter().enumerate() {
            assert_eq!(is_proved(&step(before), &step(after)), k == other, "{before} | {after}");
        }
    }
}

#[test]
fn pure_ops_around_effects_may_change() {
    let before = step(
        "n = f32[4] negate(x); m = f32[4] negate(n); a = f32[4] add(x, z); o = token[] outfeed(m, s), outfeed_shape=f32[4]; \
         p = token[] outfeed(a, o), outfeed_shape=f32[4]",
    );
    let after = step(
        "o = token[] outfeed(x, s), outfeed_shape=f32[4]; a = f32[4] add(z, x); p = token[] outfeed(a, o), outfeed_shape=f32[4]; \
         dead = f32[4] cosine(z)",
    );
    assert!(is_proved(&before, &after));
    let modulo = proof(
        &step("a = f32[4] add(x, z); b = f32[4] add(a, x); o = token[] outfeed(b, s), outfeed_shape=f32[4]"),
        &step("a = f32[4] add(x, x); b = f32[4] add(a, z); o = token[] outfeed(b, s), outfeed_shape=f32[4]"),
    );
    assert!(modulo.is_proved() && modulo.effects.modulo.iter().next().is_some());
}

#[test]
fn an_order_that_control_predecessors_ask_for_is_kept() {
    let module = |marks: &str| {
        step(&format!(
            "o = token[] outfeed(x, s), outfeed_shape=f32[4]; p = token[] outfeed(z, s), outfeed_shape=f32[4]{marks}"
        ))
    };
    let (ordered, free) = (module(", control-predecessors={o}"), module(""));
    // An order that nobody asked for does no harm.
    assert!(is_proved(&ordered, &ordered.clone()) && is_proved(&free, &ordered));
    let text = difference(&ordered, &free);
    assert!(text.contains("`outfeed` %p need not come after `outfeed` %o"), "{text}");
}

/// Programs in which the call of `q` waits for that of `p` by what stands in the place of `WAIT`, and nothing without it.
const WAITING: [(&str, &str); 6] = [
    ("n = f32[4] negate(x)WAIT; Q(n)", ", control-predecessors={p}"),
    ("n = f32[4] negate(x)WAIT; m = f32[4] add(n, n); Q(m)", ", control-predecessors={p}"),
    ("r = f32[4] call(x), to_apply=calls_qWAIT", ", control-predecessors={p}"),
    ("r = f32[4] fusion(x), kind=kLoop, calls=calls_qWAIT", ", control-predecessors={p}"),
    ("r = f32[4] map(x), dimensions={0}, to_apply=both_WAIT", "waiting"),
    ("b = (f32[4], token[]) opt-barrier(t); n = f32[4] get-tuple-element(b), index=0; Q(WAIT)", "n"),
];

#[test]
fn an_order_that_other_instructions_hand_on_is_kept() {
    let call = |name: &str, operand: &str, shape: &str| {
        format!(
            "{name} = {shape} custom-call({operand}), custom_call_target=\"{name}\", custom_call_has_side_effect=true"
        )
    };
    let both = |name: &str, wait: &str| {
        let (p, q) = (call("p", "e", "f32[]"), call("q", "e", "f32[]"));
        format!("both_{name} {{\n  e = f32[] parameter(0)\n  {p}\n  {q}{wait}\n  ROOT d = f32[] negate(e)\n}}\n\n")
    };
    for (lines, wait) in WAITING {
        let module = |wait: &str| {
            let lines = lines.replace("WAIT", wait);
            let lines = match lines.split_once("Q(") {
                Some((before, operand)) => format!("{before}{}", call("q", operand.trim_end_matches(')'), "f32[4]")),
                None => lines,
            };
            let lines: String = lines.split("; ").map(|line| format!("  {line}\n")).collect();
            let inner = call("inner", "k", "f32[4]").replace("\"inner\"", "\"q\"");
            parsed(&format!(
                "HloModule m\n\ncalls_q {{\n  k = f32[4] parameter(0)\n  {inner}\n  ROOT r0 = f32[4] negate(k)\n}}\n\n{}{}ENTRY main {{\n  \
                 x = f32[4] parameter(0)\n  s = token[] after-all()\n  {}\n  o = token[] outfeed(x, s), outfeed_shape=f32[4]\n  \
                 t = (f32[4], token[]) tuple(x, o)\n{lines}  ROOT y = f32[4] sine(x)\n}}\n",
                both("waiting", ", control-predecessors={p}"),
                both("free", ""),
                call("p", "x", "f32[4]"),
            ))
        };
        let free = match wait {
            "waiting" => "free",
            "n" => "x",
            _ => "",
        };
        let (waiting, free) = (module(wait), module(free));
        assert!(is_proved(&waiting, &waiting.clone()), "{lines}");
        assert!(!is_proved(&waiting, &free), "{lines}");
    }
}

#[test]
fn an_order_after_one_of_several_calls_or_after_a_start_is_not_taken_for_another() {
    let module = |lines: &str| {
        parsed(&format!(
            "HloModule m\n\nf {{\n  a = f32[] parameter(0)\n  p = f32[] custom-call(a), custom_call_target=\"p\", \
             custom_call_has_side_effect=true\n  ROOT r0 = f32[] negate(p)\n}}\n\nENTRY main {{\n  x = f32[] parameter(0)\n  \
             y = f32[] parameter(1)\n{lines}  ROOT o = f32[] add(x, y)\n}}\n"
        ))
    };
    let q = |after: &str| {
        format!(
            "  q = f32[] custom-call(x), custom_call_target=\"q\", custom_call_has_side_effect=true, control-predecessors={{{after}}}\n"
        )
    };
    let calls = "  c = f32[] call(x), to_apply=f\n  d = f32[] call(y), to_apply=f\n";
    let begun = "  c = ((f32[]), f32[]) async-start(x), calls=f\n  d = f32[] async-done(c)\n";
    for lines in [calls, begun] {
        let (first, second) = (module(&format!("{lines}{}", q("c"))), module(&format!("{lines}{}", q("d"))));
        assert!(is_proved(&first, &first.clone()) && is_proved(&second, &second.clone()), "{lines}");
        assert!(!is_proved(&second, &first), "{lines}");
    }
}

#[test]
fn names_and_places_in_the_source_say_nothing() {
    let marked = format!("{OUTFEED}, metadata={{op_name=\"print\"}}");
    assert!(
        is_proved(&step(OUTFEED), &step(&marked)) && is_proved(&step(&marked), &step(&marked.replace("print", "show")))
    );
    // Where it runs does.
    let placed = format!("{OUTFEED}, sharding={{maximal device=1}}");
    assert!(is_proved(&step(&placed), &step(&placed)) && !is_proved(&step(OUTFEED), &step(&placed)));
}

#[test]
fn an_operand_that_differs_is_told() {
    let text = difference(&step(OUTFEED), &step(UNLIKE[2]));
    assert!(text.contains("`outfeed` %o: expected `outfeed` %o of the first module there; leaf 0"), "{text}");
    assert!(text.contains("expected input 0") && text.contains("found input 1"), "{text}");
}

#[test]
fn effects_on_one_device_alone_are_no_effects_on_all() {
    let on = |device: usize| {
        step(&format!(
            "id = u32[] partition-id(); k = u32[] constant({device}); e = pred[] compare(id, k), direction=EQ; w = pred[4] broadcast(e), \
             dimensions={{}}; v = f32[4] select(w, x, z); o = token[] outfeed(v, s), outfeed_shape=f32[4]"
        ))
    };
    assert!(is_proved(&on(0), &on(0)));
    assert!(!is_proved(&on(0), &on(1)) && !is_proved(&on(0), &step(OUTFEED)) && !is_proved(&step(OUTFEED), &on(0)));
}

/// A loop, in it a conditional, in it a call, in it an outfeed; `sent` says of what, `after` how often and in which branch.
fn nested(sent: &str, limit: usize, in_true: bool) -> Module {
    let (yes, no) = if in_true { ("%send", "%skip") } else { ("%skip", "%send") };
    parsed(&format!(
        "HloModule m\n\n\
         %feed {{\n  %a = (f32[4], f32[4], token[]) parameter(0)\n  %x = f32[4] get-tuple-element(%a), index=0\n  \
         %y = f32[4] get-tuple-element(%a), index=1\n  %t = token[] get-tuple-element(%a), index=2\n  \
         ROOT %o = token[] outfeed(%{sent}, %t), outfeed_shape=f32[4]\n}}\n\n\
         %send {{\n  %p = (f32[4], f32[4], token[]) parameter(0)\n  ROOT %c = token[] call(%p), to_apply=%feed\n}}\n\n\
         %skip {{\n  %q = (f32[4], f32[4], token[]) parameter(0)\n  ROOT %u = token[] get-tuple-element(%q), index=2\n}}\n\n\
         %body {{\n  %s = (s32[], f32[4], f32[4]) parameter(0)\n  %i = s32[] get-tuple-element(%s), index=0\n  \
         %v = f32[4] get-tuple-element(%s), index=1\n  %w = f32[4] get-tuple-element(%s), index=2\n  %v2 = f32[4] sine(%v)\n  \
         %two = s32[] constant(2)\n  %rest = s32[] remainder(%i, %two)\n  %zero = s32[] constant(0)\n  \
         %is = pred[] compare(%rest, %zero), direction=EQ\n  %tok = token[] after-all()\n  \
         %all = (f32[4], f32[4], token[]) tuple(%v2, %w, %tok)\n  \
         %cond = token[] conditional(%is, %all, %all), true_computation={yes}, false_computation={no}\n  \
         %one = s32[] constant(1)\n  %i2 = s32[] add(%i, %one)\n  ROOT %r = (s32[], f32[4], f32[4]) tuple(%i2, %v2, %w)\n}}\n\n\
         %go {{\n  %g = (s32[], f32[4], f32[4]) parameter(0)\n  %j = s32[] get-tuple-element(%g), index=0\n  \
         %n = s32[] constant({limit})\n  ROOT %lt = pred[] compare(%j, %n), direction=LT\n}}\n\n\
         ENTRY %main {{\n  %x0 = f32[4] parameter(0)\n  %y0 = f32[4] parameter(1)\n  %k = s32[] constant(0)\n  \
         %init = (s32[], f32[4], f32[4]) tuple(%k, %x0, %y0)\n  \
         %loop = (s32[], f32[4], f32[4]) while(%init), condition=%go, body=%body\n  \
         ROOT %out = f32[4] get-tuple-element(%loop), index=2\n}}\n"
    ))
}

#[test]
fn effects_are_compared_in_loops_branches_and_calls() {
    let before = nested("x", 10, true);
    assert!(is_proved(&before, &before.clone()));
    for (after, name) in [(nested("y", 10, true), "`outfeed` %o"), (nested("x", 10, false), "`outfeed` %o")] {
        let text = difference(&before, &after);
        assert!(text.contains(name), "{text}");
        assert!(difference(&after, &before).contains(name));
    }
    assert!(!is_proved(&before, &nested("x", 11, true)));
}

#[test]
fn what_an_infeed_gives_is_known_while_all_effects_before_it_are_the_same() {
    let module = |first: &str, op: &str| {
        parsed(&format!(
            "HloModule m, num_partitions=2\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  z = f32[4] parameter(1)\n  s = token[] after-all()\n  \
             o = token[] outfeed({first}, s), outfeed_shape=f32[4]\n  i = (f32[4], token[]) infeed(o)\n  \
             v = f32[4] get-tuple-element(i), index=0\n  w = f32[4] {op}\n  ROOT r = (f32[4], f32[4]) tuple(w, x)\n}}\n"
        ))
    };
    let before = module("x", "add(v, z)");
    assert!(is_proved(&before, &module("x", "add(z, v)")));
    assert!(!is_proved(&before, &module("x", "add(z, z)")));
    let verdicts = |after: &Module| -> Vec<Verdict> {
        proof(&before, after).outputs.iter().map(|output| output.verdict).collect()
    };
    // The world may answer another outfeed with other numbers.
    assert_eq!(verdicts(&module("z", "add(v, z)")), [Verdict::Unknown, Verdict::Proved]);
}

#[test]
fn random_draws_are_compared_in_their_order() {
    let module = |lines: &str, root: &str| {
        let lines: String = lines.split(';').map(|line| format!("  {}\n", line.trim())).collect();
        parsed(&format!(
            "HloModule m\n\nENTRY main {{\n  a = f32[] constant(0)\n  b = f32[] constant(1)\n{lines}  ROOT r = f32[4] copy({root})\n}}\n"
        ))
    };
    let draw = |name: &str| format!("{name} = f32[4] rng(a, b), distribution=rng_uniform");
    let two = format!("{};{}", draw("u"), draw("v"));
    let first = module(&draw("u"), "u");
    // A draw that comes later and is not used may go.
    assert!(is_proved(&first, &first.clone()) && is_proved(&module(&two, "u"), &first));
    assert!(!is_proved(&module(&two, "v"), &first) && !is_proved(&module(&two, "u"), &module(&two, "v")));
    let normal = draw("u").replace("uniform", "normal");
    assert!(!is_proved(&first, &module(&normal, "u")));
}

#[test]
fn effects_of_global_programs_are_unknown_and_named() {
    let global = parsed(
        "HloModule m\n\nENTRY main {\n  x = f32[8] parameter(0), sharding={devices=[2]<=[2]}\n  s = token[] after-all()\n  \
         o = token[] outfeed(x, s), outfeed_shape=f32[8]\n  ROOT y = f32[8] sine(x), sharding={devices=[2]<=[2]}\n}\n",
    );
    let text = difference(&global, &step(OUTFEED).clone_without_z());
    assert!(text.contains("`outfeed` %o"), "{text}");
}

trait WithoutZ {
    fn clone_without_z(&self) -> Module;
}

impl WithoutZ for Module {
    fn clone_without_z(&self) -> Module {
        let text = hlo_ir::print::print_module(self, &hlo_ir::print::PrintOptions::default());
        parsed(&text.lines().filter(|line| !line.trim_start().starts_with("z =")).collect::<Vec<_>>().join("\n"))
    }
}

#[test]
fn a_global_program_with_manual_regions_is_proved_against_its_own_text() {
    for name in ["programs/mlp_sgd.unopt.hlo", "programs/mlp_adam_fori.unopt.hlo"] {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(name);
        let text = std::fs::read_to_string(file).expect("a sample");
        let found = proof(&parsed(&text), &parsed(&text));
        let open = found.outputs.iter().find_map(|output| output.difference.clone());
        assert!(found.is_proved(), "{name}: {open:?}");
    }
}

/// An op that calls a computation with `lines` in it.
fn calling(op: &str, lines: &str) -> Module {
    parsed(&format!(
        "HloModule m, num_partitions=2\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n{lines}  ROOT s = f32[] \
         add(a, b)\n}}\n\npicked {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n{lines}  ROOT s = pred[] compare(a, b), \
         direction=GE\n}}\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  z = f32[] parameter(1)\n  k = s32[2,1] constant({{{{0}},{{1}}}})\n  \
         u = f32[2] slice(x), slice={{[0:2]}}\n  ROOT y = {op}\n}}\n"
    ))
}

#[test]
fn effects_within_what_an_op_calls_are_its_own() {
    let ops = [
        "f32[] reduce(x, z), dimensions={0}, to_apply=add",
        "f32[4] all-reduce(x), replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true, to_apply=add",
        "f32[4] all-reduce(x), replica_groups={{0},{1}}, channel_id=1, use_global_device_ids=true, to_apply=add",
        "f32[2] reduce-scatter(x), replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true, dimensions={0}, to_apply=add",
        "f32[4] scatter(x, k, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, \
         index_vector_dim=1, to_apply=add",
        "f32[4] reduce-window(x, z), window={size=1}, to_apply=add",
        "f32[4] select-and-scatter(x, x, z), window={size=1}, select=picked, scatter=add",
        "f32[4] map(x, x), dimensions={0}, to_apply=add",
        "f32[4] sort(x), dimensions={0}, to_apply=picked",
    ];
    let sent = [
        "  c = f32[] custom-call(a), custom_call_target=\"log\", custom_call_has_side_effect=true\n",
        "  t = token[] after-all()\n  o = token[] outfeed(a, t), outfeed_shape=f32[]\n",
    ];
    for op in ops {
        let silent = calling(op, "");
        assert!(is_proved(&silent, &silent.clone()), "{op}");
        for lines in sent.map(|lines| calling(op, lines)) {
            assert!(!is_proved(&lines, &silent) && !is_proved(&silent, &lines), "{op}");
        }
    }
}

#[test]
fn the_place_of_a_call_with_effects_is_read() {
    let placed = |device: usize| step(&format!("{CALL}, sharding={{maximal device={device}}}"));
    assert!(is_proved(&placed(0), &placed(0)) && !is_proved(&placed(0), &placed(1)));
}
