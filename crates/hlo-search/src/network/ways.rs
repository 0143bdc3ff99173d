//! Regions with several ways in the problem: which variables are on, and what their pairs cost where one is off.

use super::{Decides, NetworkBuilder, RegionPart};
use crate::program::{CutId, OpId};
use crate::regions::{RegionId, WayOf};
use crate::solver::{Cost, INFINITE, Pair, PairTable, VarId};
use crate::state::State;
use crate::work::WorkByWay;
use std::sync::Arc;

impl NetworkBuilder<'_, '_, '_> {
    /// The ports of which this op is the last that one of the ways needs.
    pub(super) fn add_ports_behind(&mut self, op: OpId) {
        let program = self.facts.program;
        let Some(of) = program.choices.of_op[op] else { return };
        for port in program.choices.ports_of(of.region) {
            let makers = port.roots.iter().filter_map(|&root| program.values[root].producer);
            if makers.map(|(maker, _)| maker).max() == Some(op) {
                self.add_kept(port.value);
                self.add_at_region(port.region, port.value);
            }
        }
    }

    /// The kept values that an op of a way takes from outside of its region, each once for the region.
    pub(super) fn add_values_at_region(&mut self, op: OpId) {
        let program = self.facts.program;
        let Some(of) = program.choices.of_op[op] else { return };
        for value in program.ops[op].operands.iter().filter_map(|value| value.expand()) {
            let is_own = program.way_of(value).is_some_and(|other| other.region == of.region);
            if !is_own && self.network.var_of_value[value].is_some() {
                self.add_at_region(of.region, value);
            }
        }
    }

    /// A variable for the state of a value together with the way of a region that takes or gives it. Without it a bound could have the
    /// value in one state while the ops of one way are on, and in another one, which costs nothing, while they are off.
    fn add_at_region(&mut self, region: RegionId, value: CutId) {
        let (Some(own), Some(way)) =
            (self.network.var_of_value[value].expand(), self.network.var_of_region[region].expand())
        else {
            return;
        };
        if self.at_region.contains_key(&(region, value)) {
            return;
        }
        let (n_states, n_ways) = (self.network.states[value].len(), self.facts.program.choices.n_ways[region]);
        let n = n_states * n_ways as usize;
        let var = self.add_variable(vec![0; n], Decides::AtRegion(region, value), RegionPart::AtRegion(region, n_ways));
        self.at_region.insert((region, value), var);
        let equal = |a: usize, b: usize| if a == b { 0 } else { INFINITE };
        let table = |n_rows: usize, cost: &dyn Fn(usize, usize) -> Cost| PairTable {
            n_rows,
            n_columns: n,
            costs: (0..n_rows * n).map(|at| cost(at / n, at % n)).collect(),
        };
        self.push_pair(own, var, table(n_states, &|state, at| equal(state, at / n_ways as usize)));
        self.push_pair(way, var, table(n_ways as usize, &|way, at| equal(way, at % n_ways as usize)));
    }

    /// The variable from which an op of a way takes a value of outside.
    pub(super) fn source_at(&self, op: OpId, value: CutId) -> Option<VarId> {
        let of = self.facts.program.choices.of_op[op]?;
        self.at_region.get(&(of.region, value)).copied()
    }

    /// Ops that give the results of a way are on if and only if that way is taken; and what the work of others is depends on it.
    pub(super) fn tie_ways(&mut self) {
        let program = self.facts.program;
        let mut tied: Vec<OpId> = Vec::new();
        for port in &program.choices.ports {
            let makers = port.roots.iter().filter_map(|&root| program.values[root].producer);
            tied.extend(makers.map(|(maker, _)| maker));
        }
        tied.sort();
        tied.dedup();
        for op in tied {
            let Some(of) = program.choices.of_op[op] else { continue };
            let (Some(rows), Some(columns)) =
                (self.network.var_of_region[of.region].expand(), self.network.var_of_op[op].expand())
            else {
                continue;
            };
            let (n_rows, n_plans) = (program.choices.n_ways[of.region] as usize, self.network.plans[op].len());
            let cost = |way: usize, state: usize| match (way == of.way as usize) == (state < n_plans) {
                true => 0,
                false => INFINITE,
            };
            let costs = (0..n_rows).flat_map(|way| (0..=n_plans).map(move |state| (way, state)));
            let costs: Box<[Cost]> = costs.map(|(way, state)| cost(way, state)).collect();
            self.push_pair(rows, columns, PairTable { n_rows, n_columns: n_plans + 1, costs });
        }
        for k in 0..self.facts.work.by_way.len() {
            self.add_work_by_way(k);
        }
    }

    /// The work of an op as a sum: the least, and for each region around it what its ways add.
    ///
    /// Where what ways add is no sum (two regions decide together whether there is a kernel at all), the sum is lowered until it is nowhere more than
    /// the work is, so that a bound stays one.
    pub(super) fn add_work_by_way(&mut self, k: usize) {
        let facts = self.facts;
        let WorkByWay { op, regions, works } = &facts.work.by_way[k];
        let Some(var) = self.network.var_of_op[*op].expand() else { return };
        let by_works: Vec<Vec<Cost>> = works.iter().map(|work| self.costs_of(*op, work)).collect();
        let n_plans = self.network.plans[*op].len();
        let n_columns = n_plans + usize::from(self.network.off(var).is_some());
        let mut tables: Vec<Vec<Cost>> = regions.iter().map(|(_, n)| vec![0; *n as usize * n_columns]).collect();
        for plan in 0..n_plans {
            let costs: Vec<Cost> = by_works.iter().map(|costs| costs[plan]).collect();
            let sum = WaySum::below(&costs, regions.iter().map(|(_, n_ways)| *n_ways as usize).collect());
            self.network.problem.variables[var][plan] = sum.least;
            for (table, more) in tables.iter_mut().zip(&sum.more) {
                more.iter().enumerate().for_each(|(way, &cost)| table[way * n_columns + plan] = cost);
            }
        }
        for ((region, n_ways), costs) in regions.iter().zip(tables) {
            let Some(rows) = self.network.var_of_region[*region].expand() else { continue };
            self.push_pair(rows, var, PairTable { n_rows: *n_ways as usize, n_columns, costs: costs.into() });
        }
    }

    /// Two variables that have to be in the same state.
    pub(super) fn equate(&mut self, (rows, from): (VarId, &[State]), (columns, to): (VarId, &[State])) {
        let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (a, b)));
        let costs = pairs.map(|(a, b)| if a == b { 0 } else { INFINITE }).collect();
        let table = self.shared(PairTable { n_rows: from.len(), n_columns: to.len(), costs });
        self.push_connected(rows, columns, table);
    }

    pub(super) fn push_pair(&mut self, rows: VarId, columns: VarId, table: PairTable) {
        if table.costs.iter().all(|&cost| cost == 0) {
            return;
        }
        let table = self.shared(table);
        self.network.problem.pairs.push(Pair { rows, columns, table });
    }

    /// Two variables with a table over their own states, as far as ways let them be on together.
    pub(super) fn push_connected(&mut self, rows: VarId, columns: VarId, table: Arc<PairTable>) {
        let parts = [self.network.part[rows], self.network.part[columns]];
        if parts == [RegionPart::Outside; 2] {
            if table.costs.iter().any(|&cost| cost != 0) {
                self.network.problem.pairs.push(Pair { rows, columns, table });
            }
            return;
        }
        let [n_rows, n_columns] = [parts[0].n_states(table.n_rows), parts[1].n_states(table.n_columns)];
        let cost = |row: usize, column: usize| {
            let ends = [parts[0].meaning(row, table.n_rows), parts[1].meaning(column, table.n_columns)];
            match (may_meet(parts, ends), ends) {
                (false, _) => INFINITE,
                (true, [Meaning { own: Some(row), .. }, Meaning { own: Some(column), .. }]) => {
                    table.costs[row * table.n_columns + column]
                }
                (true, _) => 0,
            }
        };
        let costs = (0..n_rows * n_columns).map(|at| cost(at / n_columns, at % n_columns)).collect();
        self.push_pair(rows, columns, PairTable { n_rows, n_columns, costs });
    }
}

