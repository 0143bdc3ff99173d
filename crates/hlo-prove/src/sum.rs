//! Sums: over devices, over dims, and of several terms, in one form.
//!
//! A sum is a multiset of summands, each over an extent: steps along the term's coordinates, and devices. So an
//! all-reduce of partial reductions is a reduction, stages of a hierarchy are one stage, and it does not matter in which
//! order a program adds up. What makes two sums one holds for exact numbers; see [`crate::rules`].

use crate::devices::Spread;
use crate::elementwise::{Elementwise, ElementwiseOp, Freedom, Linear};
use crate::rules::{Rule, Rules};
use crate::segment::{Coords, Dim, Region, Segment};
use crate::term::{Arg, Extent, Extra, Head, Node, TermId, Terms};
use hlo_ir::monoid::Monoid;
use hlo_ir::{DType, Literal};
use smallvec::SmallVec;

/// A plain sum with more summands than this is not taken apart within another one.
const MAX_FLAT: usize = 1024;

/// How many summands lie at most between two that are joined.
const MAX_BEHIND: usize = 256;

/// From how many summands the distances to all others are looked at.
const MAX_COMPARED: usize = 32;

/// How many summands of one term are cut by rows.
const MAX_BOXES: usize = 1024;

/// One summand of a sum over a region.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Summand {
    pub term: TermId,
    /// The term's coordinates at the region's first place.
    pub at: Coords,
    /// What each dim of the region adds to them.
    pub steps: Vec<Coords>,
    /// Numbers of steps that are summed over, and what each adds.
    pub reduce: SmallVec<[(i64, Coords); 1]>,
    /// The devices that are summed over.
    pub spread: Spread,
}

impl Summand {
    /// The term at the coordinates that the region has from a position on, on each device its own.
    pub(crate) fn own(terms: &mut Terms, term: TermId, region: &Region, from: usize) -> Summand {
        let (rank, classes) = (terms.rank(term), terms.classes(term));
        Summand {
            term,
            at: crate::array::part(&region.at, from, rank),
            steps: region.dims.iter().map(|d| crate::array::part(&d.step, from, rank)).collect(),
            reduce: SmallVec::new(),
            spread: terms.devices.own(classes),
        }
    }

    fn is_plain(&self, terms: &mut Terms) -> bool {
        let classes = terms.classes(self.term);
        self.reduce.is_empty() && self.spread == terms.devices.own(classes)
    }

    /// The same summand over an argument of its term.
    fn of_argument(&self, arg: &Arg) -> Summand {
        Summand {
            term: arg.term,
            at: arg.at(&self.at),
            steps: self.steps.iter().map(|step| arg.step(step)).collect(),
            reduce: self.reduce.iter().map(|(n, step)| (*n, arg.step(step))).collect(),
            spread: self.spread,
        }
    }
}

