//! Loops whose iterations are cut at other places: values that are made one iteration ahead, a first iteration before the loop, two
//! iterations in one. Each with neighbours that are not equal.

use hlo_eval::{EvalOptions, draw, run};
use hlo_ir::Module;
use hlo_prove::{Options, prove};

/// Two devices hold a table of 6 weights in shards; a step gathers the next weight and multiplies by it.
const PROGRAM: &str = "
HloModule m, num_partitions=2

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%body (p: STATE) -> STATE {
  %p = STATE parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8] get-tuple-element(%p), index=1
  %t = f32[6,4] get-tuple-element(%p), index=2
  %none = s32[] constant(0)
  %one = s32[] constant(1)
  BODY
}

%less (p: STATE) -> pred[] {
  %p = STATE parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = LIMIT
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8], t: f32[6,4], steps: s32[]) -> f32[8] {
  %x = f32[8] parameter(0)
  %t = f32[6,4] parameter(1)
  %steps = s32[] parameter(2)
  %none = s32[] constant(0)
  %one = s32[] constant(1)
  ENTRY
}
";

/// Gathers row `ROW` of the table into `%NAME`, and how much the state there counts.
const GATHER: &str = "%NAME.r = f32[1,4] dynamic-slice(%t, ROW, %none), dynamic_slice_sizes={1,4}
  %NAME.s = f32[4] reshape(%NAME.r)
  %NAME = f32[8] all-gather(%NAME.s), replica_groups={{0,1}}, channel_id=CHANNEL, use_global_device_ids=true, dimensions={0}
";

/// From the state and a weight the next state.
const STEP: &str = "%NAME.m = f32[8] multiply(OLD, WEIGHT)
  %NAME = f32[8] tanh(%NAME.m)
";

fn gather(name: &str, row: &str, channel: usize) -> String {
    GATHER.replace("NAME", name).replace("ROW", row).replace("CHANNEL", &channel.to_string())
}

fn step(name: &str, old: &str, weight: &str) -> String {
    STEP.replace("NAME", name).replace("OLD", old).replace("WEIGHT", weight)
}

const PLAIN: &str = "(s32[], f32[8], f32[6,4])";
const AHEAD: &str = "(s32[], f32[8], f32[6,4], f32[8])";

fn program(state: &str, limit: &str, body: &str, entry: &str) -> Module {
    let text = PROGRAM.replace("BODY", body).replace("\n  ENTRY", &format!("\n  {entry}"));
    let text = text.replace("STATE", state).replace("LIMIT", limit);
    let parsed = hlo_text::parse_module(&text);
    parsed.unwrap_or_else(|diags| panic!("{}", hlo_text::render(&diags, "text", &text, false))).module
}

/// Gathers and multiplies in each iteration.
fn plain(limit: &str) -> Module {
    plain_of(limit, "tanh")
}

/// The same with another function of the product.
fn plain_of(limit: &str, function: &str) -> Module {
    let body = gather("w", "%i", 1)
        + &step("y", "%x", "%w").replace("tanh", function)
        + "%j = s32[] add(%i, %one)\n  ROOT %r = (s32[], f32[8], f32[6,4]) tuple(%j, %y, %t)";
    let entry = "%z = (s32[], f32[8], f32[6,4]) tuple(%none, %x, %t)
  %w = (s32[], f32[8], f32[6,4]) while(%z), condition=%less, body=%body
  ROOT %r = f32[8] get-tuple-element(%w), index=1";
    program(PLAIN, limit, &body, entry)
}

/// What is changed in a program that gathers one iteration ahead.
#[derive(Clone, Copy)]
struct Ahead {
    first_row: &'static str,
    next_row: &'static str,
    limit: &'static str,
    result: usize,
}

const RIGHT: Ahead = Ahead { first_row: "%none", next_row: "%j", limit: "s32[] constant(6)", result: 1 };