/// What a state of a variable says.
#[derive(Clone, Copy)]
struct Meaning {
    /// Its state; `None`: off.
    own: Option<usize>,
    /// The way of the region that it comes with.
    way: Option<WayOf>,
}

impl RegionPart {
    /// How many states a variable has that has `n` of its own.
    fn n_states(self, n: usize) -> usize {
        match self {
            RegionPart::Outside => n,
            RegionPart::OfWay(_) => n + 1,
            RegionPart::AtRegion(_, n_ways) => n * n_ways as usize,
        }
    }

    fn meaning(self, state: usize, n: usize) -> Meaning {
        match self {
            RegionPart::Outside => Meaning { own: Some(state), way: None },
            RegionPart::OfWay(_) => Meaning { own: Some(state).filter(|&state| state < n), way: None },
            RegionPart::AtRegion(region, n_ways) => {
                let way = WayOf { region, way: state as u32 % n_ways };
                Meaning { own: Some(state / n_ways as usize), way: Some(way) }
            }
        }
    }
}

/// Whether what two variables say goes together: all ops of a way are on or all are off, and they are on where the region's way is theirs.
/// What is off takes and gives nothing, whatever stands on the other side.
fn may_meet(parts: [RegionPart; 2], ends: [Meaning; 2]) -> bool {
    let is_on = |k: usize| ends[k].own.is_some();
    let agrees = |of: WayOf, k: usize| {
        let other = 1 - k;
        match (parts[other], ends[other].way) {
            (RegionPart::OfWay(theirs), _) if theirs == of => is_on(k) == is_on(other),
            (RegionPart::AtRegion(region, _), Some(way)) if region == of.region => is_on(k) == (way == of),
            (RegionPart::Outside | RegionPart::OfWay(_) | RegionPart::AtRegion(..), _) => true,
        }
    };
    (0..2).all(|k| match parts[k] {
        RegionPart::OfWay(of) => agrees(of, k),
        RegionPart::Outside | RegionPart::AtRegion(..) => true,
    })
}

