//! Strided segments: which part of an array is which part of a term.
//!
//! An array of `n` elements is a list of [`Segment`]s. A segment takes some places of the array, in row-major order, and
//! says at which coordinates of its term the elements are. Both are affine in the segment's own dims, so a slice, a shard
//! of any dim, a transpose and a broadcast are one segment each. What moves elements is [`refine`], and nothing else.

use crate::ids::TermId;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

/// A place in the array, then coordinates of one or several terms.
pub(crate) type Coords = SmallVec<[i64; 4]>;

/// One dim of a segment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Dim {
    /// Number of steps.
    pub n: i64,
    /// What one step adds to the place and to each coordinate.
    pub step: Coords,
}

/// A box of places and the coordinates that go with them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// Place and coordinates of the first element.
    pub at: Coords,
    /// The dims; the order has no meaning until [`normalize`] sorts them.
    pub dims: SmallVec<[Dim; 2]>,
}

/// A part of an array that is a part of a term.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub term: TermId,
    /// Coordinate 0 is the place in the array; the others are the term's.
    pub region: Region,
}

/// More pieces than this and a value is taken as a whole.
pub(crate) const MAX_SEGMENTS: usize = 4096;

impl Hash for Region {
    /// Number by number: as slices of bytes, as derived, so few numbers take several times as long.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.at.iter().for_each(|&at| state.write_i64(at));
        for dim in &self.dims {
            state.write_i64(dim.n);
            dim.step.iter().for_each(|&step| state.write_i64(step));
        }
    }
}

impl Region {
    /// The places `0..n`, one after another.
    pub(crate) fn line(n: i64) -> Region {
        let mut dims = SmallVec::new();
        if n != 1 {
            dims.push(Dim { n, step: Coords::from_slice(&[1]) });
        }
        Region { at: Coords::from_slice(&[0]), dims }
    }

    pub(crate) fn n_elems(&self) -> i64 {
        self.dims.iter().map(|dim| dim.n).product()
    }

    /// The elements before step `n` of dim `dim_idx`, and those from there on.
    pub(crate) fn split(mut self, dim_idx: usize, n: i64) -> (Region, Region) {
        let mut rest = self.clone();
        let dim = &mut self.dims[dim_idx];
        for (at, step) in rest.at.iter_mut().zip(&dim.step) {
            *at += step * n;
        }
        rest.dims[dim_idx].n = dim.n - n;
        dim.n = n;
        (self, rest)
    }

    /// Dim `dim_idx` as two: steps of `inner` elements, and the elements within.
    fn factor(&mut self, dim_idx: usize, inner: i64) {
        let dim = &mut self.dims[dim_idx];
        let outer = Dim { n: dim.n / inner, step: dim.step.iter().map(|s| s * inner).collect() };
        dim.n = inner;
        self.dims.push(outer);
    }

    /// Turns dims around so that their steps of coordinate `key` are not negative.
    fn turn(&mut self, key: usize) {
        for dim in &mut self.dims {
            if dim.step[key] < 0 {
                for (at, step) in self.at.iter_mut().zip(&mut dim.step) {
                    *at += *step * (dim.n - 1);
                    *step = -*step;
                }
            }
        }
    }

    /// Drops dims of one step, sorts by place, joins dims that follow one another.
    pub(crate) fn normalize(&mut self) {
        self.dims.retain(|dim| dim.n != 1);
        if self.dims.len() == 1 && self.dims[0].step[0] > 0 {
            return;
        }
        self.turn(0);
        self.dims.sort_by(|a, b| b.step.cmp(&a.step));
        let mut k = 0;
        while k + 1 < self.dims.len() {
            let (outer, inner) = (&self.dims[k], &self.dims[k + 1]);
            if outer.step.iter().zip(&inner.step).all(|(o, i)| *o == i * inner.n) {
                self.dims[k + 1].n *= outer.n;
                self.dims.remove(k);
            } else {
                k += 1;
            }
        }
    }

    /// Whether a place is one of the region's.
    pub(crate) fn holds_place(&self, place: i64) -> bool {
        let mut sorted = self.clone();
        sorted.normalize();
        place >= sorted.at[0] && digits_of(&sorted, place).is_some()
    }

    /// The region with coordinate `key` left out.
    pub(crate) fn without(mut self, key: usize) -> Region {
        self.at.remove(key);
        for dim in &mut self.dims {
            dim.step.remove(key);
        }
        self
    }
}

