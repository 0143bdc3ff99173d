//! A plan that is put together without a search, for meshes of many prime axes: slices, all-to-alls, one permute, all-gathers.

use super::StepKind;
use super::search::Leg;
use super::space::{Place, Places, Space};
use hlo_mesh::Exchange;

/// Steps from one state to another.
///
/// In turn, until nothing changes: partial results that are due are reduced, into the target's segment if it has room; free atoms
/// slice what the target cuts by them; atoms that stand elsewhere move there in one all-to-all, if they are at minor ends and there
/// is room. Where that stops, a permute puts the target's atoms where others are, and at the end the others are gathered. `None` if
/// that does not reach the target without holding more than `most_bytes`.
///
/// With `slices_early`, free atoms first slice their target's segments wherever these have room, also behind atoms that are to leave.
pub(super) fn constructed(
    space: &Space,
    from: &Places,
    target: &Places,
    most_bytes: u64,
    slices_early: bool,
) -> Option<Vec<Leg>> {
    let mut legs: Vec<Leg> = Vec::new();
    let mut now = from.clone();
    if slices_early {
        now = early_sliced(space, from, target);
        legs.extend((now != *from).then(|| (StepKind::Slice, now.clone())));
    }
    // Every round but the last puts an atom in its place for good.
    for _ in 0..2 * space.atoms.len() + 2 {
        let next = [reduced, sliced, exchanged].iter().find_map(|step| step(space, &now, target));
        let next = next.or_else(|| permuted(space, &now, target)).or_else(|| gathered(space, &now, target));
        let Some((kind, to)) = next else { break };
        if space.tile_bytes(&to) > most_bytes {
            return None;
        }
        legs.push((kind, to.clone()));
        now = to;
    }
    (now == *target).then_some(legs)
}

/// The place of an atom at the minor end of its target segment, if all atoms before it are there and the rest has room.
fn due_place(space: &Space, now: &Places, target: &Places, atom: usize) -> Option<Place> {
    let place @ Place::On { segment, depth } = target[atom] else { return None };
    let is_before = |a: usize| matches!(target[a], Place::On { segment: s, depth: d } if s == segment && d < depth);
    let on_segment = |a: usize| matches!(now[a], Place::On { segment: s, .. } if s == segment);
    let is_ready = (0..now.len()).all(|a| on_segment(a) == is_before(a) && (!is_before(a) || now[a] == target[a]));
    (is_ready && !space.is_pinned(atom)).then_some(place)
}

fn reduced(space: &Space, now: &Places, target: &Places) -> Option<Leg> {
    let is_due = |&a: &usize| now[a] == Place::Partial && target[a] != Place::Partial;
    let due: Vec<usize> = (0..now.len()).filter(is_due).collect();
    let mut to = now.clone();
    for &a in &due {
        to[a] = due_place(space, &to, target, a).unwrap_or(now[a]);
    }
    if to != *now {
        return Some((StepKind::Exchange(Exchange::ReduceScatter), to));
    }
    due.iter().for_each(|&a| to[a] = Place::Free);
    (to != *now).then_some((StepKind::Exchange(Exchange::AllReduce), to))
}

fn early_sliced(space: &Space, now: &Places, target: &Places) -> Places {
    let mut to = now.clone();
    for a in (0..now.len()).filter(|&a| now[a] == Place::Free && !space.is_pinned(a)) {
        let Place::On { segment, .. } = target[a] else { continue };
        let on_segment = |place: &&Place| matches!(place, Place::On { segment: s, .. } if *s == segment);
        let depth = to.iter().filter(on_segment).count() as u16;
        let room = space.local_sizes(&to).get(segment as usize).copied().unwrap_or(1);
        if room % space.atoms[a].size == 0 {
            to[a] = Place::On { segment, depth };
        }
    }
    to
}

fn sliced(space: &Space, now: &Places, target: &Places) -> Option<Leg> {
    let mut to = now.clone();
    for _ in 0..now.len() {
        for a in (0..now.len()).filter(|&a| now[a] == Place::Free) {
            if to[a] == Place::Free {
                to[a] = due_place(space, &to, target, a).unwrap_or(Place::Free);
            }
        }
    }
    (to != *now).then_some((StepKind::Slice, to))
}

