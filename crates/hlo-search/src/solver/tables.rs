//! Tables of the costs of pairs of states, shared by the edges that have equal ones, and what is derived of them.
//!
//! A [`Table`] keeps both orientations, so that the loops over it read consecutive numbers whichever end they start at. What the
//! solver derives of tables (restrictions, sums, folds) is made once for each distinct input: [`TableCache`].

use super::problem::{Cost, INFINITE};
use pulp::{Arch, NullaryFnOnce};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// From here on a sum counts as infinite: an infinite cost less what messages took off it. Finite costs sum to less.
const BOUNDARY: Cost = INFINITE / 2;

/// Whether a cost stands for what is not allowed.
pub(super) fn is_infinite(cost: Cost) -> bool {
    cost >= BOUNDARY
}

/// The sum of two costs, [`INFINITE`] where one of them or the sum is infinite.
pub(super) fn plus(left: Cost, right: Cost) -> Cost {
    let sum = left + right;
    if is_infinite(left) || is_infinite(right) || is_infinite(sum) { INFINITE } else { sum.max(-BOUNDARY) }
}

/// `out[c] = min over r of values[r] + rows[r][c]`, [`INFINITE`] where there is no finite sum. Returns how many entries it read.
pub(super) fn min_plus(values: &[Cost], rows: &[Cost], out: &mut [Cost]) -> u64 {
    Arch::new().dispatch(MinPlus { values, rows, out })
}

/// A [`min_plus`] that is compiled for several kinds of processors.
struct MinPlus<'a> {
    values: &'a [Cost],
    rows: &'a [Cost],
    out: &'a mut [Cost],
}

impl NullaryFnOnce for MinPlus<'_> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        let MinPlus { values, rows, out } = self;
        out.fill(INFINITE);
        let mut n_read = 0;
        for (value, row) in values.iter().zip(rows.chunks_exact(out.len())) {
            if is_infinite(*value) {
                continue;
            }
            n_read += row.len() as u64;
            for (least, cost) in out.iter_mut().zip(row) {
                *least = (*value + *cost).min(*least);
            }
        }
        for least in out.iter_mut() {
            *least = if is_infinite(*least) { INFINITE } else { *least };
        }
        n_read
    }
}

/// The most of `of_t - of_s` where `of_s` is finite.
struct MostExcess<'a> {
    of_t: &'a [Cost],
    of_s: &'a [Cost],
}

impl NullaryFnOnce for MostExcess<'_> {
    type Output = Cost;

    #[inline(always)]
    fn call(self) -> Cost {
        let pairs = self.of_t.iter().zip(self.of_s);
        pairs.fold(-INFINITE, |most, (of_t, of_s)| most.max(if is_infinite(*of_s) { -INFINITE } else { of_t - of_s }))
    }
}

/// The least of some costs, and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Least {
    pub cost: Cost,
    pub at: u32,
}

/// The costs of the pairs of states of two ends, numbered 0 and 1.
pub(super) struct Table {
    n_states: [usize; 2],
    sides: [Box<[Cost]>; 2],
    least: [OnceLock<Box<[Least]>>; 2],
    is_separable: OnceLock<bool>,
    partners: OnceLock<Option<Box<[u32]>>>,
}

impl Table {
    /// `costs[first * n_second + second]`. What is infinite becomes [`INFINITE`].
    pub(super) fn new(n_first: usize, n_second: usize, mut costs: Box<[Cost]>) -> Self {
        for cost in &mut costs {
            *cost = plus(*cost, 0);
        }
        let turned = turned(n_first, n_second, &costs);
        Table::of_sides([n_first, n_second], [costs, turned])
    }

    fn of_sides(n_states: [usize; 2], sides: [Box<[Cost]>; 2]) -> Self {
        Table { n_states, sides, least: Default::default(), is_separable: OnceLock::new(), partners: OnceLock::new() }
    }

    pub(super) fn n_states(&self, side: usize) -> usize {
        self.n_states[side]
    }

