//! Updates really run in shards: what training loops carry and gather after weight-update sharding.

use hlo_analysis::Analyses;
use hlo_ir::attrs::Attrs;
use hlo_ir::op::FactorRule;
use hlo_ir::{CompId, DType, InstId, Module, Opcode, Shape};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::root;
use std::collections::BTreeSet;

/// What the pass takes for too small, in bytes.
const MIN_BYTES: u64 = 1024;

pub(crate) fn read(file: &str) -> Module {
    let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let parsed = hlo_text::parse_module(&text);
    parsed.unwrap_or_else(|diags| panic!("{}", hlo_text::render(&diags, file, &text, false))).module
}

pub(crate) fn sharded(before: &Module) -> Module {
    let mut module = before.clone();
    let pipeline = parse_pipeline(&format!("shard-weight-update{{min-bytes={MIN_BYTES}}}")).expect("a pipeline");
    let passes = bind(&pipeline, hlo_wus::PASSES).expect("the pass");
    let summary = run_pipeline(&mut module, &mut Analyses::default(), &passes, RunOptions::default());
    assert!(summary.unwrap_or_else(|e| panic!("{:?}", e.diagnostics)).reports[0].changed);
    module
}

/// The one loop of a module: the instruction, its body, and all computations inside of the body.
fn training_loop(module: &Module) -> (InstId, CompId, BTreeSet<CompId>) {
    let insts = module.post_order().into_iter().flat_map(|c| &module.comp(c).insts);
    let loops: Vec<InstId> = insts.copied().filter(|&i| module.inst(i).opcode == Opcode::While).collect();
    let [inst] = loops[..] else { panic!("expected one loop, found {}", loops.len()) };
    let Attrs::While(attrs) = &module.inst(inst).attrs else { panic!("a loop's attributes") };
    let body = attrs.body.expect("a body");
    let mut inside = BTreeSet::from([body]);
    let mut work = vec![body];
    while let Some(comp) = work.pop() {
        for callee in module.comp(comp).insts.iter().flat_map(|&i| module.called(i)) {
            if inside.insert(callee) {
                work.push(callee);
            }
        }
    }
    (inst, body, inside)
}

/// Element type and number of elements of what a loop carries.
fn carried(module: &Module, inst: InstId) -> Vec<(DType, u64)> {
    let elements = module.shape(inst).as_tuple().expect("a tuple");
    let array = |shape: &Shape| shape.as_array().map(|a| (a.dtype, a.n_elems())).expect("an array");
    elements.iter().map(array).collect()
}

/// The places of both moments of Adam in what a loop carries: counters, `n` weights, a counter, `n` first and `n` second
/// moments.
fn moments(carried: &[(DType, u64)]) -> std::ops::Range<usize> {
    let is_counter = |i: usize| carried[i].0 == DType::S32;
    let first = (0..carried.len()).find(|&i| !is_counter(i)).expect("weights");
    let count = (first..carried.len()).find(|&i| is_counter(i)).expect("a counter after the weights");
    let n = count - first;
    let moments = count + 1..count + 1 + 2 * n;
    for k in 0..n {
        let (weight, mu, nu) = (carried[first + k], carried[moments.start + k], carried[moments.start + n + k]);
        assert_eq!((weight, weight), (mu, nu), "weight {k} and its moments");
    }
    moments
}

fn all_gathers(module: &Module, comps: &BTreeSet<CompId>) -> Vec<InstId> {
    let insts = comps.iter().flat_map(|&c| module.comp(c).insts.iter().copied());
    insts.filter(|&i| module.inst(i).opcode == Opcode::AllGather).collect()
}

