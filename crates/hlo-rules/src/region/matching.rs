//! Where the left side of a rule stands in an e-graph.
//!
//! A dim of a rule stands for a group of dims of the graph: `m` of a product may be batch and sequence together. So rules of rank two
//! hold for products of any rank. Transposes, and the order of the operands of products and sums, are looked through. What is matched is
//! proved afterwards, so that a match need not be more than a good guess.

use super::egraph::{ClassId, EGraph, ENode, kind};
use crate::op::{Conv, DotDims, Op, Window};
use crate::rule::Rule;
use crate::size::Size;
use crate::term::TermId;
use smallvec::SmallVec;

/// Dims of a class that one dim of a rule stands for.
pub(super) type Group = SmallVec<[u8; 4]>;

/// A group for each dim of a rule's term.
pub(super) type Groups = SmallVec<[Group; 4]>;

/// What the inputs and unknowns of a rule are.
#[derive(Clone, Debug)]
pub(super) struct Bindings {
    pub(super) inputs: Vec<Option<(ClassId, Groups)>>,
    /// For each unknown a number for each dim of the group that it measures.
    pub(super) unknowns: Vec<Option<Vec<i64>>>,
    waiting: Vec<(Size, Vec<i64>)>,
}

/// Most ways of matching that are followed at once.
const MOST_MATCHES: usize = 64;
/// Highest rank for which all groupings are tried.
const MOST_RANK: usize = 5;

impl Bindings {
    pub(super) fn new(rule: &Rule) -> Bindings {
        Bindings {
            inputs: vec![None; rule.inputs.len()],
            unknowns: vec![None; rule.unknowns.len()],
            waiting: Vec::new(),
        }
    }

    fn size(&mut self, size: &Size, is: Vec<i64>) -> bool {
        if let Some(n) = size.as_number() {
            return is.iter().all(|&i| i == n) && !is.is_empty();
        }
        let Some(sym) = size.as_unknown() else {
            self.waiting.push((size.clone(), is));
            return true;
        };
        match &self.unknowns[sym.number()] {
            Some(known) => *known == is,
            None => {
                self.unknowns[sym.number()] = Some(is);
                true
            }
        }
    }

    /// A size's numbers, one for each dim of a group; all unknowns in it must measure groups of as many dims.
    pub(super) fn value(&self, size: &Size, n_dims: usize) -> Option<Vec<i64>> {
        let lists: Vec<(usize, &Vec<i64>)> = size
            .unknowns()
            .iter()
            .map(|s| Some((s.number(), self.unknowns[s.number()].as_ref()?)))
            .collect::<Option<_>>()?;
        if lists.iter().any(|l| l.1.len() != n_dims) {
            return None;
        }
        let at = |d: usize| {
            let mut values = vec![0; self.unknowns.len()];
            lists.iter().for_each(|(s, list)| values[*s] = list[d]);
            size.at(&values)
        };
        Some((0..n_dims).map(at).collect())
    }

    /// Solves what is linear in one unknown and checks the rest. `false` if something does not hold or stays open.
    pub(super) fn settle(&mut self) -> bool {
        loop {
            let mut waiting = std::mem::take(&mut self.waiting);
            let n_before = waiting.len();
            let mut is_sound = true;
            waiting.retain(|(size, is)| match self.solve(size, is) {
                Some(holds) => {
                    is_sound &= holds;
                    false
                }
                None => true,
            });
            self.waiting = waiting;
            if !is_sound {
                return false;
            }
            if self.waiting.is_empty() {
                return true;
            }
            if self.waiting.len() == n_before {
                return false;
            }
        }
    }

    fn solve(&mut self, size: &Size, is: &[i64]) -> Option<bool> {
        let open: Vec<_> = size.unknowns().into_iter().filter(|s| self.unknowns[s.number()].is_none()).collect();
        match open[..] {
            [] => Some(self.value(size, is.len()).is_some_and(|value| value == is)),
            [sym] => {
                let mut with = |n: i64| {
                    self.unknowns[sym.number()] = Some(vec![n; is.len()]);
                    let value = self.value(size, is.len());
                    self.unknowns[sym.number()] = None;
                    value
                };
                let (Some(zero), Some(one), Some(two)) = (with(0), with(1), with(2)) else { return Some(false) };
                let mut solution = Vec::new();
                for d in 0..is.len() {
                    let slope = one[d] - zero[d];
                    let least = i64::from(!sym.is_amount());
                    let rest = is[d] - zero[d];
                    if slope == 0 || two[d] - one[d] != slope || rest % slope != 0 || rest / slope < least {
                        return Some(false);
                    }
                    solution.push(rest / slope);
                }
                self.unknowns[sym.number()] = Some(solution);
                Some(true)
            }
            _ => None,
        }
    }
}

