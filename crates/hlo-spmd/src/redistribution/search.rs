//! The cheapest steps from one state to another: Dijkstra's algorithm, led by the lower bound of what is left (A*).
//!
//! The bound never exceeds the price of any steps that are left, so what is found first is cheapest. States are few: after
//! refinement an atom is free or on one of the segments that source and target cut.

use super::StepKind;
use super::bound::missing_bytes;
use super::moves::Moves;
use super::price::{Prices, StepsPrice};
use super::space::{Places, Space};
use hlo_ir::names::FixedHash;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// A step and the state after it.
pub(super) type Leg = (StepKind, Places);

/// A state that waits to be looked at; the cheapest is the greatest.
struct Waiting {
    estimate: StepsPrice,
    price: StepsPrice,
    n_steps: u32,
    places: Places,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> Ordering {
        let by_price = other.estimate.order(&self.estimate);
        by_price.then(other.n_steps.cmp(&self.n_steps)).then_with(|| other.places.cmp(&self.places))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}

/// How a state was reached.
struct Reached {
    price: StepsPrice,
    n_steps: u32,
    by: Option<(StepKind, Places)>,
}

/// What a search is to find.
pub(super) struct Search<'a> {
    pub space: &'a Space,
    pub target: &'a Places,
    /// No state may hold more on a device.
    pub most_bytes: u64,
    /// Steps to look at before giving up.
    pub most_steps: usize,
}

impl Search<'_> {
    /// The cheapest steps from one of these states, each with its price so far; with them the state that they begin at. `None` if
    /// there are none, or if finding them would take too long.
    pub(super) fn cheapest(
        &self,
        starts: &[(Places, StepsPrice)],
        prices: &mut Prices<'_>,
    ) -> Option<(Places, Vec<Leg>, StepsPrice)> {
        let mut reached: HashMap<Places, Reached, FixedHash> = HashMap::default();
        let mut waiting = BinaryHeap::new();
        let mut n_looked_at = 0;
        for (places, price) in starts {
            self.reach(&mut reached, &mut waiting, prices, places.clone(), (*price, 0), None);
        }
        while let Some(Waiting { price, n_steps, places, .. }) = waiting.pop() {
            let best = reached.get(&places)?;
            if (best.price, best.n_steps) != (price, n_steps) {
                continue;
            }
            if places == *self.target {
                let (start, legs) = way(&reached, places);
                return Some((start, legs, price));
            }
            if n_looked_at > self.most_steps {
                return None;
            }
            Moves::new(self.space, &places, self.target).each(&mut |kind, to| {
                n_looked_at += 1;
                if self.space.tile_bytes(&to) > self.most_bytes {
                    return;
                }
                let next = price.plus(prices.of_step(self.space, kind, &places, &to));
                self.reach(&mut reached, &mut waiting, prices, to, (next, n_steps + 1), Some((kind, &places)));
            });
        }
        None
    }

    fn reach(
        &self,
        reached: &mut HashMap<Places, Reached, FixedHash>,
        waiting: &mut BinaryHeap<Waiting>,
        prices: &Prices<'_>,
        places: Places,
        (price, n_steps): (StepsPrice, u32),
        by: Option<(StepKind, &Places)>,
    ) {
        let is_worse =
            |known: &Reached| known.price.order(&price).then(known.n_steps.cmp(&n_steps)) != Ordering::Greater;
        if reached.get(&places).is_some_and(is_worse) {
            return;
        }
        let left = prices.at_least(missing_bytes(self.space, &places, self.target));
        waiting.push(Waiting { estimate: price.plus(left), price, n_steps, places: places.clone() });
        let by = by.map(|(kind, from)| (kind, from.clone()));
        reached.insert(places, Reached { price, n_steps, by });
    }
}

/// The way to a state, from its start.
fn way(reached: &HashMap<Places, Reached, FixedHash>, mut places: Places) -> (Places, Vec<Leg>) {
    let mut legs = Vec::new();
    while let Some((kind, from)) = reached.get(&places).and_then(|known| known.by.clone()) {
        legs.push((kind, std::mem::replace(&mut places, from)));
    }
    legs.reverse();
    (places, merged_slices(legs))
}

/// Slices one after the other are one.
fn merged_slices(legs: Vec<Leg>) -> Vec<Leg> {
    let mut out: Vec<Leg> = Vec::new();
    for leg in legs {
        match out.last_mut() {
            Some(last) if last.0 == StepKind::Slice && leg.0 == StepKind::Slice => last.1 = leg.1,
            Some(_) | None => out.push(leg),
        }
    }
    out
}
