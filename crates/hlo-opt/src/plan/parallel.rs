//! `hlo-opt plan parallel`: the parallel plan of least modelled time for a global program, and how far from the best it can be.

use super::arguments::{AlgebraChoice, ParallelArgs, ParallelEmit};
use super::time_text;
use crate::baseline::predict_compiled;
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::output::{check_target, expect_no_input, write_whole};
use crate::progress::Progress;
use crate::{Failure, exit, machine, registry};
use hlo_analysis::Analyses;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::memory::memory_sizes;
use hlo_analysis::program_kind::KnownProgram;
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_ir::print::{PrintOptions, print_module};
use hlo_mesh::Machine;
use hlo_pass::Target;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunError, RunOptions, bind, run_pipeline};
use hlo_search::{
    Algebra, AlgebraReport, Asked, Evenness, MOST_DEVICES, NO_BASELINE, ParallelPlan, ParamReport, PlanReport,
    RegionReport, Regions, Rewritten, SearchError, SearchOptions, Searched, StackedBranches, USED_SHARE, WhyReport,
    plan_parallel, read_meshes, read_parts,
};
use indexmap::IndexMap;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Devices where nothing says how many.
const DEFAULT_DEVICES: usize = 8;

/// Prints the plan, and writes the annotated program where that is asked for.
///
/// # Errors
/// An invalid input or machine, a program with manual regions, or a memory limit that no plan keeps.
pub(crate) fn plan(args: &ParallelArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    for (flag, target) in [("--dump-problem", &args.dump_problem), ("--pack", &args.pack), ("--unpack", &args.unpack)] {
        expect_no_input(flag, target.as_ref(), &[&args.file])?;
    }
    let (source, loaded) = read_completed(&args.file, args.counts, Takes::Global, console)?;
    let mut module = loaded.module.clone();
    args.output.as_deref().map_or(Ok(()), check_target)?;
    let has_color = console.has_color;
    let failed = |diagnostic: Diagnostic| {
        Failure::Diagnostics(source.render(source.whole(), Some(&loaded), vec![diagnostic], has_color))
    };
    run_passes(&mut module, None, "inline-calls,expand-batch-norms").map_err(failed)?;
    let options = read_options(args)?;
    let given = strategies(&module, options.n_devices);
    let progress = Progress::start(console.shows_progress);
    progress.now("searches a parallel plan");
    let end = args.time_limit.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let asked = Asked {
        options: &options,
        given: given.as_ref(),
        is_over: &|| end.is_some_and(|end| Instant::now() >= end),
        progress: &|line| progress.now(line),
    };
    let found = plan_within(&module, &asked);
    drop(progress);
    match found.map_err(failed)? {
        Searched::Nothing(_) if module.n_devices() > 1 => {
            let n_devices = module.n_devices();
            return Err(failed(about_plan(format!(
                "expected a global program that nobody has cut, found one of {n_devices} devices: the program of each device, or a \
                 global one whose shardings say how it is cut (--preset auto-spmd partitions that)"
            ))));
        }
        Searched::Nothing(why) => {
            console.say(&format!("{}: unchanged: {why}\n", args.file.display()));
            if let Some(output) = &args.output {
                write_whole(output, print_module(&module, &PrintOptions::default()).as_bytes())?;
            }
        }
        Searched::Plan(plan) => {
            let plan = faster_of_both(plan, &options).map_err(failed)?;
            tell(args, &options, &plan, console)?;
        }
    }
    Ok(exit::OK)
}

/// What stops the search, where no instruction is at fault.
fn about_plan(message: String) -> Diagnostic {
    Diagnostic::about("plan", Entity::Module, message)
}

/// How often a plan is looked for because the partitioned program of the first takes more than the limit.
const MOST_ROUNDS: u32 = 6;
/// By which share the second limit is below the first at least; each further step is twice as large.
const LEAST_STEP: f64 = 0.02;
/// Limits that are closer than this share are one: looking between them gains nothing.
const CLOSE: f64 = 0.01;

