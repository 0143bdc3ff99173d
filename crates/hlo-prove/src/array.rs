//! Arrays: what a value is on each device, as interned lists of segments.

use crate::devices::Classes;
use crate::segment::{Coords, Region, Segment, normalize, refine, region_between};
use crate::store::{Segments, Store};
use crate::term::{ArrayId, Node, Place, TermId, Terms};
use hashbrown::{HashMap, HashSet};
use hlo_ir::DType;
use std::rc::Rc;

/// How many terms are compared below two terms that differ.
const MAX_COMPARED: usize = 2000;

/// A value's elements on each device.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Value {
    /// The same list everywhere; its terms may still differ by device.
    Same(ArrayId),
    /// A list for each device.
    Each(Rc<[ArrayId]>),
}

/// A value of any shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Tree {
    Leaf(Value),
    Tuple(Rc<Vec<Tree>>),
}

impl Tree {
    /// The leaves, depth first.
    pub(crate) fn leaves(&self) -> Vec<Value> {
        let mut out = Vec::new();
        self.push_leaves(&mut out);
        out
    }

    fn push_leaves(&self, out: &mut Vec<Value>) {
        match self {
            Tree::Leaf(value) => out.push(value.clone()),
            Tree::Tuple(elements) => elements.iter().for_each(|e| e.push_leaves(out)),
        }
    }

    /// A value of the same shape with other leaves.
    pub(crate) fn with_leaves(&self, leaves: &mut impl Iterator<Item = Value>) -> Option<Tree> {
        Some(match self {
            Tree::Leaf(_) => Tree::Leaf(leaves.next()?),
            Tree::Tuple(elements) => {
                let elements: Option<Vec<Tree>> = elements.iter().map(|e| e.with_leaves(leaves)).collect();
                Tree::Tuple(Rc::new(elements?))
            }
        })
    }
}

/// Interned arrays, over the terms.
pub(crate) struct Arrays {
    pub(crate) terms: Terms,
    lists: Store,
    /// The long list that was last read, of which parts are taken one after the other.
    last_long: Option<(ArrayId, Rc<Segments>)>,
}

/// Lists of more numbers than this are long.
const N_LONG: usize = 512;

impl Arrays {
    pub(crate) fn new(n_devices: usize) -> Arrays {
        Arrays { terms: Terms::new(n_devices), lists: Store::new(), last_long: None }
    }

    pub(crate) fn n_devices(&self) -> usize {
        self.terms.devices.n
    }

    pub(crate) fn segments(&self, array: ArrayId) -> Segments {
        self.lists.segments(array)
    }

    /// The array of these segments.
    pub(crate) fn intern(&mut self, mut segments: Vec<Segment>) -> ArrayId {
        normalize(&mut segments);
        if let [only] = segments.as_mut_slice() {
            self.fix(only);
        }
        self.lists.intern(&segments)
    }

    /// A term that stays at one element for several places is a number.
    fn fix(&mut self, segment: &mut Segment) {
        let rank = self.terms.rank(segment.term);
        let is_still = segment.region.dims.iter().all(|d| d.n == 1 || d.step[1..].iter().all(|&s| s == 0));
        // One element of a shard stays where it is: the others' elements are beside it.
        let is_table = matches!(self.terms.node(segment.term), Node::Table(_) | Node::Iota(_));
        if rank == 0 || !is_still || (segment.region.n_elems() == 1 && !is_table) {
            return;
        }
        let term = self.terms.element(segment.term, &segment.region.at[1..]);
        segment.term = term;
        segment.region.at.truncate(1);
        segment.region.dims.iter_mut().for_each(|d| d.step.truncate(1));
    }

    /// A value from what each device has.
    pub(crate) fn value(&self, each: Vec<ArrayId>) -> Value {
        match each.first() {
            Some(&first) if each.iter().all(|&id| id == first) => Value::Same(first),
            Some(_) | None => Value::Each(each.into()),
        }
    }

