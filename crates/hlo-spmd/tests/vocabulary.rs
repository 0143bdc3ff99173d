//! What `hlo-spmd` says of small modules, held against the evaluator where there is something to run.

use hlo_ir::{InstId, Module};
use hlo_spmd::{
    CallSiteCopies, CollectiveChange, Obstacle, Rewrite, Scaling, Splat, find_all_reduce, find_device_values,
    find_scaling,
};

fn parse(text: &str) -> Module {
    hlo_text::parse_bytes(text.as_bytes()).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module
}

fn find(module: &Module, name: &str) -> InstId {
    let entry = module.entry().expect("an entry");
    let mut insts = module.comp(entry).insts.iter().copied();
    insts.find(|&inst| module.inst_name(inst) == name).unwrap_or_else(|| panic!("no %{name}"))
}

/// Numbers of replicas and partitions: one, powers of two, and odd ones.
const SIZES: [(usize, usize); 7] = [(1, 2), (2, 1), (3, 1), (1, 6), (2, 3), (2, 4), (8, 1)];

/// `places` looks the device's place up in a table and computes an offset of it.
fn offsets(replicas: usize, partitions: usize) -> Module {
    let n = replicas * partitions;
    let table: Vec<String> = (0..n).map(|d| (n - 1 - d).to_string()).collect();
    parse(&format!(
        "HloModule offsets, replica_count={replicas}, num_partitions={partitions}

ENTRY %main () -> s32[] {{
  %replica = u32[] replica-id()
  %partition = u32[] partition-id()
  %count = u32[] constant({partitions})
  %row = u32[] multiply(%replica, %count)
  %flat = u32[] add(%row, %partition)
  %device = s32[] convert(%flat)
  %table = s32[{n}]{{0}} constant({{{}}})
  %slice = s32[1]{{0}} dynamic-slice(%table, %device), dynamic_slice_sizes={{1}}
  %place = s32[] reshape(%slice)
  %seven = s32[] constant(7)
  ROOT %offset = s32[] multiply(%place, %seven)
}}
",
        table.join(", ")
    ))
}

#[test]
fn device_values_are_what_every_device_computes() {
    for (replicas, partitions) in SIZES {
        let module = offsets(replicas, partitions);
        let outputs = hlo_eval::run(&module, &Default::default(), &Default::default()).expect("a run");
        let computed: Vec<i64> =
            outputs.leaves[0].iter().map(|value| i64::from(value.elems::<i32>().expect("s32")[0])).collect();
        assert_eq!(find_device_values(&module, find(&module, "offset")), Some(computed), "{replicas}x{partitions}");
    }
}

/// People and compilers write such arithmetic to say which slice is a device's own.
#[test]
fn device_values_follow_choices_bounds_and_what_wraps() {
    let module = parse(
        "HloModule m, num_partitions=6

ENTRY %main () -> (s32[], s32[], u32[], u8[], u32[], s32[], s32[], pred[], s32[]) {
  %number = u32[] partition-id()
  %id = s32[] convert(%number)
  %zero = s32[] constant(0)
  %two = s32[] constant(2)
  %four = s32[] constant(4)
  %six = s32[] constant(6)
  %shifted = s32[] subtract(%id, %two)
  %is_negative = pred[] compare(%shifted, %zero), direction=LT
  %from_end = s32[] add(%shifted, %six)
  %turned = s32[] select(%is_negative, %from_end, %shifted)
  %clamped = s32[] clamp(%zero, %shifted, %two)
  %one = u32[] constant(1)
  %before = u32[] subtract(%number, %one)
  %small = u8[] convert(%number)
  %big = u8[] constant(200)
  %product = u8[] multiply(%small, %big)
  %half = u32[] shift-right-logical(%number, %one)
  %rest = s32[] remainder(%shifted, %four)
  %flipped = s32[] not(%id)
  %is_odd.u = u32[] and(%number, %one)
  %is_odd = pred[] convert(%is_odd.u)
  %both = pred[] and(%is_odd, %is_negative)
  %real = f32[] convert(%id)
  %third = f32[] constant(0.34)
  %part = f32[] multiply(%real, %third)
  %floor = s32[] convert(%part)
  ROOT %all = (s32[], s32[], u32[], u8[], u32[], s32[], s32[], pred[], s32[]) tuple(%turned, %clamped, %before, %product, %half, %rest, %flipped, %both, %floor)
}
",
    );
    let outputs = hlo_eval::run(&module, &Default::default(), &Default::default()).expect("a run");
    let number = |scalar: Option<hlo_ir::Scalar>| match scalar {
        Some(hlo_ir::Scalar::Int(value)) => value,
        Some(hlo_ir::Scalar::Uint(value)) => value as i64,
        Some(hlo_ir::Scalar::Pred(value)) => value.into(),
        other => panic!("{other:?}"),
    };
    let names = ["turned", "clamped", "before", "product", "half", "rest", "flipped", "both", "floor"];
    for (name, leaf) in names.iter().zip(&outputs.leaves) {
        let computed: Vec<i64> = leaf.iter().map(|value| number(value.get(0))).collect();
        assert_eq!(find_device_values(&module, find(&module, name)), Some(computed), "%{name}");
    }
    assert_eq!(find_device_values(&module, find(&module, "part")), None, "no integer");
}