/// A plan whose partitioned program keeps its share of the memory limit, by the analysis of memory: what a plan counts is an estimate.
/// Where the best plan does not keep it, smaller limits are tried, and limits between those that had a fitting plan and those that had
/// not; the bound stays that of the user's limit.
fn plan_within(module: &Module, asked: &Asked<'_>) -> Result<Searched, Diagnostic> {
    let search = |limit: Option<u64>| {
        let options = SearchOptions { memory_limit: limit, ..asked.options.clone() };
        let found = plan_parallel(module, &Asked { options: &options, ..*asked }, FrequencyOptions::default());
        found.map_err(|error| Diagnostic::about(error.rule(), error.entity(), error.to_string()))
    };
    let Some(limit) = asked.options.memory_limit else { return search(None) };
    let most = limit as f64 * USED_SHARE;
    let mut best: Option<Box<ParallelPlan>> = None;
    let (mut least, mut bound_s) = (u64::MAX, None);
    // Of the limits that were tried: those that had no plan end at `none`, from `above` on plans take too much.
    let (mut none, mut fits, mut above) = (0u64, None, limit);
    let mut given = limit;
    for round in 0..MOST_ROUNDS {
        match search(Some(given)) {
            Ok(Searched::Plan(mut plan)) => {
                let bound_s = *bound_s.get_or_insert(plan.report.bound_s);
                let peak = partitioned_peak(&plan)?;
                if peak as f64 <= most {
                    fits = Some(fits.unwrap_or(0).max(given));
                    if best.as_ref().is_none_or(|best| plan.report.step_s < best.report.step_s) {
                        let report =
                            PlanReport { is_exact: plan.report.is_exact && round == 0, bound_s, ..plan.report };
                        plan.report = report;
                        best = Some(plan);
                    }
                    if round == 0 {
                        break;
                    }
                } else {
                    above = above.min(given);
                    least = least.min(peak);
                    // What a plan counts less is no more than a hint of what its program takes less: the steps grow.
                    let step = (most / peak as f64).min(1.0 - LEAST_STEP * f64::from(1u32 << round));
                    given = (given as f64 * step) as u64;
                }
            }
            Ok(nothing @ Searched::Nothing(_)) => return Ok(nothing),
            Err(error) if round == 0 => return Err(error),
            // A smaller limit than the user's was tried.
            Err(_) => none = none.max(given),
        }
        let below = fits.unwrap_or(0).max(none);
        if below > 0 && (given <= below || given >= above || fits.is_some()) {
            given = below.midpoint(above);
        }
        if below > 0 && (above - below) as f64 <= CLOSE * above as f64 {
            break;
        }
    }
    match best {
        Some(plan) => Ok(Searched::Plan(plan)),
        None => Err(about_plan(format!(
            "no plan found whose partitioned program takes at most {:.0} % of {limit} bytes; the least that was found takes {least} bytes",
            100.0 * USED_SHARE
        ))),
    }
}

/// The plan, or that of the program as it is where its partitioned program keeps the memory limit and is predicted to be as fast: a search
/// counts kernels and redistributions one after the other, a prediction beside each other.
fn faster_of_both(mut plan: Box<ParallelPlan>, options: &SearchOptions) -> Result<Box<ParallelPlan>, Diagnostic> {
    let Some(mut as_it_is) = plan.as_it_is.take() else { return Ok(plan) };
    let plain_s = predicted_s(&as_it_is, &options.machine)?;
    let rewritten_s = predicted_s(&plan, &options.machine)?;
    let Some(mut algebra) = plan.report.algebra.take() else { return Ok(plan) };
    algebra.predicted_s = Some([plain_s, rewritten_s]);
    let fits = match options.memory_limit {
        Some(limit) => partitioned_peak(&as_it_is)? as f64 <= limit as f64 * USED_SHARE,
        None => true,
    };
    if rewritten_s < plain_s || !fits {
        plan.report.algebra = Some(algebra);
        return Ok(plan);
    }
    algebra.taken = None;
    let bound_s = plan.report.bound_s;
    let (baselines, pipelines) =
        (std::mem::take(&mut plan.report.baselines), std::mem::take(&mut plan.report.pipelines));
    // The bound is one of all programs, and a rewritten one has a plan that takes less one after the other.
    let is_exact = false;
    as_it_is.report = PlanReport { algebra: Some(algebra), bound_s, baselines, pipelines, is_exact, ..as_it_is.report };
    Ok(as_it_is)
}

