//! `hlo-opt plan rules`: the algebraic rules with what was shown of them, and checks of rules that a file states.

use super::arguments::RulesArgs;
use crate::console::Console;
use crate::progress::Progress;
use crate::{Failure, exit};
use hlo_rules::collection::{Published, Unread, read_collection};
use hlo_rules::region::{Limits, every_rewrite, leads_to};
use hlo_rules::text::{ParseError, parse_rules, print_rule};
use hlo_rules::{
    Backward, Entry, Label, N_SEEDS, NoGradient, Options, Origin, PRIMES, Rejected, Rule, RuleSet, Verdict, check,
    generate, parallel_families,
};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Prints the rules, or the verdicts on those of a file.
///
/// # Errors
/// A file that cannot be read or has no rules, or a rule to leave out that the set does not have.
pub(crate) fn plan(args: &RulesArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let set = || -> Result<RuleSet, Failure> {
        let options = Options { is_closed: !args.no_closure, has_wide: true };
        let set = generate(options).map_err(|e| Failure::File(e.to_string()))?;
        set.without(&args.without_rule)
            .map_err(|name| Failure::Usage(format!("--without-rule: expected a rule that --list names, found {name}")))
    };
    match &args.check {
        Some(path) => check_file(path, &set, console),
        None => {
            console.print(list(&set()?).as_bytes())?;
            Ok(exit::OK)
        }
    }
}

/// Checks the rules of a file. The set takes a while to make: what is wrong with the file is said before.
fn check_file(
    path: &Path,
    set: &dyn Fn() -> Result<RuleSet, Failure>,
    console: &mut Console<'_>,
) -> Result<u8, Failure> {
    let place = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| Failure::File(format!("{place}: {e}")))?;
    let diagnostic = |e: ParseError| {
        let at = format!("{place}:{}:{}", e.line, e.column);
        Failure::Diagnostics(format!("{at}: error: expected {}, found {}\n", e.expected, e.found))
    };
    let none = || Failure::Diagnostics(format!("{place}:1:1: error: expected rules, found none\n"));
    if text.trim_start().starts_with('{') {
        let rules = read_collection(&text).map_err(diagnostic)?;
        return if rules.is_empty() { Err(none()) } else { check_collection(&rules, &set()?, console) };
    }
    let rules = parse_rules(&text).map_err(diagnostic)?;
    if rules.is_empty() {
        return Err(none());
    }
    let set = set()?;
    let (mut out, mut worst) = (String::new(), exit::OK);
    for (rule, claimed) in &rules {
        let (line, code) = verdict(rule, *claimed, &set);
        let _ = writeln!(out, "{}: {line}", rule.name);
        // A rule that is wrong weighs more than one of which nothing is known.
        if worst != exit::DIFFERENT && code != exit::OK {
            worst = code;
        }
    }
    console.print(out.as_bytes())?;
    Ok(worst)
}

/// How far rules of the set are followed from one side of a published rule to the other.
const PROOF: Limits =
    Limits { n_ops: 40, n_alternatives: 1, n_classes: 12_000, n_rounds: 5, n_priced: 0, joins_again: true };

/// What came of the rules of one family of a collection.
#[derive(Default)]
struct Family {
    n_rules: usize,
    n_equal: usize,
    n_placements: usize,
    n_derived: usize,
    n_refuted: usize,
    n_open: usize,
}

