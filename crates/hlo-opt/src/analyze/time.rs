//! `hlo-opt analyze time`: the predicted time of a module on a machine.

use super::json_line;
use crate::arguments::{ReportFormat, TimeArgs};
use crate::console::Console;
use crate::input::load_one;
use crate::{Failure, exit};
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::{Machine, ModuleTime, predict};
use hlo_ir::Module;
use serde::Serialize;
use std::fmt::Write;

/// Prints the prediction.
///
/// # Errors
/// An invalid input, an unknown machine, or one with another number of devices than the module.
pub(super) fn run(args: &TimeArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let module = load_one(&args.file, console)?;
    let machine = Machine::from_args(args.cluster.as_deref().unwrap_or_default(), &args.device);
    let machine = machine.map_err(|error| Failure::Usage(error.to_string()))?;
    let options = FrequencyOptions { unknown_trip_count: args.unknown_trip_count };
    let time = predict(&module, &Frequencies::compute(&module, options), &machine);
    let facts = Facts::of(&module, &time.map_err(|error| Failure::Usage(error.to_string()))?);
    let mut out = String::new();
    match args.format {
        ReportFormat::Json => json_line(&facts, &mut out),
        ReportFormat::Text => facts.table(&args.device, &mut out),
    }
    console.print(out.as_bytes()).map(|()| exit::OK)
}

#[derive(Serialize)]
struct Facts {
    n_devices: u64,
    critical_path_s: f64,
    compute_s: f64,
    communication_s: f64,
    is_partial: bool,
}

impl Facts {
    fn of(module: &Module, time: &ModuleTime) -> Facts {
        let &ModuleTime { critical_path_s, compute_s, communication_s, is_partial } = time;
        let n_devices = module.n_devices().max(1) as u64;
        Facts { n_devices, critical_path_s, compute_s, communication_s, is_partial }
    }

    fn table(&self, device: &str, out: &mut String) {
        let us = |seconds: f64| format!("{:.1} us", seconds * 1e6);
        let _ = writeln!(out, "predicted on {} x {device}", self.n_devices);
        let _ = writeln!(out, "  critical path       {:>16}", us(self.critical_path_s));
        let _ = writeln!(out, "  compute busy        {:>16}", us(self.compute_s));
        let _ = writeln!(out, "  communication busy  {:>16}", us(self.communication_s));
        if self.is_partial {
            let _ = writeln!(
                out,
                "  without the work of custom calls and exchanges with the host, which nothing here knows"
            );
        }
    }
}
