//! The search that takes a way of each region together with the placement of all ops: one problem, one bound.

use crate::baselines::{KnownPlan, lift};
use crate::found::Found;
use crate::mesh::SearchMesh;
use crate::network::{Decides, RegionPart};
use crate::pins::Pins;
use crate::plan::ChosenPlan;
use crate::plans::Plan;
use crate::program::{CutId, OpId, Program};
use crate::regions::{RegionId, Regions, RewrittenRegion, joint_program};

use crate::search::SearchLimits;
use crate::search_within::search_within;
use crate::solver::{Assignment, Cost, INFINITE, SolveRequest, solve};
use crate::state::State;
use cranelift_entity::SecondaryMap;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_ir::names::FixedHash;
use hlo_ir::{InstId, Module};
use hlo_mesh::{Machine, Network};
use indexmap::IndexMap;

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct WaysFound {
    /// How many regions have more than one way.
    pub n_regions: usize,
    /// No plan of any combination of ways takes less on the meshes that were searched.
    pub lower_bound: Cost,
    /// Whether another run may end elsewhere.
    pub was_stopped: bool,
    /// The program of the best plan, if it is another one than the program as it is.
    pub rewritten: Option<RewrittenProgram>,
}

/// The program with regions in other ways.
#[derive(Clone, Debug)]
pub(crate) struct RewrittenProgram {
    pub module: Module,
    pub mesh: SearchMesh,
    /// The regions, each with what a step takes with the program's own way of it; `None`: not looked for.
    pub regions: Vec<(RewrittenRegion, Option<Cost>)>,
}

