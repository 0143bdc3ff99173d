//! The verifier on samples: valid ones break no rule, each invalid one breaks the rule that its `// error:` line names,
//! there, and every rule that a text can break has a sample.

use hlo_ir::diag::{Diagnostic, Entity};
use hlo_ir::verify::{RULES, verify};
use hlo_text::{Parsed, parse_module};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn samples(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|e| e == "hlo"))
        .collect();
    files.sort();
    files
}

/// The line (from 1) of what a diagnostic speaks of; the `HloModule` line for the module.
fn line_of(text: &str, parsed: &Parsed, diagnostic: &Diagnostic) -> usize {
    let offset = match diagnostic.entity {
        Entity::Module => text.find("HloModule").unwrap_or(0),
        Entity::Comp(comp) => parsed.sources.comps[comp] as usize,
        Entity::Inst(inst) => parsed.sources.insts[inst] as usize,
    };
    text[..offset].matches('\n').count() + 1
}

#[test]
fn valid_samples_verify() {
    let mut failures = Vec::new();
    for path in ["ops", "syntax", "programs"].into_iter().flat_map(samples) {
        let text = std::fs::read_to_string(&path).expect("a readable sample");
        // That valid samples parse is asserted elsewhere.
        let Ok(parsed) = parse_module(&text) else { continue };
        if let Err(found) = verify(&parsed.module) {
            failures.push(format!("{}: {} {}", path.display(), found[0].rule, found[0].message));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn invalid_samples_break_the_rule_that_they_name_and_no_other() {
    let mut failures = Vec::new();
    for path in samples("invalid/verify") {
        let text = std::fs::read_to_string(&path).expect("a readable sample");
        let parsed = match parse_module(&text) {
            Ok(parsed) => parsed,
            Err(found) => {
                failures.push(format!("{}: does not parse: {}", path.display(), found[0].message));
                continue;
            }
        };
        let expected: BTreeSet<(usize, &str)> = text
            .lines()
            .enumerate()
            .filter_map(|(i, line)| Some((i + 1, line.split_once("// error: ")?.1.trim())))
            .collect();
        assert!(!expected.is_empty(), "{}: no `// error:` line", path.display());
        let found = verify(&parsed.module).err().unwrap_or_default();
        let at: BTreeSet<_> = found.iter().map(|d| (line_of(&text, &parsed, d), d.rule)).collect();
        if at != expected {
            let messages: Vec<_> = found.iter().map(|d| d.message.as_str()).collect();
            failures.push(format!("{}: expected {expected:?}, found {at:?} {messages:?}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_rule_that_a_text_can_break_has_a_sample_and_ids_are_unique() {
    let files = samples("invalid/verify");
    let names: BTreeSet<&str> =
        files.iter().filter_map(|p| p.file_name()?.to_str()).filter_map(|name| name.split('.').next()).collect();
    let ids: BTreeSet<&str> = RULES.iter().map(|r| r.id).collect();
    assert_eq!(ids.len(), RULES.len(), "an id stands twice in the catalogue");
    let without_sample: Vec<_> = RULES.iter().filter(|r| r.from_text && !names.contains(r.id)).map(|r| r.id).collect();
    assert_eq!(without_sample, Vec::<&str>::new(), "rules without a sample");
    let without_rule: Vec<_> = names.iter().filter(|n| !ids.contains(*n)).collect();
    assert_eq!(without_rule, Vec::<&&str>::new(), "samples of rules that do not exist");
}

/// Replaces one number of the text by another one: attributes, dims and ids out of range, but text that parses.
fn with_other_number(text: &str, seed: &mut u64) -> String {
    const NUMBERS: [&str; 12] =
        ["0", "1", "2", "3", "7", "9", "-1", "63", "64", "65", "4294967296", "9223372036854775807"];
    let mut draw = |n: usize| {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) as usize % n
    };
    let starts: Vec<usize> = text
        .char_indices()
        .filter(|&(i, c)| c.is_ascii_digit() && !text[..i].ends_with(|p: char| p.is_ascii_alphanumeric() || p == '.'))
        .map(|(i, _)| i)
        .collect();
    if starts.is_empty() {
        return text.to_string();
    }
    let start = starts[draw(starts.len())];
    let end = text[start..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |n| start + n);
    format!("{}{}{}", &text[..start], NUMBERS[draw(NUMBERS.len())], &text[end..])
}

#[test]
fn modules_with_other_numbers_never_panic_verifier_factors_or_costs() {
    let rounds = std::env::var("HLO_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let (mut seed, mut n_verified, mut n_rejected) = (1u64, 0usize, 0usize);
    for path in ["ops", "syntax", "invalid/verify"].into_iter().flat_map(samples) {
        let text = std::fs::read_to_string(&path).expect("a readable sample");
        for round in 0..rounds {
            let mut changed = with_other_number(&text, &mut seed);
            if round % 3 == 0 {
                changed = with_other_number(&changed, &mut seed);
            }
            let Ok(parsed) = parse_module(&changed) else { continue };
            let module = parsed.module;
            if verify(&module).is_err() {
                n_rejected += 1;
                continue;
            }
            n_verified += 1;
            let costs = hlo_ir::cost::Costs::new(&module);
            for &inst in module.computations().iter().flat_map(|&c| &module.comp(c).insts) {
                let _ = hlo_ir::factors::find_factors(&module, inst);
                costs.of(inst);
            }
        }
    }
    assert!(n_verified > rounds && n_rejected > rounds, "{n_verified} verified, {n_rejected} rejected");
}