impl Elementwise {
    /// The sum of summands over a region; only the region's places are read.
    pub(crate) fn sum(
        &self,
        terms: &mut Terms,
        monoid: Monoid,
        dtype: DType,
        region: &Region,
        summands: Vec<Summand>,
    ) -> Segment {
        let mut flat = Vec::with_capacity(summands.len());
        let mut rules = Rules::NONE;
        // Once time is over nothing counts, and what takes long is left.
        let reassociates = self.reassociates() && !terms.deadline.has_passed();
        // An op that is all of the sum stays the op that it is elsewhere.
        let opens_ops = !matches!(summands.as_slice(), [only] if only.is_plain(terms));
        for summand in summands {
            self.flatten(terms, (monoid, dtype, opens_ops), summand, &mut flat, &mut rules);
        }
        if reassociates && monoid == Monoid::Add {
            if let Some(segment) = self.pull_factors(terms, dtype, region, &mut flat) {
                terms.mark(segment.term, rules);
                return segment;
            }
            for summand in &mut flat {
                if let Some(product) = self.sum_in_product(terms, summand.term, summand.spread) {
                    summand.term = product;
                    let classes = terms.classes(product);
                    summand.spread = terms.devices.own(classes);
                    rules = rules | Rules::of(Rule::SumInProduct);
                }
            }
        }
        let identity = monoid.identity(dtype).map(|value| Literal::scalar(dtype, value));
        let is_empty = |s: &Summand| identity.is_some() && terms.as_constant(s.term) == identity.as_ref();
        if let (true, Some(first)) = (reassociates && flat.iter().all(is_empty), flat.first()) {
            return segment(region, first.term, first);
        }
        if flat.len() > 1 && reassociates {
            let n = flat.len();
            let is_identity =
                |terms: &Terms, s: &Summand| identity.is_some() && terms.as_constant(s.term) == identity.as_ref();
            let drops_products = monoid == Monoid::Add && self.freedom >= Freedom::Windows;
            let mut has_product = false;
            let mut is_nothing: Vec<bool> = Vec::with_capacity(n);
            for summand in &flat {
                let is_zero = drops_products && self.is_zero_product(terms, summand.term);
                has_product |= is_zero;
                is_nothing.push(is_zero || is_identity(terms, summand));
            }
            let n_dropped = is_nothing.iter().filter(|&&nothing| nothing).count();
            if n_dropped > 0 {
                rules = rules | Rules::of(Rule::IdentityDrops);
                if has_product {
                    rules = rules | Rules::of(Rule::ZeroProduct);
                }
                if n_dropped == n {
                    flat.truncate(1);
                } else {
                    let mut is_nothing = is_nothing.into_iter();
                    flat.retain(|_| is_nothing.next() == Some(false));
                }
            }
        }
        for summand in &mut flat {
            tidy(terms, monoid, summand);
        }
        if reassociates && count_equal(terms, monoid, &mut flat) {
            rules = rules | Rules::of(Rule::SumsJoin);
        }
        if reassociates && join_all(&mut flat) {
            rules = rules | Rules::of(Rule::SumsJoin);
        }
        if let [only] = flat.as_slice() {
            // A sum of one is that one; a maximum of equal ones too.
            if only.is_plain(terms) {
                let only = only.clone();
                terms.mark(only.term, rules);
                return segment(region, only.term, &only);
            }
        }
        flat.sort_by(|a, b| {
            (a.term, &a.reduce, a.spread, &a.at, &a.steps).cmp(&(b.term, &b.reduce, b.spread, &b.at, &b.steps))
        });
        let mut all = crate::elementwise::places(region);
        let mut args = Vec::with_capacity(flat.len());
        for summand in flat {
            let from = all.at.len();
            all.at.extend_from_slice(&summand.at);
            for (dim, step) in all.dims.iter_mut().zip(&summand.steps) {
                dim.step.extend_from_slice(step);
            }
            let extra = terms.extra(Extra::Extent(Extent { reduce: summand.reduce, spread: summand.spread }));
            args.push((summand.term, extra, from));
        }
        let out = terms.apply(Head::Sum(monoid, dtype), &args, &all);
        terms.mark(out.term, rules);
        out
    }

    /// Whether a term is a product with zero.
    fn is_zero_product(&self, terms: &mut Terms, term: TermId) -> bool {
        let Node::Apply(Head::Elementwise(word), args) = terms.node(term) else { return false };
        let Some(op) = self.op(*word) else { return false };
        // A number that is rounded to a narrower type may become infinite.
        let ([a, b], false) = (args.as_slice(), op.rounds_operands()) else { return false };
        let (a, b) = (a.term, b.term);
        match op.linear() {
            Linear::Product | Linear::DotProduct | Linear::RoundedProduct => {
                terms.is_zero(a) && self.is_finite(terms, b) || terms.is_zero(b) && self.is_finite(terms, a)
            }
            Linear::Quotient => terms.is_zero(a) && !terms.holds_unknowns(b) && self.is_a_factor(terms, op, b),
            Linear::No => false,
        }
    }