    pub(crate) fn on(&self, value: &Value, device: usize) -> ArrayId {
        match value {
            Value::Same(id) => *id,
            Value::Each(ids) => ids[device],
        }
    }

    /// The whole of a leaf term.
    pub(crate) fn whole(&mut self, term: TermId, n_elems: i64) -> ArrayId {
        if n_elems == 0 {
            return self.intern(Vec::new());
        }
        if self.terms.rank(term) == 0 {
            let segment = self.terms.splat(term, n_elems);
            return self.intern(vec![segment]);
        }
        let mut region = Region::line(n_elems);
        region.at.push(0);
        region.dims.iter_mut().for_each(|d| d.step.push(1));
        self.intern(vec![Segment { term, region }])
    }

    /// The elements of an array at these places.
    pub(crate) fn view(&mut self, array: ArrayId, dims: &[i64], start: i64, steps: &[i64]) -> Option<ArrayId> {
        if dims.contains(&0) {
            return Some(self.intern(Vec::new()));
        }
        let region = region_between(dims, start, steps);
        self.take(array, region).map(|segments| self.intern(segments))
    }

    /// The elements that a region says: its place, then the place in the array.
    pub(crate) fn take(&mut self, array: ArrayId, region: Region) -> Option<Vec<Segment>> {
        let source = match &self.last_long {
            Some((last, segments)) if *last == array => Rc::clone(segments),
            Some(_) | None => Rc::new(self.segments(array)),
        };
        if self.lists.n_numbers(array) > N_LONG {
            self.last_long = Some((array, Rc::clone(&source)));
        }
        let parts = refine(&source, region, 1)?;
        Some(parts.into_iter().map(|(k, region)| Segment { term: source[k].term, region: region.without(1) }).collect())
    }

    /// The only number of an array that is one number everywhere.
    pub(crate) fn as_integer(&self, array: ArrayId) -> Option<i64> {
        match self.segments(array).as_slice() {
            [segment] => self.terms.as_integer(segment.term),
            _ => None,
        }
    }

    /// Regions that lie in one segment of each array, with the segments' terms; the coordinates follow in that order.
    pub(crate) fn align(&self, arrays: &[ArrayId], n_elems: i64) -> Option<Vec<(Vec<TermId>, Region)>> {
        let mut out: Vec<(Vec<TermId>, Region)> = Vec::new();
        let mut lists = arrays.iter().map(|&id| self.segments(id));
        match lists.next() {
            None => out.push((Vec::new(), Region::line(n_elems))),
            Some(first) => out.extend(first.into_iter().map(|s| (vec![s.term], s.region))),
        }
        for list in lists {
            if let ([(terms, region)], [segment]) = (out.as_mut_slice(), list.as_slice())
                && extend_in_step(region, &segment.region)
            {
                terms.push(segment.term);
                continue;
            }
            let mut next = Vec::with_capacity(out.len());
            for (terms, region) in out {
                for (k, mut part) in refine(&list, region, 0)? {
                    part.dims.retain(|dim| dim.n != 1);
                    let mut terms = terms.clone();
                    terms.push(list[k].term);
                    next.push((terms, part));
                }
            }
            out = next;
        }
        // A term that is made for many dims serves fewer as well, not the other way round.
        if out.len() > 1 {
            out.sort_by_key(|(_, region)| std::cmp::Reverse(region.dims.len()));
        }
        Some(out)
    }

    /// The regions of which the elements of two arrays are not the same terms at the same coordinates, with the terms.
    /// `None` if the arrays have too many parts to tell.
    pub(crate) fn differences(&mut self, a: ArrayId, b: ArrayId) -> Option<Vec<(Vec<TermId>, Region)>> {
        if a == b {
            return Some(Vec::new());
        }
        let n = self.segments(a).iter().map(|s| s.region.n_elems()).sum();
        let mut parts = self.align(&[a, b], n)?;
        parts.retain(|(terms, region)| !self.is_same(terms, region));
        Some(parts)
    }