/// Prints a line for each rule of a published collection that is not proved, and a table of all by family.
fn check_collection(rules: &[Published], set: &RuleSet, console: &mut Console<'_>) -> Result<u8, Failure> {
    let rewrites = every_rewrite(set);
    let progress = Progress::start(console.shows_progress);
    let (mut out, mut families) = (String::new(), BTreeMap::<&str, Family>::new());
    for (at, one) in rules.iter().enumerate() {
        progress.now(&format!("checks rule {} of {}", at + 1, rules.len()));
        let family = families.entry(&one.family).or_default();
        family.n_rules += 1;
        let said = match &one.rule {
            // No sizes suit both sides: there is nothing of which they could be equal.
            Err(why @ Unread::Shapes(_)) => (format!("rejected: {why}"), exit::DIFFERENT),
            Err(why @ (Unread::Op(_) | Unread::Parameter { .. } | Unread::Operand(_) | Unread::TooLarge)) => {
                (format!("not read: {why}"), exit::UNKNOWN)
            }
            Ok(rule) => verdict(rule, None, set),
        };
        match (&one.rule, said.1) {
            (Ok(rule), exit::OK) => {
                family.n_equal += 1;
                let is_placement = one.is_placement();
                family.n_placements += usize::from(is_placement);
                if is_placement || leads_to(&rewrites, rule, PROOF) {
                    family.n_derived += 1;
                } else {
                    let _ = writeln!(
                        out,
                        "{}: accepted, but no rules of the set lead from one side to the other",
                        one.name
                    );
                }
            }
            (_, code) => {
                *if code == exit::DIFFERENT { &mut family.n_refuted } else { &mut family.n_open } += 1;
                let _ = writeln!(out, "{}: {}", one.name, said.0);
            }
        }
    }
    drop(progress);
    let mut total = Family::default();
    let _ =
        writeln!(out, "\n| ops | rules | equal | other placement alone | by rules of the set | wrong | not proved |");
    let _ = writeln!(out, "|---|--:|--:|--:|--:|--:|--:|");
    for (name, family) in &families {
        total.add(family);
        family.print(name, &mut out);
    }
    total.print("all", &mut out);
    console.print(out.as_bytes())?;
    Ok(match total {
        Family { n_refuted: 0, n_open: 0, .. } => exit::OK,
        Family { n_refuted: 0, .. } => exit::UNKNOWN,
        Family { .. } => exit::DIFFERENT,
    })
}

impl Family {
    fn add(&mut self, other: &Family) {
        self.n_rules += other.n_rules;
        self.n_equal += other.n_equal;
        self.n_placements += other.n_placements;
        self.n_derived += other.n_derived;
        self.n_refuted += other.n_refuted;
        self.n_open += other.n_open;
    }

    fn print(&self, name: &str, out: &mut String) {
        let Family { n_rules, n_equal, n_placements, n_derived, n_refuted, n_open } = self;
        let n_derived = n_derived - n_placements;
        let _ =
            writeln!(out, "| {name} | {n_rules} | {n_equal} | {n_placements} | {n_derived} | {n_refuted} | {n_open} |");
    }
}

fn verdict(rule: &Rule, claimed: Option<Label>, set: &RuleSet) -> (String, u8) {
    match check(rule) {
        Verdict::Accepted(found) => {
            let shown = format!(
                "{}, proved for all sizes, {} shapes x {N_SEEDS} points modulo {} primes",
                found.label.name(),
                found.n_tuples,
                PRIMES.len()
            );
            let known = match set.find_same(rule) {
                Some(at) => format!("; in the set: {}", set.entries[at].rule.name),
                None => "; not in the set".to_string(),
            };
            match claimed {
                Some(claimed) if claimed == Label::Exact && found.label == Label::Reassoc => {
                    (format!("rejected: expected exact, found {shown}"), exit::DIFFERENT)
                }
                Some(_) | None => (format!("accepted: {shown}{known}"), exit::OK),
            }
        }
        Verdict::Rejected(why @ Rejected::Differs(_)) if has_stand_in(&why) => {
            (format!("not proved: proofs hold of any function, and this does not\n{why}"), exit::UNKNOWN)
        }
        Verdict::Rejected(why @ Rejected::Unproved(_)) => (format!("rejected: {why}"), exit::UNKNOWN),
        Verdict::Rejected(why @ (Rejected::Differs(_) | Rejected::Dims { .. })) => {
            (format!("rejected: {why}"), exit::DIFFERENT)
        }
    }
}

