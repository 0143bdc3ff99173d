//! Which parameters of a step are the state of its optimizer.

use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::optimizer_state::{LeafRole, find_roles, find_summed};
use hlo_analysis::replication::Replication;
use hlo_analysis::values::{SharedCallees, Through, Values};
use hlo_ir::Module;

/// The roles of the parameters of a data-parallel step on two devices, whose first results are the next values of the first parameters.
fn roles(params: &[(&str, &str)], lines: &str, results: &[&str], n_paired: usize) -> Vec<LeafRole> {
    let module = step(params, lines, results);
    let replication = Replication::compute(&module, &ParamFacts::default());
    let values = Values::find(&module, Through::MARKERS, SharedCallees::Opaque);
    find_roles(&module, (&values, &replication), &[vec![0, 1]], &pairs(n_paired))
}

/// Whether the next values of the parameters of such a step are computed from sums over devices.
fn summed(params: &[(&str, &str)], lines: &str, results: &[&str], n_paired: usize) -> Vec<bool> {
    let module = step(params, lines, results);
    let values = Values::find(&module, Through::MARKERS, SharedCallees::Opaque);
    find_summed(&module, &values, &pairs(n_paired), &roles(params, lines, results, n_paired))
}

fn pairs(n_paired: usize) -> Vec<(usize, usize)> {
    (0..n_paired).map(|number| (number, number)).collect()
}

fn step(params: &[(&str, &str)], lines: &str, results: &[&str]) -> Module {
    let mut text = String::from(
        "HloModule step, num_partitions=2\n\nadd {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n",
    );
    text += LOOP;
    text += &averaging(LOOP);
    text += "ENTRY main {\n";
    for (number, (name, shape)) in params.iter().enumerate() {
        let variable = name.split(['.', '[']).next_back().unwrap_or(name).trim_end_matches("']").trim_matches('\'');
        let sharding = if variable == "x" { "{devices=[2,1]<=[2]}" } else { "{replicated}" };
        text += &format!(
            "  {variable} = {shape} parameter({number}), sharding={sharding}, metadata={{op_name=\"{}\"}}\n",
            name.replace('\'', "\\'")
        );
    }
    text += lines;
    let shapes = vec!["f32[128,64]"; results.len()];
    text += &format!("\n  ROOT out = ({}) tuple({})\n}}\n", shapes.join(", "), results.join(", "));
    hlo_text::parse_module(&text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}")).module
}