    /// Whether two terms are the same in a region that has the coordinates of both.
    fn is_same(&mut self, terms: &[TermId], region: &Region) -> bool {
        let rank = self.terms.rank(terms[0]);
        let side = |term: TermId, from: usize, rank: usize| Place {
            term,
            at: part(&region.at, from, rank),
            steps: region.dims.iter().map(|d| part(&d.step, from, rank)).collect(),
        };
        let expected = side(terms[0], 1, rank);
        let found = side(terms[1], 1 + rank, region.at.len() - 1 - rank);
        self.terms.is_same(&expected, &found, &mut MAX_COMPARED.clone())
    }

    /// Whether two arrays are the same elements, as far as can be told.
    fn are_same(&mut self, a: ArrayId, b: ArrayId) -> bool {
        let n = self.segments(a).iter().map(|s| s.region.n_elems()).sum();
        a == b
            || self
                .align(&[a, b], n)
                .is_some_and(|parts| parts.iter().all(|(terms, region)| self.is_same(terms, region)))
    }

    /// Whether two values are the same elements on every device, however they are cut into segments.
    pub(crate) fn is_equal(&mut self, a: &Value, b: &Value) -> bool {
        let n_devices = match (a, b) {
            (Value::Same(_), Value::Same(_)) => 1,
            (_, _) => self.n_devices(),
        };
        let mut equal: HashSet<(ArrayId, ArrayId)> = HashSet::new();
        a == b
            || (0..n_devices).all(|d| {
                let (a, b) = (self.on(a, d), self.on(b, d));
                !equal.insert((a, b)) || self.are_same(a, b)
            })
    }

    /// Which devices hold equal values.
    pub(crate) fn classes(&mut self, value: &Value) -> Classes {
        match value {
            Value::Same(id) => self.classes_of_array(*id),
            Value::Each(ids) => {
                let mut own: HashMap<ArrayId, Classes> = HashMap::new();
                for &id in ids.iter() {
                    if !own.contains_key(&id) {
                        let classes = self.classes_of_array(id);
                        own.insert(id, classes);
                    }
                }
                let keys: Vec<(ArrayId, u32)> =
                    ids.iter().enumerate().map(|(d, &id)| (id, self.terms.devices.rep(own[&id], d))).collect();
                self.terms.devices.classes_by(keys)
            }
        }
    }

    pub(crate) fn classes_of_array(&mut self, array: ArrayId) -> Classes {
        let mut classes = Classes::ALL_EQUAL;
        for segment in self.segments(array).iter() {
            let own = self.terms.classes(segment.term);
            classes = self.terms.devices.join(classes, own);
        }
        classes
    }

    /// A value that is one number of an integer type on each device.
    pub(crate) fn numbers(&mut self, dtype: DType, numbers: impl Iterator<Item = i64>) -> Value {
        let each: Vec<ArrayId> = numbers
            .map(|number| {
                let term = self.terms.integer(dtype, number);
                self.whole(term, 1)
            })
            .collect();
        self.value(each)
    }
}

/// Adds the coordinates of a segment with the same places.
fn extend_in_step(region: &mut Region, segment: &Region) -> bool {
    let is_equal = region.at[0] == segment.at[0]
        && region.dims.len() == segment.dims.len()
        && region.dims.iter().zip(&segment.dims).all(|(a, b)| a.n == b.n && a.step[0] == b.step[0]);
    if is_equal {
        region.at.extend_from_slice(&segment.at[1..]);
        for (dim, other) in region.dims.iter_mut().zip(&segment.dims) {
            dim.step.extend_from_slice(&other.step[1..]);
        }
    }
    is_equal
}

/// The coordinates of one argument within a region that has those of several.
pub(crate) fn part(coords: &Coords, from: usize, rank: usize) -> Coords {
    Coords::from_slice(&coords[from..from + rank])
}
