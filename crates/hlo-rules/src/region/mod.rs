//! Alternatives of a region: an e-graph over its terms, rules applied until nothing is new or a limit is met, and the cheapest distinct
//! terms. Each alternative is proved equal to the region before it is handed out.
//!
//! All rules on a region say much and take seconds. Who knows what is looked for asks for the rewrites of one [`Aim`], some dozens.

mod aims;
mod apply;
mod egraph;
mod extract;
mod matching;

pub use aims::{Aim, aimed_rewrites, is_backward_form};
pub use extract::{Alternative, Alternatives};

use crate::op::{Dims, Op};
use crate::rule::Rule;
use crate::set::{Entry, Origin, RuleSet};
use crate::size::Size;
use crate::term::{TermId, Terms};
use egraph::EGraph;

/// Counted limits: the same limits give the same alternatives in every process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most ops of a region.
    pub n_ops: usize,
    /// Most alternatives, the region itself included.
    pub n_alternatives: usize,
    /// Most classes of the e-graph.
    pub n_classes: usize,
    /// Most rounds in which all rules are tried.
    pub n_rounds: usize,
    /// Most terms that are priced.
    pub n_priced: usize,
    /// Whether what joined branches became may be joined with further branches: three products become one in two rounds.
    pub joins_again: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { n_ops: 40, n_alternatives: 8, n_classes: 1200, n_rounds: 3, n_priced: 40_000, joins_again: false }
    }
}

/// Why a region has no alternatives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegionError {
    /// It has more ops than the limit.
    TooLarge {
        /// Its ops.
        n_ops: usize,
        /// The limit.
        limit: usize,
    },
}

impl std::fmt::Display for RegionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RegionError::TooLarge { n_ops, limit } => write!(f, "region: expected at most {limit} ops, found {n_ops}"),
        }
    }
}

impl std::error::Error for RegionError {}

/// A rule read in one direction.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// The rule; its left side is matched, its right side is built.
    pub rule: Rule,
    /// Number of the rule in its set.
    pub entry: usize,
}

/// The rewrites of a set: each rule that is no mere change of dims' order, in each direction in which what is matched has all inputs.
/// Left out are rules with reshapes, as matching takes dims as they are, and directions in which a term grows by more than one op, unless
/// they join branches or split a concatenated operand. Terms that only move data are made smaller, never otherwise.
pub fn rewrites(set: &RuleSet) -> Vec<Rewrite> {
    let is_small = |found: &Entry, direction: &Rule| {
        let (n_from, n_to) = direction.n_ops();
        let moves_only =
            direction.terms.reachable(&direction.left).iter().all(|&t| direction.terms.node(t).op.is_movement());
        match moves_only {
            true => n_to < n_from,
            false => n_to <= n_from + 1 || matches!(found.origin, Origin::Derived { .. }),
        }
    };
    let mut all = directions(set, is_small);
    // What joins branches first, then what takes ops away: the limits may end a search before all is tried.
    all.sort_by_key(|rewrite| {
        let (n_from, n_to) = rewrite.rule.n_ops();
        (rewrite.rule.left.len() == 1, n_to as i64 - n_from as i64, n_from, rewrite.entry)
    });
    all
}

/// Rules of one result in all directions in which a term grows by one op at most: for proofs that one term leads to another ([`leads_to`]), not for searches.
pub fn every_rewrite(set: &RuleSet) -> Vec<Rewrite> {
    directions(set, |_, direction| {
        let (n_from, n_to) = direction.n_ops();
        direction.left.len() == 1 && n_to <= n_from + 1
    })
}

/// The rewrites of a set of which the direction is taken.
fn directions(set: &RuleSet, is_taken: impl Fn(&Entry, &Rule) -> bool) -> Vec<Rewrite> {
    let mut all = Vec::new();
    for (entry, found) in set.entries.iter().enumerate() {
        let rule = &found.rule;
        let has_reshape = rule.reachable().iter().any(|&t| matches!(rule.terms.node(t).op, Op::Reshape(_)));
        if found.same_as.is_some() || has_reshape || rule.is_loosely_trivial() {
            continue;
        }
        for direction in [rule.clone(), rule.reversed()] {
            let (from, to) = (direction.inputs_of(&direction.left), direction.inputs_of(&direction.right));
            let is_bare = direction.left.iter().all(|&t| matches!(direction.terms.node(t).op, Op::Input(_)));
            if to.iter().all(|i| from.contains(i)) && !is_bare && is_taken(found, &direction) {
                all.push(Rewrite { rule: direction, entry });
            }
        }
    }
    all
}

/// Whether rewrites lead from one side of a rule to the other within the limits, tried at one choice of sizes. Only rewrites are followed
/// of which all ops stand in the rule too.
pub fn leads_to(rewrites: &[Rewrite], rule: &Rule, limits: Limits) -> bool {
    const SIZES: [i64; 8] = [2, 3, 5, 4, 7, 6, 9, 8];
    let mut terms = Terms::default();
    let roots: Vec<TermId> = rule.left.iter().chain(&rule.right).copied().collect();
    let at = |size: &Size| size.replace(&|sym| Size::number(SIZES[sym.number() % SIZES.len()]));
    let mut input = |terms: &mut Terms, number: u8, dims: Dims| terms.input(number, dims);
    let Ok(roots) = terms.copy(&rule.terms, &roots, &mut input, &at) else { return false };
    let kinds = |rule: &Rule| rule.reachable().iter().fold(0, |all, &t| all | egraph::kind(&rule.terms.node(t).op));
    let own = kinds(rule);
    let of_its_ops: Vec<Rewrite> =
        rewrites.iter().filter(|rewrite| kinds(&rewrite.rule) & !own == 0).cloned().collect();
    // A few rounds are enough for most; each further one takes a multiple of the time.
    (2..=limits.n_rounds).any(|n_rounds| {
        let (mut graph, classes) = EGraph::of(&terms, &roots);
        apply::saturate(&mut graph, &of_its_ops, Limits { n_rounds, ..limits });
        let (left, right) = classes.split_at(rule.left.len());
        left.iter().zip(right).all(|(&l, &r)| graph.find(l) == graph.find(r))
    })
}

/// Up to `limits.n_alternatives` terms for `roots` that differ in their arithmetic, the cheapest of each kind and the cheapest kinds first, `roots` themselves among them; `cost` prices one term with
/// its operands given, and a graph costs the sum over its distinct terms.
///
/// # Errors
/// The region is larger than the limit.
pub fn alternatives(
    rewrites: &[Rewrite],
    terms: &Terms,
    roots: &[TermId],
    limits: Limits,
    cost: &dyn Fn(&Terms, TermId) -> u64,
) -> Result<Alternatives, RegionError> {
    let n_ops = terms.n_ops(roots);
    if n_ops > limits.n_ops {
        return Err(RegionError::TooLarge { n_ops, limit: limits.n_ops });
    }
    let (mut graph, classes) = EGraph::of(terms, roots);
    let moves = apply::saturate(&mut graph, rewrites, limits);
    Ok(extract::extract(&graph, &moves, &classes, terms, roots, limits, cost))
}
