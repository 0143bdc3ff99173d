//! Where an update runs in shards, as a minimum cut.
//!
//! Every value with a format is *full* or in *shards*. Each use of a value wants it full, or in shards, or as some other value is.
//! A cost is a sum of terms, and each term depends on at most one value and its uses. All terms are submodular, so the
//! cheapest placement is a minimum cut ([`hlo_analysis::min_cut`]). Values on the source's side are full, those on the sink's side
//! are in shards.
//!
//! | term | paid if |
//! |---|---|
//! | all-reduce, reduce-scatter | the gradient is full, in shards |
//! | all-gather, once per value and computation | the value is in shards, and a use there wants it full |
//! | slice, once per value and computation | the value is full, and a use there wants shards |
//! | all-reduce of a partial result | a reduction over the cut dim takes shards |
//! | memory traffic | at the edges of a fusion that it binds: read or written full |
//! | arithmetic | in a fusion that it binds: an op is computed full |
//!
//! Times are multiplied by how often the computation runs. Ties are broken towards fewer collectives in inner loops, then towards
//! fewer resident bytes. After Xu et al. 2020, §3.2, who place collectives greedily.

use hlo_analysis::min_cut::{Network, UNCUTTABLE, Vertex};
use hlo_pass::{Deadline, OutOfTime};
use smallvec::SmallVec;

/// A place in the cut: one value, or the operand of a reduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Node(pub u32);

/// What a use wants, or a value is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ValueForm {
    /// The whole array, whatever comes.
    Full,
    /// As the node.
    Of(Node),
}

impl ValueForm {
    /// The node that decides it.
    pub fn node(self) -> Option<Node> {
        match self {
            ValueForm::Full => None,
            ValueForm::Of(node) => Some(node),
        }
    }
}

/// What the uses of a value want: two inline.
pub(crate) type Uses = SmallVec<[ValueForm; 2]>;

/// A price: picoseconds first, then the tie-breakers.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Price {
    /// Time, in picoseconds.
    pub ps: f64,
    /// Collectives, weighted by loop depth.
    pub collectives: f64,
    /// Bytes that stay in memory.
    pub resident_bytes: f64,
}

impl Price {
    /// A price of time alone.
    pub fn time(ps: f64) -> Price {
        Price { ps, ..Price::default() }
    }

    /// The price as one whole number, compared in the order of its parts: 56 bits of picoseconds (20 hours), 22 of
    /// collectives, 42 of resident bytes in units of 256.
    pub(crate) fn as_capacity(self) -> u128 {
        let clamp = |x: f64, bits: u32| (x.max(0.0).round() as u128).min((1 << bits) - 1);
        clamp(self.ps, 56) << 64 | clamp(self.collectives, 22) << 42 | clamp(self.resident_bytes / 256.0, 42)
    }
}

/// One summand of the cost.
#[derive(Clone, PartialEq, Debug)]
pub enum Term {
    /// Paid if the node is full.
    Full(Node, Price),
    /// Paid if the node is in shards.
    Shard(Node, Price),
    /// Paid if `value` is in shards and one of `uses` wants it full; `None` means that it cannot be.
    #[allow(missing_docs)]
    Gather { value: Node, uses: Uses, price: Option<Price> },
    /// Paid if `value` is full and one of `uses` wants shards; `None` means that it cannot be.
    #[allow(missing_docs)]
    Slice { value: ValueForm, uses: Uses, price: Option<Price> },
    /// Paid if one of the uses is full.
    AnyFull(Uses, Price),
    /// Paid if one of the nodes is in shards.
    AnyShard(SmallVec<[Node; 2]>, Price),
    /// The node has to be full (`false`) or in shards (`true`).
    Fixed(Node, bool),
}

/// The cost of every placement, as a sum of terms.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    n_nodes: u32,
    /// The summands.
    pub terms: Vec<Term>,
}

/// For every node whether it is in shards.
pub(crate) type Assignment = Vec<bool>;

impl CostModel {
    /// A new node.
    pub(crate) fn add_node(&mut self) -> Node {
        self.n_nodes += 1;
        Node(self.n_nodes - 1)
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.n_nodes as usize
    }

