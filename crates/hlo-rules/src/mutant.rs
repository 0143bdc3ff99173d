//! Wrong rules made of right ones, one change each: what a check of rules has to refuse.

use crate::op::{Conv, Op, Window};
use crate::rule::Rule;
use crate::size::Size;
use crate::term::{Args, TermId};
use smallvec::smallvec;
use std::collections::BTreeMap;

/// What is changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MutantKind {
    /// An operand is another input of the same dims, or operands of an op that is not commutative changed places.
    Operand,
    /// An op works on another dim, or a product sums over another pair.
    Dim,
    /// A number of a window, a padding, a slice or groups is another one.
    Degree,
    /// A scale is left out.
    MissingScale,
    /// Parts of a concatenation or a stack changed places, or another part is picked.
    PartOrder,
    /// A mask, a function, or a padding is left out.
    MissingMask,
    /// A partial sum is taken for the whole one: a summand is left out, or one part stands for the sum of all.
    PartialSum,
}

impl MutantKind {
    /// All kinds.
    pub const ALL: [MutantKind; 7] = [
        MutantKind::Operand,
        MutantKind::Dim,
        MutantKind::Degree,
        MutantKind::MissingScale,
        MutantKind::PartOrder,
        MutantKind::MissingMask,
        MutantKind::PartialSum,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            MutantKind::Operand => "operand",
            MutantKind::Dim => "dim",
            MutantKind::Degree => "degree",
            MutantKind::MissingScale => "missing scale",
            MutantKind::PartOrder => "order of parts",
            MutantKind::MissingMask => "missing mask",
            MutantKind::PartialSum => "partial for reduced",
        }
    }
}

/// A rule with one change.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What was changed.
    pub kind: MutantKind,
    /// The term of the right rule that was changed.
    pub site: TermId,
    /// The rule; its left side is as it was.
    pub rule: Rule,
}

/// What stands in a term's place.
enum Change {
    Op(Box<Op>, Args),
    Term(TermId),
}

/// All mutants of a rule's right side that are terms, without those that are the rule itself.
pub fn mutants(rule: &Rule) -> Vec<Mutant> {
    let mut all: Vec<Mutant> = Vec::new();
    for site in rule.terms.reachable(&rule.right) {
        for (kind, change) in changes(rule, site) {
            let Some(mutant) = changed(rule, site, &change) else { continue };
            let is_new =
                mutant.right != rule.right && all.iter().all(|m| m.rule.right != mutant.right || m.kind != kind);
            if is_new {
                all.push(Mutant { kind, site, rule: mutant });
            }
        }
    }
    all
}

fn changed(rule: &Rule, site: TermId, change: &Change) -> Option<Rule> {
    let mut new = rule.clone();
    let mut copies: BTreeMap<TermId, TermId> = BTreeMap::new();
    for term in rule.terms.reachable(&rule.right) {
        let node = rule.terms.node(term);
        let copy = match change {
            Change::Op(op, args) if term == site => new.terms.add((**op).clone(), args.clone()).ok()?,
            Change::Term(other) if term == site => *other,
            Change::Op(..) | Change::Term(_) => match &node.op {
                Op::Input(_) => term,
                op => new.terms.add(op.clone(), node.args.iter().map(|a| copies[a]).collect()).ok()?,
            },
        };
        copies.insert(term, copy);
    }
    new.right = rule.right.iter().map(|t| copies[t]).collect();
    Some(new)
}

