//! A sharded interface: the three modules together do what the original does, and nothing is lost on the way through shards.

use crate::equivalence::{Nearness, check_chain};
use crate::weight_update::{NEAR, annotated, program, run};
use hlo_analysis::annotations::ParamFacts;
use hlo_ir::{DType, Module};
use hlo_pass::report::{Artifact, PassReport};
use hlo_spmd::ShardFormat;
use hlo_wus::{Interface, LeafShards, candidates};

fn module_of(report: &PassReport, wanted: &str) -> Module {
    match report.files.iter().find(|(name, _)| name == wanted) {
        Some((_, Artifact::Module(module))) => (**module).clone(),
        found => panic!("expected module `{wanted}`, found {found:?}"),
    }
}

fn manifest_of(report: &PassReport) -> serde_json::Value {
    match report.files.iter().find(|(name, _)| name == "manifest.json") {
        Some((_, Artifact::Text(late))) => serde_json::from_str(&late.text()).expect("the manifest is JSON"),
        found => panic!("expected manifest.json, found {found:?}"),
    }
}

/// Shards the interface of `file`; returns how many parameters are in shards and the pairs of state.
fn check_program(file: &str, state: &str) -> (usize, usize) {
    let program = program(file);
    let mut main = program.module.clone();
    let pass = format!("shard-weight-update{{min-bytes=0,state={state}}}");
    let report = run(&pass, &mut main, &program.facts);
    let (shard, unshard) = (module_of(&report, "shard.hlo"), module_of(&report, "unshard.hlo"));
    for module in [&shard, &main, &unshard] {
        hlo_ir::verify::verify(module).unwrap_or_else(|e| panic!("{file}, {}: {e:?}", module.name));
        let text = hlo_ir::print::print_module(module, &Default::default());
        hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{file}, {}: {e:?}", module.name));
    }
    let before = annotated(&program, file);
    check_chain(&before, &[&shard, &main, &unshard], &program.draw, NEAR).unwrap_or_else(|e| panic!("{file}: {e}"));
    let manifest = manifest_of(&report);
    let params = manifest["params"].as_array().expect("params");
    let pairs = manifest["state_pairs"].as_array().expect("pairs");
    // What goes in as shards comes out as shards, so that the next step can take it.
    for pair in pairs {
        let (param, output) = (&params[pair[0].as_u64().expect("a number") as usize], &pair[1]);
        let output = &manifest["outputs"][output.as_u64().expect("a number") as usize];
        assert_eq!(param["shard_shape"], output["shard_shape"], "{file}: {pair}");
    }
    for leaf in params.iter().filter(|leaf| leaf["sharded"] == true) {
        let index = leaf["shard_index_by_device"].as_array().expect("indices");
        let mut n_devices = 0;
        for group in leaf["groups"].as_array().expect("groups") {
            for (place, device) in group.as_array().expect("a group").iter().enumerate() {
                assert_eq!(index[device.as_u64().expect("a device") as usize], place, "{file}: {leaf}");
                n_devices += 1;
            }
        }
        assert_eq!(index.len(), n_devices, "{file}: {leaf}");
    }
    (params.iter().filter(|p| p["sharded"] == true).count(), pairs.len())
}