    pub(super) fn n_entries(&self) -> usize {
        self.sides[0].len()
    }

    /// The costs with the states of one end as rows.
    pub(super) fn side(&self, side: usize) -> &[Cost] {
        &self.sides[side]
    }

    /// The costs of one end's state, by the state of the other.
    pub(super) fn row(&self, side: usize, state: usize) -> &[Cost] {
        let n = self.n_states[1 - side];
        &self.sides[side][state * n..(state + 1) * n]
    }

    /// By state of one end, the least cost.
    pub(super) fn least(&self, side: usize) -> &[Least] {
        let of_row = |row: &[Cost]| {
            let first = Least { cost: INFINITE, at: 0 };
            let costs = (0..).zip(row);
            costs.fold(first, |least, (at, cost)| if *cost < least.cost { Least { cost: *cost, at } } else { least })
        };
        self.least[side].get_or_init(|| (0..self.n_states[side]).map(|state| of_row(self.row(side, state))).collect())
    }

    /// By how much state `t` of one end can cost more than state `s`. States of the other end that `s` does not allow do not count.
    pub(super) fn excess(&self, side: usize, t: usize, s: usize) -> Cost {
        Arch::new().dispatch(MostExcess { of_t: self.row(side, t), of_s: self.row(side, s) })
    }

    /// By state of one end, the only state of the other that it allows, if the table is one to one.
    pub(super) fn partners(&self, side: usize) -> Option<Box<[u32]>> {
        let of_first = self.partners.get_or_init(|| partners_of(self)).as_ref()?;
        if side == 0 {
            return Some(of_first.clone());
        }
        let mut of_second: Box<[u32]> = of_first.clone();
        (0..).zip(of_first).for_each(|(state, partner)| of_second[*partner as usize] = state);
        Some(of_second)
    }

    /// Whether the table is a sum of costs of the two ends: `T[r, c] = T[r, 0] + T[0, c] - T[0, 0]`, all finite.
    pub(super) fn is_separable(&self) -> bool {
        *self.is_separable.get_or_init(|| {
            let first = self.row(0, 0);
            let is_shifted = |row: &[Cost]| {
                row.iter()
                    .zip(first)
                    .all(|(cost, of_first)| !is_infinite(*cost) && cost - row[0] == of_first - first[0])
            };
            first.iter().all(|cost| !is_infinite(*cost)) && self.sides[0].chunks_exact(first.len()).all(is_shifted)
        })
    }
}

/// By state of the first end, the only state of the second that it allows; none if not all have one, or two have the same.
fn partners_of(table: &Table) -> Option<Box<[u32]>> {
    let [n_first, n_second] = table.n_states;
    if n_first != n_second {
        return None;
    }
    let mut is_taken = vec![false; n_second];
    let mut partner = |state: usize| {
        let mut allowed = (0..n_second).filter(|other| !is_infinite(table.row(0, state)[*other]));
        let (first, second) = (allowed.next()?, allowed.next());
        let is_free = !std::mem::replace(&mut is_taken[first], true);
        (is_free && second.is_none()).then_some(first as u32)
    };
    (0..n_first).map(&mut partner).collect()
}

/// An end of a table: the table, and the number of the end.
pub(super) type Side<'a> = (&'a Arc<Table>, usize);

/// What a derived table was made of. Tables stand by their address, which the cache keeps from being used again.
#[derive(PartialEq, Eq, Hash)]
enum Recipe {
    Restricted { of: usize, side: usize, kept: Box<[u32]> },
    Joined { left: usize, right: usize },
    Turned { of: usize },
    Folded { costs: Box<[Cost]>, ends: [(usize, usize); 2] },
}

struct Derived {
    table: Arc<Table>,
    /// Keeps the addresses in the recipe taken.
    _made_of: [Arc<Table>; 2],
}

/// Derived tables, by what they were made of.
#[derive(Default)]
pub(super) struct TableCache {
    known: HashMap<Recipe, Derived>,
    n_entries: usize,
    /// How many entries were read to make them.
    pub n_steps: u64,
}