/// Whether nothing lies behind an atom on its segment.
fn is_minor(now: &Places, atom: usize) -> bool {
    let Place::On { segment, depth } = now[atom] else { return false };
    now.iter().all(|place| !matches!(place, Place::On { segment: s, depth: d } if *s == segment && *d > depth))
}

fn exchanged(space: &Space, now: &Places, target: &Places) -> Option<Leg> {
    let mut to = now.clone();
    let segment_of = |place: Place| match place {
        Place::On { segment, .. } => Some(segment),
        Place::Free | Place::Partial => None,
    };
    let (mut losing, mut gaining) = (Vec::new(), Vec::new());
    for a in 0..now.len() {
        if now[a] == target[a] || !is_minor(now, a) {
            continue;
        }
        let Some(place) = due_place(space, now, target, a) else { continue };
        let (loses, gains) = (segment_of(now[a]), segment_of(place));
        if gaining.contains(&loses) || losing.contains(&gains) || losing.contains(&loses) || gaining.contains(&gains) {
            continue;
        }
        losing.push(loses);
        gaining.push(gains);
        to[a] = place;
    }
    (to != *now).then_some((StepKind::Exchange(Exchange::AllToAll), to))
}

/// Every segment keeps its number of tiles, and takes as many of the target's atoms as that has room for; other atoms fill the rest.
/// `None` if that brings no further atom to its place.
fn permuted(space: &Space, now: &Places, target: &Places) -> Option<Leg> {
    let (lists, wanted) = (space.lists(now), space.lists(target));
    let is_movable = |a: usize| now[a] != Place::Partial && !space.is_pinned(a);
    let mut to: Places = (0..now.len()).map(|a| if is_movable(a) { Place::Free } else { now[a] }).collect();
    let mut filled = vec![(1, 0u16); lists.len()];
    let mut put = |to: &mut Places, segment: usize, atom: usize| {
        let (n, depth) = &mut filled[segment];
        let has_room = space.n_places(&lists[segment]) % (*n * space.atoms[atom].size) == 0;
        if !has_room || !is_movable(atom) || to[atom] != Place::Free {
            return false;
        }
        to[atom] = Place::On { segment: segment as u16, depth: *depth };
        *n *= space.atoms[atom].size;
        *depth += 1;
        true
    };
    for (segment, atoms) in wanted.iter().enumerate() {
        let _ = atoms.iter().take_while(|&&atom| put(&mut to, segment, atom)).count();
    }
    let placed: Vec<usize> = lists.iter().flatten().copied().collect();
    for (segment, own) in lists.iter().enumerate() {
        // Atoms stay where they were if they can; free ones come last.
        for &atom in own.iter().chain(&placed) {
            put(&mut to, segment, atom);
        }
        (0..now.len()).for_each(|atom| {
            put(&mut to, segment, atom);
        });
    }
    let is_full = filled.iter().zip(&lists).all(|((n, _), list)| *n == space.n_places(list));
    let n_right = |places: &Places| places.iter().zip(target).filter(|(a, b)| a == b).count();
    (is_full && n_right(&to) > n_right(now)).then_some((StepKind::Exchange(Exchange::Permute), to))
}

/// Whether an atom of a segment, or one before it, is not where the target has it.
fn is_amiss(now: &Places, target: &Places, atom: usize) -> bool {
    let Place::On { segment, depth } = now[atom] else { return false };
    let is_before = |place: &Place| matches!(place, Place::On { segment: s, depth: d } if *s == segment && *d <= depth);
    now.iter().zip(target).any(|(place, wanted)| is_before(place) && place != wanted)
}

/// All atoms that the target does not have where they are, and those behind them on their segments.
fn gathered(space: &Space, now: &Places, target: &Places) -> Option<Leg> {
    let mut to = now.clone();
    for _ in 0..space.atoms.len() {
        for a in 0..now.len() {
            if is_amiss(now, target, a) && is_minor(&to, a) && !space.is_pinned(a) {
                to[a] = Place::Free;
            }
        }
    }
    (to != *now).then_some((StepKind::Exchange(Exchange::AllGather), to))
}
