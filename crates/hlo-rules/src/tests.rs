use crate::text::{parse_rules, print_rule};
use crate::*;

const RULES: &str = include_str!("../examples/rules.txt");
#[test]
fn handwritten_rules_are_checked() {
    let rules = parse_rules(RULES).unwrap_or_else(|e| panic!("{e}"));
    for (rule, label) in rules {
        let text = print_rule(&rule, label);
        let again = parse_rules(&text).unwrap_or_else(|e| panic!("{text}{e}"));
        assert_eq!(print_rule(&again[0].0, label), text);
        let start = std::time::Instant::now();
        match check(&rule) {
            Verdict::Accepted(a) => { eprintln!("{} {:?} {:?}", rule.name, a, start.elapsed()); assert_eq!(Some(a.label), label, "{text}") }
            Verdict::Rejected(r) => { eprintln!("{} {r} {:?}", rule.name, start.elapsed()); assert_eq!(None, label, "{text}{r}") }
        }
    }
}

#[test]
fn enumerates() {
    let all = signatures().unwrap_or_else(|e| panic!("{e}"));
    let mut n = 0;
    let t0 = std::time::Instant::now();
    for s in &all {
        let t = std::time::Instant::now();
        let (rules, counts) = enumerate(std::slice::from_ref(s));
        eprintln!("{} {counts:?} {:?}", s.base.name, t.elapsed());
        n += rules.len();
    }
    eprintln!("{n} {:?}", t0.elapsed());
    let (rules, counts) = enumerate(&all);
    eprintln!("{counts:?}");
    let t0 = std::time::Instant::now();
    let mut ok = 0;
    let mut text = String::new();
    for r in &rules {
        match check(r) {
            Verdict::Accepted(a) => { ok += 1; text += &print_rule(r, Some(a.label)); }
            Verdict::Rejected(why) => { eprintln!("{}{why}", print_rule(r, None)); }
        }
    }
    std::fs::write("/tmp/rules.txt", text).unwrap();
    eprintln!("{ok} of {} {:?}", rules.len(), t0.elapsed());
}

#[test]
fn every_required_rule_is_found() {
    let (rules, _) = enumerate(&signatures().unwrap_or_else(|e| panic!("{e}")));
    let found: std::collections::BTreeSet<String> = rules.iter().map(Rule::canonical_text).collect();
    let mut missing = Vec::new();
    for (rule, label) in parse_rules(include_str!("../examples/required.txt")).unwrap_or_else(|e| panic!("{e}")) {
        match check(&rule) {
            Verdict::Accepted(a) => assert_eq!(Some(a.label), label, "{}", rule.name),
            Verdict::Rejected(why) => panic!("{}: {why}", rule.name),
        }
        if !found.contains(&rule.canonical_text()) {
            missing.push(rule.name);
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn closes() {
    let t = std::time::Instant::now();
    let set = generate(Options::default()).unwrap_or_else(|e| panic!("{e}"));
    eprintln!("{} rules, {:?}, rejected {}, backward {}, {:?}", set.entries.len(), set.counts, set.n_rejected, set.n_backward, t.elapsed());
    let mut tally = std::collections::BTreeMap::new();
    for e in &set.entries {
        *tally.entry(format!("{} {:?}", matches!(e.origin, Origin::Enumerated), e.accepted.label)).or_insert(0) += 1;
        for (_, b) in &e.backward {
            let what = match b { Backward::Rule(_) => "rule".to_string(), other => format!("{other:?}") };
            *tally.entry(what).or_insert(0) += 1;
        }
    }
    eprintln!("{tally:#?}");
    for e in set.entries.iter().filter(|e| matches!(e.origin, Origin::Gradient{..})).step_by(60) { eprintln!("{}", print_rule(&e.rule, Some(e.accepted.label))); }
}
