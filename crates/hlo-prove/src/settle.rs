//! Computes a fact about a term from the facts about its arguments.

use crate::term::{Node, TermId, Terms};
use hashbrown::HashMap;
use smallvec::SmallVec;

/// Returns the kept fact of a term. Computes those of its arguments first.
pub(crate) fn settle<T: Copy>(
    terms: &mut Terms,
    term: TermId,
    kept: impl Fn(&mut Terms) -> &mut HashMap<TermId, T>,
    make: impl Fn(&mut Terms, TermId) -> T,
) -> Option<T> {
    // A list in the place of recursion: terms are as deep as programs are long.
    let mut open = vec![term];
    while let Some(&next) = open.last() {
        let n_open = open.len();
        if !kept(terms).contains_key(&next) {
            let inner = inner_of(terms.node(next));
            open.extend(inner.into_iter().filter(|inner| !kept(terms).contains_key(inner)));
        }
        if open.len() > n_open {
            continue;
        }
        open.pop();
        if !kept(terms).contains_key(&next) {
            let made = make(terms, next);
            kept(terms).insert(next, made);
        }
    }
    kept(terms).get(&term).copied()
}

/// Returns the terms that a node is made of, as far as a kept fact needs them.
fn inner_of(node: &Node) -> SmallVec<[TermId; 4]> {
    match node {
        Node::Element(of, _) => SmallVec::from_slice(&[*of]),
        Node::Apply(_, args) => args.iter().map(|arg| arg.term).collect(),
        Node::Input(_)
        | Node::Constant(_)
        | Node::Table(_)
        | Node::Iota(_)
        | Node::Carry(..)
        | Node::LoopResult(..)
        | Node::Whole(..)
        | Node::Unique(_) => SmallVec::new(),
    }
}
