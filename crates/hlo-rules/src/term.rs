//! Terms: hash-consed graphs of typed tensor ops, whose dims are [`Size`](crate::Size)s.

use crate::op::{Dims, Op, TypeError};
use crate::size::Size;
use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::SmallVec;
use std::collections::HashMap;

/// A term of a [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TermId(u32);
entity_impl!(TermId, "term");

/// Operands of a term.
pub type Args = SmallVec<[TermId; 2]>;

/// One term.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// What it is.
    pub op: Op,
    /// Its operands.
    pub args: Args,
    /// Sizes of the result.
    pub dims: Dims,
}

/// A store of terms in which equal ones have one id.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    nodes: PrimaryMap<TermId, Node>,
    /// Looked up only, never walked.
    known: HashMap<Node, TermId>,
}

impl Terms {
    /// The node of a term.
    pub fn node(&self, term: TermId) -> &Node {
        &self.nodes[term]
    }

    /// The sizes of a term's dims.
    pub fn dims(&self, term: TermId) -> &Dims {
        &self.nodes[term].dims
    }

    /// Number of terms.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Input `number` with these dims.
    pub fn input(&mut self, number: u8, dims: Dims) -> TermId {
        self.intern(Node { op: Op::Input(number), args: Args::new(), dims })
    }

    /// The term `op(args)`.
    ///
    /// # Errors
    /// The op does not take operands of these dims.
    pub fn add(&mut self, op: Op, args: Args) -> Result<TermId, TypeError> {
        let dims = {
            let shapes: SmallVec<[&Dims; 4]> = args.iter().map(|&a| self.dims(a)).collect();
            crate::shape::infer(&op, &shapes)?
        };
        Ok(self.intern(Node { op, args, dims }))
    }

    fn intern(&mut self, node: Node) -> TermId {
        if let Some(&known) = self.known.get(&node) {
            return known;
        }
        let id = self.nodes.push(node.clone());
        self.known.insert(node, id);
        id
    }

    /// The terms that `roots` are made of, each once, operands before users.
    pub fn reachable(&self, roots: &[TermId]) -> Vec<TermId> {
        let (mut order, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
        let mut stack: Vec<(TermId, bool)> = roots.iter().rev().map(|&r| (r, false)).collect();
        while let Some((term, is_done)) = stack.pop() {
            if is_done {
                order.push(term);
            } else if seen.insert(term) {
                stack.push((term, true));
                stack.extend(self.node(term).args.iter().rev().map(|&a| (a, false)));
            }
        }
        order
    }

    /// Number of ops, inputs left out, that `roots` are made of.
    pub fn n_ops(&self, roots: &[TermId]) -> usize {
        self.reachable(roots).iter().filter(|&&t| !matches!(self.node(t).op, Op::Input(_))).count()
    }

    /// Copies terms of another store, with its inputs replaced and sizes rewritten.
    ///
    /// # Errors
    /// An op that does not take its operands any more.
    pub fn copy(
        &mut self,
        from: &Terms,
        roots: &[TermId],
        input: &mut dyn FnMut(&mut Terms, u8, Dims) -> TermId,
        size: &dyn Fn(&Size) -> Size,
    ) -> Result<Vec<TermId>, TypeError> {
        let mut new: std::collections::BTreeMap<TermId, TermId> = std::collections::BTreeMap::new();
        for term in from.reachable(roots) {
            let node = from.node(term);
            let copy = match &node.op {
                Op::Input(number) => input(self, *number, node.dims.iter().map(size).collect()),
                op => {
                    let args = node.args.iter().map(|a| new[a]).collect();
                    self.add(op.with_sizes(size), args)?
                }
            };
            new.insert(term, copy);
        }
        Ok(roots.iter().map(|r| new[r]).collect())
    }
}
