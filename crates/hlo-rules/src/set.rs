//! The set of rules: enumerated, verified, and closed under differentiation.

use crate::derive::{parts_rule, split_rules};
use crate::enumerate::{Counts, agrees, enumerate, general, signatures};
use crate::gradient::{NoGradient, gradient_rule};
use crate::numbers::mix;
use crate::op::Op;
use crate::rule::Rule;
use crate::term::TermId;
use crate::text::ParseError;
use crate::verify::{Accepted, Verdict, check};
use std::collections::BTreeMap;

/// Where a rule comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Two enumerated terms agree.
    Enumerated,
    /// The parts of what joined branches become, or a joined pair of inputs as one input.
    Derived {
        /// Number of the rule that it follows from.
        of: usize,
    },
    /// What flows back in another rule.
    Gradient {
        /// Number of that rule in the set.
        of: usize,
        /// The input to which it flows.
        input: String,
    },
}

/// Why a rule has no backward form of its own with respect to an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backward {
    /// The rule of this number in the set.
    Rule(usize),
    /// Both sides are one term.
    Trivial,
    /// The rule was left out of the set.
    LeftOut,
    /// There is none.
    None(NoGradient),
}

/// A verified rule.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The rule, with a name that depends on nothing but what it says.
    pub rule: Rule,
    /// What was shown of it.
    pub accepted: Accepted,
    /// Where it comes from.
    pub origin: Origin,
    /// A rule before it that says the same but for the order of dims and operands; that one has the backward forms.
    pub same_as: Option<usize>,
    /// For each input by name what it becomes when differentiated.
    pub backward: Vec<(String, Backward)>,
}

/// Verified rules.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Enumerated rules first, backward forms after them.
    pub entries: Vec<Entry>,
    /// What enumeration looked at.
    pub counts: Counts,
    /// Candidates that were not accepted.
    pub n_rejected: usize,
    /// Backward forms that were built and verified, those that are rules of the set already included.
    pub n_backward: usize,
    /// Backward forms whose own backward forms were not built: none, if the set is closed.
    pub n_open: usize,
}

/// How a set is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whether backward forms of rules are added.
    pub is_closed: bool,
    /// Whether rules with a dim that stands for all dims that an op leaves alone are added: proofs need them, regions do not.
    pub has_wide: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { is_closed: true, has_wide: false }
    }
}

/// Rounds of closure. A backward form of a backward form is a forward form again, so that few are needed.
const MOST_ROUNDS: usize = 12;

/// Enumerates, verifies and closes.
///
/// # Errors
/// None, as long as the shipped signatures parse.
pub fn generate(options: Options) -> Result<RuleSet, ParseError> {
    let (candidates, counts) = enumerate(&signatures(options.has_wide)?);
    let mut set = RuleSet { counts, ..RuleSet::default() };
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for rule in candidates {
        match check(&rule) {
            Verdict::Accepted(accepted) => {
                known.entry(rule.loose_text()).or_insert(set.entries.len());
                known.insert(plain_key(&rule), set.entries.len());
                set.push(rule, accepted, Origin::Enumerated);
            }
            Verdict::Rejected(_) => set.n_rejected += 1,
        }
    }
    for at in 0..set.entries.len() {
        set.derive(at, &mut known);
    }
    if options.is_closed {
        let mut first = 0;
        for _ in 0..MOST_ROUNDS {
            let last = set.entries.len();
            for at in first..last {
                // Of rules that say the same one is differentiated.
                let rule = &set.entries[at].rule;
                match known.get(&rule.loose_text()).copied().filter(|&same| same != at) {
                    Some(same) => set.entries[at].same_as = Some(same),
                    None if rule.is_loosely_trivial() => {}
                    None => set.close(at, &mut known),
                }
            }
            first = last;
        }
        set.n_open = set.entries.len() - first;
    }
    Ok(set)
}

