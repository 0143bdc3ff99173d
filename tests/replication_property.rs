//! No claim of the replication analysis is ever contradicted by a run.
//!
//! Random modules run on N devices, with inputs that are equal exactly where the annotations say so. If two devices
//! that the analysis puts into one class hold different values of an instruction, or one of them runs it and the other
//! does not, the analysis is wrong. `HLO_PROPTEST_CASES=N` runs N seeds; a failing one is shrunk and written to the
//! target's temporary folder, from where it belongs into `ir-samples/analysis/replication` with the right marks.

use crate::lockstep::{Observed, draw, draw_for, entry_arrays, observe, parse, samples};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::replication::Replication;
use hlo_eval::EvalError;
use hlo_ir::{InstId, Module, Opcode};
use hlo_tests::random_module::{RandomModule, Size, random_module};

/// Seeds when the environment does not say how many.
const N_CASES: u64 = 300;

/// What the analysis says of a leaf: a class for each device.
type Claim<'c> = dyn Fn(&Module, &Replication, InstId, usize) -> Option<Vec<u32>> + 'c;

/// The claims of the analysis itself.
fn honest(_: &Module, facts: &Replication, inst: InstId, leaf: usize) -> Option<Vec<u32>> {
    facts.classes(inst, leaf).map(<[u32]>::to_vec)
}

/// An instruction's leaf on which two devices of one class differ.
#[derive(Clone, Debug, PartialEq)]
struct Violation {
    inst: InstId,
    leaf: usize,
    devices: (usize, usize),
}

fn find_violation(module: &Module, seen: &Observed, claim: &Claim<'_>) -> Option<Violation> {
    let facts = Replication::compute(module, &ParamFacts::default());
    for (&(inst, leaf), seen) in seen {
        // What runs was reached, so it has facts; `None` would be a violation on every device.
        let claimed = claim(module, &facts, inst, leaf).unwrap_or_else(|| vec![0; seen.labels.len()]);
        for (a, b) in pairs(seen.labels.len()) {
            if claimed[a] == claimed[b] && seen.labels[a] != seen.labels[b] {
                return Some(Violation { inst, leaf, devices: (a, b) });
            }
        }
    }
    None
}

fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(move |a| (a + 1..n).map(move |b| (a, b)))
}

fn size_of(seed: u64, n_steps: usize) -> Size {
    Size { replica_count: 1 + (seed % 4) as usize, num_partitions: 1 + (seed / 4 % 4) as usize, n_steps }
}

fn observe_random(seed: u64, random: &RandomModule) -> (Module, Result<Observed, EvalError>) {
    let module = parse(&format!("seed {seed}"), &random.text);
    let seen = observe(&module, &draw_for(seed, &random.inputs));
    (module, seen)
}

/// The fewest steps with which the seed still fails, and what it then looks like.
fn shrink(seed: u64, n_steps: usize, claim: &Claim<'_>) -> Option<(RandomModule, String)> {
    for n_steps in 1..=n_steps {
        let random = random_module(seed, size_of(seed, n_steps));
        let (module, seen) = observe_random(seed, &random);
        let Some(violation) = seen.ok().and_then(|seen| find_violation(&module, &seen, claim)) else { continue };
        let name = module.inst_name(violation.inst);
        let (a, b) = violation.devices;
        let what = format!("%{name}, leaf {}: devices {a} and {b} are claimed equal and are not", violation.leaf);
        return Some((random, what));
    }
    None
}

/// Runs `n_cases` seeds; the message of the first that fails.
fn check(n_cases: u64, n_steps: usize, claim: &Claim<'_>) -> Result<(), String> {
    for seed in 0..n_cases {
        let random = random_module(seed, size_of(seed, n_steps));
        let (module, seen) = observe_random(seed, &random);
        let seen = seen.map_err(|error| format!("seed {seed}: {error}\n{}", random.text))?;
        if find_violation(&module, &seen, claim).is_some() {
            let (small, what) = shrink(seed, n_steps, claim).unwrap_or((random, "not shrunk".into()));
            return Err(format!("seed {seed}: {what}\n{}", small.text));
        }
    }
    Ok(())
}

#[test]
fn random_modules_never_contradict_the_analysis() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES);
    if let Err(message) = check(n_cases, 24, &honest) {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("replication_failure.hlo");
        let _ = std::fs::write(&path, &message);
        panic!("{message}\nwritten to {}", path.display());
    }
}

