//! Applies rewrites to an e-graph: each match is built on both sides as concrete terms, proved, and added.

use super::egraph::{ClassId, EGraph, ENode};
use super::matching::{Bindings, Group, Groups, Matcher};
use super::{Limits, Rewrite};
use crate::op::{Conv, DimList, Dims, DotDims, Op, Window};
use crate::rule::Rule;
use crate::size::Size;
use crate::term::{TermId, Terms};
use crate::verify::prove_terms;
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, BTreeSet};

/// One application of a rule: the nodes that it chooses for classes.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// Number of the rule in its set.
    pub(super) entry: usize,
    /// The classes of the rule's results.
    pub(super) results: Vec<ClassId>,
    /// A node for each class that the right side is made of.
    pub(super) choices: Vec<(ClassId, ENode)>,
}

/// Rounds over all rewrites until nothing is new or a limit is met.
pub(super) fn saturate(graph: &mut EGraph, rewrites: &[Rewrite], limits: Limits) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut seen: BTreeSet<(usize, Vec<(ClassId, ENode)>)> = BTreeSet::new();
    graph.rebuild();
    let own = graph.leaders();
    for _ in 0..limits.n_rounds {
        let n_before = moves.len();
        // A round looks at what was there before it: what one rule makes is not torn apart by the next one at once.
        let there = graph.leaders();
        for rewrite in rewrites {
            // With all rules, joining what was joined says little that is new, and there is much of it.
            let is_join = rewrite.rule.left.len() > 1;
            let matches = find(graph, &rewrite.rule, if is_join && !limits.joins_again { &own } else { &there });
            for (bindings, roots) in matches {
                if graph.n_classes() >= limits.n_classes {
                    return moves;
                }
                let Some(one) = apply(graph, rewrite, &bindings, &roots) else { continue };
                if seen.insert((rewrite.entry, one.choices.clone())) {
                    moves.push(one);
                }
            }
            graph.rebuild();
        }
        if moves.len() == n_before {
            break;
        }
    }
    moves
}

type Roots = Vec<(ClassId, Groups)>;

/// Places of a rule's left side among classes; several results are distinct ones.
fn find(graph: &EGraph, rule: &Rule, among: &[ClassId]) -> Vec<(Bindings, Roots)> {
    let matcher = Matcher { graph, rule };
    // Of two branches alike, the one that stands first is the first part.
    let is_symmetric = !rule.reachable().iter().any(|&t| matches!(rule.terms.node(t).op, Op::Pad { .. }));
    let mut all: Vec<(Bindings, Roots)> = vec![(Bindings::new(rule), Vec::new())];
    for &term in &rule.left {
        let mut next = Vec::new();
        for (bindings, roots) in &all {
            for &class in among {
                let is_met = |r: &(ClassId, Groups)| r.0 == class || (is_symmetric && r.0 > class);
                if graph.find(class) != class || roots.iter().any(is_met) {
                    continue;
                }
                for (found, groups) in matcher.root(term, class, bindings) {
                    let mut roots = roots.clone();
                    roots.push((class, groups));
                    next.push((found, roots));
                }
            }
        }
        all = next;
    }
    all.retain_mut(|(bindings, _)| bindings.settle());
    all
}

fn apply(graph: &mut EGraph, rewrite: &Rewrite, bindings: &Bindings, roots: &Roots) -> Option<Move> {
    let rule = &rewrite.rule;
    let mut build = Builder { graph, rule, bindings, terms: Terms::default(), built: BTreeMap::new() };
    let left = build.side(&rule.left, roots)?;
    let right = build.side(&rule.right, roots)?;
    let terms = build.terms;
    if left == right {
        return None;
    }
    for (&l, &r) in left.iter().zip(&right) {
        prove_terms(&terms, l, r).ok()?;
    }
    let mut classes: BTreeMap<TermId, ClassId> = BTreeMap::new();
    let mut choices = Vec::new();
    for term in terms.reachable(&right) {
        let node = terms.node(term);
        let class = match &node.op {
            Op::Input(number) => bindings.inputs[usize::from(*number)].as_ref()?.0,
            op => {
                let node = ENode { op: op.clone(), args: node.args.iter().map(|a| classes[a]).collect() };
                let class = graph.add(node.clone()).ok()?;
                choices.push((class, node));
                class
            }
        };
        classes.insert(term, class);
    }
    for (&term, (class, _)) in right.iter().zip(roots) {
        graph.union(classes[&term], *class);
    }
    Some(Move { entry: rewrite.entry, results: roots.iter().map(|r| r.0).collect(), choices })
}

/// Builds a rule's terms on what its inputs are bound to, as terms over inputs of the same numbers.
struct Builder<'a> {
    graph: &'a EGraph,
    rule: &'a Rule,
    bindings: &'a Bindings,
    terms: Terms,
    built: BTreeMap<TermId, (TermId, Groups)>,
}

