//! The plan: what is asked, the cheapest way, and what it is compared with.

use super::bound::{extents, lower_bound_bytes};
use super::candidate::{Candidate, RedistributionStep, RouteBuilder};
use super::constructive::constructed;
use super::error::RedistributionError;
use super::greedy::{GreedyPrices, greedy_prices};
use super::pieces::Ends;
use super::price::{Prices, StepsPrice};
use super::route::RedistributionRoute;
use super::search::{Leg, Search};
use super::space::{Place, Places, Space, UnalignedDim, padded_dims, permutation, segments};
use super::{MOST_SEARCHED_ATOMS, MOST_SEARCHED_STEPS, StepKind, describe};
use hlo_cluster::Cluster;
use hlo_ir::axes::{AxisSharding, SubAxis, refine_together};
use hlo_ir::monoid::Monoid;
use hlo_ir::sharding::Reduction;
use hlo_ir::{ArrayShape, Dims};
use hlo_mesh::Exchange;

/// What is to be planned.
#[derive(Clone, Copy, Debug)]
pub struct RedistributionRequest<'a> {
    /// The whole array.
    pub shape: &'a ArrayShape,
    /// How it is cut.
    pub source: &'a AxisSharding,
    /// How it is to be cut.
    pub target: &'a AxisSharding,
    /// How partial results of the source are reduced; what its sharding says where none is given.
    pub monoid: Option<Monoid>,
    /// The machine; without one, bytes are counted, then launches.
    pub cluster: Option<&'a Cluster>,
    /// Whether pieces of tiles may be sent one by one where that is cheaper. Where tiles of both ends do not lie on one another, they
    /// are sent in any case.
    pub allows_pieces: bool,
}

/// A plan: steps from the source tile of each device to its target tile.
#[derive(Clone, Debug)]
pub struct Redistribution {
    /// The steps.
    pub steps: Vec<RedistributionStep>,
    /// What they cost.
    pub price: StepsPrice,
    /// No plan brings less to the device that lacks most.
    pub bound_bytes: u64,
    /// What the cheapest steps without pieces cost; none where tiles do not lie on one another.
    pub without_pieces: Option<StepsPrice>,
    /// What sending every lacking piece straight costs; none if there are too many.
    pub with_pieces: Option<StepsPrice>,
    /// Whether the steps of `without_pieces` were searched for, so that nothing made of such steps is cheaper; else they were
    /// constructed.
    pub is_searched: bool,
    /// What greedy plans cost.
    pub greedy: GreedyPrices,
    /// The prime axes, major first, by the letters that `state` uses.
    pub axes: Vec<(char, i64)>,
    /// Dims of a source tile.
    pub source_tile: Dims,
    /// Dims of a target tile.
    pub target_tile: Dims,
    pub(super) route: RedistributionRoute,
}

/// The two ends on prime axes, and the array.
pub(super) struct Problem<'a> {
    pub request: &'a RedistributionRequest<'a>,
    pub source: AxisSharding,
    pub target: AxisSharding,
    pub has_one_order: bool,
    pub monoid: Monoid,
}

/// The cheapest plan.
///
/// # Errors
/// Shardings that do not fit the array or one another, as [`RedistributionError`] lists them.
pub fn plan_redistribution(request: &RedistributionRequest<'_>) -> Result<Redistribution, RedistributionError> {
    let problem = Problem::new(request)?;
    let dims = &request.shape.dims;
    let padded = padded_dims(dims, &problem.source.tiles(), &problem.target.tiles());
    let by_steps = padded.as_ref().ok().and_then(|padded| problem.by_steps(padded));
    let by_pieces = problem.by_pieces();
    let unaligned = |dim: usize| RedistributionError::Unaligned {
        dim,
        size: dims[dim],
        source: problem.source.tiles()[dim],
        target: problem.target.tiles()[dim],
        n_devices: problem.source.mesh.devices.len(),
    };
    let greedy = padded.as_ref().map_or(GreedyPrices::default(), |padded| problem.greedy(padded));
    let (without_pieces, with_pieces) = (price_of(&by_steps), price_of(&by_pieces));
    let is_searched = by_steps.as_ref().is_some_and(|candidate| candidate.is_searched);
    let is_better = |pieces: &Candidate| match &by_steps {
        Some(steps) => request.allows_pieces && pieces.price.order(&steps.price).is_lt(),
        None => true,
    };
    let takes_pieces = by_pieces.as_ref().is_some_and(is_better);
    let chosen = if takes_pieces { by_pieces } else { by_steps };
    let chosen = match (chosen, padded) {
        (Some(chosen), _) => chosen,
        (None, Err(UnalignedDim(dim))) => return Err(unaligned(dim)),
        (None, Ok(_)) => {
            return Err(RedistributionError::NoSteps { n_devices: problem.source.mesh.devices.len() });
        }
    };
    Ok(Redistribution { is_searched, without_pieces, with_pieces, greedy, ..problem.finished(chosen) })
}

