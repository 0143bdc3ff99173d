//! Manual regions.

use super::{elems, mesh, module, outputs, try_outputs};
use hlo_eval::global::{GlobalProgram, find_manual_region};
use hlo_eval::{EvalError, EvalOptions, Inputs};
use hlo_ir::Module;
use hlo_ir::devices::find_n_devices;

/// Columns of `x = f32[8,3]` are added up by a region, whose body ends in `ROOT %s = f32[3] {sum}`; with or without a call, in either form.
fn sums(sum: &str) -> [Module; 2] {
    let body = format!(
        "%body {{\n  %x = f32[2,3] parameter(0)\n  %zero = f32[] constant(0)\n  \
         %p = f32[3] reduce(%x, %zero), dimensions={{0}}, to_apply=%add\n  ROOT %s = f32[3] {sum}\n}}\n"
    );
    let shardy = module(
        &mesh("d=4"),
        &body,
        "  %x = f32[8,3] parameter(0), sharding={devices=[4,1]<=[4]}
  %l = f32[2,3] custom-call(%x), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {'d'}, {} | 'd')
  %b = f32[3] call(%l), to_apply=%body
  ROOT %g = f32[3] custom-call(%b), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {} | 'd')",
    );
    let gspmd = module(
        "",
        "",
        &format!(
            "  %in = f32[8,3] parameter(0), sharding={{devices=[4,1]<=[4]}}
  %c = f32[8,3] custom-call(%in), custom_call_target=\"Sharding\", sharding={{devices=[4,1]<=[4]}}
  %x = f32[2,3] custom-call(%c), custom_call_target=\"SPMDFullToShardShape\", sharding={{manual}}
  %zero = f32[] constant(0)
  %p = f32[3] reduce(%x, %zero), dimensions={{0}}, to_apply=%add
  %s = f32[3] {sum}
  %m = f32[3] custom-call(%s), custom_call_target=\"Sharding\", sharding={{manual}}
  ROOT %g = f32[3] custom-call(%m), custom_call_target=\"SPMDShardToFullShape\", sharding={{replicated}}"
        ),
    );
    [shardy, gspmd]
}

#[test]
fn a_region_takes_tiles_and_gives_wholes_in_both_forms() {
    // Of 1 to 24 in rows of three: 1 + 4 + … + 22, and so on.
    for module in sums("all-reduce(%p), ALL") {
        assert_eq!((find_n_devices(&module), find_manual_region(&module).is_some()), (4, true));
        assert_eq!(outputs(&module), [92.0, 100.0, 108.0]);
    }
}

#[test]
fn copies_that_differ_are_told_and_each_device_goes_on_with_its_own() {
    for module in sums("copy(%p)") {
        let found = try_outputs(&module).unwrap();
        let of_devices: Vec<Vec<f32>> = found.of_devices().leaves[0].iter().map(|array| elems(array)).collect();
        assert_eq!(of_devices[..2], [vec![5.0, 7.0, 9.0], vec![17.0, 19.0, 21.0]]);
        let error = found.agreed().unwrap_err().to_string();
        assert_eq!(
            error,
            "output 0: expected one result of the global program, found 5 on device 0 and 17 on device 1 at [0]; the \
             copies of value 0 of %g that devices 0 and 1 go on with differ at [0]: 5 and 17"
        );
    }
}