/// The parts of a region, each with the segment of `source` that holds it; the coordinates of that segment's term follow
/// those that the region has. Coordinate `key` of the region is the place in the source.
/// `None` if the parts are too many or the source does not cover the region.
pub(crate) fn refine(source: &[Segment], region: Region, key: usize) -> Option<Vec<(usize, Region)>> {
    let mut out = Vec::new();
    let mut todo = vec![region];
    while let Some(mut region) = todo.pop() {
        region.turn(key);
        if out.len() + todo.len() > MAX_SEGMENTS {
            return None;
        }
        let (segment_idx, digits) = find_segment(source, region.at[key])?;
        let segment = &source[segment_idx];
        match fit(&segment.region, &digits, &mut region, key) {
            Fit::Whole(levels) => out.push((segment_idx, extend(region, &segment.region, &digits, &levels))),
            Fit::Factored => todo.push(region),
            Fit::Split(dim_idx, n) => {
                let (first, rest) = region.split(dim_idx, n);
                todo.push(rest);
                todo.push(first);
            }
        }
    }
    Some(out)
}

/// The segment that holds a place, and the place's steps along the segment's dims.
fn find_segment(source: &[Segment], place: i64) -> Option<(usize, SmallVec<[i64; 4]>)> {
    // Segments are sorted by their first place; the last that begins before the place is the first to look at.
    let mut k = source.partition_point(|s| s.region.at[0] <= place);
    while k > 0 {
        k -= 1;
        if let Some(digits) = digits_of(&source[k].region, place) {
            return Some((k, digits));
        }
    }
    None
}

fn digits_of(region: &Region, place: i64) -> Option<SmallVec<[i64; 4]>> {
    let mut rest = place - region.at[0];
    let mut digits = SmallVec::new();
    for dim in &region.dims {
        let digit = rest.div_euclid(dim.step[0]);
        if digit >= dim.n {
            return None;
        }
        rest -= digit * dim.step[0];
        digits.push(digit);
    }
    (rest == 0).then_some(digits)
}

/// How a region lies in a segment that holds its first place.
enum Fit {
    /// All of it is there; for each dim the segment's dim that it goes along, and how many steps at once.
    Whole(SmallVec<[(usize, i64); 4]>),
    /// A dim was made two; look again.
    Factored,
    /// Not all of it: cut this dim here.
    Split(usize, i64),
}

fn fit(segment: &Region, digits: &[i64], region: &mut Region, key: usize) -> Fit {
    let mut levels: SmallVec<[(usize, i64); 4]> = SmallVec::from_elem((usize::MAX, 0), region.dims.len());
    let mut used: SmallVec<[i64; 4]> = SmallVec::from_slice(digits);
    let mut order: SmallVec<[usize; 4]> = (0..region.dims.len()).collect();
    order.sort_by_key(|&j| region.dims[j].step[key]);
    for (nth, &j) in order.iter().enumerate() {
        let (n, step) = (region.dims[j].n, region.dims[j].step[key]);
        if step == 0 || n <= 1 {
            continue;
        }
        let Some(k) = segment.dims.iter().position(|d| d.step[0] <= step) else { return Fit::Split(j, 1) };
        let level = &segment.dims[k];
        if step % level.step[0] != 0 {
            return Fit::Split(j, 1);
        }
        let m = step / level.step[0];
        let room = (level.n - used[k] + m - 1) / m;
        if n <= room {
            used[k] += m * (n - 1);
            levels[j] = (k, m);
            continue;
        }
        let up = k.checked_sub(1).map(|up| segment.dims[up].step[0]);
        let extent = segment.dims.iter().map(|d| d.step[0] * (d.n - 1)).sum();
        if let Some(first) = apart(region, &order[nth + 1..], key, extent, up) {
            return first;
        }
        return match up {
            Some(up) if up % step == 0 && up / step < n => {
                let inner = up / step;
                let phase = digits[k..].iter().zip(&segment.dims[k..]).map(|(d, dim)| d * dim.step[0]).sum::<i64>();
                if phase == 0 && n % inner == 0 {
                    region.factor(j, inner);
                    Fit::Factored
                } else if phase == 0 {
                    Fit::Split(j, n / inner * inner)
                } else {
                    Fit::Split(j, ((up - phase) / step).clamp(1, n - 1))
                }
            }
            Some(_) | None => Fit::Split(j, room.max(1)),
        };
    }
    Fit::Whole(levels)
}

