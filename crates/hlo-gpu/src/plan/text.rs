//! A plan as text for people: one line for each kernel, buffer and step.

use super::model::{busy_s, modelled_times};
use super::{BufferId, CollectiveKind, Gemm, Matrix, Place, Plan, PlanBuffer, Reduction, Step, Stream, Work};
use hlo_ir::ArrayShape;
use std::fmt::{self, Display, Formatter};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let memory = self.memory();
        writeln!(f, "plan {}: {} replicas x {} partitions", self.name, self.n_replicas, self.n_partitions)?;
        writeln!(
            f,
            "memory: peak {} B = arguments {} + outputs {} - aliased {} + arena {}; constants {} B",
            memory.peak_bytes(),
            memory.argument_bytes,
            memory.output_bytes,
            memory.alias_bytes,
            memory.temp_bytes,
            memory.constant_bytes
        )?;
        write_times(f, self)?;
        for (id, groups) in self.communicators.iter() {
            writeln!(f, "{id}: {groups:?}")?;
        }
        for (id, kernel) in self.kernels.iter() {
            let is_cooperative = if kernel.is_cooperative { ", cooperative" } else { "" };
            writeln!(
                f,
                "{id}: {}, grid {}, block {}, shared {} B{is_cooperative}",
                kernel.name, kernel.grid, kernel.block, kernel.shared_bytes
            )?;
        }
        for (id, buffer) in self.buffers.iter() {
            writeln!(f, "{id}: {buffer}")?;
        }
        writeln!(f, "parameters: {}", list(&self.parameters))?;
        writeln!(f, "outputs: {}", list(&self.outputs))?;
        writeln!(f, "steps:")?;
        write_steps(f, self, &self.steps, 1)
    }
}

/// Modelled times: see [`super::model`].
fn write_times(f: &mut Formatter<'_>, plan: &Plan) -> fmt::Result {
    let (bars, end_s) = modelled_times(plan);
    let busy_us = |stream| busy_s(&bars, stream) * 1e6;
    write!(
        f,
        "time: modelled {:.1} us on {} x {}",
        end_s * 1e6,
        plan.n_replicas.saturating_mul(plan.n_partitions),
        plan.machine_name()
    )?;
    if let Some(path_s) = plan.critical_path_s {
        write!(f, ", critical path {:.1} us", path_s * 1e6)?;
    }
    if let Some(written_s) = plan.written_order_s {
        write!(f, ", {:.1} us in the order of the text", written_s * 1e6)?;
    }
    if let Some(order) = plan.faster_order {
        write!(f, ", {:.1} us in an order that takes {} bytes more", order.time_s * 1e6, order.more_bytes)?;
    }
    let (compute_us, communication_us) = (busy_us(Stream::Compute), busy_us(Stream::Communication));
    writeln!(f, "; compute busy {compute_us:.1} us, communication {communication_us:.1} us")
}

impl Display for PlanBuffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let at = if self.offset_bytes == 0 { String::new() } else { format!("+{}", self.offset_bytes) };
        write!(f, "{} at {}{at}, {}", shape_text(&self.shape), self.place, self.name)
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::Parameter(leaf) => write!(f, "parameter {leaf}"),
            Place::Output(leaf) => write!(f, "output {leaf}"),
            Place::Arena => f.write_str("arena"),
            Place::Constant(id) => write!(f, "{id}"),
            Place::DeviceIds => f.write_str("device ids"),
        }
    }
}

impl Reduction {
    /// The word for it in printed plans.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Product => "product",
            Reduction::Min => "min",
            Reduction::Max => "max",
        }
    }
}

impl CollectiveKind {
    /// The word for it in printed plans.
    pub const fn name(&self) -> &'static str {
        match self {
            CollectiveKind::Groups { reduction: Some(_), scatters: false } => "all-reduce",
            CollectiveKind::Groups { reduction: Some(_), scatters: true } => "reduce-scatter",
            CollectiveKind::Groups { reduction: None, scatters: false } => "all-gather",
            CollectiveKind::Groups { reduction: None, scatters: true } => "all-to-all",
            CollectiveKind::Pairs(_) => "permute",
        }
    }
}

