//! What a search found, as data.

use crate::claims::{ExchangeReport, count_deferred, find_exchanges};
use crate::dump::describe;
use crate::found::{Found, MeshOutcome};
use crate::pipeline::{PipelineReport, find_pipelines};
use crate::plan::{ChosenPlan, CostOf};
use crate::prices::Prices;
use crate::program::{CutId, Program};
use crate::regions::RewrittenRegion;
use crate::solver::{Cost, INFINITE, RunnerUps};
use crate::stack_branches::StackedBranches;
use hlo_ir::Module;
use hlo_mesh::{Machine, Network};
use hlo_pass::report::{Alternative, Decision, PassReport};
use serde::Serialize;

/// The plan and how good it is.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// The machine that times are modelled for.
    pub machine: String,
    /// The mesh, `4 x 6`.
    pub mesh: String,
    /// Modelled time of a step: kernels and redistributions one after the other.
    pub step_s: f64,
    /// The same with a redistribution of one value to one state counted once, however many ops take it.
    pub emitted_step_s: f64,
    /// No plan on the meshes that were searched takes less.
    pub bound_s: f64,
    /// Whether plan and bound differ by at most 1e-9.
    pub is_exact: bool,
    /// Whether a time limit fired, so that another run may end elsewhere.
    pub is_reproducible: bool,
    /// Plans that people make by hand.
    pub baselines: Vec<BaselineReport>,
    /// The fastest pipeline of each number of stages; modelled only, no pass writes one.
    pub pipelines: Vec<PipelineReport>,
    /// Every mesh.
    pub meshes: Vec<MeshReport>,
    /// How each parameter is held.
    pub params: Vec<ParamReport>,
    /// What takes most of the step.
    pub largest: Vec<CostReport>,
    /// Bytes of parameters and of what lives beside them where a device has most, as the search counts them.
    pub peak_bytes: u64,
    /// What devices exchange, by kind.
    pub exchanges: Vec<ExchangeReport>,
    /// Partial sums that ops take as such; a partitioner may reduce them before.
    pub n_deferred_sums: usize,
    /// Seconds of kernels; the rest of a step is redistributions.
    pub work_s: f64,
    /// Copies that were added where a value is taken otherwise than it is kept.
    pub n_copies: usize,
    /// What rewriting the program's algebra gives; `None`: nothing to rewrite was looked for or found.
    pub algebra: Option<AlgebraReport>,
}

/// The program as it is beside rewritten ones.
#[derive(Clone, Debug, Serialize)]
pub struct AlgebraReport {
    /// Modelled time of a step by the best plan of the program as it is; `None`: there is none within the limits.
    pub plain_step_s: Option<f64>,
    /// Which rewritten program the plan is of; `None`: the program as it is.
    pub taken: Option<usize>,
    /// The rewritten programs.
    pub ways: Vec<RewriteReport>,
    /// Predicted seconds of the partitioned programs, in which collectives run beside kernels: the best plan of the program as it is, and
    /// of the best rewritten one; `None` where nobody partitioned them.
    pub predicted_s: Option<[f64; 2]>,
}

/// One rewritten program.
#[derive(Clone, Debug, Serialize)]
pub struct RewriteReport {
    /// What is written otherwise.
    pub what: Rewritten,
    /// Modelled time of a step by the best plan; `None`: no plan is faster than those that were known.
    pub step_s: Option<f64>,
    /// No plan of it takes less on the meshes that were searched.
    pub bound_s: f64,
}

/// What is written otherwise in a program.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rewritten {
    /// Branches are one.
    Branches(StackedBranches),
    /// Regions are computed in other ways.
    Regions {
        /// Regions with more than one way.
        n_looked_at: usize,
        /// Those of which another way than the program's own is taken.
        taken: Vec<RegionReport>,
    },
}

/// A region that is computed in another way.
#[derive(Clone, Debug, Serialize)]
pub struct RegionReport {
    /// What it gives, and how.
    pub region: RewrittenRegion,
    /// Modelled time of a step with the program's own way of it, all ops placed anew; `None`: not looked for.
    pub without_s: Option<f64>,
}

/// What is said of a plan to compare with that there is not.
pub const NO_BASELINE: &str = "not within the memory limit, the pins and the mesh";

