//! Weight-update sharding on real training steps: evaluator before = after, and mutants of the result are caught.

use crate::equivalence::{Nearness, check};
use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::memory::peak_memory_of;
use hlo_ir::attrs::{Attrs, DynamicSliceAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::literal::{Literal, Scalar};
use hlo_ir::{ArrayShape, DType, InstId, Module, Opcode, Shape};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::report::PassReport;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::root;

/// Sums in another order move an `f32` result by some 1e-7 of the largest element; a wrong gradient by 1e-4 and more.
pub(crate) const NEAR: Nearness = Nearness::WithinShare(2e-5);

pub(crate) struct Program {
    pub module: Module,
    pub draw: String,
    pub facts: ParamFacts,
}

fn parse(file: &str) -> Module {
    let path = root().join("programs").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{file}: {e:?}")).module
}

pub(crate) fn program(file: &str) -> Program {
    let manifest = std::fs::read_to_string(root().join("programs/manifest.json")).expect("the manifest");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("the manifest is JSON");
    let entry = manifest.as_array().and_then(|all| all.iter().find(|e| e["file"] == file)).expect("in the manifest");
    let module = parse(file);
    // The replicated form carries no annotations: they are those of the partitioned sibling.
    let facts = match file.strip_suffix(".repl.hlo") {
        Some(stem) => ParamFacts::from_sibling(&parse(&format!("{stem}.hlo")), &module).expect("the sibling fits"),
        None => ParamFacts::default(),
    };
    Program { module, draw: entry["draw"].as_str().expect("a draw").to_string(), facts }
}

fn shard(module: &mut Module, facts: &ParamFacts) -> PassReport {
    run("shard-weight-update{min-bytes=0}", module, facts)
}

/// Runs one pass.
pub(crate) fn run(pass: &str, module: &mut Module, facts: &ParamFacts) -> PassReport {
    let calls = parse_pipeline(pass).expect("a pipeline");
    let passes = bind(&calls, hlo_wus::PASSES).unwrap_or_else(|e| panic!("{e}"));
    let mut analyses = Analyses::new(facts.clone());
    let options = RunOptions { check: true, ..Default::default() };
    let summary = run_pipeline(module, &mut analyses, &passes, options);
    summary.unwrap_or_else(|e| panic!("{:?}", e.diagnostics)).reports.remove(0)
}

/// Shards the updates of `file` and compares; returns how many were sharded and left.
fn check_program(file: &str) -> (u64, usize) {
    let program = program(file);
    let mut after = program.module.clone();
    let report = shard(&mut after, &program.facts);
    let before = annotated(&program, file);
    check(&before, &after, &program.draw, NEAR).unwrap_or_else(|e| panic!("{file}: {e}"));
    let once = hlo_ir::print::print_module(&after, &Default::default());
    shard(&mut after, &program.facts);
    let twice = hlo_ir::print::print_module(&after, &Default::default());
    assert_eq!(once, twice, "{file}: a second run changed something");
    let left = report.decisions.iter().filter(|d| d.action == "left").count();
    (report.stats["shard-weight-update.updates-sharded"], left)
}

/// The module with `parameter_replication` flags for what a sibling says, so that inputs are drawn by it.
pub(crate) fn annotated(program: &Program, file: &str) -> Module {
    let mut module = program.module.clone();
    if file.ends_with(".repl.hlo") {
        let entry = module.entry().expect("an entry");
        for (i, param) in module.comp(entry).params.clone().into_iter().enumerate() {
            let is_replicated = program.facts.leaf(i).and_then(|s| s.tile_of_device(8)).is_some_and(|t| t == [0; 8]);
            if let Attrs::Parameter(attrs) = &mut module.inst_mut(param).attrs {
                attrs.parameter_replication = vec![is_replicated];
            }
        }
    }
    module
}

#[test]
fn updates_of_real_programs_are_sharded_and_equal() {
    // Six weights each; the loss is a scalar and stays. `cargo xtask xla-check` does the other programs.
    for file in ["mlp_sgd.hlo", "mlp_odd_adam.hlo"] {
        assert_eq!(check_program(file), (6, 1), "{file}: (sharded, left)");
    }
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn updates_of_more_programs_are_sharded_and_equal() {
    for (file, sharded, left) in [
        ("mlp_momentum.repl.hlo", 6, 1),
        ("mlp_adam_2.hlo", 6, 1),
        ("mlp_adam_6.hlo", 6, 1),
        ("mlp_adam_pjitdp.hlo", 6, 1),
        ("mlp_adam_pjit2d.hlo", 7, 2),
    ] {
        assert_eq!(check_program(file), (sharded, left), "{file}: (sharded, left)");
    }
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn norms_are_combined_from_shards() {
    let program = program("mlp_clipadam.hlo");
    let mut after = program.module.clone();
    let report = shard(&mut after, &program.facts);
    let stat = |what: &str| report.stats[&format!("shard-weight-update.{what}")];
    assert_eq!((stat("updates-sharded"), stat("partial-all-reduces")), (6, 6));
    check(&program.module, &after, &program.draw, NEAR).unwrap_or_else(|e| panic!("{e}"));
}

/// Applies `break_it` to the sharded Adam step; the comparison must notice.
fn assert_caught(what: &str, break_it: impl Fn(&mut Module)) {
    let program = program("mlp_adam.hlo");
    let mut after = program.module.clone();
    shard(&mut after, &program.facts);
    let good = hlo_ir::print::print_module(&after, &Default::default());
    break_it(&mut after);
    assert_ne!(good, hlo_ir::print::print_module(&after, &Default::default()), "{what}: the mutant is no mutant");
    hlo_ir::verify::verify(&after).unwrap_or_else(|e| panic!("{what}: the mutant must be valid HLO: {e:?}"));
    let outcome = check(&program.module, &after, &program.draw, NEAR);
    assert!(outcome.is_err(), "{what}: not noticed");
}

/// All `(computation's instructions)` of an opcode.
fn all_of(module: &Module, opcode: Opcode) -> Vec<InstId> {
    let insts = module.computations().iter().flat_map(|&c| module.comp(c).insts.iter().copied());
    insts.filter(|&i| module.inst(i).opcode == opcode).collect()
}

#[test]
fn a_dropped_mean_is_caught() {
    assert_caught("mean dropped", |module| {
        let sums = all_of(module, Opcode::ReduceScatter);
        let is_mean = |m: &Module, i: InstId| sums.contains(&m.inst(i).operands[0]);
        for divide in all_of(module, Opcode::Divide).into_iter().filter(|&i| is_mean(module, i)).collect::<Vec<_>>() {
            let sum = module.inst(divide).operands[0];
            module.replace_all_uses(divide, sum);
        }
    });
}

#[test]
fn a_second_moment_from_the_unreduced_gradient_is_caught() {
    assert_caught("unreduced gradient squared", |module| {
        let sum = all_of(module, Opcode::ReduceScatter)
            .into_iter()
            .find(|&i| module.shape(i).as_array().is_some_and(|a| a.rank() == 2));
        let sum = sum.expect("a matrix gradient");
        let comp = module.inst(sum).parent;
        let shape = module.shape(sum).as_array().cloned().expect("an array");
        let starts = all_of(module, Opcode::DynamicSlice)
            .into_iter()
            .find(|&i| module.shape(i).as_array().is_some_and(|a| a.dims == shape.dims));
        let starts = module.inst(starts.expect("a slice of the weight")).operands[1..].to_vec();
        let operands: Vec<InstId> = [module.inst(sum).operands[0]].into_iter().chain(starts).collect();
        let users = module.users();
        let mean = *users[sum].iter().find(|&&u| module.inst(u).opcode == Opcode::Divide).expect("a mean");
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: shape.dims.clone() };
        let mut builder = Builder::new(module, comp);
        let local = builder.add("local", Opcode::DynamicSlice, Shape::Array(shape), operands, attrs);
        for &user in &users[mean] {
            if module.inst(user).operands[..] == [mean, mean] {
                module.inst_mut(user).operands = [local, local].into_iter().collect();
            }
        }
        module.restore_order(comp).expect("no cycle");
    });
}

#[test]
fn a_rotated_shard_offset_is_caught() {
    assert_caught("shard offset rotated by one", |module| {
        let id = all_of(module, Opcode::PartitionId)[0];
        let comp = module.inst(id).parent;
        let user = module.users()[id][0];
        let u32s = || Shape::Array(ArrayShape::new(DType::U32, []));
        let mut builder = Builder::new(module, comp);
        let one = builder.constant("one", Literal::scalar(DType::U32, Scalar::Uint(1)));
        let n = builder.constant("n", Literal::scalar(DType::U32, Scalar::Uint(8)));
        let next = builder.add("next", Opcode::Add, u32s(), [id, one], Attrs::Plain);
        let rotated = builder.add("rotated", Opcode::Remainder, u32s(), [next, n], Attrs::Plain);
        module.inst_mut(user).operands[0] = rotated;
        module.restore_order(comp).expect("no cycle");
    });
}

/// W + V + P becomes W + V/N + P (§4.2 of the paper, Fig. 8): weights, optimizer variables, the peak of the rest.
#[test]
fn a_loop_holds_an_nth_of_its_optimizer_variables() {
    let body_of = |module: &Module| {
        let site = all_of(module, Opcode::While)[0];
        module.called(site)[1]
    };
    let program = program("mlp_adam_fori.hlo");
    let mut after = program.module.clone();
    shard(&mut after, &program.facts);
    let (before_body, after_body) = (body_of(&program.module), body_of(&after));
    let before_report = peak_memory_of(&program.module, before_body);
    let after_report = peak_memory_of(&after, after_body);
    // The carry holds 6 weights, then as many first and second moments; the last bias has 10 elements, padded to 16.
    let n_weight_elems: u64 = 512 + 512 + 10 + 784 * 512 + 512 * 512 + 512 * 10;
    let v_bytes = 2 * 4 * n_weight_elems;
    let v_shard_bytes = 2 * 4 * (512 + 512 + 16 + 784 * 512 + 512 * 512 + 512 * 10) / 8;
    assert_eq!(before_report.sizes.argument_bytes - after_report.sizes.argument_bytes, v_bytes - v_shard_bytes);
    let saved = before_report.sizes.peak_bytes - after_report.sizes.peak_bytes;
    assert!(saved >= v_bytes - v_shard_bytes, "{saved} of {}", v_bytes - v_shard_bytes);
}

/// After XLA's own passes the updates sit in fusions and one all-reduce sums all gradients.
#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn fused_programs_are_sharded_too() {
    for file in ["mlp_adam.opt.hlo", "mlp_adam_pjit2d.opt.hlo"] {
        let opened = program(file);
        let mut after = opened.module.clone();
        let calls = parse_pipeline("split-tuple-all-reduce,shard-weight-update{min-bytes=0}").expect("a pipeline");
        let known = [hlo_collectives::PASSES, hlo_wus::PASSES].concat();
        let passes = bind(&calls, &known).unwrap_or_else(|e| panic!("{e}"));
        let mut analyses = Analyses::new(opened.facts.clone());
        let options = RunOptions { check: true, ..Default::default() };
        let summary = run_pipeline(&mut after, &mut analyses, &passes, options);
        let report = summary.unwrap_or_else(|e| panic!("{file}: {:?}", e.diagnostics)).reports.remove(1);
        assert!(report.stats["shard-weight-update.updates-sharded"] >= 6, "{file}: {:?}", report.stats);
        check(&opened.module, &after, &opened.draw, NEAR).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}
