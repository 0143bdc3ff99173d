//! The engine on small programs in HLO text, several devices each.

use crate::{EvalError, EvalOptions, Inputs, Outputs, entry_leaves, run};
use hlo_ir::{Literal, Module, Scalar};
use std::sync::Arc;

fn module(text: &str) -> Module {
    match hlo_text::parse_module(text) {
        Ok(parsed) => parsed.module,
        Err(diags) => panic!("{diags:?}"),
    }
}

/// Runs `text`; every leaf of device `d` is filled with `d + 1`, converted to its type.
fn try_run(text: &str, options: &EvalOptions) -> Result<Outputs, EvalError> {
    let module = module(text);
    let fill = |leaf: &crate::EntryLeaf, d: usize| {
        Arc::new(Literal::splat(leaf.shape.dtype, &leaf.shape.dims, Scalar::Float((d + 1) as f64)).unwrap())
    };
    let row = |leaf| (0..module.n_devices()).map(|d| fill(leaf, d)).collect();
    let inputs = Inputs { leaves: entry_leaves(&module).iter().map(row).collect() };
    run(&module, &inputs, options)
}

fn outputs(text: &str) -> Outputs {
    try_run(text, &EvalOptions::default()).unwrap()
}

/// First element of output `leaf` on each device.
fn firsts(out: &Outputs, leaf: usize) -> Vec<f64> {
    let first = |x: &Arc<Literal>| match x.get(0).unwrap() {
        Scalar::Float(v) => v,
        Scalar::Int(v) => v as f64,
        Scalar::Uint(v) => v as f64,
        Scalar::Pred(v) => f64::from(u8::from(v)),
        Scalar::Complex(re, _) => re,
    };
    out.leaves[leaf].iter().map(first).collect()
}

fn elems(out: &Outputs, leaf: usize, device: usize) -> Vec<f32> {
    out.leaves[leaf][device].elems::<f32>().unwrap().to_vec()
}

const ADD: &str = "%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}
";

/// A module with `header`, the reducer `%add` and an entry of these lines over `%p = f32[4]`.
fn with_add(header: &str, result: &str, lines: &str) -> String {
    format!(
        "HloModule m, {header}\n\n{ADD}\nENTRY %main (p: f32[4]) -> {result} {{\n  %p = f32[4]{{0}} parameter(0)\n{lines}}}\n"
    )
}

#[test]
fn all_reduce_in_all_group_modes() {
    let run = |header: &str, attrs: &str| {
        let line = format!("  ROOT %r = f32[4]{{0}} all-reduce(%p), {attrs}, to_apply=%add\n");
        firsts(&outputs(&with_add(header, "f32[4]", &line)), 0)
    };
    let grid = "replica_count=2, num_partitions=2";
    assert_eq!(run(grid, "replica_groups={}"), [4.0, 6.0, 4.0, 6.0]);
    assert_eq!(run(grid, "channel_id=1, replica_groups={{0,1}}"), [10.0; 4]);
    assert_eq!(run(grid, "channel_id=1, replica_groups={{0},{1}}"), [3.0, 3.0, 7.0, 7.0]);
    let flat = "channel_id=1, use_global_device_ids=true";
    assert_eq!(run(grid, &format!("{flat}, replica_groups={{{{0,3}},{{1,2}}}}")), [5.0; 4]);
    assert_eq!(run("replica_count=4", "replica_groups={{0,2,3},{1}}"), [8.0, 2.0, 8.0, 8.0]);
    assert_eq!(run("num_partitions=4", &format!("{flat}, replica_groups=[2,2]<=[2,2]T(1,0)")), [4.0, 6.0, 4.0, 6.0]);
    assert_eq!(run("num_partitions=4", &format!("{flat}, replica_groups=mesh['a'=2,'b'=2] {{'b'}}")), [3., 3., 7., 7.]);
}

#[test]
fn a_result_of_one_group_is_held_once() {
    let lines = "  %r = f32[4]{0} all-reduce(%p), replica_groups={}, to_apply=%add
  ROOT %n = f32[4]{0} negate(%r)\n";
    let out = outputs(&with_add("replica_count=4", "f32[4]", lines));
    assert!(out.leaves[0].iter().all(|x| Arc::ptr_eq(x, &out.leaves[0][0])));
    assert_eq!(firsts(&out, 0), [-10.0; 4]);
}

