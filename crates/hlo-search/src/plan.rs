//! A parallel plan: for a mesh, the plan of each op and the state of each value.

use crate::baselines::KnownPlan;
use crate::mesh::SearchMesh;
use crate::network::{Decides, PlanNetwork, exit_state};
use crate::plans::Plan;
use crate::prices::Prices;
use crate::program::{CutId, OpId, Program, Taker};
use crate::regions::RegionId;
use crate::solver::{Assignment, Cost};
use crate::state::State;
use crate::tiles::Tiles;

/// What an assignment of a network's variables means.
#[derive(Clone, Copy)]
pub(crate) struct ChosenPlan<'a> {
    pub network: &'a PlanNetwork,
    pub assignment: &'a Assignment,
}

impl KnownPlan for ChosenPlan<'_> {
    fn mesh(&self) -> &SearchMesh {
        &self.network.mesh
    }

    fn plan(&self, op: OpId) -> Option<&Plan> {
        ChosenPlan::plan(self, op)
    }

    fn kept(&self, value: CutId) -> Option<State> {
        ChosenPlan::kept(self, value)
    }

    fn way(&self, region: RegionId) -> u32 {
        self.network.var_of_region[region].expand().map_or(0, |var| self.assignment[var])
    }
}

/// What costs something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CostOf {
    /// An op's work, or what a value costs where it leaves.
    Work(Decides),
    /// Bringing a value from one state to another.
    Redistribution(Decides, Decides),
}

impl<'a> ChosenPlan<'a> {
    /// The plan of an op.
    pub(crate) fn plan(&self, op: OpId) -> Option<&'a Plan> {
        let var = self.network.var_of_op[op].expand()?;
        self.network.plans[op].get(self.assignment[var] as usize)
    }

    /// What an op's work costs.
    pub(crate) fn work(&self, op: OpId) -> Cost {
        let var = self.network.var_of_op[op].expand();
        var.map_or(0, |var| self.network.problem.variables[var][self.assignment[var] as usize])
    }

    /// The state in which a value is kept.
    pub(crate) fn kept(&self, value: CutId) -> Option<State> {
        let var = self.network.var_of_value[value].expand()?;
        self.network.states[value].get(self.assignment[var] as usize).copied()
    }

    /// Whether a value is one of a way that is not taken.
    pub(crate) fn is_off(&self, program: &Program<'_>, value: CutId) -> bool {
        let var = program.values[value].producer.and_then(|(op, _)| self.network.var_of_op[op].expand());
        var.is_some_and(|var| self.network.is_off(var, self.assignment))
    }

    /// The state in which a value comes to its takers, partial sums included; `None` of free values.
    pub(crate) fn given(&self, program: &Program<'_>, value: CutId) -> Option<State> {
        self.kept(value).or_else(|| {
            let (op, k) = program.values[value].producer?;
            self.plan(op)?.results.get(k as usize).copied()
        })
    }

    /// The state in which a taker wants a value; `None` where it takes it as it comes.
    pub(crate) fn wanted(&self, program: &Program<'_>, value: CutId, taker: Taker) -> Option<State> {
        match taker {
            Taker::Op { op, operand } => self.plan(op)?.operands.get(operand as usize).copied(),
            Taker::Becomes(other) | Taker::Replaces { param: other, .. } => self.kept(other),
            Taker::Exit(_) => {
                let (network, state) = (self.network, self.given(program, value)?);
                Some(exit_state(&program.values[value], state, &network.mesh, network.even_ends))
            }
            Taker::Whole => Some(State::WHOLE),
        }
    }

    /// Everything that costs something, the dearest first: what it is, and what it costs.
    pub(crate) fn costs(&self) -> Vec<(Cost, CostOf)> {
        let problem = &self.network.problem;
        let state = |var| self.assignment[var] as usize;
        let own =
            problem.variables.iter().map(|(var, costs)| (costs[state(var)], CostOf::Work(self.network.decides[var])));
        let between = problem.pairs.iter().map(|pair| {
            let cost = pair.table.costs[state(pair.rows) * pair.table.n_columns + state(pair.columns)];
            (cost, CostOf::Redistribution(self.network.decides[pair.rows], self.network.decides[pair.columns]))
        });
        let mut all: Vec<(Cost, CostOf)> = own.chain(between).filter(|(cost, _)| *cost > 0).collect();
        all.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        all
    }

    /// What the sum of the problem counts twice: redistributions of one value to one state for several takers, which the emitted program
    /// does once.
    pub(crate) fn repeated_cost(&self, program: &Program<'_>, prices: &Prices<'_>) -> Cost {
        let mut sum = 0;
        for (id, value) in program.values.iter().filter(|(_, value)| !value.is_free && value.takers.len() > 1) {
            let Some(from) = self.given(program, id) else { continue };
            let mut seen: Vec<(State, Option<OpId>)> = Vec::new();
            for &(taker, frequency) in &value.takers {
                let op = match taker {
                    Taker::Op { op, .. } => Some(op),
                    Taker::Becomes(_) | Taker::Replaces { .. } | Taker::Exit(_) | Taker::Whole => None,
                };
                let Some(to) = self.wanted(program, id, taker).filter(|_| op.is_some()) else { continue };
                let is_repeated = seen.iter().any(|(state, known)| *state == to && *known != op);
                let is_same_use = seen.contains(&(to, op));
                seen.push((to, op));
                if is_repeated && !is_same_use {
                    let once = prices.redistribution(&Tiles::of(value, prices.mesh), from, to);
                    sum += (once as f64 * frequency) as Cost;
                }
            }
        }
        sum
    }

    /// The state that the value's annotation says: as it comes, but a partial sum as its only taker wants it.
    pub(crate) fn annotated(&self, program: &Program<'_>, value: CutId) -> Option<State> {
        let given = self.given(program, value)?;
        let mesh = &self.network.mesh;
        if given.partial(mesh) == 0 {
            return Some(given);
        }
        let wanted = match program.values[value].takers.as_slice() {
            [(taker, _)] => self.wanted(program, value, *taker),
            _ => None,
        };
        Some(wanted.filter(|state| state.partial(mesh) == 0).unwrap_or(given.resolved(mesh)))
    }
}