#[test]
fn a_value_that_depends_on_data_is_no_device_value() {
    let module = parse(
        "HloModule m, num_partitions=4

ENTRY %main (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %id = u32[] partition-id()
  %wide = s32[] convert(%id)
  %sum = s32[] add(%p, %wide)
  %is_less = pred[] compare(%p, %wide), direction=LT
  ROOT %chosen = s32[] select(%is_less, %wide, %sum)
}
",
    );
    assert_eq!(find_device_values(&module, find(&module, "wide")), Some(vec![0, 1, 2, 3]));
    for name in ["sum", "p", "is_less", "chosen"] {
        assert_eq!(find_device_values(&module, find(&module, name)), None, "%{name}");
    }
}

const SUM: &str = "HloModule m, num_partitions=6

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

ENTRY %main (a: f32[5,3]) -> f32[5,3] {
  %a = f32[5,3]{1,0} parameter(0)
  %sum = f32[5,3]{1,0} all-reduce(%a), channel_id=1, replica_groups={{0,2,4},{1,3,5}}, use_global_device_ids=true, to_apply=%add
  %dead = f32[5,3]{1,0} negate(%sum)
  ROOT %twice = f32[5,3]{1,0} add(%sum, %sum)
}
";

#[test]
fn a_record_says_what_the_collective_is() {
    let module = parse(SUM);
    let sum = find(&module, "sum");
    let removed = CollectiveChange::removed(&module, sum, "a test").taking(2.5);
    assert_eq!((removed.change, removed.op.as_str(), removed.instruction.as_str()), ("removed", "all-reduce", "sum"));
    assert_eq!((removed.bytes, removed.group_size, removed.predicted_ns), (60, 3, Some(2.5)));
    assert_eq!(CollectiveChange::inserted(&module, sum, "a test").predicted_ns, None);
}

#[test]
fn an_all_reduce_is_read_and_a_pinned_one_is_left() {
    let module = parse(SUM);
    let sum = find(&module, "sum");
    let mut pinned = Default::default();
    let found = find_all_reduce(&module, sum, &pinned).expect("free").expect("an all-reduce");
    assert_eq!((found.operand, found.groups), (find(&module, "a"), vec![vec![0, 2, 4], vec![1, 3, 5]]));
    assert!(find_all_reduce(&module, find(&module, "twice"), &pinned).expect("no collective").is_none());
    pinned.insert(sum);
    let obstacle = find_all_reduce(&module, sum, &pinned).map(|_| ()).expect_err("a control dependency");
    assert_eq!(obstacle, Obstacle::ControlDependency);
    assert_eq!(obstacle.to_string(), "takes part in a control dependency");
}

#[test]
fn a_rewrite_redirects_uses_and_removes_what_it_made_dead() {
    let mut module = parse(SUM);
    let (entry, a, sum) = (module.entry().expect("an entry"), find(&module, "a"), find(&module, "sum"));
    let mut rewrite = Rewrite::new(&module, entry);
    assert!(!rewrite.live_insts(&module).contains(&find(&module, "dead")));
    rewrite.redirect(sum, a);
    assert_eq!(rewrite.resolve(sum), a);
    rewrite.finish(&mut module).expect("no circle");
    let twice = find(&module, "twice");
    assert_eq!(module.inst(twice).operands.as_slice(), [a, a]);
    assert!(!module.comp(entry).insts.contains(&sum));
    // What was dead before stays: a rewrite touches what it was asked to touch.
    assert!(module.comp(entry).insts.contains(&find(&module, "dead")));
    let mut circle = Rewrite::new(&module, entry);
    circle.redirect(a, twice);
    assert_eq!(circle.finish(&mut module).map_err(|e| e.0), Err(twice));
}

const SCALED: &str = "HloModule m

ENTRY %main {
  %x = f32[4]{0} parameter(0)
  %n = s32[4]{0} parameter(1)
  %s = f32[] parameter(2)
  %i = s32[] parameter(3)
  %ss = f32[4]{0} broadcast(%s), dimensions={}
  %ii = s32[4]{0} broadcast(%i), dimensions={}
  %right = f32[4]{0} multiply(%x, %ss)
  %left = f32[4]{0} multiply(%ss, %x)
  %mean = f32[4]{0} divide(%x, %ss)
  %inverse = f32[4]{0} divide(%ss, %x)
  %square = f32[4]{0} multiply(%x, %x)
  %product = s32[4]{0} multiply(%n, %ii)
  %quotient = s32[4]{0} divide(%n, %ii)
  %scalar = f32[] multiply(%s, %s)
  ROOT %sum = f32[4]{0} add(%x, %ss)
}
";

