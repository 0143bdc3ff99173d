//! What the crate promises, on its own rules.

use crate::text::{parse_rules, print_rule};
use crate::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// The closed set, generated once for all tests.
fn set() -> &'static RuleSet {
    static SET: OnceLock<RuleSet> = OnceLock::new();
    SET.get_or_init(|| generate(Options::default()).unwrap_or_else(|e| panic!("{e}")))
}

fn read(text: &str) -> Vec<(Rule, Option<Label>)> {
    parse_rules(text).unwrap_or_else(|e| panic!("{e}"))
}

/// Rules by hand with their labels, and wrong ones without: verdicts, and the text form there and back.
#[test]
fn rules_by_hand_are_accepted_or_refused() {
    let rules = read(include_str!("../examples/rules.txt"));
    assert!(rules.iter().any(|r| r.1.is_none()) && rules.len() > 15);
    for (rule, label) in rules {
        let text = print_rule(&rule, label);
        assert_eq!(print_rule(&read(&text)[0].0, label), text);
        match check(&rule) {
            Verdict::Accepted(found) => {
                assert_eq!(Some(found.label), label, "{text}");
                assert!(found.n_tuples >= 8, "{text}{}", found.n_tuples);
            }
            Verdict::Rejected(why) => {
                assert_eq!(None, label, "{text}{why}");
                assert!(matches!(why, Rejected::Differs(_)), "{text}{why}");
            }
        }
    }
}

#[test]
fn every_required_rule_is_found_by_enumeration() {
    let enumerated = set().entries.iter().filter(|e| e.origin == Origin::Enumerated);
    let found: BTreeMap<String, Label> = enumerated.map(|e| (e.rule.canonical_text(), e.accepted.label)).collect();
    let required = read(include_str!("../examples/required.txt"));
    assert_eq!(required.len(), 20);
    for (rule, label) in required {
        assert_eq!(found.get(&rule.canonical_text()).copied(), label, "{}", print_rule(&rule, label));
    }
}

#[test]
fn rules_are_distinct_and_their_names_too() {
    let names: BTreeSet<&str> = set().entries.iter().map(|e| e.rule.name.as_str()).collect();
    let texts: BTreeSet<String> = set().entries.iter().map(|e| e.rule.canonical_text()).collect();
    assert_eq!((names.len(), texts.len()), (set().entries.len(), set().entries.len()));
    for entry in set().entries.iter().filter(|e| !e.rule.unknowns.is_empty()) {
        assert!(entry.accepted.n_tuples >= 8, "{}{}", print_rule(&entry.rule, None), entry.accepted.n_tuples);
    }
}

/// Each backward form of each rule is a rule of the set, or both its sides are one term, or it is said why there is none.
#[test]
fn the_set_is_closed_under_differentiation() {
    let mut none: BTreeMap<String, usize> = BTreeMap::new();
    for entry in set().entries.iter().filter(|e| e.same_as.is_none() && !e.rule.is_loosely_trivial()) {
        for (input, backward) in &entry.backward {
            match backward {
                Backward::Rule(at) => assert!(*at < set().entries.len()),
                Backward::Trivial => {}
                Backward::LeftOut => panic!("{} {input}", entry.rule.name),
                Backward::None(why) => *none.entry(format!("{why:?}")).or_default() += 1,
            }
        }
    }
    println!("{none:?}, {} rules, {:?}, {} rejected", set().entries.len(), set().counts, set().n_rejected);
    assert_eq!(set().n_open, 0, "the last round added nothing");
    // Most backward forms are there; these are not: of rules with several results, of grouped convolutions that are backward forms
    // already, and few that are not proved.
    let n = |why: NoGradient| none.get(&format!("{why:?}")).copied().unwrap_or(0);
    assert!(n(NoGradient::Unproved) <= 20 && n(NoGradient::Convolution) <= 40, "{none:?}");
    let open = generate(Options { is_closed: false, ..Options::default() }).unwrap_or_else(|e| panic!("{e}"));
    assert!(open.entries.iter().all(|e| e.backward.is_empty() && !matches!(e.origin, Origin::Gradient { .. })));
}