fn price_of(candidate: &Option<Candidate>) -> Option<StepsPrice> {
    candidate.as_ref().map(|candidate| candidate.price)
}

impl<'a> Problem<'a> {
    fn new(request: &'a RedistributionRequest<'a>) -> Result<Problem<'a>, RedistributionError> {
        let (source, target) = (request.source, request.target);
        let n_devices = |sharding: &AxisSharding| sharding.mesh.devices.len();
        let counts = [
            ("dims", request.shape.rank(), source.dims.len()),
            ("dims", source.dims.len(), target.dims.len()),
            ("devices", n_devices(source), n_devices(target)),
        ];
        if let Some(&(what, source, target)) = counts.iter().find(|(_, a, b)| a != b) {
            return Err(RedistributionError::Unlike { what, source, target });
        }
        for (dim, &size) in request.shape.dims.iter().enumerate() {
            if size < 1 || request.shape.is_dynamic(dim) {
                return Err(RedistributionError::Size { dim, size });
            }
        }
        let alone = |sharding: &AxisSharding| refine_together([sharding]).map(|[refined]| refined);
        let (source, target, has_one_order) = match refine_together([source, target]) {
            Some([source, target]) => (source, target, true),
            None => match (alone(source), alone(target)) {
                (Some(source), Some(target)) => (source, target, false),
                (_, _) => return Err(RedistributionError::Order),
            },
        };
        let is_plain = |sharding: &AxisSharding| sharding.manual.is_empty() && sharding.unreduced.is_empty();
        let are_plain = is_plain(&source) && is_plain(&target);
        if !has_one_order && !are_plain {
            return Err(RedistributionError::Order);
        }
        let sorted = |parts: &[SubAxis]| {
            let mut axes: Vec<usize> = parts.iter().map(|part| part.axis).collect();
            axes.sort();
            axes
        };
        if sorted(&source.manual) != sorted(&target.manual) {
            return Err(RedistributionError::Manual);
        }
        if !target.unreduced.iter().all(|part| source.unreduced.contains(part)) {
            return Err(RedistributionError::Unreduced);
        }
        let monoid = request.monoid.unwrap_or(match source.reduction {
            Reduction::Sum => Monoid::Add,
            Reduction::Max => Monoid::Maximum,
            Reduction::Min => Monoid::Minimum,
        });
        let dtype = request.shape.dtype;
        if !source.unreduced.is_empty() && !monoid.is_defined_on(dtype) {
            return Err(RedistributionError::Reduction { monoid, dtype });
        }
        Ok(Problem { request, source, target, has_one_order, monoid })
    }

    pub(super) fn rank(&self) -> usize {
        self.request.shape.rank()
    }

    fn element_bytes(&self) -> u64 {
        u64::from(self.request.shape.dtype.bits()).div_ceil(8).max(1)
    }

    /// The atoms of the source's mesh and of the target's, over the same segments.
    fn spaces(&self, padded: &[i64]) -> [Space; 2] {
        let segments = segments(padded, &self.source, &self.target);
        let space = |sharding: &AxisSharding| Space::new(&sharding.mesh, segments.clone(), self.element_bytes());
        [space(&self.source), space(&self.target)]
    }

    fn greedy(&self, padded: &[i64]) -> GreedyPrices {
        if !self.has_one_order {
            return GreedyPrices::default();
        }
        let [_, space] = self.spaces(padded);
        let mut prices = Prices::new(self.request.cluster, &space);
        greedy_prices(&space, &space.places(&self.source), &space.places(&self.target), &mut prices)
    }

    /// The cheapest steps between states of atoms.
    fn by_steps(&self, padded: &Dims) -> Option<Candidate> {
        let [before, mut space] = self.spaces(padded);
        let target = space.places(&self.target);
        let source = before.places(&self.source);
        let mut n_moving = space.atoms.len();
        if self.has_one_order {
            for atom in 0..space.atoms.len() {
                if source[atom] == target[atom] && matches!(source[atom], Place::Free | Place::Partial) {
                    space.pinned |= 1 << atom;
                    n_moving -= 1;
                }
            }
        }
        let mut prices = Prices::new(self.request.cluster, &space);
        let most_bytes = before.tile_bytes(&source).max(space.tile_bytes(&target));
        let starts = match self.has_one_order {
            true => {
                vec![Start { sliced: None, places: source.clone(), price: StepsPrice::default(), pairs: Vec::new() }]
            }
            false => self.reordered((&before, &source), (&space, &target), &prices),
        };
        let most_steps = MOST_SEARCHED_STEPS[usize::from(self.request.cluster.is_some())];
        let search = Search { space: &space, target: &target, most_bytes, most_steps };
        let found = (n_moving <= MOST_SEARCHED_ATOMS).then(|| searched(&search, &starts, &mut prices)).flatten();
        let is_searched = found.is_some();
        let (start, legs) = found.or_else(|| self.fallback(&search, &starts, n_moving, &mut prices))?;
        let mut route = RouteBuilder::new(&self.request.shape.dims, [&self.source, &self.target], self.element_bytes());
        route.pad(padded, &source, &before);
        if let Some(sliced) = &start.sliced {
            route.leg(&before, StepKind::Slice, &source, sliced, StepsPrice::default());
        }
        if !start.pairs.is_empty() {
            route.reorder(&space, &start.places, start.pairs.clone(), start.price);
        }
        let mut at = start.places.clone();
        for (kind, to) in legs {
            let price = prices.of_step(&space, kind, &at, &to);
            route.leg(&space, kind, &at, &to, price);
            at = to;
        }
        route.trim(padded);
        Some(route.candidate(is_searched))
    }

    /// The cheapest of the steps with the fewest bytes, which are found soon, and of constructed ones.
    fn fallback<'s>(
        &self,
        search: &Search<'_>,
        starts: &'s [Start],
        n_moving: usize,
        prices: &mut Prices<'_>,
    ) -> Option<(&'s Start, Vec<Leg>)> {
        let in_bytes = || {
            let starts: Vec<_> = starts.iter().map(Start::in_bytes).collect();
            let search = Search { most_steps: MOST_SEARCHED_STEPS[0], ..*search };
            let (at, legs, _) = search.cheapest(&starts, &mut Prices::new(None, search.space))?;
            Some((at, legs))
        };
        let by_bytes = (n_moving <= MOST_SEARCHED_ATOMS && self.request.cluster.is_some()).then(in_bytes).flatten();
        let by_bytes = by_bytes.and_then(|(at, legs)| {
            let same = starts.iter().filter(|start| start.places == at);
            same.min_by(|a, b| a.price.order(&b.price)).map(|start| (start, legs))
        });
        // Steps that hold more on the way are better than none.
        let built = |most_bytes: u64| -> Vec<(&'s Start, Vec<Leg>)> {
            let legs =
                |start: &Start, early| constructed(search.space, &start.places, search.target, most_bytes, early);
            let both = starts.iter().flat_map(|start| [(start, false), (start, true)]);
            both.filter_map(|(start, early)| legs(start, early).map(|legs| (start, legs))).collect()
        };
        let mut built_ways = built(search.most_bytes);
        if built_ways.is_empty() && by_bytes.is_none() {
            built_ways = built(u64::MAX);
        }
        let ways: Vec<(&Start, Vec<Leg>)> = by_bytes.into_iter().chain(built_ways).collect();
        let costs: Vec<StepsPrice> =
            ways.iter().map(|(start, legs)| priced(search.space, start, legs, prices)).collect();
        let best = (0..ways.len()).min_by(|&a, &b| costs[a].order(&costs[b]))?;
        ways.into_iter().nth(best)
    }

    /// The states in the target's device order that one permute of the source leads to, with slices before it or without.
    fn reordered(
        &self,
        (before, source): (&Space, &Places),
        (space, target): (&Space, &Places),
        prices: &Prices<'_>,
    ) -> Vec<Start> {
        let mut starts = Vec::new();
        let cut = space.lists(target).iter().map(|list| !list.is_empty()).collect::<Vec<_>>();
        let mut sliced = source.clone();
        for atom in 0..before.atoms.len() {
            let local = before.local_sizes(&sliced);
            let is_first = |s: &usize| cut[*s] && before.lists(&sliced)[*s].is_empty();
            let room = (0..local.len()).filter(is_first).find(|&s| local[s] % before.atoms[atom].size == 0);
            if let (Place::Free, Some(segment)) = (sliced[atom], room) {
                sliced[atom] = Place::On { segment: segment as u16, depth: 0 };
            }
        }
        let forms = if sliced == *source { vec![None] } else { vec![None, Some(sliced)] };
        for form in forms {
            let from = form.as_ref().unwrap_or(source);
            let mut all = Vec::new();
            assignments(space, &before.lists(from), before, target, &mut all);
            for places in all {
                let pairs = permutation((before, from), (space, &places));
                let price = prices.of_pairs(&pairs, before.tile_bytes(from));
                starts.push(Start { sliced: form.clone(), places, price, pairs });
            }
        }
        starts
    }

    /// Pieces of tiles, after partial results were reduced.
    fn by_pieces(&self) -> Option<Candidate> {
        let dims = &self.request.shape.dims;
        let (source_tiles, target_tiles) = (self.source.tiles(), self.target.tiles());
        let padded_one = |dim: usize| {
            padded_dims(&dims[dim..=dim], &source_tiles[dim..=dim], &target_tiles[dim..=dim]).map(|padded| padded[0])
        };
        let padded: Vec<Result<i64, UnalignedDim>> = (0..dims.len()).map(padded_one).collect();
        // A dim whose tiles do not lie on one another is not padded: its last tiles hold less.
        let sizes: Dims = padded.iter().zip(dims).map(|(padded, &size)| padded.unwrap_or(size)).collect();
        let tile = |size: i64, n: i64| (size + n - 1) / n;
        let grain = |dim: usize| match padded[dim] {
            Ok(size) => gcd(tile(size, source_tiles[dim]), tile(size, target_tiles[dim])),
            Err(UnalignedDim(_)) => 0,
        };
        let grain: Vec<i64> = (0..dims.len()).map(grain).collect();
        let (held, wanted) = (extents(&self.source, &sizes), extents(&self.target, &sizes));
        let mut scopes = vec![0; held.len()];
        for (position, &device) in self.source.mesh.devices.iter().enumerate() {
            let parts = self.source.manual.iter().chain(&self.target.unreduced);
            scopes[device as usize] =
                parts.fold(0, |scope, &part| scope * part.size + self.source.mesh.place(position, part));
        }
        let target_tile = sizes.iter().zip(&target_tiles).map(|(&size, &n)| tile(size, n)).collect();
        let ends = Ends { held: &held, wanted: &wanted, scopes: &scopes, grain: &grain, tile: target_tile };
        let plan = ends.plan()?;
        let whole: Dims = sizes.iter().zip(&source_tiles).map(|(&size, &n)| tile(size, n) * n).collect();
        let segments = segments(&whole, &self.source, &AxisSharding::replicated(self.source.mesh.clone(), self.rank()));
        let space = Space::new(&self.source.mesh, segments, self.element_bytes());
        let mut prices = Prices::new(self.request.cluster, &space);
        let mut route = RouteBuilder::new(&self.request.shape.dims, [&self.source, &self.target], self.element_bytes());
        let source = space.places(&self.source);
        route.pad(&sizes, &source, &space);
        let place = |a: usize| match source[a] {
            Place::Partial if !self.target.unreduced.iter().any(|part| part.axis == a) => Place::Free,
            place => place,
        };
        let reduced: Places = (0..source.len()).map(place).collect();
        if reduced != source {
            let price = prices.of_step(&space, StepKind::Exchange(Exchange::AllReduce), &source, &reduced);
            route.leg(&space, StepKind::Exchange(Exchange::AllReduce), &source, &reduced, price);
        }
        route.pieces(plan, &prices);
        route.trim(&sizes);
        Some(route.candidate(false))
    }

    fn finished(&self, chosen: Candidate) -> Redistribution {
        let dims = &self.request.shape.dims;
        let tile = |tiles: Vec<i64>| -> Dims { dims.iter().zip(tiles).map(|(&size, n)| (size + n - 1) / n).collect() };
        let axes = describe::letters(&self.target.mesh.sizes);
        Redistribution {
            steps: chosen.steps,
            price: chosen.price,
            bound_bytes: lower_bound_bytes(&self.source, &self.target, dims, self.element_bytes()),
            without_pieces: None,
            with_pieces: None,
            is_searched: chosen.is_searched,
            greedy: GreedyPrices::default(),
            axes,
            source_tile: tile(self.source.tiles()),
            target_tile: tile(self.target.tiles()),
            route: RedistributionRoute {
                shape: self.request.shape.clone(),
                n_devices: self.source.mesh.devices.len(),
                monoid: self.monoid,
                ends: [self.source.clone(), self.target.clone()],
                source_tile: tile(self.source.tiles()),
                target_tile: tile(self.target.tiles()),
                steps: chosen.route,
            },
        }
    }
}