/// Searches the best plan over all ways of the program's regions, from the best plan of the program as it is; `None` if no region has
/// several ways.
pub(crate) fn search_ways(
    module: &Module,
    (program, found): (&Program<'_>, &Found),
    frequency_options: FrequencyOptions,
    (machine, rules): (&Machine, Regions),
    links: &Network,
    limits: &SearchLimits<'_>,
) -> Option<WaysFound> {
    let joint = joint_program(module, machine, rules)?;
    let frequencies = Frequencies::compute(&joint.module, frequency_options);
    let union = Program::read_union(&joint.module, &frequencies, &joint.marks).ok()?;
    let start = AsItIs::new(&union, program, found);
    let limits = SearchLimits {
        start: Some(&start),
        to_beat: found.cost,
        pins: Pins::default(),
        given: None,
        only: None,
        ..limits.clone()
    };
    let n_regions = union.choices.n_ways.len();
    let best = match search_within(&union, machine, links, &limits) {
        Ok(best) => best,
        Err(none) => {
            let lower_bound = none.lower_bound.min(found.lower_bound);
            return Some(WaysFound { n_regions, lower_bound, was_stopped: false, rewritten: None });
        }
    };
    let state = |region: RegionId| best.network.var_of_region[region].expand().map_or(0, |var| best.assignment[var]);
    let ways: Vec<u32> = union.choices.n_ways.keys().map(state).collect();
    let is_other = best.cost < found.cost && ways.iter().any(|&way| way > 0);
    let chosen = is_other.then(|| joint.chosen(module, &ways)).flatten();
    let taken: Vec<(RegionId, u32)> = union.choices.n_ways.keys().zip(ways).collect();
    let rewritten = chosen.map(|(module, told)| {
        let others = taken.iter().filter(|(_, way)| *way > 0).enumerate();
        let without = others
            .map(|(k, (region, _))| (k < MOST_PRICED).then(|| cost_without(&union, &best, &taken, *region, &start))?);
        let regions = told.into_iter().zip(without).collect();
        RewrittenProgram { module, mesh: best.network.mesh.clone(), regions }
    });
    Some(WaysFound {
        n_regions,
        lower_bound: best.lower_bound.min(found.lower_bound),
        was_stopped: best.was_stopped,
        rewritten,
    })
}

/// Of how many regions it is told what a step takes without them.
const MOST_PRICED: usize = 8;
/// How often the tables are read to know it.
const READS: u64 = 64;

/// What a step takes with the program's own way of a region in the place of the one that is taken, all ops placed anew; beginning with
/// the ops of that way as they are in the best plan of the program as it is.
fn cost_without(
    union: &Program<'_>,
    best: &Found,
    taken: &[(RegionId, u32)],
    region: RegionId,
    as_it_is: &AsItIs<'_>,
) -> Option<Cost> {
    let network = &best.network;
    let mut problem = network.problem.clone();
    for &(one, way) in taken {
        let kept = if one == region { 0 } else { way as usize };
        let var = network.var_of_region[one].expand()?;
        let costs = problem.variables[var].iter_mut().enumerate();
        costs.filter(|(way, _)| *way != kept).for_each(|(_, cost)| *cost = INFINITE);
    }
    let own = lift(as_it_is, network);
    let start = own.map(|own| {
        let is_own = |value: CutId| union.choices.port(value).is_some_and(|port| port.region == region);
        let mut start = Assignment::new();
        for (var, decides) in &network.decides {
            let known = best.assignment[var];
            let state = match (*decides, network.part(var)) {
                (_, RegionPart::OfWay(of)) if of.region == region => own[var],
                (Decides::Way(one), _) if one == region => 0,
                // The value itself comes before it.
                (Decides::AtRegion(one, value), RegionPart::AtRegion(_, n_ways)) => {
                    let way = if one == region { 0 } else { known % n_ways };
                    network.var_of_value[value].expand().map_or(known, |kept| start[kept] * n_ways + way)
                }
                (Decides::Kept(value), _) if is_own(value) => own[var],
                _ => known,
            };
            start.push(state);
        }
        start
    });
    let n_entries: u64 = problem.pairs.iter().map(|pair| pair.table.costs.len() as u64).sum();
    let solved = solve(&SolveRequest {
        problem: &problem,
        starts: start.as_slice(),
        repeats: None,
        effort: READS * n_entries,
        cutoff: None,
        wanted_gap: 0.0,
        is_over: &|| false,
        progress: &|_| {},
    });
    Some(solved.cost).filter(|&cost| cost < INFINITE)
}

/// The plan of the program as it is, as one of the program with all ways.
struct AsItIs<'a> {
    program: &'a Program<'a>,
    plan: ChosenPlan<'a>,
    ops: SecondaryMap<OpId, Option<OpId>>,
    values: SecondaryMap<CutId, Option<CutId>>,
}

impl<'a> AsItIs<'a> {
    fn new(union: &Program<'_>, program: &'a Program<'a>, found: &'a Found) -> AsItIs<'a> {
        let by_inst: IndexMap<InstId, OpId, FixedHash> = program.ops.iter().map(|(id, op)| (op.inst, id)).collect();
        let by_leaf: IndexMap<(InstId, u32), CutId, FixedHash> =
            program.values.iter().map(|(id, value)| ((value.inst, value.leaf), id)).collect();
        let (mut ops, mut values) = (SecondaryMap::new(), SecondaryMap::new());
        for (id, op) in &union.ops {
            ops[id] = by_inst.get(&op.inst).copied();
        }
        for id in union.values.keys() {
            // What a region gives is what the program's own way gives.
            let own = union.choices.port(id).map_or(id, |port| port.roots[0]);
            values[id] = by_leaf.get(&(union.values[own].inst, union.values[own].leaf)).copied();
        }
        AsItIs { program, plan: ChosenPlan { network: &found.network, assignment: &found.assignment }, ops, values }
    }
}

impl KnownPlan for AsItIs<'_> {
    fn mesh(&self) -> &SearchMesh {
        &self.plan.network.mesh
    }

    fn plan(&self, op: OpId) -> Option<&Plan> {
        self.plan.plan(self.ops[op]?)
    }

    fn kept(&self, value: CutId) -> Option<State> {
        self.plan.given(self.program, self.values[value]?)
    }

    fn way(&self, _: RegionId) -> u32 {
        0
    }
}