/// What the partitioned program of a plan is predicted to take, in seconds.
fn predicted_s(plan: &ParallelPlan, machine: &Machine) -> Result<f64, Diagnostic> {
    let mut local = plan.module.clone();
    let target = Target { machine: machine.clone(), frequency: FrequencyOptions::default(), memory_limit: None };
    run_for(&mut local, None, PARTITION, Some(&target))?;
    let time = predict_compiled(&local, target.frequency, machine);
    time.map(|time| time.critical_path_s).map_err(|error| about_plan(error.to_string()))
}

/// What follows a plan whose program is predicted, as in the preset `auto-parallel`: sums are moved to where they are smallest.
const PARTITION: &str = "spmd-partition{price=time},simplify-tuples,cse,dce,hoist-invariants{exchanges=true},sink-all-reduce,\
                         reassociate-all-reduce,sink-all-reduce,all-reduce-to-reduce-scatter,dce";

/// The peak memory of what a plan's partitioned program takes, in bytes.
fn partitioned_peak(plan: &ParallelPlan) -> Result<u64, Diagnostic> {
    let mut local = plan.module.clone();
    run_passes(&mut local, None, "spmd-partition,simplify-tuples,cse,dce")?;
    Ok(memory_sizes(&local).peak_bytes)
}

fn tell(
    args: &ParallelArgs,
    options: &SearchOptions,
    plan: &ParallelPlan,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    if let (Some(path), Some(problem)) = (&args.dump_problem, &plan.problem) {
        write_whole(path, problem.as_bytes())?;
    }
    let text = || print_module(&plan.module, &PrintOptions::default());
    if let Some(output) = &args.output {
        write_whole(output, text().as_bytes())?;
    }
    let programs = plan.state_programs.as_ref();
    for (path, program) in [(&args.pack, programs.map(|p| &p.pack)), (&args.unpack, programs.map(|p| &p.unpack))] {
        match (path, program) {
            (Some(path), Some(program)) => {
                write_whole(path, print_module(program, &PrintOptions::default()).as_bytes())?;
            }
            (Some(path), None) => {
                console.say(&format!("{}: not written: no state is held stacked by the plan\n", path.display()));
            }
            (None, _) => {}
        }
    }
    match args.emit {
        ParallelEmit::Text => console.print(report_text(&args.file, options, plan).as_bytes()),
        ParallelEmit::Json => console.print_json(&JsonReport { plan: &plan.report, why: &plan.why }),
        ParallelEmit::Hlo => console.print(text().as_bytes()),
        ParallelEmit::SearchSvg => console.print(plan.picture.as_bytes()),
    }
}

#[derive(Serialize)]
struct JsonReport<'p> {
    #[serde(flatten)]
    plan: &'p PlanReport,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    why: &'p [(String, Option<WhyReport>)],
}

fn read_options(args: &ParallelArgs) -> Result<SearchOptions, Failure> {
    let usage = |error: SearchError| Failure::Usage(error.to_string());
    // A machine by name has as many devices as are asked for; a cluster says how many it has.
    let n_asked = args.devices.unwrap_or(DEFAULT_DEVICES);
    let machine = machine::machine(&args.machine, n_asked)?;
    let of_cluster = machine.cluster().map(|cluster| cluster.n_devices() as usize);
    let n_devices = args.devices.or(of_cluster).unwrap_or(DEFAULT_DEVICES);
    let n_devices = i64::try_from(n_devices)
        .ok()
        .filter(|&n| n <= MOST_DEVICES)
        .ok_or_else(|| Failure::Usage(format!("--devices: expected at most {MOST_DEVICES}, found {n_devices}")))?;
    let pins = match &args.pins {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::File(format!("cannot read `{}`: {error}", path.display())))?,
        None => String::new(),
    };
    Ok(SearchOptions {
        machine,
        n_devices,
        effort: (args.effort * 1e9) as u64,
        gap: args.gap,
        most_axes: args.axes,
        meshes: read_meshes(args.mesh.as_deref().unwrap_or_default(), n_devices).map_err(usage)?,
        memory_limit: args.memory_limit.map(|bytes| bytes as u64).filter(|&bytes| bytes > 0),
        even: if args.even { Evenness::All } else { Evenness::None },
        pins,
        draw: None,
        why: args.why.clone(),
        plan: "best".into(),
        dumps_problem: args.dump_problem.is_some(),
        algebra: match args.algebra {
            AlgebraChoice::None => Algebra::None,
            AlgebraChoice::SameState => Algebra::SameState,
            AlgebraChoice::StackedState => Algebra::StackedState,
        },
        regions: Regions::of_word(&args.regions),
        without: read_parts(&args.without).map_err(usage)?,
    })
}