impl Builder<'_> {
    /// A side's results with their dims in the order of the classes that they are to be in.
    fn side(&mut self, side: &[TermId], roots: &Roots) -> Option<Vec<TermId>> {
        for term in self.rule.terms.reachable(side) {
            if !self.built.contains_key(&term) {
                let built = self.term(term)?;
                self.built.insert(term, built);
            }
        }
        side.iter()
            .zip(roots)
            .map(|(term, (_, groups))| {
                let (built, own) = self.built[term].clone();
                self.aligned(built, &own, groups)
            })
            .collect()
    }

    fn add(&mut self, op: Op, args: &[TermId]) -> Option<TermId> {
        self.terms.add(op, args.iter().copied().collect()).ok()
    }

    /// A term with its dims moved so that each group stands where it does in `wanted`.
    fn aligned(&mut self, term: TermId, own: &Groups, wanted: &Groups) -> Option<TermId> {
        let rank = self.terms.dims(term).len();
        let mut order: DimList = smallvec![u8::MAX; rank];
        if own.len() != wanted.len() {
            return None;
        }
        for (from, to) in own.iter().zip(wanted) {
            if from.len() != to.len() {
                return None;
            }
            for (&f, &t) in from.iter().zip(to) {
                *order.get_mut(usize::from(t))? = f;
            }
        }
        if order.iter().enumerate().all(|(i, &d)| i == usize::from(d)) {
            return Some(term);
        }
        self.add(Op::Transpose(order), &[term])
    }

    fn term(&mut self, term: TermId) -> Option<(TermId, Groups)> {
        let node = self.rule.terms.node(term).clone();
        let arg = |this: &Self, k: usize| this.built[&node.args[k]].clone();
        let one = |n: i64| Size::number(n);
        match &node.op {
            Op::Input(number) => {
                let (class, groups) = self.bindings.inputs[usize::from(*number)].as_ref()?;
                let dims: Dims = self.graph.dims(*class).clone();
                Some((self.terms.input(*number, dims), groups.clone()))
            }
            Op::Transpose(order) => {
                let (a, groups) = arg(self, 0);
                Some((a, order.iter().map(|&d| groups[usize::from(d)].clone()).collect()))
            }
            Op::Dot(pairs) => self.dot(pairs, arg(self, 0), arg(self, 1)),
            Op::Conv(conv) => self.convolution(conv, arg(self, 0), arg(self, 1)),
            Op::Unary(_) => {
                let (a, groups) = arg(self, 0);
                Some((self.add(node.op.clone(), &[a])?, groups))
            }
            Op::Scale => {
                let ((a, groups), (b, _)) = (arg(self, 0), arg(self, 1));
                Some((self.add(Op::Scale, &[a, b])?, groups))
            }
            Op::Add | Op::Multiply | Op::Max | Op::Above => {
                let ((a, groups), (b, own)) = (arg(self, 0), arg(self, 1));
                let b = self.aligned(b, &own, &groups)?;
                Some((self.add(node.op.clone(), &[a, b])?, groups))
            }
            Op::Concat { dim } | Op::Stack { dim } => {
                let groups = arg(self, 0).1;
                let mut args = Vec::new();
                for k in 0..node.args.len() {
                    let (a, own) = arg(self, k);
                    args.push(self.aligned(a, &own, &groups)?);
                }
                if matches!(node.op, Op::Stack { .. }) {
                    let mut outer = groups;
                    outer.iter_mut().flatten().for_each(|d| *d += 1);
                    outer.insert(usize::from(*dim), smallvec![0]);
                    return Some((self.add(Op::Stack { dim: 0 }, &args)?, outer));
                }
                let dim = sole(&groups[usize::from(*dim)])?;
                Some((self.add(Op::Concat { dim }, &args)?, groups))
            }
            Op::Pick { dim, place } => {
                let (a, mut groups) = arg(self, 0);
                let gone = sole(&groups.remove(usize::from(*dim)))?;
                groups.iter_mut().flatten().filter(|d| **d > gone).for_each(|d| *d -= 1);
                Some((self.add(Op::Pick { dim: gone, place: *place }, &[a])?, groups))
            }
            Op::Slice { dim, start, size } => {
                let (a, groups) = arg(self, 0);
                let dim = sole(&groups[usize::from(*dim)])?;
                let value = |size| Some(one(self.bindings.value(size, 1)?[0]));
                let op = Op::Slice { dim, start: value(start)?, size: value(size)? };
                Some((self.add(op, &[a])?, groups))
            }
            Op::Pad { dim, low, high } => {
                let (mut a, groups) = arg(self, 0);
                let group = groups[usize::from(*dim)].clone();
                let lows = self.bindings.value(low, group.len())?;
                let highs = self.bindings.value(high, group.len())?;
                for ((&dim, &low), &high) in group.iter().zip(&lows).zip(&highs) {
                    if (low, high) != (0, 0) {
                        a = self.add(Op::Pad { dim, low: one(low), high: one(high) }, &[a])?;
                    }
                }
                Some((a, groups))
            }
            Op::Broadcast(new) => {
                let (a, mut groups) = arg(self, 0);
                let mut sizes: SmallVec<[(u8, Size); 2]> = SmallVec::new();
                let mut places: Vec<(usize, Group)> = Vec::new();
                for (dim, size) in new {
                    let n_dims = self.n_dims(size);
                    let values = self.bindings.value(size, n_dims)?;
                    let first = sizes.len() as u8;
                    places.push((usize::from(*dim), (first..first + n_dims as u8).collect()));
                    sizes.extend(values.iter().enumerate().map(|(i, &n)| (first + i as u8, one(n))));
                }
                groups.iter_mut().flatten().for_each(|d| *d += sizes.len() as u8);
                places.into_iter().for_each(|(dim, group)| groups.insert(dim, group));
                let a = if sizes.is_empty() { a } else { self.add(Op::Broadcast(sizes), &[a])? };
                Some((a, groups))
            }
            Op::Reduce(over) => {
                let (a, groups) = arg(self, 0);
                let mut summed: DimList = over.iter().flat_map(|&d| groups[usize::from(d)].iter().copied()).collect();
                summed.sort();
                let kept = (0..groups.len()).filter(|d| !over.contains(&(*d as u8)));
                let place = |d: u8| d - summed.iter().filter(|&&s| s < d).count() as u8;
                let groups = kept.map(|d| groups[d].iter().map(|&x| place(x)).collect()).collect();
                let a = if summed.is_empty() { a } else { self.add(Op::Reduce(summed), &[a])? };
                Some((a, groups))
            }
            Op::Reshape(_) => None,
        }
    }

    /// How many dims the unknowns of a size measure.
    fn n_dims(&self, size: &Size) -> usize {
        let first = size.unknowns().first().and_then(|s| self.bindings.unknowns[s.number()].as_ref());
        first.map_or(1, Vec::len)
    }

    fn dot(
        &mut self,
        pairs: &DotDims,
        (a, left): (TermId, Groups),
        (b, right): (TermId, Groups),
    ) -> Option<(TermId, Groups)> {
        let ranks = [self.terms.dims(a).len(), self.terms.dims(b).len()];
        let zipped = |pairs: &[(u8, u8)]| -> Option<SmallVec<[(u8, u8); 2]>> {
            let mut all = SmallVec::new();
            for &(l, r) in pairs {
                let (l, r) = (&left[usize::from(l)], &right[usize::from(r)]);
                if l.len() != r.len() {
                    return None;
                }
                all.extend(l.iter().copied().zip(r.iter().copied()));
            }
            Some(all)
        };
        let dims = DotDims { batch: zipped(&pairs.batch)?, contract: zipped(&pairs.contract)? };
        let (left_free, right_free) = (dims.left_free(ranks[0]), dims.right_free(ranks[1]));
        let mut next = 0u8;
        let mut groups = Groups::new();
        for &(l, _) in &pairs.batch {
            let n = left[usize::from(l)].len() as u8;
            groups.push((next..next + n).collect());
            next += n;
        }
        let place = |free: &DimList, d: u8| free.iter().position(|&f| f == d).unwrap_or_default() as u8;
        for d in pairs.left_free(left.len()) {
            groups.push(left[usize::from(d)].iter().map(|&x| next + place(&left_free, x)).collect());
        }
        next += left_free.len() as u8;
        for d in pairs.right_free(right.len()) {
            groups.push(right[usize::from(d)].iter().map(|&x| next + place(&right_free, x)).collect());
        }
        Some((self.add(Op::Dot(dims), &[a, b])?, groups))
    }

    fn convolution(
        &mut self,
        conv: &Conv,
        (a, left): (TermId, Groups),
        (b, right): (TermId, Groups),
    ) -> Option<(TermId, Groups)> {
        let [window] = &conv.windows[..] else { return None };
        let n = left.get(2)?.len();
        let canonical: Groups = [smallvec![0], smallvec![1], (2..2 + n as u8).collect()].into_iter().collect();
        let a = self.aligned(a, &left, &canonical)?;
        let b = self.aligned(b, &right, &canonical)?;
        let value = |size: &Size| match size.as_number() {
            Some(number) => Some(vec![number; n]),
            None => self.bindings.value(size, n),
        };
        let fields = [&window.stride, &window.low, &window.base, &window.dilation, &window.out];
        let fields: Vec<Vec<i64>> = fields.into_iter().map(value).collect::<Option<_>>()?;
        let at = |s: usize, field: usize| Size::number(fields[field][s]);
        let windows = (0..n).map(|s| Window {
            stride: at(s, 0),
            low: at(s, 1),
            base: at(s, 2),
            dilation: at(s, 3),
            out: at(s, 4),
            is_reversed: window.is_reversed,
        });
        let op = Op::Conv(Box::new(Conv { windows: windows.collect(), ..conv.clone() }));
        Some((self.add(op, &[a, b])?, canonical))
    }
}

fn sole(group: &Group) -> Option<u8> {
    if let [only] = group[..] { Some(only) } else { None }
}
