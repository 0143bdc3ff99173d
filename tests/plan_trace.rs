//! `--emit trace` says what `--emit plan-json` says, over time.

use crate::cli::{run, sample};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let out = run(args);
    assert_eq!(out.code, 0, "{args:?}: {}", out.stderr);
    serde_json::from_str(&out.stdout).expect("JSON")
}

#[test]
fn a_trace_has_every_step_and_stays_within_the_plans_memory() {
    for (file, is_loop) in [("programs/mlp_sgd_wide.hlo", false), ("programs/gpt2l_adamw_fori.hlo", true)] {
        let file = sample(file);
        let (trace, plan) = (json(&["--emit", "trace", &file]), json(&["--emit", "plan-json", &file]));
        let events = trace["traceEvents"].as_array().expect("events");
        let of_phase = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
        let number = |value: &Value| value.as_f64().expect("a number");
        let end_us = of_phase("X").map(|event| number(&event["ts"]) + number(&event["dur"])).fold(0.0, f64::max);
        assert!((end_us / (number(&plan["modelled_s"]) * 1e6) - 1.0).abs() < 1e-9, "{file}: {end_us}");
        let n_rounds = of_phase("X").filter(|event| event["cat"] == "rounds").count();
        assert_eq!(n_rounds > 0, is_loop, "{file}");
        if !is_loop {
            assert_eq!(of_phase("X").count(), plan["steps"].as_array().map_or(0, Vec::len), "{file}");
        }
        for tid in [0, 1] {
            let mut free_us = 0.0;
            for event in of_phase("X").filter(|event| event["tid"] == tid) {
                assert!(number(&event["ts"]) >= free_us - 1e-6, "{file}: {event} begins before {free_us}");
                free_us = number(&event["ts"]) + number(&event["dur"]);
            }
        }
        let memory = &plan["memory"];
        let arena: Vec<u64> = of_phase("C").map(|event| event["args"]["arena"].as_u64().expect("bytes")).collect();
        let most = arena.iter().max().expect("moments");
        assert!(*most <= memory["arena_bytes"].as_u64().expect("bytes"), "{file}: {most} of {memory}");
        assert!(*most * 10 >= memory["arena_bytes"].as_u64().expect("bytes") * 9, "{file}: {most} of {memory}");
        assert_eq!(arena.last(), Some(&0), "{file}");
        let given = of_phase("C").next().map(|event| event["args"]["arguments and outputs"].clone()).expect("bytes");
        let peak = given.as_u64().expect("bytes") + memory["arena_bytes"].as_u64().expect("bytes");
        assert_eq!(memory["peak_bytes"], peak, "{file}");
    }
}