/// Takes a dim apart whose steps begin in other segments, which begin `extent` places further, or at different places of rows
/// of so many elements: each of them is cut elsewhere, and a cut for one would cut them all. Steps that begin at the same place
/// of a row stay together.
fn apart(region: &mut Region, outer: &[usize], key: usize, extent: i64, row: Option<i64>) -> Option<Fit> {
    let step_of = |dim_idx: usize| region.dims[dim_idx].step[key];
    let outer = || outer.iter().copied().filter(|&dim_idx| region.dims[dim_idx].n > 1);
    if let Some(dim_idx) = outer().find(|&dim_idx| step_of(dim_idx) > extent) {
        return Some(Fit::Split(dim_idx, 1));
    }
    let row = row?;
    let dim_idx = outer().find(|&dim_idx| step_of(dim_idx) % row != 0)?;
    let (n, step) = (region.dims[dim_idx].n, step_of(dim_idx));
    let (mut gcd, mut rest) = (row, step % row);
    while rest != 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    let period = row / gcd;
    Some(if n <= period {
        Fit::Split(dim_idx, 1)
    } else if n % period == 0 {
        region.factor(dim_idx, period);
        Fit::Factored
    } else {
        Fit::Split(dim_idx, n / period * period)
    })
}

/// The region with the coordinates of the segment that holds it.
fn extend(mut region: Region, segment: &Region, digits: &[i64], levels: &[(usize, i64)]) -> Region {
    for c in 1..segment.at.len() {
        let along: i64 = digits.iter().zip(&segment.dims).map(|(d, dim)| d * dim.step[c]).sum();
        region.at.push(segment.at[c] + along);
        for (dim, &(k, m)) in region.dims.iter_mut().zip(levels) {
            let step = if m == 0 { 0 } else { m * segment.dims[k].step[c] };
            dim.step.push(step);
        }
    }
    region
}

/// Sorts segments by place and joins those that go on where another ends.
pub(crate) fn normalize(segments: &mut Vec<Segment>) {
    for segment in segments.iter_mut() {
        segment.region.normalize();
    }
    if segments.len() < 2 {
        return;
    }
    segments.sort_by(|a, b| a.region.at.cmp(&b.region.at));
    loop {
        let before = segments.len();
        if before == 1 {
            return;
        }
        let mut out: Vec<Segment> = Vec::with_capacity(before);
        for segment in segments.drain(..) {
            // What goes on a segment is seldom far behind it.
            let start = out.len().saturating_sub(8);
            match out[start..].iter_mut().rev().find_map(|o| join(o, &segment)) {
                Some(()) => {}
                None => out.push(segment),
            }
        }
        *segments = out;
        if segments.len() == before {
            break;
        }
    }
    add_dims(segments);
}

/// Makes one segment of all that have a term, if they lie side by side at equal distances: columns, one from each device.
fn add_dims(segments: &mut Vec<Segment>) {
    let mut by_term: Vec<usize> = (0..segments.len()).collect();
    by_term.sort_by_key(|&k| (segments[k].term, k));
    let mut gone = vec![false; segments.len()];
    let mut grown: Vec<(usize, Dim)> = Vec::new();
    for group in by_term.chunk_by(|&a, &b| segments[a].term == segments[b].term) {
        let [first, second, ..] = group else { continue };
        let gap = |a: usize, b: usize| -> Coords {
            segments[b].region.at.iter().zip(&segments[a].region.at).map(|(b, a)| b - a).collect()
        };
        let step = gap(*first, *second);
        let dims = &segments[*first].region.dims;
        let n = group.len() as i64;
        let is_even =
            group.windows(2).all(|pair| segments[pair[1]].region.dims == *dims && gap(pair[0], pair[1]) == step);
        // Two that lie against each other's direction are no dim: it would run both ways.
        if is_even && step.iter().all(|&s| s >= 0) && lies_beside(dims, step[0], n) {
            grown.push((*first, Dim { n, step }));
            group[1..].iter().for_each(|&k| gone[k] = true);
        }
    }
    for (k, dim) in grown {
        segments[k].region.dims.push(dim);
        segments[k].region.normalize();
    }
    let mut k = 0;
    segments.retain(|_| {
        k += 1;
        !gone[k - 1]
    });
}

