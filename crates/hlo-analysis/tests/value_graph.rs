//! The graph of a module's values.

use hlo_analysis::values::{Origin, SharedCallees, Through, User, ValueId, Values};
use hlo_analysis::{Analyses, Preserved};
use hlo_ir::{CompId, InstId, Module};
use std::sync::Arc;

const LOOP: &str = "HloModule looped

cond {
  s = (s32[], (f32[4], f32[4]), token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(7)
  ROOT go-on = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], (f32[4], f32[4]), token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  pair = (f32[4], f32[4]) get-tuple-element(s), index=1
  x = f32[4] get-tuple-element(pair), index=0
  y = f32[4] get-tuple-element(pair), index=1
  tok = token[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  grown = f32[4] add(x, y)
  unused = f32[4] negate(x)
  swapped = (f32[4], f32[4]) tuple(y, grown)
  ROOT out = (s32[], (f32[4], f32[4]), token[]) tuple(next, swapped, tok)
}

ENTRY main {
  a = f32[4] parameter(0)
  zero = s32[] constant(0)
  both = (f32[4], f32[4]) tuple(a, a)
  start = token[] after-all()
  init = (s32[], (f32[4], f32[4]), token[]) tuple(zero, both, start)
  loop = (s32[], (f32[4], f32[4]), token[]) while(init), condition=cond, body=body
  last = (f32[4], f32[4]) get-tuple-element(loop), index=1
  ROOT result = f32[4] get-tuple-element(last), index=0
}
";

const SHARED: &str = "HloModule shared

twice {
  p = f32[4] parameter(0)
  ROOT sum = f32[4] add(p, p)
}

cond {
  s = f32[4] parameter(0)
  ROOT go-on = pred[] custom-call(s), custom_call_target=\"decide\"
}

body {
  s = f32[4] parameter(0)
  ROOT next = f32[4] exponential(s)
}

ENTRY main {
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  flag = pred[] parameter(2)
  first = f32[4] call(a), to_apply=twice
  second = f32[4] call(b), to_apply=twice
  one-loop = f32[4] while(first), condition=cond, body=body
  other-loop = f32[4] while(second), condition=cond, body=body
  either = f32[4] conditional(flag, one-loop, other-loop), true_computation=twice, false_computation=twice
  ROOT out = (f32[4], f32[4]) tuple(either, a)
}
";

const BRANCHES: &str = "HloModule branches

on-true {
  t = (f32[4], f32[4]) parameter(0)
  x = f32[4] get-tuple-element(t), index=0
  ROOT n = f32[4] negate(x)
}

on-false {
  f = f32[4] parameter(0)
  ROOT same = f32[4] copy(f)
}

ENTRY main {
  a = f32[4] parameter(0)
  flag = pred[] parameter(1)
  pair = (f32[4], f32[4]) tuple(a, a)
  ROOT chosen = f32[4] conditional(flag, pair, a), true_computation=on-true, false_computation=on-false
}
";

const ASYNC: &str = "HloModule halves, replica_count=2

ENTRY main {
  a = f32[4] parameter(0)
  start = (f32[4], f32[8]) all-gather-start(a), dimensions={0}, replica_groups={{0,1}}
  done = f32[8] all-gather-done(start)
  ROOT n = f32[8] negate(done)
}
";

struct Graph {
    module: Module,
    values: Values,
}

impl Graph {
    fn new(text: &str, through: Through, shared: SharedCallees) -> Graph {
        let module = match hlo_text::parse_module(text) {
            Ok(parsed) => parsed.module,
            Err(errors) => panic!("{}", hlo_text::render(&errors, "m.hlo", text, false)),
        };
        let values = Values::find(&module, through, shared);
        Graph { module, values }
    }

    fn comp(&self, name: &str) -> CompId {
        self.module.computations().iter().copied().find(|&comp| self.module.comp_name(comp) == name).unwrap()
    }

    fn inst(&self, comp: &str, index: usize) -> InstId {
        self.module.comp(self.comp(comp)).insts[index]
    }

    /// The instruction named `name` of a computation, whose names the parser may have made unique.
    fn named(&self, comp: &str, name: &str) -> InstId {
        let is_named = |&&inst: &&InstId| self.module.inst_name(inst).split('.').next() == Some(name);
        *self.module.comp(self.comp(comp)).insts.iter().find(is_named).unwrap()
    }

    fn leaf(&self, comp: &str, name: &str, leaf: usize) -> ValueId {
        self.values.leaves(self.named(comp, name))[leaf].expand().unwrap()
    }

    fn users(&self, value: ValueId) -> Vec<User> {
        self.values.uses[value].iter().map(|taken| taken.user).collect()
    }
}

#[test]
fn what_a_loop_carries_is_one_value() {
    let g = Graph::new(LOOP, Through::MARKERS, SharedCallees::Opaque);
    let carried: Vec<ValueId> = (0..3).map(|leaf| g.leaf("main", "loop", leaf)).collect();
    assert!(g.values.leaves(g.named("main", "loop"))[3].is_none(), "a token is no value");
    for (leaf, &value) in carried.iter().enumerate() {
        assert_eq!(g.values.values[value].origin, Origin::Carry);
        let sites: Vec<InstId> = g.values.values[value].sites.iter().map(|site| site.0).collect();
        assert_eq!(sites, [g.named("main", "loop"), g.inst("cond", 0), g.inst("body", 0)]);
        assert_eq!(g.leaf("body", "s", leaf), value);
    }
    // Through nested tuples on the way in, inside and on the way out.
    assert_eq!((g.leaf("body", "x", 0), g.leaf("main", "result", 0)), (carried[1], carried[1]));
    let (a, grown) = (g.leaf("main", "a", 0), g.leaf("body", "grown", 0));
    assert_eq!(g.values.sources[carried[1]], [a, carried[2]]);
    assert_eq!(g.values.sources[carried[2]], [a, grown]);
    let takes = |operand| User::Op { inst: g.named("body", "grown"), operand };
    assert_eq!(g.users(carried[1]), [takes(0), User::Exit(0)]);
    assert_eq!(g.users(carried[2]), [takes(1), User::Becomes(carried[1])]);
    assert_eq!(g.values.returns_to(g.comp("body")), [g.named("main", "loop")]);
    assert_eq!(g.values.returns_to(g.comp("cond")), []);
    assert_eq!(g.users(g.leaf("cond", "go-on", 0)), [User::Opaque(g.named("main", "loop"))]);
    assert!(!g.values.is_live(g.named("body", "unused")));
}

#[test]
fn a_shared_callee_is_opaque_or_has_sources_at_every_call() {
    let opaque = Graph::new(SHARED, Through::MARKERS, SharedCallees::Opaque);
    assert_eq!(opaque.values.comps, [opaque.comp("main")]);
    let first = opaque.leaf("main", "first", 0);
    assert_eq!(opaque.values.values[first].origin, Origin::Computed);
    assert_eq!(opaque.users(first), [User::Opaque(opaque.named("main", "one-loop"))]);
    assert_eq!(opaque.values.of(opaque.named("twice", "p")), None);

    let g = Graph::new(SHARED, Through::MARKERS, SharedCallees::Entered);
    assert!(["main", "twice", "cond", "body"].iter().all(|name| g.values.knows(g.comp(name))));
    let of_main = |name| g.leaf("main", name, 0);
    let (one, other) = (of_main("one-loop"), of_main("other-loop"));
    let (p, sum) = (g.leaf("twice", "p", 0), g.leaf("twice", "sum", 0));
    assert_eq!(g.values.values[p].origin, Origin::Param);
    assert_eq!(g.values.sources[p], [of_main("a"), of_main("b"), one, other]);
    let results = [of_main("first"), of_main("second"), of_main("either")];
    assert!(results.iter().all(|&result| g.values.values[result].origin == Origin::CallResult));
    assert_eq!(g.users(sum), results.map(User::Becomes));
    assert!(results.iter().all(|&result| g.values.sources[result] == [sum]));
    // The loops carry a value each; the body's parameter is a third one, which both become.
    let (state, next) = (g.leaf("body", "s", 0), g.leaf("body", "next", 0));
    assert_eq!(g.values.sources[state], [one, other]);
    assert_eq!(g.values.sources[one], [results[0], next]);
    assert_eq!(g.values.sources[other], [results[1], next]);
    let loops = ["one-loop", "other-loop"].map(|name| g.named("main", name));
    assert_eq!(g.values.returns_to(g.comp("body")), loops);
    assert_eq!(g.users(g.leaf("cond", "go-on", 0)), loops.map(User::Opaque));
}

#[test]
fn a_conditional_has_the_results_of_its_branches_as_sources() {
    let g = Graph::new(BRANCHES, Through::COPIES, SharedCallees::Opaque);
    let a = g.leaf("main", "a", 0);
    let (t, f) = ([0, 1].map(|leaf| g.leaf("on-true", "t", leaf)), g.leaf("on-false", "f", 0));
    assert!([t[0], t[1], f].iter().all(|&param| g.values.sources[param] == [a]));
    assert_eq!(g.users(a), [t[0], t[1], f].map(User::Becomes));
    let chosen = g.leaf("main", "chosen", 0);
    // Copies are looked through: the other branch hands its parameter back.
    assert_eq!(g.values.sources[chosen], [g.leaf("on-true", "n", 0), f]);
    assert_eq!(g.users(g.leaf("main", "flag", 0)), [User::Opaque(g.named("main", "chosen"))]);
    let copied = Graph::new(BRANCHES, Through::MARKERS, SharedCallees::Opaque);
    let same = copied.leaf("on-false", "same", 0);
    assert_eq!(copied.values.values[same].origin, Origin::Computed);
}

#[test]
fn asynchronous_halves_are_looked_through_where_that_is_asked() {
    let g = Graph::new(ASYNC, Through::ALL, SharedCallees::Opaque);
    let (a, gathered) = (g.leaf("main", "a", 0), g.leaf("main", "done", 0));
    let start = g.named("main", "start");
    assert_eq!([g.leaf("main", "start", 0), g.leaf("main", "start", 1)], [a, gathered]);
    assert_eq!(g.values.inst(gathered), start);
    assert_eq!(g.users(a), [User::Op { inst: start, operand: 0 }]);
    let apart = Graph::new(ASYNC, Through::MARKERS, SharedCallees::Opaque);
    assert_eq!(apart.values.inst(apart.leaf("main", "done", 0)), apart.named("main", "done"));
    assert_ne!(apart.leaf("main", "start", 0), apart.leaf("main", "a", 0));
}

#[test]
fn dead_calls_hinder_an_opaque_callee_but_not_beside_a_live_one() {
    let text = |extra: &str| {
        format!(
            "HloModule dead\n\nf {{\n  p = f32[] parameter(0)\n  ROOT n = f32[] negate(p)\n}}\n\ng {{\n  q = f32[] \
             parameter(0)\n{extra}  ROOT m = f32[] negate(q)\n}}\n\nENTRY main {{\n  a = f32[] parameter(0)\n  h = f32[] \
             call(a), to_apply=g\n  dead = f32[] call(a), to_apply=f\n  ROOT r = f32[] call(h), to_apply=f\n}}\n"
        )
    };
    let beside = Graph::new(&text(""), Through::MARKERS, SharedCallees::Opaque);
    assert!(beside.values.knows(beside.comp("f")));
    let elsewhere = text("  gone = f32[] call(q), to_apply=f\n");
    let hindered = Graph::new(&elsewhere, Through::MARKERS, SharedCallees::Opaque);
    assert!(!hindered.values.knows(hindered.comp("f")));
    let entered = Graph::new(&elsewhere, Through::MARKERS, SharedCallees::Entered);
    assert!(entered.values.knows(entered.comp("f")));
}

#[test]
fn the_analyses_keep_the_graph_until_the_module_changes() {
    let module = Graph::new(LOOP, Through::MARKERS, SharedCallees::Opaque).module;
    let mut analyses = Analyses::default();
    let ask = |analyses: &mut Analyses, shared| analyses.values(&module, Through::MARKERS, shared);
    let first = ask(&mut analyses, SharedCallees::Opaque);
    assert!(Arc::ptr_eq(&first, &ask(&mut analyses, SharedCallees::Opaque)));
    assert!(!Arc::ptr_eq(&first, &ask(&mut analyses, SharedCallees::Entered)));
    let second = ask(&mut analyses, SharedCallees::Opaque);
    analyses.invalidate(Preserved::ALL);
    assert!(!Arc::ptr_eq(&second, &ask(&mut analyses, SharedCallees::Opaque)));
}
