//! Rules that follow from one rule by what concatenations and stacks are.
//!
//! - *Parts*: from `concat(a, b) = c` follows `a, b = slice(c), slice(c)`: two branches become one op and its parts (a stack is picked apart).
//! - *Split*: where a side takes inputs `p` and `q` only as `concat(p, q)`, that may be any `z`, and the other side takes its slices.

use crate::op::{Dims, Op};
use crate::rule::Rule;
use crate::size::Size;
use crate::term::{Args, TermId, Terms};
use smallvec::smallvec;
use std::collections::BTreeMap;

/// Part `k` of a joined term.
fn part(terms: &mut Terms, whole: TermId, op: &Op, args: &Args, k: usize) -> Option<TermId> {
    let op = if let Op::Concat { dim } = op {
        let size = |t: &TermId| terms.dims(*t)[usize::from(*dim)].clone();
        let start = args[..k].iter().fold(Size::default(), |sum, a| &sum + &size(a));
        Op::Slice { dim: *dim, start, size: size(&args[k]) }
    } else if let Op::Stack { dim } = op {
        Op::Pick { dim: *dim, place: k as u8 }
    } else {
        return None;
    };
    terms.add(op, smallvec![whole]).ok()
}

/// The rule whose sides are the joined branches and the parts of what they become; for rules one side of which joins ops.
pub(crate) fn parts_rule(rule: &Rule) -> Option<Rule> {
    let (&[left], &[right]) = (&rule.left[..], &rule.right[..]) else { return None };
    let is_join_of_ops = |t: TermId| {
        let node = rule.terms.node(t);
        let is_op = |a: &TermId| !matches!(rule.terms.node(*a).op, Op::Input(_));
        matches!(node.op, Op::Concat { .. } | Op::Stack { .. }) && node.args.iter().all(is_op)
    };
    let (join, whole) = if is_join_of_ops(left) { (left, right) } else { (right, left) };
    if !is_join_of_ops(join) || matches!(rule.terms.node(whole).op, Op::Input(_) | Op::Concat { .. } | Op::Stack { .. })
    {
        return None;
    }
    let mut new = rule.clone();
    let node = rule.terms.node(join).clone();
    new.left = node.args.to_vec();
    new.right = Vec::new();
    for k in 0..node.args.len() {
        let part = part(&mut new.terms, whole, &node.op, &node.args, k)?;
        new.right.push(part);
    }
    new.compacted().ok()
}

/// The rules in which a joined pair of inputs of one side is one input, whose parts the other side takes.
pub(crate) fn split_rules(rule: &Rule) -> Vec<Rule> {
    let mut all = Vec::new();
    for (whole, other) in [(&rule.left, &rule.right), (&rule.right, &rule.left)] {
        for join in rule.terms.reachable(whole) {
            all.extend(split(rule, whole, other, join));
        }
    }
    all
}

fn split(rule: &Rule, whole: &[TermId], other: &[TermId], join: TermId) -> Option<Rule> {
    let node = rule.terms.node(join);
    let is_input = |t: &TermId| matches!(rule.terms.node(*t).op, Op::Input(_));
    let is_join = matches!(node.op, Op::Concat { .. } | Op::Stack { .. }) && node.args.iter().all(is_input);
    let users =
        |t: TermId| rule.terms.reachable(whole).into_iter().filter(|&u| rule.terms.node(u).args.contains(&t)).count();
    if !is_join || node.args[0] == node.args[1] || !node.args.iter().all(|&a| users(a) == 1) || whole == [join] {
        return None;
    }
    let mut new = Rule { terms: Terms::default(), left: Vec::new(), right: Vec::new(), ..rule.clone() };
    let number = new.inputs.len() as u8;
    new.inputs.push(format!("z{number}"));
    let z = new.terms.input(number, node.dims.clone());
    let mut copies: BTreeMap<TermId, TermId> = BTreeMap::new();
    let mut own: Args = Args::new();
    for &arg in &node.args {
        let Op::Input(n) = rule.terms.node(arg).op else { return None };
        let dims: Dims = rule.terms.dims(arg).clone();
        own.push(new.terms.input(n, dims));
    }
    for (k, &arg) in node.args.iter().enumerate() {
        let part = part(&mut new.terms, z, &node.op, &own, k)?;
        copies.insert(arg, part);
    }
    copies.insert(join, z);
    let roots: Vec<TermId> = whole.iter().chain(other).copied().collect();
    for term in rule.terms.reachable(&roots) {
        if copies.contains_key(&term) {
            continue;
        }
        let old = rule.terms.node(term);
        let copy = match &old.op {
            Op::Input(n) => new.terms.input(*n, old.dims.clone()),
            op => new.terms.add(op.clone(), old.args.iter().map(|a| copies[a]).collect()).ok()?,
        };
        copies.insert(term, copy);
    }
    new.left = whole.iter().map(|t| copies[t]).collect();
    new.right = other.iter().map(|t| copies[t]).collect();
    new.compacted().ok()
}