/// A plan to compare with.
#[derive(Clone, Debug, Serialize)]
pub struct BaselineReport {
    /// `data parallel`, `ZeRO-1` …
    pub name: &'static str,
    /// On which mesh.
    pub mesh: String,
    /// Modelled time of a step; `None`: there is none within the limits.
    pub step_s: Option<f64>,
}

/// One mesh.
#[derive(Clone, Debug, Serialize)]
pub struct MeshReport {
    /// `4 x 6`.
    pub mesh: String,
    /// `searched`, `ended by its bound`, `not reached`, `cannot cut as pinned`.
    pub outcome: &'static str,
    /// Modelled time of the best plan found on it.
    pub step_s: Option<f64>,
    /// The bound on it.
    pub bound_s: Option<f64>,
    /// Variables of its problem.
    pub n_variables: usize,
    /// Table entries that were read.
    pub n_steps: u64,
}

/// One part of a step.
#[derive(Clone, Debug, Serialize)]
pub struct CostReport {
    /// What it is, as `plan of %dot.1 (dot)`.
    pub what: String,
    /// Where the value goes to; `None`: it is work.
    pub to: Option<String>,
    /// Modelled time in a step.
    pub seconds: f64,
}

/// How many parts of a step are told.
const MOST_TOLD: usize = 24;

/// How a parameter is held.
#[derive(Clone, Debug, Serialize)]
pub struct ParamReport {
    /// The instruction.
    pub name: String,
    /// What the framework calls it.
    pub weight: Option<String>,
    /// Its dims.
    pub dims: Vec<i64>,
    /// By axis of the mesh: the dim that it cuts, `R`: whole.
    pub state: String,
    /// Bytes on each device.
    pub bytes: u64,
    /// Bytes of the whole.
    pub whole_bytes: u64,
    /// The best other state that was found, and the seconds that it adds; of one parameter of each large kind.
    pub runner_up: Option<(String, f64)>,
}

/// Of how many kinds of parameters (one shape, held alike) other states are priced, the largest first.
const MOST_PRICED: usize = 8;

fn seconds(cost: Cost) -> f64 {
    cost as f64 / 1e12
}

impl PlanReport {
    /// What there is to say about a plan.
    pub(crate) fn new(
        program: &Program<'_>,
        found: &Found,
        machine: &Machine,
        links: &Network,
        memory_limit: Option<u64>,
    ) -> PlanReport {
        let plan = ChosenPlan { network: &found.network, assignment: &found.assignment };
        let baselines = found.baselines.iter().map(|fact| BaselineReport {
            name: fact.baseline.name(),
            mesh: fact.mesh.describe(),
            step_s: fact.cost.map(seconds),
        });
        let meshes = found.meshes.iter().map(|fact| {
            let is_searched = matches!(fact.outcome, MeshOutcome::Searched | MeshOutcome::Bounded);
            MeshReport {
                mesh: fact.mesh.describe(),
                outcome: fact.outcome.name(),
                step_s: (fact.cost < INFINITE).then(|| seconds(fact.cost)),
                bound_s: is_searched.then(|| seconds(fact.lower_bound)),
                n_variables: fact.n_variables,
                n_steps: fact.n_steps,
            }
        });
        let costs = plan.costs();
        let is_work = |of: &CostOf| matches!(of, CostOf::Work(_));
        let largest = costs.iter().take(MOST_TOLD).map(|(cost, of)| {
            let (what, to) = match *of {
                CostOf::Work(decides) => (decides, None),
                CostOf::Redistribution(from, to) => (from, Some(describe(program, to))),
            };
            CostReport { what: describe(program, what), to, seconds: seconds(*cost) }
        });
        PlanReport {
            machine: machine.to_string(),
            mesh: found.network.mesh.describe(),
            step_s: seconds(found.cost),
            emitted_step_s: seconds(found.cost - plan.repeated_cost(program, &Prices::new(&found.network.mesh, links))),
            // A wide gap that is wanted ends the search before the bound is of use: nothing takes less than no time.
            bound_s: seconds(found.lower_bound).max(0.0),
            is_exact: found.is_exact,
            is_reproducible: !found.was_stopped,
            baselines: baselines.collect(),
            meshes: meshes.collect(),
            params: params_report(program, found, &plan),
            largest: largest.collect(),
            peak_bytes: found.peak.bytes,
            n_deferred_sums: count_deferred(program, &plan),
            exchanges: find_exchanges(program, &plan, &Prices::new(&found.network.mesh, links)),
            work_s: costs.iter().filter(|(_, of)| is_work(of)).map(|(cost, _)| seconds(*cost)).sum(),
            pipelines: find_pipelines(program, machine, links, found.network.mesh.n_devices(), memory_limit),
            n_copies: 0,
            algebra: None,
        }
    }