    /// Adds the summand, or the summands of the sum that it is.
    fn flatten(
        &self,
        terms: &mut Terms,
        kind: (Monoid, DType, bool),
        summand: Summand,
        out: &mut Vec<Summand>,
        rules: &mut Rules,
    ) {
        // A list in the place of recursion: sums of sums are as deep as programs are long.
        let mut open = vec![summand];
        while let Some(mut summand) = open.pop() {
            let classes = terms.classes(summand.term);
            summand.spread = terms.devices.normalize(summand.spread, classes);
            let is_sum = |head: &Head| match head {
                Head::Sum(monoid, dtype) => (*monoid, *dtype) == (kind.0, kind.1),
                Head::Elementwise(word) => self.is_op_of(*word, kind),
                _ => false,
            };
            let inner = match terms.node(summand.term) {
                Node::Apply(head, args) if self.reassociates() && is_sum(head) => Some(args.clone()),
                _ => None,
            };
            let Some(inner) = inner.filter(|inner| inner.len() <= MAX_FLAT || !summand.is_plain(terms)) else {
                out.push(summand);
                continue;
            };
            *rules = *rules | terms.rules(summand.term) | Rules::of(Rule::SumFlattens);
            for arg in inner.iter().rev() {
                let mut part = summand.of_argument(arg);
                if let Extra::Extent(extent) = terms.extra_of(arg.extra).clone() {
                    part.spread = terms.devices.compose(summand.spread, extent.spread);
                    part.reduce.extend(extent.reduce);
                }
                open.push(part);
            }
        }
    }

    /// Whether an op is the sum of its operands, in this sense of a sum, and is to be taken apart.
    fn is_op_of(&self, word: crate::term::WordId, (monoid, dtype, opens_ops): (Monoid, DType, bool)) -> bool {
        let is_it = |op: &ElementwiseOp| (op.opcode, op.dtype) == (monoid.opcode(), dtype);
        opens_ops && is_extremum(monoid) && self.op(word).is_some_and(is_it)
    }

    /// Takes scalar factors out of summands that are more than a term. Gives the sum if that leaves no other summand.
    fn pull_factors(
        &self,
        terms: &mut Terms,
        dtype: DType,
        region: &Region,
        flat: &mut Vec<Summand>,
    ) -> Option<Segment> {
        let mut groups: Vec<((crate::term::WordId, TermId, bool), Vec<Summand>)> = Vec::new();
        let mut rest = Vec::new();
        let mut plain = Vec::new();
        for summand in flat.drain(..) {
            match self.factor_of(terms, &summand) {
                Some((key, inner)) => {
                    if summand.is_plain(terms) {
                        plain.push((key, summand));
                    }
                    match groups.iter_mut().find(|(k, _)| *k == key) {
                        Some((_, list)) => list.push(inner),
                        None => groups.push((key, vec![inner])),
                    }
                }
                None => rest.push(summand),
            }
        }
        // One product alone stays a product.
        for (key, summand) in plain {
            if groups.iter().any(|(k, list)| *k == key && list.len() == 1) {
                groups.retain(|(k, _)| *k != key);
                rest.push(summand);
            }
        }
        let is_all = groups.len() == 1 && rest.is_empty();
        for ((word, factor, factor_first), list) in groups {
            let sum = self.sum(terms, Monoid::Add, dtype, region, list);
            let rank = terms.rank(sum.term);
            let args = if factor_first {
                [(factor, Terms::NO_EXTRA, 1 + rank), (sum.term, Terms::NO_EXTRA, 1)]
            } else {
                [(sum.term, Terms::NO_EXTRA, 1), (factor, Terms::NO_EXTRA, 1 + rank)]
            };
            let mut args = args;
            if self.op(word).is_some_and(|op| op.linear() == Linear::Product) {
                args.sort_by_key(|a| a.0);
            }
            let product = terms.apply(Head::Elementwise(word), &args, &sum.region);
            terms.mark(product.term, Rules::of(Rule::ScalarFactor));
            if is_all {
                return Some(product);
            }
            let summand = Summand::own(terms, product.term, &product.region, 1);
            rest.push(summand);
        }
        *flat = rest;
        None
    }

