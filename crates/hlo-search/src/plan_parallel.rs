//! From a module and what is asked of it to the plan, its report and the annotated module.

use crate::baselines::Baseline;
use crate::draw::next;
use crate::dump::dump_problem;
use crate::emit::plan_emission;
use crate::error::SearchError;
use crate::found::{Found, NotFound};
use crate::mesh::{SearchMesh, factorizations, factorizations_of};
use crate::picture::draw_plan;
use crate::pins::{Pins, find};
use crate::plan::ChosenPlan;
use crate::program::Program;
use crate::regions::{Regions, RewrittenRegion, joint_program};
use crate::report::{AlgebraReport, PlanReport, RegionReport, RewriteReport, Rewritten};
use crate::search::{GivenPlan, SearchLimits, drawn};
use crate::search_options::{Algebra, SearchOptions};
use crate::search_within::search_within;
use crate::solver::{Cost, INFINITE};
use crate::stack_branches::{pack_program, stack_branches, unpack_program};
use crate::ways_search::{RewrittenProgram, WaysFound, search_ways};
use crate::why::{WhyReport, why};
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_ir::attrs::Attrs;
use hlo_ir::axes::AxisSharding;
use hlo_ir::custom_target::CustomTarget;

use hlo_ir::names::FixedHash;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind};
use hlo_ir::{InstId, Module, Opcode, shardy};
use hlo_spmd::CallSiteCopies;
use indexmap::IndexMap;

/// The part of the memory limit that plans may use. The rest is for what is on its way between two states, and for what XLA takes
/// beyond what is counted: 5 to 11 % of a GPT-2.
pub const USED_SHARE: f64 = 0.92;

/// What came of a search.
pub enum Searched {
    /// There is nothing to decide, and why.
    Nothing(String),
    /// A plan.
    Plan(Box<ParallelPlan>),
}

/// A plan and the program that says it.
pub struct ParallelPlan {
    /// The annotated program.
    pub module: Module,
    /// How good it is.
    pub report: PlanReport,
    /// The alternatives of the values that were asked about; `None`: there is no value of this name that is kept.
    pub why: Vec<(String, Option<WhyReport>)>,
    /// The problem and its solution as JSON, if they were wanted.
    pub problem: Option<String>,
    /// A picture of the program's ops, coloured by how they are cut, as SVG.
    pub picture: String,
    /// Where this is a plan of a rewritten program: the best plan of the program as it is.
    pub as_it_is: Option<Box<ParallelPlan>>,
    /// The best plan with regions computed in other ways, where there are such.
    pub(crate) ways: Option<WaysFound>,
    /// Where state is held stacked: what makes it of the program's own state, and what gives that back.
    pub state_programs: Option<StatePrograms>,
}

/// Programs between the state of a program and the same held stacked.
pub struct StatePrograms {
    /// Parameters that are held stacked, in the order of their numbers, to the stacked ones.
    pub pack: Module,
    /// The inverse.
    pub unpack: Module,
}

/// What is asked of a search.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The options.
    pub options: &'a SearchOptions,
    /// The same program with the annotations of another plan, to start from and to compare with (MindSpore's).
    pub given: Option<&'a Module>,
    /// Asked now and then whether time is over.
    pub is_over: &'a (dyn Fn() -> bool + Sync),
    /// Told how far the search is.
    pub progress: &'a dyn Fn(&str),
}