/// Runs a pipeline on a module; what stops it first.
pub(super) fn run_passes(module: &mut Module, program: Option<KnownProgram>, pipeline: &str) -> Result<(), Diagnostic> {
    run_for(module, program, pipeline, None)
}

fn run_for(
    module: &mut Module,
    program: Option<KnownProgram>,
    pipeline: &str,
    target: Option<&Target>,
) -> Result<(), Diagnostic> {
    let calls = parse_pipeline(pipeline).map_err(|error| about_plan(error.to_string()))?;
    let passes = bind(&calls, &registry::passes()).map_err(|error| about_plan(error.to_string()))?;
    let mut analyses = Analyses::default().with_program(program);
    let options = RunOptions { target, ..RunOptions::default() };
    let stopped = run_pipeline(module, &mut analyses, &passes, options);
    let first = |error: RunError| error.diagnostics.into_iter().next();
    stopped.map(|_| ()).map_err(|error| first(error).unwrap_or_else(|| about_plan("a pass stopped".into())))
}

/// The program with the strategies of MindSpore's search, which halves devices; `None` where it does not apply.
fn strategies(module: &Module, n_devices: i64) -> Option<Module> {
    let mut given = module.clone();
    let is_power_of_two = n_devices.unsigned_abs().is_power_of_two();
    let found =
        is_power_of_two && run_passes(&mut given, None, &format!("search-strategies{{devices={n_devices}}}")).is_ok();
    found.then_some(given)
}

fn bytes_text(bytes: u64) -> String {
    match bytes as f64 {
        b if b >= 1024.0 * 1024.0 * 1024.0 => format!("{:.2} GiB", b / (1024.0 * 1024.0 * 1024.0)),
        b if b >= 1024.0 * 1024.0 => format!("{:.1} MiB", b / (1024.0 * 1024.0)),
        b => format!("{:.1} KiB", b / 1024.0),
    }
}

/// The plans among which a search that ends finds one of least modelled time.
const SPACE: &str = "  searched: on each mesh tried, which axis divides which dim of each op and value, all devices doing all ops in \
                     turn; pipelines, other algebra and another order of the ops are not among these plans";