#[test]
fn three_modules_do_what_one_did() {
    assert_eq!(check_program("mlp_odd_adam.hlo", "parameters").0, 18);
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn three_modules_do_what_one_did_in_every_form() {
    assert_eq!(check_program("mlp_adam.hlo", "auto"), (18, 18));
    for state in ["optimizer", "gradients"] {
        assert_eq!(check_program("mlp_adam.hlo", state).0, 12);
    }
    assert_eq!(check_program("mlp_adam_6.hlo", "auto"), (18, 18));
    assert_eq!(check_program("mlp_clipadam.repl.hlo", "auto").0, 18);
    assert_eq!(check_program("mlp_adam_pjit2d.hlo", "auto").0, 18);
}

/// A single step whose state goes through a loop of its own; the first output is state.
const INNER_LOOP: &str = "\
HloModule inner_loop, num_partitions=2

%add_s32 (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %o = s32[] add(%a, %b)
}

%body (p: (s32[], s32[5,4], s32[5,4])) -> (s32[], s32[5,4], s32[5,4]) {
  %p = (s32[], s32[5,4], s32[5,4]) parameter(0)
  %v1 = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %v2 = s32[] add(%v1, %one)
  %v3 = s32[5,4] get-tuple-element(%p), index=2
  ROOT %r = (s32[], s32[5,4], s32[5,4]) tuple(%v2, %v3, %v3)
}

%cond (p: (s32[], s32[5,4], s32[5,4])) -> pred[] {
  %p = (s32[], s32[5,4], s32[5,4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %k = s32[] constant(2)
  ROOT %lt = pred[] compare(%i, %k), direction=LT
}

ENTRY %main (p0: s32[5,4], p5: s32[5,4]) -> (s32[5,4]) {
  %p0 = s32[5,4] parameter(0), sharding={replicated}
  %p5 = s32[5,4] parameter(1)
  %v8 = s32[5,4] all-reduce(%p5), channel_id=4, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add_s32
  %v19 = s32[] constant(0)
  %wt20 = (s32[], s32[5,4], s32[5,4]) tuple(%v19, %v8, %p0)
  %wt20w = (s32[], s32[5,4], s32[5,4]) while(%wt20), condition=%cond, body=%body
  %v21 = s32[5,4] get-tuple-element(%wt20w), index=1
  ROOT %out = (s32[5,4]) tuple(%v21)
}
";

#[test]
fn a_loop_inside_of_the_step_keeps_its_condition() {
    let before = hlo_text::parse_module(INNER_LOOP).unwrap_or_else(|e| panic!("{e:?}")).module;
    let mut main = before.clone();
    let pass = "shard-weight-update{min-bytes=0,state=auto}";
    let report = run(pass, &mut main, &ParamFacts::default());
    let (shard, unshard) = (module_of(&report, "shard.hlo"), module_of(&report, "unshard.hlo"));
    let outcome = check_chain(&before, &[&shard, &main, &unshard], "int9 int9", Nearness::Exact);
    outcome.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(manifest_of(&report)["params"][0]["sharded"], true);
}

/// Momentum, with a copy of the first weights that the optimizer only carries, and an average that evaluation reads.
const CARRIED: &str = "\
HloModule carried, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias), {2}: (2, {}, may-alias), {3}: (3, {}, may-alias) }, num_partitions=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  w = f32[64,16] parameter(0), sharding={replicated}, metadata={op_name=\"params['w']\"}
  m = f32[64,16] parameter(1), sharding={replicated}, metadata={op_name=\"opt.m['w']\"}
  first = f32[6,20] parameter(2), sharding={replicated}, metadata={op_name=\"opt.first['w']\"}
  ema = f32[64,16] parameter(3), sharding={replicated}, metadata={op_name=\"ema['w']\"}
  x = f32[4,64] parameter(4), sharding={devices=[4,1]<=[4]}, metadata={op_name=\"x\"}
  h = f32[4,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  own = f32[64,16] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[64,16] all-reduce(own), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  m1 = f32[64,16] add(m, g)
  rate = f32[] constant(0.01)
  rates = f32[64,16] broadcast(rate), dimensions={}
  step = f32[64,16] multiply(m1, rates)
  w1 = f32[64,16] subtract(w, step)
  sum = f32[64,16] add(ema, w1)
  ROOT out = (f32[64,16], f32[64,16], f32[6,20], f32[64,16]) tuple(w1, m1, first, sum)
}
";

#[test]
fn the_optimizers_state_alone_crosses_the_interface_in_shards() {
    let before = hlo_text::parse_module(CARRIED).unwrap_or_else(|e| panic!("{e:?}")).module;
    for state in ["optimizer", "gradients"] {
        let mut main = before.clone();
        let pass = format!("shard-weight-update{{min-bytes=0,state={state}}}");
        let report = run(&pass, &mut main, &ParamFacts::default());
        hlo_ir::verify::verify(&main).unwrap_or_else(|e| panic!("{state}: {e:?}"));
        let (shard, unshard) = (module_of(&report, "shard.hlo"), module_of(&report, "unshard.hlo"));
        let outcome = check_chain(&before, &[&shard, &main, &unshard], "n1 n1 n1 n1 n1", NEAR);
        outcome.unwrap_or_else(|e| panic!("{state}: {e}"));
        let manifest = manifest_of(&report);
        let of_leaves = |field: &str| -> Vec<serde_json::Value> {
            manifest["params"].as_array().expect("parameters").iter().map(|leaf| leaf[field].clone()).collect()
        };
        assert_eq!(of_leaves("sharded"), [false, true, true, false, false], "{state}");
        let reasons = of_leaves("whole_because");
        assert!(reasons[0].as_str().is_some_and(|reason| reason.contains("the loss reads it")), "{reasons:?}");
        assert!(reasons[3].as_str().is_some_and(|reason| reason.contains("evaluation may read it")), "{reasons:?}");
        assert!(reasons[1].is_null() && reasons[2].is_null(), "{reasons:?}");
    }
}

/// Two of four devices add a gradient up, and the other two repeat their work.
const REPEATED: &str = "\
HloModule repeated, num_partitions=4

%add (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %sum = s32[] add(%a, %b)
}

ENTRY %main (w: s32[6,4], m: s32[6,4], x: s32[6,4], b: s32[8,3], y: s32[8,3]) -> (s32[6,4], s32[6,4], s32[8,3]) {
  %w = s32[6,4] parameter(0), sharding={replicated}
  %m = s32[6,4] parameter(1), sharding={replicated}
  %x = s32[6,4] parameter(2), sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  %b = s32[8,3] parameter(3), sharding={replicated}
  %y = s32[8,3] parameter(4), sharding={devices=[4,1]<=[4]}
  %scaled = s32[6,4] multiply(%x, %w)
  %g = s32[6,4] all-reduce(%scaled), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%add
  %two = s32[] constant(2)
  %twos = s32[6,4] broadcast(%two), dimensions={}
  %kept = s32[6,4] multiply(%m, %twos)
  %m1 = s32[6,4] add(%kept, %g)
  %w1 = s32[6,4] subtract(%w, %m1)
  %h = s32[8,3] all-reduce(%y), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
  %b1 = s32[8,3] subtract(%b, %h)
  ROOT %out = (s32[6,4], s32[6,4], s32[8,3]) tuple(%w1, %m1, %b1)
}
";

#[test]
fn state_lies_over_all_devices_that_hold_the_same() {
    let before = hlo_text::parse_module(REPEATED).unwrap_or_else(|e| panic!("{e:?}")).module;
    for (state, n_cut) in [("optimizer", 1), ("gradients", 1), ("parameters", 3)] {
        let mut main = before.clone();
        let pass = format!("shard-weight-update{{min-bytes=0,state={state}}}");
        let report = run(&pass, &mut main, &ParamFacts::default());
        let (shard, unshard) = (module_of(&report, "shard.hlo"), module_of(&report, "unshard.hlo"));
        let outcome = check_chain(&before, &[&shard, &main, &unshard], "int9 int9 int9 int9 int9", Nearness::Exact);
        outcome.unwrap_or_else(|e| panic!("{state}: {e}"));
        let manifest = manifest_of(&report);
        let params = manifest["params"].as_array().expect("params");
        let cut: Vec<_> = params.iter().filter(|param| param["sharded"] == true).collect();
        assert_eq!(cut.len(), n_cut, "{state}: {manifest}");
        assert_eq!(manifest["repeated_work"], serde_json::json!({"summed_by": 2, "held_by": 4}), "{state}");
        let repeated: Vec<_> = report.decisions.iter().filter(|decision| decision.action == "repeated").collect();
        assert_eq!(repeated.len(), 1, "{state}");
        for param in cut {
            assert_eq!(param["groups"], serde_json::json!([[0, 1, 2, 3]]), "{state}");
        }
    }
}

/// Four updates whose gradients no all-reduce gives: `m` is preconditioned by `l`, `f` holds the sums of `b` and `c` in one array, and every
/// device computes the gradient of `v` whole. `s` begins anew in each step.
const UNSUMMED: &str = "\
HloModule unsummed, num_partitions=4

%add (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %sum = s32[] add(%a, %b)
}

ENTRY %main {
  %w = s32[8,8] parameter(0), sharding={replicated}
  %m = s32[8,8] parameter(1), sharding={replicated}
  %l = s32[8,8] parameter(2), sharding={replicated}
  %v = s32[8,8] parameter(3), sharding={replicated}
  %n = s32[8,8] parameter(4), sharding={replicated}
  %b = s32[8] parameter(5), sharding={replicated}
  %c = s32[8] parameter(6), sharding={replicated}
  %f = s32[16] parameter(7), sharding={replicated}
  %s = s32[8,8] parameter(8), sharding={replicated}
  %x = s32[8,8] parameter(9), sharding={devices=[4,1]<=[4]}
  %y = s32[8] parameter(10), sharding={devices=[4]<=[4]}
  %xw = s32[8,8] multiply(%x, %w)
  %g = s32[8,8] all-reduce(%xw), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
  %gg = s32[8,8] dot(%g, %g), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %l1 = s32[8,8] add(%l, %gg)
  %u = s32[8,8] dot(%l1, %g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %vv = s32[8,8] dot(%v, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %uv = s32[8,8] add(%u, %vv)
  %mm = s32[8,8] add(%m, %m)
  %m1 = s32[8,8] add(%mm, %uv)
  %ms = s32[8,8] add(%m1, %s)
  %w1 = s32[8,8] subtract(%w, %ms)
  %n1 = s32[8,8] add(%n, %vv)
  %v1 = s32[8,8] subtract(%v, %n1)
  %yb = s32[8] multiply(%y, %b)
  %h = s32[8] all-reduce(%yb), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
  %yc = s32[8] multiply(%y, %c)
  %k = s32[8] all-reduce(%yc), channel_id=3, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
  %flat = s32[16] concatenate(%h, %k), dimensions={0}
  %f1 = s32[16] add(%f, %flat)
  %ub = s32[8] slice(%f1), slice={[0:8]}
  %b1 = s32[8] subtract(%b, %ub)
  %uc = s32[8] slice(%f1), slice={[8:16]}
  %c1 = s32[8] subtract(%c, %uc)
  %zero = s32[] constant(0)
  %s_next = s32[8,8] broadcast(%zero), dimensions={}
  ROOT %out = (s32[8,8], s32[8,8], s32[8,8], s32[8,8], s32[8,8], s32[8], s32[8], s32[16], s32[8,8]) tuple(%w1, %m1, %l1, %v1, %n1, %b1, %c1, %f1, %s_next)
}
";

#[test]
fn state_is_in_shards_where_no_all_reduce_gives_its_gradient() {
    let before = hlo_text::parse_module(UNSUMMED).unwrap_or_else(|e| panic!("{e:?}")).module;
    for state in ["optimizer", "gradients"] {
        let mut main = before.clone();
        let pairs = (0..9).map(|n| format!("{n}:{n}")).collect::<Vec<_>>().join(",");
        let pass = format!("shard-weight-update{{min-bytes=0,state={state},state-pairs=[{pairs}]}}");
        let report = run(&pass, &mut main, &ParamFacts::default());
        hlo_ir::verify::verify(&main).unwrap_or_else(|e| panic!("{state}: {e:?}"));
        let (shard, unshard) = (module_of(&report, "shard.hlo"), module_of(&report, "unshard.hlo"));
        let outcome = check_chain(&before, &[&shard, &main, &unshard], &["int9"; 11].join(" "), Nearness::Exact);
        outcome.unwrap_or_else(|e| panic!("{state}: {e}"));
        let manifest = manifest_of(&report);
        let role = |leaf: &serde_json::Value| leaf["role"].as_str().unwrap_or_default().to_string();
        let params = manifest["params"].as_array().expect("parameters");
        let cut: Vec<usize> = (0..params.len()).filter(|&n| params[n]["sharded"] == true).collect();
        assert_eq!(cut, [1, 2, 4, 7], "{state}: {manifest}");
        let roles: Vec<String> = [0, 3, 5, 8, 9].map(|n| role(&params[n])).to_vec();
        assert_eq!(roles, ["weight", "maybe-weight", "weight", "reset", "input"], "{state}");
    }
}

/// Each device updates its own slice of `m` and of `n`, and gathers it. The slices of `n` are gathered in another order than they were
/// taken in.
const BY_HAND: &str = "\
HloModule by_hand, num_partitions=4

%add (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %sum = s32[] add(%a, %b)
}

ENTRY %main {
  %w = s32[8,6] parameter(0), sharding={replicated}
  %m = s32[8,6] parameter(1), sharding={replicated}
  %n = s32[8,6] parameter(2), sharding={replicated}
  %x = s32[8,6] parameter(3), sharding={devices=[4,1]<=[4]}
  %xw = s32[8,6] multiply(%x, %w)
  %g = s32[8,6] all-reduce(%xw), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
  %id = u32[] partition-id()
  %number = s32[] convert(%id)
  %two = s32[] constant(2)
  %start = s32[] multiply(%number, %two)
  %zero = s32[] constant(0)
  %own_m = s32[2,6] dynamic-slice(%m, %start, %zero), dynamic_slice_sizes={2,6}
  %own_n = s32[2,6] dynamic-slice(%n, %start, %zero), dynamic_slice_sizes={2,6}
  %own_g = s32[2,6] dynamic-slice(%g, %start, %zero), dynamic_slice_sizes={2,6}
  %m1 = s32[2,6] add(%own_m, %own_g)
  %n1 = s32[2,6] subtract(%own_n, %own_g)
  %all_m = s32[8,6] all-gather(%m1), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}
  %all_n = s32[8,6] all-gather(%n1), channel_id=3, replica_groups={{1,0,2,3}}, use_global_device_ids=true, dimensions={0}
  %both = s32[8,6] add(%all_m, %all_n)
  %w1 = s32[8,6] subtract(%w, %both)
  ROOT %out = (s32[8,6], s32[8,6], s32[8,6]) tuple(%w1, %all_m, %all_n)
}
";

#[test]
fn what_a_script_updates_in_shards_by_hand_crosses_the_interface_in_them() {
    let before = hlo_text::parse_module(BY_HAND).unwrap_or_else(|e| panic!("{e:?}")).module;
    let mut main = before.clone();
    let pass = "shard-weight-update{min-bytes=0,cuts=even,state=optimizer,state-pairs=[0:0,1:1,2:2]}";
    let report = run(pass, &mut main, &ParamFacts::default());
    hlo_ir::verify::verify(&main).unwrap_or_else(|e| panic!("{e:?}"));
    let (shard, unshard) = (module_of(&report, "shard.hlo"), module_of(&report, "unshard.hlo"));
    let outcome = check_chain(&before, &[&shard, &main, &unshard], "int9 int9 int9 int9", Nearness::Exact);
    outcome.unwrap_or_else(|e| panic!("{e}"));
    let manifest = manifest_of(&report);
    let params = manifest["params"].as_array().expect("parameters");
    let cut: Vec<usize> = (0..params.len()).filter(|&n| params[n]["sharded"] == true).collect();
    assert_eq!(cut, [1], "{manifest}");
    assert_eq!(report.stats["shard-weight-update.own-slices-cut"], 1);
    // The user may have it whole all the same.
    let (mut whole, pinned) = (before.clone(), pass.replace("state=optimizer", "state=optimizer,pins=[1:whole]"));
    let manifest = manifest_of(&run(&pinned, &mut whole, &ParamFacts::default()));
    assert_eq!(manifest["params"][1]["sharded"], false, "{manifest}");
    let text = hlo_ir::print::print_module(&main, &Default::default());
    assert!(!text.contains("%own_m "), "{text}");
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn state_of_a_loop_of_steps_crosses_the_interface_in_shards() {
    assert_eq!(check_program("mlp_adam_fori.hlo", "auto"), (18, 18));
    assert_eq!(check_program("mlp_adam_fori.hlo", "optimizer").0, 12);
}

#[test]
fn stacked_layers_of_a_scan_cross_the_interface_in_shards() {
    assert_eq!(check_program("scan_momentum.hlo", "auto"), (2, 2));
}

/// `unshard(shard(x)) = x` for arrays of these types and dims, cut over groups of `n_shards` in any format there is.
fn check_way_back(n_shards: usize, n_groups: usize, arrays: &[(DType, Vec<i64>)], pick: usize) {
    let params: Vec<String> = arrays
        .iter()
        .enumerate()
        .map(|(i, (dtype, dims))| {
            let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
            format!("  %p{i} = {dtype}[{}] parameter({i}), parameter_replication={{true}}\n", dims.join(","))
        })
        .collect();
    let names: Vec<String> = (0..arrays.len()).map(|i| format!("%p{i}")).collect();
    let text = format!(
        "HloModule state, replica_count={}\n\nENTRY %state {{\n{}  ROOT %t = tuple({})\n}}\n",
        n_shards * n_groups,
        params.concat(),
        names.join(", ")
    );
    let module = hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{text}{e:?}")).module;
    let mut interface = Interface::of(&module).expect("a flat entry");
    // Strided groups, so that shard ids are not device ids.
    let groups: Vec<Vec<u32>> =
        (0..n_groups).map(|g| (0..n_shards).map(|s| (s * n_groups + g) as u32).collect()).collect();
    for (i, leaf) in interface.params.iter_mut().enumerate() {
        let Some(array) = leaf.shape.as_array() else { continue };
        let runs = candidates(array);
        let Some(&run) = runs.get((pick + i) % runs.len().max(1)) else { continue };
        let format = ShardFormat::new(array, run, n_shards);
        leaf.cut = Some(LeafShards { format, groups: groups.clone().into() });
    }
    interface.outputs = interface.params.clone();
    let shard = interface.shard_module().expect("a module");
    let unshard = interface.unshard_module().expect("a module");
    for module in [&shard, &unshard] {
        hlo_ir::verify::verify(module).unwrap_or_else(|e| panic!("{text}{e:?}"));
    }
    check_chain(&module, &[&shard, &unshard], "", Nearness::Exact).unwrap_or_else(|e| panic!("{text}{e}"));
}

#[test]
fn nothing_is_lost_through_shards() {
    const DTYPES: [DType; 10] = [
        DType::F32,
        DType::BF16,
        DType::F16,
        DType::F64,
        DType::S32,
        DType::U8,
        DType::S4,
        DType::Pred,
        DType::C64,
        DType::F8E4M3FN,
    ];
    let mut state = 0x5851_F42D_4C95_7F2D_u64;
    let mut below = |n: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    };
    for _ in 0..150 {
        let (n_shards, n_groups, pick) = (2 + below(7), 1 + below(3), below(8));
        let mut arrays = Vec::new();
        for _ in 0..1 + below(3) {
            let dims = (0..1 + below(3)).map(|_| 1 + below(11) as i64).collect();
            arrays.push((DTYPES[below(DTYPES.len())], dims));
        }
        check_way_back(n_shards, n_groups, &arrays, pick);
    }
}
