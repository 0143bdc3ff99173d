//! A smaller shape: where a proof finds a difference and the modules are too large to run at once, a pair with smaller dims runs first. What
//! differs there need not differ at full size: a maximum may hide it, or a sum that comes to zero.

use super::arguments::ProveArgs;
use crate::compare::{Judge, Reference, of_verdict};
use crate::console::Console;
use crate::work::evaluator_work;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::program_kind::decide;
use hlo_eval::entry_leaves;
use hlo_ir::Module;
use hlo_prove::{Options, Proof, SmallerPair, prove_chain, shrink};
use std::time::Instant;

/// From how much work, in operations and bytes, a smaller pair is tried first: some seconds of one core.
const LARGE: f64 = 2e9;

/// The pair, if it is too large to run at once, and some output parts in leaves.
pub(super) fn find_smaller(args: &ProveArgs, proof: &Proof, before: &Module, chain: &[&Module]) -> Option<SmallerPair> {
    // Inputs that the user names have the sizes that they have.
    let is_wanted = args.judge.inputs.inputs.is_none()
        && !proof.is_global
        && proof.outputs.iter().any(|output| output.parts_in_leaves)
        && [before].iter().chain(chain).map(|module| evaluator_work(module)).sum::<f64>() > LARGE;
    if is_wanted { shrink(before, chain) } else { None }
}

/// How the smaller pair differs, if as much is proved of it, what is proved is equal in the evaluator, and an output differs that parts
/// in leaves in the larger one.
pub(super) fn difference(
    args: &ProveArgs,
    (source, before): (&str, &Module),
    (name, small): (&str, &SmallerPair),
    (proof, options, promises): (&Proof, &Options, &ParamFacts),
    deadline: Option<Instant>,
    console: &mut Console<'_>,
) -> Option<String> {
    let verdicts = |pair: &SmallerPair| {
        let chain: Vec<&Module> = pair.after.iter().collect();
        let proof = prove_chain(&pair.before, &chain, options).ok()?;
        Some(proof.outputs.iter().map(|output| output.verdict).collect::<Vec<_>>())
    };
    let known: Vec<_> = proof.outputs.iter().map(|output| output.verdict).collect();
    if verdicts(small).as_ref() != Some(&known) {
        return None;
    }
    // In f64 rounding hides nothing, however sensitive the programs are.
    let wide = small.widened().filter(|wide| verdicts(wide).as_ref() == Some(&known));
    let mut judge_args = args.judge.clone();
    if wide.is_some() {
        judge_args.rtol = judge_args.rtol.or(Some(SHARE_OF_F64));
    }
    let run = wide.as_ref().unwrap_or(small);
    let chain: Vec<&Module> = run.after.iter().collect();
    let judge = Judge::new(&judge_args, source, Reference::Devices(&run.before), promises).ok()?;
    let verdict = judge.until(deadline).judge(name, (&chain, decide(run.after.first()?, None, None)), console).ok()?;
    let mut is_certain = false;
    for (output, leaf) in proof.outputs.iter().zip(&verdict.leaves) {
        let differs = leaf.first.is_some();
        if differs && output.verdict == hlo_prove::Verdict::Proved {
            return None;
        }
        is_certain |= differs && output.parts_in_leaves;
    }
    let on = on_smaller(before, &small.before, wide.is_some());
    let text = format!("{on}{}", of_verdict(&verdict, &judge_args, &run.before));
    is_certain.then_some(text)
}

/// By which share of an output's largest element numbers may differ where they are f64: rounding is far below, even where programs
/// make much of it.
const SHARE_OF_F64: f64 = 1e-6;

/// Which shapes were run.
fn on_smaller(before: &Module, small: &Module, is_wide: bool) -> String {
    let (large, small) = (entry_leaves(before), entry_leaves(small));
    let pairs = large.iter().zip(&small).enumerate().filter(|(_, (a, b))| a.shape.dims != b.shape.dims);
    let largest = pairs.max_by_key(|(k, (a, _))| (a.shape.n_elems(), std::cmp::Reverse(*k)));
    let example = largest.map_or(String::new(), |(k, (a, b))| {
        format!(
            ": input {k} is {}{:?} in the place of {:?}",
            a.shape.dtype,
            b.shape.dims.as_slice(),
            a.shape.dims.as_slice()
        )
    });
    let in_f64 = if is_wide { ", in f64" } else { "" };
    format!("on a smaller shape of the same programs{in_f64}{example}\n")
}
