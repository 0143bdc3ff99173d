//! A picture of a plan's streams over modelled time.
//!
//! Times are the roofline's: a step takes what its bytes or its arithmetic take on the device, whichever is more, and a
//! launch; a collective what the cluster model says for one switch. A loop's body is drawn once. They say how work overlaps,
//! and are no measurements.

use super::{BufferId, CollectiveCall, CollectiveKind, Plan, Step, Stream, Work};
use hlo_cluster::{Algo, Cluster, Collective, DeviceProfile};
use std::fmt::Write;

/// The device whose figures are taken.
const DEVICE: &str = "h200";
/// Bandwidth and latency of its links: NVLink 4, one way (H200 data sheet), and the order of NCCL's latency.
const LINK_GBYTES_PER_S: f64 = 450.0;
const LINK_LATENCY_US: f64 = 1.0;

/// A step's time on its stream.
#[derive(Clone, PartialEq, Debug)]
pub struct Bar {
    /// The instruction.
    pub name: String,
    /// The stream.
    pub stream: Stream,
    /// Seconds from the plan's beginning.
    pub start_s: f64,
    /// Seconds that it takes.
    pub duration_s: f64,
}

/// When each step runs, loops' bodies once, the first branch of conditionals.
pub fn modelled_times(plan: &Plan) -> Vec<Bar> {
    let devices = plan.n_replicas.saturating_mul(plan.n_partitions).max(1);
    let device = DeviceProfile::from_arg(DEVICE).ok();
    let mut model =
        Model { plan, device, cluster: Cluster::flat(devices, LINK_GBYTES_PER_S, LINK_LATENCY_US), bars: Vec::new() };
    model.steps(&plan.steps, 0.0);
    model.bars
}

struct Model<'p> {
    plan: &'p Plan,
    device: Option<DeviceProfile>,
    cluster: Cluster,
    bars: Vec<Bar>,
}

impl Model<'_> {
    /// Puts steps on the line from `start_s` on; returns when the last has ended.
    fn steps(&mut self, steps: &[Step], start_s: f64) -> f64 {
        let mut free = [start_s; 2];
        let mut ends = Vec::new();
        for step in steps {
            let lane = usize::from(step.stream == Stream::Communication);
            let waits = step.waits_for.iter().filter_map(|&i| ends.get(i as usize).copied());
            let begin = waits.fold(free[lane], f64::max);
            let end = match &step.work {
                Work::While { condition, body, .. } => {
                    let begin = free[0].max(free[1]);
                    let after = self.steps(condition, begin);
                    let end = self.steps(body, after);
                    free = [end; 2];
                    end
                }
                Work::Conditional { branches, .. } => {
                    let begin = free[0].max(free[1]);
                    let end = branches.first().map_or(begin, |branch| self.steps(branch, begin));
                    free = [end; 2];
                    end
                }
                work @ (Work::Launch { .. }
                | Work::Gemm(_)
                | Work::Collective(_)
                | Work::Copy { .. }
                | Work::Fill { .. }) => {
                    let duration_s = self.duration_s(work);
                    let bar = Bar { name: step.name.clone(), stream: step.stream, start_s: begin, duration_s };
                    self.bars.push(bar);
                    begin + duration_s
                }
            };
            free[lane] = free[lane].max(end);
            ends.push(end);
        }
        free[0].max(free[1])
    }

    fn bytes(&self, buffer: BufferId) -> f64 {
        self.plan.buffers[buffer].shape.memory_bytes() as f64
    }

    fn duration_s(&self, work: &Work) -> f64 {
        if let Work::Collective(call) = work {
            return self.collective_s(call);
        }
        let accesses = work.accesses(self.plan);
        let bytes: f64 = accesses.reads.iter().chain(&accesses.writes).map(|&b| self.bytes(b)).sum();
        let (flops, dtype) = match work {
            Work::Gemm(gemm) => {
                let flops = 2.0 * gemm.batch as f64 * gemm.m as f64 * gemm.n as f64 * gemm.k as f64;
                (flops, self.plan.buffers[gemm.lhs.buffer].shape.dtype.name())
            }
            Work::Launch { .. } | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => (0.0, "f32"),
            Work::While { .. } | Work::Conditional { .. } => (0.0, "f32"),
        };
        self.device.as_ref().map_or(0.0, |device| device.launch_s + device.op_s(flops, bytes, dtype))
    }

    fn collective_s(&self, call: &CollectiveCall) -> f64 {
        let kind = match call.kind {
            CollectiveKind::AllReduce(_) => Collective::AllReduce,
            CollectiveKind::ReduceScatter(_) => Collective::ReduceScatter,
            CollectiveKind::AllGather => Collective::AllGather,
            // Each element crosses the links once, as in half an all-reduce.
            CollectiveKind::AllToAll | CollectiveKind::Permute(_) => Collective::AllGather,
        };
        let groups = self.plan.communicators.get(call.communicator).map(Vec::as_slice).unwrap_or_default();
        let bytes: f64 = call.calls.iter().map(|&(a, b)| self.bytes(a).max(self.bytes(b))).sum();
        self.cluster.collective_s(kind, bytes, groups, Algo::Auto)
    }
}

const WIDTH: f64 = 1200.0;
const LANE: f64 = 40.0;

/// The picture: compute above, communication below.
pub fn svg(plan: &Plan) -> String {
    let bars = modelled_times(plan);
    let total = bars.iter().map(|bar| bar.start_s + bar.duration_s).fold(0.0, f64::max).max(1e-12);
    let busy = |stream| bars.iter().filter(|b| b.stream == stream).map(|b| b.duration_s).sum::<f64>();
    let mut out = String::new();
    let height = 2.0 * LANE + 50.0;
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" font-size=\"12\">",
        WIDTH + 20.0
    );
    let _ = writeln!(
        out,
        "<text x=\"10\" y=\"16\">{}: modelled {:.1} us; compute {:.1} us, communication {:.1} us</text>",
        escaped(&plan.name),
        total * 1e6,
        busy(Stream::Compute) * 1e6,
        busy(Stream::Communication) * 1e6
    );
    for bar in &bars {
        let (y, color) = match bar.stream {
            Stream::Compute => (26.0, "#4878a8"),
            Stream::Communication => (32.0 + LANE, "#c87830"),
        };
        let (x, width) = (10.0 + bar.start_s / total * WIDTH, (bar.duration_s / total * WIDTH).max(0.2));
        let _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{LANE}\" fill=\"{color}\" stroke=\"white\" \
             stroke-width=\"0.2\"><title>{} {:.2} us</title></rect>",
            escaped(&bar.name),
            bar.duration_s * 1e6
        );
    }
    out.push_str("</svg>\n");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