#[test]
fn wrong_groups_and_wrong_tiles_give_other_results() {
    let pairs = "all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%add";
    for module in sums(pairs) {
        assert!(try_outputs(&module).unwrap().agreed().is_err());
    }
    // The tile of another device of the same axis: the order of the mesh says which.
    let gathered = |devices: &str| {
        module(
            "",
            "",
            &format!(
                "  %in = f32[4] parameter(0), sharding={{devices=[4]{devices}}}
  %c = f32[4] custom-call(%in), custom_call_target=\"Sharding\", sharding={{devices=[4]{devices}}}
  %x = f32[1] custom-call(%c), custom_call_target=\"SPMDFullToShardShape\", sharding={{manual}}
  %g = f32[4] all-gather(%x), channel_id=1, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, dimensions={{0}}
  %m = f32[4] custom-call(%g), custom_call_target=\"Sharding\", sharding={{manual}}
  ROOT %r = f32[4] custom-call(%m), custom_call_target=\"SPMDShardToFullShape\", sharding={{replicated}}"
            ),
        )
    };
    assert_eq!(outputs(&gathered("<=[4]")), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(outputs(&gathered("1,0,2,3")), [2.0, 1.0, 3.0, 4.0]);
    assert_eq!(outputs(&gathered("<=[2,2]T(1,0)")), [1.0, 3.0, 2.0, 4.0]);
}

/// Rows of `f32[4,6]` over `x`; columns are left to a partitioner along `y`.
const PARTLY: &str = "%body {
  %x = f32[2,6] parameter(0)
  %zero = f32[] constant(0)
  %p = f32[6] reduce(%x, %zero), dimensions={0}, to_apply=%add
  ROOT %s = f32[6] all-reduce(%p), channel_id=1, replica_groups={{0,2},{1,3}}, use_global_device_ids=true, to_apply=%add
}
";

#[test]
fn a_region_along_one_of_two_axes_sees_the_other_in_whole() {
    let expected = [40.0, 44.0, 48.0, 52.0, 56.0, 60.0];
    let shardy = module(
        &mesh("x=2 y=2"),
        PARTLY,
        "  %x = f32[4,6] parameter(0)
  %l = f32[2,6] custom-call(%x), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {'x', ?}, {'y'} | 'x')
  %b = f32[6] call(%l), to_apply=%body
  ROOT %g = f32[6] custom-call(%b), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {?} | 'x')",
    );
    assert_eq!(outputs(&shardy), expected);
    // As JAX prints it, and as XLA does when it has filled in what the user left open: columns over `y` as well.
    let gspmd = |whole: &str, manual: &str| {
        module(
            "",
            PARTLY,
            &format!(
                "  %in = f32[4,6] parameter(0)
  %c = f32[4,6] custom-call(%in), custom_call_target=\"Sharding\", sharding={{{whole}}}
  %x = f32[2,6] custom-call(%c), custom_call_target=\"SPMDFullToShardShape\", sharding={{{manual}}}
  %b = f32[6] call(%x), to_apply=%body, sharding={{devices=[1,2,2]<=[4] last_tile_dims={{manual, replicated}}}}
  ROOT %g = f32[6] custom-call(%b), custom_call_target=\"SPMDShardToFullShape\", sharding={{replicated}}"
            ),
        )
    };
    let manual_x = "devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}";
    assert_eq!(outputs(&gspmd("devices=[2,1,2]<=[4] last_tile_dim_replicate", manual_x)), expected);
    let columns_too = "devices=[1,2,2]<=[2,2]T(1,0) last_tile_dims={manual}";
    assert_eq!(outputs(&gspmd("devices=[2,2]<=[4]", columns_too)), expected);
    // Rows over both axes: the manual one is the outer one.
    let rows_too = "devices=[2,1,2]<=[2,2]T(1,0) last_tile_dims={manual}";
    assert_eq!(outputs(&gspmd("devices=[4,1]<=[4]", rows_too)), expected);
}

#[test]
fn another_axis_gives_other_copies() {
    // Rows over one axis of two alike, summed over the first.
    let over = |axis: &str| {
        module(
            &mesh("x=2 y=2"),
            PARTLY,
            &format!(
                "  %x = f32[4,6] parameter(0)
  %l = f32[2,6] custom-call(%x), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {{'{axis}'}}, {{}} | 'x', 'y')
  %b = f32[6] call(%l), to_apply=%body
  ROOT %g = f32[6] custom-call(%b), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {{}} | 'x', 'y')"
            ),
        )
    };
    assert_eq!(outputs(&over("x")), [40.0, 44.0, 48.0, 52.0, 56.0, 60.0]);
    let swapped = try_outputs(&over("y")).unwrap();
    let of_devices: Vec<f32> = swapped.of_devices().leaves[0].iter().map(|array| elems(array)[0]).collect();
    assert_eq!(of_devices, [16.0, 64.0, 16.0, 64.0], "each half of the rows twice");
    assert!(swapped.agreed().is_err());
}