/// A cost by the ways of some regions, as a sum over them.
struct WaySum {
    least: Cost,
    /// By region and way.
    more: Vec<Vec<Cost>>,
}

impl WaySum {
    /// A sum that is nowhere above `costs`, which go over the ways of the first region slowest. It is equal to them if they are a sum.
    fn below(costs: &[Cost], n_ways: Vec<usize>) -> WaySum {
        let stride = |region: usize| n_ways[region + 1..].iter().product::<usize>();
        let way_in = |at: usize, region: usize| at / stride(region) % n_ways[region];
        let mut more: Vec<Vec<Cost>> = (0..n_ways.len())
            .map(|region| (0..n_ways[region]).map(|way| costs[way * stride(region)] - costs[0]).collect())
            .collect();
        let sum_at = |more: &[Vec<Cost>], at: usize| -> Cost {
            more.iter().enumerate().map(|(region, of_way)| of_way[way_in(at, region)]).sum()
        };
        let above = (0..costs.len()).map(|at| costs[0] + sum_at(&more, at) - costs[at]).max().unwrap_or(0).max(0);
        let mut least = costs[0] - above;
        for of_way in &mut more {
            let own = of_way.iter().copied().min().unwrap_or(0);
            of_way.iter_mut().for_each(|cost| *cost -= own);
            least += own;
        }
        if least < 0 {
            // No cost is below nothing, so that at the least of all ways nothing is below it; what ways add is lowered instead.
            more.iter_mut().flatten().for_each(|cost| *cost = (*cost + least).max(0));
            least = 0;
        }
        WaySum { least, more }
    }
}

#[cfg(test)]
mod tests {
    use super::WaySum;

    /// Two regions of two and three ways: each sum beside the cost that it stands for.
    fn sums(costs: [i64; 6]) -> Vec<(i64, i64)> {
        let sum = WaySum::below(&costs, vec![2, 3]);
        assert!(sum.least >= 0 && sum.more.iter().flatten().all(|&more| more >= 0));
        (0..6).map(|at| (sum.least + sum.more[0][at / 3] + sum.more[1][at % 3], costs[at])).collect()
    }

    #[test]
    fn what_is_a_sum_is_kept_and_nothing_is_above_its_cost() {
        assert!(sums([50, 70, 10, 55, 75, 15]).iter().all(|(sum, cost)| sum == cost));
        assert!(sums([50, 70, 10, 55, 75, 14]).iter().all(|(sum, cost)| sum <= cost && cost - sum <= 1));
        // A launch that one way saves, beside a roofline's corner: the sum is near, and not nothing.
        let near = sums([2_000_010, 3, 2_000_010, 2_000_024, 14, 2_000_024]);
        assert!(near.iter().all(|(sum, cost)| sum <= cost && cost - sum <= 20), "{near:?}");
        assert!(sums([0, 9, 9, 9, 0, 9]).iter().all(|(sum, cost)| sum <= cost));
    }
}