fn changes(rule: &Rule, site: TermId) -> Vec<(MutantKind, Change)> {
    let node = rule.terms.node(site);
    let mut all = other_operands(rule, site);
    let with = |op: Op| Change::Op(Box::new(op), node.args.clone());
    let swapped = || node.args.iter().rev().copied().collect::<Args>();
    let first = || Change::Term(node.args[0]);
    let rank = node.args.first().map_or(0, |&a| rule.terms.dims(a).len());
    let other_dims = |dim: u8, n: usize| (0..n as u8).filter(move |&d| d != dim);
    match &node.op {
        Op::Input(_) => {}
        Op::Dot(pairs) => {
            for i in 0..pairs.contract.len() {
                for (l, r) in (0..rank as u8).flat_map(|l| (0..4u8).map(move |r| (l, r))) {
                    let mut pairs = pairs.clone();
                    pairs.contract[i] = (l, r);
                    all.push((MutantKind::Dim, with(Op::Dot(pairs))));
                }
            }
        }
        Op::Conv(conv) => all.extend(windows(conv).into_iter().map(|op| (MutantKind::Degree, with(op)))),
        Op::Add => {
            all.push((MutantKind::PartialSum, first()));
            all.push((MutantKind::PartialSum, Change::Term(node.args[1])));
        }
        Op::Multiply => {
            all.push((MutantKind::MissingMask, first()));
            all.push((MutantKind::MissingMask, Change::Term(node.args[1])));
        }
        Op::Scale => all.push((MutantKind::MissingScale, first())),
        Op::Unary(_) => all.push((MutantKind::MissingMask, first())),
        Op::Max | Op::Above => all.push((MutantKind::MissingMask, first())),
        Op::Transpose(order) => {
            all.push((MutantKind::Dim, first()));
            let turned = order.iter().cycle().skip(1).take(order.len()).copied().collect();
            all.push((MutantKind::Dim, with(Op::Transpose(turned))));
        }
        Op::Reshape(dims) => {
            all.push((MutantKind::Dim, with(Op::Reshape(dims.iter().rev().cloned().collect()))));
        }
        Op::Slice { dim, start, size } => {
            let whole = rule.terms.dims(node.args[0])[usize::from(*dim)].clone();
            let last = &whole - size;
            let starts = [Size::default(), last, start + &Size::number(1)];
            let at = |start| (MutantKind::Degree, with(Op::Slice { dim: *dim, start, size: size.clone() }));
            all.extend(starts.into_iter().filter(|s| s != start).map(at));
            for d in other_dims(*dim, rank) {
                all.push((MutantKind::Dim, with(Op::Slice { dim: d, start: start.clone(), size: size.clone() })));
            }
        }
        Op::Concat { dim } => {
            all.push((MutantKind::PartOrder, Change::Op(Box::new(node.op.clone()), swapped())));
            all.extend(other_dims(*dim, rank).map(|dim| (MutantKind::Dim, with(Op::Concat { dim }))));
        }
        Op::Stack { dim } => {
            all.push((MutantKind::PartOrder, Change::Op(Box::new(node.op.clone()), swapped())));
            all.extend(other_dims(*dim, rank + 1).map(|dim| (MutantKind::Dim, with(Op::Stack { dim }))));
        }
        Op::Pick { dim, place } => {
            all.push((MutantKind::PartOrder, with(Op::Pick { dim: *dim, place: 1 - (*place).min(1) })));
            all.extend(other_dims(*dim, rank).map(|dim| (MutantKind::Dim, with(Op::Pick { dim, place: *place }))));
        }
        Op::Pad { dim, low, high } => {
            all.push((MutantKind::MissingMask, first()));
            all.push((MutantKind::Degree, with(Op::Pad { dim: *dim, low: high.clone(), high: low.clone() })));
            for d in other_dims(*dim, rank) {
                all.push((MutantKind::Dim, with(Op::Pad { dim: d, low: low.clone(), high: high.clone() })));
            }
        }
        Op::Broadcast(new) => {
            for d in other_dims(new[0].0, rank + 1).filter(|_| new.len() == 1) {
                all.push((MutantKind::Dim, with(Op::Broadcast(smallvec![(d, new[0].1.clone())]))));
            }
        }
        Op::Reduce(over) => {
            all.push((MutantKind::PartialSum, with(Op::Pick { dim: over[0], place: 0 })));
            all.extend(other_dims(over[0], rank).map(|d| (MutantKind::Dim, with(Op::Reduce(smallvec![d])))));
        }
    }
    all
}

/// Another input of the same dims in place of each operand, and operands of products that change places.
fn other_operands(rule: &Rule, site: TermId) -> Vec<(MutantKind, Change)> {
    let node = rule.terms.node(site);
    let mut all = Vec::new();
    let is_input = |t: &TermId| matches!(rule.terms.node(*t).op, Op::Input(_));
    let inputs: Vec<TermId> = rule.reachable().into_iter().filter(is_input).collect();
    for (k, &arg) in node.args.iter().enumerate() {
        for &other in inputs.iter().filter(|&&i| i != arg && rule.terms.dims(i) == rule.terms.dims(arg)) {
            let mut args = node.args.clone();
            args[k] = other;
            all.push((MutantKind::Operand, Change::Op(Box::new(node.op.clone()), args)));
        }
    }
    if matches!(node.op, Op::Dot(_) | Op::Conv(_) | Op::Above) {
        all.push((
            MutantKind::Operand,
            Change::Op(Box::new(node.op.clone()), node.args.iter().rev().copied().collect()),
        ));
    }
    all
}

/// A convolution with one number changed.
fn windows(conv: &Conv) -> Vec<Op> {
    let one = Size::number(1);
    let changes: [&dyn Fn(&mut Window); 4] =
        [&|w| w.stride = &w.stride + &one, &|w| w.low = &w.low + &one, &|w| w.dilation = &w.dilation + &one, &|w| {
            w.is_reversed = !w.is_reversed
        }];
    let mut all = Vec::new();
    for change in changes {
        let mut conv = conv.clone();
        conv.windows.iter_mut().for_each(change);
        all.push(Op::Conv(Box::new(conv)));
    }
    let groups = if conv.feature_groups == 1 { 2 } else { 1 };
    all.push(Op::Conv(Box::new(Conv { feature_groups: groups, ..conv.clone() })));
    all
}

/// How many mutants of each kind a check refuses, proves equal to the rule, or cannot tell.
#[derive(Clone, Debug, Default)]
pub struct MutantCounts {
    /// With a counterexample, or other dims.
    pub n_rejected: BTreeMap<MutantKind, usize>,
    /// Proved: the change makes no difference. Each with its text.
    pub equivalent: Vec<(MutantKind, String)>,
    /// Neither.
    pub undecided: Vec<(MutantKind, String)>,
}

/// Checks all mutants of rules.
pub fn check_mutants<'r>(rules: impl Iterator<Item = &'r Rule>) -> MutantCounts {
    use crate::verify::{Rejected, Verdict, check};
    let mut counts = MutantCounts::default();
    for mutant in rules.flat_map(mutants) {
        let text = || crate::text::print_rule(&mutant.rule, None);
        match check(&mutant.rule) {
            Verdict::Accepted(_) => counts.equivalent.push((mutant.kind, text())),
            Verdict::Rejected(Rejected::Unproved(_)) => counts.undecided.push((mutant.kind, text())),
            Verdict::Rejected(Rejected::Differs(_) | Rejected::Dims { .. }) => {
                *counts.n_rejected.entry(mutant.kind).or_default() += 1;
            }
        }
    }
    counts
}