    /// The difference between plan and bound, as a share of the plan's time.
    pub fn gap(&self) -> f64 {
        if self.step_s > 0.0 { (self.step_s - self.bound_s) / self.step_s } else { 0.0 }
    }

    /// Tells it as a pass does that was asked for this kind of plan.
    pub(crate) fn tell(&self, plan: &str, entry: &str, report: &mut PassReport) {
        report.count("copies", self.n_copies as u64);
        report.count("meshes", self.meshes.len() as u64);
        let is_whole = self.meshes.iter().all(|mesh| mesh.outcome != MeshOutcome::NotReached.name());
        let exact = match (self.is_exact, plan) {
            (true, "best") if is_whole => "nothing is better".into(),
            (true, "best") => {
                "nothing is better on the meshes that were reached, which is not all: give more `effort`".into()
            }
            (true, kind) => format!("no {kind} plan is better"),
            (false, _) => format!("gap {:.2} %", 100.0 * self.gap()),
        };
        let reason = format!(
            "{:.3} ms a step on {}, bound {:.3} ms: {exact}",
            self.step_s * 1e3,
            self.machine,
            self.bound_s * 1e3
        );
        let rejected = self.baselines.iter().map(|baseline| Alternative {
            what: format!("{} on mesh {}", baseline.name, baseline.mesh),
            because: match baseline.step_s {
                Some(s) => format!("{:.3} ms, {:.2} x", s * 1e3, s / self.step_s.max(f64::MIN_POSITIVE)),
                None => NO_BASELINE.into(),
            },
        });
        report.decisions.push(Decision {
            subject: "the step".into(),
            computation: entry.into(),
            action: format!("planned on mesh {}", self.mesh),
            reason,
            predicted_after_ns: Some(self.step_s * 1e9),
            rejected: rejected.collect(),
            ..Decision::default()
        });
        let of_param = |param: &ParamReport| Decision {
            subject: format!("%{} {:?}", param.name, param.dims),
            computation: entry.into(),
            bytes: param.bytes,
            weights: param.weight.clone().into_iter().collect(),
            action: format!("held as {}", param.state),
            reason: format!("{} of {} bytes on each device", param.bytes, param.whole_bytes),
            rejected: param
                .runner_up
                .iter()
                .map(|(state, more)| Alternative {
                    what: format!("held as {state}"),
                    because: match *more < 0.0 {
                        true => format!("{:.3} ms less: the search was ended early", -more * 1e3),
                        false => format!("{:.3} ms more", more * 1e3),
                    },
                })
                .collect(),
            ..Decision::default()
        };
        if let Some(algebra) = &self.algebra {
            algebra.tell(entry, self.step_s, report);
        }
        report.decisions.extend(self.params.iter().map(of_param));
    }
}

impl AlgebraReport {
    /// Of a program of which nothing rewritten is known yet.
    pub(crate) fn new(plain_step_s: Option<f64>) -> AlgebraReport {
        AlgebraReport { plain_step_s, taken: None, ways: Vec::new(), predicted_s: None }
    }

