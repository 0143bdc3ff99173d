//! `shard-weight-update{state=auto,memory-limit=}` finds what trying every set of parameters finds, and its bound holds.

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
    let asked = format!("state=auto,pins=[{pins}],{options}");
    let (made, report) = with_state_in_shards(module, &asked, Some(limit))?.ok_or("a loop holds the step")?;
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

/// A real step by the pass with these options.
fn of_step(options: &str) -> Result<(Module, PassReport), String> {
    within(None, options)
}

fn within(limit: Option<u64>, options: &str) -> Result<(Module, PassReport), String> {
    let source = crate::weight_update::program("gpt2l_adam.hlo").module;
    with_state_in_shards(&source, options, limit)?.ok_or_else(|| "a loop holds the step".into())
}

/// The bytes that parameters take which the pass may cut, as they were.
fn state_bytes(report: &PassReport) -> u64 {
    let (_, _, manifest) = artifacts(report).expect("three files");
    let params = manifest["params"].as_array().expect("parameters");
    let bytes = |dims: &serde_json::Value| -> u64 {
        dims.as_array().expect("dims").iter().map(|dim| dim.as_u64().expect("a dim")).product::<u64>() * 4
    };
    params.iter().filter(|param| param["sharded"] == true).map(|param| bytes(&param["original_shape"])).sum()
}