/// Searches the plan of a global program: of the program as it is, and with branches that are alike made one, if that is asked for.
///
/// # Errors
/// The program has manual regions, or the machine has another number of devices; no plan keeps the memory limit.
pub fn plan_parallel(
    module: &Module,
    asked: &Asked<'_>,
    frequency_options: FrequencyOptions,
) -> Result<Searched, SearchError> {
    let (options, is_over, progress) = (asked.options, asked.is_over, asked.progress);
    // Plans of one kind, plans by chance, pins and what is left out are about the program as it is.
    let is_alone = options.algebra == Algebra::Rewritten;
    let is_free = options.plan == "best"
        && options.without.is_empty()
        && options.pins.trim().is_empty()
        && (options.draw.is_none() || is_alone);
    let as_it_is = match options.algebra {
        Algebra::Rewritten if is_free => Err(SearchError::NothingRewritten),
        _ if is_free => plan_program(module, asked, frequency_options, None),
        _ if options.regions != Regions::AsTheyAre && options.draw.is_some() => {
            let drawn = draw_ways(module, options);
            plan_program(drawn.as_ref().unwrap_or(module), asked, frequency_options, None)
        }
        _ => {
            let options = SearchOptions { regions: Regions::AsTheyAre, ..options.clone() };
            plan_program(module, &Asked { options: &options, ..*asked }, frequency_options, None)
        }
    };
    if !is_free {
        return as_it_is;
    }
    // What cannot be planned as it is for another reason than memory cannot be planned otherwise.
    if !matches!(as_it_is, Ok(Searched::Plan(_)) | Err(SearchError::Memory { .. } | SearchError::NothingRewritten)) {
        return as_it_is;
    }
    let mut best = as_it_is;
    let plain_step_s = step_s(&best);
    if let Ok(Searched::Plan(plan)) = &mut best
        && let Some(ways) = plan.ways.take()
    {
        best = with_regions(best, ways, asked, frequency_options, plain_step_s);
    }
    let Some(form) = options.algebra.state_form() else { return best };
    for (rewritten, stacked) in stack_branches(module, form) {
        // What a few small ops could save is not worth a search; where the state may be held stacked, that is what is asked for.
        let is_small = options.algebra == Algebra::SameState && stacked.share < LEAST_SHARE;
        if is_small || is_over() {
            continue;
        }
        progress("searches a parallel plan with branches made one");
        match plan_program(&rewritten, asked, frequency_options, step_s(&best)) {
            Ok(Searched::Plan(mut other)) => {
                if !stacked.state.is_empty() {
                    let programs = pack_program(module, &stacked.state).zip(unpack_program(module, &stacked.state));
                    other.state_programs = programs.map(|(pack, unpack)| StatePrograms { pack, unpack });
                }
                let (step_s, bound_s) = (Some(other.report.step_s), other.report.bound_s);
                let way = RewriteReport { what: Rewritten::Branches(stacked), step_s, bound_s };
                best = Ok(Searched::Plan(better(best, other, way, plain_step_s)));
            }
            Err(SearchError::NotFaster { bound_s }) => {
                let way = RewriteReport { what: Rewritten::Branches(stacked), step_s: None, bound_s };
                note_way(&mut best, way, plain_step_s);
            }
            Ok(Searched::Nothing(_)) | Err(_) => {}
        }
    }
    best
}

/// The program with the ways of its regions by chance; `None` if every region has one way.
fn draw_ways(module: &Module, options: &SearchOptions) -> Option<Module> {
    let joint = joint_program(module, &options.machine, options.regions)?;
    let mut seed = options.draw.unwrap_or_default();
    let ways: Vec<u32> = joint.marks.n_ways.values().map(|&n_ways| next(&mut seed, n_ways as usize) as u32).collect();
    Some(joint.chosen(module, &ways)?.0)
}

/// Modelled time of a step by a plan; `None`: there is none.
fn step_s(searched: &Result<Searched, SearchError>) -> Option<f64> {
    match searched {
        Ok(Searched::Plan(plan)) => Some(plan.report.step_s),
        Ok(Searched::Nothing(_)) | Err(_) => None,
    }
}

/// The plan with regions in the ways that the search took, if it is faster; the bound of the joint search is one of all ways.
fn with_regions(
    mut best: Result<Searched, SearchError>,
    ways: WaysFound,
    asked: &Asked<'_>,
    frequency_options: FrequencyOptions,
    plain_step_s: Option<f64>,
) -> Result<Searched, SearchError> {
    let bound_s = (ways.lower_bound as f64 / 1e12).max(0.0);
    let n_looked_at = ways.n_regions;
    let report = |regions: Vec<(RewrittenRegion, Option<Cost>)>| {
        let taken = regions.into_iter().map(|(region, without)| {
            let without_s = without.map(|cost| cost as f64 / 1e12);
            RegionReport { region, without_s }
        });
        Rewritten::Regions { n_looked_at, taken: taken.collect() }
    };
    if let Ok(Searched::Plan(plan)) = &mut best {
        plan.report.is_reproducible &= !ways.was_stopped;
    }
    let Some(RewrittenProgram { module, mesh, regions }) = ways.rewritten else {
        note_way(&mut best, RewriteReport { what: report(Vec::new()), step_s: None, bound_s }, plain_step_s);
        return best;
    };
    (asked.progress)("plans the program with regions computed otherwise");
    let options =
        SearchOptions { meshes: vec![mesh.sizes.to_vec()], regions: Regions::AsTheyAre, ..asked.options.clone() };
    let asked = Asked { options: &options, given: None, ..*asked };
    match plan_program(&module, &asked, frequency_options, step_s(&best)) {
        Ok(Searched::Plan(mut other)) => {
            // On the mesh of the best ways alone the plan's own bound says less than that of the joint search.
            other.report.bound_s = bound_s;
            let step_s = Some(other.report.step_s);
            let way = RewriteReport { what: report(regions), step_s, bound_s };
            Ok(Searched::Plan(better(best, other, way, plain_step_s)))
        }
        Ok(Searched::Nothing(_)) | Err(_) => {
            note_way(&mut best, RewriteReport { what: report(regions), step_s: None, bound_s }, plain_step_s);
            best
        }
    }
}