impl Stream {
    /// The word for it in printed plans.
    pub const fn name(self) -> &'static str {
        match self {
            Stream::Compute => "compute",
            Stream::Communication => "communication",
        }
    }
}

/// A shape with its layout, as HLO writes it.
pub fn shape_text(shape: &ArrayShape) -> String {
    let words = |list: &[i64]| list.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    let layout = if shape.rank() == 0 { String::new() } else { format!("{{{}}}", words(&shape.minor_to_major())) };
    format!("{}[{}]{layout}", shape.dtype, words(&shape.dims))
}

fn list(buffers: &[BufferId]) -> String {
    buffers.iter().map(BufferId::to_string).collect::<Vec<_>>().join(" ")
}

fn write_steps(f: &mut Formatter<'_>, plan: &Plan, steps: &[Step], depth: usize) -> fmt::Result {
    for (i, step) in steps.iter().enumerate() {
        let indent = "  ".repeat(depth);
        let waits: String = step.waits_for.iter().map(|i| format!(", waits for {i}")).collect();
        write!(f, "{indent}{i} {}{waits}: ", step.stream.name())?;
        write_work(f, plan, step, depth)?;
    }
    Ok(())
}

fn write_work(f: &mut Formatter<'_>, plan: &Plan, step: &Step, depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    let name = &step.name;
    match &step.work {
        Work::Launch { kernel, arguments } => writeln!(f, "launch {kernel} {} ({name})", list(arguments)),
        Work::Gemm(gemm) => writeln!(f, "{gemm} ({name})"),
        Work::Collective(call) => {
            let reduction = call.kind.reduction().map_or(String::new(), |r| format!(" {}", r.name()));
            write!(f, "{}{reduction} {}", call.kind.name(), call.communicator)?;
            if let Some(pairs) = call.kind.pairs() {
                write!(f, " {pairs:?}")?;
            }
            for (input, output) in &call.calls {
                write!(f, " {input}->{output}")?;
            }
            writeln!(f, " ({name})")
        }
        Work::Copy { from, to } => writeln!(f, "copy {from}->{to} ({name})"),
        Work::Fill { to, byte } => writeln!(f, "fill {to} with {byte} ({name})"),
        Work::While { condition, predicate, body, n_trips, carried: _ } => {
            writeln!(f, "while {predicate}, modelled rounds {n_trips} ({name})")?;
            writeln!(f, "{indent}  condition:")?;
            write_steps(f, plan, condition, depth + 2)?;
            writeln!(f, "{indent}  body:")?;
            write_steps(f, plan, body, depth + 2)
        }
        Work::Conditional { selector, branches, shares } => {
            writeln!(f, "conditional {selector} ({name})")?;
            for ((k, branch), share) in branches.iter().enumerate().zip(shares) {
                writeln!(f, "{indent}  branch {k}, modelled share {share:.3}:")?;
                write_steps(f, plan, branch, depth + 2)?;
            }
            Ok(())
        }
    }
}

impl Display for Gemm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (m, n, k) = (self.m, self.n, self.k);
        let batch = match (self.outer_batch, self.batch) {
            (1, 1) => String::new(),
            (1, batch) => format!(" x{batch}"),
            (outer, batch) => format!(" x{outer}x{batch}"),
        };
        let tf32 = if self.uses_tf32 { " tf32" } else { "" };
        write!(f, "gemm{tf32} {m}x{n}x{k}{batch} {} * {} -> {}", self.lhs, self.rhs, self.output)
    }
}

impl Display for Matrix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Matrix { buffer, batch_stride_elems, outer_stride_elems, row_stride_elems, col_stride_elems } = self;
        let outer = if *outer_stride_elems == 0 { String::new() } else { format!("{outer_stride_elems},") };
        write!(f, "{buffer}[{outer}{batch_stride_elems},{row_stride_elems},{col_stride_elems}]")
    }
}