/// Makes `a` the union of both, if that is one segment.
fn join(a: &mut Segment, b: &Segment) -> Option<()> {
    if a.term != b.term || a.region.at.len() != b.region.at.len() {
        return None;
    }
    let gap: Coords = b.region.at.iter().zip(&a.region.at).map(|(b, a)| b - a).collect();
    let (da, db) = (&a.region.dims, &b.region.dims);
    // Along a dim that both have.
    if da.len() == db.len() {
        let mut differing = (0..da.len()).filter(|&k| da[k] != db[k]);
        let along = match (differing.next(), differing.next()) {
            (None, _) => (0..da.len()).find(|&k| follows(&gap, &da[k])),
            (Some(k), None) if da[k].step == db[k].step && follows(&gap, &da[k]) => Some(k),
            (Some(_), _) => None,
        };
        if let Some(k) = along {
            a.region.dims[k].n += db[k].n;
            a.region.normalize();
            return Some(());
        }
    }
    // One more step along the outermost dim.
    if da.len() == db.len() + 1 {
        let k = (0..da.len()).find(|&k| follows(&gap, &da[k]))?;
        let others = (0..da.len()).filter(|&i| i != k).map(|i| &da[i]);
        if others.eq(db.iter()) {
            a.region.dims[k].n += 1;
            a.region.normalize();
            return Some(());
        }
    }
    // The first step of a dim that the second has.
    if db.len() == da.len() + 1 {
        let k = (0..db.len()).find(|&k| gap == db[k].step)?;
        let others = (0..db.len()).filter(|&i| i != k).map(|i| &db[i]);
        if others.eq(da.iter()) {
            a.region.dims = db.clone();
            a.region.dims[k].n += 1;
            a.region.normalize();
            return Some(());
        }
    }
    None
}

/// Whether `n` steps of `gap` places leave no hole: the dims within fill the gap, and those around have room.
fn lies_beside(dims: &[Dim], gap: i64, n: i64) -> bool {
    let inner: i64 = dims.iter().filter(|d| d.step[0] < gap).map(|d| d.n).product();
    let is_dense = inner == gap && dims.iter().filter(|d| d.step[0] < gap).all(|d| d.n * d.step[0] <= gap);
    is_dense && dims.iter().all(|d| d.step[0] < gap || d.step[0] >= n * gap)
}

fn follows(gap: &[i64], dim: &Dim) -> bool {
    gap.iter().zip(&dim.step).all(|(g, s)| *g == s * dim.n)
}

/// The dims of an array with the step that each has in row-major order.
pub(crate) fn row_major(dims: &[i64]) -> SmallVec<[i64; 6]> {
    let mut steps: SmallVec<[i64; 6]> = SmallVec::from_elem(1, dims.len());
    for k in (0..dims.len().saturating_sub(1)).rev() {
        steps[k] = steps[k + 1] * dims[k + 1];
    }
    steps
}

