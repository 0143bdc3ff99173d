//! What the leaves of the second module's loop may be of the first's: guesses, which an iteration confirms or refutes.

use crate::array::Value;
use crate::control::{Guess, Loop};
use crate::elementwise::places;
use crate::prover::Prover;
use crate::segment::{Coords, Dim, Region};
use crate::term::{ArrayId, LoopId, TermId};
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use std::rc::Rc;

/// A part of the first module's leaves: for each device regions of places and of places in a leaf.
pub(crate) type Parts = Rc<Vec<Vec<(usize, Region)>>>;

/// In the place of a leaf's number: these elements are the second loop's own, as the padding of shards is.
const OWN: usize = usize::MAX;

/// How many candidates of a leaf are tried.
const MAX_CANDIDATES: usize = 8;

/// After so many devices of which no part holds, none is looked for on the others: padding is on the last devices.
const MAX_HOPELESS: usize = 8;

impl Prover {
    /// For each leaf what it may be of the first loop's leaves, the best last.
    pub(crate) fn candidates(&mut self, this: &Loop<'_, '_>, inits: &[Value]) -> Vec<Vec<Parts>> {
        let mut by_value: HashMap<&Value, Vec<usize>> = HashMap::new();
        for (i, init) in inits.iter().enumerate() {
            by_value.entry(init).or_default().push(i);
        }
        let by_term = self.leaves_of_terms(inits);
        let mut taken: HashSet<usize> = HashSet::new();
        let mut out = Vec::with_capacity(this.inits.len());
        for (k, init) in this.inits.iter().enumerate() {
            let mut queue: Vec<Parts> = Vec::new();
            let equal = by_value.get(init).cloned().unwrap_or_default();
            let start = equal.iter().position(|i| !taken.contains(i)).unwrap_or(0);
            let whole = |i: usize| -> Parts {
                let mut region = Region::line(this.types[k].0);
                region.at.push(0);
                region.dims.iter_mut().for_each(|d| d.step.push(1));
                Rc::new(vec![vec![(i, region)]])
            };
            // Leaves with the same start, those that no other leaf was taken for first.
            for j in (0..equal.len().min(MAX_CANDIDATES)).rev() {
                queue.push(whole(equal[(start + j) % equal.len()]));
            }
            if let Some(&first) = equal.get(start) {
                taken.insert(first);
            } else {
                // Where they were found is a guess, until the elements there are these.
                let mut found: Vec<Parts> =
                    (0..MAX_CANDIDATES).map_while(|nth| self.locate(init, inits, &by_term, nth)).collect();
                found.retain(|parts| {
                    let start = self.compose(parts, inits, Some(init));
                    start.is_some_and(|start| self.arrays.is_equal(&start, init))
                });
                let leaf_of = |parts: &Parts| parts.iter().flatten().map(|part| part.0).find(|&leaf| leaf != OWN);
                found.sort_by_key(|parts| leaf_of(parts).is_some_and(|leaf| taken.contains(&leaf)));
                taken.extend(found.first().and_then(leaf_of));
                queue.extend(found.into_iter().rev());
            }
            out.push(queue);
        }
        out
    }

    pub(crate) fn first_guesses(&mut self, this: &Loop<'_, '_>, queues: &mut [Vec<Parts>]) -> Vec<Guess> {
        let mut guesses = Vec::with_capacity(queues.len());
        for (k, queue) in queues.iter_mut().enumerate() {
            guesses.push(match queue.pop() {
                Some(parts) => Guess::Part(parts),
                None => {
                    let value = this.inits[k].clone();
                    Guess::Own(self.arrays.classes(&value))
                }
            });
        }
        guesses
    }

    /// Gives up what does not hold at the start.
    pub(crate) fn check_starts(&mut self, this: &Loop<'_, '_>, inits: &[Value], guesses: &mut [Guess]) {
        for (k, guess) in guesses.iter_mut().enumerate() {
            let Guess::Part(parts) = guess else { continue };
            let start = self.compose(parts, inits, Some(&this.inits[k]));
            if !start.is_some_and(|start| self.arrays.is_equal(&start, &this.inits[k])) {
                let value = this.inits[k].clone();
                *guess = Guess::Own(self.arrays.classes(&value));
            }
        }
    }