fn ahead(change: Ahead) -> Module {
    let body = step("y", "%x", "%w")
        + "%w = f32[8] get-tuple-element(%p), index=3\n  %j = s32[] add(%i, %one)\n  "
        + &gather("v", change.next_row, 1)
        + "ROOT %r = (s32[], f32[8], f32[6,4], f32[8]) tuple(%j, %y, %t, %v)";
    // The weight is read before it is used.
    let weight = "%w = f32[8] get-tuple-element(%p), index=3\n  ";
    let body = weight.to_string() + &body.replacen(weight, "", 1);
    let entry = gather("first", change.first_row, 2)
        + "%z = (s32[], f32[8], f32[6,4], f32[8]) tuple(%none, %x, %t, %first)
  %o = (s32[], f32[8], f32[6,4], f32[8]) while(%z), condition=%less, body=%body
  ROOT %r = f32[8] get-tuple-element(%o), index=RESULT";
    program(AHEAD, change.limit, &body, &entry.replace("RESULT", &change.result.to_string()))
}

fn is_proved(before: &Module, after: &Module) -> bool {
    prove(before, after, &Options::default()).expect("a pair").is_proved()
}

/// Whether the outputs are near each other on drawn inputs.
fn agree(before: &Module, after: &Module) -> bool {
    (0..4).all(|seed| {
        let draws = vec![draw::Draw::Normal(1.0), draw::Draw::Normal(1.0), draw::Draw::Below(4)];
        let options = draw::DrawOptions { seed, draws, same: draw::Same::None };
        let inputs = draw::draw_inputs(before, None, &options).expect("inputs");
        let [a, b] = [before, after].map(|module| run(module, &inputs, &EvalOptions::default()).expect("a run"));
        let mut rows = a.leaves.iter().flatten().zip(b.leaves.iter().flatten());
        rows.all(|(a, b)| {
            let (a, b) = (a.elems::<f32>().expect("floats"), b.elems::<f32>().expect("floats"));
            a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6)
        })
    })
}

/// Holds the prover and the evaluator against each other.
fn expect(before: &Module, after: &Module, is_equal: bool, what: &str) {
    assert_eq!(agree(before, after), is_equal, "the evaluator: {what}");
    assert_eq!(is_proved(before, after), is_equal, "the prover: {what}");
}

#[test]
fn a_value_that_is_made_one_iteration_ahead_is_proved() {
    expect(&plain("s32[] constant(6)"), &ahead(RIGHT), true, "gathered ahead");
    expect(&plain("s32[] constant(0)"), &ahead(Ahead { limit: "s32[] constant(0)", ..RIGHT }), true, "never used");
}

#[test]
fn neighbours_of_a_value_that_is_made_ahead_are_not_proved() {
    let before = plain("s32[] constant(6)");
    let wrong = [
        (Ahead { limit: "s32[] constant(5)", ..RIGHT }, "one iteration less"),
        (Ahead { first_row: "%one", ..RIGHT }, "the second weight first"),
        (Ahead { next_row: "%i", ..RIGHT }, "the weight of this iteration once more"),
        (Ahead { next_row: "%one", ..RIGHT }, "the second weight always"),
        (Ahead { result: 3, ..RIGHT }, "the last weight, which no iteration uses"),
    ];
    for (change, what) in wrong {
        expect(&before, &ahead(change), false, what);
    }
}

/// The first iteration before the loop.
fn peeled(start: &str, from: &str, limit: &str) -> Module {
    let body = gather("w", "%i", 1)
        + &step("y", "%x", "%w")
        + "%j = s32[] add(%i, %one)\n  ROOT %r = (s32[], f32[8], f32[6,4]) tuple(%j, %y, %t)";
    let entry = gather("first", "%none", 2)
        + &step("x1", "%x", "%first")
        + &format!("%z = (s32[], f32[8], f32[6,4]) tuple({start}, {from}, %t)\n  ")
        + "%w = (s32[], f32[8], f32[6,4]) while(%z), condition=%less, body=%body
  ROOT %r = f32[8] get-tuple-element(%w), index=1";
    program(PLAIN, limit, &body, &entry)
}

#[test]
fn a_first_iteration_before_the_loop_is_proved_and_its_neighbours_are_not() {
    let (six, none, one) = ("s32[] constant(6)", "s32[] constant(0)", "s32[] constant(1)");
    expect(&plain(six), &peeled("%one", "%x1", six), true, "peeled");
    expect(&plain(one), &peeled("%one", "%x1", one), true, "peeled, and no other iteration is left");
    expect(&plain(six), &peeled("%none", "%x1", six), false, "peeled, and done once more");
    expect(&plain(six), &peeled("%one", "%x", six), false, "left out");
    expect(&plain(six), &peeled("%one", "%x1", "s32[] constant(7)"), false, "one iteration more");
    expect(&plain(none), &peeled("%one", "%x1", none), false, "a loop that never runs");
}