#[test]
fn each_form_of_zero_holds_less_than_the_one_before() {
    let source = crate::weight_update::program("gpt2l_adam.hlo").module;
    let whole = memory_sizes(&source).argument_bytes;
    let forms = ["state=optimizer", "state=gradients", "state=parameters"].map(|form| of_step(form).expect("a form"));
    let [one, two, three] = [0, 1, 2].map(|at: usize| memory_sizes(&forms[at].0).argument_bytes);
    assert!(whole > one && one == two && two > three, "{whole} {one} {two} {three}");
    // All of the state is cut among eight devices, evenly but for the vocabulary's odd rows.
    let cut = state_bytes(&forms[2].1);
    let kept = cut - (whole - three);
    assert!(kept as f64 <= cut as f64 * (1.0 / 8.0 + 0.02), "{kept} of {cut} bytes are kept");
    // With the optimizer's state alone gradients may be summed whole; else each that has state is scattered.
    let n_scattered = |at: usize| forms[at].1.stats["shard-weight-update.reduce-scatters"];
    assert!(n_scattered(0) <= n_scattered(1) && n_scattered(1) > 0);
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn less_memory_is_never_faster() {
    let refused = within(Some(1), "state=auto").expect_err("a byte is not enough");
    let bytes_after = |words: &str| -> u64 {
        let (_, rest) = refused.split_once(words).unwrap_or_else(|| panic!("expected `{words}` in: {refused}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("bytes")
    };
    let (least, whole) = (bytes_after("the least that was found takes "), bytes_after("state that is whole takes "));
    let mut last = f64::NEG_INFINITY;
    for share in [100, 60, 40, 30, 0] {
        let limit = least + (whole - least) * share / 100;
        let (made, report) = within(Some(limit), "state=auto").expect("a choice");
        assert!(memory_sizes(&made).peak_bytes <= limit, "at {share} %");
        let chosen = report.decisions.iter().find(|decision| decision.action == "chosen").expect("a choice");
        let after = chosen.predicted_after_ns.expect("a time");
        assert!(after >= last, "at {share} %: {after} ns, with more memory {last}");
        last = after;
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let refused = |options: &str| {
        let text = format!("shard-weight-update{{{options}}}");
        let calls = hlo_pass::pipeline::parse_pipeline(&text).expect("a pipeline");
        match hlo_pass::runner::bind(&calls, hlo_wus::PASSES) {
            Err(error) => error.to_string(),
            Ok(_) => of_step(options).err().unwrap_or_else(|| panic!("{options}: taken")),
        }
    };
    for option in ["pins=[0:sharded]", "state-pairs=[0:0]"] {
        assert!(refused(option).contains("expected state=optimizer, gradients, parameters or auto"), "{option}");
    }
    assert!(refused("zero=3").contains("zero"));
    assert!(refused("state=auto,pins=[0:half]").contains("found `0:half`"));
    assert!(refused("state=auto,pins=[0:whole,0:sharded]").contains("each parameter once"));
    assert!(refused("state=auto,pins=[99999:whole]").contains("found 99999"));
    assert!(refused("memory-limit=1GiB").contains("--memory-limit"), "{}", refused("memory-limit=1GiB"));
    let error = within(Some(1 << 20), "state=parameters").expect_err("a limit");
    assert!(error.contains("no plan found within memory-limit=1048576"), "{error}");
}

#[test]
fn a_pinned_parameter_is_as_it_is_pinned() {
    let forms = |options: &str| -> Vec<bool> {
        let (_, report) = of_step(options).expect("a choice");
        let (_, _, manifest) = artifacts(&report).expect("three files");
        manifest["params"].as_array().expect("parameters").iter().map(|param| param["sharded"] == true).collect()
    };
    let free = forms("state=parameters");
    let (at, _) = free.iter().enumerate().find(|(_, is_sharded)| **is_sharded).expect("something in shards");
    let pinned = forms(&format!("state=auto,profit=auto,pins=[{at}:sharded]"));
    assert!(pinned[at]);
    assert!(!forms(&format!("state=auto,profit=auto,pins=[{at}:whole]"))[at]);
}

/// A step whose weights the user has to call replicated; the norm of what becomes a shard is taken.
const SAID_TO_BE_REPLICATED: &str =
    "HloModule wn, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }, num_partitions=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  w = f32[64,64] parameter(0)
  m = f32[64,64] parameter(1)
  x = f32[4,64] parameter(2)
  c0 = f32[] constant(0)
  h = f32[4,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g0 = f32[64,64] dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[64,64] all-reduce(g0), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  m2 = f32[64,64] multiply(m, m)
  n = f32[] reduce(m2, c0), dimensions={0,1}, to_apply=add
  nb = f32[64,64] broadcast(n), dimensions={}
  m1 = f32[64,64] add(m, g)
  u = f32[64,64] multiply(m1, nb)
  w1 = f32[64,64] subtract(w, u)
  ROOT t = (f32[64,64], f32[64,64], f32[]) tuple(w1, m1, n)
}
";

#[test]
fn what_was_said_of_a_parameter_does_not_hold_of_its_shards() {
    let folder = std::env::temp_dir().join(format!("hlo-opt-zero-choice-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let (source, made) = (folder.join("step.hlo"), folder.join("made"));
    std::fs::write(&source, SAID_TO_BE_REPLICATED).expect("a file");
    let (source, made) = (source.display().to_string(), made.display().to_string());
    let pass = "@memory-limit=100MiB;shard-weight-update{state=parameters},fold-all-reduce-of-all-reduce";
    let words = [&source[..], "--replicated-params", "0-1", "--pass", pass, "-o", &made, "--report", "json"];
    let (code, _, stderr) = crate::tool::run(words);
    assert_eq!(code, 0, "{stderr}");
    // The peak that is told is that of what was made, not of what came in.
    let report: serde_json::Value = serde_json::from_str(&stderr).expect("a report");
    let memory = &report["modules"][0]["reports"][0]["memory"];
    let after = memory["peak_after_bytes"].as_u64().expect("a peak");
    assert!(after < memory["peak_before_bytes"].as_u64().expect("a peak"), "{memory}");
    let (code, stdout, stderr) = crate::tool::run(["compare", "--same", "0-1", &source, &made]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let twice = "shard-weight-update{state=parameters},shard-weight-update{state=parameters}";
    let (code, _, stderr) = crate::tool::run([&source[..], "--replicated-params", "0-1", "--pass", twice, "-o", &made]);
    assert!(code == 2 && stderr.contains("found two"), "{code} {stderr}");
}
