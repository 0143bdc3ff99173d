//! Find the parallel plan of least modelled time for a global program, and print a sharding on every value that it decides.
//!
//! Before:
//! ```text
//! ROOT %y = f32[1024,4096] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after, with `devices=2`: the rows of `%x` are cut.
//! ```text
//! ROOT %y = f32[1024,4096] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,1]<=[2]}
//! ```
//!
//! **Why.** Nobody has to say how a program is cut, and the report says how far from the best the plan can be.
//!
//! **What it does not do.** It does not write the program of each device: `spmd-partition` does, or XLA's partitioner. It rewrites no
//! algebra. Dims of which a shard needs rows of its neighbours (windows, slices, pads) stay whole. Pipelines are no part of it.
//!
//! **Algorithm.** For each mesh (an ordered factorization of the devices) the program is a factor graph: a variable for each op, whose
//! states say which axis cuts which factor of the op, and one for each value that is taken twice or more, whose states say how it is
//! kept. Work of ops is unary, redistributions are pairs. The solver finds an assignment and a lower bound. See the modules
//! `program`, `plans`, `network`, `prices`, `work`, `search` and `solver`.
//!
//! **Requires** a global program without annotations of shardings. **Ensures** the same results; the header has the number of devices.
//! **Errors**: `search` about a program that has manual regions, and machines of another size; the module is then as it was.
//!
//! References: Unger et al., *Unity*, OSDI 2022; Kolmogorov, *Convergent Tree-Reweighted Message Passing*, TPAMI 2006.

use crate::baselines::Baseline;
use crate::dump::dump_problem;
use crate::emit::plan_emission;
use crate::error::SearchError;
use crate::mesh::{MOST_AXES, SearchMesh, factorizations, factorizations_of};
use crate::network::Evenness;
use crate::picture::draw_plan;
use crate::pins::Pins;
use crate::plan::ChosenPlan;
use crate::program::Program;
use crate::report::PlanReport;
use crate::search::{Found, GivenPlan, NotFound, SearchLimits, drawn, search};
use crate::why::{WhyReport, why};
use hlo_analysis::Preserved;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::{DEFAULT_DEVICE, Machine};
use hlo_ir::attrs::Attrs;
use hlo_ir::axes::AxisSharding;
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::diag::Entity;
use hlo_ir::names::FixedHash;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind};
use hlo_ir::{InstId, Module, Opcode, shardy};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::CallSiteCopies;
use indexmap::IndexMap;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "search-parallelization",
    help: "find the parallel plan of least modelled time for a global program, with a bound that says how far from the best it is",
    options: OPTIONS,
    build: |options| Ok(Box::new(SearchParallelization { asked: SearchOptions::of(options)? })),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "devices",
        kind: OptionKind::Int,
        default: "0",
        help: "number of devices; 0: those of the cluster, 8 without one",
    },
    OptionInfo {
        name: "cluster",
        kind: OptionKind::Text,
        default: "",
        help: "how the devices are wired: [(node,2),(gpu,8)], a shipped name or a .toml file; empty: one switch",
    },
    OptionInfo { name: "device", kind: OptionKind::Text, default: DEFAULT_DEVICE, help: "what every device is" },
    OptionInfo {
        name: "effort",
        kind: OptionKind::Float,
        default: "1",
        help: "how long the search goes on, in billions of table entries read; the same effort gives the same plan",
    },
    OptionInfo {
        name: "gap",
        kind: OptionKind::Float,
        default: "0",
        help: "the difference between plan and bound that is small enough, as a share of the plan's time",
    },
    OptionInfo { name: "axes", kind: OptionKind::Int, default: "3", help: "the most axes of a mesh, 1 to 3" },
    OptionInfo {
        name: "mesh",
        kind: OptionKind::Text,
        default: "",
        help: "only these meshes: 4x6, or 2x2x6;4x6; empty: all",
    },
    OptionInfo {
        name: "memory-limit",
        kind: OptionKind::Int,
        default: "0",
        help: "bytes that a device has for the step: 30GiB; 0: no limit",
    },
    OptionInfo {
        name: "plan",
        kind: OptionKind::Word(&["best", "data-parallel", "zero-1", "zero-3", "megatron"]),
        default: "best",
        help: "the best plan, or the best one that is made as people make it by hand",
    },
    OptionInfo {
        name: "pins",
        kind: OptionKind::Text,
        default: "",
        help: "a .toml file with what is fixed: \"%w\" = [1, 4], the parts of each dim",
    },
    OptionInfo {
        name: "draw",
        kind: OptionKind::Int,
        default: "0",
        help: "a legal plan by chance, of this seed, in the place of the best one: to try partitioners; 0: the best one",
    },
    OptionInfo {
        name: "even",
        kind: OptionKind::Word(&["false", "ends", "true"]),
        default: "false",
        help: "what axes have to divide: nothing (the last tiles are padded), parameters and results, or everything",
    },
];