    /// The word, the scalar factor, whether it stands first, and the summand without it.
    fn factor_of(
        &self,
        terms: &mut Terms,
        summand: &Summand,
    ) -> Option<((crate::term::WordId, TermId, bool), Summand)> {
        if summand.is_plain(terms) && self.freedom < Freedom::Rows {
            return None;
        }
        let Node::Apply(Head::Elementwise(word), args) = terms.node(summand.term) else { return None };
        let (word, op) = (*word, self.op(*word)?);
        let [a, b] = args.as_slice() else { return None };
        let (a, b) = (a.clone(), b.clone());
        let mut is_scalar = |arg: &Arg| {
            terms.rank(arg.term) == 0
                && terms.classes(arg.term) == crate::devices::Classes::ALL_EQUAL
                && self.is_a_factor(terms, op, arg.term)
        };
        let (factor, inner, is_first) = match op.linear() {
            Linear::Product if is_scalar(&a) => (a.term, b, true),
            Linear::Product | Linear::Quotient if is_scalar(&b) => (b.term, a, false),
            Linear::Product | Linear::Quotient | Linear::DotProduct | Linear::RoundedProduct | Linear::No => {
                return None;
            }
        };
        if terms.rank(summand.term) != terms.rank(inner.term) {
            return None;
        }
        let mut part = summand.of_argument(&inner);
        let classes = terms.classes(inner.term);
        // The product's classes are those of what is multiplied, since the factor is equal everywhere.
        part.spread = terms.devices.normalize(summand.spread, classes);
        Some(((word, factor, is_first), part))
    }
}

/// The segment of a term at a summand's coordinates.
fn segment(region: &Region, term: TermId, summand: &Summand) -> Segment {
    let join = |place: i64, coords: &Coords| std::iter::once(place).chain(coords.iter().copied()).collect();
    let dims = region.dims.iter().zip(&summand.steps);
    Segment {
        term,
        region: Region {
            at: join(region.at[0], &summand.at),
            dims: dims.map(|(d, step)| Dim { n: d.n, step: join(d.step[0], step) }).collect(),
        },
    }
}

/// Makes one summand of those that differ in the devices alone. Whether there were any.
fn count_equal(terms: &mut Terms, monoid: Monoid, flat: &mut Vec<Summand>) -> bool {
    let before = flat.len();
    if before < 2 {
        return false;
    }
    fn key(s: &Summand) -> impl Ord + '_ {
        (s.term, &s.at, &s.reduce, &s.steps)
    }
    flat.sort_by(|a, b| key(a).cmp(&key(b)).then(a.spread.cmp(&b.spread)));
    flat.dedup_by(|next, last| {
        let is_equal = key(last) == key(next);
        if is_equal {
            last.spread = terms.devices.add(last.spread, next.spread, is_idempotent(monoid));
        }
        is_equal
    });
    flat.len() < before
}

/// Whether it gives one of the numbers that it combines, the largest or the smallest.
pub(crate) fn is_extremum(monoid: Monoid) -> bool {
    match monoid {
        Monoid::Maximum | Monoid::Minimum => true,
        Monoid::Add | Monoid::Multiply | Monoid::And | Monoid::Or => false,
    }
}

fn is_idempotent(monoid: Monoid) -> bool {
    match monoid {
        Monoid::Add | Monoid::Multiply => false,
        Monoid::Maximum | Monoid::Minimum | Monoid::And | Monoid::Or => true,
    }
}

/// Sorts and joins the steps that a summand sums over; steps that add nothing only count.
fn tidy(terms: &mut Terms, monoid: Monoid, summand: &mut Summand) {
    let is_idempotent = is_idempotent(monoid);
    let mut times = 1;
    let mut kept: SmallVec<[(i64, Coords); 1]> = SmallVec::new();
    for (n, mut step) in std::mem::take(&mut summand.reduce) {
        match step.iter().find(|&&s| s != 0) {
            _ if n == 1 => {}
            None => times *= n,
            Some(&first) => {
                if first < 0 {
                    for (at, s) in summand.at.iter_mut().zip(&mut step) {
                        *at += *s * (n - 1);
                        *s = -*s;
                    }
                }
                kept.push((n, step));
            }
        }
    }
    if times != 1 || is_idempotent {
        summand.spread = terms.devices.scaled(summand.spread, u128::from(times.unsigned_abs()), is_idempotent);
    }
    summand.reduce = kept;
    tidy_steps(&mut summand.reduce);
}

fn tidy_steps(reduce: &mut SmallVec<[(i64, Coords); 1]>) {
    reduce.sort_by(|a, b| b.1.cmp(&a.1));
    let mut k = 0;
    while k + 1 < reduce.len() {
        let (outer, inner) = (&reduce[k], &reduce[k + 1]);
        if outer.1.iter().zip(&inner.1).all(|(o, i)| *o == i * inner.0) {
            reduce[k + 1].0 *= reduce[k].0;
            reduce.remove(k);
        } else {
            k += 1;
        }
    }
}