fn list(set: &RuleSet) -> String {
    let mut out = String::new();
    let is = |origin: fn(&Origin) -> bool| move |entry: &&Entry| origin(&entry.origin);
    let groups: [(&str, Vec<&Entry>); 3] = [
        ("enumerated", set.entries.iter().filter(is(|o| matches!(o, Origin::Enumerated))).collect()),
        ("parts of joined branches", set.entries.iter().filter(is(|o| matches!(o, Origin::Derived { .. }))).collect()),
        ("backward forms", set.entries.iter().filter(is(|o| matches!(o, Origin::Gradient { .. }))).collect()),
    ];
    for (name, entries) in &groups {
        let n_exact = entries.iter().filter(|e| e.accepted.label == Label::Exact).count();
        let _ =
            writeln!(out, "# {name}: {} rules, {n_exact} exact, {} reassoc", entries.len(), entries.len() - n_exact);
    }
    let counts = set.counts;
    let _ = writeln!(
        out,
        "# of {} terms of up to {} ops: {} pairs agree at a random point, {} candidates; {} rejected, backward forms among them",
        counts.n_terms,
        hlo_rules::MOST_OPS,
        counts.n_pairs,
        counts.n_candidates,
        set.n_rejected
    );
    let _ = writeln!(out, "# parallel rules, derived from the op table: op x factor, for each axis of a mesh");
    for family in parallel_families() {
        let _ = writeln!(
            out,
            "#   {:12} {:3} rules of {:2} ops: {} cut and joined, {} summed, {} of one tensor; {} factors stay whole",
            family.name,
            family.n_rules(),
            family.n_ops,
            family.n_passed,
            family.n_reduced,
            family.n_owned,
            family.n_whole
        );
    }
    for (name, mut entries) in groups {
        let _ = writeln!(out, "\n# {name}");
        let root = |entry: &Entry| entry.rule.left.first().map_or("", |&t| entry.rule.terms.node(t).op.name());
        entries.sort_by_key(|entry| root(entry));
        for entry in entries {
            let _ = write!(out, "\n{}", print_rule(&entry.rule, Some(entry.accepted.label)));
            let _ = writeln!(
                out,
                "  # {} shapes x {N_SEEDS} points modulo {} primes",
                entry.accepted.n_tuples,
                PRIMES.len()
            );
            out.push_str(&origin(set, entry));
        }
    }
    out
}

/// Where a rule comes from, and what it becomes when differentiated.
fn origin(set: &RuleSet, entry: &Entry) -> String {
    let mut out = String::new();
    let name = |at: usize| set.entries[at].rule.name.as_str();
    match &entry.origin {
        Origin::Enumerated => {}
        Origin::Derived { of } => {
            let _ = writeln!(out, "  # follows from {}", name(*of));
        }
        Origin::Gradient { of, input } => {
            let _ = writeln!(out, "  # backward form of {} for {input}", name(*of));
        }
    }
    if let Some(same) = entry.same_as {
        let _ = writeln!(out, "  # says what {} says", name(same));
    }
    for (input, backward) in &entry.backward {
        let text = match backward {
            Backward::Rule(at) => name(*at),
            Backward::Trivial => "both sides are one term",
            Backward::LeftOut => "left out",
            Backward::None(why) => match why {
                NoGradient::SeveralResults => "none: several results",
                NoGradient::Convolution => "none: a grouped convolution that is a backward form",
                NoGradient::Zero => "zero",
                NoGradient::Unproved => "not proved",
            },
        };
        let _ = writeln!(out, "  # backward for {input}: {text}");
    }
    out
}

/// Whether only a function in the place of another tells the sides apart.
fn has_stand_in(why: &Rejected) -> bool {
    match why {
        Rejected::Differs(example) => example.has_stand_in,
        Rejected::Dims { .. } | Rejected::Unproved(_) => false,
    }
}
