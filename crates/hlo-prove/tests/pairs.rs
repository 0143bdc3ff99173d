//! Pairs of small programs: those that the rules make equal are proved and agree in the evaluator, near misses are not
//! proved, and differ there. So each rule is held against what the ops do.

use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, Outputs, run};
use hlo_ir::Module;
use hlo_prove::{Options, Proof, prove, prove_chain};

/// A module of `n` devices with a sum of scalars `%add` and an entry of these lines.
fn module(n: usize, lines: &str) -> Module {
    let text = format!(
        "HloModule m, num_partitions={n}\n\n%add (x: f32[], y: f32[]) -> f32[] {{\n  %x = f32[] parameter(0)\n  \
         %y = f32[] parameter(1)\n  ROOT %s = f32[] add(%x, %y)\n}}\n\n%max (x.1: f32[], y.1: f32[]) -> f32[] {{\n  \
         %x.1 = f32[] parameter(0)\n  %y.1 = f32[] parameter(1)\n  ROOT %m = f32[] maximum(%x.1, %y.1)\n}}\n\n{lines}\n"
    );
    let module = hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

fn entry(n: usize, lines: &str) -> Module {
    module(n, &format!("ENTRY %main {lines}"))
}

fn proof(before: &Module, after: &Module) -> Proof {
    prove(before, after, &Options::default()).unwrap()
}

fn outputs(module: &Module, seed: u64) -> Outputs {
    let inputs = draw_inputs(module, None, &DrawOptions { seed, ..DrawOptions::default() }).unwrap();
    run(module, &inputs, &EvalOptions::default()).unwrap()
}

/// The largest difference of the results on a few inputs.
fn distance(before: &Module, after: &Module) -> f64 {
    let mut largest = 0.0f64;
    for seed in 0..3 {
        let (a, b) = (outputs(before, seed), outputs(after, seed));
        for (x, y) in a.leaves.iter().flatten().zip(b.leaves.iter().flatten()) {
            for i in 0..x.n_elems() {
                let number = |literal: &hlo_ir::Literal| match literal.convert(hlo_ir::DType::F64).get(i) {
                    Some(hlo_ir::Scalar::Float(value)) => value,
                    other => panic!("{other:?}"),
                };
                largest = largest.max((number(x) - number(y)).abs());
            }
        }
    }
    largest
}

/// The pair is proved, bit for bit or modulo rounding, and agrees in the evaluator.
#[track_caller]
fn equal(is_exact: bool, before: &Module, after: &Module) {
    let proof = proof(before, after);
    assert!(proof.is_proved(), "{:?}", proof.outputs[0].difference);
    assert_eq!(proof.outputs.iter().all(|o| o.modulo.iter().next().is_none()), is_exact);
    assert!(distance(before, after) <= if is_exact { 0.0 } else { 1e-4 });
}

/// The pair is not proved, and rightly so.
#[track_caller]
fn different(before: &Module, after: &Module) {
    assert!(!proof(before, after).is_proved());
    assert!(distance(before, after) > 1e-3, "the near miss is no miss");
}

#[test]
fn a_sum_in_two_halves_is_the_sum() {
    let whole = entry(
        4,
        "(p: f32[8,6]) -> f32[8,6] {\n  %p = f32[8,6] parameter(0)\n  ROOT %r = f32[8,6] all-reduce(%p), channel_id=1, \
         replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add\n}",
    );
    let halves = |dim: usize, slices: &str| {
        let mut shard = [8, 6];
        shard[dim] /= 2;
        let shape = format!("f32[{},{}]", shard[0], shard[1]);
        entry(
            4,
            &format!(
                "(p: f32[8,6]) -> f32[8,6] {{\n  %p = f32[8,6] parameter(0)\n  %s = {shape} reduce-scatter(%p), \
                 channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}, use_global_device_ids=true, dimensions={{{dim}}}, \
                 to_apply=%add\n  %a = {shape} all-reduce(%s), channel_id=2, replica_groups={slices}, \
                 use_global_device_ids=true, to_apply=%add\n  ROOT %g = f32[8,6] all-gather(%a), channel_id=3, \
                 replica_groups={{{{0,1}},{{2,3}}}}, use_global_device_ids=true, dimensions={{{dim}}}\n}}"
            ),
        )
    };
    for dim in [0, 1] {
        equal(false, &whole, &halves(dim, "{{0,2},{1,3}}"));
        // Each half is added up among devices that hold different halves.
        different(&whole, &halves(dim, "{{0,3},{1,2}}"));
    }
}

#[test]
fn a_scattered_sum_that_is_gathered_is_the_sum() {
    let whole = entry(
        4,
        "(p: f32[8,4]) -> f32[8,4] {\n  %p = f32[8,4] parameter(0)\n  ROOT %r = f32[8,4] all-reduce(%p), channel_id=1, \
         replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add\n}",
    );
    let scattered = |order: &str| {
        entry(
            4,
            &format!(
                "(p: f32[8,4]) -> f32[8,4] {{\n  %p = f32[8,4] parameter(0)\n  %t = f32[4,8] transpose(%p), \
                 dimensions={{1,0}}\n  %s = f32[1,8] reduce-scatter(%t), channel_id=1, replica_groups={{{{0,1,2,3}}}}, \
                 use_global_device_ids=true, dimensions={{0}}, to_apply=%add\n  %g = f32[4,8] all-gather(%s), \
                 channel_id=2, replica_groups={{{{{order}}}}}, use_global_device_ids=true, dimensions={{0}}\n  ROOT %u = \
                 f32[8,4] transpose(%g), dimensions={{1,0}}\n}}"
            ),
        )
    };
    equal(true, &whole, &scattered("0,1,2,3"));
    different(&whole, &scattered("0,2,1,3"));
}

#[test]
fn shards_of_an_elementwise_op_are_the_ops_shards() {
    let before = entry(
        4,
        "(p: f32[8,6], q: f32[6]) -> f32[8,6] {\n  %p = f32[8,6] parameter(0), sharding={replicated}\n  %q = f32[6] \
         parameter(1), sharding={replicated}\n  %b = f32[8,6] broadcast(%q), dimensions={1}\n  %m = f32[8,6] multiply(%p, \
         %b)\n  ROOT %r = f32[8,6] tanh(%m)\n}",
    );
    let after = |start: &str| {
        entry(
            4,
            &format!(
                "(p: f32[8,6], q: f32[6]) -> f32[8,6] {{\n  %p = f32[8,6] parameter(0), sharding={{replicated}}\n  %q = \
                 f32[6] parameter(1), sharding={{replicated}}\n  %table = s32[4] constant({start})\n  %id = u32[] \
                 partition-id()\n  %at = s32[1] dynamic-slice(%table, %id), dynamic_slice_sizes={{1}}\n  %row = s32[] \
                 reshape(%at)\n  %zero = s32[] constant(0)\n  %s = f32[2,6] dynamic-slice(%p, %row, %zero), \
                 dynamic_slice_sizes={{2,6}}\n  %b = f32[2,6] broadcast(%q), dimensions={{1}}\n  %m = f32[2,6] \
                 multiply(%s, %b)\n  %t = f32[2,6] tanh(%m)\n  ROOT %g = f32[8,6] all-gather(%t), channel_id=1, \
                 replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, dimensions={{0}}\n}}"
            ),
        )
    };
    equal(true, &before, &after("{0, 2, 4, 6}"));
    different(&before, &after("{0, 2, 4, 5}"));
}

#[test]
fn a_reduction_of_parts_is_the_reduction() {
    let before = entry(
        4,
        "(p: f32[8,6]) -> f32[6] {\n  %p = f32[8,6] parameter(0), sharding={replicated}\n  %z = f32[] constant(0)\n  ROOT %r \
         = f32[6] reduce(%p, %z), dimensions={0}, to_apply=%add\n}",
    );
    let after = |rows: usize| {
        entry(
            4,
            &format!(
                "(p: f32[8,6]) -> f32[6] {{\n  %p = f32[8,6] parameter(0), sharding={{replicated}}\n  %z = f32[] \
                 constant(0)\n  %id = u32[] partition-id()\n  %two = u32[] constant({rows})\n  %row = u32[] \
                 multiply(%id, %two)\n  %zero = u32[] constant(0)\n  %s = f32[{rows},6] dynamic-slice(%p, %row, %zero), \
                 dynamic_slice_sizes={{{rows},6}}\n  %l = f32[6] reduce(%s, %z), dimensions={{0}}, to_apply=%add\n  ROOT \
                 %r = f32[6] all-reduce(%l), channel_id=1, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, \
                 to_apply=%add\n}}"
            ),
        )
    };
    equal(false, &before, &after(2));
    // Rows 4 to 7 are added up by nobody.
    different(&before, &after(1));
    // The last devices' windows are moved back into the array: rows count twice.
    different(&before, &after(3));
}

#[test]
fn a_factor_and_a_sum_over_devices_change_places() {
    let with = |first: &str, second: &str| {
        entry(
            4,
            &format!(
                "(p: f32[4,3]) -> f32[4,3] {{\n  %p = f32[4,3] parameter(0)\n  %c = f32[] constant(0.25)\n  \
                 %b = f32[4,3] broadcast(%c), dimensions={{}}\n{first}{second}}}"
            ),
        )
    };
    let sum = |of: &str, name: &str| {
        format!(
            "  {name} = f32[4,3] all-reduce({of}), channel_id=1, replica_groups={{{{0,1,2,3}}}}, \
             use_global_device_ids=true, to_apply=%add\n"
        )
    };
    let first_sum = with(&sum("%p", "%s"), "  ROOT %m = f32[4,3] multiply(%s, %b)\n");
    let first_factor = with("  %m = f32[4,3] multiply(%p, %b)\n", &sum("%m", "ROOT %s"));
    equal(false, &first_sum, &first_factor);
    let nonlinear = with("  %m = f32[4,3] power(%p, %b)\n", &sum("%m", "ROOT %s"));
    assert!(!proof(&first_sum, &nonlinear).is_proved());
}

#[test]
fn a_product_with_what_is_equal_may_be_summed_before() {
    let text = |body: &str| {
        entry(
            4,
            &format!(
                "(x: f32[3,5], w: f32[5,2]) -> f32[3,2] {{\n  %x = f32[3,5] parameter(0)\n  %w = f32[5,2] \
                 parameter(1), sharding={{replicated}}\n{body}}}"
            ),
        )
    };
    let dot = |name: &str, x: &str| {
        format!("  {name} = f32[3,2] dot({x}, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n")
    };
    let groups = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add";
    let late = text(&(dot("%d", "%x") + &format!("  ROOT %r = f32[3,2] all-reduce(%d), {groups}\n")));
    let early = text(&(format!("  %s = f32[3,5] all-reduce(%x), {groups}\n") + &dot("ROOT %d", "%s")));
    equal(false, &late, &early);
    let twice = text(
        &(format!("  %s = f32[3,5] all-reduce(%x), {groups}\n")
            + &dot("%d", "%s")
            + &format!("  ROOT %r = f32[3,2] all-reduce(%d), {}\n", groups.replace("channel_id=1", "channel_id=2"))),
    );
    different(&late, &twice);
}

/// A loop of four iterations over `(counter, x, acc)`.
fn adding_loop(body: &str, after: &str) -> Module {
    module(
        4,
        &format!(
            "%body (t: (s32[], f32[4,3], f32[4,3])) -> (s32[], f32[4,3], f32[4,3]) {{\n  %t = (s32[], f32[4,3], f32[4,3]) \
             parameter(0)\n  %i = s32[] get-tuple-element(%t), index=0\n  %x = f32[4,3] get-tuple-element(%t), index=1\n  \
             %acc = f32[4,3] get-tuple-element(%t), index=2\n  %one = s32[] constant(1)\n  %next = s32[] add(%i, %one)\n  \
             %n = f32[] convert(%i)\n  %nb = f32[4,3] broadcast(%n), dimensions={{}}\n  %g = f32[4,3] multiply(%x, \
             %nb)\n{body}  ROOT %r = (s32[], f32[4,3], f32[4,3]) tuple(%next, %x, %sum)\n}}\n\n%cond (t.1: (s32[], \
             f32[4,3], f32[4,3])) -> pred[] {{\n  %t.1 = (s32[], f32[4,3], f32[4,3]) parameter(0)\n  %i.1 = s32[] \
             get-tuple-element(%t.1), index=0\n  %four = s32[] constant(4)\n  ROOT %less = pred[] compare(%i.1, %four), \
             direction=LT\n}}\n\nENTRY %main (p: f32[4,3]) -> f32[4,3] {{\n  %p = f32[4,3] parameter(0)\n  \
             %zero = s32[] constant(0)\n  %z = f32[] constant(0)\n  %zs = f32[4,3] broadcast(%z), dimensions={{}}\n  %init \
             = (s32[], f32[4,3], f32[4,3]) tuple(%zero, %p, %zs)\n  %w = (s32[], f32[4,3], f32[4,3]) while(%init), \
             condition=%cond, body=%body\n{after}}}"
        ),
    )
}

#[test]
fn what_a_loop_adds_up_may_be_summed_over_devices_behind_it() {
    let groups = "replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add";
    let take = |name: &str| format!("  {name} = f32[4,3] get-tuple-element(%w), index=2\n");
    let inside = adding_loop(
        &format!("  %s = f32[4,3] all-reduce(%g), channel_id=1, {groups}\n  %sum = f32[4,3] add(%acc, %s)\n"),
        &take("ROOT %out"),
    );
    let behind = |op: &str| {
        adding_loop(
            &format!("  %sum = f32[4,3] {op}(%acc, %g)\n"),
            &(take("%local") + &format!("  ROOT %out = f32[4,3] all-reduce(%local), channel_id=1, {groups}\n")),
        )
    };
    equal(false, &inside, &behind("add"));
    different(&inside, &behind("subtract"));
    // What each iteration uses again is no sum that may wait.
    let used = adding_loop(
        "  %mixed = f32[4,3] multiply(%acc, %g)\n  %sum = f32[4,3] add(%mixed, %g)\n",
        &(take("%local") + &format!("  ROOT %out = f32[4,3] all-reduce(%local), channel_id=1, {groups}\n")),
    );
    assert!(!proof(&inside, &used).is_proved());
}

#[test]
fn a_gather_of_part_of_the_indices_is_a_part_of_the_gather() {
    let gather =
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}";
    let head = "(t: f32[9,3], i: s32[8]) -> f32[8,3] {\n  %t = f32[9,3] parameter(0), sharding={replicated}\n  %i0 = \
                s32[8] parameter(1), sharding={replicated}\n  %seven = s32[8] constant({7, 7, 7, 7, 7, 7, 7, 7})\n  %i = \
                s32[8] and(%i0, %seven)\n";
    let before = entry(4, &format!("{head}  ROOT %g = f32[8,3] gather(%t, %i), {gather}\n}}"));
    let after = |rows: &str| {
        entry(
            4,
            &format!(
                "{head}  %id = u32[] partition-id()\n  %two = u32[] constant({rows})\n  %row = u32[] multiply(%id, \
                 %two)\n  %s = s32[2] dynamic-slice(%i, %row), dynamic_slice_sizes={{2}}\n  %g = f32[2,3] gather(%t, %s), \
                 {gather}\n  ROOT %all = f32[8,3] all-gather(%g), channel_id=1, replica_groups={{{{0,1,2,3}}}}, \
                 use_global_device_ids=true, dimensions={{0}}\n}}"
            ),
        )
    };
    equal(true, &before, &after("2"));
    different(&before, &after("1"));
}