/// Joins summands that go on where another ends. Whether there were any.
fn join_all(flat: &mut Vec<Summand>) -> bool {
    let before = flat.len();
    if before < 2 {
        return false;
    }
    // In the order in which the elements are read, whatever coordinate comes first.
    let place = |s: &Summand| s.at.iter().sum::<i64>();
    flat.sort_by(|a, b| (a.term, a.spread, place(a), &a.at).cmp(&(b.term, b.spread, place(b), &b.at)));
    // Only summands of one term over the same devices are ever joined.
    if flat.windows(2).all(|pair| (pair[0].term, pair[0].spread) != (pair[1].term, pair[1].spread)) {
        return false;
    }
    join_neighbours(flat);
    cut_by_rows(flat);
    add_steps(flat);
    // Rows cut along one step may go on along another, which is then the only step left.
    flat.sort_by(|a, b| (a.term, a.spread, place(a), &a.at).cmp(&(b.term, b.spread, place(b), &b.at)));
    join_neighbours(flat);
    cut_by_rows(flat);
    add_steps(flat);
    flat.len() < before
}

fn join_neighbours(flat: &mut Vec<Summand>) {
    loop {
        let n = flat.len();
        let mut out: Vec<Summand> = Vec::with_capacity(n);
        for summand in flat.drain(..) {
            let start = out.len().saturating_sub(MAX_BEHIND);
            if !out[start..].iter_mut().rev().any(|other| join(other, &summand)) {
                out.push(summand);
            }
        }
        *flat = out;
        if flat.len() == n {
            break;
        }
    }
}

/// Makes one summand of equal boxes at equal distances, which no step of their own leads from one to the next.
fn add_steps(flat: &mut Vec<Summand>) {
    let place = |s: &Summand| s.at.iter().sum::<i64>();
    loop {
        let n = flat.len();
        flat.sort_by(|a, b| {
            (a.term, a.spread, &a.steps, &a.reduce, place(a), &a.at).cmp(&(
                b.term,
                b.spread,
                &b.steps,
                &b.reduce,
                place(b),
                &b.at,
            ))
        });
        let is_alike = |a: &Summand, b: &Summand| {
            a.term == b.term && a.spread == b.spread && a.steps == b.steps && a.reduce == b.reduce
        };
        let mut out: Vec<Summand> = Vec::with_capacity(n);
        for group in flat.chunk_by(is_alike) {
            match runs_of_equal_gaps(group) {
                Some((length, step)) => out.extend(group.chunks(length).map(|run| {
                    let mut summand = run[0].clone();
                    summand.reduce.push((length as i64, step.clone()));
                    tidy_steps(&mut summand.reduce);
                    summand
                })),
                None => out.extend_from_slice(group),
            }
        }
        *flat = out;
        if flat.len() == n {
            return;
        }
    }
}

/// The length of the runs that a group falls into, all with the gap of its first two.
fn runs_of_equal_gaps(group: &[Summand]) -> Option<(usize, Coords)> {
    let [first, second, ..] = group else { return None };
    let step = gap(first, second);
    // Two that lie against each other's direction are no step: it would run both ways.
    if step.iter().any(|&s| s < 0) {
        return None;
    }
    let length = 1 + group.windows(2).take_while(|pair| gap(&pair[0], &pair[1]) == step).count();
    let is_run = |run: &[Summand]| run.len() == length && run.windows(2).all(|pair| gap(&pair[0], &pair[1]) == step);
    (group.len().is_multiple_of(length) && group.chunks(length).all(is_run)).then_some((length, step))
}

/// Summands that have a term, cut anew if their boxes can be cut in several ways: each row as the intervals that are summed,
/// and rows with the same intervals together.
fn cut_by_rows(flat: &mut Vec<Summand>) {
    let mut out: Vec<Summand> = Vec::with_capacity(flat.len());
    for group in flat.chunk_by(|a, b| a.term == b.term && a.spread == b.spread && a.steps == b.steps) {
        match boxes_by_rows(group) {
            Some(cut) => out.extend(cut),
            None => out.extend_from_slice(group),
        }
    }
    *flat = out;
}

