//! Modelled times of a plan's steps.
//!
//! [`hlo_analysis::time`] says how long each step takes on the plan's machine. Each stream runs its steps in
//! order. A step begins when the step before it has ended, and all that it waits for. A loop's rounds count as often as
//! they run, branches of a conditional by how often they are taken. The times say how work overlaps and which of two orders
//! is better, and are no measurements.

use super::{BufferId, CollectiveCall, CollectiveKind, CommunicatorId, Plan, Step, Stream, Work};
use hashbrown::HashMap;
use hlo_analysis::time::product_slowdown;
use hlo_cluster::CollectiveCost;
use hlo_ir::DType;
use hlo_mesh::{DEFAULT_DEVICE, Exchange, KernelWork, Machine, Network};

/// Times of a plan's steps on its machine.
pub struct StepTimes {
    /// None only where the machine has another number of devices than the plan.
    on: Option<(Machine, Network)>,
    costs: HashMap<(CollectiveKind, CommunicatorId), CollectiveCost>,
}

/// A step's time on its stream; of a loop, its rounds after the first.
#[derive(Clone, Debug)]
pub struct Bar<'p> {
    /// The step.
    pub step: &'p Step,
    /// How often it runs in all; 0 for loops, whose rounds have bars of their own.
    pub n_runs: f64,
    /// Seconds from the plan's beginning.
    pub start_s: f64,
    /// Seconds that it takes.
    pub duration_s: f64,
}

impl Bar<'_> {
    /// Seconds that its step keeps its stream busy in all.
    pub fn busy_s(&self) -> f64 {
        self.duration_s * self.n_runs
    }

    /// When it has ended, in seconds from the plan's beginning.
    pub fn end_s(&self) -> f64 {
        self.start_s + self.duration_s
    }
}