/// What is asked of the search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// The machine.
    pub machine: Machine,
    /// Number of devices.
    pub n_devices: i64,
    /// Table entries that may be read.
    pub effort: u64,
    /// The gap that is small enough, relative to the plan's time.
    pub gap: f64,
    /// The most axes of a mesh.
    pub most_axes: usize,
    /// The meshes to be searched, as sizes of axes; none: all.
    pub meshes: Vec<Vec<i64>>,
    /// Bytes that a device has.
    pub memory_limit: Option<u64>,
    /// What has to be cut into equal tiles.
    pub even: Evenness,
    /// TOML with what is fixed; empty: nothing.
    pub pins: String,
    /// The seed of a plan by chance, in the place of the best one.
    pub draw: Option<u64>,
    /// Values whose alternatives are to be told, by name.
    pub why: Vec<String>,
    /// `best`, or the kind of plan that is wanted: `data-parallel`, `zero-1`, `zero-3`, `megatron`.
    pub plan: String,
    /// Whether the problem and its solution are wanted as JSON.
    pub dumps_problem: bool,
}

/// The most devices that are searched for.
const MOST_DEVICES: i64 = 1 << 16;

/// Devices where nothing says how many.
const DEFAULT_DEVICES: i64 = 8;

impl SearchOptions {
    fn of(options: &Options) -> Result<SearchOptions, SearchError> {
        let wrong = |text: String| SearchError::about("option", Entity::Module, text);
        let machine = Machine::from_args(options.text("cluster"), options.text("device"))
            .map_err(|error| wrong(error.to_string()))?;
        let of_cluster = machine.cluster().map(|cluster| i64::from(cluster.n_devices()));
        let n_devices = match options.int("devices") {
            0 => of_cluster.unwrap_or(DEFAULT_DEVICES),
            n => n,
        };
        if !(2..=MOST_DEVICES).contains(&n_devices) {
            return Err(wrong(format!("option `devices`: expected 2 to {MOST_DEVICES}, found {n_devices}")));
        }
        let axes = options.int("axes");
        if !(1..=MOST_AXES as i64).contains(&axes) {
            return Err(wrong(format!("option `axes`: expected 1 to {MOST_AXES}, found {axes}")));
        }
        Ok(SearchOptions {
            machine,
            n_devices,
            effort: (options.float("effort") * 1e9) as u64,
            gap: options.float("gap"),
            most_axes: axes as usize,
            meshes: read_meshes(options.text("mesh"), n_devices).map_err(wrong)?,
            memory_limit: Some(options.int("memory-limit").unsigned_abs()).filter(|&bytes| bytes > 0),
            even: match options.text("even") {
                "true" => Evenness::All,
                "ends" => Evenness::Ends,
                _ => Evenness::None,
            },
            pins: options.text("pins").into(),
            draw: Some(options.int("draw").unsigned_abs()).filter(|&seed| seed > 0),
            why: Vec::new(),
            dumps_problem: false,
            plan: options.text("plan").into(),
        })
    }
}

/// Meshes as an option says them: `4x6;2x2x6`.
///
/// # Errors
/// What was expected and what was found.
pub fn read_meshes(text: &str, n_devices: i64) -> Result<Vec<Vec<i64>>, String> {
    let mut all = Vec::new();
    for said in text.split(';').map(str::trim).filter(|said| !said.is_empty()) {
        let sizes: Option<Vec<i64>> = said.split('x').map(|size| size.trim().parse().ok()).collect();
        let product = |sizes: &[i64]| sizes.iter().try_fold(1i64, |n, &size| n.checked_mul(size));
        match sizes {
            Some(sizes)
                if sizes.len() <= MOST_AXES
                    && sizes.iter().all(|&size| size > 1)
                    && product(&sizes) == Some(n_devices) =>
            {
                all.push(sizes);
            }
            Some(_) | None => {
                return Err(format!(
                    "option `mesh`: expected 1 to {MOST_AXES} sizes of 2 or more whose product is {n_devices}, found `{said}`"
                ));
            }
        }
    }
    Ok(all)
}