/// A box: for each dim the first step, and the first that is not in it.
type Box = Vec<(i64, i64)>;

fn boxes_by_rows(group: &[Summand]) -> Option<Vec<Summand>> {
    let first = group.first().filter(|_| (2..=MAX_BOXES).contains(&group.len()))?;
    // A step that is taken twice is no side of a box.
    let is_repeated = |s: &Summand| (1..s.reduce.len()).any(|k| s.reduce[..k].iter().any(|r| r.1 == s.reduce[k].1));
    if group.iter().any(is_repeated) {
        return None;
    }
    let mut basis: Vec<Coords> = group.iter().flat_map(|s| s.reduce.iter().map(|r| r.1.clone())).collect();
    // Rows that come one by one say by their distance what a step is.
    for _ in 0..4 {
        basis.sort_by_key(|step| (std::cmp::Reverse(step.iter().sum::<i64>()), step.clone()));
        basis.dedup();
        let is_open = |gap: &Coords| offsets_along(gap.clone(), &basis).1.iter().any(|&r| r != 0);
        if !group.iter().any(|summand| is_open(&gap(first, summand))) {
            break;
        }
        let from = &group[..group.len().min(MAX_COMPARED)];
        let gaps = from.iter().flat_map(|a| group.iter().map(|b| gap(a, b)));
        let open = gaps.filter(|gap| gap.iter().sum::<i64>() >= 0 && is_open(gap));
        match open.min_by_key(|gap| (gap.iter().any(|&g| g < 0), gap.iter().map(|g| g.abs()).sum::<i64>(), gap.clone()))
        {
            Some(gap) => basis.push(gap),
            None => break,
        }
    }
    let mut boxes: Vec<Box> = Vec::with_capacity(group.len());
    for summand in group {
        let (offsets, rest) = offsets_along(gap(first, summand), &basis);
        if rest.iter().any(|&r| r != 0) {
            return None;
        }
        let n = |step: &Coords| summand.reduce.iter().find(|r| r.1 == *step).map_or(1, |r| r.0);
        boxes.push(offsets.iter().zip(&basis).map(|(&o, step)| (o, o + n(step))).collect());
    }
    let boxes = along_fewest(boxes, &basis);
    let cut = rows_of(&boxes, 0)?;
    let summands = cut.into_iter().map(|cut| {
        let mut at = first.at.clone();
        for (&(low, _), step) in cut.iter().zip(&basis) {
            at.iter_mut().zip(step).for_each(|(a, s)| *a += low * s);
        }
        let long = cut.iter().zip(&basis).filter(|((low, high), _)| high - low > 1);
        let mut reduce = long.map(|((low, high), step)| (high - low, step.clone())).collect();
        tidy_steps(&mut reduce);
        Summand { at, reduce, ..first.clone() }
    });
    Some(summands.collect())
}

/// The boxes without the steps that others lead along as well: row by row, if rows of columns are columns of one long row.
/// As they are, if they become too many.
fn along_fewest(boxes: Vec<Box>, basis: &[Coords]) -> Vec<Box> {
    let times = |long: usize, short: usize| -> Option<i64> {
        let c = basis[short].iter().position(|&s| s != 0)?;
        let m = basis[long][c].checked_div(basis[short][c]).filter(|&m| m > 1)?;
        basis[long].iter().zip(&basis[short]).all(|(l, s)| *l == m * s).then_some(m)
    };
    let mut all = boxes.clone();
    for long in 0..basis.len() {
        let shortest = (0..basis.len()).filter_map(|short| times(long, short).map(|m| (m, short))).max();
        let Some((m, short)) = shortest else { continue };
        let n = all.iter().fold(0i64, |n, b| n.saturating_add(b[long].1 - b[long].0));
        if n > MAX_BOXES as i64 {
            return boxes;
        }
        let mut rows = Vec::with_capacity(n as usize);
        for one in &all {
            for k in one[long].0..one[long].1 {
                let mut row = one.clone();
                row[long] = (0, 1);
                row[short] = (one[short].0 + k * m, one[short].1 + k * m);
                rows.push(row);
            }
        }
        all = rows;
    }
    all
}