/// Seconds for which a stream works; 0 where it has no step.
pub(super) fn busy_s(bars: &[Bar<'_>], stream: Stream) -> f64 {
    // The sum of no floats is -0.
    bars.iter().filter(|bar| bar.step.stream == stream).fold(0.0, |sum, bar| sum + bar.busy_s())
}

/// Where a list of steps stands.
#[derive(Clone, Copy)]
struct Part {
    /// When it first begins, in seconds.
    start_s: f64,
    /// How often it runs.
    n_runs: f64,
}

impl Plan {
    /// The machine that times are modelled for, e.g. `h200, one switch`.
    pub(super) fn machine_name(&self) -> String {
        self.machine.as_ref().map_or_else(|| format!("{DEFAULT_DEVICE}, one switch"), Machine::to_string)
    }
}

impl StepTimes {
    /// On as many devices as the plan wants.
    pub fn for_plan(plan: &Plan) -> StepTimes {
        let n_devices = plan.n_replicas.saturating_mul(plan.n_partitions).max(1);
        let machine = plan.machine.clone().or_else(|| Machine::unnamed().ok());
        let on = machine.and_then(|machine| machine.network(n_devices as usize).ok().map(|network| (machine, network)));
        StepTimes { on, costs: HashMap::new() }
    }

    /// Seconds of the whole plan.
    pub fn plan_s(&mut self, plan: &Plan) -> f64 {
        self.steps(plan, &plan.steps, Part { start_s: 0.0, n_runs: 1.0 }, &mut Vec::new())
    }

    /// Seconds of one piece of work; none for loops and branches, whose steps have their own.
    pub fn work_s(&mut self, plan: &Plan, work: &Work) -> f64 {
        let Some((machine, _)) = &self.on else { return 0.0 };
        match work {
            Work::Collective(call) => self.collective_s(plan, call),
            Work::While { .. } | Work::Conditional { .. } => 0.0,
            Work::Launch { kernel, .. } => machine.kernel_s(machine.work_of(&plan.kernel_facts[*kernel].cost)),
            Work::Gemm(gemm) => {
                let flops =
                    2.0 * (gemm.outer_batch * gemm.batch) as f64 * gemm.m as f64 * gemm.n as f64 * gemm.k as f64;
                let arrays = [gemm.lhs.buffer, gemm.rhs.buffer, gemm.output.buffer];
                let slowdown = product_slowdown(arrays.map(|buffer| &plan.buffers[buffer].shape), gemm.uses_tf32);
                let arithmetic_s = machine.matrix_s(flops * slowdown, dtype_of(plan, gemm.lhs.buffer), gemm.uses_tf32);
                machine.kernel_s(KernelWork { bytes: bytes_of_all(plan, work), arithmetic_s })
            }
            Work::Copy { .. } | Work::Fill { .. } => {
                machine.kernel_s(KernelWork { bytes: bytes_of_all(plan, work), arithmetic_s: 0.0 })
            }
        }
    }

    fn collective_s(&mut self, plan: &Plan, call: &CollectiveCall) -> f64 {
        let Some((_, network)) = &self.on else { return 0.0 };
        let CollectiveCall { kind, communicator, calls } = call;
        let cost = self.costs.entry((kind.clone(), *communicator)).or_insert_with(|| {
            let groups = plan.communicators.get(*communicator).map(Vec::as_slice).unwrap_or_default();
            network.exchange(pattern_of(kind), groups, kind.pairs().unwrap_or_default())
        });
        // The larger side is the whole tensor; the sides of an all-to-all and of a permute are equal.
        cost.seconds(calls.iter().map(|&(a, b)| bytes_of(plan, a).max(bytes_of(plan, b))).sum())
    }

    /// Puts steps on the line, and into `bars`; returns when the last has ended.
    fn steps<'p>(&mut self, plan: &Plan, steps: &'p [Step], part: Part, bars: &mut Vec<Bar<'p>>) -> f64 {
        let mut free = [part.start_s; 2];
        let mut ends = Vec::with_capacity(steps.len());
        for step in steps {
            let end = match &step.work {
                Work::While { condition, body, n_trips, .. } => {
                    let (start_s, n_trips) = (free[0].max(free[1]), *n_trips as f64);
                    // The condition runs once more than the body.
                    let n_runs = part.n_runs * n_trips;
                    let after = self.steps(plan, condition, Part { start_s, n_runs: n_runs + part.n_runs }, bars);
                    let end_s = self.steps(plan, body, Part { start_s: after, n_runs }, bars);
                    let rest_s = (end_s - start_s) * (n_trips - 1.0) + (after - start_s);
                    if rest_s > 0.0 {
                        bars.push(Bar { step, n_runs: 0.0, start_s: end_s, duration_s: rest_s });
                    }
                    free = [end_s + rest_s; 2];
                    free[0]
                }
                Work::Conditional { branches, shares, .. } => {
                    let mut start_s = free[0].max(free[1]);
                    for (branch, share) in branches.iter().zip(shares) {
                        let end_s = self.steps(plan, branch, Part { start_s, n_runs: part.n_runs * share }, bars);
                        // The next branch is drawn from when this one has ended on the mean.
                        start_s += (end_s - start_s) * share;
                    }
                    free = [start_s; 2];
                    free[0]
                }
                work @ (Work::Launch { .. }
                | Work::Gemm(_)
                | Work::Collective(_)
                | Work::Copy { .. }
                | Work::Fill { .. }) => {
                    let lane = usize::from(step.stream == Stream::Communication);
                    let waits = step.waits_for.iter().filter_map(|&i| ends.get(i as usize).copied());
                    let start_s = waits.fold(free[lane], f64::max);
                    let bar = Bar { step, n_runs: part.n_runs, start_s, duration_s: self.work_s(plan, work) };
                    free[lane] = bar.end_s();
                    bars.push(bar);
                    free[lane]
                }
            };
            ends.push(end);
        }
        free[0].max(free[1])
    }
}

fn dtype_of(plan: &Plan, buffer: BufferId) -> DType {
    plan.buffers[buffer].shape.dtype
}

fn bytes_of(plan: &Plan, buffer: BufferId) -> f64 {
    plan.buffers[buffer].shape.memory_bytes() as f64
}

fn bytes_of_all(plan: &Plan, work: &Work) -> f64 {
    let accesses = work.accesses(plan);
    accesses.reads.iter().chain(&accesses.writes).map(|&buffer| bytes_of(plan, buffer)).sum()
}

/// The exchange that a collective of the library is.
fn pattern_of(kind: &CollectiveKind) -> Exchange {
    match kind {
        CollectiveKind::Groups { reduction: Some(_), scatters: false } => Exchange::AllReduce,
        CollectiveKind::Groups { reduction: Some(_), scatters: true } => Exchange::ReduceScatter,
        CollectiveKind::Groups { reduction: None, scatters: false } => Exchange::AllGather,
        CollectiveKind::Groups { reduction: None, scatters: true } => Exchange::AllToAll,
        CollectiveKind::Pairs(_) => Exchange::Permute,
    }
}

/// When each step first runs, and when the last has ended, in seconds.
pub fn modelled_times(plan: &Plan) -> (Vec<Bar<'_>>, f64) {
    let mut bars = Vec::new();
    let end_s = StepTimes::for_plan(plan).steps(plan, &plan.steps, Part { start_s: 0.0, n_runs: 1.0 }, &mut bars);
    (bars, end_s)
}
