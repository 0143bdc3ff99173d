//! `hlo-opt analyze time`: the predicted time of a module on a machine.

use super::json_line;
use crate::arguments::{ReportFormat, TimeArgs};
use crate::baseline::compiled;
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::{Failure, exit, machine};
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::{predict, predict_as_ordered};
use hlo_mesh::Machine;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write;

/// Prints the prediction.
///
/// # Errors
/// An invalid input, an unknown machine, or one with another number of devices than the module.
pub(super) fn run(args: &TimeArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let (_, loaded) = read_completed(&args.file, args.counts, Takes::PerDevice, console)?;
    let module = loaded.module;
    let machine = machine::machine(&args.machine, module.n_devices().max(1))?;
    let options = FrequencyOptions { unknown_trip_count: args.unknown_trip_count };
    // An order of instructions is that of the module as it stands, and so is a launch plan of our own.
    let compiled =
        if args.as_ordered || args.as_written { Cow::Borrowed(&module) } else { compiled(&module, &machine) };
    let frequencies = Frequencies::compute(&compiled, options);
    let predict = if args.as_ordered { predict_as_ordered } else { predict };
    let time = predict(&compiled, &frequencies, &machine).map_err(|error| Failure::Usage(error.to_string()))?;
    let facts = Facts {
        n_devices: module.n_devices().max(1) as u64,
        critical_path_s: time.critical_path_s,
        compute_s: time.compute_s,
        communication_s: time.communication_s,
        is_partial: time.is_partial,
        n_assumed_loops: frequencies.n_assumed_loops(),
        unknown_trip_count: args.unknown_trip_count,
    };
    let mut out = String::new();
    match args.format {
        ReportFormat::Json => json_line(&facts, &mut out),
        ReportFormat::Text => facts.table(&machine, &mut out),
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
    /// Loops whose trips nothing in the module tells.
    n_assumed_loops: usize,
    /// How often these are taken to run.
    unknown_trip_count: u64,
}

impl Facts {
    fn table(&self, machine: &Machine, out: &mut String) {
        let us = |seconds: f64| format!("{:.1} us", seconds * 1e6);
        let links = machine.cluster().map_or("one switch", |cluster| cluster.name());
        let _ = writeln!(out, "predicted on {} x {}, {links}", self.n_devices, machine.device().name);
        let _ = writeln!(out, "  critical path       {:>16}", us(self.critical_path_s));
        let _ = writeln!(out, "  compute busy        {:>16}", us(self.compute_s));
        let _ = writeln!(out, "  communication busy  {:>16}", us(self.communication_s));
        if self.is_partial {
            let _ = writeln!(
                out,
                "  without the work of custom calls and exchanges with the host, which nothing here knows"
            );
        }
        if self.n_assumed_loops > 0 {
            let loops = if self.n_assumed_loops == 1 { "loop is" } else { "loops are" };
            let _ = writeln!(
                out,
                "  {} {loops} taken to run {} times: --unknown-trip-count",
                self.n_assumed_loops, self.unknown_trip_count
            );
        }
    }
}