/// Through copies and the like: which element of the loop's parameter an instruction is.
fn carried_element(module: &Module, body: CompId, mut inst: InstId) -> Option<usize> {
    loop {
        let instruction = module.inst(inst);
        let operand = instruction.operands.first().copied()?;
        if let Attrs::TupleIndex(index) = &instruction.attrs
            && module.comp(body).params.contains(&operand)
        {
            return Some(index.index as usize);
        }
        if !matches!(instruction.opcode, Opcode::Copy | Opcode::Reshape | Opcode::Transpose) {
            return None;
        }
        inst = operand;
    }
}

/// Asserts that moments are carried in shards and no collective in the loop takes one, old or new.
fn assert_moments_stay(file: &str, before: &Module, after: &Module) {
    let n = before.n_devices() as u64;
    let (was, ..) = training_loop(before);
    let (is, body, inside) = training_loop(after);
    let (was, is) = (carried(before, was), carried(after, is));
    let root = after.comp(body).root.expand().expect("a root");
    let mut n_sharded = 0;
    for k in moments(&was) {
        let (dtype, n_elems) = was[k];
        assert_eq!(dtype, DType::F32, "{file}: moment {k}");
        if 4 * n_elems < MIN_BYTES {
            continue;
        }
        n_sharded += 1;
        // A merge or a longest dim may be padded by some per cent.
        let (least, most) = (n_elems.div_ceil(n), n_elems.div_ceil(n) + n_elems / n / 2);
        assert!((least..=most).contains(&is[k].1), "{file}: moment {k} of {n_elems} elements has {}", is[k].1);
    }
    assert!(n_sharded >= 4, "{file}: {n_sharded} moments");
    let moments = moments(&was);
    let new_moments: Vec<InstId> = moments.clone().map(|k| after.inst(root).operands[k]).collect();
    for comp in &inside {
        for &inst in &after.comp(*comp).insts {
            if !matches!(
                after.inst(inst).opcode,
                Opcode::AllGather | Opcode::AllReduce | Opcode::ReduceScatter | Opcode::AllToAll
            ) {
                continue;
            }
            let operand = after.inst(inst).operands[0];
            let name = after.inst_name(inst);
            let old = carried_element(after, body, operand);
            assert!(old.is_none_or(|k| !moments.contains(&k)), "{file}: `%{name}` takes a moment");
            assert!(!new_moments.contains(&operand), "{file}: `%{name}` takes a new moment");
        }
    }
}

/// Asserts that every elementwise op on the way from a gradient is computed on shards.
fn assert_updates_in_shards(file: &str, before: &Module, after: &Module) {
    let n = before.n_devices() as u64;
    let (_, _, inside) = training_loop(before);
    let names: BTreeSet<&str> =
        after.post_order().iter().flat_map(|&c| &after.comp(c).insts).map(|&i| after.inst_name(i)).collect();
    let shards = |name: &str| {
        let start = format!("{name}.shard");
        let insts = after.post_order().into_iter().flat_map(|c| &after.comp(c).insts);
        let all = insts.filter(|&&i| after.inst_name(i).starts_with(&start));
        all.map(|&i| after.shape(i).as_array().map_or(0, |a| a.n_elems())).min()
    };
    let users = before.users();
    let mut update: BTreeSet<InstId> = BTreeSet::new();
    let insts = inside.iter().flat_map(|&c| before.comp(c).insts.iter().copied());
    let mut work: Vec<InstId> = insts.filter(|&i| before.inst(i).opcode == Opcode::AllReduce).collect();
    while let Some(inst) = work.pop() {
        for &user in &users[inst] {
            let is_elementwise = before.inst(user).opcode.row().factors == FactorRule::Elementwise;
            let is_large = before.shape(user).as_array().is_some_and(|a| a.size_bytes() >= MIN_BYTES);
            if is_elementwise && is_large && update.insert(user) {
                work.push(user);
            }
        }
    }
    assert!(update.len() >= 40, "{file}: an update of {} ops", update.len());
    for op in update {
        let name = before.inst_name(op);
        let n_elems = before.shape(op).as_array().map_or(0, |a| a.n_elems());
        assert!(!names.contains(name), "{file}: `%{name}` is still computed whole");
        let shard = shards(name).unwrap_or_else(|| panic!("{file}: no shard of `%{name}`"));
        assert!(shard >= n_elems.div_ceil(n) && shard <= n_elems.div_ceil(n) * 3 / 2, "{file}: `%{name}`: {shard}");
    }
}