/// A state in the target's device order, and how the source gets there.
struct Start {
    sliced: Option<Places>,
    places: Places,
    price: StepsPrice,
    pairs: Vec<(u32, u32)>,
}

impl Start {
    /// The state with its price in bytes alone.
    fn in_bytes(&self) -> (Places, StepsPrice) {
        (self.places.clone(), StepsPrice { seconds: 0.0, ..self.price })
    }
}

/// The cheapest steps from one of these starts.
fn searched<'s>(search: &Search<'_>, starts: &'s [Start], prices: &mut Prices<'_>) -> Option<(&'s Start, Vec<Leg>)> {
    let all: Vec<_> = starts.iter().map(|start| (start.places.clone(), start.price)).collect();
    let (at, legs, _) = search.cheapest(&all, prices)?;
    let same = starts.iter().filter(|start| start.places == at);
    same.min_by(|a, b| a.price.order(&b.price)).map(|start| (start, legs))
}

fn priced(space: &Space, start: &Start, legs: &[Leg], prices: &mut Prices<'_>) -> StepsPrice {
    let (mut price, mut at) = (start.price, &start.places);
    for (kind, to) in legs {
        price = price.plus(prices.of_step(space, *kind, at, to));
        at = to;
    }
    price
}

/// The states of `space` whose tiles have the shape of a state with these lists of atoms of another mesh; of many atoms only one,
/// which is like the target where it can be.
fn assignments(
    space: &Space,
    lists: &[super::space::AtomList],
    before: &Space,
    target: &Places,
    out: &mut Vec<Places>,
) {
    let sizes = |list: &super::space::AtomList| list.iter().map(|&a| before.atoms[a].size).collect::<Vec<i64>>();
    let slots: Vec<(u16, u16, i64)> = lists
        .iter()
        .enumerate()
        .flat_map(|(segment, list)| {
            sizes(list).into_iter().enumerate().map(move |(depth, size)| (segment as u16, depth as u16, size))
        })
        .collect();
    let mut places: Places = smallvec::smallvec![Place::Free; space.atoms.len()];
    let is_large = space.atoms.len() > MOST_SEARCHED_ATOMS;
    assign(space, &slots, target, is_large, &mut places, out);
}

fn assign(
    space: &Space,
    slots: &[(u16, u16, i64)],
    target: &Places,
    takes_one: bool,
    places: &mut Places,
    out: &mut Vec<Places>,
) {
    let Some((&(segment, depth, size), rest)) = slots.split_first() else {
        out.push(places.clone());
        return;
    };
    let place = Place::On { segment, depth };
    let mut atoms: Vec<usize> =
        (0..space.atoms.len()).filter(|&a| places[a] == Place::Free && space.atoms[a].size == size).collect();
    // The target's own atom first, then those that the target does not place.
    atoms.sort_by_key(|&a| (target[a] != place, matches!(target[a], Place::On { .. })));
    for atom in atoms {
        places[atom] = place;
        assign(space, rest, target, takes_one, places, out);
        places[atom] = Place::Free;
        if takes_one && !out.is_empty() {
            return;
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