/// Notes a rewritten program of which no plan is faster; the bound is that of all programs.
fn note_way(best: &mut Result<Searched, SearchError>, way: RewriteReport, plain_step_s: Option<f64>) {
    let Ok(Searched::Plan(plan)) = best else { return };
    plan.report.bound_s = plan.report.bound_s.min(way.bound_s);
    plan.report.is_exact = is_exact(&plan.report);
    plan.report.algebra.get_or_insert_with(|| AlgebraReport::new(plain_step_s)).ways.push(way);
}

/// The share of a program's arithmetic that branches have at least for which it is planned anew with them made one.
const LEAST_SHARE: f64 = 0.3;

fn is_exact(report: &PlanReport) -> bool {
    report.step_s - report.bound_s <= 1e-9 * report.step_s
}

/// Of the best plan so far and the one of a rewritten program the faster one; the bound is that of all programs.
fn better(
    best: Result<Searched, SearchError>,
    other: Box<ParallelPlan>,
    way: RewriteReport,
    plain_step_s: Option<f64>,
) -> Box<ParallelPlan> {
    let Ok(Searched::Plan(mut best)) = best else {
        let mut plan = other;
        let algebra = AlgebraReport { taken: Some(0), ways: vec![way], ..AlgebraReport::new(plain_step_s) };
        plan.report.algebra = Some(algebra);
        return plan;
    };
    let mut algebra = best.report.algebra.take().unwrap_or_else(|| AlgebraReport::new(plain_step_s));
    algebra.ways.push(way);
    let bound_s = best.report.bound_s.min(other.report.bound_s);
    let is_reproducible = best.report.is_reproducible && other.report.is_reproducible;
    let baselines = std::mem::take(&mut best.report.baselines);
    let pipelines = std::mem::take(&mut best.report.pipelines);
    let mut plan = best;
    if other.report.step_s < plan.report.step_s {
        algebra.taken = Some(algebra.ways.len() - 1);
        let as_it_is = plan.as_it_is.take();
        // The best so far is one of the program as it is, or knows that.
        let as_it_is = as_it_is.or_else(|| plain_step_s.map(|_| Box::new(ParallelPlan { as_it_is: None, ..*plan })));
        plan = Box::new(ParallelPlan { as_it_is, ..*other });
    }
    // What people write by hand is written for the program that they have.
    plan.report = PlanReport { algebra: Some(algebra), baselines, pipelines, bound_s, is_reproducible, ..plan.report };
    plan.report.is_exact = is_exact(&plan.report);
    plan
}

