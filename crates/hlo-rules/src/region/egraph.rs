//! Hash-consed nodes over classes of equal terms, with congruence closure by a worklist.

use crate::op::{Dims, Op, TypeError};
use crate::term::{TermId, Terms};
use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};

/// A class of equal terms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ClassId(u32);
entity_impl!(ClassId, "class");

/// An op on classes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct ENode {
    pub(super) op: Op,
    pub(super) args: SmallVec<[ClassId; 2]>,
}

#[derive(Clone, Debug)]
struct Class {
    leader: ClassId,
    nodes: Vec<ENode>,
    dims: Dims,
    /// The kinds of its nodes, a bit each.
    kinds: u32,
    /// Nodes that take this class, with their classes.
    users: Vec<(ENode, ClassId)>,
}

/// The graph.
#[derive(Clone, Debug, Default)]
pub(super) struct EGraph {
    classes: PrimaryMap<ClassId, Class>,
    /// Looked up only, never walked.
    known: HashMap<ENode, ClassId>,
    waiting: Vec<ClassId>,
}

impl EGraph {
    /// The graph of terms, and the class of each root.
    pub(super) fn of(terms: &Terms, roots: &[TermId]) -> (EGraph, Vec<ClassId>) {
        let mut graph = EGraph::default();
        let mut classes: BTreeMap<TermId, ClassId> = BTreeMap::new();
        for term in terms.reachable(roots) {
            let node = terms.node(term);
            let args = node.args.iter().map(|a| classes[a]).collect();
            let class = graph.insert(ENode { op: node.op.clone(), args }, node.dims.clone());
            classes.insert(term, class);
        }
        let roots = roots.iter().map(|r| classes[r]).collect();
        (graph, roots)
    }

    pub(super) fn n_classes(&self) -> usize {
        self.classes.len()
    }

    /// The classes that lead, in order.
    pub(super) fn leaders(&self) -> Vec<ClassId> {
        self.classes.iter().filter(|(id, class)| *id == class.leader).map(|(id, _)| id).collect()
    }

    pub(super) fn find(&self, mut class: ClassId) -> ClassId {
        while self.classes[class].leader != class {
            class = self.classes[class].leader;
        }
        class
    }

    /// The nodes of a class, oldest first. Operands lead as of the last rebuild.
    pub(super) fn nodes(&self, class: ClassId) -> &[ENode] {
        &self.classes[self.find(class)].nodes
    }

    /// Whether a class has a node of one of these kinds.
    pub(super) fn has_kind(&self, class: ClassId, kinds: u32) -> bool {
        self.classes[self.find(class)].kinds & kinds != 0
    }

    pub(super) fn dims(&self, class: ClassId) -> &Dims {
        &self.classes[class].dims
    }

    pub(super) fn sizes(&self, class: ClassId) -> Vec<i64> {
        self.dims(class).iter().map(|d| d.as_number().unwrap_or(0)).collect()
    }

    pub(super) fn canonical(&self, node: &ENode) -> ENode {
        ENode { op: node.op.clone(), args: node.args.iter().map(|&a| self.find(a)).collect() }
    }

    /// The class of an op.
    ///
    /// # Errors
    /// The op does not take such operands.
    pub(super) fn add(&mut self, node: ENode) -> Result<ClassId, TypeError> {
        let node = self.canonical(&node);
        if let Some(&class) = self.known.get(&node) {
            return Ok(self.find(class));
        }
        let dims = {
            let args: SmallVec<[&Dims; 4]> = node.args.iter().map(|&a| &self.classes[a].dims).collect();
            crate::shape::infer(&node.op, &args)?
        };
        Ok(self.insert(node, dims))
    }

    fn insert(&mut self, node: ENode, dims: Dims) -> ClassId {
        if let Some(&class) = self.known.get(&node) {
            return self.find(class);
        }
        let next = self.classes.next_key();
        let class = self.classes.push(Class {
            leader: next,
            kinds: kind(&node.op),
            nodes: vec![node.clone()],
            dims,
            users: Vec::new(),
        });
        for &arg in &node.args {
            self.classes[arg].users.push((node.clone(), class));
        }
        self.known.insert(node, class);
        class
    }

    /// Makes two classes one. Returns whether they were two.
    pub(super) fn union(&mut self, a: ClassId, b: ClassId) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        if a == b || self.classes[a].dims != self.classes[b].dims {
            return false;
        }
        let (keep, gone) = (a.min(b), a.max(b));
        self.classes[gone].leader = keep;
        let nodes = std::mem::take(&mut self.classes[gone].nodes);
        let users = std::mem::take(&mut self.classes[gone].users);
        self.classes[keep].nodes.extend(nodes);
        self.classes[keep].kinds |= self.classes[gone].kinds;
        self.classes[keep].users.extend(users);
        self.waiting.push(keep);
        true
    }

    /// Restores congruence: nodes that became equal are of one class.
    pub(super) fn rebuild(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        while let Some(class) = self.waiting.pop() {
            let class = self.find(class);
            for (node, of) in self.classes[class].users.clone() {
                let node = self.canonical(&node);
                match self.known.get(&node).copied() {
                    Some(other) => {
                        self.union(other, of);
                    }
                    None => {
                        self.known.insert(node, of);
                    }
                }
            }
        }
        for class in self.leaders() {
            let mut nodes: Vec<ENode> = Vec::new();
            for node in std::mem::take(&mut self.classes[class].nodes) {
                let node = self.canonical(&node);
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
            }
            self.classes[class].nodes = nodes;
        }
    }
}

/// A bit for each kind of op.
pub(super) fn kind(op: &Op) -> u32 {
    1 << match op {
        Op::Input(_) => 0,
        Op::Dot(_) => 1,
        Op::Conv(_) => 2,
        Op::Add => 3,
        Op::Multiply => 4,
        Op::Scale => 5,
        Op::Unary(unary) => 6 + *unary as u32,
        Op::Max => 10,
        Op::Above => 11,
        Op::Transpose(_) => 12,
        Op::Reshape(_) => 13,
        Op::Slice { .. } => 14,
        Op::Concat { .. } => 15,
        Op::Stack { .. } => 16,
        Op::Pick { .. } => 17,
        Op::Pad { .. } => 18,
        Op::Broadcast(_) => 19,
        Op::Reduce(_) => 20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Unary;
    use crate::size::Size;
    use smallvec::smallvec;

    #[test]
    fn users_of_equal_classes_are_equal() {
        let mut terms = Terms::default();
        let dims: Dims = smallvec![Size::number(3)];
        let (a, b) = (terms.input(0, dims.clone()), terms.input(1, dims));
        let over = |terms: &mut Terms, t| {
            let relu = terms.add(Op::Unary(Unary::Relu), smallvec![t]).expect("types");
            terms.add(Op::Unary(Unary::Exp), smallvec![relu]).expect("types")
        };
        let roots = [over(&mut terms, a), over(&mut terms, b)];
        let (mut graph, classes) = EGraph::of(&terms, &roots);
        assert_ne!(graph.find(classes[0]), graph.find(classes[1]));
        let leaves: Vec<ClassId> =
            graph.leaders().into_iter().filter(|&c| matches!(graph.nodes(c)[0].op, Op::Input(_))).collect();
        assert!(graph.union(leaves[0], leaves[1]));
        graph.rebuild();
        assert_eq!(graph.find(classes[0]), graph.find(classes[1]));
        assert_eq!(graph.leaders().len(), 3);
    }
}