/// Steps of momentum in a loop.
const LOOP: &str = "steps {
  p = (s32[], f32[128,64], f32[128,64], f32[8,128]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  w = f32[128,64] get-tuple-element(p), index=1
  m = f32[128,64] get-tuple-element(p), index=2
  x = f32[8,128] get-tuple-element(p), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  h = f32[8,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  own = f32[128,64] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[128,64] all-reduce(own), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  m1 = f32[128,64] add(m, g)
  w1 = f32[128,64] subtract(w, m1)
  ROOT r = (s32[], f32[128,64], f32[128,64], f32[8,128]) tuple(j, w1, m1, x)
}

goes_on {
  p = (s32[], f32[128,64], f32[128,64], f32[8,128]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

";

/// A step that runs them.
const IN_LOOP: &str = "  n = s32[] constant(0)
  t = (s32[], f32[128,64], f32[128,64], f32[8,128]) tuple(n, w, m, x)
  l = (s32[], f32[128,64], f32[128,64], f32[8,128]) while(t), condition=goes_on, body=steps
  wl = f32[128,64] get-tuple-element(l), index=1
  ml = f32[128,64] get-tuple-element(l), index=2
  w1 = f32[128,64] copy(wl)
  m1 = f32[128,64] copy(ml)
";

/// The same with an average of the weights.
fn averaging(steps: &str) -> String {
    let more = "  e = f32[128,64] get-tuple-element(p), index=4\n  e1 = f32[128,64] add(e, w1)\n  ROOT r";
    let of_carry = steps
        .replace("f32[8,128])", "f32[8,128], f32[128,64])")
        .replace("tuple(j, w1, m1, x)", "tuple(j, w1, m1, x, e1)");
    of_carry
        .replace("  ROOT r", more)
        .replace("steps {", "averaging_steps {")
        .replace("goes_on {", "goes_on_averaging {")
}

const MATRIX: &str = "f32[128,64]";
const BATCH: (&str, &str) = ("x", "f32[8,128]");

/// A gradient of `w` summed over the devices, and momentum by it.
const MOMENTUM: &str = "  h = f32[8,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  own = f32[128,64] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[128,64] all-reduce(own), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  m1 = f32[128,64] add(m, g)
  w1 = f32[128,64] subtract(w, m1)
";

#[test]
fn momentum_is_state_and_an_average_of_weights_is_none() {
    let params = [("params['w']", MATRIX), ("opt.m", MATRIX), ("ema", MATRIX), BATCH];
    let lines = format!("{MOMENTUM}  sum = f32[128,64] add(ema, w1)\n");
    let found = roles(&params, &lines, &["w1", "m1", "sum"], 3);
    assert_eq!(found, [LeafRole::Weight, LeafRole::State, LeafRole::FeedsNoWeight, LeafRole::Input]);
}

/// Rprop updates by what the step before computed from its step sizes.
#[test]
fn state_that_feeds_a_weight_of_a_later_step_is_state() {
    let params = [("params['w']", MATRIX), ("opt.last", MATRIX), ("opt.sizes", MATRIX), ("ema", MATRIX), BATCH];
    let lines = "  h = f32[8,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  own = f32[128,64] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[128,64] all-reduce(own), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  w1 = f32[128,64] subtract(w, last)
  sizes1 = f32[128,64] add(sizes, g)
  last1 = f32[128,64] multiply(sizes, g)
  ema1 = f32[128,64] add(ema, w1)
";
    let found = roles(&params, lines, &["w1", "last1", "sizes1", "ema1"], 4);
    let (state, average) = (LeafRole::State, LeafRole::FeedsNoWeight);
    assert_eq!(found, [LeafRole::Weight, state, state, average, LeafRole::Input]);
}

#[test]
fn a_large_result_that_state_goes_into_keeps_it_whole() {
    let params = [("params['w']", MATRIX), ("opt.m", MATRIX), BATCH];
    let found = roles(&params, MOMENTUM, &["w1", "m1", "m1"], 2);
    assert_eq!(found[1], LeafRole::ReadByResult(2), "who reads the second one gets it as before");
    let lines = format!("{MOMENTUM}  doubled = f32[128,64] add(m1, m1)\n");
    let found = roles(&params, &lines, &["w1", "m1", "doubled"], 2);
    assert_eq!(found, [LeafRole::Weight, LeafRole::ReadByResult(2), LeafRole::Input]);
    // A path that goes on from the next weight has ended there.
    let lines = format!("{MOMENTUM}  doubled = f32[128,64] add(w1, w1)\n");
    assert_eq!(roles(&params, &lines, &["w1", "m1", "doubled"], 2)[1], LeafRole::State);
}

#[test]
fn what_stays_whole_makes_what_it_is_computed_from_stay_whole() {
    let params = [("params['w']", MATRIX), ("opt.m", MATRIX), ("opt.n", MATRIX), BATCH];
    let lines = "  h = f32[8,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  own = f32[128,64] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[128,64] all-reduce(own), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  m1 = f32[128,64] add(m, g)
  n1 = f32[128,64] add(n, m1)
  w1 = f32[128,64] subtract(w, n1)
  told = f32[128,64] negate(n1)
";
    let found = roles(&params, lines, &["w1", "m1", "n1", "told"], 3);
    assert_eq!(found[1..3], [LeafRole::ReadByResult(3), LeafRole::ReadByResult(3)]);
    assert_eq!(roles(&params, lines, &["w1", "m1", "n1"], 3)[1..3], [LeafRole::State, LeafRole::State]);
}

#[test]
fn masters_are_state_and_what_the_loss_reads_is_the_weight() {
    let params = [("params['w']", MATRIX), ("masters['v']", MATRIX), BATCH];
    let lines = "  h = f32[8,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  own = f32[128,64] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[128,64] all-reduce(own), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  v1 = f32[128,64] subtract(v, g)
  w1 = f32[128,64] copy(v1)
";
    assert_eq!(roles(&params, lines, &["w1", "v1"], 2), [LeafRole::Weight, LeafRole::State, LeafRole::Input]);
}

#[test]
fn state_beside_weights_is_none_where_the_optimizer_has_its_own_part() {
    let lines = format!("{MOMENTUM}  l1 = f32[128,64] add(l, m1)\n  w2 = f32[128,64] add(w1, l1)\n");
    let with = |slow: &str| {
        let params = [("params.w", MATRIX), ("opt_state.m", MATRIX), (slow, MATRIX), BATCH];
        roles(&params, &lines, &["w2", "m1", "l1"], 3)[1..3].to_vec()
    };
    assert_eq!(with("params.l"), [LeafRole::State, LeafRole::BesideWeights]);
    assert_eq!(with("opt_state.l"), [LeafRole::State, LeafRole::State]);
    // In one dict each array has a part of its own.
    let params = [("state['w']", MATRIX), ("state['m']", MATRIX), ("state['l']", MATRIX), BATCH];
    assert_eq!(roles(&params, &lines, &["w2", "m1", "l1"], 3)[1..3], [LeafRole::State, LeafRole::State]);
}

#[test]
fn an_update_without_a_sum_over_devices_is_told_from_one_with() {
    let params = [("w", MATRIX), ("m", MATRIX), ("v", MATRIX), ("n", MATRIX), BATCH];
    // The gradient of `v` is computed from the next value of `w`, and not summed.
    let lines = format!(
        "{MOMENTUM}  own_v = f32[128,64] multiply(w1, v)\n  n1 = f32[128,64] add(n, own_v)\n  v1 = f32[128,64] subtract(v, n1)\n"
    );
    assert_eq!(summed(&params, &lines, &["w1", "m1", "v1", "n1"], 4), [true, true, false, false, false]);
    let params = [("w", MATRIX), ("m", MATRIX), BATCH];
    assert_eq!(summed(&params, IN_LOOP, &["w1", "m1"], 2), [true, true, false]);
}

#[test]
fn a_loop_of_steps_goes_on_with_what_it_carries() {
    let params = [("params['w']", MATRIX), ("opt.m", MATRIX), BATCH];
    assert_eq!(roles(&params, IN_LOOP, &["w1", "m1"], 2), [LeafRole::Weight, LeafRole::State, LeafRole::Input]);
    // An average of the weights within the loop is computed from what each iteration hands on.
    let params = [("params['w']", MATRIX), ("opt.m", MATRIX), ("ema", MATRIX), BATCH];
    let lines = "  n = s32[] constant(0)
  t = (s32[], f32[128,64], f32[128,64], f32[8,128], f32[128,64]) tuple(n, w, m, x, ema)
  l = (s32[], f32[128,64], f32[128,64], f32[8,128], f32[128,64]) while(t), condition=goes_on_averaging, body=averaging_steps
  w1 = f32[128,64] get-tuple-element(l), index=1
  m1 = f32[128,64] get-tuple-element(l), index=2
  ema1 = f32[128,64] get-tuple-element(l), index=4
";
    let found = roles(&params, lines, &["w1", "m1", "ema1"], 3);
    assert_eq!(found, [LeafRole::Weight, LeafRole::State, LeafRole::FeedsNoWeight, LeafRole::Input]);
}

#[test]
fn what_is_only_carried_is_state_in_the_optimizers_part() {
    let with = |carried: &str| {
        let params = [("params.w", MATRIX), ("opt_state.m", MATRIX), (carried, MATRIX), BATCH];
        roles(&params, MOMENTUM, &["w1", "m1", "c"], 3)[2]
    };
    assert_eq!(with("opt_state.c"), LeafRole::State);
    assert_eq!(with("frozen.c"), LeafRole::Carried);
    assert_eq!(with("params.c"), LeafRole::Carried);
}
