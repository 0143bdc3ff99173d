//! Facts about bytes: a map from disjoint ranges of places to values.

use super::{BufferId, Place, Plan};
use std::collections::BTreeMap;

/// Bytes at a place: from a start to before an end.
pub(crate) type Range = (Place, u64, u64);

/// The bytes of a buffer.
pub(crate) fn range(plan: &Plan, buffer: BufferId) -> Range {
    let buffer = &plan.buffers[buffer];
    (buffer.place, buffer.offset_bytes, buffer.offset_bytes.saturating_add(buffer.shape.memory_bytes()))
}

/// Disjoint ranges with a value each.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RangeMap<T> {
    /// Place and start → end and value.
    pieces: BTreeMap<(Place, u64), (u64, T)>,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        RangeMap { pieces: BTreeMap::new() }
    }
}

impl<T: Clone> RangeMap<T> {
    /// The pieces within a range, cut to it, in order.
    pub(crate) fn within(&self, (place, start, end): Range) -> impl Iterator<Item = (u64, u64, &T)> {
        let before = self.pieces.range(..=(place, start)).next_back();
        let from = before.filter(|((p, _), _)| *p == place).map_or(start, |((_, s), _)| *s);
        let upto = end.max(from);
        let pieces = self.pieces.range((place, from)..(place, upto));
        pieces.map(move |((_, s), (e, value))| ((*s).max(start), (*e).min(end), value)).filter(|(s, e, _)| s < e)
    }

    /// All pieces.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Range, &T)> {
        self.pieces.iter().map(|(&(place, start), (end, value))| ((place, start, *end), value))
    }

    /// Whether every byte of a range has a value.
    pub(crate) fn covers(&self, range: Range) -> bool {
        let mut at = range.1;
        for (start, end, _) in self.within(range) {
            if start > at {
                return false;
            }
            at = end;
        }
        at >= range.2
    }

    /// Gives every byte of a range this value.
    pub(crate) fn set(&mut self, range: Range, value: T) {
        self.cut(range);
        if range.1 < range.2 {
            self.pieces.insert((range.0, range.1), (range.2, value));
        }
    }

    /// Gives every byte of a range a value that follows from the one it has.
    pub(crate) fn update(&mut self, range: Range, next: impl Fn(Option<&T>) -> T) {
        let (place, mut at, end) = range;
        let mut new = Vec::new();
        for (start, stop, value) in self.within(range) {
            if at < start {
                new.push((at, start, next(None)));
            }
            new.push((start, stop, next(Some(value))));
            at = stop;
        }
        if at < end {
            new.push((at, end, next(None)));
        }
        self.cut(range);
        self.pieces.extend(new.into_iter().map(|(start, stop, value)| ((place, start), (stop, value))));
    }

    /// Takes the values of a range away.
    fn cut(&mut self, (place, start, end): Range) {
        let touched: Vec<(u64, u64)> = {
            let before = self.pieces.range(..(place, start)).next_back();
            let before = before.filter(|((p, _), (e, _))| *p == place && *e > start);
            let inside = self.pieces.range((place, start)..(place, end.max(start)));
            before.into_iter().chain(inside).map(|((_, s), (e, _))| (*s, *e)).collect()
        };
        for (s, e) in touched {
            let Some((_, value)) = self.pieces.remove(&(place, s)) else { continue };
            if s < start {
                self.pieces.insert((place, s), (start, value.clone()));
            }
            if e > end {
                self.pieces.insert((place, end), (e, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same as an array of bytes.
    #[test]
    fn ranges_do_what_bytes_do() {
        let (mut map, mut bytes) = (RangeMap::<u64>::default(), [None; 64]);
        map.set((Place::DeviceIds, 0, 64), 7);
        let mut seed = 1u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..2000u64 {
            let (start, len) = (random(60), random(12));
            let end = (start + len).min(64);
            let range = (Place::Arena, start, end);
            if round % 3 == 0 {
                map.set(range, round);
                bytes[start as usize..end as usize].fill(Some(round));
            } else {
                map.update(range, |old| old.map_or(round, |old| old + 1));
                for byte in &mut bytes[start as usize..end as usize] {
                    *byte = Some(byte.map_or(round, |old| old + 1));
                }
            }
            let (start, end) = (random(64), 64 - random(10));
            let mut found = [None; 64];
            for (s, e, &value) in map.within((Place::Arena, start, end)) {
                found[s as usize..e as usize].fill(Some(value));
            }
            let expected = |i: u64| if i >= start && i < end { bytes[i as usize] } else { None };
            assert_eq!(found.to_vec(), (0..64).map(expected).collect::<Vec<_>>());
            let is_covered = (start..end).all(|i| bytes[i as usize].is_some());
            assert_eq!(map.covers((Place::Arena, start, end)), is_covered);
        }
        assert!(map.covers((Place::DeviceIds, 0, 64)));
    }
}
