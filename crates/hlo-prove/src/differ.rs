//! Whether two terms differ for certain: they are the same but for numbers, inputs, ops, or which devices and elements are taken.

use crate::prover::Prover;
use crate::term::{Arg, Node, TermId};
use hashbrown::HashSet;

/// How many pairs of terms are looked at.
const MAX_PAIRS: usize = 20_000;

impl Prover {
    /// Whether all that differs below two terms is such a difference. They may still be equal where the rest does not look at it, and
    /// terms that differ otherwise may be equal by a rule that is not known.
    pub(crate) fn parts_in_leaves(&self, p: TermId, q: TermId) -> bool {
        let mut seen: HashSet<(TermId, TermId)> = HashSet::new();
        let mut open = vec![(p, q)];
        // Other elements of one term.
        let mut is_found = p == q;
        while let Some((p, q)) = open.pop() {
            if p == q || !seen.insert((p, q)) {
                continue;
            }
            if seen.len() > MAX_PAIRS {
                return false;
            }
            match (self.arrays.terms.node(p), self.arrays.terms.node(q)) {
                (Node::Constant(_) | Node::Table(_), Node::Constant(_) | Node::Table(_))
                | (Node::Input(_), Node::Input(_)) => is_found = true,
                (Node::Element(a, at), Node::Element(b, other)) if a == b || at == other => {
                    is_found |= a == b;
                    open.push((*a, *b));
                }
                (Node::Apply(a, x), Node::Apply(b, y)) => {
                    let (only_x, only_y) = (without(x, y), without(y, x));
                    // Other ops on the same operands, or the same op on them at other places or in another order.
                    let is_leaf = only_x.is_empty() && only_y.is_empty() && x.len() == y.len();
                    if !is_leaf && (a != b || only_x.len() != only_y.len()) {
                        return false;
                    }
                    is_found |= is_leaf;
                    self.pair_up(only_x, only_y, &mut open);
                }
                (_, _) => return false,
            }
        }
        is_found
    }

    /// Pairs terms, those of one kind first.
    fn pair_up(&self, left: Vec<TermId>, mut right: Vec<TermId>, open: &mut Vec<(TermId, TermId)>) {
        let kind = |term: TermId| match self.arrays.terms.node(term) {
            Node::Apply(head, args) => (Some((*head, args.len())), None),
            other => (None, Some(std::mem::discriminant(other))),
        };
        for p in left {
            let like = right.iter().position(|&q| kind(p) == kind(q)).unwrap_or(0);
            if like < right.len() {
                open.push((p, right.remove(like)));
            }
        }
    }
}

/// The terms of a list that are not in another one, each as often as it stands there more.
fn without(list: &[Arg], other: &[Arg]) -> Vec<TermId> {
    let mut rest: Vec<TermId> = other.iter().map(|arg| arg.term).collect();
    let mut out = Vec::new();
    for arg in list {
        match rest.iter().position(|&term| term == arg.term) {
            Some(k) => {
                rest.swap_remove(k);
            }
            None => out.push(arg.term),
        }
    }
    out
}