#[test]
fn rows_that_indices_count_along_are_no_positions() {
    let lines = |tail: &str| {
        entry(
            2,
            &format!(
                "(a: f32[], i: s32[1], u: f32[]) -> f32[4,2] {{\n  %a = f32[] parameter(0)\n  %i = s32[1] parameter(1)\n  \
                 %u = f32[] parameter(2)\n  %aa = f32[4,2] broadcast(%a), dimensions={{}}\n  %uu = f32[1,2] \
                 broadcast(%u), dimensions={{}}\n  %s = f32[4,2] scatter(%aa, %i, %uu), update_window_dims={{1}}, \
                 inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%add\n{tail}}}"
            ),
        )
    };
    let turned = lines("  %t = f32[2,4] transpose(%s), dimensions={1,0}\n  ROOT %r = f32[4,2] reshape(%t)\n");
    let plain = lines("  ROOT %r = f32[4,2] copy(%s)\n");
    assert!(!proof(&plain, &turned).is_proved());
    assert!(proof(&plain, &plain).is_proved());
}

#[test]
fn devices_that_hold_different_inputs_are_not_equal() {
    let lines = |sharding: &str, tail: &str| {
        entry(2, &format!("(p: f32[4]) -> f32[4] {{\n  %p = f32[4] parameter(0), sharding={sharding}\n{tail}}}"))
    };
    let twice = "  ROOT %m = f32[4] all-reduce(%p), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, \
                 to_apply=%max\n";
    let once = "  ROOT %m = f32[4] copy(%p)\n";
    equal(true, &lines("{replicated}", once), &lines("{replicated}", twice));
    let apart = "{devices=[2]<=[2]}";
    different(&lines(apart, once), &lines(apart, twice));
}