/// The places of an array of `dims`, each with a place of another array that begins at `start` and has `steps`.
pub(crate) fn region_between(dims: &[i64], start: i64, steps: &[i64]) -> Region {
    let places = row_major(dims);
    let mut out: SmallVec<[Dim; 2]> = SmallVec::new();
    for (&n, (&place, &step)) in dims.iter().zip(places.iter().zip(steps)).rev().filter(|(n, _)| **n != 1) {
        match out.last_mut() {
            // Dims that are one run in both arrays are one dim: a run that begins within a row stays a run.
            Some(inner) if place == inner.n * inner.step[0] && step == inner.n * inner.step[1] => inner.n *= n,
            Some(_) | None => out.push(Dim { n, step: Coords::from_slice(&[place, step]) }),
        }
    }
    out.reverse();
    Region { at: Coords::from_slice(&[0, start]), dims: out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(term: u32, n: i64) -> Segment {
        let mut region = Region::line(n);
        region.at.push(0);
        region.dims.iter_mut().for_each(|d| d.step.push(1));
        Segment { term: TermId(term), region }
    }

    /// What stands at each place: the term and its coordinates.
    fn elements(segments: &[Segment], n: usize) -> Vec<(u32, Vec<i64>)> {
        let mut out = vec![(u32::MAX, Vec::new()); n];
        for segment in segments {
            let mut indices = vec![0i64; segment.region.dims.len()];
            for _ in 0..segment.region.n_elems() {
                let mut at = segment.region.at.clone();
                for (dim, i) in segment.region.dims.iter().zip(&indices) {
                    at.iter_mut().zip(&dim.step).for_each(|(a, s)| *a += s * i);
                }
                let slot = &mut out[at[0] as usize];
                assert_eq!(slot.0, u32::MAX, "a place twice");
                *slot = (segment.term.0, at[1..].to_vec());
                for (i, dim) in indices.iter_mut().zip(&segment.region.dims).rev() {
                    *i += 1;
                    if *i < dim.n {
                        break;
                    }
                    *i = 0;
                }
            }
        }
        out
    }

    fn view(source: &[Segment], dims: &[i64], start: i64, steps: &[i64]) -> Vec<Segment> {
        let parts = refine(source, region_between(dims, start, steps), 1).unwrap();
        let mut out: Vec<Segment> =
            parts.into_iter().map(|(k, r)| Segment { term: source[k].term, region: r.without(1) }).collect();
        normalize(&mut out);
        out
    }

    #[test]
    fn a_view_has_the_elements_at_its_places() {
        let mut seed = 7u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..3000 {
            let dims: Vec<i64> = (0..1 + random(3)).map(|_| 1 + random(5) as i64).collect();
            let n: i64 = dims.iter().product();
            let mut value = if random(2) == 0 {
                vec![whole(0, n)]
            } else {
                let cut = random(n as u64 + 1) as i64;
                let mut parts = vec![];
                if cut > 0 {
                    parts.push(whole(0, cut));
                }
                if cut < n {
                    let mut rest = whole(1, n - cut);
                    rest.region.at[0] = cut;
                    rest.region.at[1] = 5;
                    parts.push(rest);
                }
                parts
            };
            let mut shape = dims.clone();
            let mut expected = elements(&value, n as usize);
            for _ in 0..3 {
                let strides = row_major(&shape);
                // A permutation, a slice with steps, and a broadcast of what is left.
                let mut order: Vec<usize> = (0..shape.len()).collect();
                for k in (1..order.len()).rev() {
                    order.swap(k, random(k as u64 + 1) as usize);
                }
                let (mut out_dims, mut steps, mut start) = (vec![], vec![], 0);
                for &d in &order {
                    let first = random(shape[d] as u64) as i64;
                    let by = 1 + random(2) as i64;
                    let len = 1 + random(((shape[d] - 1 - first) / by + 1) as u64) as i64;
                    out_dims.push(len);
                    if random(4) == 0 {
                        start += (first + (len - 1) * by) * strides[d];
                        steps.push(-by * strides[d]);
                    } else {
                        start += first * strides[d];
                        steps.push(by * strides[d]);
                    }
                }
                if random(3) == 0 {
                    out_dims.push(2);
                    steps.push(0);
                }
                value = view(&value, &out_dims, start, &steps);
                let region = region_between(&out_dims, start, &steps);
                let places = Segment { term: TermId(0), region };
                let n_out: i64 = out_dims.iter().product();
                expected = elements(&[places], n_out as usize)
                    .into_iter()
                    .map(|(_, at)| expected[at[0] as usize].clone())
                    .collect();
                assert_eq!(elements(&value, n_out as usize), expected, "round {round}");
                shape = out_dims;
            }
        }
    }

    #[test]
    fn shards_of_any_dim_join_to_the_whole() {
        for (dims, dim, n_shards) in [([6i64, 4, 8], 0, 3), ([6, 4, 8], 1, 4), ([6, 4, 8], 2, 8), ([8, 4, 8], 0, 8)] {
            let n: i64 = dims.iter().product();
            let steps = row_major(&dims);
            let mut parts = Vec::new();
            for k in 0..n_shards {
                let mut shard = dims;
                shard[dim] /= n_shards;
                let mut region = region_between(&shard, 0, &steps);
                region.at[0] = k * shard[dim] * steps[dim];
                region.at[1] = k * shard[dim] * steps[dim];
                for d in &mut region.dims {
                    d.step[0] = d.step[1];
                }
                parts.push(Segment { term: TermId(0), region });
            }
            normalize(&mut parts);
            assert_eq!(parts, [whole(0, n)], "{dims:?} {dim}");
        }
    }
}