/// The report for people.
fn report_text(file: &Path, options: &SearchOptions, plan: &ParallelPlan) -> String {
    let report = &plan.report;
    let mut out = String::new();
    let quality = match (report.is_exact, options.memory_limit) {
        (true, None) => "no plan searched takes less".to_string(),
        (true, Some(_)) => "no plan searched that keeps the limit, as the search counts memory, takes less".to_string(),
        (false, _) => format!("gap {:.2} % on the meshes searched", 100.0 * report.gap()),
    };
    let (step, bound) = (time_text(report.step_s), time_text(report.bound_s));
    let _ = writeln!(out, "{}: {} devices, {}", file.display(), options.n_devices, report.machine);
    let _ = writeln!(out, "plan on mesh {}: {step} a step, bound {bound}: {quality}", report.mesh);
    if report.is_exact {
        let _ = writeln!(out, "{SPACE}");
    }
    if !options.without.is_empty() {
        let parts: Vec<&str> = options.without.iter().map(|part| part.word()).collect();
        let _ = writeln!(out, "  kept from {}: plan and bound are those of such plans", parts.join(", "));
    }
    let (work, moved) = (time_text(report.work_s.max(0.0)), time_text((report.step_s - report.work_s).max(0.0)));
    let _ = writeln!(out, "  kernels {work}, redistributions {moved}, one after the other");
    let emitted = time_text(report.emitted_step_s);
    let _ = writeln!(out, "  with what several ops take alike sent once: {emitted}");
    let limit = match options.memory_limit {
        Some(limit) => format!(" of {}, of which {:.0} % may be used", bytes_text(limit), 100.0 * USED_SHARE),
        None => String::new(),
    };
    let _ = writeln!(out, "  memory, as planned: {}{limit}", bytes_text(report.peak_bytes));
    let has_bytes = options.machine.device().memory_bytes;
    if report.peak_bytes as f64 > has_bytes {
        let has = bytes_text(has_bytes as u64);
        let _ = writeln!(out, "  more than the {has} that a device has: --memory-limit looks for a plan that fits");
    }
    if !report.is_reproducible {
        out.push_str("  the time limit ended the search: another run may end elsewhere\n");
    }
    out.push_str("plans to compare with\n");
    for baseline in &report.baselines {
        let said = match baseline.step_s {
            Some(s) => format!("{:>12}   {:.3} x", time_text(s), s / report.step_s.max(f64::MIN_POSITIVE)),
            None => NO_BASELINE.into(),
        };
        let _ = writeln!(out, "  {:<20} {:<12} {said}", baseline.name, baseline.mesh);
    }
    if let Some(algebra) = &report.algebra {
        algebra_text(algebra, report.step_s, &mut out);
    }
    if let Some(pipeline) = report.pipelines.iter().min_by(|a, b| a.step_s.total_cmp(&b.step_s)) {
        let mesh = format!("{} x {}", pipeline.n_stages, pipeline.n_devices_of_stage);
        let ratio = pipeline.step_s / report.step_s.max(f64::MIN_POSITIVE);
        let _ = writeln!(
            out,
            "  {:<20} {mesh:<12} {:>12}   {ratio:.3} x, {} microbatches; modelled only, no pass writes it",
            "pipeline (1F1B)",
            time_text(pipeline.step_s),
            pipeline.n_microbatches
        );
    }
    let mut outcomes: IndexMap<&str, usize> = IndexMap::new();
    report.meshes.iter().for_each(|mesh| *outcomes.entry(mesh.outcome).or_insert(0) += 1);
    let outcomes: Vec<String> = outcomes.iter().map(|(outcome, n)| format!("{n} {outcome}")).collect();
    let more = if report.meshes.iter().any(|mesh| mesh.outcome == "not reached") {
        "; a larger --effort reaches more"
    } else {
        ""
    };
    let _ = writeln!(out, "meshes: {}{more}", outcomes.join(", "));
    params_text(&report.params, &mut out);
    out.push_str("what takes most\n");
    for cost in report.largest.iter().take(8) {
        let to = cost.to.as_ref().map_or(String::new(), |to| format!(" -> {to}"));
        let _ = writeln!(out, "  {:>12}   {}{to}", time_text(cost.seconds), cost.what);
    }
    for (name, why) in &plan.why {
        why_text(name, why.as_ref(), report.step_s, &mut out);
    }
    out
}

/// What making branches one gives, whether or not the plan does it.
fn algebra_text(algebra: &AlgebraReport, step_s: f64, out: &mut String) {
    let row = |name: &str, s: Option<f64>| match s {
        Some(s) => format!("  {name:<33} {:>12}   {:.3} x", time_text(s), s / step_s.max(f64::MIN_POSITIVE)),
        None => format!("  {name:<33} {NO_BASELINE}"),
    };
    if algebra.taken.is_some() {
        let _ = writeln!(out, "{}", row("no algebra", algebra.plain_step_s));
    }
    if let Some([plain, rewritten]) = algebra.predicted_s {
        let _ = writeln!(
            out,
            "  partitioned, collectives beside kernels: {} as it is, {} rewritten",
            time_text(plain),
            time_text(rewritten)
        );
    }
    for (k, way) in algebra.ways.iter().enumerate().filter(|(k, _)| Some(*k) != algebra.taken) {
        let name = match &way.what {
            Rewritten::Branches(_) => format!("branches made one, way {}", k + 1),
            Rewritten::Regions { n_looked_at, .. } => format!("{n_looked_at} regions in other ways"),
        };
        let line = match way.step_s {
            Some(_) => row(&name, way.step_s),
            None => format!("  {name:<33} no plan is faster"),
        };
        let _ = writeln!(out, "{line}");
    }
    for (k, way) in algebra.ways.iter().enumerate() {
        let is_taken = Some(k) == algebra.taken;
        let said = if is_taken { "algebra, as the plan has it" } else { "algebra, left" };
        match &way.what {
            Rewritten::Branches(stacked) => branches_text(&format!("{said}: way {}", k + 1), stacked, is_taken, out),
            Rewritten::Regions { taken, .. } => taken.iter().for_each(|one| region_text(said, one, out)),
        }
    }
}