#[test]
fn moments_stay_in_shards_and_updates_run_on_them() {
    for file in [
        "mlp_adam_fori.hlo",
        "mlp_adam_fori.spmd_gspmd.hlo",
        "mlp_adam_summary.hlo",
        "gpt2l_adamw_fori.hlo",
        "ncf_adam_fori.hlo",
    ] {
        let before = read(&format!("programs/{file}"));
        let after = sharded(&before);
        assert_moments_stay(file, &before, &after);
        assert_updates_in_shards(file, &before, &after);
    }
}

#[test]
fn a_summary_is_gathered_once_after_the_loop() {
    let before = read("programs/mlp_adam_summary.hlo");
    let after = sharded(&before);
    let (inst, body, inside) = training_loop(&after);
    let gathered: Vec<InstId> = all_gathers(&after, &inside);
    // Inside: the weights that the next step takes whole (the smallest of six is below min-bytes).
    assert_eq!(gathered.len(), 5, "all-gathers in the loop");
    assert!(gathered.iter().all(|&i| after.inst(i).parent == body), "a branch gathers");
    let outside: BTreeSet<CompId> = after.post_order().into_iter().filter(|c| !inside.contains(c)).collect();
    let outside = all_gathers(&after, &outside);
    // Both moments of five weights, and the summary of these weights and moments: each once.
    assert_eq!(outside.len(), 10 + 15, "all-gathers after the loop");
    let operands: BTreeSet<InstId> = outside.iter().map(|&i| after.inst(i).operands[0]).collect();
    assert_eq!(operands.len(), outside.len(), "something is gathered twice");
    // The state is carried after the loop counters; its summary of the same shapes comes last.
    let carried = carried(&after, inst);
    let before_loop = training_loop(&before).0;
    let whole = self::carried(&before, before_loop);
    let n_smaller = carried.iter().zip(&whole).filter(|(is, was)| is.1 < was.1).count();
    assert_eq!(n_smaller, 10 + 15, "leaves carried in shards");
}

#[test]
fn state_that_a_rare_branch_consumes_is_gathered_there() {
    let after = sharded(&read("passes/shard-weight-update/rare-branch.hlo"));
    let (_, body, inside) = training_loop(&after);
    let gathers = all_gathers(&after, &inside);
    let [gather] = gathers[..] else { panic!("expected one all-gather in the loop, found {}", gathers.len()) };
    assert_ne!(after.inst(gather).parent, body);
    assert_eq!(after.comp_name(after.inst(gather).parent), "look");
}

#[test]
fn a_weight_used_in_bf16_is_gathered_in_bf16() {
    let after = sharded(&read("passes/shard-weight-update/loop-bf16.hlo"));
    let (_, _, inside) = training_loop(&after);
    let gathers = all_gathers(&after, &inside);
    let dtypes: Vec<DType> = gathers.iter().filter_map(|&i| after.shape(i).as_array()).map(|a| a.dtype).collect();
    assert_eq!(dtypes, [DType::BF16], "gathered in the loop");

    // A single step gives the weight whole, in f32: that forces the gather of f32, and a second one would only add to it.
    let after = sharded(&read("programs/mlp_adam_bf16.hlo"));
    let all = after.post_order().into_iter().collect();
    let dtypes: BTreeSet<&str> = all_gathers(&after, &all)
        .into_iter()
        .filter_map(|i| after.shape(i).as_array())
        .map(|a| if a.dtype == DType::F32 { "f32" } else { "other" })
        .collect();
    assert_eq!(dtypes, BTreeSet::from(["f32"]));
}