/// Two iterations in one.
fn unrolled(second_row: &str, stride: &str, limit: &str) -> Module {
    let body = gather("w", "%i", 1)
        + &step("y", "%x", "%w")
        + "%j = s32[] add(%i, %one)\n  "
        + &gather("v", second_row, 2)
        + &step("u", "%y", "%v")
        + &format!("%two = s32[] constant({stride})\n  %k = s32[] add(%i, %two)\n  ")
        + "ROOT %r = (s32[], f32[8], f32[6,4]) tuple(%k, %u, %t)";
    let entry = "%z = (s32[], f32[8], f32[6,4]) tuple(%none, %x, %t)
  %w = (s32[], f32[8], f32[6,4]) while(%z), condition=%less, body=%body
  ROOT %r = f32[8] get-tuple-element(%w), index=1";
    program(PLAIN, limit, &body, entry)
}

#[test]
fn two_iterations_in_one_are_proved_and_their_neighbours_are_not() {
    let (six, five, four) = ("s32[] constant(6)", "s32[] constant(5)", "s32[] constant(4)");
    expect(&plain(six), &unrolled("%j", "2", six), true, "two in one");
    expect(&plain(six), &unrolled("%j", "2", five), true, "two in one, and a limit between");
    expect(&plain(five), &unrolled("%j", "2", five), false, "an odd number of iterations");
    expect(&plain(six), &unrolled("%j", "2", four), false, "two iterations less");
    expect(&plain(six), &unrolled("%i", "2", six), false, "the first weight twice");
    expect(&plain(six), &unrolled("%j", "1", six), false, "twice as many iterations");
}

#[test]
fn two_loops_that_part_are_told_apart_by_what_an_iteration_does() {
    let difference = |before: &Module, after: &Module| {
        let proof = prove(before, after, &Options::default()).expect("a pair");
        proof.outputs.into_iter().find_map(|output| output.difference).expect("a difference")
    };
    let six = plain("s32[] constant(6)");
    let said = difference(&six, &plain("s32[] constant(5)"));
    assert!(said.contains("the loops end otherwise: expected 6, found 5"), "{said}");
    let said = difference(&six, &ahead(Ahead { next_row: "%i", ..RIGHT }));
    let words = [
        "found leaf 1 of the loop %o of the second module",
        "no leaf that the first module's loop carries begins as leaf 3 does",
    ];
    words.iter().for_each(|word| assert!(said.contains(word), "expected `{word}` in {said}"));
    let said = difference(&six, &plain_of("s32[] constant(6)", "sine"));
    assert!(said.contains("leaf 1 parts from the first module's loop in an iteration: expected tanh("), "{said}");
}

/// A sum over the iterations, whose first is left out or not.
fn summed(is_peeled: bool, from: &str) -> Module {
    let body = gather("w", "%i", 1)
        + "%y = f32[8] add(%x, %w)\n  %j = s32[] add(%i, %one)\n  ROOT %r = (s32[], f32[8], f32[6,4]) tuple(%j, %y, %t)";
    let (first, start) = match is_peeled {
        true => (gather("first", "%none", 2) + "%x1 = f32[8] add(%x, %first)\n  ", "%one"),
        false => (String::new(), "%none"),
    };
    let entry = first
        + &format!("%z = (s32[], f32[8], f32[6,4]) tuple({start}, {from}, %t)\n  ")
        + "%w = (s32[], f32[8], f32[6,4]) while(%z), condition=%less, body=%body
  ROOT %r = f32[8] get-tuple-element(%w), index=1";
    program(PLAIN, "s32[] constant(6)", &body, &entry)
}

#[test]
fn a_sum_over_iterations_without_the_first_is_another_one() {
    expect(&summed(false, "%x"), &summed(true, "%x1"), true, "a first summand before the loop");
    expect(&summed(false, "%x"), &summed(true, "%x"), false, "a first summand left out");
}