#[test]
fn a_value_times_or_over_a_repeated_scalar_is_scaled() {
    let module = parse(SCALED);
    let scaled = |name: &str, value: &str| {
        let found = find_scaling(&module, find(&module, name), find(&module, value))?;
        assert_eq!(found.splat, Splat::Scalar(find(&module, if value == "x" { "s" } else { "i" })));
        Some((found.opcode.name(), found.scale_idx))
    };
    let of_x = ["right", "left", "mean", "inverse", "square", "sum"].map(|name| scaled(name, "x"));
    assert_eq!(of_x, [Some(("multiply", 1)), Some(("multiply", 0)), Some(("divide", 1)), None, None, None]);
    assert_eq!(["product", "quotient"].map(|name| scaled(name, "n")), [Some(("multiply", 1)), None]);
}

#[test]
fn a_rewrite_scales_arrays_and_scalars_by_a_scalar() {
    let mut module = parse(SCALED);
    let (entry, scalar) = (module.entry().expect("an entry"), find(&module, "s"));
    for (name, opcode, scale_idx) in [("x", "multiply", 0), ("x", "divide", 1), ("scalar", "multiply", 1)] {
        let (source, value) = (find(&module, "right"), find(&module, name));
        let opcode = hlo_ir::Opcode::from_name(opcode).expect("an opcode");
        let scaling = Scaling { opcode, scale_idx, splat: Splat::Scalar(scalar) };
        let new = Rewrite::new(&module, entry).scale(&mut module, source, value, &scaling);
        let operands = module.inst(new).operands.clone();
        assert_eq!((module.inst(new).opcode, operands[1 - scale_idx]), (opcode, value));
        assert_eq!(
            module.shape(operands[scale_idx]).as_array().map(|a| &a.dims),
            module.shape(value).as_array().map(|a| &a.dims)
        );
        assert_eq!(find_scaling(&module, new, value), Some(scaling));
    }
    hlo_ir::verify::verify(&module).expect("a module");
}

const SHARED: &str = "HloModule m, num_partitions=2

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%sum (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  ROOT %all = f32[4]{0} all-reduce(%q), channel_id=3, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %first = f32[4]{0} call(%a), to_apply=%sum
  ROOT %second = f32[4]{0} call(%first), to_apply=%sum
}
";

/// `SHARED` with a computation for each call, changed by `change` (which is given the copy), and merged again.
fn copied(change: impl Fn(&mut Module, hlo_ir::CompId)) -> (Module, hlo_spmd::MergedCopies) {
    let mut module = parse(SHARED);
    assert!(CallSiteCopies::has_shared(&module));
    let copies = CallSiteCopies::split(&mut module);
    let callees = ["first", "second"].map(|name| module.called(find(&module, name))[0]);
    assert_ne!(callees[0], callees[1]);
    let is_copy = |comp: &hlo_ir::CompId| module.comp_name(*comp) != "sum";
    let copy = callees.into_iter().find(is_copy).expect("a copy");
    let all = module.comp(copy).root.expand().expect("a root");
    assert_eq!(module.inst_name(copies.original(all)), "all");
    change(&mut module, copy);
    let merged = copies.merge(&mut module);
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}"));
    (module, merged)
}

#[test]
fn copies_for_call_sites_that_are_alike_become_one_again() {
    let (module, merged) = copied(|_, _| {});
    assert_eq!(hlo_ir::print::print_module(&module, &Default::default()), {
        hlo_ir::print::print_module(&parse(SHARED), &Default::default())
    });
    assert!(merged.kept().is_empty());
    // What was said of the copy is now said of the original.
    let name = merged.renamed("`%all.1` and %other");
    assert!(name.ends_with("` and %other"), "{name}");
    assert_eq!(merged.name_now("other"), None);
}

#[test]
fn a_copy_that_was_changed_stays_on_a_channel_of_its_own() {
    let (module, merged) = copied(|module, copy| {
        let all = module.comp(copy).root.expand().expect("a root");
        let shape = module.shape(all).clone();
        let twice = hlo_ir::edit::Builder::new(module, copy).add(
            "twice",
            hlo_ir::Opcode::Negate,
            shape,
            [all],
            hlo_ir::attrs::Attrs::Plain,
        );
        module.comp_mut(copy).root = Some(twice).into();
    });
    let [kept] = merged.kept() else { panic!("{merged:?}") };
    assert_eq!(module.called(kept.site)[0], kept.copy);
    let channels: Vec<Option<i64>> = [kept.original, kept.copy]
        .iter()
        .flat_map(|&comp| module.comp(comp).insts.iter())
        .filter_map(|&inst| module.inst(inst).attrs.collective().map(|view| view.channel_id))
        .collect();
    assert_eq!(channels, [Some(3), Some(4)]);
}