#[test]
fn what_enters_a_reduction_once_does_not_enter_its_parts() {
    let lines = |tail: &str| {
        entry(
            2,
            &format!(
                "(x: f32[8], c: f32[]) -> f32[] {{\n  %p = f32[8] parameter(0)\n  %c = f32[] parameter(1)\n{tail}}}"
            ),
        )
    };
    let whole = lines("  ROOT %r = f32[] reduce(%p, %c), dimensions={0}, to_apply=%add\n");
    let parts = |second: &str| {
        lines(&format!(
            "  %l = f32[4] slice(%p), slice={{[0:4]}}\n  %h = f32[4] slice(%p), slice={{[4:8]}}\n  %z = f32[] \
             constant(0)\n  %a = f32[] reduce(%l, %c), dimensions={{0}}, to_apply=%add\n  %b = f32[] reduce(%h, \
             {second}), dimensions={{0}}, to_apply=%add\n  ROOT %r = f32[] add(%a, %b)\n"
        ))
    };
    different(&whole, &parts("%c"));
}

#[test]
fn a_sum_in_a_narrower_type_is_another_sum() {
    let lines = |tail: &str| {
        module(
            2,
            &format!(
                "%addb (x.2: bf16[], y.2: bf16[]) -> bf16[] {{\n  %x.2 = bf16[] parameter(0)\n  %y.2 = bf16[] \
                 parameter(1)\n  ROOT %s.2 = bf16[] add(%x.2, %y.2)\n}}\n\nENTRY %main (p: bf16[4,8], w: bf16[8,4]) -> \
                 f32[4,4] {{\n  %p = bf16[4,8] parameter(0)\n  %w = bf16[8,4] parameter(1), \
                 sharding={{replicated}}\n{tail}}}"
            ),
        )
    };
    let groups = "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true";
    let dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    let wide = lines(&format!(
        "  %d = f32[4,4] dot(%p, %w), {dims}\n  ROOT %r = f32[4,4] all-reduce(%d), {groups}, to_apply=%add\n"
    ));
    let narrow = lines(&format!(
        "  %q = bf16[4,8] all-reduce(%p), {groups}, to_apply=%addb\n  ROOT %r = f32[4,4] dot(%q, %w), {dims}\n"
    ));
    different(&wide, &narrow);
}

