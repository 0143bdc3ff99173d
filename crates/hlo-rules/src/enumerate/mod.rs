//! Enumerates terms over signatures and finds those that agree (Unger et al. 2022, §4; Jia et al. 2019, §4).
//!
//! Terms of up to three ops are built op by op. Each is evaluated at one random point modulo two 61-bit primes; terms that agree there
//! are candidates. A term is built on only if no term met before agrees with it: what is built on another one follows from its rule. A
//! candidate whose sides share a part that may be anything is made general. No rule is written down anywhere: signatures name inputs and
//! ops.

mod choices;

use crate::evaluate::{Array, apply, evaluate};
use crate::numbers::{Residue, Residues, drawn, mix};
use crate::op::{Dims, Op};
use crate::rule::Rule;
use crate::signature::Signature;
use crate::term::{Args, TermId, Terms};
use crate::text::{ParseError, parse_signatures};
use crate::verify::tuples;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The most ops of a side.
pub const MOST_OPS: usize = 3;

/// Terms of up to two ops that agree are paired with so many others each; of three ops, with the first alone.
const MOST_PARTNERS: usize = 4;

/// The shipped signatures; `with_wide` adds those with a dim that stands for all dims that an op leaves alone.
///
/// # Errors
/// None, as a test holds.
pub fn signatures(with_wide: bool) -> Result<Vec<Signature>, ParseError> {
    let mut all = parse_signatures(include_str!("signatures.txt"))?;
    if with_wide {
        all.extend(parse_signatures(include_str!("wide_signatures.txt"))?);
    }
    Ok(all)
}

/// How much there was to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Terms evaluated.
    pub n_terms: usize,
    /// Pairs of terms that agree at the random point.
    pub n_pairs: usize,
    /// Of those, distinct ones once they are made general.
    pub n_candidates: usize,
}

/// Enumerates all signatures: candidates, distinct up to renaming, in the order found.
pub fn enumerate(signatures: &[Signature]) -> (Vec<Rule>, Counts) {
    let (mut rules, mut known, mut counts) = (Vec::new(), BTreeSet::new(), Counts::default());
    for signature in signatures {
        let mut search = Search::new(signature);
        search.run();
        counts.n_terms += search.terms.len();
        counts.n_pairs += search.pairs.len();
        for (left, right) in std::mem::take(&mut search.pairs) {
            let Some(rule) = general(search.rule(left, right)).filter(agrees) else { continue };
            if known.insert(rule.canonical_text()) {
                rules.push(rule);
            }
        }
    }
    counts.n_candidates = rules.len();
    (rules, counts)
}

/// The terms over one signature.
struct Search<'s> {
    signature: &'s Signature,
    terms: Terms,
    sizes: Vec<i64>,
    /// Values of the terms that are built on.
    values: BTreeMap<TermId, Array<Residue>>,
    /// The first terms of each value, which others are paired with; looked up only.
    first: HashMap<(Dims, u64, u64), Vec<TermId>>,
    /// The ops that a term is made of, itself included.
    ops: BTreeMap<TermId, Vec<TermId>>,
    pairs: Vec<(TermId, TermId)>,
}

/// Random inputs of a fingerprint.
fn point(number: u8, dims: &[usize]) -> Array<Residue> {
    let n: usize = dims.iter().product();
    Array { dims: dims.to_vec(), elems: (0..n).map(|place| drawn(0x5eed, number, place)).collect() }
}

