//! What each result of a kernel is computed from, and which arguments are read only at the element that is written.

use std::collections::{BTreeSet, HashMap, HashSet};

use hlo_analysis::fusion::column_sum;
use hlo_analysis::values::{InstLeaf, Through, follow};
use hlo_ir::{InstId, Module, Opcode};

use super::Signature;
use super::emitter::{Binding, RowsRead, array_of_leaf};
use super::group::{ResultGroup, ResultSum};

/// What the results of a kernel are made of.
pub(super) struct Reach {
    pub roots: Vec<Root>,
}

/// One result.
#[derive(Clone, Debug)]
pub(super) struct Root {
    /// Where its elements come from, tuples seen through.
    pub inst: InstId,
    pub leaf: usize,
    /// All instructions that it depends on, arguments included, in the module's order of ids.
    pub all: BTreeSet<InstId>,
    /// Those whose element at the result's own place in memory is read, in order of discovery.
    pub in_place: Vec<InstId>,
    /// Those that are read elsewhere, or by way of operations that are not followed.
    pub elsewhere: HashSet<InstId>,
}

impl Reach {
    /// Follows the results of `root` back to the values of `bindings`.
    pub(super) fn new(module: &Module, bindings: &HashMap<InstId, Binding>, root: InstId, n_results: usize) -> Reach {
        let follow = |leaf| {
            let leaf = InstLeaf::new(root, leaf as u32);
            let from = follow(module, leaf, Through::TUPLES, |inst| bindings.contains_key(&inst));
            Root::new(module, bindings, from.inst, from.leaf_idx as usize)
        };
        Reach { roots: (0..n_results).map(follow).collect() }
    }

    /// The numbers of the results that are no sums of columns, and the sums: result, reduction, and what it is.
    pub(super) fn whole_and_sums(
        &self,
        module: &Module,
        bindings: &HashMap<InstId, Binding>,
    ) -> (Vec<usize>, Vec<ResultSum>) {
        let (mut whole, mut sums) = (Vec::new(), Vec::new());
        for (i, root) in self.roots.iter().enumerate() {
            match column_sum(module, root.inst).filter(|_| !bindings.contains_key(&root.inst)) {
                Some(sum) => sums.push((i, root.inst, sum)),
                None => whole.push(i),
            }
        }
        (whole, sums)
    }

    /// The same, where each sum is what it adds: the threads read it at its own elements.
    pub(super) fn with_sources(
        &self,
        module: &Module,
        bindings: &HashMap<InstId, Binding>,
        sums: &[ResultSum],
    ) -> Reach {
        let of = |(i, root): (usize, &Root)| match sums.iter().find(|(result, _, _)| *result == i) {
            Some((_, _, sum)) => Root::new(module, bindings, sum.source, 0),
            None => root.clone(),
        };
        Reach { roots: self.roots.iter().enumerate().map(of).collect() }
    }
}

/// Operands whose element at the same place in memory an operation reads, if its own element is in place.
fn n_in_place(module: &Module, inst: InstId) -> usize {
    let node = module.inst(inst);
    let moves_nothing = [Opcode::Copy, Opcode::AddDependency, Opcode::Domain, Opcode::Bitcast, Opcode::Reshape];
    if node.opcode.is_elementwise() || moves_nothing.contains(&node.opcode) {
        node.operands.len()
    } else if node.opcode == Opcode::DynamicUpdateSlice {
        1
    } else if node.opcode == Opcode::Scatter {
        node.operands.len() / 2
    } else {
        0
    }
}

/// Whether equal places in memory are equal elements for `inst` and this operand.
fn keeps_place(module: &Module, inst: InstId, operand: InstId) -> bool {
    let (Some(to), Some(from)) = (array_of_leaf(module, inst, 0), module.shape(operand).as_array()) else {
        return false;
    };
    let opcode = module.inst(inst).opcode;
    if opcode == Opcode::Bitcast {
        to.dtype.bits() == from.dtype.bits()
    } else if opcode == Opcode::Reshape {
        to.is_row_major() && from.is_row_major()
    } else {
        to.is_same_order(from)
    }
}

