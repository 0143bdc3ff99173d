//! Modelled times of a plan's steps.
//!
//! [`hlo_analysis::time`] says how long each step takes on the machine where none is described. Each stream runs its steps in order, each from when the
//! step before it and all that it waits for have ended. A loop's body is counted once, of a conditional the first branch. The
//! times say how work overlaps and which of two orders is better, and are no measurements.

use super::{BufferId, CollectiveCall, CollectiveKind, CommunicatorId, Plan, Step, Stream, Work};
use hashbrown::HashMap;
use hlo_analysis::time::{DEFAULT_DEVICE, KernelWork, Machine, Network};
use hlo_cluster::{Collective, CollectiveCost};
use hlo_ir::DType;

/// Times of a plan's steps on the machine where none is described.
pub struct StepTimes {
    /// None only where the default device has no profile.
    on: Option<(Machine, Network)>,
    costs: HashMap<(CollectiveKind, CommunicatorId), CollectiveCost>,
}

/// A step's time on its stream.
#[derive(Clone, Debug)]
pub struct Bar<'p> {
    /// The step.
    pub step: &'p Step,
    /// Seconds from the plan's beginning.
    pub start_s: f64,
    /// Seconds that it takes.
    pub duration_s: f64,
}

impl Bar<'_> {
    /// When it has ended, in seconds from the plan's beginning.
    pub fn end_s(&self) -> f64 {
        self.start_s + self.duration_s
    }
}

/// Seconds for which a stream works; 0 where it has no step.
pub(super) fn busy_s(bars: &[Bar<'_>], stream: Stream) -> f64 {
    // The sum of no floats is -0.
    bars.iter().filter(|bar| bar.step.stream == stream).fold(0.0, |sum, bar| sum + bar.duration_s)
}

impl StepTimes {
    /// On as many devices as the plan wants.
    pub fn for_plan(plan: &Plan) -> StepTimes {
        let n_devices = plan.n_replicas.saturating_mul(plan.n_partitions).max(1);
        let machine = Machine::from_args("", DEFAULT_DEVICE).ok();
        let on = machine.and_then(|machine| machine.network(n_devices as usize).ok().map(|network| (machine, network)));
        StepTimes { on, costs: HashMap::new() }
    }

    /// Seconds of the whole plan, loops' bodies once, the first branch of conditionals.
    pub fn plan_s(&mut self, plan: &Plan) -> f64 {
        self.steps(plan, &plan.steps, 0.0, &mut Vec::new())
    }

    /// Seconds of one piece of work; none for loops and branches, whose steps have their own.
    pub fn work_s(&mut self, plan: &Plan, work: &Work) -> f64 {
        let Some((machine, _)) = &self.on else { return 0.0 };
        let arithmetic_s = match work {
            Work::Collective(call) => return self.collective_s(plan, call),
            Work::While { .. } | Work::Conditional { .. } => return 0.0,
            Work::Gemm(gemm) => {
                let flops = 2.0 * gemm.batch as f64 * gemm.m as f64 * gemm.n as f64 * gemm.k as f64;
                machine.matrix_s(flops, dtype_of(plan, gemm.lhs.buffer), gemm.uses_tf32)
            }
            Work::Launch { .. } | Work::Copy { .. } | Work::Fill { .. } => 0.0,
        };
        let accesses = work.accesses(plan);
        let bytes = accesses.reads.iter().chain(&accesses.writes).map(|&b| bytes_of(plan, b)).sum();
        machine.kernel_s(KernelWork { bytes, arithmetic_s })
    }

    fn collective_s(&mut self, plan: &Plan, call: &CollectiveCall) -> f64 {
        let Some((_, network)) = &self.on else { return 0.0 };
        let CollectiveCall { kind, communicator, calls } = call;
        let cost = self.costs.entry((kind.clone(), *communicator)).or_insert_with(|| {
            let groups = plan.communicators.get(*communicator).map(Vec::as_slice).unwrap_or_default();
            match kind {
                CollectiveKind::Groups { reduction: Some(_), scatters: false } => {
                    network.collective(Collective::AllReduce, groups)
                }
                CollectiveKind::Groups { reduction: Some(_), scatters: true } => {
                    network.collective(Collective::ReduceScatter, groups)
                }
                CollectiveKind::Groups { reduction: None, scatters: false } => {
                    network.collective(Collective::AllGather, groups)
                }
                CollectiveKind::Groups { reduction: None, scatters: true } => network.all_to_all(groups),
                CollectiveKind::Pairs(pairs) => network.permute(pairs),
            }
        });
        // The larger side is the whole tensor; the sides of an all-to-all and of a permute are equal.
        cost.seconds(calls.iter().map(|&(a, b)| bytes_of(plan, a).max(bytes_of(plan, b))).sum())
    }

    /// Puts steps on the line from `start_s` on, and into `bars`; returns when the last has ended.
    fn steps<'p>(&mut self, plan: &Plan, steps: &'p [Step], start_s: f64, bars: &mut Vec<Bar<'p>>) -> f64 {
        let mut free = [start_s; 2];
        let mut ends = Vec::with_capacity(steps.len());
        for step in steps {
            let end = match &step.work {
                Work::While { condition, body, .. } => {
                    let after = self.steps(plan, condition, free[0].max(free[1]), bars);
                    free = [self.steps(plan, body, after, bars); 2];
                    free[0]
                }
                Work::Conditional { branches, .. } => {
                    let begin = free[0].max(free[1]);
                    free = [branches.first().map_or(begin, |branch| self.steps(plan, branch, begin, bars)); 2];
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
                    let bar = Bar { step, start_s, duration_s: self.work_s(plan, work) };
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

/// When each step runs, loops' bodies once, the first branch of conditionals; and when the last has ended, in seconds.
pub fn modelled_times(plan: &Plan) -> (Vec<Bar<'_>>, f64) {
    let mut bars = Vec::new();
    let end_s = StepTimes::for_plan(plan).steps(plan, &plan.steps, 0.0, &mut bars);
    (bars, end_s)
}
