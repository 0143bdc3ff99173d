//! `hlo-opt analyze memory`: the peak memory of one device, and what lives at the peak.

use super::json_line;
use crate::arguments::{MemoryArgs, ReportFormat};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::input::Loaded;
use crate::{Failure, exit};
use hlo_analysis::memory::{LiveBuffer, MemoryReport, peak_memory, peak_memory_of};
use hlo_ir::infer::ShapeText;
use hlo_ir::{Module, Shape};
use serde::Serialize;
use std::fmt::Write;

/// Prints the report.
///
/// # Errors
/// An invalid input, or a computation that is not there.
pub(super) fn run(args: &MemoryArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let (_, Loaded { module, .. }) = read_completed(&args.file, args.counts, Takes::PerDevice, console)?;
    let report = match args.computation.as_deref().map(|name| name.trim_start_matches('%')) {
        None => peak_memory(&module),
        Some(name) => match module.computations().iter().find(|&&comp| module.comp_name(comp) == name) {
            Some(&comp) => peak_memory_of(&module, comp),
            None => {
                return Err(Failure::Usage(format!("expected a computation of the module, found `{name}`")));
            }
        },
    };
    let facts = MemoryFacts::of(&module, &report, args.top);
    let mut out = String::new();
    match args.format {
        ReportFormat::Json => json_line(&facts, &mut out),
        ReportFormat::Text => facts.table(&mut out),
    }
    console.print(out.as_bytes()).map(|()| exit::OK)
}

/// The report, by name.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemoryFacts {
    peak_bytes: u64,
    argument_bytes: u64,
    output_bytes: u64,
    alias_bytes: u64,
    temp_bytes: u64,
    constant_bytes: u64,
    /// Parameters in the memory of the host; no other figure counts them.
    host_bytes: u64,
    /// From the outermost computation inwards.
    pub peak_at: Vec<String>,
    /// Buffers that live at the peak.
    pub n_live_at_peak: usize,
    /// The largest of them.
    pub live_at_peak: Vec<BufferFact>,
}

/// A buffer that lives at the peak.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BufferFact {
    /// Whose value is in it.
    pub instruction: String,
    /// Tuple index; empty for an array.
    pub index: Vec<i64>,
    /// What it is for.
    pub kind: &'static str,
    /// Size.
    pub bytes: u64,
    /// Of the array.
    pub shape: String,
    /// The name path of the framework.
    pub op_name: Option<String>,
}

impl MemoryFacts {
    /// The report, with at most `top` buffers of the peak.
    pub(crate) fn of(module: &Module, report: &MemoryReport, top: usize) -> MemoryFacts {
        MemoryFacts {
            peak_bytes: report.sizes.peak_bytes,
            argument_bytes: report.sizes.argument_bytes,
            output_bytes: report.sizes.output_bytes,
            alias_bytes: report.sizes.alias_bytes,
            temp_bytes: report.sizes.temp_bytes,
            constant_bytes: report.sizes.constant_bytes,
            host_bytes: report.sizes.host_bytes,
            peak_at: report.peak_at.iter().map(|&inst| module.inst_name(inst).to_string()).collect(),
            n_live_at_peak: report.live_at_peak.len(),
            live_at_peak: report.live_at_peak.iter().take(top).map(|live| BufferFact::of(module, live)).collect(),
        }
    }

    fn table(&self, out: &mut String) {
        let outputs = self.output_bytes - self.alias_bytes;
        let _ = writeln!(out, "peak        {:>16} bytes", grouped(self.peak_bytes));
        let _ = writeln!(out, "  arguments {:>16}", grouped(self.argument_bytes));
        let _ = writeln!(
            out,
            "  outputs   {:>16} (of {}; {} lie in arguments)",
            grouped(outputs),
            grouped(self.output_bytes),
            grouped(self.alias_bytes)
        );
        let _ = writeln!(out, "  constants {:>16}", grouped(self.constant_bytes));
        let _ = writeln!(out, "  temporary {:>16}", grouped(self.temp_bytes));
        if self.host_bytes > 0 {
            let _ = writeln!(out, "on the host {:>16} bytes beside these", grouped(self.host_bytes));
        }
        let path: Vec<String> = self.peak_at.iter().map(|name| format!("%{name}")).collect();
        let place = if path.is_empty() { "the start".to_string() } else { path.join(" > ") };
        let _ = writeln!(out, "at {place}, {} buffers live:", self.n_live_at_peak);
        let width = self.live_at_peak.iter().map(|fact| fact.name().chars().count()).max().unwrap_or(0).min(60);
        for fact in &self.live_at_peak {
            let op_name = fact.op_name.as_deref().map_or(String::new(), |op| format!("  {op}"));
            let (bytes, kind, shape) = (grouped(fact.bytes), fact.kind, &fact.shape);
            let _ = writeln!(out, "{bytes:>16}  {kind:9}  {:width$}  {shape}{op_name}", fact.name());
        }
        if self.live_at_peak.len() < self.n_live_at_peak {
            let _ = writeln!(out, "{:>16}  {} more", "", self.n_live_at_peak - self.live_at_peak.len());
        }
    }
}

impl BufferFact {
    /// `%instruction{0}{1}`.
    pub(crate) fn name(&self) -> String {
        let index: String = self.index.iter().map(|i| format!("{{{i}}}")).collect();
        format!("%{}{index}", self.instruction)
    }

    fn of(module: &Module, live: &LiveBuffer) -> BufferFact {
        let (mut at, mut leaf_idx) = ((Vec::new(), String::new()), 0);
        module.shape(live.inst).for_each_leaf(&mut |index: &[i64], shape: &Shape| {
            if leaf_idx == live.leaf_idx {
                at = (index.to_vec(), ShapeText(shape).to_string());
            }
            leaf_idx += 1;
        });
        let op_name = module.inst(live.inst).marks.as_ref().and_then(|marks| marks.op_name());
        BufferFact {
            instruction: module.inst_name(live.inst).to_string(),
            index: at.0,
            kind: live.kind.name(),
            bytes: live.bytes,
            shape: at.1,
            op_name: op_name.map(str::to_string),
        }
    }
}

/// A number with commas between groups of three digits.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
