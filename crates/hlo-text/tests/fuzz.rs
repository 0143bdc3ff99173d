//! Damaged samples never panic, never hang, and what still parses prints to the same text again.

mod mutate;

use mutate::{Random, check, mutate, seeds};
use std::time::Duration;

#[test]
fn damaged_samples_give_errors_or_stable_text() {
    let seeds = seeds(&["ops", "syntax", "invalid/parse", "invalid/verify"], 1 << 16);
    assert!(seeds.len() > 100, "found {} samples", seeds.len());
    for seed in 0..6000 {
        let text = mutate(&seeds, &mut Random(seed));
        match check(&text) {
            // Generous: this may be a slow build.
            Ok(time) => assert!(time < Duration::from_secs(2), "seed {seed}: took {time:?}"),
            Err(error) => panic!("seed {seed}: {error}\n{}", String::from_utf8_lossy(&text)),
        }
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let n = 200_000;
    let texts = [
        format!("HloModule m\nENTRY e {{\n  p = {}\n}}\n", "(".repeat(n)),
        format!("HloModule m\nENTRY e {{\n  p = f32[] {}\n}}\n", "negate(".repeat(n)),
        format!("HloModule m\nENTRY e {{\n  p = f32[] constant({})\n}}\n", "{".repeat(n)),
        format!("HloModule m\nENTRY e {{\n  p = f32[] parameter(0), sharding={}\n}}\n", "{".repeat(n)),
        format!("HloModule m\nENTRY e {{\n  p = f32[] parameter(0), backend_config={}\n}}\n", "{".repeat(n)),
        format!("HloModule m, entry_computation_layout={{({}", "(".repeat(n)),
        "b(".repeat(n),
        "/*".repeat(n),
        "\"".repeat(n),
        "%".repeat(n),
    ];
    for text in texts {
        let head = &text[..text.len().min(80)];
        assert!(hlo_text::parse_module(&text).is_err(), "{head}");
        check(text.as_bytes()).unwrap_or_else(|error| panic!("{head}: {error}"));
    }
}
