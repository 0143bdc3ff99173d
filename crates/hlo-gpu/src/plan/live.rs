//! The arena's bytes in use over modelled time.
//!
//! A value is in use from the beginning of the first step that touches it to the end of the last. What a loop touches is in use in
//! all its rounds. Values that share bytes at one time count once. Cost: `n log n` in the values.

use super::model::Bar;
use super::{BufferId, Place, Plan, PlanValueId, Step, Work};
use std::collections::BTreeMap;

/// The bytes in use from a moment on: `(seconds, bytes)`, in order, each moment once.
pub(super) fn arena_over_time(plan: &Plan, bars: &[Bar<'_>]) -> Vec<(f64, u64)> {
    let extents = extents(plan);
    let mut lives: BTreeMap<PlanValueId, (f64, f64)> = BTreeMap::new();
    for bar in bars {
        let (start_s, end_s) = (bar.start_s, bar.end_s());
        for_each_buffer(plan, bar.step, &mut |buffer| {
            let value = plan.buffers[buffer].value;
            if extents.contains_key(&value) {
                let life = lives.entry(value).or_insert((start_s, end_s));
                *life = (life.0.min(start_s), life.1.max(end_s));
            }
        });
    }
    let mut places: Vec<u64> = extents.values().flat_map(|&(from, to)| [from, to]).collect();
    places.sort();
    places.dedup();
    // What ends at a moment makes room before anything begins then.
    let mut events: Vec<(f64, bool, (u64, u64))> = Vec::with_capacity(2 * lives.len());
    for (value, (start_s, end_s)) in lives {
        events.extend([(start_s, true, extents[&value]), (end_s, false, extents[&value])]);
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut cover = Cover::new(places);
    let mut out: Vec<(f64, u64)> = Vec::new();
    for (time_s, begins, extent) in events {
        cover.change(extent, begins);
        match out.last_mut() {
            Some(last) if last.0 == time_s => last.1 = cover.covered_bytes(),
            Some(_) | None => out.push((time_s, cover.covered_bytes())),
        }
    }
    out
}

/// Where each value of the arena lies: from its first byte to the one after its last.
fn extents(plan: &Plan) -> BTreeMap<PlanValueId, (u64, u64)> {
    let mut extents: BTreeMap<PlanValueId, (u64, u64)> = BTreeMap::new();
    for buffer in plan.buffers.values().filter(|buffer| buffer.place == Place::Arena) {
        let (from, to) = (buffer.offset_bytes, buffer.offset_bytes + buffer.shape.memory_bytes());
        let extent = extents.entry(buffer.value).or_insert((from, to));
        *extent = (extent.0.min(from), extent.1.max(to));
    }
    extents
}

/// The buffers that a step touches; of a loop or a conditional those of all steps inside as well.
fn for_each_buffer(plan: &Plan, step: &Step, visit: &mut dyn FnMut(BufferId)) {
    let accesses = step.work.accesses(plan);
    accesses.reads.into_iter().chain(accesses.writes).for_each(&mut *visit);
    if let Work::While { carried, .. } = &step.work {
        carried.iter().for_each(|&buffer| visit(buffer));
    }
    step.work.inside().for_each(|step| for_each_buffer(plan, step, visit));
}

/// How many bytes lie in at least one of a changing set of ranges: a tree over the stretches between neighbouring places.
struct Cover {
    places: Vec<u64>,
    /// By node: ranges that cover all of it, and its covered bytes.
    nodes: Vec<(u32, u64)>,
}

impl Cover {
    fn new(places: Vec<u64>) -> Cover {
        let n_nodes = 4 * places.len().max(1);
        Cover { places, nodes: vec![(0, 0); n_nodes] }
    }

    fn covered_bytes(&self) -> u64 {
        self.nodes[0].1
    }

    /// Adds or removes a range whose ends are among the places.
    fn change(&mut self, (from, to): (u64, u64), is_added: bool) {
        let place = |at: u64| self.places.partition_point(|&other| other < at);
        let (first, end) = (place(from), place(to));
        if first < end {
            self.update(0, (0, self.places.len() - 1), (first, end), is_added);
        }
    }

    /// `node` has the stretches of `own`.
    fn update(&mut self, node: usize, own: (usize, usize), range: (usize, usize), is_added: bool) {
        if range.0 >= own.1 || range.1 <= own.0 {
            return;
        }
        let is_leaf = own.1 - own.0 == 1;
        if range.0 <= own.0 && own.1 <= range.1 {
            let n_covering = &mut self.nodes[node].0;
            *n_covering = if is_added { *n_covering + 1 } else { n_covering.saturating_sub(1) };
        } else {
            let middle = usize::midpoint(own.0, own.1);
            self.update(2 * node + 1, (own.0, middle), range, is_added);
            self.update(2 * node + 2, (middle, own.1), range, is_added);
        }
        self.nodes[node].1 = match (self.nodes[node].0, is_leaf) {
            (0, true) => 0,
            (0, false) => self.nodes[2 * node + 1].1 + self.nodes[2 * node + 2].1,
            (_, _) => self.places[own.1] - self.places[own.0],
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_several_ranges_count_once() {
        let mut cover = Cover::new(vec![0, 16, 32, 48, 100]);
        cover.change((0, 32), true);
        cover.change((16, 48), true);
        assert_eq!(cover.covered_bytes(), 48);
        cover.change((0, 100), true);
        assert_eq!(cover.covered_bytes(), 100);
        cover.change((0, 100), false);
        cover.change((0, 32), false);
        assert_eq!(cover.covered_bytes(), 32);
        cover.change((16, 48), false);
        assert_eq!(cover.covered_bytes(), 0);
    }
}