    /// For leaves without a candidate, those by where their elements stand after an iteration of unknown numbers.
    pub(crate) fn candidates_of_probe(
        &mut self,
        this: &mut Loop<'_, '_>,
        id: LoopId,
        before: &[Value],
        probed: &[Value],
        queues: &mut [Vec<Parts>],
    ) -> Option<()> {
        if queues.iter().all(|queue| !queue.is_empty()) {
            return None;
        }
        let guesses = self.first_guesses(this, &mut queues.to_vec());
        let mut carries = vec![None; guesses.len()];
        let params = self.params(this, id, crate::control::MAX_ROUNDS, &guesses, Some(before), &mut carries)?;
        let own = self.probe(this, &params)?;
        let by_term = self.leaves_of_terms(probed);
        for (k, queue) in queues.iter_mut().enumerate() {
            if queue.is_empty() {
                queue.extend(self.locate(&own[k], probed, &by_term, 0));
            }
        }
        Some(())
    }

    /// In which leaves each term stands.
    fn leaves_of_terms(&self, values: &[Value]) -> HashMap<TermId, Vec<usize>> {
        let mut by_term: HashMap<TermId, Vec<usize>> = HashMap::new();
        for (i, value) in values.iter().enumerate() {
            let n_lists = match value {
                Value::Same(_) => 1,
                Value::Each(ids) => ids.len(),
            };
            for device in 0..n_lists {
                for segment in self.arrays.segments(self.arrays.on(value, device)).iter() {
                    let list = by_term.entry(segment.term).or_default();
                    if list.last() != Some(&i) {
                        list.push(i);
                    }
                }
            }
        }
        by_term
    }

    /// Where the elements of a value stand in the first loop's leaves at the start.
    fn locate(
        &self,
        value: &Value,
        inits: &[Value],
        by_term: &HashMap<TermId, Vec<usize>>,
        nth: usize,
    ) -> Option<Parts> {
        let mut each = Vec::new();
        for device in 0..self.n_devices() {
            let mut parts = Vec::new();
            for segment in self.arrays.segments(self.arrays.on(value, device)).iter() {
                // One number at several places does not say where it stood: it may be the padding of a shard.
                let is_number = self.arrays.terms.as_constant(segment.term).is_some();
                let is_padding = segment.region.n_elems() > 1 || is_number && !by_term.contains_key(&segment.term);
                if self.arrays.terms.rank(segment.term) == 0 && is_padding {
                    let mut region = places(&segment.region);
                    region.at.push(region.at[0]);
                    region.dims.iter_mut().for_each(|d| d.step.push(d.step[0]));
                    parts.push((OWN, region));
                    continue;
                }
                let mut found = by_term.get(&segment.term)?.iter().filter_map(|&i| {
                    let list = self.arrays.segments(self.arrays.on(&inits[i], device));
                    let within = list.iter().filter(|s| s.term == segment.term);
                    within.filter_map(|s| place_within(&segment.region, &s.region)).next().map(|region| (i, region))
                });
                parts.push(found.nth(nth)?);
            }
            each.push(parts);
        }
        is_mostly_found(&each).then(|| Rc::new(each))
    }

    /// The parts of which the elements are as expected; the others become the loop's own. `None` if no part is left.
    pub(crate) fn parts_that_hold(&mut self, parts: &Parts, expected: &Value, found: &Value) -> Option<Parts> {
        let mut each = Vec::with_capacity(self.n_devices());
        let mut any_holds = false;
        for device in 0..self.n_devices() {
            let mut list = parts.get(if parts.len() == 1 { 0 } else { device })?.clone();
            let (a, b) = (self.arrays.on(expected, device), self.arrays.on(found, device));
            for (_, region) in self.arrays.differences(a, b)? {
                let part = list.iter_mut().find(|(_, r)| r.holds_place(region.at[0]))?;
                part.0 = OWN;
                // The loop's own elements are where they are.
                part.1.at[1] = part.1.at[0];
                part.1.dims.iter_mut().for_each(|d| d.step[1] = d.step[0]);
            }
            any_holds |= list.iter().any(|(leaf, _)| *leaf != OWN);
            if !any_holds && device >= MAX_HOPELESS {
                return None;
            }
            each.push(list);
        }
        is_mostly_found(&each).then(|| Rc::new(each))
    }