#[test]
fn an_iota_that_wraps_is_no_count() {
    let lines = |tail: &str| entry(2, &format!("() -> f32[200] {{\n{tail}}}"));
    let narrow = lines("  %i = s8[200] iota(), iota_dimension=0\n  ROOT %r = f32[200] convert(%i)\n");
    let wide = lines(
        "  %i = s32[200] iota(), iota_dimension=0\n  %n = s8[200] convert(%i)\n  %w = s32[200] convert(%n)\n  ROOT %r = \
         f32[200] convert(%i)\n",
    );
    assert!(!proof(&narrow, &wide).is_proved());
}

#[test]
fn what_blocks_a_chain_is_named_in_the_module_where_it_stands() {
    let whole = entry(2, "(p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n  ROOT %r = f32[4] tanh(%p)\n}");
    // More instructions than the last module of the chain has.
    let first = entry(
        2,
        "(p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n  %a = f32[4] negate(%p)\n  %b = f32[4] negate(%a)\n  \
         %c = f32[4] exponential(%b)\n  ROOT %wrong = f32[4] sine(%c)\n}",
    );
    let last = entry(2, "(q: f32[4]) -> f32[4] {\n  ROOT %q = f32[4] parameter(0)\n}");
    let proof = prove_chain(&whole, &[&first, &last], &Options::default()).unwrap();
    let difference = proof.outputs[0].difference.clone().unwrap();
    assert!(difference.contains("expected %r") && difference.contains("found %wrong"), "{difference}");
}