/// The text with its training loop of 1000 steps, a summary every 100, cut to some steps with a summary every other one:
/// every value of every step is compared on all devices, which for 1000 steps takes minutes.
fn with_short_loop(text: &str) -> String {
    text.replace(" s32[] constant(1000)", " s32[] constant(5)").replace(" s32[] constant(100)", " s32[] constant(2)")
}

#[test]
fn samples_and_programs_never_contradict_the_analysis() {
    const PROGRAMS: [&str; 7] = [
        "mlp_adam",
        "mlp_adam.repl",
        "mlp_adam_6",
        "mlp_adam_accum",
        "mlp_adam_bf16",
        "mlp_adam_pjit2d",
        "mlp_adam_summary",
    ];
    let is_listed = |path: &str| path.strip_prefix("programs/").is_some_and(|name| PROGRAMS.contains(&name));
    let programs = samples("programs").into_iter().filter(|(path, _)| is_listed(path));
    let mut n_run = 0;
    for (path, text) in samples("analysis/replication").into_iter().chain(programs) {
        let module = parse(&path, &with_short_loop(&text));
        let facts = Replication::compute(&module, &ParamFacts::default());
        let key = |param, leaf| facts.classes(param, leaf).expect("facts of the entry's parameters").to_vec();
        let arrays = entry_arrays(&module);
        let inputs = draw(1, arrays.into_iter().map(|(param, leaf, dtype, dims)| (dtype, dims, key(param, leaf))));
        match observe(&module, &inputs) {
            Ok(seen) => {
                n_run += 1;
                let violation = find_violation(&module, &seen, &honest);
                let name = violation.as_ref().map(|v| module.inst_name(v.inst));
                assert!(violation.is_none(), "{path}: {name:?} {violation:?}");
            }
            // Infeeds, callbacks and the like have no value here.
            Err(error) => assert!(error.to_string().contains("not evaluated"), "{path}: {error}"),
        }
    }
    assert!(n_run > 10, "only {n_run} ran");
}

/// A claim that is wrong for one kind of instruction: equal on all devices.
fn all_equal_for(opcode: Opcode) -> impl Fn(&Module, &Replication, InstId, usize) -> Option<Vec<u32>> {
    move |module, facts, inst, leaf| match module.inst(inst).opcode == opcode {
        true => Some(vec![0; module.n_devices()]),
        false => honest(module, facts, inst, leaf),
    }
}

#[test]
fn wrong_claims_are_seen() {
    for opcode in [
        Opcode::PartitionId,
        Opcode::Add,
        Opcode::GetTupleElement,
        Opcode::AllReduce,
        Opcode::ReduceScatter,
        Opcode::CollectivePermute,
        Opcode::AllToAll,
        Opcode::While,
        Opcode::Conditional,
        Opcode::Fusion,
        Opcode::RngBitGenerator,
    ] {
        let message = check(100, 24, &all_equal_for(opcode)).expect_err(opcode.name());
        assert!(message.contains("are claimed equal and are not"), "{opcode}: {message}");
    }
}

/// Of all pairs of devices that the analysis keeps apart, how many were seen to differ: the power of the test and the
/// precision of the analysis in one number.
#[test]
fn most_devices_that_are_kept_apart_do_differ() {
    let (mut n_apart, mut n_differ, mut n_equal) = (0u64, 0u64, 0u64);
    for seed in 0..100 {
        let (module, seen) = observe_random(seed, &random_module(seed, size_of(seed, 24)));
        let seen = seen.expect("a run");
        let facts = Replication::compute(&module, &ParamFacts::default());
        for (&(inst, leaf), seen) in &seen {
            let claimed = facts.classes(inst, leaf).expect("facts of what runs");
            for (a, b) in pairs(claimed.len()) {
                n_equal += u64::from(claimed[a] == claimed[b]);
                n_apart += u64::from(claimed[a] != claimed[b]);
                n_differ += u64::from(claimed[a] != claimed[b] && seen.labels[a] != seen.labels[b]);
            }
        }
    }
    assert!(n_equal * 4 > n_apart, "claims are rare: {n_equal} pairs equal, {n_apart} apart");
    assert!(n_differ * 2 > n_apart, "of {n_apart} pairs kept apart only {n_differ} differ");
}
