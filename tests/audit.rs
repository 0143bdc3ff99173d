//! The audit against whole programs: none of its faults stands in a sound one, and a sum that is taken away is missed.

use crate::lockstep::{parse, samples};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::program_kind::decide;
use hlo_analysis::replication::Replication;
use hlo_audit::{AuditOptions, CHECKS, Finding, Level, audit};
use hlo_ir::attrs::Attrs;
use hlo_ir::edit::Builder;
use hlo_ir::{InstId, Module, Opcode};
use hlo_mesh::Machine;
use hlo_tests::large_step::{Kind, large_step};
use hlo_tests::random_module::{Size, random_module};
use rustix::time::{ClockId, clock_gettime};

fn options() -> AuditOptions {
    AuditOptions {
        params: ParamFacts::default(),
        frequency: FrequencyOptions::default(),
        machine: Machine::unnamed().expect("a machine"),
    }
}

fn findings(module: &Module) -> Vec<Finding> {
    audit(module, &options(), CHECKS).expect("one switch has any size").findings
}

/// The programs of one device among the samples.
fn programs() -> Vec<(String, Module)> {
    let all = samples("programs").into_iter().map(|(name, text)| (parse(&name, &text), name));
    let programs =
        all.filter(|(module, _)| !decide(module, None, None).is_global()).map(|(module, name)| (name, module));
    programs.collect()
}

#[test]
fn sound_programs_have_no_fault() {
    let programs = programs();
    assert!(programs.len() > 30, "{}", programs.len());
    for (name, module) in programs {
        for finding in findings(&module) {
            assert_ne!(finding.check.level, Level::Fault, "{name}: {}", finding.message);
            let known = ["replicated-state", "sliced-all-reduce"].contains(&finding.check.id);
            assert!(known, "{name}: {}: {}", finding.check.id, finding.message);
        }
    }
}

/// The outputs of the entry that all devices hold equal.
fn equal_outputs(module: &Module) -> usize {
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand()).expect("a root");
    let facts = Replication::compute(module, &ParamFacts::default());
    let devices: Vec<u32> = (0..module.n_devices() as u32).collect();
    (0..module.shape(root).n_leaves())
        .filter(|&leaf| facts.is_equal_within(root, leaf, std::slice::from_ref(&devices)))
        .count()
}

/// The all-reduces of one array.
fn sums(module: &Module) -> Vec<InstId> {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    insts.filter(|&i| module.inst(i).opcode == Opcode::AllReduce && module.shape(i).as_array().is_some()).collect()
}

/// Puts an all-reduce with these attributes behind an instruction.
fn sum_over_devices(module: &mut Module, inst: InstId, attrs: &Attrs) {
    let (comp, shape) = (module.inst(inst).parent, module.shape(inst).clone());
    let sum = Builder::new(module, comp).add("sum", Opcode::AllReduce, shape, [inst], attrs.clone());
    module.replace_all_uses(inst, sum);
    module.restore_order(comp).expect("no cycle");
}

/// What the audit names is enough: summed there, all outputs are equal again.
#[test]
fn a_sum_that_is_taken_away_is_missed() {
    let (mut n_taken, mut missed) = (0, Vec::new());
    for (name, module) in programs() {
        let n_equal = equal_outputs(&module);
        for sum in sums(&module) {
            let mut broken = module.clone();
            broken.inst_mut(sum).opcode = Opcode::Copy;
            broken.inst_mut(sum).attrs = Attrs::Plain;
            // Of the loss nothing says that it is the same on all devices: only state is.
            if equal_outputs(&broken) == n_equal || module.shape(sum).size_bytes() <= 8 {
                continue;
            }
            n_taken += 1;
            let found = findings(&broken).into_iter().filter(|finding| finding.check.id == "missing-all-reduce");
            let missing: Vec<InstId> = found.map(|finding| finding.inst).collect();
            if missing.is_empty() {
                missed.push(format!("{name}: %{}", module.inst_name(sum)));
                continue;
            }
            missing.iter().for_each(|&inst| sum_over_devices(&mut broken, inst, &module.inst(sum).attrs));
            assert_eq!(equal_outputs(&broken), n_equal, "{name}: %{} is summed elsewhere", module.inst_name(sum));
        }
    }
    assert!(n_taken > 200, "{n_taken} sums");
    assert_eq!(missed, Vec::<String>::new(), "of {n_taken}");
}

#[test]
fn random_modules_are_audited_alike_twice() {
    for seed in 0..60 {
        let text =
            random_module(seed, Size { replica_count: 1 + seed as usize % 2, num_partitions: 4, n_steps: 40 }).text;
        let module = parse(&format!("seed {seed}"), &text);
        let [first, second] = [(); 2].map(|()| format!("{:?}", findings(&module)));
        assert_eq!(first, second, "seed {seed}");
    }
}

/// CPU time of this thread, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[test]
fn time_grows_with_the_module() {
    let shortest = |n: usize| {
        let module = parse("a step", &large_step(Kind::Step, n));
        let time = |_| {
            let start = cpu_s();
            assert!(!findings(&module).is_empty());
            cpu_s() - start
        };
        (0..3).map(time).fold(f64::INFINITY, f64::min)
    };
    let (short, long) = (shortest(4_000), shortest(32_000));
    // What is quadratic takes 64 times as long, what is linear 8 to 12 times (caches).
    assert!(long / short < 20.0, "{short} s, and {long} s for 8 times the instructions");
}
