//! The program on one mesh as a problem of the solver: a variable for each op (its plans) and for each kept value (its states).
//!
//! Costs: an op's work, once for each plan; a redistribution wherever a value goes from one variable to another, as often as that
//! happens. `J` is their sum. Each variable's states and each table are built once for equal shapes.

mod ways;

use crate::mesh::SearchMesh;
use crate::plans::{OpRule, Plan};
use crate::prices::Prices;
use crate::program::{CutId, CutValue, OpId, Program, Taker};
use crate::regions::{RegionId, WayOf};
use crate::solver::{Assignment, Cost, INFINITE, PairTable, Problem, VarId};
use crate::state::State;
use crate::tiles::Tiles;
use crate::work::{OpWork, Work, find_work};
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use hlo_ir::Dims;
use hlo_ir::names::FixedHash;
use hlo_mesh::Machine;
use indexmap::{IndexMap, IndexSet};
use std::sync::Arc;

/// What is the same on every mesh.
pub(crate) struct Facts<'p, 'm> {
    pub program: &'p Program<'m>,
    pub rules: PrimaryMap<OpId, OpRule>,
    pub work: Work,
    pub machine: &'p Machine,
    /// Every axis divides what it cuts.
    pub even: bool,
    /// It does so for parameters and results, as frameworks can hold them.
    pub even_ends: bool,
}

/// What has to be cut into equal tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evenness {
    /// Nothing: the last tiles are padded.
    None,
    /// Parameters and results.
    Ends,
    /// Everything.
    All,
}

/// What a variable decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Decides {
    /// The plan of an op.
    Plan(OpId),
    /// The state in which a value is kept.
    Kept(CutId),
    /// The way in which a region is computed.
    Way(RegionId),
    /// The state in which a value that a region takes or gives is kept, with the region's way.
    AtRegion(RegionId, CutId),
}

/// Which part a variable has in regions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum RegionPart {
    /// None.
    #[default]
    Outside,
    /// It is one of this way: it has one more state behind its own, *off*.
    OfWay(WayOf),
    /// Each of its states comes once with each of so many ways of the region: state `k` with way `w` is number `k * n + w`.
    AtRegion(RegionId, u32),
}

/// The problem on one mesh, and what its variables and states mean.
pub(crate) struct PlanNetwork {
    pub mesh: SearchMesh,
    /// Whether parameters and results are cut into equal tiles.
    pub even_ends: bool,
    pub problem: Problem,
    pub decides: PrimaryMap<VarId, Decides>,
    pub plans: SecondaryMap<OpId, Arc<[Plan]>>,
    pub states: SecondaryMap<CutId, Arc<[State]>>,
    pub var_of_op: SecondaryMap<OpId, PackedOption<VarId>>,
    pub var_of_value: SecondaryMap<CutId, PackedOption<VarId>>,
    pub var_of_region: SecondaryMap<RegionId, PackedOption<VarId>>,
    /// By variable, its part in regions.
    part: SecondaryMap<VarId, RegionPart>,
}

impl<'p, 'm> Facts<'p, 'm> {
    /// Reads the rules of all ops.
    pub(crate) fn new(program: &'p Program<'m>, machine: &'p Machine, even: Evenness) -> Facts<'p, 'm> {
        let mut may_be_partial: SecondaryMap<CutId, bool> = SecondaryMap::new();
        let mut rules: PrimaryMap<OpId, OpRule> = PrimaryMap::new();
        // Ops stand in order of their computations; what a loop carries is taken to be whole.
        for op in program.ops.values() {
            let of_operand = |k: usize| op.operands.get(k).and_then(|v| v.expand()).is_some_and(|v| may_be_partial[v]);
            let rule = OpRule::of(program.module, op, of_operand);
            if rule.may_give_sums() {
                op.results.iter().filter_map(|v| v.expand()).for_each(|value| may_be_partial[value] = true);
            }
            for value in op.results.iter().filter_map(|v| v.expand()) {
                // Ports of what comes later in the text are taken by what comes later still.
                let ports = program.values[value].takers.iter().filter_map(|(taker, _)| match *taker {
                    Taker::Becomes(other) if program.values[other].is_port => Some(other),
                    _ => None,
                });
                let is_partial = may_be_partial[value];
                ports.for_each(|port| may_be_partial[port] |= is_partial);
            }
            rules.push(rule);
        }
        Facts {
            program,
            rules,
            work: find_work(program),
            machine,
            even: even == Evenness::All,
            even_ends: even != Evenness::None,
        }
    }
}

/// A parameter's bytes on a device that count as a picosecond: 4 GiB count as 65 nanoseconds.
const BYTES_HELD_FOR_A_PICOSECOND: f64 = 65_536.0;