#[test]
fn a_promise_about_indices_may_be_dropped_and_not_made() {
    let program = |gather: &str, scatter: &str| {
        entry(
            1,
            &format!(
                "(x: f32[8,4], i: s32[6,1], u: f32[6,4]) -> f32[8,4] {{\n  %x = f32[8,4] parameter(0)\n  %i = s32[6,1] parameter(1)\n  \
                 %u = f32[6,4] parameter(2)\n  %g = f32[6,4] gather(%x, %i), offset_dims={{1}}, collapsed_slice_dims={{0}}, \
                 start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}{gather}\n  %s = f32[6,4] add(%g, %u)\n  \
                 ROOT %r = f32[8,4] scatter(%x, %i, %s), update_window_dims={{1}}, inserted_window_dims={{0}}, \
                 scatter_dims_to_operand_dims={{0}}, index_vector_dim=1{scatter}, to_apply=%add\n}}"
            ),
        )
    };
    let [sorted, unique] = [", indices_are_sorted=true", ", unique_indices=true"];
    let plain = program("", "");
    for (gather, scatter, what) in
        [(sorted, "", "indices_are_sorted=true"), ("", sorted, "sorted"), ("", unique, "unique_indices=true")]
    {
        let promised = program(gather, scatter);
        assert!(proof(&promised, &plain).is_proved());
        assert!(proof(&promised, &promised).is_proved());
        let gained = proof(&plain, &promised);
        assert!(!gained.is_proved());
        let difference = gained.outputs[0].difference.clone().unwrap_or_default();
        assert!(difference.contains("promises") && difference.contains(what), "{difference}");
    }
}