/// Searches the plan of a program as it is; with `to_beat`, in seconds, only one that takes less.
fn plan_program(
    module: &Module,
    asked: &Asked<'_>,
    frequency_options: FrequencyOptions,
    to_beat: Option<f64>,
) -> Result<Searched, SearchError> {
    let (options, is_over, progress) = (asked.options, asked.is_over, asked.progress);
    expect_none(module, |module, inst| {
        matches!(CustomTarget::of(&module.inst(inst).attrs), Some(CustomTarget::Boundary(_)))
    })?;
    let n_devices = module.n_devices();
    if n_devices > 1 {
        return Ok(Searched::Nothing(format!("the header has {n_devices} devices: it is cut already")));
    }
    expect_none(module, |module, inst| {
        let opcode = module.inst(inst).opcode;
        opcode.row().collective.is_some() || matches!(opcode, Opcode::PartitionId | Opcode::ReplicaId)
    })?;
    if let Some(why) = why_annotated(module) {
        return Ok(Searched::Nothing(why));
    }
    if options.n_devices == 1 {
        return Ok(Searched::Nothing("there is one device".into()));
    }
    let links = options.machine.network(options.n_devices as usize).map_err(SearchError::OtherSize)?;
    let mut work = module.clone();
    drop_words(&mut work);
    // Regions are those of the program that is written; a copy for each call site is none.
    let has_copies = CallSiteCopies::has_shared(&work);
    let copies = match has_copies {
        true => CallSiteCopies::split(&mut work),
        false => CallSiteCopies::default(),
    };
    let before = work.clone();
    let frequencies = Frequencies::compute(&before, frequency_options);
    let program = Program::read(&before, &frequencies)?;
    let has_dims = |value: &crate::program::CutValue| !value.is_free && value.dims.iter().any(|&size| size > 1);
    if !program.values.values().any(has_dims) {
        return Ok(Searched::Nothing("no value has a dim that could be cut".into()));
    }
    // A name that nothing has is told with the plan; one that several have cannot be answered.
    for name in &options.why {
        if let Err(error @ SearchError::SharedName { .. }) = find(&program, name) {
            return Err(error);
        }
    }
    let only = Baseline::of_word(&options.plan);
    let limits = SearchLimits {
        only,
        even: options.even,
        effort: options.effort,
        wanted_gap: options.gap,
        memory_limit: options.memory_limit.map(|bytes| (bytes as f64 * USED_SHARE) as u64),
        pins: Pins::read(&program, &options.pins)?,
        given: asked.given.map(|given| read_given(&program, given, options.n_devices as usize)),
        meshes: meshes_of(options, only)?,
        start: None,
        without: options.without.clone(),
        to_beat: to_beat.map_or(INFINITE, |seconds| (seconds * 1e12) as Cost),
        is_over,
        progress,
    };
    let found = match options.draw {
        Some(seed) => Ok(drawn(&program, &options.machine, &links, &limits, seed)),
        None => search_within(&program, &options.machine, &links, &limits),
    };
    let found = found.map_err(|none| match to_beat {
        Some(_) => SearchError::NotFaster { bound_s: none.lower_bound as f64 / 1e12 },
        None => none_found(options, none),
    })?;
    let is_asked = options.regions != Regions::AsTheyAre && options.draw.is_none() && to_beat.is_none() && !has_copies;
    let ways = is_asked.then(|| {
        search_ways(
            &before,
            (&program, &found),
            frequency_options,
            (&options.machine, options.regions),
            &links,
            &limits,
        )
    });
    let Found { network, assignment, .. } = &found;
    let report = PlanReport::new(&program, &found, &options.machine, &links, limits.memory_limit);
    let emission = plan_emission(&program, &ChosenPlan { network, assignment });
    let explained = options.why.iter().map(|name| (name.clone(), why(&program, &found, name).ok().flatten()));
    let (explained, problem) = (explained.collect(), options.dumps_problem.then(|| dump_problem(&program, &found)));
    let picture = draw_plan(&program, &ChosenPlan { network, assignment }, &report);
    let n_copies = emission.write(&mut work)?;
    copies.merge(&mut work);
    let report = PlanReport { n_copies, ..report };
    Ok(Searched::Plan(Box::new(ParallelPlan {
        module: work,
        report,
        why: explained,
        problem,
        picture,
        as_it_is: None,
        state_programs: None,
        ways: ways.flatten(),
    })))
}

/// The meshes to look at: those that the options name, as far as the plan that is wanted takes them, or else all.
///
/// # Errors
/// There is none.
fn meshes_of(options: &SearchOptions, only: Option<Baseline>) -> Result<Vec<SearchMesh>, SearchError> {
    let is_of_plan = |sizes: &&Vec<i64>| only.is_none_or(|only| only.takes_mesh_of(sizes.len()));
    let named = options.meshes.iter().filter(is_of_plan);
    let meshes: Vec<SearchMesh> = match (options.meshes.first(), only) {
        (Some(_), _) => named.map(|sizes| SearchMesh { sizes: sizes.iter().copied().collect() }).collect(),
        (None, Some(only)) => factorizations_of(options.n_devices, only.n_axes()),
        (None, None) => factorizations(options.n_devices, options.most_axes),
    };
    let (true, Some(only)) = (meshes.is_empty(), only) else { return Ok(meshes) };
    let n_axes = only.n_axes();
    Err(match options.meshes.first() {
        Some(mesh) => SearchError::Option {
            name: "mesh",
            expected: format!("a mesh of {n_axes} axes for plan={}", options.plan),
            found: mesh.iter().map(i64::to_string).collect::<Vec<_>>().join("x"),
        },
        None => SearchError::NoMeshOfPlan { n_axes, n_devices: options.n_devices },
    })
}

