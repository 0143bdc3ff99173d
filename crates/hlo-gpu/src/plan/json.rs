//! A plan as JSON for programs. Entities are numbers: a kernel's, buffer's or communicator's place in its list.

use super::model::modelled_times;
use super::{BufferId, Gemm, Matrix, Place, Plan, PlanBuffer, Step, Work, shape_text};
use cranelift_entity::EntityRef;
use serde_json::{Value, json};

impl Plan {
    /// The whole plan, kernels with their source, constants without their elements.
    pub fn to_json(&self) -> Value {
        let memory = self.memory();
        let kernels = self.kernels.values().map(|kernel| {
            json!({
                "name": kernel.name, "grid": kernel.grid, "block": kernel.block, "shared_bytes": kernel.shared_bytes,
                "is_cooperative": kernel.is_cooperative, "n_arguments": kernel.arguments.len(), "source": kernel.source,
            })
        });
        let modelled_s = modelled_times(self).1;
        json!({
            "name": self.name,
            "machine": self.machine_name(),
            "modelled_s": modelled_s,
            "critical_path_s": self.critical_path_s,
            "modelled_s_in_written_order": self.written_order_s,
            "faster_order": self.faster_order.map(|o| json!({"modelled_s": o.time_s, "more_bytes": o.more_bytes})),
            "modelled_s_not_combined": self.apart_s.map(|[time_s, _]| time_s),
            "modelled_s_not_combined_in_more_memory": self.apart_s.map(|[_, time_s]| time_s),
            "n_replicas": self.n_replicas,
            "n_partitions": self.n_partitions,
            "memory": {
                "peak_bytes": memory.peak_bytes(),
                "argument_bytes": memory.argument_bytes,
                "output_bytes": memory.output_bytes,
                "alias_bytes": memory.alias_bytes,
                "arena_bytes": memory.temp_bytes,
                "constant_bytes": memory.constant_bytes,
            },
            "communicators": self.communicators.values().collect::<Vec<_>>(),
            "kernels": kernels.collect::<Vec<_>>(),
            "buffers": self.buffers.values().map(buffer).collect::<Vec<_>>(),
            "parameters": numbers(&self.parameters),
            "outputs": numbers(&self.outputs),
            "aliases": self.aliases,
            "steps": steps(&self.steps),
        })
    }
}

fn numbers(buffers: &[BufferId]) -> Vec<usize> {
    buffers.iter().map(|b| b.index()).collect()
}

fn buffer(buffer: &PlanBuffer) -> Value {
    let (place, number) = match buffer.place {
        Place::Parameter(leaf) => ("parameter", Some(u64::from(leaf))),
        Place::Output(leaf) => ("output", Some(u64::from(leaf))),
        Place::Arena => ("arena", None),
        Place::Constant(id) => ("constant", Some(id.index() as u64)),
        Place::DeviceIds => ("device-ids", None),
    };
    json!({
        "name": buffer.name, "shape": shape_text(&buffer.shape), "bytes": buffer.shape.memory_bytes(),
        "place": place, "number": number, "offset_bytes": buffer.offset_bytes,
        "value": buffer.value.as_u32(),
    })
}

fn steps(list: &[Step]) -> Vec<Value> {
    list.iter()
        .map(|step| {
            let mut value = work(&step.work);
            value["name"] = json!(step.name);
            value["stream"] = json!(step.stream.name());
            value["waits_for"] = json!(step.waits_for);
            value
        })
        .collect()
}

fn work(work: &Work) -> Value {
    match work {
        Work::Launch { kernel, arguments } => {
            json!({"work": "launch", "kernel": kernel.index(), "arguments": numbers(arguments)})
        }
        Work::Gemm(gemm) => gemm_value(gemm),
        Work::Collective(call) => {
            let calls: Vec<Value> = call.calls.iter().map(|(from, to)| json!([from.index(), to.index()])).collect();
            json!({
                "work": call.kind.name(), "reduction": call.kind.reduction().map(super::Reduction::name),
                "communicator": call.communicator.index(), "pairs": call.kind.pairs(), "calls": calls,
            })
        }
        Work::Copy { from, to } => json!({"work": "copy", "from": from.index(), "to": to.index()}),
        Work::Fill { to, byte } => json!({"work": "fill", "to": to.index(), "byte": byte}),
        Work::While { condition, predicate, body, n_trips, carried: _ } => json!({
            "work": "while", "condition": steps(condition), "predicate": predicate.index(), "body": steps(body),
            "modelled_trips": n_trips,
        }),
        Work::Conditional { selector, branches, shares } => json!({
            "work": "conditional", "selector": selector.index(), "modelled_shares": shares,
            "branches": branches.iter().map(|b| steps(b)).collect::<Vec<_>>(),
        }),
    }
}

fn gemm_value(gemm: &Gemm) -> Value {
    let matrix = |m: &Matrix| {
        json!({
            "buffer": m.buffer.index(),
            "strides_elems": [m.outer_stride_elems, m.batch_stride_elems, m.row_stride_elems, m.col_stride_elems],
        })
    };
    json!({
        "work": "gemm", "outer_batch": gemm.outer_batch, "batch": gemm.batch, "m": gemm.m, "n": gemm.n, "k": gemm.k,
        "uses_tf32": gemm.uses_tf32,
        "lhs": matrix(&gemm.lhs), "rhs": matrix(&gemm.rhs), "output": matrix(&gemm.output),
    })
}