#[test]
fn regions_stand_in_calls_loops_and_branches() {
    let begin = |of: &str, to: &str| {
        format!(
            "%{to} = f32[2] custom-call(%{of}), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {{'d'}} | 'd')"
        )
    };
    let end = |of: &str, to: &str| {
        format!(
            "{to} = f32[8] custom-call(%{of}), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {{'d'}} | 'd')"
        )
    };
    // Each region moves the tiles on by one device.
    let ring = "collective-permute(%l), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}";
    let turned = format!(
        "%turned {{\n  %x = f32[8] parameter(0)\n  {}\n  %p = f32[2] {ring}\n  {}\n}}\n",
        begin("x", "l"),
        end("p", "ROOT %g")
    );
    let call =
        module(&mesh("d=4"), &turned, "  %x = f32[8] parameter(0)\n  ROOT %c = f32[8] call(%x), to_apply=%turned");
    assert_eq!(outputs(&call), [7.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let loops = format!(
        "{turned}
%body {{
  %t = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %v = f32[8] get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %n = s32[] add(%i, %one)
  %w = f32[8] call(%v), to_apply=%turned
  ROOT %r = (s32[], f32[8]) tuple(%n, %w)
}}

%condition {{
  %t.1 = (s32[], f32[8]) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.1), index=0
  %three = s32[] constant(3)
  ROOT %go = pred[] compare(%i.1, %three), direction=LT
}}
"
    );
    let loops = module(
        &mesh("d=4"),
        &loops,
        "  %x = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], f32[8]) tuple(%zero, %x)
  %w = (s32[], f32[8]) while(%t), condition=%condition, body=%body
  ROOT %r = f32[8] get-tuple-element(%w), index=1",
    );
    assert_eq!(outputs(&loops), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.0, 2.0]);
    // The body of a scan over one row each: the carried value is turned and added to the row.
    let scanned = format!(
        "{turned}
%row {{
  %r = f32[8] parameter(0)
  %c = f32[8] parameter(1)
  %w = f32[8] call(%c), to_apply=%turned
  %s = f32[8] add(%r, %w)
  ROOT %o = (f32[8], f32[8]) tuple(%s, %s)
}}
"
    );
    let scan = module(
        &mesh("d=4"),
        &scanned,
        "  %rows = f32[2,8] parameter(0)
  %zero = f32[] constant(0)
  %zeros = f32[8] broadcast(%zero), dimensions={}
  %t = (f32[2,8], f32[8]) scan(%rows, %zeros), dimensions={0}, num_carries=1, to_apply=%row
  ROOT %last = f32[8] get-tuple-element(%t), index=1",
    );
    // The first row turned by two elements, and the second one.
    assert_eq!(outputs(&scan), [16.0, 18.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0]);
    let other = "%other {\n  %y = f32[8] parameter(0)\n  ROOT %n = f32[8] negate(%y)\n}\n";
    let branches = |choice: &str| {
        module(
            &mesh("d=4"),
            &format!("{turned}{other}"),
            &format!(
                "  %x = f32[8] parameter(0)
  {choice}
  ROOT %r = f32[8] conditional(%k, %x, %x), branch_computations={{%turned, %other}}"
            ),
        )
    };
    assert_eq!(outputs(&branches("%k = s32[] constant(0)"))[0], 7.0);
    assert_eq!(outputs(&branches("%k = s32[] constant(1)"))[0], -1.0);
    // Not all devices take the branch with the region.
    let split = "%id = u32[] partition-id()\n  %k = s32[] convert(%id)";
    let error = try_outputs(&branches(split)).unwrap_err();
    assert!(matches!(error, EvalError::Divergent(_)), "{error}");
}

#[test]
fn a_region_within_a_region_exchanges_along_its_own_axis() {
    // Rows over x; within, columns over y: each device negates its own quarter, and adds the number of its row half.
    let nested = "%inner {
  %q = f32[2,2] parameter(0)
  ROOT %n = f32[2,2] negate(%q)
}

