//! Plans that people make by hand, as restrictions of the search: what each axis of the mesh may do.
//!
//! Within a restriction the solver finds the best plan, so a baseline is never worse than what a careful person would write in it.

use crate::mesh::SearchMesh;
use crate::network::{Decides, PlanNetwork, RegionPart};
use crate::plans::{AxisUse, Plan};
use crate::program::{CutId, OpId, Program};
use crate::regions::RegionId;
use crate::roles::{Role, Roles};
use crate::solver::{Assignment, Pair, PairTable, Problem, VarId};
use crate::state::{Place, State};
use cranelift_entity::{PrimaryMap, SecondaryMap};
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use std::sync::Arc;

/// A plan to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Baseline {
    /// The batch is cut along all axes; weights, moments and updates are whole.
    DataParallel,
    /// The batch is cut along all axes; moments are cut, and updates may be.
    Zero1,
    /// The batch is cut along all axes; weights and moments are cut, and gathered where they are used.
    Zero3,
    /// The batch is cut along the first axis, and anything else along the others (Megatron-LM's tensor parallelism).
    Megatron,
    /// Nothing is cut: every device computes the whole step.
    Whole,
    /// What MindSpore's search of strategies gives for the program, as far as the mesh can say it.
    MindSpore,
}

/// Those that are restrictions of what axes may do, and that people write.
pub(crate) const BASELINES: [Baseline; 4] =
    [Baseline::DataParallel, Baseline::Zero1, Baseline::Zero3, Baseline::Megatron];

/// What an axis may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AxisPolicy {
    /// It cuts the batch; state is as the baseline says.
    Batch,
    /// It cuts anything but the batch.
    Model,
    /// It cuts nothing.
    Nothing,
}

