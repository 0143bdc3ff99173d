//! `shard-weight-update{zero=auto,memory-limit=}` finds what trying every set of parameters finds, and its bound holds.

use crate::lockstep::parse;
use crate::random_steps::{artifacts, equals_source, number, with_state_in_shards};
use hlo_analysis::memory::memory_sizes;
use hlo_ir::Module;
use hlo_pass::report::PassReport;
use hlo_tests::training_step::training_step;

/// Steps, where the environment does not say how many.
const N_CASES: u64 = 60;

/// Most parameters whose every set is tried.
const MAX_PARAMS: usize = 6;

/// Limits between the peak with the fewest bytes of parameters and the one without a limit, in percent of the way.
const SHARES: [u64; 3] = [0, 35, 80];

/// No limit binds it.
const NO_LIMIT: u64 = 1 << 50;

/// One choice as the pass makes it.
struct Made {
    peak_bytes: u64,
    /// What it takes more than everything whole, in picoseconds.
    ps: f64,
    /// How much less what fits may take; `None` where gradients are summed over several sets of groups.
    gap_ps: Option<f64>,
    is_over: bool,
}

/// Runs the pass with pins and a limit; what it says where nothing fits or the pins cannot hold.
fn choose(module: &Module, limit: u64, pins: &str, options: &str) -> Result<(Module, PassReport, Made), String> {
    let asked = format!("zero=auto,memory-limit={limit},pins=[{pins}],{options}");
    let (made, report) = with_state_in_shards(module, &asked)?.ok_or("a loop holds the step")?;
    let figure = |name: &str| report.stats.get(&format!("shard-weight-update.{name}")).copied();
    let peak_bytes = memory_sizes(&made).peak_bytes;
    assert_eq!(Some(peak_bytes), figure("peak-bytes"), "the peak that the pass claims");
    let chosen = report.decisions.iter().find(|decision| decision.action == "chosen").ok_or("nothing is chosen")?;
    let ns = chosen.predicted_after_ns.zip(chosen.predicted_before_ns).map(|(after, before)| after - before);
    let (ps, gap_ps) = (ns.ok_or("no times")? * 1e3, figure("gap-ps").map(|ps| ps as f64));
    Ok((made, report, Made { peak_bytes, ps, gap_ps, is_over: peak_bytes > limit }))
}

/// The parameters that may be in shards: those that the manifest pairs with an output, and that can be pinned.
fn state(module: &Module, options: &str) -> Result<Vec<usize>, String> {
    let (_, report, _) = choose(module, NO_LIMIT, "", options)?;
    let (_, _, manifest) = artifacts(&report).ok_or("expected three files")?;
    let pairs = manifest["state_pairs"].as_array().cloned().unwrap_or_default();
    let params = pairs.iter().filter_map(|pair| Some(pair[0].as_u64()? as usize));
    Ok(params.filter(|param| choose(module, NO_LIMIT, &format!("{param}:whole"), options).is_ok()).collect())
}

/// The least time of all sets of parameters that fit, by trying each; and the least peak.
fn by_trying(every: &[Made], limit: u64) -> Option<f64> {
    every.iter().filter(|made| made.peak_bytes <= limit).map(|made| made.ps).min_by(f64::total_cmp)
}

/// Checks one step; the number of limits under which something else is chosen than without one.
fn check(seed: u64) -> Result<u64, String> {
    let step = training_step(seed, 12 + seed as usize % 20);
    let module = parse(&format!("seed {seed}"), &step.text);
    let device = ["[(gpu,1)]", ""][seed as usize % 2];
    let options = format!("partial={}", if device.is_empty() { "auto" } else { "no" });
    let params = match state(&module, &options) {
        Ok(params) if (1..=MAX_PARAMS).contains(&params.len()) => params,
        Ok(_) | Err(_) => return Ok(0),
    };
    let pins = |set: u32| -> String {
        let said =
            |(at, param): (usize, &usize)| format!("{param}:{}", if set >> at & 1 == 1 { "sharded" } else { "whole" });
        params.iter().enumerate().map(said).collect::<Vec<_>>().join(",")
    };
    let every: Vec<Made> = (0..1u32 << params.len())
        .filter_map(|set| choose(&module, NO_LIMIT, &pins(set), &options).ok().map(|(_, _, made)| made))
        .collect();
    let least = every.iter().map(|made| made.peak_bytes).min().ok_or("no set is possible")?;
    let (_, _, free) = choose(&module, NO_LIMIT, "", &options)?;
    // Prices are whole picoseconds, sums are not.
    let slack = 1000.0;
    let mut n_bound = 0;
    for share in SHARES {
        let limit = least + free.peak_bytes.saturating_sub(least) * share / 100;
        let best = by_trying(&every, limit).ok_or("the least peak does not fit")?;
        let (made, report, found) = choose(&module, limit, "", &options)?;
        // Of placements that are equally fast, a price of bytes can choose another one, which fits where the first does not.
        let is_best = found.ps <= best + slack && found.ps + slack >= free.ps;
        let is_wrong = found.gap_ps.is_some_and(|gap_ps| !is_best || found.ps - gap_ps > best + slack);
        if found.is_over || is_wrong {
            let said = (found.ps, found.gap_ps, found.peak_bytes);
            return Err(format!("limit {limit}: time, gap and peak {said:?}, by trying every set {best}"));
        }
        n_bound += u64::from(found.ps > free.ps + slack);
        let (shard, unshard, _) = artifacts(&report).ok_or("expected three files")?;
        equals_source(&module, [shard, &made, unshard], &step, seed)?;
    }
    // Below, gradients in shards may still take less; else the least peak is named.
    match choose(&module, least - 1, "", &options) {
        Ok((_, _, found)) if found.is_over => return Err(format!("{} bytes below a limit", found.peak_bytes)),
        Err(said) if !said.contains("no plan found") => return Err(format!("expected the least peak, found: {said}")),
        Ok(_) | Err(_) => {}
    }
    Ok(n_bound)
}

#[test]
fn the_choice_under_a_limit_is_the_best_of_all_sets() {
    let (mut n_bound, mut wrong) = (0, Vec::new());
    let (from, n_cases) = (number("HLO_PROPTEST_FROM", 0), number("HLO_PROPTEST_CASES", N_CASES));
    for seed in from..from + n_cases {
        match check(seed) {
            Ok(n) => n_bound += n,
            Err(why) => wrong.push(format!("seed {seed}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    println!("{n_bound} choices of {n_cases} steps were another one than without a limit");
    assert!(n_bound > 0, "no limit changed a choice");
}