/// Tables by what they depend on.
type TableKey = (Dims, u64, u64, usize, usize);

struct NetworkBuilder<'a, 'p, 'm> {
    facts: &'a Facts<'p, 'm>,
    prices: &'a Prices<'a>,
    network: PlanNetwork,
    lists: IndexSet<Arc<[State]>, FixedHash>,
    tables: IndexMap<TableKey, Arc<PairTable>, FixedHash>,
    same_tables: IndexSet<Arc<PairTable>, FixedHash>,
    /// Variables of values that regions take and give.
    at_region: IndexMap<(RegionId, CutId), VarId, FixedHash>,
}

impl PlanNetwork {
    /// The problem of a program on a mesh.
    pub(crate) fn build(facts: &Facts<'_, '_>, prices: &Prices<'_>) -> PlanNetwork {
        let network = PlanNetwork {
            mesh: prices.mesh.clone(),
            even_ends: facts.even_ends,
            problem: Problem::default(),
            decides: PrimaryMap::new(),
            plans: SecondaryMap::with_default(Arc::from([])),
            states: SecondaryMap::with_default(Arc::from([])),
            var_of_op: SecondaryMap::new(),
            var_of_value: SecondaryMap::new(),
            var_of_region: SecondaryMap::new(),
            part: SecondaryMap::new(),
        };
        let mut builder = NetworkBuilder {
            facts,
            prices,
            network,
            lists: IndexSet::default(),
            tables: IndexMap::default(),
            same_tables: IndexSet::default(),
            at_region: IndexMap::default(),
        };
        builder.find_plans();
        builder.find_states();
        builder.add_variables();
        builder.add_takers();
        builder.network
    }

    /// The part of a variable in regions.
    pub(crate) fn part(&self, var: VarId) -> RegionPart {
        self.part[var]
    }

    /// Whether a variable is off.
    pub(crate) fn is_off(&self, var: VarId, assignment: &Assignment) -> bool {
        self.off(var) == Some(assignment[var])
    }

    /// The state in which a variable is off, if it is one of a way.
    pub(crate) fn off(&self, var: VarId) -> Option<u32> {
        match self.part[var] {
            RegionPart::OfWay(_) => Some(self.problem.variables[var].len() as u32 - 1),
            RegionPart::Outside | RegionPart::AtRegion(..) => None,
        }
    }

    /// The variable that says in which state a value comes to its takers.
    pub(crate) fn source(&self, program: &Program<'_>, value: CutId) -> Option<VarId> {
        let kept = self.var_of_value[value].expand();
        kept.or_else(|| program.values[value].producer.and_then(|(op, _)| self.var_of_op[op].expand()))
    }
}