%outer {
  %h = f32[2,4] parameter(0)
  %l.1 = f32[2,2] custom-call(%h), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {}, {'y'} | 'y')
  %b.1 = f32[2,2] call(%l.1), to_apply=%inner
  ROOT %g.1 = f32[2,4] custom-call(%b.1), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {}, {'y'} | 'y')
}
";
    let module = module(
        &mesh("x=2 y=2"),
        nested,
        "  %x = f32[4,4] parameter(0)
  %l = f32[2,4] custom-call(%x), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {'x'}, {} | 'x')
  %b = f32[2,4] call(%l), to_apply=%outer
  ROOT %g = f32[4,4] custom-call(%b), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {'x'}, {} | 'x')",
    );
    assert_eq!(outputs(&module), (1..=16).map(|i| -(i as f32)).collect::<Vec<_>>());
}

#[test]
fn what_pads_uneven_tiles_shows() {
    // Five elements on four devices: two, two, one, none.
    let sum_of_tiles = |held: &str| {
        module(
            "",
            "",
            &format!(
                "  %in = f32[5] parameter(0)
  %c = f32[5] custom-call(%in), custom_call_target=\"Sharding\", sharding={{devices=[4]<=[4]}}
  %x = f32[2] custom-call(%c), custom_call_target=\"SPMDFullToShardShape\", sharding={{manual}}
  %id = u32[] partition-id()
  %two = u32[] constant(2)
  %first = u32[] multiply(%id, %two)
  %firsts = u32[2] broadcast(%first), dimensions={{}}
  %number = u32[2] iota(), iota_dimension=0
  %at = u32[2] add(%firsts, %number)
  %five = u32[] constant(5)
  %fives = u32[2] broadcast(%five), dimensions={{}}
  %is_held = pred[2] compare(%at, %fives), direction=LT
  %zero = f32[] constant(0)
  %zeros = f32[2] broadcast(%zero), dimensions={{}}
  %masked = f32[2] select(%is_held, %x, %zeros)
  %p = f32[] reduce(%{held}, %zero), dimensions={{0}}, to_apply=%add
  %s = f32[] all-reduce(%p), ALL
  ROOT %g = f32[] custom-call(%s), custom_call_target=\"SPMDShardToFullShape\", sharding={{replicated}}"
            ),
        )
    };
    assert_eq!(outputs(&sum_of_tiles("masked")), [15.0]);
    assert!(outputs(&sum_of_tiles("x"))[0].is_nan());
    // What goes in and out again is the same, without the padding.
    let there_and_back = module(
        &mesh("d=4"),
        "",
        "  %x = f32[5] parameter(0)
  %l = f32[2] custom-call(%x), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {'d'} | 'd')
  ROOT %g = f32[5] custom-call(%l), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {'d'} | 'd')",
    );
    assert_eq!(outputs(&there_and_back), [1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn annotations_are_their_operand_in_reducers_too() {
    // No well-known reduction: the computation runs as scalars.
    let odd = "%odd {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %d = f32[] subtract(%a, %b)
  ROOT %r = f32[] custom-call(%d), custom_call_target=\"Sharding\", sharding={replicated}
}
";
    let module = module(
        "",
        odd,
        "  %x = f32[4] parameter(0), sharding={devices=[4]<=[4]}
  %b = f32[4] custom-call(%x), custom_call_target=\"xla.sdy.PropagationBarrier\"
  %none = () custom-call(%b), custom_call_target=\"xla.sdy.ShardingGroup\", custom_call_has_side_effect=true
  %zero = f32[] constant(0)
  %s = f32[] reduce(%b, %zero), dimensions={0}, to_apply=%odd
  ROOT %r = f32[] custom-call(%s), custom_call_target=\"xla.sdy.FuncResultSharding\"",
    );
    assert_eq!(outputs(&module), [-10.0]);
    assert_eq!((find_n_devices(&module), find_manual_region(&module)), (4, None));
}

#[test]
fn several_values_cross_at_once() {
    let both = "%body {
  %x = f32[2,2] parameter(0)
  %w = f32[2,2] parameter(1)
  %n = f32[2,2] negate(%x)
  ROOT %t = (f32[2,2], f32[2,2]) tuple(%n, %w)
}
";
    let module = module(
        &mesh("a=2 b=2"),
        both,
        "  %x = f32[4,2] parameter(0)
  %w = f32[4,4] parameter(1)
  %l = (f32[2,2], f32[2,2]) custom-call(%x, %w), custom_call_target=\"xla.sdy.GlobalToLocalShape\", SHARDY(in_shardings | {'b'}, {}; {'a'}, {'b'} | 'a', 'b')
  %l0 = f32[2,2] get-tuple-element(%l), index=0
  %l1 = f32[2,2] get-tuple-element(%l), index=1
  %b = (f32[2,2], f32[2,2]) call(%l0, %l1), to_apply=%body
  %b0 = f32[2,2] get-tuple-element(%b), index=0
  %b1 = f32[2,2] get-tuple-element(%b), index=1
  ROOT %g = (f32[4,2], f32[4,4]) custom-call(%b0, %b1), custom_call_target=\"xla.sdy.LocalToGlobalShape\", SHARDY(out_shardings | {'b'}, {}; {'b'}, {'a'} | 'a', 'b')",
    );
    let found = try_outputs(&module).unwrap().agreed().unwrap();
    assert_eq!(elems(&found.leaves[0][0]), (1..=8).map(|i| -(i as f32)).collect::<Vec<_>>());
    // Tile (a, b) goes to place (b, a).
    let rows = [[1.0, 2.0, 9.0, 10.0], [5.0, 6.0, 13.0, 14.0], [3.0, 4.0, 11.0, 12.0], [7.0, 8.0, 15.0, 16.0]];
    assert_eq!(elems(&found.leaves[1][0]), rows.concat());
}