    /// The cost of a placement as one number, [`UNCUTTABLE`] or more where it is impossible.
    pub fn capacity_of(&self, in_shards: &[bool]) -> u128 {
        let cost = |price: &Option<Price>| price.map_or(UNCUTTABLE, |p| p.as_capacity());
        self.terms.iter().fold(0u128, |sum, term| {
            let paid = paid(term, in_shards);
            sum.saturating_add(match term {
                _ if !paid => 0,
                Term::Full(_, price) | Term::Shard(_, price) => price.as_capacity(),
                Term::AnyFull(_, price) | Term::AnyShard(_, price) => price.as_capacity(),
                Term::Gather { price, .. } | Term::Slice { price, .. } => cost(price),
                Term::Fixed(..) => UNCUTTABLE,
            })
        })
    }

    /// For every node whether all possible placements have it full: what is fixed so, and what follows where forms cannot
    /// be converted.
    pub(crate) fn always_full(&self) -> Vec<bool> {
        let mut follows: Vec<Vec<Node>> = vec![Vec::new(); self.n_nodes()];
        let mut work: Vec<Node> = Vec::new();
        let mut imply = |from: ValueForm, to: Node| match from {
            ValueForm::Full => work.push(to),
            ValueForm::Of(node) => follows[node.0 as usize].push(to),
        };
        for term in &self.terms {
            match term {
                Term::Fixed(node, false) => imply(ValueForm::Full, *node),
                Term::Gather { value, uses, price: None } => uses.iter().for_each(|&u| imply(u, *value)),
                Term::Slice { value, uses, price: None } => uses.iter().for_each(|&u| match u {
                    ValueForm::Full => {}
                    ValueForm::Of(node) => imply(*value, node),
                }),
                Term::Fixed(_, true)
                | Term::Gather { .. }
                | Term::Slice { .. }
                | Term::Full(..)
                | Term::Shard(..)
                | Term::AnyFull(..)
                | Term::AnyShard(..) => {}
            }
        }
        let mut is_full = vec![false; self.n_nodes()];
        while let Some(node) = work.pop() {
            if !std::mem::replace(&mut is_full[node.0 as usize], true) {
                work.extend(&follows[node.0 as usize]);
            }
        }
        is_full
    }

    /// The cheapest placement, of all equally cheap ones the one with the fewest nodes in shards; and its cost.
    ///
    /// # Errors
    /// The time is over.
    pub fn solve(&self, deadline: Deadline) -> Result<(Assignment, u128), OutOfTime> {
        self.solve_with(&[], &[], deadline)
    }

    /// The cheapest placement for these terms and `more`, of all equally cheap ones the one with the fewest nodes in shards beside as
    /// many of `wanted` as they can have; and its cost.
    ///
    /// # Errors
    /// The time is over.
    pub(crate) fn solve_with(
        &self,
        more: &[Term],
        wanted: &[Node],
        deadline: Deadline,
    ) -> Result<(Assignment, u128), OutOfTime> {
        let mut builder = NetworkBuilder { network: Network::new() };
        let vertices: Vec<Vertex> = (0..self.n_nodes).map(|_| builder.network.add_vertex()).collect();
        for term in self.terms.iter().chain(more) {
            builder.add(term, &vertices);
        }
        let wanted: Vec<Vertex> = wanted.iter().map(|node| vertices[node.0 as usize]).collect();
        let cut = builder.network.cut(&wanted, || deadline.check())?;
        Ok((vertices.iter().map(|&v| cut.is_on_sink_side(v)).collect(), cut.value))
    }
}

/// Makes arcs of terms: what is full ends on the source's side.
struct NetworkBuilder {
    network: Network,
}

impl NetworkBuilder {
    fn add(&mut self, term: &Term, vertices: &[Vertex]) {
        let at = |node: Node| vertices[node.0 as usize];
        let form = |form: &ValueForm| match form {
            ValueForm::Full => Network::SOURCE,
            ValueForm::Of(node) => at(*node),
        };
        let cost = |price: &Option<Price>| price.map_or(UNCUTTABLE, |p| p.as_capacity());
        match term {
            Term::Full(node, price) => self.network.add_arc(at(*node), Network::SINK, price.as_capacity()),
            Term::Shard(node, price) => self.network.add_arc(Network::SOURCE, at(*node), price.as_capacity()),
            Term::Fixed(node, true) => self.network.add_arc(at(*node), Network::SINK, UNCUTTABLE),
            Term::Fixed(node, false) => self.network.add_arc(Network::SOURCE, at(*node), UNCUTTABLE),
            Term::Gather { value, uses, price } => {
                self.any_full(uses.iter().map(form), at(*value), cost(price));
            }
            Term::AnyFull(uses, price) => {
                self.any_full(uses.iter().map(form), Network::SINK, price.as_capacity());
            }
            Term::Slice { value, uses, price } => {
                self.any_shard(form(value), uses.iter().map(form), cost(price));
            }
            Term::AnyShard(nodes, price) => {
                self.any_shard(Network::SOURCE, nodes.iter().map(|&node| at(node)), price.as_capacity());
            }
        }
    }