#[test]
fn the_gradient_of_a_product_of_parts_is_in_the_set() {
    let (rule, _) = &read(include_str!("../examples/required.txt"))[0];
    let at = set().find_same(rule).expect("the rule");
    let backward: Vec<&str> = set().entries[at].backward.iter().map(|b| b.0.as_str()).collect();
    assert_eq!(backward.len(), 4, "one for each input");
    let of_x1 = gradient_rule(rule, 0).expect("a backward form");
    assert!(matches!(check(&of_x1), Verdict::Accepted(_)), "{}", print_rule(&of_x1, None));
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn leaving_a_rule_out_leaves_out_what_follows_from_it() {
    let (rule, _) = &read(include_str!("../examples/required.txt"))[0];
    let name = set().entries[set().find_same(rule).expect("the rule")].rule.name.clone();
    let less = set().without(std::slice::from_ref(&name)).expect("a set");
    assert!(less.find(&name).is_none() && less.entries.len() + 1 < set().entries.len());
    assert_eq!(set().without(&["no-such-rule".into()]).err().as_deref(), Some("no-such-rule"));
    for entry in &less.entries {
        for (_, backward) in &entry.backward {
            let Backward::Rule(at) = backward else { continue };
            assert!(*at < less.entries.len());
        }
    }
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn the_same_bytes_come_out_twice() {
    let text =
        |set: &RuleSet| set.entries.iter().map(|e| print_rule(&e.rule, Some(e.accepted.label))).collect::<String>();
    assert_eq!(text(set()), text(&generate(Options::default()).unwrap_or_else(|e| panic!("{e}"))));
}

#[test]
fn mutants_are_refused_or_proved_equivalent() {
    let rules = set().entries.iter().filter(|e| e.origin == Origin::Enumerated && e.same_as.is_none());
    let counts = check_mutants(rules.map(|e| &e.rule));
    println!("{:?}, {} equivalent", counts.n_rejected, counts.equivalent.len());
    assert!(counts.undecided.is_empty(), "{}", counts.undecided[0].1);
    assert!(counts.n_rejected.values().sum::<usize>() >= 1000, "{:?}", counts.n_rejected);
    for kind in MutantKind::ALL {
        assert!(counts.n_rejected.get(&kind).is_some_and(|&n| n >= 50), "{}: {:?}", kind.name(), counts.n_rejected);
    }
    for (_, text) in &counts.equivalent {
        assert!(prove(&read(text)[0].0).is_ok(), "{text}");
    }
}

#[test]
fn errors_of_texts_tell_the_place() {
    let error = |text: &str| parse_rules(text).err().map(|e| e.to_string()).unwrap_or_default();
    let rule = "rule r\n  a: [m]\n  left  = ";
    assert_eq!(error(&format!("{rule}b\n")), "3:11: expected an input or an op with operands, found `b`");
    assert_eq!(error(&format!("{rule}neg(a)\n")), "3:11: expected an op, found `neg`");
    assert_eq!(
        error(&format!("{rule}reduce(a)\n")),
        "3:11: expected the attributes of reduce, found one that is missing or has another form"
    );
    assert_eq!(error(&format!("{rule}relu(a, dim=0)\n")), "3:19: expected an attribute of relu, found `dim`");
    assert_eq!(error(&format!("{rule}add(a)\n")), "3:11: expected two operands, found others at `add`");
    assert_eq!(error(&format!("{rule}a\n")), "3:12: expected `right`, found the end of the text");
    assert_eq!(
        error("rule r\n  a: [m - n]\n"),
        "2:6: expected dims of one or more for all sizes, found a dim that may be less"
    );
    assert_eq!(error("rule r ; x"), "1:8: expected a word, a number or one of ()[],:=+-*, found `;`");
}