impl NetworkBuilder<'_, '_, '_> {
    /// The plans of each op. Reductions other than sums are finished where they are computed.
    fn find_plans(&mut self) {
        let program = self.facts.program;
        let mut known: IndexMap<String, Arc<[Plan]>, FixedHash> = IndexMap::default();
        for id in program.ops.keys() {
            let rule = &self.facts.rules[id];
            let key = format!("{rule:?}");
            let plans = known.entry(key).or_insert_with(|| rule.plans(self.prices.mesh, self.facts.even).into());
            self.network.plans[id] = plans.clone();
        }
    }

    fn list(&mut self, states: Vec<State>) -> usize {
        let states: Arc<[State]> = states.into();
        self.lists.insert_full(states).0
    }

    /// The states of results or operands of an op's plans.
    fn plan_states(&self, op: OpId, of: impl Fn(&Plan) -> State) -> Vec<State> {
        self.network.plans[op].iter().map(of).collect()
    }

    /// The states of kept values: those in which they come and those in which they are taken, without partial sums for what has to be
    /// whole outside.
    fn find_states(&mut self) {
        let program = self.facts.program;
        let mut of: SecondaryMap<CutId, IndexSet<State, FixedHash>> = SecondaryMap::new();
        for (id, value) in program.values.iter().filter(|(_, value)| value.is_kept && !value.is_free) {
            let mut states: IndexSet<State, FixedHash> = IndexSet::default();
            states.insert(State::WHOLE);
            let made = value.producer.map(|(op, k)| self.plan_states(op, |plan| plan.results[k as usize]));
            states.extend(made.into_iter().flatten());
            for (taker, _) in &value.takers {
                if let Taker::Op { op, operand } = *taker {
                    states.extend(self.plan_states(op, |plan| plan.operands[operand as usize]));
                }
            }
            if self.facts.even_ends && (value.is_param || value.takers.iter().any(|(taker, _)| leaves_program(*taker)))
            {
                states.retain(|state| is_even(value, *state, self.prices.mesh));
            }
            let port = program.choices.port(id);
            for &root in port.iter().flat_map(|port| &port.roots) {
                let made = program.values[root].producer;
                states
                    .extend(made.into_iter().flat_map(|(op, k)| self.plan_states(op, |plan| plan.results[k as usize])));
            }
            let leaves = value.takers.iter().any(|(taker, _)| match *taker {
                Taker::Op { .. } => false,
                Taker::Becomes(other) => !program.values[other].is_port,
                Taker::Exit(_) | Taker::Replaces { .. } | Taker::Whole => true,
            });
            if (value.producer.is_none() && port.is_none()) || leaves {
                states = states.into_iter().map(|state| state.resolved(self.prices.mesh)).collect();
            }
            of[id] = states;
        }
        self.share_states(&mut of);
        for (id, value) in program.values.iter().filter(|(_, value)| self.facts.even_ends && value.is_param) {
            of[id].retain(|state| is_even(value, *state, self.prices.mesh));
        }
        for (id, _) in program.values.iter().filter(|(_, value)| value.is_kept && !value.is_free) {
            let mut states: Vec<State> = of[id].iter().copied().collect();
            states.sort();
            let at = self.list(states);
            self.network.states[id] = self.lists[at].clone();
        }
    }

    /// A value that becomes another one may be in its states, and the other way round, however long the chain is: until no value
    /// gets another state.
    fn share_states(&self, of: &mut SecondaryMap<CutId, IndexSet<State, FixedHash>>) {
        let program = self.facts.program;
        let n_states =
            |of: &SecondaryMap<CutId, IndexSet<State, FixedHash>>| of.values().map(IndexSet::len).sum::<usize>();
        let mut n_known = usize::MAX;
        while n_states(of) != n_known {
            n_known = n_states(of);
            for (id, value) in &program.values {
                for (taker, _) in &value.takers {
                    let (Taker::Becomes(other) | Taker::Replaces { param: other, .. }) = *taker else { continue };
                    if program.values[other].is_port {
                        continue;
                    }
                    if value.is_kept && !value.is_free {
                        let theirs = of[other].clone();
                        of[id].extend(theirs);
                    }
                    let made: Vec<State> = match value.producer {
                        Some((op, k)) if !value.is_kept => {
                            self.plan_states(op, |plan| plan.results[k as usize].resolved(self.prices.mesh))
                        }
                        Some(_) | None => of[id].iter().map(|state| state.resolved(self.prices.mesh)).collect(),
                    };
                    of[other].extend(made);
                }
            }
        }
    }

    fn add_variables(&mut self) {
        let program = self.facts.program;
        // In the order in which values come to be, which is what the solver's sweeps follow.
        for (id, value) in &program.values {
            if value.is_kept && !value.is_free && value.producer.is_none() && !value.is_port {
                self.add_kept(id);
            }
        }
        for (region, &n_ways) in &program.choices.n_ways {
            let var = self.add_variable(vec![0; n_ways as usize], Decides::Way(region), RegionPart::Outside);
            self.network.var_of_region[region] = Some(var).into();
        }
        for (id, op) in &program.ops {
            self.add_values_at_region(id);
            let costs = self.own_costs(id);
            let part = program.choices.of_op[id].map_or(RegionPart::Outside, RegionPart::OfWay);
            let var = self.add_variable(costs, Decides::Plan(id), part);
            self.network.var_of_op[id] = Some(var).into();
            for (k, value) in op.results.iter().enumerate() {
                let Some(value) = value.expand().filter(|&value| program.values[value].is_kept) else { continue };
                let kept = self.add_kept(value);
                let from = self.plan_states(id, |plan| plan.results[k]);
                let to = self.network.states[value].to_vec();
                self.connect((var, from), (kept, to), value, op.frequency);
            }
            self.add_ports_behind(id);
        }
        self.tie_ways();
    }

    /// A variable; one that is part of a way has the state *off* as well, which costs nothing.
    fn add_variable(&mut self, mut costs: Vec<Cost>, decides: Decides, part: RegionPart) -> VarId {
        if matches!(part, RegionPart::OfWay(_)) {
            costs.push(0);
        }
        let var = self.network.problem.variables.push(costs);
        self.network.decides.push(decides);
        self.network.part[var] = part;
        var
    }

    fn add_kept(&mut self, value: CutId) -> VarId {
        let (of_value, mesh) = (&self.facts.program.values[value], self.prices.mesh);
        // Of states that cost the same, a parameter is in the one that takes the least memory.
        let held = |state: &State| match of_value.is_param {
            true => {
                (state.tile_elems(mesh, &of_value.dims) * of_value.elem_bytes / BYTES_HELD_FOR_A_PICOSECOND) as Cost
            }
            false => 0,
        };
        let costs = self.network.states[value].iter().map(held).collect();
        let part = self.facts.program.way_of(value).map_or(RegionPart::Outside, RegionPart::OfWay);
        let var = self.add_variable(costs, Decides::Kept(value), part);
        self.network.var_of_value[value] = Some(var).into();
        var
    }

    /// What each plan of an op costs by itself. A reduction that is no sum is finished at once.
    fn own_costs(&self, id: OpId) -> Vec<Cost> {
        match &self.facts.work.of_op[id] {
            Some(work) => self.costs_of(id, work),
            None => vec![0; self.network.plans[id].len()],
        }
    }

    /// The costs of an op's plans with this work.
    fn costs_of(&self, id: OpId, work: &OpWork) -> Vec<Cost> {
        let (program, mesh) = (self.facts.program, self.prices.mesh);
        let op = &program.ops[id];
        let cost = |plan: &Plan| -> Cost {
            let mut once = work.cost(&program.values, mesh, self.facts.machine, plan);
            for (k, value) in op.results.iter().enumerate() {
                let Some(value) = value.expand() else { continue };
                if plan.unfinished(k) != plan.results[k] {
                    let array = Tiles::of(&program.values[value], mesh);
                    once += self.prices.redistribution(&array, plan.unfinished(k), plan.results[k]);
                }
            }
            scaled(once, op.frequency)
        };
        self.network.plans[id].iter().map(cost).collect()
    }

    fn add_takers(&mut self) {
        let program = self.facts.program;
        for (id, value) in program.values.iter().filter(|(_, value)| !value.is_free) {
            let Some(source) = self.network.source(program, id) else { continue };
            let from = match (value.is_kept, value.producer) {
                (true, _) | (false, None) => self.network.states[id].to_vec(),
                (false, Some((op, k))) => self.plan_states(op, |plan| plan.results[k as usize]),
            };
            let mut taken: Vec<OpId> = Vec::new();
            for &(taker, frequency) in &value.takers {
                match taker {
                    Taker::Op { op, .. } if taken.contains(&op) => {}
                    Taker::Op { op, .. } => {
                        taken.push(op);
                        let source = self.source_at(op, id).unwrap_or(source);
                        self.connect_op((source, from.clone()), op, id, frequency);
                    }
                    Taker::Becomes(other) | Taker::Replaces { param: other, .. } => {
                        let Some(var) = self.network.var_of_value[other].expand() else { continue };
                        let to = self.network.states[other].to_vec();
                        let port = &program.values[other];
                        let region = program.choices.port(other).map(|port| port.region);
                        let var =
                            region.and_then(|region| self.at_region.get(&(region, other)).copied()).unwrap_or(var);
                        // One value, which is kept in one state at most: a redistribution on the way to where it is kept, and one from there.
                        match port.is_port && (value.is_kept || port.takers.len() == 1) {
                            true => self.equate((source, &from), (var, &to)),
                            false => self.connect((source, from.clone()), (var, to), id, frequency),
                        }
                    }
                    Taker::Exit(_) => {
                        let even_ends = self.network.even_ends;
                        let exit = |state: State, mesh: &SearchMesh| exit_state(value, state, mesh, even_ends);
                        self.finish(source, &from, id, frequency, exit);
                    }
                    Taker::Whole => self.finish(source, &from, id, frequency, |_, _| State::WHOLE),
                }
            }
        }
    }

    /// An op that takes a value, perhaps as several operands. What it takes twice in the same state comes once.
    fn connect_op(&mut self, (source, from): (VarId, Vec<State>), op: OpId, id: CutId, frequency: f64) {
        let Some(var) = self.network.var_of_op[op].expand() else { return };
        let program = self.facts.program;
        let operands: Vec<usize> =
            (0..program.ops[op].operands.len()).filter(|&k| program.ops[op].operands[k].expand() == Some(id)).collect();
        let lists: Vec<Vec<State>> = operands.iter().map(|&k| self.plan_states(op, |plan| plan.operands[k])).collect();
        let Some(first) = lists.first() else { return };
        if lists.iter().all(|list| list == first) {
            let to = first.clone();
            return self.connect((source, from), (var, to), id, frequency);
        }
        let (array, n_columns) = (Tiles::of(&program.values[id], self.prices.mesh), first.len());
        let mut costs: Vec<Cost> = Vec::with_capacity(from.len() * n_columns);
        for &state in &from {
            for plan in 0..n_columns {
                let mut wanted: Vec<State> = lists.iter().map(|list| list[plan]).collect();
                wanted.sort();
                wanted.dedup();
                let once = |to: State| self.prices.redistribution(&array, state, to);
                let sum = wanted.into_iter().map(|to| scaled(once(to), frequency)).fold(0, Cost::saturating_add);
                costs.push(sum.min(INFINITE));
            }
        }
        let table = PairTable { n_rows: from.len(), n_columns, costs: costs.into() };
        let table = self.shared(table);
        self.push_connected(source, var, table);
    }

    /// A taker without a variable wants a state that follows from the value's.
    fn finish(
        &mut self,
        source: VarId,
        from: &[State],
        value: CutId,
        frequency: f64,
        to: impl Fn(State, &SearchMesh) -> State,
    ) {
        let mesh = self.prices.mesh;
        let array = Tiles::of(&self.facts.program.values[value], mesh);
        let costs: Vec<Cost> = from
            .iter()
            .map(|&state| {
                let once = self.prices.redistribution(&array, state, to(state, mesh));
                scaled(once, frequency)
            })
            .collect();
        for (cost, more) in self.network.problem.variables[source].iter_mut().zip(costs) {
            *cost = cost.saturating_add(more).min(INFINITE);
        }
    }

    fn connect(
        &mut self,
        (rows, from): (VarId, Vec<State>),
        (columns, to): (VarId, Vec<State>),
        value: CutId,
        frequency: f64,
    ) {
        if rows == columns {
            return;
        }
        let table = self.table(value, frequency, from, to);
        self.push_connected(rows, columns, table);
    }

    /// A table; equal ones are one.
    fn shared(&mut self, table: PairTable) -> Arc<PairTable> {
        let (at, _) = self.same_tables.insert_full(Arc::new(table));
        self.same_tables[at].clone()
    }

    fn table(&mut self, value: CutId, frequency: f64, from: Vec<State>, to: Vec<State>) -> Arc<PairTable> {
        let value = &self.facts.program.values[value];
        let (rows, columns) = (self.list(from), self.list(to));
        let key = (value.dims.clone(), value.elem_bytes.to_bits(), frequency.to_bits(), rows, columns);
        if let Some(known) = self.tables.get(&key) {
            return known.clone();
        }
        let (from, to) = (self.lists[rows].clone(), self.lists[columns].clone());
        let distinct = |list: &[State]| -> (Vec<State>, Vec<usize>) {
            let mut all: IndexSet<State, FixedHash> = IndexSet::default();
            let places = list.iter().map(|&state| all.insert_full(state).0).collect();
            (all.into_iter().collect(), places)
        };
        let ((rows_once, row_of), (columns_once, column_of)) = (distinct(&from), distinct(&to));
        let array = Tiles::of(value, self.prices.mesh);
        let mut once = Vec::with_capacity(rows_once.len() * columns_once.len());
        for &a in &rows_once {
            for &b in &columns_once {
                let cost = self.prices.redistribution(&array, a, b);
                once.push(scaled(cost, frequency));
            }
        }
        let n = columns_once.len();
        let costs = row_of.iter().flat_map(|&row| column_of.iter().map(move |&column| (row, column)));
        let costs: Box<[Cost]> = costs.map(|(row, column)| once[row * n + column]).collect();
        let table = self.shared(PairTable { n_rows: from.len(), n_columns: to.len(), costs });
        self.tables.insert(key, table.clone());
        table
    }
}

/// Whether every tile of a value has as many elements.
fn is_even(value: &CutValue, state: State, mesh: &SearchMesh) -> bool {
    value.dims.iter().enumerate().all(|(dim, &size)| size % mesh.n_places(state.cutting(mesh, dim)) == 0)
}

/// The state in which a value leaves the program.
pub(crate) fn exit_state(value: &CutValue, state: State, mesh: &SearchMesh, even_ends: bool) -> State {
    match even_ends && !is_even(value, state, mesh) {
        true => State::WHOLE,
        false => state.resolved(mesh),
    }
}

/// Whether a taker is an end of the program.
fn leaves_program(taker: Taker) -> bool {
    match taker {
        Taker::Exit(_) | Taker::Replaces { .. } => true,
        Taker::Op { .. } | Taker::Becomes(_) | Taker::Whole => false,
    }
}

/// A cost as often as something happens.
fn scaled(cost: Cost, frequency: f64) -> Cost {
    if cost >= INFINITE {
        return INFINITE;
    }
    ((cost as f64 * frequency).round().min(INFINITE as f64)) as Cost
}