    /// `capacity` is paid once if `to` is in shards and one of `from` is full.
    fn any_full(&mut self, from: impl ExactSizeIterator<Item = Vertex>, to: Vertex, capacity: u128) {
        if from.len() == 1 {
            from.for_each(|from| self.network.add_arc(from, to, capacity));
        } else if capacity > 0 && from.len() > 1 {
            let any = self.network.add_vertex();
            from.for_each(|from| self.network.add_arc(from, any, UNCUTTABLE));
            self.network.add_arc(any, to, capacity);
        }
    }

    /// `capacity` is paid once if `from` is full and one of `to` is in shards.
    fn any_shard(&mut self, from: Vertex, to: impl ExactSizeIterator<Item = Vertex>, capacity: u128) {
        if to.len() == 1 {
            to.for_each(|to| self.network.add_arc(from, to, capacity));
        } else if capacity > 0 && to.len() > 1 {
            let any = self.network.add_vertex();
            to.for_each(|to| self.network.add_arc(any, to, UNCUTTABLE));
            self.network.add_arc(from, any, capacity);
        }
    }
}

impl Term {
    /// Time that a placement pays for the term, in picoseconds; zero for terms that only forbid.
    pub fn ps(&self, in_shards: &[bool]) -> f64 {
        if !paid(self, in_shards) {
            return 0.0;
        }
        match self {
            Term::Full(_, price) | Term::Shard(_, price) => price.ps,
            Term::AnyFull(_, price) | Term::AnyShard(_, price) => price.ps,
            Term::Gather { price, .. } | Term::Slice { price, .. } => price.map_or(0.0, |p| p.ps),
            Term::Fixed(..) => 0.0,
        }
    }
}