/// Matches sides of a rule.
pub(super) struct Matcher<'a> {
    pub(super) graph: &'a EGraph,
    pub(super) rule: &'a Rule,
}

impl Matcher<'_> {
    /// All ways in which a term of the rule is a class, dims in any groups.
    pub(super) fn root(&self, term: TermId, class: ClassId, bindings: &Bindings) -> Vec<(Bindings, Groups)> {
        let (n, rank) = (self.rule.terms.dims(term).len(), self.graph.dims(class).len());
        if rank > MOST_RANK || !self.may_match(term, class) {
            return Vec::new();
        }
        let mut all = Vec::new();
        for code in 0..n.pow(rank as u32).max(usize::from(n == 0 && rank == 0)) {
            let mut groups: Groups = (0..n).map(|_| Group::new()).collect();
            let mut rest = code;
            for d in 0..rank {
                groups[rest % n].push(d as u8);
                rest /= n;
            }
            for found in self.term(term, class, &groups, bindings.clone(), true) {
                all.push((found, groups.clone()));
                if all.len() >= MOST_MATCHES {
                    return all;
                }
            }
        }
        all
    }

    /// Whether a class has a node of the term's op, or one that may hide it.
    fn may_match(&self, term: TermId, class: ClassId) -> bool {
        match &self.rule.terms.node(term).op {
            Op::Input(_) | Op::Transpose(_) => true,
            op => self.graph.has_kind(class, kind(op) | kind(&Op::Transpose(SmallVec::new()))),
        }
    }

    fn term(&self, term: TermId, class: ClassId, groups: &Groups, mut b: Bindings, may_turn: bool) -> Vec<Bindings> {
        let node = self.rule.terms.node(term);
        let class = self.graph.find(class);
        match &node.op {
            Op::Input(number) => {
                let at = usize::from(*number);
                if let Some(known) = &b.inputs[at] {
                    return if *known == (self.graph.find(class), groups.clone()) { vec![b] } else { Vec::new() };
                }
                let sizes = self.graph.sizes(class);
                let is_sound = node
                    .dims
                    .iter()
                    .zip(groups)
                    .all(|(size, group)| b.size(size, group.iter().map(|&d| sizes[usize::from(d)]).collect()));
                b.inputs[at] = Some((self.graph.find(class), groups.clone()));
                if is_sound { vec![b] } else { Vec::new() }
            }
            Op::Transpose(order) => {
                let mut inner = groups.clone();
                order.iter().zip(groups).for_each(|(&d, group)| inner[usize::from(d)] = group.clone());
                self.term(node.args[0], class, &inner, b, may_turn)
            }
            op => {
                let mut all = Vec::new();
                if !self.may_match(term, class) {
                    return all;
                }
                for candidate in self.graph.nodes(class) {
                    if let (Op::Transpose(order), true) = (&candidate.op, may_turn) {
                        let turned =
                            groups.iter().map(|g| g.iter().map(|&d| order[usize::from(d)]).collect()).collect();
                        all.extend(self.term(term, candidate.args[0], &turned, b.clone(), false));
                    }
                    if kind(&candidate.op) == kind(op) && candidate.args.len() == node.args.len() {
                        for swapped in [false, true] {
                            if !swapped || (op.is_commutative() && candidate.args[0] != candidate.args[1]) {
                                all.extend(self.node(term, candidate, groups, b.clone(), swapped));
                            }
                        }
                    }
                    if all.len() >= MOST_MATCHES {
                        break;
                    }
                }
                all
            }
        }
    }

    fn node(&self, term: TermId, found: &ENode, groups: &Groups, mut b: Bindings, swapped: bool) -> Vec<Bindings> {
        let node = self.rule.terms.node(term);
        let Some(inner) = self.groups_of_args(term, found, groups, &mut b, swapped) else { return Vec::new() };
        let mut all = vec![b];
        for (k, (&arg, groups)) in node.args.iter().zip(&inner).enumerate() {
            let class = found.args[if swapped { 1 - k } else { k }];
            all = all.into_iter().flat_map(|b| self.term(arg, class, groups, b, true)).take(MOST_MATCHES).collect();
        }
        all
    }

    /// The groups of each operand's dims, if the ops agree.
    fn groups_of_args(
        &self,
        term: TermId,
        found: &ENode,
        groups: &Groups,
        b: &mut Bindings,
        swapped: bool,
    ) -> Option<Vec<Groups>> {
        let op = &self.rule.terms.node(term).op;
        let sole = |dim: u8, is: u8| (groups[usize::from(dim)][..] == [is]).then_some(());
        let same = || vec![groups.clone(); found.args.len()];
        let theirs = &found.op;
        match op {
            Op::Input(_) | Op::Transpose(_) | Op::Reshape(_) => None,
            Op::Add | Op::Multiply | Op::Max | Op::Above => Some(same()),
            Op::Unary(_) => (op == theirs).then(same),
            Op::Scale => Some(vec![groups.clone(), Groups::new()]),
            Op::Dot(ours) => {
                let Op::Dot(theirs) = theirs else { return None };
                self.dot(term, ours, theirs, found, groups, swapped)
            }
            Op::Concat { dim } => {
                let Op::Concat { dim: is } = theirs else { return None };
                sole(*dim, *is).map(|()| same())
            }
            Op::Slice { dim, start, size } => {
                let Op::Slice { dim: is, start: from, size: n } = theirs else { return None };
                sole(*dim, *is)?;
                (b.size(start, vec![from.as_number()?]) && b.size(size, vec![n.as_number()?])).then(same)
            }
            Op::Pad { dim, low, high } => {
                let Op::Pad { dim: is, low: before, high: after } = theirs else { return None };
                sole(*dim, *is)?;
                (b.size(low, vec![before.as_number()?]) && b.size(high, vec![after.as_number()?])).then(same)
            }
            Op::Stack { dim } => {
                let Op::Stack { dim: is } = theirs else { return None };
                sole(*dim, *is)?;
                let mut inner = groups.clone();
                inner.remove(usize::from(*dim));
                inner.iter_mut().flatten().filter(|d| **d > *is).for_each(|d| *d -= 1);
                Some(vec![inner; found.args.len()])
            }
            Op::Pick { dim, place } => {
                let Op::Pick { dim: is, place: at } = theirs else { return None };
                let mut inner = groups.clone();
                inner.iter_mut().flatten().filter(|d| **d >= *is).for_each(|d| *d += 1);
                inner.insert(usize::from(*dim), SmallVec::from_slice(&[*is]));
                (place == at).then(|| vec![inner])
            }
            Op::Reduce(over) => {
                let Op::Reduce(summed) = theirs else { return None };
                self.reduce(over, summed, found, groups)
            }
            Op::Broadcast(new) => {
                let Op::Broadcast(theirs) = theirs else { return None };
                broadcast(new, theirs, groups, b)
            }
            Op::Conv(ours) => {
                let Op::Conv(theirs) = theirs else { return None };
                convolution(ours, theirs, groups, b)
            }
        }
    }

    fn reduce(&self, over: &[u8], summed: &[u8], found: &ENode, groups: &Groups) -> Option<Vec<Groups>> {
        let rank = self.graph.dims(found.args[0]).len() as u8;
        let kept: Vec<u8> = (0..rank).filter(|d| !summed.contains(d)).collect();
        let mut inner: Groups = groups.iter().map(|g| g.iter().map(|&d| kept[usize::from(d)]).collect()).collect();
        let parts = shared_out(summed, over.len())?;
        over.iter().zip(parts).for_each(|(&d, part)| inner.insert(usize::from(d), part));
        Some(vec![inner])
    }

    /// Batch dims to batch dims, sums to sums, and the free dims of each operand to its own.
    fn dot(
        &self,
        term: TermId,
        ours: &DotDims,
        theirs: &DotDims,
        found: &ENode,
        groups: &Groups,
        swapped: bool,
    ) -> Option<Vec<Groups>> {
        let our_ranks = [0, 1].map(|k| self.rule.terms.dims(self.rule.terms.node(term).args[k]).len());
        let ranks = [0, 1].map(|k| self.graph.dims(found.args[k]).len());
        let (left, right) = (theirs.left_free(ranks[0]), theirs.right_free(ranks[1]));
        let (n_batch, n_ours) = (ours.batch.len(), our_ranks[0] - ours.batch.len() - ours.contract.len());
        let starts = [theirs.batch.len(), theirs.batch.len() + left.len()];
        // Their dims in the order of our operands.
        let (free, starts) = if swapped { ([right, left], [starts[1], starts[0]]) } else { ([left, right], starts) };
        let flip = |pair: &(u8, u8)| if swapped { (pair.1, pair.0) } else { *pair };
        let sums = shared_out(&(0..theirs.contract.len() as u8).collect::<Group>(), ours.contract.len())?;
        let within =
            |group: &Group, start: usize, n: usize| group.iter().all(|&d| (start..start + n).contains(&usize::from(d)));
        let is_sound = groups.iter().enumerate().all(|(dim, group)| match dim.checked_sub(n_batch) {
            None => within(group, 0, theirs.batch.len()),
            Some(own) if own < n_ours => within(group, starts[0], free[0].len()),
            Some(_) => within(group, starts[1], free[1].len()),
        });
        if !is_sound {
            return None;
        }
        let of = |k: usize, side: &dyn Fn(&(u8, u8)) -> u8, first_group: usize| -> Groups {
            let mut next_free = first_group;
            let mut group = |d: u8| -> Group {
                if let Some(i) = ours.batch.iter().position(|p| side(p) == d) {
                    return groups[i].iter().map(|&x| side(&flip(&theirs.batch[usize::from(x)]))).collect();
                }
                if let Some(i) = ours.contract.iter().position(|p| side(p) == d) {
                    return sums[i].iter().map(|&x| side(&flip(&theirs.contract[usize::from(x)]))).collect();
                }
                next_free += 1;
                groups[next_free - 1].iter().map(|&x| free[k][usize::from(x) - starts[k]]).collect()
            };
            (0..our_ranks[k] as u8).map(&mut group).collect()
        };
        Some(vec![of(0, &|p| p.0, n_batch), of(1, &|p| p.1, n_batch + n_ours)])
    }
}