/// How the annotations of the same program say that values are cut, by the names of instructions.
fn read_given(program: &Program<'_>, given: &Module, n_devices: usize) -> GivenPlan {
    let mut by_name: IndexMap<(&str, u32), AxisSharding, FixedHash> = IndexMap::default();
    for &inst in given.computations().iter().flat_map(|&comp| &given.comp(comp).insts) {
        let Some(sharding) = given.sharding(inst) else { continue };
        let mut leaf = 0;
        given.shape(inst).for_each_leaf(&mut |_, shape| {
            let axes = sharding.leaf(leaf).zip(shape.as_array());
            if let Some(Ok(axes)) = axes.map(|(said, array)| said.axes(array.rank(), n_devices)) {
                by_name.insert((given.inst_name(inst), leaf as u32), axes);
            }
            leaf += 1;
        });
    }
    let mut out = GivenPlan::new();
    for (id, value) in &program.values {
        out[id] = by_name.get(&(program.module.inst_name(value.inst), value.leaf)).cloned();
    }
    out
}

/// Why there is no plan.
fn none_found(options: &SearchOptions, none: NotFound) -> SearchError {
    match (options.memory_limit, none.least_bytes) {
        (Some(limit_bytes), Some(least_bytes)) => {
            SearchError::Memory { limit_bytes, used_share: USED_SHARE, least_bytes }
        }
        (_, _) if !options.pins.trim().is_empty() => SearchError::Pinned,
        (_, _) if !none.was_ended => SearchError::TooLong,
        (_, _) => SearchError::Effort,
    }
}

/// Removes what front ends say of shardings, all of which is that values are whole; calls that only say it become copies.
fn drop_words(module: &mut Module) {
    let insts: Vec<InstId> = module.computations().iter().flat_map(|&comp| module.comp(comp).insts.clone()).collect();
    for inst in insts {
        if module.inst(inst).marks.is_some() {
            let marks = module.marks_mut(inst);
            marks.sharding = None;
            marks.frontend_attributes.retain(|(key, _)| !key.starts_with("xla.sdy."));
        }
        if CustomTarget::of(&module.inst(inst).attrs) == Some(CustomTarget::Annotation) {
            let node = module.inst_mut(inst);
            (node.opcode, node.attrs) = (Opcode::Copy, Attrs::Plain);
        }
    }
    module.header.frontend_attributes.retain(|(key, _)| key != shardy::MESHES);
}

/// Why a program gets no plan: it says itself how it is cut.
fn why_annotated(module: &Module) -> Option<String> {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    // That a value is whole is no decision: front ends say it of everything that nobody cut.
    let is_whole = |leaf: &LeafSharding| leaf.kind == ShardingKind::Replicated;
    let is_cut = |sharding: &Sharding| match sharding {
        Sharding::Single(leaf) => !is_whole(leaf),
        Sharding::Tuple(leaves) => !leaves.iter().all(is_whole),
    };
    // Shardy's words name the axes that cut a dim between quotes.
    let names_axes = |inst: InstId| {
        let attributes = module.inst(inst).marks.as_ref().map_or(&[][..], |marks| &marks.frontend_attributes);
        shardy::attribute(attributes, shardy::SHARDING).is_some_and(|text| text.contains('"'))
    };
    let annotated = insts.find(|&&inst| module.sharding(inst).is_some_and(is_cut) || names_axes(inst))?;
    Some(format!("`%{}` has a sharding: the program says already how it is cut", module.inst_name(*annotated)))
}

/// Refuses a global program in which devices say themselves how they work.
fn expect_none(module: &Module, is_manual: impl Fn(&Module, InstId) -> bool) -> Result<(), SearchError> {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let Some(&inst) = insts.find(|&&inst| is_manual(module, inst)) else { return Ok(()) };
    Err(SearchError::manual_work(module, inst))
}