#[test]
fn what_does_not_fit_is_an_error() {
    let error = |module: &Module| try_outputs(module).unwrap_err().to_string();
    let rows = |begin: &str| module(&mesh("d=4"), "", &format!("  %x = f32[8] parameter(0)\n  ROOT %l = {begin}"));
    let axes = "custom_call_target=\"xla.sdy.GlobalToLocalShape\"";
    assert_eq!(
        error(&rows(&format!("f32[4] custom-call(%x), {axes}, SHARDY(in_shardings | {{'d'}} | 'd')"))),
        "%l in %main: value 0: expected tiles of [8] in [4] parts along its dims, found [4]"
    );
    assert_eq!(
        error(&rows(&format!("f32[2] custom-call(%x), {axes}, SHARDY(in_shardings | {{'e'}} | 'e')"))),
        "%l in %main: expected tiles of rank 1 on 4 devices, found sharding={mesh['d'=4], [{'e'}]}"
    );
    assert_eq!(
        error(&rows("f32[2] custom-call(%x), custom_call_target=\"SPMDFullToShardShape\", sharding={manual}")),
        "%l in %main: expected `sharding=` of the whole value 0, found none"
    );
    assert_eq!(
        error(&rows("f32[8] custom-call(%x), custom_call_target=\"Elsewhere\"")),
        "%l in %main: not evaluated: custom-call \"Elsewhere\": only its library knows what it computes"
    );
    let replicas = module(", replica_count=2", "", "  ROOT %x = f32[8] parameter(0)");
    assert!(GlobalProgram::of(&replicas).unwrap_err().to_string().contains("found 2 replicas"));
    let program = module("", "", "  ROOT %x = f32[8] parameter(0)");
    let none = Inputs { leaves: vec![Vec::new()] };
    let outcome = GlobalProgram::of(&program).unwrap().run(&none, &EvalOptions::default());
    assert_eq!(outcome.unwrap_err().to_string(), "input 0: expected one array for a global program, found 0");
    let eight = module(", num_partitions=8", "", "  ROOT %x = f32[8] parameter(0)");
    assert_eq!(
        GlobalProgram::on(&eight, 4).unwrap_err().to_string(),
        "expected 4 devices, found a global program on 8"
    );
}

#[test]
fn devices_are_counted_by_what_names_them() {
    let line = "  ROOT %x = f32[8] parameter(0)";
    assert_eq!(find_n_devices(&module("", "", line)), 1);
    assert_eq!(find_n_devices(&module(", num_partitions=3", "", line)), 3);
    assert_eq!(find_n_devices(&module(&mesh("a=2 b=3"), "", line)), 6);
    assert_eq!(
        find_n_devices(&module(
            "",
            "",
            "  ROOT %x = f32[8] parameter(0), sharding={devices=[2,2]<=[4] last_tile_dim_replicate}"
        )),
        4
    );
}