impl Baseline {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Baseline::DataParallel => "data parallel",
            Baseline::Zero1 => "ZeRO-1",
            Baseline::Zero3 => "ZeRO-3",
            Baseline::Megatron => "Megatron",
            Baseline::Whole => "whole on every device",
            Baseline::MindSpore => "MindSpore's search",
        }
    }

    /// The kind of plan that a word of an option means.
    pub(crate) fn of_word(word: &str) -> Option<Baseline> {
        BASELINES.into_iter().chain([Baseline::Whole]).find(|baseline| baseline.word() == word)
    }

    /// Its word in options.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Baseline::DataParallel => "data-parallel",
            Baseline::Zero1 => "zero-1",
            Baseline::Zero3 => "zero-3",
            Baseline::Megatron => "megatron",
            Baseline::Whole => "whole",
            Baseline::MindSpore => "mindspore",
        }
    }

    /// On how many axes it is looked for: one where further axes add nothing.
    pub(crate) fn n_axes(self) -> usize {
        match self {
            Baseline::DataParallel | Baseline::Zero1 | Baseline::Zero3 | Baseline::Whole => 1,
            Baseline::Megatron | Baseline::MindSpore => 2,
        }
    }

    /// Whether a mesh of so many axes can be asked for.
    pub(crate) fn takes_mesh_of(self, n_axes: usize) -> bool {
        self == Baseline::Whole || n_axes == self.n_axes()
    }

    fn policy(self, axis: usize) -> AxisPolicy {
        match self {
            Baseline::DataParallel | Baseline::Zero1 | Baseline::Zero3 => AxisPolicy::Batch,
            Baseline::Megatron if axis == 0 => AxisPolicy::Batch,
            Baseline::Megatron | Baseline::MindSpore => AxisPolicy::Model,
            Baseline::Whole => AxisPolicy::Nothing,
        }
    }

    fn cuts_updates(self) -> bool {
        match self {
            Baseline::Zero1 | Baseline::Zero3 => true,
            Baseline::DataParallel | Baseline::Megatron | Baseline::Whole | Baseline::MindSpore => false,
        }
    }

    /// The states that each variable may have.
    pub(crate) fn allowed(self, program: &Program<'_>, roles: &Roles, network: &PlanNetwork) -> Allowed {
        let mut allowed = SecondaryMap::new();
        for (var, decides) in &network.decides {
            allowed[var] = match *decides {
                Decides::Plan(op) => {
                    let factor = roles.batch_factor(&program.ops[op]);
                    let plans = &network.plans[op];
                    // Where the batch can be cut, it is.
                    let cuts_batch = |plan: &&Plan| self.allows_plan(plan, factor) && self.cuts_all_batch(plan, factor);
                    let is_forced = factor.is_some() && plans.iter().any(|plan| cuts_batch(&plan));
                    let allows = |plan: &Plan| match is_forced {
                        true => cuts_batch(&plan),
                        false => self.allows_plan(plan, factor),
                    };
                    plans.iter().map(allows).collect()
                }
                Decides::Kept(value) => self.kept_states(roles, network, value),
                Decides::Way(_) | Decides::AtRegion(..) => Vec::new(),
            };
            // A value that has no such state is free.
            if allowed[var].iter().all(|is_allowed| !is_allowed) {
                allowed[var].clear();
            }
        }
        allowed
    }

    fn allows_plan(self, plan: &Plan, batch: Option<usize>) -> bool {
        plan.uses.iter().enumerate().all(|(axis, one)| match (*one, self.policy(axis)) {
            (AxisUse::Repeats | AxisUse::PassesSums(_), _) => true,
            (AxisUse::Cuts(_), AxisPolicy::Nothing) => false,
            (AxisUse::Cuts(factor), AxisPolicy::Batch) => match batch {
                Some(batch) => factor == batch,
                None => self.cuts_updates(),
            },
            (AxisUse::Cuts(factor), AxisPolicy::Model) => Some(factor) != batch,
        })
    }

    /// Whether every axis of the batch cuts it.
    fn cuts_all_batch(self, plan: &Plan, batch: Option<usize>) -> bool {
        plan.uses.iter().enumerate().all(|(axis, one)| match self.policy(axis) {
            AxisPolicy::Batch => batch.is_some_and(|batch| *one == AxisUse::Cuts(batch)),
            AxisPolicy::Model | AxisPolicy::Nothing => true,
        })
    }

    fn kept_states(self, roles: &Roles, network: &PlanNetwork, value: CutId) -> Vec<bool> {
        let states = &network.states[value];
        let fits = |state: &State| {
            (0..network.mesh.n_axes()).all(|axis| self.allows_place(roles, value, axis, state.place(axis)))
        };
        let role = roles.of_param[value];
        let is_cut = match (self, role) {
            (Baseline::Zero1, Some(Role::Moment)) | (Baseline::Zero3, Some(Role::Moment | Role::Weight)) => true,
            (
                Baseline::Zero1
                | Baseline::Zero3
                | Baseline::DataParallel
                | Baseline::Megatron
                | Baseline::Whole
                | Baseline::MindSpore,
                _,
            ) => false,
        };
        let all = (1u8 << network.mesh.n_axes()) - 1;
        let cut_by_all = |state: &State| state.cut(&network.mesh) == all;
        match is_cut && states.iter().any(cut_by_all) {
            true => states.iter().map(cut_by_all).collect(),
            false => states.iter().map(fits).collect(),
        }
    }

    fn allows_place(self, roles: &Roles, value: CutId, axis: usize, place: Place) -> bool {
        let Place::Dim(dim) = place else { return true };
        let is_batch = roles.batch_dim[value] == Some(dim);
        match (self.policy(axis), roles.of_param[value]) {
            (AxisPolicy::Nothing, _) => false,
            (AxisPolicy::Model, _) => !is_batch,
            (AxisPolicy::Batch, Some(Role::Weight | Role::Moment)) => false,
            (AxisPolicy::Batch, Some(Role::Data) | None) => {
                is_batch || (roles.batch_dim[value].is_none() && self.cuts_updates())
            }
        }
    }
}

/// By variable, which of its states are allowed; empty: all.
pub(crate) type Allowed = SecondaryMap<VarId, Vec<bool>>;

/// A problem in which variables have only some of their states.
pub(crate) struct Restricted {
    pub problem: Problem,
    /// By variable, the states of the whole problem.
    states: PrimaryMap<VarId, Vec<u32>>,
}

impl Restricted {
    /// Restricts a problem.
    pub(crate) fn new(whole: &Problem, allowed: &Allowed) -> Restricted {
        let mut states: PrimaryMap<VarId, Vec<u32>> = PrimaryMap::new();
        let mut problem = Problem::default();
        for (var, costs) in &whole.variables {
            let is_allowed = |k: &u32| allowed[var].get(*k as usize).copied().unwrap_or(true);
            let kept: Vec<u32> = (0..costs.len() as u32).filter(is_allowed).collect();
            problem.variables.push(kept.iter().map(|&k| costs[k as usize]).collect());
            states.push(kept);
        }
        let mut known: IndexMap<PartKey, Arc<PairTable>, FixedHash> = IndexMap::default();
        for pair in &whole.pairs {
            let (rows, columns) = (&states[pair.rows], &states[pair.columns]);
            let is_whole = rows.len() == pair.table.n_rows && columns.len() == pair.table.n_columns;
            let table = match is_whole {
                true => pair.table.clone(),
                false => {
                    let key = (Arc::as_ptr(&pair.table) as usize, rows.clone(), columns.clone());
                    known.entry(key).or_insert_with(|| Arc::new(part_of(&pair.table, rows, columns))).clone()
                }
            };
            problem.pairs.push(Pair { rows: pair.rows, columns: pair.columns, table });
        }
        for constraint in &whole.constraints {
            let mut constraint = constraint.clone();
            for (var, bytes) in &mut constraint.terms {
                *bytes = states[*var].iter().map(|&k| bytes[k as usize]).collect();
            }
            problem.constraints.push(constraint);
        }
        Restricted { problem, states }
    }