#[test]
fn ragged_rows_go_where_the_offsets_say() {
    // Device d holds 10(d+1) + {0, 1, 2, 3}; it sends row 0 to member 0 and rows 1 and 2 to member 1, to row 2d there.
    let out = outputs(&with_add(
        "replica_count=2",
        "f32[5]",
        "  %i = f32[4]{0} iota(), iota_dimension=0
  %t = f32[] constant(10)
  %tens = f32[4]{0} broadcast(%t), dimensions={}
  %own = f32[4]{0} multiply(%p, %tens)
  %rows = f32[4]{0} add(%own, %i)
  %minus = f32[] constant(-1)
  %o = f32[5]{0} broadcast(%minus), dimensions={}
  %io = s32[2]{0} constant({0, 1})
  %sz = s32[2]{0} constant({1, 2})
  %id = u32[] replica-id()
  %me = s32[] convert(%id)
  %slot = s32[] add(%me, %me)
  %oo = s32[2]{0} broadcast(%slot), dimensions={}
  %n = s32[1]{0} dynamic-slice(%sz, %me), dynamic_slice_sizes={1}
  %n0 = s32[] reshape(%n)
  %rs = s32[2]{0} broadcast(%n0), dimensions={}
  ROOT %r = f32[5]{0} ragged-all-to-all(%rows, %o, %io, %sz, %oo, %rs), replica_groups={{0,1}}\n",
    ));
    assert_eq!(elems(&out, 0, 0), [10., -1., 20., -1., -1.]);
    assert_eq!(elems(&out, 0, 1), [11., 12., 21., 22., -1.]);
}

#[test]
fn collectives_move_shards_in_group_order() {
    let header = "replica_count=4";
    let run = |result: &str, lines: &str| outputs(&with_add(header, result, lines));
    let scattered = run(
        "f32[2]",
        "  ROOT %r = f32[2]{0} reduce-scatter(%p), replica_groups={{2,0},{1,3}}, dimensions={0}, to_apply=%add\n",
    );
    assert_eq!(firsts(&scattered, 0), [4.0, 6.0, 4.0, 6.0]);
    let gathered =
        run("f32[8]", "  ROOT %r = f32[8]{0} all-gather(%p), replica_groups={{2,0},{1,3}}, dimensions={0}\n");
    assert_eq!(elems(&gathered, 0, 0), [3., 3., 3., 3., 1., 1., 1., 1.]);
    let exchanged =
        run("f32[4]", "  ROOT %r = f32[4]{0} all-to-all(%p), replica_groups={{0,1},{2,3}}, dimensions={0}\n");
    assert_eq!(elems(&exchanged, 0, 1), [1., 1., 2., 2.]);
    let tuple = run(
        "f32[4]",
        "  %n = f32[4]{0} negate(%p)
  %t = (f32[4]{0}, f32[4]{0}) all-to-all(%p, %n), replica_groups={{0,1},{2,3}}
  ROOT %r = f32[4]{0} get-tuple-element(%t), index=1\n",
    );
    assert_eq!(firsts(&tuple, 0), [2.0, -2.0, 4.0, -4.0]);
    let permuted = run("f32[4]", "  ROOT %r = f32[4]{0} collective-permute(%p), source_target_pairs={{0,1},{1,2}}\n");
    assert_eq!(firsts(&permuted, 0), [0.0, 1.0, 2.0, 0.0]);
    let sent = run("f32[4]", "  ROOT %r = f32[4]{0} collective-broadcast(%p), replica_groups={{2,0}}\n");
    assert_eq!(firsts(&sent, 0), [3.0, 0.0, 3.0, 0.0]);
    let variadic = run(
        "(f32[4], f32[4])",
        "  %n = f32[4]{0} negate(%p)
  ROOT %r = (f32[4]{0}, f32[4]{0}) all-reduce(%p, %n), replica_groups={}, to_apply=%add\n",
    );
    assert_eq!((firsts(&variadic, 0), firsts(&variadic, 1)), (vec![10.0; 4], vec![-10.0; 4]));
}

#[test]
fn async_pairs_give_what_the_plain_ops_give() {
    let lines = "  %s = (f32[4]{0}, f32[8]{0}) all-gather-start(%p), replica_groups={}, dimensions={0}
  %g = f32[8]{0} all-gather-done(%s)
  %i = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}
  %q = f32[4]{0} collective-permute-done(%i)
  %a = f32[4]{0} all-reduce-start(%p), replica_groups={}, to_apply=%add
  %b = f32[4]{0} all-reduce-done(%a)
  %c = ((f32[4]{0}), f32[4]{0}, u32[]) call-start(%p), to_apply=%body
  %d = f32[4]{0} call-done(%c)
  ROOT %t = (f32[8]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}) tuple(%g, %q, %b, %d)\n";
    let text = with_add("replica_count=2", "(f32[8], f32[4], f32[4], f32[4])", lines);
    let body = "%body (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0)
  ROOT %w = f32[4]{0} negate(%x.1)
}

