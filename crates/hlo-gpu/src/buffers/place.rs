//! Give every class its bytes.
//!
//! Parameters that are donated and outputs are blocks that may serve other values while nothing lives there. Classes without
//! a place are taken one after the other; each goes to the smallest block with room at all its times, or into the smallest gap
//! of the arena that is free then. Several orders are tried: the largest first is mostly the best, but not where long and short
//! lives of the same size mix.

use super::Draft;
use super::coalesce::{ClassId, Classes, Fixed};
use super::liveness::Interval;
use crate::plan::{BufferId, Place, PlanValueId};
use cranelift_entity::SecondaryMap;

/// Arena offsets are multiples of this: what 16-byte accesses, matrix products and collectives like best.
pub(crate) const ALIGNMENT_BYTES: u64 = 256;

/// A block of memory and what lies in it.
#[derive(Clone)]
struct Block {
    place: Place,
    /// `u64::MAX` for the arena, which grows.
    bytes: u64,
    occupied: Vec<(Vec<Interval>, u64, u64)>,
}

impl Block {
    /// The smallest gap of `bytes` bytes that is free in all of `intervals`: its offset and how much room is left there.
    fn find_gap(&self, intervals: &[Interval], bytes: u64) -> Option<(u64, u64)> {
        let mut taken: Vec<(u64, u64)> = self
            .occupied
            .iter()
            .filter(|(others, _, _)| overlap(others, intervals))
            .map(|&(_, offset, size)| (offset, offset + size))
            .collect();
        taken.sort_unstable();
        let (mut best, mut from): (Option<(u64, u64)>, u64) = (None, 0);
        for (start, end) in taken.into_iter().chain([(self.bytes, self.bytes)]) {
            let room = start.saturating_sub(from);
            let waste = room.saturating_sub(bytes);
            if room >= bytes && best.is_none_or(|(_, least)| waste < least) {
                best = Some((from, waste));
            }
            from = from.max(end.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(end));
        }
        best
    }
}

/// Whether two lists of intervals, each in order, meet.
pub(crate) fn overlap(a: &[Interval], b: &[Interval]) -> bool {
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        if x.start <= y.end && y.start <= x.end {
            return true;
        }
        if x.end < y.end {
            i += 1;
        } else {
            j += 1;
        }
    }
    false
}

/// Intervals without their values, those that touch made one.
fn lives_of(intervals: &[(Interval, PlanValueId)]) -> Vec<Interval> {
    let mut lives: Vec<Interval> = Vec::new();
    for &(interval, _) in intervals {
        match lives.last_mut() {
            Some(last) if interval.start <= last.end => last.end = last.end.max(interval.end),
            Some(_) | None => lives.push(interval),
        }
    }
    lives
}

/// Fills in the place of every buffer and the size of the arena.
pub(crate) fn place(draft: &mut Draft, classes: &Classes) {
    let mut places: SecondaryMap<ClassId, (Option<Place>, u64)> = SecondaryMap::with_default((None, 0));
    let mut blocks: Vec<Block> = Vec::new();
    let mut free: Vec<ClassId> = Vec::new();
    for (id, class) in classes.classes.iter() {
        let block = match class.fixed {
            Fixed::No => {
                free.push(id);
                continue;
            }
            Fixed::ReadOnly => continue,
            Fixed::Output(k) => Place::Output(k),
            Fixed::Parameter { leaf, is_donated } => {
                places[id] = (Some(Place::Parameter(leaf)), 0);
                if !is_donated {
                    continue;
                }
                Place::Parameter(leaf)
            }
        };
        places[id] = (Some(block), 0);
        let occupied = vec![(lives_of(&class.intervals), 0, class.bytes)];
        blocks.push(Block { place: block, bytes: class.bytes, occupied });
    }
    blocks.sort_by_key(|block| (block.bytes, block.place));
    free.retain(|&id| classes.classes[id].bytes > 0 && !classes.classes[id].intervals.is_empty());
    let mut best: Option<(u64, Packed)> = None;
    for by in [By::Size, By::SizeAndTime, By::Beginning] {
        sort_classes(classes, &mut free, by);
        let (arena_bytes, packed) = pack(classes, &free, blocks.clone());
        if best.as_ref().is_none_or(|(least, _)| arena_bytes < *least) {
            best = Some((arena_bytes, packed));
        }
    }
    let (arena_bytes, packed) = best.unwrap_or_default();
    draft.plan.arena_bytes = arena_bytes;
    packed.into_iter().for_each(|(id, place, offset)| places[id] = (Some(place), offset));
    write_places(draft, classes, &places);
}

/// Where classes lie.
type Packed = Vec<(ClassId, Place, u64)>;

/// Which class is placed first: none of these orders is the best for all programs.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The largest.
    Size,
    /// The one with the most bytes times points.
    SizeAndTime,
    /// The one that lives first.
    Beginning,
}

fn sort_classes(classes: &Classes, list: &mut [ClassId], by: By) {
    let bytes = |id: ClassId| std::cmp::Reverse(classes.classes[id].bytes);
    let points = |id: ClassId| {
        let intervals = classes.classes[id].intervals.iter();
        intervals.map(|(i, _)| u64::from(i.end - i.start) + 1).sum::<u64>()
    };
    let start = |id: ClassId| classes.classes[id].intervals.first().map_or(0, |(i, _)| i.start);
    match by {
        By::Size => list.sort_by_key(|&id| (bytes(id), id)),
        By::SizeAndTime => {
            list.sort_by_cached_key(|&id| {
                (std::cmp::Reverse(classes.classes[id].bytes.saturating_mul(points(id))), id)
            });
        }
        By::Beginning => list.sort_by_key(|&id| (start(id), bytes(id), id)),
    }
}

/// Places classes one after the other; gives the size of the arena.
fn pack(classes: &Classes, list: &[ClassId], mut blocks: Vec<Block>) -> (u64, Packed) {
    let mut arena = Block { place: Place::Arena, bytes: u64::MAX, occupied: Vec::new() };
    let mut packed = Packed::new();
    for &id in list {
        let class = &classes.classes[id];
        let lives = lives_of(&class.intervals);
        let first = blocks.partition_point(|block| block.bytes < class.bytes);
        let gap = |block: &Block| block.find_gap(&lives, class.bytes).map(|(offset, _)| offset);
        let found = (first..blocks.len()).find_map(|i| gap(&blocks[i]).map(|offset| (i, offset)));
        let (block, offset) = match found {
            Some((i, offset)) => (&mut blocks[i], offset),
            None => {
                let offset = gap(&arena).unwrap_or(0);
                (&mut arena, offset)
            }
        };
        block.occupied.push((lives, offset, class.bytes));
        packed.push((id, block.place, offset));
    }
    (arena.occupied.iter().map(|&(_, offset, bytes)| offset + bytes).max().unwrap_or(0), packed)
}

fn write_places(draft: &mut Draft, classes: &Classes, places: &SecondaryMap<ClassId, (Option<Place>, u64)>) {
    let buffers: Vec<BufferId> = draft.plan.buffers.keys().collect();
    for buffer in buffers {
        let value = draft.value_of[buffer];
        let (place, offset) = match draft.values[value].home {
            super::Home::Constant(id) => (Some(Place::Constant(id)), 0),
            super::Home::DeviceIds => (Some(Place::DeviceIds), 0),
            super::Home::Parameter { .. } | super::Home::Temporary => places[classes.of(value)],
        };
        draft.plan.buffers[buffer].place = place.unwrap_or(Place::Arena);
        draft.plan.buffers[buffer].offset_bytes += offset;
    }
}