/// Whether a placement has to pay a term.
fn paid(term: &Term, in_shards: &[bool]) -> bool {
    let is_shard = |node: &Node| in_shards.get(node.0 as usize).copied().unwrap_or(false);
    let wants_shard = |form: &ValueForm| match form {
        ValueForm::Full => false,
        ValueForm::Of(node) => is_shard(node),
    };
    match term {
        Term::Full(node, _) => !is_shard(node),
        Term::Shard(node, _) => is_shard(node),
        Term::Gather { value, uses, .. } => is_shard(value) && uses.iter().any(|u| !wants_shard(u)),
        Term::Slice { value, uses, .. } => !wants_shard(value) && uses.iter().any(wants_shard),
        Term::AnyFull(uses, _) => uses.iter().any(|u| !wants_shard(u)),
        Term::AnyShard(nodes, _) => nodes.iter().any(is_shard),
        Term::Fixed(node, wanted) => is_shard(node) != *wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;

    fn random(state: &mut u64, n: u64) -> u64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }

    /// A model of up to ten nodes with terms of all kinds.
    fn random_model(state: &mut u64) -> CostModel {
        let mut model = CostModel::default();
        let nodes: Vec<Node> = (0..1 + random(state, 10)).map(|_| model.add_node()).collect();
        let node = |state: &mut u64| nodes[random(state, nodes.len() as u64) as usize];
        for _ in 0..random(state, 24) {
            let price = Price {
                ps: random(state, 9) as f64,
                collectives: random(state, 3) as f64,
                resident_bytes: random(state, 4) as f64 * 256.0,
            };
            let some = (random(state, 12) > 0).then_some(price);
            let uses = |state: &mut u64| -> Uses {
                (0..1 + random(state, 3))
                    .map(|_| if random(state, 4) == 0 { ValueForm::Full } else { ValueForm::Of(node(state)) })
                    .collect()
            };
            let term = match random(state, 7) {
                0 => Term::Full(node(state), price),
                1 => Term::Shard(node(state), price),
                2 => Term::Gather { value: node(state), uses: uses(state), price: some },
                3 => Term::Slice { value: ValueForm::Of(node(state)), uses: uses(state), price: some },
                4 => Term::AnyFull(uses(state), price),
                5 => Term::AnyShard((0..1 + random(state, 3)).map(|_| node(state)).collect(), price),
                _ => Term::Fixed(node(state), random(state, 2) == 0),
            };
            model.terms.push(term);
        }
        model
    }

    #[test]
    fn the_cut_is_the_cheapest_of_all_placements() {
        let mut state = 0x1234_5678_9abc_def1;
        let mut n_possible = 0;
        for _ in 0..10_000 {
            let model = random_model(&mut state);
            let n = model.n_nodes();
            let best = (0u32..1 << n)
                .map(|mask| model.capacity_of(&(0..n).map(|i| mask >> i & 1 == 1).collect::<Vec<bool>>()))
                .min()
                .expect("one placement at least");
            let (assignment, value) = model.solve(Deadline::default()).expect("no deadline");
            let possible = (0u32..1 << n)
                .map(|mask| (0..n).map(|i| mask >> i & 1 == 1).collect::<Vec<bool>>())
                .filter(|assignment| model.capacity_of(assignment) < UNCUTTABLE);
            let ever = possible.fold(vec![false; n], |ever, a| ever.iter().zip(a).map(|(e, a)| *e || a).collect());
            for (is_full, ever) in model.always_full().iter().zip(ever) {
                assert!(!(*is_full && ever), "{model:?}");
            }
            if best < UNCUTTABLE {
                n_possible += 1;
                assert_eq!(value, best, "{model:?}");
                assert_eq!(model.capacity_of(&assignment), best, "{model:?}");
                let wanted: Vec<Node> = (0..n as u32).map(Node).filter(|_| random(&mut state, 2) == 0).collect();
                let (most, value) = model.solve_with(&[], &wanted, Deadline::default()).expect("no deadline");
                assert_eq!((value, model.capacity_of(&most)), (best, best), "{model:?}");
                let cheapest = (0u32..1 << n).map(|mask| (0..n).map(|i| mask >> i & 1 == 1).collect::<Vec<bool>>());
                let n_wanted = |in_shards: &[bool]| wanted.iter().filter(|node| in_shards[node.0 as usize]).count();
                let rank = |a: &[bool]| (n_wanted(a), Reverse(a.iter().filter(|is_in_shards| **is_in_shards).count()));
                let best_rank = cheapest.filter(|a| model.capacity_of(a) == best).map(|a| rank(&a)).max();
                assert_eq!(Some(rank(&most)), best_rank, "{model:?} {wanted:?}");
            } else {
                assert!(value >= UNCUTTABLE, "{model:?}");
            }
        }
        assert!(n_possible > 5_000, "{n_possible} models had a possible placement");
    }

    #[test]
    fn prices_compare_in_the_order_of_their_parts() {
        let price = |ps, collectives, resident_bytes| Price { ps, collectives, resident_bytes }.as_capacity();
        assert!(price(1.0, 0.0, 0.0) > price(0.0, 1e6, 1e12));
        assert!(price(0.0, 1.0, 0.0) > price(0.0, 0.0, 1e12));
        assert!(price(0.0, 0.0, 512.0) > price(0.0, 0.0, 256.0));
    }

    #[test]
    fn a_price_too_large_for_its_bits_does_not_reach_into_the_next() {
        let price = |ps, collectives, resident_bytes| Price { ps, collectives, resident_bytes }.as_capacity();
        assert_eq!(price(3.0, 2.0, 256.0), 3 << 64 | 2 << 42 | 1);
        assert_eq!(price(-1.0, -1.0, -256.0), 0);
        for huge in [(1u64 << 60) as f64, f64::INFINITY] {
            assert_eq!(price(0.0, 0.0, huge), (1 << 42) - 1);
            assert_eq!(price(0.0, huge, 0.0), ((1 << 22) - 1) << 42);
            assert_eq!(price(huge, 0.0, 0.0), ((1 << 56) - 1) << 64);
        }
    }
}