#[test]
fn a_trip_count_that_the_condition_does_not_say_is_not_believed() {
    let program = |end: &str, says: &str| {
        let text = format!(
            "HloModule m\n\nbody {{\n  t = (s32[], f32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  \
             x = f32[] get-tuple-element(t), index=1\n  n = s32[] get-tuple-element(t), index=2\n  one = s32[] constant(1)\n  \
             j = s32[] add(i, one)\n  y = f32[] add(x, x)\n  ROOT r = (s32[], f32[], s32[]) tuple(j, y, n)\n}}\n\n\
             test {{\n  t = (s32[], f32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  {end}\n  \
             ROOT c = pred[] compare(i, n), direction=LT\n}}\n\nENTRY e {{\n  x = f32[] parameter(0)\n  n = s32[] parameter(1)\n  \
             zero = s32[] constant(0)\n  t = (s32[], f32[], s32[]) tuple(zero, x, n)\n  \
             w = (s32[], f32[], s32[]) while(t), condition=test, body=body{says}\n  ROOT y = f32[] get-tuple-element(w), index=1\n}}\n"
        );
        hlo_text::parse_module(&text).unwrap_or_else(|errors| panic!("{errors:?}")).module
    };
    let says = |n: u32| format!(", backend_config={{\"known_trip_count\":{{\"n\":\"{n}\"}}}}");
    let (given, four) = ("n = s32[] get-tuple-element(t), index=2", "n = s32[] constant(4)");
    let proved = |before: &Module, after: &Module| proof(before, after).is_proved();
    assert!(proved(&program(four, ""), &program(four, &says(4))));
    assert!(proved(&program(given, &says(3)), &program(given, &says(3))));
    assert!(proved(&program(given, &says(3)), &program(given, "")));
    assert!(!proved(&program(given, ""), &program(given, &says(3))));
    assert!(!proved(&program(given, &says(5)), &program(given, &says(3))));
    assert!(!proved(&program(four, ""), &program(four, &says(3))));
}