ENTRY";
    let out = outputs(&text.replace("ENTRY", body));
    assert_eq!(elems(&out, 0, 1), [1., 1., 1., 1., 2., 2., 2., 2.]);
    assert_eq!(firsts(&out, 1), [2.0, 1.0]);
    assert_eq!(firsts(&out, 2), [3.0, 3.0]);
    assert_eq!(firsts(&out, 3), [-1.0, -2.0]);
}

/// Device `d` runs the loop `d + 1` times; its body has `line` making `%next` from `%v`.
fn loop_module(line: &str) -> String {
    format!(
        "HloModule m, replica_count=3

{ADD}
%cond (s: (u32[], f32[])) -> pred[] {{
  %s = (u32[], f32[]) parameter(0)
  %k = u32[] get-tuple-element(%s), index=0
  %id = u32[] replica-id()
  ROOT %go = pred[] compare(%k, %id), direction=LE
}}

%body (s.1: (u32[], f32[])) -> (u32[], f32[]) {{
  %s.1 = (u32[], f32[]) parameter(0)
  %k.1 = u32[] get-tuple-element(%s.1), index=0
  %one = u32[] constant(1)
  %k.2 = u32[] add(%k.1, %one)
  %v = f32[] get-tuple-element(%s.1), index=1
  {line}
  ROOT %t = (u32[], f32[]) tuple(%k.2, %next)
}}

ENTRY %main (p: f32[]) -> f32[] {{
  %p = f32[] parameter(0)
  %zero = u32[] constant(0)
  %init = (u32[], f32[]) tuple(%zero, %p)
  %loop = (u32[], f32[]) while(%init), condition=%cond, body=%body
  ROOT %r = f32[] get-tuple-element(%loop), index=1
}}
"
    )
}

#[test]
fn devices_leave_a_loop_one_by_one() {
    let out = outputs(&loop_module("%next = f32[] add(%v, %v)"));
    assert_eq!(firsts(&out, 0), [2.0, 8.0, 24.0]);
    // Devices 1 and 2 still meet in the second round, where device 0 has left.
    let pair = "%next = f32[] all-reduce(%v), replica_groups={{0},{1},{2}}, to_apply=%add";
    assert_eq!(firsts(&outputs(&loop_module(pair)), 0), [1.0, 2.0, 3.0]);
}

#[test]
fn a_partner_that_has_left_is_named() {
    let line = "%next = f32[] all-reduce(%v), replica_groups={}, to_apply=%add";
    let error = try_run(&loop_module(line), &EvalOptions::default()).unwrap_err();
    let want = "devices diverge: device 1 waits at %next in %body for device 0, which has left the loop %loop in %main";
    assert_eq!(error.to_string(), want);
}

fn branch_module(on_false: &str) -> String {
    format!(
        "HloModule m, num_partitions=2

{ADD}
%yes (a: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  ROOT %n = f32[] negate(%a)
}}

%no (b: f32[]) -> f32[] {{
  %b = f32[] parameter(0)
  ROOT %m = f32[] {on_false}
}}

ENTRY %main (p: f32[]) -> f32[] {{
  %p = f32[] parameter(0)
  %id = u32[] partition-id()
  %zero = u32[] constant(0)
  %is_first = pred[] compare(%id, %zero), direction=EQ
  ROOT %r = f32[] conditional(%is_first, %p, %p), true_computation=%yes, false_computation=%no
}}
"
    )
}

#[test]
fn devices_take_different_branches() {
    assert_eq!(firsts(&outputs(&branch_module("add(%b, %b)")), 0), [-1.0, 4.0]);
    let line = "all-reduce(%b), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add";
    let error = try_run(&branch_module(line), &EvalOptions::default()).unwrap_err();
    let want = "devices diverge: device 1 waits at %m in %no for device 0, which takes branch %yes of %r in %main, \
                which has no collective";
    assert_eq!(error.to_string(), want);
}

#[test]
fn limits_end_what_would_not_end() {
    let endless = loop_module("%next = f32[] add(%v, %v)").replace("direction=LE", "direction=GE");
    let options = EvalOptions { max_steps: 10_000, ..EvalOptions::default() };
    let forever = endless.replace("%go = pred[] compare(%k, %id)", "%go = pred[] compare(%k, %k)");
    let error = try_run(&forever, &options).unwrap_err().to_string();
    assert!(error.contains("more than 10000 instructions"), "{error}");
    let mut text = String::from("HloModule m\n\n%c0 (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}\n\n");
    for i in 1..=200 {
        let before = i - 1;
        text.push_str(&format!(
            "%c{i} (x.{i}: f32[]) -> f32[] {{\n  %x.{i} = f32[] parameter(0)\n  ROOT %y.{i} = f32[] call(%x.{i}), to_apply=%c{before}\n}}\n\n"
        ));
    }
    text.push_str(
        "ENTRY %main (p: f32[]) -> f32[] {\n  %p = f32[] parameter(0)\n  ROOT %r = f32[] call(%p), to_apply=%c200\n}\n",
    );
    let error = try_run(&text, &EvalOptions::default()).unwrap_err().to_string();
    assert!(error.contains("calls nest deeper than 128"), "{error}");
    let small = EvalOptions { max_array_bytes: 8, ..EvalOptions::default() };
    let wide = with_add("replica_count=1", "f32[4]", "  ROOT %r = f32[4]{0} negate(%p)\n");
    let error = try_run(&wide, &small).unwrap_err().to_string();
    assert!(error.contains("an array of 16 bytes, where 8 are allowed"), "{error}");
}

