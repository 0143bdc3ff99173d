//! A plan as trace events, the JSON that Perfetto and chrome://tracing read: both streams over modelled time, and memory.
//!
//! Times are microseconds. Of a loop the first round is there, then one event for the rounds that follow.

use super::live::arena_over_time;
use super::model::modelled_times;
use super::{Plan, Stream, Work};
use serde_json::{Value, json};

fn category(work: &Work) -> &'static str {
    match work {
        Work::Launch { .. } => "kernel",
        Work::Gemm(_) => "product",
        Work::Collective(_) => "collective",
        Work::Copy { .. } => "copy",
        Work::Fill { .. } => "fill",
        Work::While { .. } | Work::Conditional { .. } => "rounds",
    }
}

impl Plan {
    /// The plan's steps and its memory over modelled time.
    pub fn to_trace(&self) -> Value {
        let (bars, _) = modelled_times(self);
        let memory = self.memory();
        let given_bytes = memory.peak_bytes() - memory.temp_bytes;
        let n_devices = self.n_replicas.saturating_mul(self.n_partitions);
        let process = format!("{}, modelled: one of {n_devices} x {}", self.name, self.machine_name());
        let mut events = vec![json!({"ph": "M", "pid": 0, "name": "process_name", "args": {"name": process}})];
        for stream in [Stream::Compute, Stream::Communication] {
            let (tid, name) = (stream.number(), stream.name());
            events.push(json!({"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}));
        }
        events.extend(bars.iter().map(|bar| {
            let kind = category(&bar.step.work);
            let name =
                if kind == "rounds" { format!("more rounds of {}", bar.step.name) } else { bar.step.name.clone() };
            json!({
                "ph": "X", "pid": 0, "tid": bar.step.stream.number(), "name": name, "cat": kind,
                "ts": bar.start_s * 1e6, "dur": bar.duration_s * 1e6, "args": {"kind": kind, "runs": bar.n_runs},
            })
        }));
        let counter = |time_s: f64, arena_bytes: u64| {
            let args = json!({"arguments and outputs": given_bytes, "arena": arena_bytes});
            json!({"ph": "C", "pid": 0, "name": "memory in bytes", "ts": time_s * 1e6, "args": args})
        };
        events.extend(arena_over_time(self, &bars).into_iter().map(|(time_s, bytes)| counter(time_s, bytes)));
        json!({"displayTimeUnit": "ns", "traceEvents": events})
    }
}