/// How many entries a cache keeps before it starts anew.
const MOST_CACHED: usize = 1 << 24;

impl TableCache {
    fn find_or_make(
        &mut self,
        recipe: Recipe,
        made_of: [&Arc<Table>; 2],
        make: impl FnOnce() -> (Table, u64),
    ) -> Arc<Table> {
        if let Some(derived) = self.known.get(&recipe) {
            return derived.table.clone();
        }
        let (table, n_steps) = make();
        if self.n_entries > MOST_CACHED {
            self.known.clear();
            self.n_entries = 0;
        }
        self.n_steps += n_steps;
        self.n_entries += table.n_entries();
        let table = Arc::new(table);
        self.known.insert(recipe, Derived { table: table.clone(), _made_of: made_of.map(Arc::clone) });
        table
    }

    /// A table of the states `kept` of one end.
    pub(super) fn restricted(&mut self, (table, side): Side, kept: &[u32]) -> Arc<Table> {
        let recipe = Recipe::Restricted { of: address(table), side, kept: kept.into() };
        self.find_or_make(recipe, [table, table], || {
            let rows = kept.iter().flat_map(|state| table.row(side, *state as usize));
            let costs: Box<[Cost]> = rows.copied().collect();
            let n_read = costs.len() as u64;
            let n = [kept.len(), table.n_states[1 - side]];
            let of_other = turned(n[0], n[1], &costs);
            let (n, sides) = if side == 0 { (n, [costs, of_other]) } else { ([n[1], n[0]], [of_other, costs]) };
            (Table::of_sides(n, sides), n_read)
        })
    }

    /// The sum of two tables of the same ends.
    pub(super) fn joined(&mut self, left: &Arc<Table>, right: &Arc<Table>) -> Arc<Table> {
        let recipe = Recipe::Joined { left: address(left), right: address(right) };
        self.find_or_make(recipe, [left, right], || {
            let sums = left.sides[0].iter().zip(&right.sides[0]).map(|(left, right)| plus(*left, *right));
            let table = Table::new(left.n_states[0], left.n_states[1], sums.collect());
            (table, left.n_entries() as u64)
        })
    }

    /// The table with its ends exchanged.
    pub(super) fn turned(&mut self, table: &Arc<Table>) -> Arc<Table> {
        self.find_or_make(Recipe::Turned { of: address(table) }, [table, table], || {
            let turned = Table::new(table.n_states[1], table.n_states[0], table.sides[1].clone());
            (turned, table.n_entries() as u64)
        })
    }

    /// The table of the two neighbours of a node that is folded away: the least, over its states, of its costs and the two tables.
    /// Each side is the folded node's.
    pub(super) fn folded(&mut self, costs: &[Cost], first: Side, second: Side) -> Arc<Table> {
        let ends = [(address(first.0), first.1), (address(second.0), second.1)];
        let recipe = Recipe::Folded { costs: costs.into(), ends };
        self.find_or_make(recipe, [first.0, second.0], || {
            let n = [first, second].map(|(table, side)| table.n_states[1 - side]);
            let mut folded = vec![INFINITE; n[0] * n[1]];
            let mut n_read = 0;
            let mut values = vec![0; costs.len()];
            for (state, out) in folded.chunks_exact_mut(n[1]).enumerate() {
                let row = first.0.row(1 - first.1, state);
                for ((value, cost), entry) in values.iter_mut().zip(costs).zip(row) {
                    *value = plus(*cost, *entry);
                }
                n_read += min_plus(&values, second.0.side(second.1), out);
            }
            (Table::new(n[0], n[1], folded.into()), n_read)
        })
    }
}

fn turned(n_rows: usize, n_columns: usize, costs: &[Cost]) -> Box<[Cost]> {
    let places = (0..n_columns).flat_map(|column| (0..n_rows).map(move |row| row * n_columns + column));
    places.map(|place| costs[place]).collect()
}

fn address(table: &Arc<Table>) -> usize {
    Arc::as_ptr(table).addr()
}