fn gap(first: &Summand, summand: &Summand) -> Coords {
    summand.at.iter().zip(&first.at).map(|(a, b)| a - b).collect()
}

/// How many of each step lead how far, and what is left.
fn offsets_along(mut gap: Coords, basis: &[Coords]) -> (Vec<i64>, Coords) {
    let mut order: Vec<usize> = (0..basis.len()).collect();
    order.sort_by(|&a, &b| basis[b].cmp(&basis[a]));
    let mut offsets = vec![0; basis.len()];
    for k in order {
        let Some(c) = basis[k].iter().position(|&s| s != 0) else { continue };
        offsets[k] = gap[c].div_euclid(basis[k][c]);
        gap.iter_mut().zip(&basis[k]).for_each(|(g, s)| *g -= offsets[k] * s);
    }
    (offsets, gap)
}

/// The boxes cut by rows from a dim on. `None` if they overlap.
fn rows_of(boxes: &[Box], dim: usize) -> Option<Vec<Box>> {
    let n_dims = boxes.first()?.len();
    if dim == n_dims {
        return (boxes.len() == 1).then(|| vec![Vec::new()]);
    }
    let mut borders: Vec<i64> = boxes.iter().flat_map(|b| [b[dim].0, b[dim].1]).collect();
    borders.sort();
    borders.dedup();
    let mut slabs: Vec<((i64, i64), Vec<Box>)> = Vec::new();
    for pair in borders.windows(2) {
        let within: Vec<Box> = boxes.iter().filter(|b| b[dim].0 <= pair[0] && pair[1] <= b[dim].1).cloned().collect();
        if within.is_empty() {
            continue;
        }
        let inner = rows_of(&within, dim + 1)?;
        match slabs.last_mut() {
            Some(((_, high), last)) if *high == pair[0] && *last == inner => *high = pair[1],
            Some(_) | None => slabs.push(((pair[0], pair[1]), inner)),
        }
    }
    let join = |range: (i64, i64), rest: Box| -> Box { std::iter::once(range).chain(rest).collect() };
    Some(slabs.into_iter().flat_map(|(range, inner)| inner.into_iter().map(move |rest| join(range, rest))).collect())
}

/// Makes `a` the sum of both, if that is one summand.
fn join(a: &mut Summand, b: &Summand) -> bool {
    if a.term != b.term || a.spread != b.spread || a.steps != b.steps || a.at == b.at {
        return false;
    }
    let gap: Coords = b.at.iter().zip(&a.at).map(|(b, a)| b - a).collect();
    let follows = |(n, step): &(i64, Coords)| gap.iter().zip(step).all(|(g, s)| *g == s * n);
    if a.reduce.len() == b.reduce.len() {
        let mut differing = (0..a.reduce.len()).filter(|&k| a.reduce[k] != b.reduce[k]);
        match (differing.next(), differing.next()) {
            (None, _) => match (0..a.reduce.len()).find(|&k| follows(&a.reduce[k])) {
                Some(k) => a.reduce[k].0 += b.reduce[k].0,
                None => return false,
            },
            (Some(k), None) if a.reduce[k].1 == b.reduce[k].1 && follows(&a.reduce[k]) => {
                a.reduce[k].0 += b.reduce[k].0;
            }
            (Some(_), _) => return false,
        }
    } else if a.reduce.len() == b.reduce.len() + 1 {
        let Some(k) = (0..a.reduce.len()).find(|&k| follows(&a.reduce[k])) else { return false };
        let others = (0..a.reduce.len()).filter(|&i| i != k).map(|i| &a.reduce[i]);
        if !others.eq(b.reduce.iter()) {
            return false;
        }
        a.reduce[k].0 += 1;
    } else if b.reduce.len() == a.reduce.len() + 1 {
        // The first step of a run that the second goes on with.
        let Some(k) = (0..b.reduce.len()).find(|&k| gap == b.reduce[k].1) else { return false };
        let others = (0..b.reduce.len()).filter(|&i| i != k).map(|i| &b.reduce[i]);
        if !others.eq(a.reduce.iter()) {
            return false;
        }
        a.reduce = b.reduce.clone();
        a.reduce[k].0 += 1;
    } else {
        return false;
    }
    tidy_steps(&mut a.reduce);
    true
}
