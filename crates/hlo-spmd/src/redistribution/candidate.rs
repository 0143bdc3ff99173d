//! A way to the target: its steps for people and for the lowering, side by side.

use super::pieces::PiecePlan;
use super::price::{Prices, StepsPrice, moved_atoms};
use super::route::LoweredStep;
use super::space::{Places, Space, permutation};
use super::{StepKind, describe};
use hlo_ir::Dims;
use hlo_ir::axes::AxisSharding;
use hlo_mesh::Exchange;

/// One step of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct RedistributionStep {
    /// What it does.
    pub kind: StepKind,
    /// Groups of devices; none for a permute and for what a device does by itself.
    pub groups: Vec<Vec<u32>>,
    /// Senders and receivers of a permute.
    pub pairs: Vec<(u32, u32)>,
    /// What it costs.
    pub price: StepsPrice,
    /// Dims of what a device holds after it.
    pub tile: Dims,
    /// How the array is cut after it; `_` where a part of a dim is not cut and a more minor one is.
    pub state: String,
    /// Why it is there.
    pub because: String,
}

/// A way to the target.
pub(super) struct Candidate {
    pub price: StepsPrice,
    pub is_searched: bool,
    pub steps: Vec<RedistributionStep>,
    pub route: Vec<LoweredStep>,
}

/// Steps for people and for the lowering, side by side.
pub(super) struct RouteBuilder<'p> {
    dims: &'p Dims,
    source: &'p AxisSharding,
    target: &'p AxisSharding,
    element_bytes: u64,
    steps: Vec<RedistributionStep>,
    route: Vec<LoweredStep>,
}

impl<'p> RouteBuilder<'p> {
    pub(super) fn new(dims: &'p Dims, [source, target]: [&'p AxisSharding; 2], element_bytes: u64) -> RouteBuilder<'p> {
        RouteBuilder { dims, source, target, element_bytes, steps: Vec::new(), route: Vec::new() }
    }

    fn step(
        &mut self,
        kind: StepKind,
        price: StepsPrice,
        tile: Dims,
        state: String,
        because: String,
    ) -> &mut RedistributionStep {
        let step = RedistributionStep { kind, groups: Vec::new(), pairs: Vec::new(), price, tile, state, because };
        self.steps.push(step);
        let last = self.steps.len() - 1;
        &mut self.steps[last]
    }

    /// Whole dims of the source get the padding that the target's tiles need.
    pub(super) fn pad(&mut self, padded: &Dims, source: &Places, space: &Space) {
        let (dims, tiles) = (self.dims, self.source.tiles());
        let is_short = |&dim: &usize| tiles[dim] == 1 && padded[dim] > dims[dim];
        let short: Vec<usize> = (0..dims.len()).filter(is_short).collect();
        if !short.is_empty() {
            let tile = space.local_dims(source, dims.len());
            let because = describe::padding(&short, dims, padded);
            let state = describe::state(space, source, dims.len());
            self.step(StepKind::Pad, StepsPrice::default(), tile.clone(), state, because);
            self.route.push(LoweredStep::Pad(tile));
        }
    }

    pub(super) fn trim(&mut self, padded: &Dims) {
        let (dims, tiles) = (self.dims, self.target.tiles());
        let is_long = |&dim: &usize| tiles[dim] == 1 && padded[dim] > dims[dim];
        let long: Vec<usize> = (0..dims.len()).filter(is_long).collect();
        if !long.is_empty() {
            let tile_of =
                |sizes: &Dims| -> Dims { sizes.iter().zip(&tiles).map(|(&size, &n)| (size + n - 1) / n).collect() };
            let (before, tile) = (tile_of(padded), tile_of(dims));
            let because = describe::trimming(&long, dims, padded);
            let state = self.steps.last().map(|step| step.state.clone()).unwrap_or_default();
            self.step(StepKind::Trim, StepsPrice::default(), tile.clone(), state, because);
            self.route.push(LoweredStep::Trim(before, tile));
        }
    }

    pub(super) fn leg(&mut self, space: &Space, kind: StepKind, from: &Places, to: &Places, price: StepsPrice) {
        let rank = self.dims.len();
        let (tile, state) = (space.local_dims(to, rank), describe::state(space, to, rank));
        let because = describe::because(space, kind, from, to);
        let step = self.step(kind, price, tile, state, because);
        match kind {
            StepKind::Exchange(Exchange::Permute) => step.pairs = permutation((space, from), (space, to)),
            StepKind::Exchange(_) => step.groups = space.groups(&moved_atoms(from, to)),
            StepKind::Pad | StepKind::Slice | StepKind::Pieces | StepKind::Trim => {}
        }
        self.route.push(LoweredStep::Leg { space: space.clone(), kind, from: from.clone(), to: to.clone() });
    }

    pub(super) fn reorder(&mut self, space: &Space, places: &Places, pairs: Vec<(u32, u32)>, price: StepsPrice) {
        let rank = self.dims.len();
        let because = match self.source.mesh.devices == space.devices {
            true => "the axes of source and target cut the devices at places that do not divide one another",
            false => "the devices of the target stand in another order",
        };
        let (tile, state) = (space.local_dims(places, rank), describe::state(space, places, rank));
        self.step(StepKind::Exchange(Exchange::Permute), price, tile, state, because.into()).pairs = pairs.clone();
        self.route.push(LoweredStep::Reorder(pairs));
    }

    pub(super) fn pieces(&mut self, plan: PiecePlan, prices: &Prices<'_>) {
        let bytes = self.element_bytes;
        let state = describe::sharding(self.target);
        for write in &plan.writes {
            let Some(pairs) = &write.pairs else { continue };
            let price = prices.of_pairs(pairs, write.block.iter().product::<i64>() as u64 * bytes);
            let because = describe::piece(&write.block, pairs.len());
            self.step(StepKind::Pieces, price, plan.tile.clone(), state.clone(), because).pairs = pairs.clone();
        }
        self.route.push(LoweredStep::Pieces(plan));
    }

    pub(super) fn candidate(self, is_searched: bool) -> Candidate {
        let price = self.steps.iter().fold(StepsPrice::default(), |sum, step| sum.plus(step.price));
        Candidate { price, is_searched, steps: self.steps, route: self.route }
    }
}
