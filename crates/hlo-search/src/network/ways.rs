//! Regions with several ways in the problem: which variables are on, and what their pairs cost where one is off.

use super::NetworkBuilder;
use crate::program::OpId;
use crate::solver::{Cost, INFINITE, Pair, PairTable, VarId};
use crate::state::State;
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
            }
        }
    }

    /// Ops that give the results of a way are on if and only if that way is taken; and what the work of others is depends on it.
    pub(super) fn tie_ways(&mut self) {
        let program = self.facts.program;
        let mut tied: Vec<OpId> = Vec::new();
        for port in &program.choices.ports {
            let makers = port.roots.iter().filter_map(|&root| program.values[root].producer);
            tied.extend(makers.map(|(maker, _)| maker));
        }
        tied.sort_unstable();
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

    /// Beside the least work of an op, what it takes more with each way of a region around it.
    pub(super) fn add_work_by_way(&mut self, k: usize) {
        let (region, op, works) = &self.facts.work.by_way[k];
        let (Some(rows), Some(var)) =
            (self.network.var_of_region[*region].expand(), self.network.var_of_op[*op].expand())
        else {
            return;
        };
        let by_way: Vec<Vec<Cost>> = works.iter().map(|work| self.costs_of(*op, work)).collect();
        let n_plans = self.network.plans[*op].len();
        let is_off = self.network.way_of_var[var].is_some();
        let mut costs = vec![0; by_way.len() * (n_plans + usize::from(is_off))];
        for plan in 0..n_plans {
            let least = by_way.iter().map(|costs| costs[plan]).min().unwrap_or(0);
            let own = &mut self.network.problem.variables[var][plan];
            // The way that the program has is in the cost already.
            *own = (*own + least - by_way[0][plan]).max(0);
            for (way, of_way) in by_way.iter().enumerate() {
                costs[way * (n_plans + usize::from(is_off)) + plan] = of_way[plan] - least;
            }
        }
        let table = PairTable { n_rows: by_way.len(), n_columns: n_plans + usize::from(is_off), costs: costs.into() };
        self.push_pair(rows, var, table);
    }

    /// Two variables that have to be in the same state.
    pub(super) fn equate(&mut self, (rows, from): (VarId, &[State]), (columns, to): (VarId, &[State])) {
        let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (a, b)));
        let costs = pairs.map(|(a, b)| if a == b { 0 } else { INFINITE }).collect();
        let (at, _) =
            self.same_tables.insert_full(Arc::new(PairTable { n_rows: from.len(), n_columns: to.len(), costs }));
        let table = self.same_tables[at].clone();
        self.push_connected(rows, columns, table);
    }

    pub(super) fn push_pair(&mut self, rows: VarId, columns: VarId, table: PairTable) {
        if table.costs.iter().all(|&cost| cost == 0) {
            return;
        }
        let (at, _) = self.same_tables.insert_full(Arc::new(table));
        let table = self.same_tables[at].clone();
        self.network.problem.pairs.push(Pair { rows, columns, table });
    }

    /// Two variables with a table over their own states; where one of them can be off, the pair can be so: for nothing if what takes a
    /// value is off or what gives it is that of another way, and never if one of two ops of a way is.
    pub(super) fn push_connected(&mut self, rows: VarId, columns: VarId, table: Arc<PairTable>) {
        let ways = [self.network.way_of_var[rows], self.network.way_of_var[columns]];
        if ways == [None, None] {
            if table.costs.iter().any(|&cost| cost != 0) {
                self.network.problem.pairs.push(Pair { rows, columns, table });
            }
            return;
        }
        let [more_rows, more_columns] = ways.map(|way| usize::from(way.is_some()));
        let (n_rows, n_columns) = (table.n_rows + more_rows, table.n_columns + more_columns);
        let is_one_way = ways[0].is_some() && ways[0] == ways[1];
        let cost = |row: usize, column: usize| match (row < table.n_rows, column < table.n_columns) {
            (true, true) => table.costs[row * table.n_columns + column],
            (false, false) => 0,
            (true, false) | (false, true) if is_one_way => INFINITE,
            (true, false) | (false, true) => 0,
        };
        let costs = (0..n_rows).flat_map(|row| (0..n_columns).map(move |column| (row, column)));
        let costs: Box<[Cost]> = costs.map(|(row, column)| cost(row, column)).collect();
        self.push_pair(rows, columns, PairTable { n_rows, n_columns, costs });
    }
}