/// New dims to new dims; the operand's are the others.
fn broadcast(new: &[(u8, Size)], theirs: &[(u8, Size)], groups: &Groups, b: &mut Bindings) -> Option<Vec<Groups>> {
    let is_new = |d: u8| theirs.iter().any(|n| n.0 == d);
    let ours = |dim: usize| new.iter().any(|n| usize::from(n.0) == dim);
    let agree = groups.iter().enumerate().all(|(dim, group)| group.iter().all(|&d| is_new(d) == ours(dim)));
    let sizes = |group: &Group| -> Vec<i64> {
        group.iter().filter_map(|d| theirs.iter().find(|n| n.0 == *d)?.1.as_number()).collect()
    };
    let is_sized = new.iter().all(|(dim, size)| b.size(size, sizes(&groups[usize::from(*dim)])));
    let inner = |d: u8| d - theirs.iter().filter(|n| n.0 < d).count() as u8;
    let kept = (0..groups.len()).filter(|&dim| !ours(dim));
    let inner = kept.map(|dim| groups[dim].iter().map(|&d| inner(d)).collect()).collect();
    (agree && is_sized).then(|| vec![inner])
}

/// Batch, feature, and all spatial dims as one group, whose windows have a number each.
fn convolution(ours: &Conv, theirs: &Conv, groups: &Groups, b: &mut Bindings) -> Option<Vec<Groups>> {
    let spatial: Group = (2..2 + theirs.windows.len() as u8).collect();
    let wanted: Groups = [Group::from_slice(&[0]), Group::from_slice(&[1]), spatial].into_iter().collect();
    let [window] = &ours.windows[..] else { return None };
    let is_alike = (ours.feature_groups, ours.batch_groups) == (theirs.feature_groups, theirs.batch_groups)
        && theirs.windows.iter().all(|w| w.is_reversed == window.is_reversed);
    let fields = |w: &Window| [&w.stride, &w.low, &w.base, &w.dilation, &w.out].map(Clone::clone);
    let theirs: Vec<[Size; 5]> = theirs.windows.iter().map(fields).collect();
    for (k, ours) in fields(window).iter().enumerate() {
        let numbers: Vec<i64> = theirs.iter().map(|w| w[k].as_number()).collect::<Option<_>>()?;
        if !b.size(ours, numbers) {
            return None;
        }
    }
    (is_alike && *groups == wanted).then(|| vec![wanted.clone(), wanted])
}

/// Dims shared out to `n` groups: all to one, or one each.
fn shared_out(dims: &[u8], n: usize) -> Option<Vec<Group>> {
    match n {
        0 => dims.is_empty().then(Vec::new),
        1 => Some(vec![Group::from_slice(dims)]),
        _ => (dims.len() == n).then(|| dims.iter().map(|&d| Group::from_slice(&[d])).collect()),
    }
}