/// A region that is computed in another way.
fn region_text(said: &str, one: &RegionReport, out: &mut String) {
    let region = &one.region;
    let shown = region.results.iter().take(3).map(|name| format!("%{name}")).collect::<Vec<_>>().join(", ");
    let more = if region.results.len() > 3 { " …" } else { "" };
    let without = one.without_s.map_or(String::new(), |s| format!("; {} without", time_text(s)));
    let (before, after, rules) = (region.n_products, region.n_products_so, region.rules.join(", "));
    let _ = writeln!(out, "{said}: {shown}{more}: {before} products as {after}, by {rules}{without}");
}

/// Branches that are one.
fn branches_text(said: &str, stacked: &StackedBranches, is_taken: bool, out: &mut String) {
    let mut kinds: IndexMap<(usize, usize, usize), (usize, &[String])> = IndexMap::new();
    for set in &stacked.sets {
        let kind = (set.n_branches, set.n_ops, set.n_products);
        kinds.entry(kind).or_insert((0, &set.products)).0 += 1;
    }
    for ((n_branches, n_ops, n_products), (n_sets, products)) in kinds {
        let shown = products.iter().take(2).map(|name| format!("%{name}")).collect::<Vec<_>>().join(", ");
        let more = if products.len() > 2 { " …" } else { "" };
        let times = if n_sets > 1 { format!("{n_sets} times ") } else { String::new() };
        let _ = writeln!(
            out,
            "{said}: {times}{n_branches} branches of {n_ops} ops ({n_products} products) are one: {shown}{more}"
        );
    }
    if is_taken && !stacked.state.is_empty() {
        let n_held: usize = stacked.state.iter().map(|param| param.of.len()).sum();
        let n_new = stacked.state.len();
        let first = stacked.state[0].names.iter().take(2).map(|name| format!("%{name}"));
        let first = first.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            out,
            "  {n_held} parameters are held as {n_new} ({first} … as one): --pack and --unpack write the programs that convert them;\n  \
             in a model's own code: jnp.stack for those weights, jax.vmap over the branches"
        );
    }
}

/// Parameters of one shape that are held alike are one line.
fn params_text(params: &[ParamReport], out: &mut String) {
    out.push_str(
        "parameters: by axis of the mesh the dim that it cuts, R: whole; bytes on a device; the next best state\n",
    );
    let mut kinds: IndexMap<(&[i64], &str), (usize, &ParamReport)> = IndexMap::new();
    for param in params {
        kinds.entry((&param.dims, &param.state)).or_insert((0, param)).0 += 1;
    }
    for ((dims, state), (n, first)) in kinds {
        let name = first.weight.as_deref().unwrap_or(&first.name);
        let more = if n > 1 { format!(" and {} more", n - 1) } else { String::new() };
        let next = match &first.runner_up {
            // A search that was ended early.
            Some((other, more)) if *more < 0.0 => {
                format!("; {other}: {} less, which a larger --effort may find", time_text(-more))
            }
            Some((other, more)) => format!("; {other}: +{}", time_text(*more)),
            None => String::new(),
        };
        let dims = format!("{dims:?}");
        let _ = writeln!(out, "  {state:<8} {dims:<20} {:>10}  {name}{more}{next}", bytes_text(first.bytes));
    }
}

fn why_text(name: &str, why: Option<&WhyReport>, step_s: f64, out: &mut String) {
    let Some(why) = why else {
        let _ = writeln!(out, "why {name}: no parameter and no value that is taken twice or more has this name");
        return;
    };
    let _ = writeln!(out, "why {}: {}", why.what, why.chosen);
    for other in &why.others {
        let said = match other.step_s {
            Some(s) => format!("{} ({:+.2} %)", time_text(s), 100.0 * (s / step_s - 1.0)),
            None => "not possible".into(),
        };
        let _ = writeln!(out, "  {:<10} {said}", other.state);
    }
}
