//! Where a leaf comes from, by one instruction.

use hlo_analysis::values::{
    CallSite, CallSites, InstLeaf, LeafSource, Through, argument, condition_and_body, follow, handed_on, hands_on,
    params_of_operands, source_of_leaf, tuple_elements, tuple_index,
};
use hlo_ir::op::CalleeEntry;
use hlo_ir::{CompId, InstId, Module};

const TUPLES: &str = "HloModule tuples

ENTRY main {
  a = f32[4] parameter(0)
  b = (s32[], (f32[2], f32[3])) parameter(1)
  none = () tuple()
  t = (f32[4], (), (s32[], (f32[2], f32[3])), f32[4]) tuple(a, none, b, a)
  inner = (s32[], (f32[2], f32[3])) get-tuple-element(t), index=2
  barrier = (s32[], (f32[2], f32[3])) opt-barrier(inner)
  pair = (f32[2], f32[3]) get-tuple-element(barrier), index=1
  last = f32[3] get-tuple-element(pair), index=1
  copied = f32[3] copy(last)
  ROOT sum = f32[3] add(copied, last)
}
";

const ASYNC: &str = "HloModule halves, replica_count=2

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

wrapped {
  p = f32[4] parameter(0)
  q = f32[2] parameter(1)
  n = f32[4] negate(p)
  ROOT both = (f32[2], f32[4]) tuple(q, n)
}

ENTRY main {
  a = f32[4] parameter(0)
  b = f32[2] parameter(1)
  start = ((f32[4], f32[2]), (f32[2], f32[4]), u32[]) async-start(a, b), calls=wrapped
  update = ((f32[4], f32[2]), (f32[2], f32[4]), u32[]) async-update(start)
  done = (f32[2], f32[4]) async-done(update)
  gather-start = (f32[4], f32[8]) all-gather-start(a), dimensions={0}, replica_groups={{0,1}}
  gather-done = f32[8] all-gather-done(gather-start)
  reduce-start = f32[4] all-reduce-start(a), to_apply=add, replica_groups={{0,1}}
  reduce-done = f32[4] all-reduce-done(reduce-start)
  copy-start = (f32[4], f32[4], u32[]) copy-start(a)
  copy-done = f32[4] copy-done(copy-start)
  ROOT out = (f32[8], f32[4], f32[4]) tuple(gather-done, reduce-done, copy-done)
}
";

const CALLS: &str = "HloModule calls

cond {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(7)
  ROOT go-on = pred[] compare(i, n), direction=LT
}

body {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT out = (s32[], f32[4]) tuple(next, x)
}

twice {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  ROOT sum = f32[4] add(p, q)
}

negated {
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}

ENTRY main {
  a = f32[4] parameter(0)
  flag = pred[] parameter(1)
  zero = s32[] constant(0)
  init = (s32[], f32[4]) tuple(zero, a)
  loop = (s32[], f32[4]) while(init), condition=cond, body=body
  read = f32[4] get-tuple-element(loop), index=1
  one-call = f32[4] call(a, read), to_apply=twice
  other-call = f32[4] call(read, one-call), to_apply=twice
  ROOT chosen = f32[4] conditional(flag, other-call, read), true_computation=negated, false_computation=negated
}
";

fn parse(text: &str) -> Module {
    match hlo_text::parse_module(text) {
        Ok(parsed) => parsed.module,
        Err(errors) => panic!("{}", hlo_text::render(&errors, "m.hlo", text, false)),
    }
}

fn inst(module: &Module, name: &str) -> InstId {
    let mut all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    // The entry stands last; names are unique in it.
    all.rfind(|&inst| module.inst_name(inst) == name).unwrap_or_else(|| panic!("no {name}"))
}

fn comp(module: &Module, name: &str) -> CompId {
    module.computations().iter().copied().find(|&comp| module.comp_name(comp) == name).unwrap()
}

/// Where leaf `leaf_idx` of `name` comes from: an operand's name and leaf, or nothing.
fn operand_of(module: &Module, name: &str, leaf_idx: u32, through: Through) -> Option<(String, u32)> {
    match source_of_leaf(module, InstLeaf::new(inst(module, name), leaf_idx), through) {
        LeafSource::Operand(from) => Some((module.inst_name(from.inst).to_string(), from.leaf_idx)),
        LeafSource::Argument | LeafSource::Callees(_) | LeafSource::Computed => None,
    }
}

fn at(name: &str, leaf_idx: u32) -> Option<(String, u32)> {
    Some((name.to_string(), leaf_idx))
}

#[test]
fn leaves_come_through_nested_and_empty_tuples() {
    let module = parse(TUPLES);
    let sources: Vec<_> = (0..6).map(|leaf| operand_of(&module, "t", leaf, Through::TUPLES)).collect();
    assert_eq!(sources, [at("a", 0), at("b", 0), at("b", 1), at("b", 2), at("a", 0), None]);
    assert_eq!(operand_of(&module, "inner", 1, Through::TUPLES), at("t", 2));
    assert_eq!(operand_of(&module, "barrier", 2, Through::TUPLES), None);
    assert_eq!(operand_of(&module, "barrier", 2, Through::MARKERS), at("inner", 2));
    assert_eq!(operand_of(&module, "copied", 0, Through::MARKERS), None);
    assert_eq!(operand_of(&module, "copied", 0, Through::COPIES), at("last", 0));
    assert!(hands_on(&module, inst(&module, "none"), Through::TUPLES));
    assert!(!hands_on(&module, inst(&module, "sum"), Through::ALL));
    assert_eq!(tuple_index(&module, inst(&module, "inner")), Some(2));
    assert_eq!(tuple_index(&module, inst(&module, "t")), None);
    assert_eq!(tuple_elements(&module, inst(&module, "t")).map(<[InstId]>::len), Some(4));
    assert_eq!(tuple_elements(&module, inst(&module, "inner")), None);
}

