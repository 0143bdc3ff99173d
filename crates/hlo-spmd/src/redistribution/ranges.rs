//! What each device holds after each step, to be drawn.

use super::bound::extents;
use super::plan::Redistribution;
use super::route::LoweredStep;
use super::space::{Places, Space};
use hlo_ir::axes::AxisSharding;

/// The indices that one device holds along one dim, in order.
pub type HeldRanges = Vec<(i64, i64)>;

/// What all devices hold at one point of a plan: for each device, for each dim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldParts {
    /// The step that led here, as an index into [`Redistribution::steps`]; none for the source.
    pub step: Option<usize>,
    /// By device, by dim.
    pub devices: Vec<Vec<HeldRanges>>,
}

impl Redistribution {
    /// What the devices hold before the plan, and after each step that changes it. Permutes of pieces count as one step, the last.
    pub fn held_parts(&self) -> Vec<HeldParts> {
        let dims = &self.route.shape.dims;
        let of_sharding = |sharding: &AxisSharding| -> Vec<Vec<HeldRanges>> {
            let ranges = |extent: Vec<(i64, i64)>| extent.into_iter().map(|range| vec![range]).collect();
            extents(sharding, dims).into_iter().map(ranges).collect()
        };
        let [source, target] = &self.route.ends;
        let mut out = vec![HeldParts { step: None, devices: of_sharding(source) }];
        let mut step = 0;
        for (at, lowered) in self.route.steps.iter().enumerate() {
            match lowered {
                LoweredStep::Leg { space, to, .. } => {
                    out.push(HeldParts { step: Some(step), devices: held(space, to, dims) });
                }
                LoweredStep::Reorder(_) => {
                    let devices = match self.route.steps.get(at + 1) {
                        Some(LoweredStep::Leg { space, from, .. }) => held(space, from, dims),
                        _ => of_sharding(target),
                    };
                    out.push(HeldParts { step: Some(step), devices });
                }
                LoweredStep::Pieces(plan) => {
                    step += plan.writes.iter().filter(|write| write.pairs.is_some()).count().saturating_sub(1);
                    out.push(HeldParts { step: Some(step), devices: of_sharding(target) });
                }
                LoweredStep::Pad(_) | LoweredStep::Trim(..) => {}
            }
            step += 1;
        }
        out
    }
}

/// What the devices hold in a state, by device and dim.
fn held(space: &Space, places: &Places, dims: &[i64]) -> Vec<Vec<HeldRanges>> {
    let lists = space.lists(places);
    let mut out = vec![Vec::new(); space.devices.len()];
    for (position, &device) in space.devices.iter().enumerate() {
        let of_dim = |(dim, &size): (usize, &i64)| {
            let segments: Vec<usize> = (0..lists.len()).filter(|&s| space.segments[s].dim == dim).collect();
            let padded: i64 = segments.iter().map(|&s| space.segments[s].size).product();
            let mut ranges: HeldRanges = vec![(0, padded)];
            for (k, &s) in segments.iter().enumerate() {
                let (n_parts, place) = (space.n_places(&lists[s]), space.place_along(position, &lists[s]));
                let is_cut_further = segments[k + 1..].iter().any(|&s| !lists[s].is_empty());
                let n_kept = space.segments[s].size / n_parts;
                let n_units = if is_cut_further { n_kept } else { 1 };
                ranges = ranges
                    .into_iter()
                    .flat_map(|(low, high)| {
                        let kept = (high - low) / n_parts;
                        let unit = kept / n_units;
                        let first = low + place * kept;
                        (0..n_units).map(move |u| (first + u * unit, first + (u + 1) * unit))
                    })
                    .collect();
            }
            merged(ranges, size)
        };
        if let Some(slot) = out.get_mut(device as usize) {
            *slot = dims.iter().enumerate().map(of_dim).collect();
        }
    }
    out
}

/// Ranges below `size`, neighbours joined.
fn merged(ranges: HeldRanges, size: i64) -> HeldRanges {
    let mut out: HeldRanges = Vec::new();
    for (low, high) in ranges.into_iter().map(|(low, high)| (low.min(size), high.min(size))) {
        match out.last_mut() {
            Some(last) if last.1 == low => last.1 = high,
            Some(_) | None if low < high => out.push((low, high)),
            Some(_) | None => {}
        }
    }
    out
}