/// What a search takes as the part of the memory limit that plans may use: what is on its way between two states is not counted.
const USED_SHARE: f64 = 0.92;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct SearchParallelization {
    asked: SearchOptions,
}

impl Pass for SearchParallelization {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let deadline = cx.deadline;
        let asked = Asked { options: &self.asked, given: None, is_over: &|| deadline.is_over(), progress: &|_| {} };
        let plan = match plan_parallel(module, &asked, cx.analyses.frequency_options)? {
            Searched::Nothing(why) => {
                cx.report.unchanged_because = Some(why);
                return Ok(Changed::No);
            }
            Searched::Plan(plan) => plan,
        };
        plan.report.tell(cx.report);
        *module = plan.module;
        Ok(Changed::Yes(Preserved::NONE))
    }
}

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

/// Searches the plan of a global program.
///
/// # Errors
/// The program has manual regions, or the machine has another number of devices; no plan keeps the memory limit.
pub fn plan_parallel(
    module: &Module,
    asked: &Asked<'_>,
    frequency_options: FrequencyOptions,
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
    let links = options
        .machine
        .network(options.n_devices as usize)
        .map_err(|error| SearchError::about("machine", Entity::Module, error.to_string()))?;
    let mut work = module.clone();
    drop_words(&mut work);
    let copies = match CallSiteCopies::has_shared(&work) {
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
    let only = Baseline::of_word(&options.plan);
    let limits = SearchLimits {
        only,
        even: options.even,
        effort: options.effort,
        wanted_gap: options.gap,
        memory_limit: options.memory_limit.map(|bytes| (bytes as f64 * USED_SHARE) as u64),
        pins: Pins::read(&program, &options.pins)?,
        given: asked.given.map(|given| read_given(&program, given, options.n_devices as usize)),
        meshes: match options.meshes.is_empty() {
            true => match only {
                Some(only) => factorizations_of(options.n_devices, only.n_axes()),
                None => factorizations(options.n_devices, options.most_axes),
            },
            false => options.meshes.iter().map(|sizes| SearchMesh { sizes: sizes.iter().copied().collect() }).collect(),
        },
        is_over,
        progress,
    };
    let found = match options.draw {
        Some(seed) => Ok(drawn(&program, &options.machine, &links, &limits, seed)),
        None => search(&program, &options.machine, links.clone(), &limits),
    };
    let found = found.map_err(|none| SearchError::about("memory", Entity::Module, none_found(options, none)))?;
    let Found { network, assignment, .. } = &found;
    let report = PlanReport::new(&program, &found, &options.machine, &links);
    let emission = plan_emission(&program, &ChosenPlan { network, assignment });
    let explained = options.why.iter().map(|name| (name.clone(), why(&program, &found, name)));
    let (explained, problem) = (explained.collect(), options.dumps_problem.then(|| dump_problem(&program, &found)));
    let picture = draw_plan(&program, &ChosenPlan { network, assignment }, &report);
    let n_copies = emission.write(&mut work)?;
    copies.merge(&mut work);
    let report = PlanReport { n_copies, ..report };
    Ok(Searched::Plan(Box::new(ParallelPlan { module: work, report, why: explained, problem, picture })))
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

/// Why there is no plan, in words.
fn none_found(options: &SearchOptions, none: NotFound) -> String {
    match (options.memory_limit, none.least_bytes) {
        (Some(limit), Some(least)) => format!(
            "no plan found within {limit} bytes, of which {:.0} % may be planned; the least is {least} bytes",
            100.0 * USED_SHARE
        ),
        (_, _) => "no plan found within the effort: give more with `effort`".into(),
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
    let what = module.inst(inst).opcode.name();
    let text = format!(
        "expected a global program, found `{what}`: a manual region (shard_map) says itself how its devices work"
    );
    Err(SearchError::about("search", Entity::Inst(inst), text))
}
