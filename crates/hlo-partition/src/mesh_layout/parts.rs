//! A forest of equal dims, some of which are products of others.
//!
//! Every dim of every value is a node. Nodes that are known to be the same dim are joined. A reshape that splits a dim makes its node a
//! product of two, major and minor; whoever has that node has the product from then on. So a dim is a list of *parts*, the
//! leaves below its node, and two dims are the same if they have the same parts.

use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::{SmallVec, smallvec};

/// A node: a dim or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PartId(u32);
entity_impl!(PartId, "part");

/// Parts, major to minor.
pub(crate) type PartList = SmallVec<[PartId; 2]>;

#[derive(Clone, Copy, Debug)]
enum Form {
    /// A part of its own.
    Alone,
    /// The same as another node.
    Same(PartId),
    /// Major times minor.
    Product(PartId, PartId),
}

#[derive(Clone, Copy, Debug)]
struct Node {
    size: i64,
    form: Form,
}

/// The forest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    nodes: PrimaryMap<PartId, Node>,
}

impl Parts {
    /// A new node of so many elements.
    pub(super) fn add(&mut self, size: i64) -> PartId {
        self.nodes.push(Node { size, form: Form::Alone })
    }

    /// Number of elements.
    pub(crate) fn size(&self, id: PartId) -> i64 {
        self.nodes[id].size
    }

    /// The node that stands for all that are the same.
    fn root(&self, id: PartId) -> PartId {
        let mut at = id;
        while let Form::Same(other) = self.nodes[at].form {
            at = other;
        }
        at
    }

    /// The same, with shorter ways for later.
    fn find_root(&mut self, id: PartId) -> PartId {
        let top = self.root(id);
        let mut at = id;
        while let Form::Same(other) = self.nodes[at].form {
            if at != top {
                self.nodes[at].form = Form::Same(top);
            }
            at = other;
        }
        top
    }

    /// The parts of a node, major to minor, without those of one element.
    pub(crate) fn leaves(&self, id: PartId) -> PartList {
        let (mut out, mut open) = (PartList::new(), vec![id]);
        while let Some(id) = open.pop() {
            let id = self.root(id);
            match self.nodes[id].form {
                Form::Product(major, minor) => open.extend([minor, major]),
                Form::Alone | Form::Same(_) if self.nodes[id].size != 1 => out.push(id),
                Form::Alone | Form::Same(_) => {}
            }
        }
        out
    }

    /// A node that is the product of new nodes of these sizes; with these nodes.
    pub(super) fn add_product(&mut self, sizes: &[i64]) -> (PartId, PartList) {
        let parts: PartList = sizes.iter().map(|&size| self.add(size)).collect();
        let Some((&last, before)) = parts.split_last() else { return (self.add(1), parts) };
        let all = before.iter().rev().fold(last, |minor, &major| {
            let size = self.nodes[major].size.saturating_mul(self.nodes[minor].size);
            self.nodes.push(Node { size, form: Form::Product(major, minor) })
        });
        (all, parts)
    }

    /// Makes two nodes the same, and their parts. Returns whether that was possible: parts of 3 and 4 cannot be parts of 2 and 6, and then
    /// only the parts before them are joined.
    pub(super) fn join(&mut self, one: PartId, other: PartId) -> bool {
        if self.nodes[one].size != self.nodes[other].size {
            return false;
        }
        let (mut left, mut right): (PartList, PartList) = (smallvec![one], smallvec![other]);
        while let (Some(a), Some(b)) = (self.next_leaf(&mut left), self.next_leaf(&mut right)) {
            if a == b {
                continue;
            }
            let (a_size, b_size) = (self.nodes[a].size, self.nodes[b].size);
            if a_size == b_size {
                self.nodes[b].form = Form::Same(a);
            } else if b_size != 0 && a_size % b_size == 0 {
                let (major, minor) = self.split(a, b_size);
                self.nodes[b].form = Form::Same(major);
                left.push(minor);
            } else if a_size != 0 && b_size % a_size == 0 {
                let (major, minor) = self.split(b, a_size);
                self.nodes[major].form = Form::Same(a);
                right.push(minor);
            } else {
                return false;
            }
        }
        true
    }

    /// The next part of a list of nodes, which are opened.
    fn next_leaf(&mut self, open: &mut PartList) -> Option<PartId> {
        while let Some(id) = open.pop() {
            let id = self.find_root(id);
            match self.nodes[id].form {
                Form::Product(major, minor) => open.extend([minor, major]),
                Form::Alone | Form::Same(_) if self.nodes[id].size != 1 => return Some(id),
                Form::Alone | Form::Same(_) => {}
            }
        }
        None
    }

    /// Makes a part the product of two new ones, the major one of this size.
    fn split(&mut self, part: PartId, major_size: i64) -> (PartId, PartId) {
        let size = self.nodes[part].size;
        let (major, minor) = (self.add(major_size), self.add(size / major_size));
        self.nodes[part].form = Form::Product(major, minor);
        (major, minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_dim_has_its_parts() {
        let mut parts = Parts::default();
        let (x, y) = (parts.add(12), parts.add(12));
        assert!(parts.join(x, y));
        let (product, of) = parts.add_product(&[3, 4]);
        assert!(parts.join(product, y), "3 x 4 is 12");
        assert_eq!(parts.leaves(x).len(), 2);
        assert_eq!(parts.leaves(x), parts.leaves(product));
        assert_eq!(parts.leaves(x).first().map(|&part| parts.size(part)), Some(parts.size(of[0])));
    }

    #[test]
    fn parts_that_do_not_nest_stay_apart() {
        let mut parts = Parts::default();
        let ((x, _), (y, _)) = (parts.add_product(&[3, 4]), parts.add_product(&[2, 6]));
        assert!(!parts.join(x, y));
        assert_ne!(parts.leaves(x), parts.leaves(y));
        let ((x, _), (y, _)) = (parts.add_product(&[2, 3, 4]), parts.add_product(&[6, 2, 2]));
        assert!(parts.join(x, y), "2, 3, 2, 2 are parts of both");
        let sizes: Vec<i64> = parts.leaves(y).iter().map(|&part| parts.size(part)).collect();
        assert_eq!(sizes, [2, 3, 2, 2]);
    }

    #[test]
    fn a_dim_of_one_element_has_no_parts() {
        let mut parts = Parts::default();
        let (x, _) = parts.add_product(&[1, 5, 1]);
        assert_eq!(parts.leaves(x).len(), 1);
        let (one, other) = (parts.add(4), parts.add(5));
        assert!(!parts.join(one, other), "dims of other sizes are other dims");
    }
}