impl<'s> Search<'s> {
    fn new(signature: &'s Signature) -> Search<'s> {
        // Sizes that are small and differ; a size of one would make wrong pairs agree.
        let mut sizes: Vec<i64> = (0..signature.base.unknowns.len()).map(|s| [2, 3, 2, 4, 3, 2, 3][s % 7]).collect();
        for (name, value) in &signature.point {
            if let (Some(name), Some(value)) = (name.as_unknown(), value.as_number()) {
                sizes[name.number()] = value;
            }
        }
        let mut search = Search {
            signature,
            terms: signature.base.terms.clone(),
            sizes,
            values: BTreeMap::new(),
            first: HashMap::new(),
            ops: BTreeMap::new(),
            pairs: Vec::new(),
        };
        for &input in &signature.inputs {
            let Op::Input(number) = search.terms.node(input).op else { continue };
            let value = point(number, &search.dims_of(input));
            search.first.insert(search.key(input, &value), vec![input]);
            search.values.insert(input, value);
            search.ops.insert(input, Vec::new());
        }
        search
    }

    fn dims_of(&self, term: TermId) -> Vec<usize> {
        self.terms.dims(term).iter().map(|d| d.at(&self.sizes) as usize).collect()
    }

    fn key(&self, term: TermId, value: &Array<Residue>) -> (Dims, u64, u64) {
        let hash = |start: u64| value.elems.iter().fold(start, |h, r| mix(mix(h ^ r[0]) ^ r[1]));
        (self.terms.dims(term).clone(), hash(1), hash(2))
    }

    /// Level by level: all terms of one op, of two, of three.
    fn run(&mut self) {
        let mut built: Vec<Vec<TermId>> = vec![self.signature.inputs.clone()];
        for n_ops in 1..=MOST_OPS {
            let below: Vec<TermId> = built.iter().flatten().copied().collect();
            let mut level = Vec::new();
            for (op, args) in choices::choices(self.signature, &self.terms, &below) {
                if self.union(&args).len() + 1 == n_ops && self.is_apart(&op, &args) {
                    level.extend(self.meet(op, args));
                }
            }
            built.push(level);
        }
    }

    fn union(&self, args: &[TermId]) -> Vec<TermId> {
        let mut all: Vec<TermId> = args.iter().flat_map(|a| self.ops[a].iter().copied()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Whether operands have nothing to do with each other where sharing says nothing: a product's share no input, and of a sum, a
    /// concatenation or a stack no operand is a part of another.
    fn is_apart(&self, op: &Op, args: &[TermId]) -> bool {
        let [a, b] = args else { return true };
        let (of_a, of_b) = (self.terms.reachable(&[*a]), self.terms.reachable(&[*b]));
        if matches!(op, Op::Dot(_) | Op::Conv(_)) {
            return !of_b.iter().any(|t| of_a.contains(t));
        }
        a != b && !of_a.contains(b) && !of_b.contains(a)
    }

    /// Evaluates a term. Returns it if its value is new.
    fn meet(&mut self, op: Op, args: Args) -> Option<TermId> {
        let n_before = self.terms.len();
        let term = self.terms.add(op, args).ok()?;
        if self.terms.len() == n_before {
            return None;
        }
        let node = self.terms.node(term);
        let arrays: Vec<&Array<Residue>> = node.args.iter().map(|a| &self.values[a]).collect();
        let value = apply(&Residues, &node.op, &arrays, self.dims_of(term), &self.sizes);
        let mut ops = self.union(&node.args);
        ops.push(term);
        let key = self.key(term, &value);
        match self.first.get_mut(&key) {
            Some(first) => {
                self.pairs.push((first[0], term));
                if ops.len() <= 2 && first.len() < MOST_PARTNERS {
                    self.pairs.extend(first[1..].iter().map(|&other| (other, term)));
                    first.push(term);
                }
                None
            }
            None => {
                self.first.insert(key, vec![term]);
                self.values.insert(term, value);
                self.ops.insert(term, ops);
                Some(term)
            }
        }
    }

    fn rule(&self, left: TermId, right: TermId) -> Rule {
        let mut rule = Rule { terms: Terms::default(), ..self.signature.base.clone() };
        let mut input = |terms: &mut Terms, number: u8, dims: Dims| terms.input(number, dims);
        if let Ok(copies) = rule.terms.copy(&self.terms, &[left, right], &mut input, &|s| s.clone()) {
            (rule.left, rule.right) = (vec![copies[0]], vec![copies[1]]);
        }
        rule
    }
}

/// The rule with each part that both sides share, and that may be anything, as an input; `None` if nothing is left to say.
pub(crate) fn general(mut rule: Rule) -> Option<Rule> {
    'again: loop {
        if rule.left == rule.right {
            return None;
        }
        let right = rule.terms.reachable(&rule.right);
        let mut shared: Vec<TermId> = rule.terms.reachable(&rule.left);
        shared.retain(|t| right.contains(t) && !matches!(rule.terms.node(*t).op, Op::Input(_)));
        for &part in shared.iter().rev() {
            if let Some(wider) = with_input_for(&rule, part).filter(agrees) {
                rule = wider;
                continue 'again;
            }
        }
        return rule.compacted().ok();
    }
}

/// The rule with a fresh input in place of a part.
fn with_input_for(rule: &Rule, part: TermId) -> Option<Rule> {
    let number = rule.inputs.len() as u8;
    let mut wider = Rule { terms: Terms::default(), left: Vec::new(), right: Vec::new(), ..rule.clone() };
    wider.inputs.push(format!("z{number}"));
    let mut copies: BTreeMap<TermId, TermId> = BTreeMap::new();
    let roots: Vec<TermId> = rule.left.iter().chain(&rule.right).copied().collect();
    for term in rule.terms.reachable(&roots) {
        let node = rule.terms.node(term).clone();
        let copy = match node.op {
            _ if term == part => wider.terms.input(number, node.dims),
            Op::Input(n) => wider.terms.input(n, node.dims),
            op => wider.terms.add(op, node.args.iter().map(|a| copies[a]).collect()).ok()?,
        };
        copies.insert(term, copy);
    }
    wider.left = rule.left.iter().map(|t| copies[t]).collect();
    wider.right = rule.right.iter().map(|t| copies[t]).collect();
    Some(wider)
}

/// Whether both sides agree at one random point of each tuple of sizes.
pub(crate) fn agrees(rule: &Rule) -> bool {
    let roots: Vec<TermId> = rule.left.iter().chain(&rule.right).copied().collect();
    let n = rule.left.len();
    tuples(rule).iter().take(3).all(|sizes| {
        let values = evaluate(&Residues, &rule.terms, &roots, sizes, &point);
        values[..n] == values[n..]
    })
}