impl Root {
    /// What a leaf of `inst` is computed from.
    pub(super) fn new(module: &Module, bindings: &HashMap<InstId, Binding>, inst: InstId, leaf: usize) -> Root {
        let mut root = Root { inst, leaf, all: BTreeSet::new(), in_place: Vec::new(), elsewhere: HashSet::new() };
        let mut seen = HashSet::new();
        let mut stack = vec![(inst, true)];
        while let Some((inst, is_in_place)) = stack.pop() {
            if !seen.insert((inst, is_in_place)) {
                continue;
            }
            root.all.insert(inst);
            if is_in_place {
                root.in_place.push(inst);
            } else {
                root.elsewhere.insert(inst);
            }
            if bindings.contains_key(&inst) {
                continue;
            }
            let n_in_place = n_in_place(module, inst);
            for (i, &operand) in module.inst(inst).operands.iter().enumerate() {
                let stays = is_in_place && i < n_in_place && keeps_place(module, inst, operand);
                stack.push((operand, stays));
            }
        }
        root
    }
}

/// Pairs of operand and result leaves that may share one buffer, where the threads that have an element add it to sums too.
pub(super) fn updatable_beside(
    module: &Module,
    reach: &Reach,
    sums: &[ResultSum],
    group: &ResultGroup,
    signature: &Signature,
) -> Vec<(usize, usize)> {
    let reach = reach.with_sources(module, &signature.bindings, sums);
    updatable(module, &reach, std::iter::once(group), signature)
}

/// Pairs of operand and result leaves that may share one buffer, of a kernel of rows.
pub(super) fn updatable_rows(signature: &Signature, read: &RowsRead) -> Vec<(usize, usize)> {
    // The same array may be passed as several operands, of which the kernel reads the first.
    let is_read =
        |operand: usize| signature.bindings.values().any(|b| matches!(b, Binding::Arguments(i) if *i == operand));
    let dtype = |operand: usize| signature.operands[operand].shape.dtype;
    let own = read.in_packs.iter().copied().filter(|&operand| is_read(operand) && !read.elsewhere.contains(&operand));
    let results = |operand: usize| {
        let alike = read.written.iter().filter(move |&&result| signature.results[result].shape.dtype == dtype(operand));
        alike.map(move |&result| (operand, result))
    };
    let mut pairs: Vec<(usize, usize)> = own.flat_map(results).collect();
    pairs.sort();
    pairs
}

/// Pairs of operand and result leaves that may share one buffer.
pub(super) fn updatable<'g>(
    module: &Module,
    reach: &Reach,
    groups: impl Iterator<Item = &'g ResultGroup>,
    signature: &Signature,
) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for group in groups {
        let roots: Vec<&Root> = group.results.iter().map(|&result| &reach.roots[result]).collect();
        let mut candidates: Vec<InstId> = roots.iter().flat_map(|root| root.in_place.iter().copied()).collect();
        candidates.sort();
        candidates.dedup();
        for inst in candidates {
            let Some(Binding::Arguments(operand)) = signature.bindings.get(&inst) else { continue };
            let Some(shape) = module.shape(inst).as_array() else { continue };
            // Nobody else may read it: no other group, and no thread of this one at another element.
            let is_only_here = reach.roots.iter().enumerate().all(|(i, root)| {
                !root.elsewhere.contains(&inst) && (group.results.contains(&i) || !root.all.contains(&inst))
            });
            // The same array may be passed as several operands, of which the kernel reads the first.
            if !is_only_here || !group.is_one_layout {
                continue;
            }
            for &result in &group.results {
                let to = &signature.results[result].shape;
                if to.dtype == shape.dtype && to.n_elems() == shape.n_elems() {
                    pairs.push((*operand, result));
                }
            }
        }
    }
    pairs.sort();
    pairs
}