    /// Tells of what is rewritten in the plan, and of what was left.
    fn tell(&self, entry: &str, step_s: f64, report: &mut PassReport) {
        let ms = |s: f64| format!("{:.3} ms", s * 1e3);
        for (k, way) in self.ways.iter().enumerate() {
            let is_taken = self.taken == Some(k);
            let stacked = match &way.what {
                Rewritten::Branches(stacked) => stacked,
                Rewritten::Regions { taken, .. } => {
                    report.decisions.extend(taken.iter().map(|one| one.decision(is_taken, step_s, way.step_s)));
                    continue;
                }
            };
            match (is_taken, self.plain_step_s) {
                (true, Some(plain)) => {
                    let why = format!("{} a step as it is, {} so", ms(plain), ms(step_s));
                    stacked.tell(entry, &why, report);
                }
                (true, None) => {
                    stacked.tell(entry, "of the program as it is there is no plan to compare with", report);
                }
                (false, _) => report.decisions.extend(stacked.sets.iter().map(|set| Decision {
                    subject: set.products.iter().map(|name| format!("%{name}")).collect::<Vec<_>>().join(", "),
                    computation: entry.into(),
                    action: format!("{} branches of {} ops left", set.n_branches, set.n_ops),
                    reason: match way.step_s {
                        Some(other) => format!("{} a step with them made one, {} as planned", ms(other), ms(step_s)),
                        None => format!("no plan searched with them made one takes less than {}", ms(step_s)),
                    },
                    ..Decision::default()
                })),
            }
        }
    }
}

impl RegionReport {
    /// Tells of a region of the plan, or of a plan that was left.
    fn decision(&self, is_taken: bool, step_s: f64, other_s: Option<f64>) -> Decision {
        let region = &self.region;
        let ms = |s: f64| format!("{:.3} ms", s * 1e3);
        let rules = region.rules.join(", ");
        Decision {
            subject: region.results.iter().map(|name| format!("%{name}")).collect::<Vec<_>>().join(", "),
            computation: region.computation.clone(),
            action: match is_taken {
                true => format!("{} products computed as {}", region.n_products, region.n_products_so),
                false => format!("{} products left", region.n_products),
            },
            reason: match (is_taken, other_s) {
                (true, _) => match self.without_s {
                    Some(without) => format!("{} a step as it was, {} so; by {rules}", ms(without), ms(step_s)),
                    None => format!("by {rules}"),
                },
                (false, Some(other)) => {
                    format!("{} a step with {} of them, {} as planned", ms(other), region.n_products_so, ms(step_s))
                }
                (false, None) => format!("no plan searched with them in another way takes less than {}", ms(step_s)),
            },
            ..Decision::default()
        }
    }
}

fn params_report(program: &Program<'_>, found: &Found, plan: &ChosenPlan<'_>) -> Vec<ParamReport> {
    let params: Vec<CutId> = program.values.keys().filter(|&value| program.values[value].is_param).collect();
    let mut by_size = params.clone();
    by_size.sort_by(|a, b| program.values[*b].bytes().total_cmp(&program.values[*a].bytes()));
    let mut kinds = Vec::new();
    by_size.retain(|&id| {
        let kind = (program.values[id].dims.clone(), plan.kept(id));
        let is_new = kinds.len() < MOST_PRICED && !kinds.contains(&kind);
        kinds.extend(is_new.then_some(kind));
        is_new
    });
    let prices = RunnerUps::new(&found.network.problem, &found.assignment);
    let of_param = |&id: &CutId| {
        let mut report = param_report(program, plan, id)?;
        if let Some(var) = found.network.var_of_value[id].expand().filter(|_| by_size.contains(&id)) {
            let costs = prices.costs(var).into_iter().enumerate();
            let others = costs.filter(|&(k, cost)| k != found.assignment[var] as usize && cost < INFINITE);
            report.runner_up = others.min_by_key(|&(_, cost)| cost).map(|(k, cost)| {
                (found.network.states[id][k].describe(&found.network.mesh), seconds(cost - found.cost))
            });
        }
        Some(report)
    };
    params.iter().filter_map(of_param).collect()
}

fn param_report(program: &Program<'_>, plan: &ChosenPlan<'_>, id: CutId) -> Option<ParamReport> {
    let (state, value) = (plan.kept(id)?, &program.values[id]);
    let mesh = &plan.network.mesh;
    let module: &Module = program.module;
    Some(ParamReport {
        name: module.inst_name(value.inst).to_string(),
        weight: module.inst(value.inst).marks.as_ref().and_then(|marks| marks.op_name()).map(str::to_string),
        dims: value.dims.to_vec(),
        state: state.describe(mesh),
        bytes: (state.tile_elems(mesh, &value.dims) * value.elem_bytes) as u64,
        whole_bytes: value.bytes() as u64,
        runner_up: None,
    })
}