    /// The parts of leaves as a value; the elements of `own` are the second loop's.
    pub(crate) fn compose(&mut self, parts: &Parts, leaves: &[Value], own: Option<&Value>) -> Option<Value> {
        if let [only] = parts.as_slice()
            && let [(leaf, region)] = only.as_slice()
        {
            // The whole of one leaf.
            if *leaf != OWN && region.at.iter().all(|&a| a == 0) && region.dims.iter().all(|d| d.step[..] == [1, 1]) {
                return leaves.get(*leaf).cloned();
            }
        }
        let mut known: HashMap<(Vec<ArrayId>, usize), ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let list_idx = if parts.len() == 1 { 0 } else { device };
            let list = parts.get(list_idx)?;
            let of_leaf = |&(leaf, _): &(usize, Region)| if leaf == OWN { own } else { leaves.get(leaf) };
            let arrays: Vec<ArrayId> =
                list.iter().map(|part| of_leaf(part).map(|v| self.arrays.on(v, device))).collect::<Option<_>>()?;
            if let Some(&id) = known.get(&(arrays.clone(), list_idx)) {
                each.push(id);
                continue;
            }
            let mut segments = Vec::new();
            for (&array, (_, region)) in arrays.iter().zip(list) {
                segments.extend(self.arrays.take(array, region.clone())?);
            }
            let id = self.arrays.intern(segments);
            known.insert((arrays, list_idx), id);
            each.push(id);
        }
        Some(self.arrays.value(each))
    }
}

/// Whether no more than half of the elements are a loop's own, on devices that have others: padding is less than that, but some
/// devices have nothing else.
fn is_mostly_found(each: &[Vec<(usize, Region)>]) -> bool {
    let (mut n_own, mut n_found) = (0i64, 0i64);
    for parts in each.iter().filter(|parts| parts.iter().any(|(leaf, _)| *leaf != OWN)) {
        for (leaf, region) in parts {
            *(if *leaf == OWN { &mut n_own } else { &mut n_found }) += region.n_elems();
        }
    }
    n_found > 0 && n_own <= n_found
}

/// Places and places in the other region's array, for a region whose coordinates lie within the other.
fn place_within(region: &Region, whole: &Region) -> Option<Region> {
    let gap: Coords = region.at.iter().zip(&whole.at).skip(1).map(|(a, b)| a - b).collect();
    let start = steps_to(&gap, whole, true)?;
    let mut dims: SmallVec<[Dim; 2]> = SmallVec::new();
    for dim in &region.dims {
        let step = Coords::from_slice(&dim.step[1..]);
        let along = steps_to(&step, whole, false)?;
        dims.push(Dim { n: dim.n, step: Coords::from_slice(&[dim.step[0], along]) });
    }
    Some(Region { at: Coords::from_slice(&[region.at[0], whole.at[0] + start]), dims })
}

/// How many places further an array of the region's shape has what is this much further in coordinates.
fn steps_to(gap: &[i64], whole: &Region, is_bounded: bool) -> Option<i64> {
    let mut rest = Coords::from_slice(gap);
    let mut places = 0;
    let mut dims: Vec<&Dim> = whole.dims.iter().collect();
    dims.sort_by(|a, b| b.step[1..].cmp(&a.step[1..]));
    for dim in dims {
        let Some(c) = (1..dim.step.len()).find(|&c| dim.step[c] != 0) else { continue };
        let n = rest[c - 1].div_euclid(dim.step[c]);
        if is_bounded && !(0..dim.n).contains(&n) {
            return None;
        }
        places += n * dim.step[0];
        for (r, s) in rest.iter_mut().zip(&dim.step[1..]) {
            *r -= n * s;
        }
    }
    rest.iter().all(|&r| r == 0).then_some(places)
}