impl RuleSet {
    /// The number of a rule by its name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.rule.name == name)
    }

    /// The number of the rule that says what another one says, up to names and the order of dims and operands.
    pub fn find_same(&self, rule: &Rule) -> Option<usize> {
        let text = rule.loose_text();
        self.entries.iter().position(|entry| entry.rule.loose_text() == text)
    }

    /// The set without rules, and without what follows from them alone.
    ///
    /// # Errors
    /// The first name that no rule has.
    pub fn without(&self, names: &[String]) -> Result<RuleSet, String> {
        let mut is_out = vec![false; self.entries.len()];
        for name in names {
            is_out[self.find(name).ok_or_else(|| name.clone())?] = true;
        }
        // What follows from a rule stands behind it.
        for (at, entry) in self.entries.iter().enumerate() {
            let parent = match entry.origin {
                Origin::Enumerated => entry.same_as,
                Origin::Derived { of } | Origin::Gradient { of, .. } => Some(of),
            };
            is_out[at] = is_out[at] || parent.is_some_and(|of| is_out[of]);
        }
        let new = |at: usize| is_out[..at].iter().filter(|out| !**out).count();
        let kept = self.entries.iter().enumerate().filter(|(at, _)| !is_out[*at]).map(|(_, entry)| {
            let mut entry = entry.clone();
            entry.same_as = entry.same_as.map(new);
            match &mut entry.origin {
                Origin::Enumerated => {}
                Origin::Derived { of } | Origin::Gradient { of, .. } => *of = new(*of),
            }
            for (_, backward) in &mut entry.backward {
                if let Backward::Rule(at) = backward {
                    *backward = if is_out[*at] { Backward::LeftOut } else { Backward::Rule(new(*at)) };
                }
            }
            entry
        });
        Ok(RuleSet { entries: kept.collect(), ..self.clone() })
    }

    fn push(&mut self, mut rule: Rule, accepted: Accepted, origin: Origin) {
        let text = rule.canonical_text();
        let root = |side: &[TermId]| side.first().map_or("", |&t| rule.terms.node(t).op.name());
        let hash = text.bytes().fold(7, |h, b| mix(h ^ u64::from(b)));
        rule.name = format!("{}-{}-{:06x}", root(&rule.left), root(&rule.right), hash >> 40);
        self.entries.push(Entry { rule, accepted, origin, same_as: None, backward: Vec::new() });
    }

    /// Adds what follows from entry `at` by what concatenations and stacks are.
    fn derive(&mut self, at: usize, known: &mut BTreeMap<String, usize>) {
        let rule = &self.entries[at].rule;
        if known.get(&rule.loose_text()) != Some(&at) || rule.is_loosely_trivial() {
            return;
        }
        for derived in parts_rule(rule).into_iter().chain(split_rules(rule)) {
            let text = derived.loose_text();
            let plain = plain_key(&derived);
            if known.contains_key(&text) || known.contains_key(&plain) || derived.is_loosely_trivial() {
                continue;
            }
            if let Verdict::Accepted(accepted) = check(&derived) {
                known.insert(text, self.entries.len());
                known.insert(plain, self.entries.len());
                self.push(derived, accepted, Origin::Derived { of: at });
            }
        }
    }

    /// Adds what entry `at` becomes when differentiated.
    fn close(&mut self, at: usize, known: &mut BTreeMap<String, usize>) {
        let rule = self.entries[at].rule.clone();
        // Masks and exponentials are differentiated once: in a backward form only what it is linear in goes on.
        let is_backward = matches!(self.entries[at].origin, Origin::Gradient { .. });
        let mut both = rule.inputs_of(&rule.left);
        both.retain(|i| rule.inputs_of(&rule.right).contains(i));
        for input in both {
            let name = rule.inputs[usize::from(input)].clone();
            if is_backward && !is_linear(&rule, input) {
                continue;
            }
            let backward = self.backward(at, &rule, input, known);
            self.entries[at].backward.push((name, backward));
        }
    }

    fn backward(&mut self, at: usize, rule: &Rule, input: u8, known: &mut BTreeMap<String, usize>) -> Backward {
        let gradient = match gradient_rule(rule, input) {
            Ok(gradient) => gradient,
            Err(why) => return Backward::None(why),
        };
        let Some(gradient) = general(gradient).filter(agrees) else { return Backward::Trivial };
        self.n_backward += 1;
        if gradient.is_loosely_trivial() {
            return Backward::Trivial;
        }
        let text = gradient.loose_text();
        let plain = plain_key(&gradient);
        if let Some(&same) = known.get(&text).or_else(|| known.get(&plain)) {
            return Backward::Rule(same);
        }
        match check(&gradient) {
            Verdict::Accepted(accepted) => {
                let input = rule.inputs[usize::from(input)].clone();
                known.insert(text, self.entries.len());
                known.insert(plain, self.entries.len());
                self.push(gradient, accepted, Origin::Gradient { of: at, input });
                Backward::Rule(self.entries.len() - 1)
            }
            Verdict::Rejected(_) => {
                self.n_rejected += 1;
                Backward::None(NoGradient::Unproved)
            }
        }
    }
}

/// The key of a rule's canonical text among those of loose ones.
fn plain_key(rule: &Rule) -> String {
    format!("plain {}", rule.canonical_text())
}

/// Whether both sides are linear in an input: no function stands between it and the results, and no product has it on both sides.
fn is_linear(rule: &Rule, input: u8) -> bool {
    let roots: Vec<TermId> = rule.left.iter().chain(&rule.right).copied().collect();
    let mut has: Vec<TermId> = Vec::new();
    for term in rule.terms.reachable(&roots) {
        let node = rule.terms.node(term);
        let with = node.args.iter().filter(|a| has.contains(a)).count();
        if node.op == Op::Input(input) {
            has.push(term);
        } else if with > 0 {
            let is_product = matches!(node.op, Op::Dot(_) | Op::Conv(_) | Op::Multiply | Op::Scale);
            if matches!(node.op, Op::Unary(_) | Op::Max | Op::Above) || (is_product && with > 1) {
                return false;
            }
            has.push(term);
        }
    }
    true
}