    /// An assignment of this problem as one of the whole.
    pub(crate) fn widen(&self, assignment: &Assignment) -> Assignment {
        let mut out = Assignment::new();
        for (var, &state) in assignment {
            out.push(self.states[var][state as usize]);
        }
        out
    }
}

/// A table, and which of its rows and columns.
type PartKey = (usize, Vec<u32>, Vec<u32>);

fn part_of(table: &PairTable, rows: &[u32], columns: &[u32]) -> PairTable {
    let at = |row: u32, column: u32| table.costs[row as usize * table.n_columns + column as usize];
    let costs = rows.iter().flat_map(|&row| columns.iter().map(move |&column| at(row, column))).collect();
    PairTable { n_rows: rows.len(), n_columns: columns.len(), costs }
}

/// A plan that a search may start from, of the same program or of one that it has in it.
pub(crate) trait KnownPlan {
    fn mesh(&self) -> &SearchMesh;
    /// The plan of an op.
    fn plan(&self, op: OpId) -> Option<&Plan>;
    /// The state in which a value is kept.
    fn kept(&self, value: CutId) -> Option<State>;
    /// The way in which a region is computed.
    fn way(&self, region: RegionId) -> u32;
}

/// Starts from a plan on a mesh with fewer axes: each axis of the finer one does what the coarser axis does that it is a part of.
pub(crate) fn lift(known: &dyn KnownPlan, fine: &PlanNetwork) -> Option<Assignment> {
    let part_of = coarse_axes(&known.mesh().sizes, &fine.mesh.sizes)?;
    let mut out = Assignment::new();
    for (var, decides) in &fine.decides {
        let is_off = match fine.part(var) {
            RegionPart::OfWay(of) => known.way(of.region) != of.way,
            RegionPart::Outside | RegionPart::AtRegion(..) => false,
        };
        let state = match *decides {
            _ if is_off => fine.off(var).map(|state| state as usize),
            Decides::Way(region) => Some(known.way(region) as usize),
            Decides::Plan(op) => lifted_plan(known, fine, &part_of, op),
            Decides::Kept(value) => {
                let state = known.kept(value)?;
                let places = part_of.iter().enumerate();
                let wanted = places.fold(State::WHOLE, |s, (axis, &from)| s.with(axis, state.place(from)));
                fine.states[value].iter().position(|&state| state == wanted)
            }
            // The value itself comes before it.
            Decides::AtRegion(region, value) => {
                let own = fine.var_of_value[value].expand()?;
                let n_ways = fine.var_of_region[region].expand().map(|way| fine.problem.variables[way].len())?;
                Some(out[own] as usize * n_ways + known.way(region) as usize)
            }
        };
        debug_assert_eq!(out.len(), var.as_u32() as usize);
        out.push(state.unwrap_or(0) as u32);
    }
    Some(out)
}

fn lifted_plan(known: &dyn KnownPlan, fine: &PlanNetwork, part_of: &[usize], op: OpId) -> Option<usize> {
    let plan = known.plan(op)?;
    fine.plans[op].iter().position(|other| other.uses.iter().zip(part_of).all(|(one, &from)| *one == plan.uses[from]))
}

/// For each axis of the finer mesh, the axis of the coarser one that it is a part of.
fn coarse_axes(coarse: &[i64], fine: &[i64]) -> Option<Vec<usize>> {
    let (mut out, mut at, mut filled) = (Vec::new(), 0, 1);
    for &size in fine {
        out.push(at);
        filled *= size;
        let whole = *coarse.get(at)?;
        if filled == whole {
            (at, filled) = (at + 1, 1);
        } else if whole % filled != 0 {
            return None;
        }
    }
    (at == coarse.len()).then_some(out)
}