#[test]
fn what_has_no_semantics_says_so_by_name() {
    let line = "  ROOT %r = f32[4]{0} custom-call(%p), custom_call_target=\"mystery\"\n";
    let error = try_run(&with_add("replica_count=1", "f32[4]", line), &EvalOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("%r in %main: not evaluated: custom-call \"mystery\""), "{error}");
    let dead = "  %u = f32[4]{0} sqrt(%p)\n  ROOT %r = f32[4]{0} negate(%p)\n";
    assert_eq!(firsts(&outputs(&with_add("replica_count=1", "f32[4]", dead)), 0), [-1.0]);
}

#[test]
fn inputs_must_fit() {
    let module = module(&with_add("replica_count=2", "f32[4]", "  ROOT %r = f32[4]{0} negate(%p)\n"));
    let array = Arc::new(Literal::from_elems(&[4], vec![1.0f32; 4]).unwrap());
    let run = |leaves| run(&module, &Inputs { leaves }, &EvalOptions::default());
    assert!(run(vec![vec![array.clone(), array.clone()]]).is_ok());
    assert!(run(vec![]).is_err());
    assert!(run(vec![vec![array.clone()]]).is_err());
    assert!(run(vec![vec![array.clone(), Arc::new(array.convert(hlo_ir::DType::F64))]]).is_err());
}

#[test]
fn computations_of_scalars_run_as_programs_and_as_modules() {
    // The reducer is not one op, has a call and a tuple, and so is called element by element.
    let text = "HloModule m

%half (h: f32[]) -> f32[] {
  %h = f32[] parameter(0)
  %two = f32[] constant(2)
  ROOT %d = f32[] divide(%h, %two)
}

%mean (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  %s = f32[] add(%x, %y)
  ROOT %c = f32[] call(%s), to_apply=%half
}

%odd (x.1: f32[], y.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  %v = f32[1]{0} reshape(%x.1)
  %w = f32[1]{0} reshape(%y.1)
  %q = f32[] dot(%v, %w), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT %e = f32[] add(%q, %x.1)
}

ENTRY %main (p: f32[3], i: f32[]) -> (f32[], f32[]) {
  %p = f32[3]{0} parameter(0)
  %i = f32[] parameter(1)
  %a = f32[] reduce(%p, %i), dimensions={0}, to_apply=%mean
  %b = f32[] reduce(%p, %i), dimensions={0}, to_apply=%odd
  ROOT %t = (f32[], f32[]) tuple(%a, %b)
}
";
    let out = outputs(text);
    assert_eq!((firsts(&out, 0), firsts(&out, 1)), (vec![1.0], vec![8.0]));
}

#[test]
fn scans_stack_outputs_and_carry_values() {
    let text = |attrs: &str| {
        format!(
            "HloModule m

%step (x: f32[2], c: f32[2]) -> (f32[2], f32[2]) {{
  %x = f32[2]{{0}} parameter(0)
  %c = f32[2]{{0}} parameter(1)
  %n = f32[2]{{0}} add(%x, %c)
  ROOT %t = (f32[2]{{0}}, f32[2]{{0}}) tuple(%n, %n)
}}

ENTRY %main (a: f32[3,2], i: f32[2]) -> (f32[3,2], f32[2]) {{
  %a = f32[3,2]{{1,0}} parameter(0)
  %i = f32[2]{{0}} parameter(1)
  ROOT %s = (f32[3,2]{{1,0}}, f32[2]{{0}}) scan(%a, %i), dimensions={{0}}, num_carries=1, {attrs}to_apply=%step
}}
"
        )
    };
    let out = outputs(&text(""));
    assert_eq!((elems(&out, 0, 0), elems(&out, 1, 0)), (vec![2., 2., 3., 3., 4., 4.], vec![4., 4.]));
    let out = outputs(&text("is_reverse=true, "));
    assert_eq!(elems(&out, 0, 0), [4., 4., 3., 3., 2., 2.]);
}