#[test]
fn a_leaf_is_followed_to_what_does_not_hand_it_on() {
    let module = parse(TUPLES);
    let from = |through, is_end: &dyn Fn(InstId) -> bool| {
        let end = follow(&module, InstLeaf::new(inst(&module, "copied"), 0), through, is_end);
        (module.inst_name(end.inst), end.leaf_idx)
    };
    assert_eq!(from(Through::COPIES, &|_| false), ("b", 2));
    assert_eq!(from(Through::MARKERS, &|_| false), ("copied", 0));
    let inner = inst(&module, "inner");
    assert_eq!(from(Through::ALL, &|inst| inst == inner), ("inner", 2));
}

#[test]
fn halves_of_asynchronous_ops_hand_on_operands_and_results() {
    let module = parse(ASYNC);
    let start: Vec<_> = (0..5).map(|leaf| operand_of(&module, "start", leaf, Through::ASYNC_HALVES)).collect();
    assert_eq!(start, [at("a", 0), at("b", 0), None, None, None]);
    assert_eq!(operand_of(&module, "start", 0, Through::COPIES), None);
    assert_eq!(operand_of(&module, "update", 3, Through::ASYNC_HALVES), at("start", 3));
    assert_eq!(operand_of(&module, "done", 1, Through::ASYNC_HALVES), at("update", 3));
    assert_eq!(operand_of(&module, "gather-done", 0, Through::ALL), at("gather-start", 1));
    assert_eq!(operand_of(&module, "gather-start", 0, Through::ALL), at("a", 0));
    assert_eq!(operand_of(&module, "reduce-start", 0, Through::ALL), None);
    assert_eq!(operand_of(&module, "reduce-done", 0, Through::ALL), at("reduce-start", 0));
    assert_eq!(operand_of(&module, "copy-start", 0, Through::ALL), None);
    assert_eq!(operand_of(&module, "copy-start", 1, Through::ALL), at("a", 0));
    assert_eq!(operand_of(&module, "copy-done", 0, Through::ALL), at("copy-start", 0));
    assert!(!hands_on(&module, inst(&module, "start"), Through::ALL));
    assert!(hands_on(&module, inst(&module, "done"), Through::ALL));
}

#[test]
fn runs_and_single_leaves_agree() {
    let ways = [Through::TUPLES, Through::MARKERS, Through::COPIES, Through::ASYNC_HALVES, Through::ALL];
    for (text, through) in [TUPLES, ASYNC, CALLS].into_iter().flat_map(|text| ways.map(|through| (text, through))) {
        let module = parse(text);
        for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
            let n_leaves = module.shape(inst).n_leaves();
            let mut expected = vec![None; n_leaves];
            for run in handed_on(&module, inst, through) {
                for (result, operand) in run.in_result().zip(run.in_operand()) {
                    expected[result] = Some(InstLeaf::new(run.operand, operand as u32));
                }
            }
            for (leaf_idx, expected) in (0..).zip(expected) {
                let found = match source_of_leaf(&module, InstLeaf::new(inst, leaf_idx), through) {
                    LeafSource::Operand(from) => Some(from),
                    LeafSource::Argument | LeafSource::Callees(_) | LeafSource::Computed => None,
                };
                assert_eq!(found, expected, "leaf {leaf_idx} of {} with {through:?}", module.inst_name(inst));
            }
        }
    }
}

#[test]
fn call_sites_give_operands_for_parameters() {
    let module = parse(CALLS);
    let sites = CallSites::find(&module, module.post_order());
    let named = |comp_name| -> Vec<(&str, u32)> {
        sites.of(comp(&module, comp_name)).iter().map(|site| (module.inst_name(site.inst), site.slot)).collect()
    };
    assert_eq!(named("twice"), [("one-call", 0), ("other-call", 0)]);
    assert_eq!(named("body"), [("loop", CalleeEntry::BODY as u32)]);
    assert_eq!(named("negated"), [("chosen", 0), ("chosen", 1)]);
    assert_eq!(named("main"), []);
    let given = |name, slot, number| {
        argument(&module, CallSite { inst: inst(&module, name), slot }, number).map(|inst| module.inst_name(inst))
    };
    assert_eq!((given("other-call", 0, 1), given("other-call", 0, 2)), (Some("one-call"), None));
    assert_eq!((given("loop", 0, 0), given("loop", 1, 0)), (Some("init"), Some("init")));
    assert_eq!((given("chosen", 0, 0), given("chosen", 1, 0)), (Some("other-call"), Some("read")));
    let params = |name| -> Vec<Option<&str>> {
        let params = params_of_operands(&module, inst(&module, name));
        params.iter().map(|param| param.map(|param| module.comp_name(module.inst(param).parent))).collect()
    };
    assert_eq!(params("chosen"), [None, Some("negated"), Some("negated")]);
    assert_eq!(params("loop"), [Some("cond")]);
    assert_eq!(params("one-call"), [Some("twice"); 2]);
    assert_eq!(params("init"), [None, None]);
    let parts = condition_and_body(&module, inst(&module, "loop"));
    assert_eq!(parts, Some((comp(&module, "cond"), comp(&module, "body"))));
    assert_eq!(condition_and_body(&module, inst(&module, "chosen")), None);
}
