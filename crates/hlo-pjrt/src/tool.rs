//! The optimizer on one program: bytes in, bytes and a line out.

use crate::compile_options::DeviceCounts;
use crate::settings::Settings;
use hlo_analysis::program_kind::{ProgramKind, decide};
use hlo_opt::Failure;
use hlo_opt::library::OpenModule;
use hlo_opt::presets::PRESETS;
use hlo_proto::wire::take_field;
use serde_json::Value;
use std::fmt::Write;

/// HloModuleProto::name.
const NAME: u32 = 1;
/// HloModuleProto::device_assignment.
const DEVICE_ASSIGNMENT: u32 = 15;

/// Passes of XLA's compiler for GPUs expect collectives of one array each: one of several in a loop aborts the process
/// (`WhileLoopAllReduceCodeMotion`, jaxlib 0.12.0.1). XLA combines them again behind these passes.
const ONE_BY_ONE: &str = "split-tuple-all-reduce{ops=all},dce";

/// Where a program comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// A compile for these devices.
    Compile(DeviceCounts),
    /// The middle of a compile, where the program names its devices itself. XLA's passes over collectives follow.
    Stage,
    /// Behind the scheduler of a compile: only the order may become another.
    Scheduled,
}

/// What became of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Made {
    /// Nothing, and why.
    Same(String),
    /// Another program.
    Other {
        /// An HloModuleProto.
        proto: Vec<u8>,
        /// What was done and what it is worth, in one line.
        line: String,
    },
}

/// What makes one program of another: the bytes of an HloModuleProto, and where it comes from. It may fail,
/// panic or take forever; what it gives is checked.
///
/// # Errors
/// Why there is no other program.
pub type Tool = fn(&Settings, &[u8], Route) -> Result<Made, String>;

/// The passes of hlo-opt: the [`Tool`] of the wrapper.
///
/// # Errors
/// The program cannot be read, the pipeline is none, or a pass failed.
pub(crate) fn hlo_opt(settings: &Settings, proto: &[u8], route: Route) -> Result<Made, String> {
    let (n_replicas, n_partitions);
    let mut devices = Vec::new();
    if let Route::Compile(counts) = route {
        (n_replicas, n_partitions) = (counts.n_replicas.to_string(), counts.n_partitions.to_string());
        devices = vec![("num-replicas", n_replicas.as_str()), ("num-partitions", n_partitions.as_str())];
    }
    let (module, _) = OpenModule::parse("program", proto.to_vec(), &devices).map_err(one_line)?;
    // A stage of XLA's pipeline behind the partitioner has programs of each device alone.
    let said = if matches!(route, Route::Compile(_)) { None } else { Some(ProgramKind::PerDevice) };
    let decision = decide(module.module(), said, None);
    if decision.is_global() {
        return Ok(Made::Same(format!("it is not partitioned yet: {}", decision.reason(module.module()))));
    }
    let mut options = vec![(kind_of(&settings.pipeline), settings.pipeline.as_str())];
    options.extend(settings.machine.as_deref().map(|machine| ("machine", machine)));
    // Nobody waits longer, so passes that are not done by then stop too.
    let timeout = settings.deadline.as_secs_f64().to_string();
    options.push(("timeout", &timeout));
    let outcome = module.run(&options).map_err(one_line)?;
    let report: Value = serde_json::from_str(&outcome.report_json).map_err(|error| format!("report: {error}"))?;
    let report = &report["modules"][0];
    let deed = outcome.summary.lines().next().unwrap_or_default();
    // The line begins with the module's name, which the caller says.
    let deed = deed.split_once(": ").map_or(deed, |(_, deed)| deed);
    if !has_changed(report) {
        return Ok(Made::Same(if deed.is_empty() { "no pass changed it".into() } else { deed.into() }));
    }
    let totals = &report["totals"];
    let (made, figures) = match route {
        Route::Compile(_) => (outcome.module, figures(totals, &totals["after"])),
        Route::Scheduled => (outcome.module, figures_as_ordered(report)),
        Route::Stage if only_combines(report) => return Ok(Made::Same("XLA combines its collectives itself".into())),
        Route::Stage => {
            let apart = outcome.module.run(&[("pass", ONE_BY_ONE)]).map_err(one_line)?;
            let of_apart: Value =
                serde_json::from_str(&apart.report_json).map_err(|error| format!("report: {error}"))?;
            (apart.module, figures(totals, &of_apart["modules"][0]["totals"]["after"]))
        }
    };
    let proto = without_new_assignment(proto, made.proto().map_err(one_line)?);
    Ok(Made::Other { proto, line: format!("{deed}{figures}") })
}

/// Whether a text names a preset or passes: as which option the command line takes it.
fn kind_of(pipeline: &str) -> &'static str {
    let name = pipeline.split('{').next().unwrap_or_default().trim();
    if PRESETS.iter().any(|preset| preset.name == name) { "preset" } else { "pass" }
}

/// The first line of a failure that says something.
fn one_line(failure: Failure) -> String {
    let (Failure::Usage(text) | Failure::File(text) | Failure::Diagnostics(text)) = failure;
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim_start_matches("error: ").trim().to_string()
}

/// Whether any pass says that it changed the module.
fn has_changed(report: &Value) -> bool {
    let passes = report["reports"].as_array().map(Vec::as_slice).unwrap_or_default();
    passes.iter().any(|pass| pass["changed"].as_bool() == Some(true))
}

/// Whether the passes that changed the module only put collectives together, and removed what that left over.
fn only_combines(report: &Value) -> bool {
    let passes = report["reports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut changed = passes.iter().filter(|pass| pass["changed"].as_bool() == Some(true));
    changed.all(|pass| matches!(pass["pass"].as_str(), Some("combine-collectives" | "dce")))
}

/// `; collectives 7 -> 9, sending 4687949 -> 4687949 bytes; 89.0 -> 80.2 µs predicted for 8 x h200, one switch`: the collectives and bytes
/// of the program as it came and of the one that is handed on, and the times that the passes compared.
fn figures(totals: &Value, handed_on: &Value) -> String {
    let mut out = String::new();
    let counted = |of: &Value| {
        let kinds = of["collectives"].as_object().into_iter().flatten();
        kinds.filter_map(|(_, n)| n.as_f64()).sum::<f64>()
    };
    let came = &totals["before"];
    if let (Some(before), Some(after)) = (came["sent_bytes"].as_f64(), handed_on["sent_bytes"].as_f64()) {
        let (n_before, n_after) = (counted(came), counted(handed_on));
        let _ = write!(out, "; collectives {n_before} -> {n_after}, sending {before:.0} -> {after:.0} bytes");
    }
    let time = |when: &str| totals[when]["time"]["critical_path_s"].as_f64().map(|seconds| seconds * 1e6);
    if let (Some(before), Some(after)) = (time("before"), time("after")) {
        let (machine, n_devices) = (totals["machine"].as_str().unwrap_or_default(), &totals["n_devices"]);
        let _ = write!(out, "; {before:.1} -> {after:.1} µs predicted for {n_devices} x {machine}");
    }
    out
}

/// `; 257.2 -> 222.9 µs predicted in the order that instructions stand in`.
fn figures_as_ordered(report: &Value) -> String {
    let passes = report["reports"].as_array().into_iter().flatten();
    let mut decisions = passes.flat_map(|pass| pass["decisions"].as_array().into_iter().flatten());
    let times = |decision: &Value| {
        let us = |name: &str| decision[name].as_f64().map(|ns| ns / 1e3);
        Some((us("predicted_before_ns")?, us("predicted_after_ns")?))
    };
    let found = decisions.find_map(times);
    found.map_or_else(String::new, |(before, after)| {
        format!("; {before:.1} -> {after:.1} µs predicted in the order that instructions stand in")
    })
}

/// The name of a program; empty where the bytes have none.
pub(crate) fn program_name(proto: &[u8]) -> String {
    field(proto, NAME).map_or(String::new(), |name| String::from_utf8_lossy(name).into_owned())
}

/// The devices that a program itself names.
///
/// # Errors
/// An assignment of devices that cannot be read.
pub(crate) fn own_counts(proto: &[u8]) -> Result<Option<DeviceCounts>, String> {
    let assignment = field(proto, DEVICE_ASSIGNMENT).map(DeviceCounts::of_assignment).transpose();
    assignment.map_err(|why| format!("device_assignment: {why}"))
}

/// Whether a program donates any argument; not where the bytes cannot be read.
pub(crate) fn donates(proto: &[u8]) -> bool {
    hlo_proto::read(proto).is_ok_and(|parsed| {
        let header = &parsed.module.header;
        !header.input_output_alias.is_empty() || !header.buffer_donor.is_empty()
    })
}

/// The first field with this number among those of a message, if it is text, bytes or a message.
fn field(proto: &[u8], wanted: u32) -> Option<&[u8]> {
    let mut pos = 0;
    while pos < proto.len() {
        match take_field(proto, &mut pos).ok()? {
            (number, hlo_proto::wire::Value::Bytes(bytes)) if number == wanted => return Some(bytes),
            _ => {}
        }
    }
    None
}

/// What was made, without the assignment of devices that our writer puts into programs whose counts came from elsewhere: which device is which
/// is for whoever compiles to say.
fn without_new_assignment(before: &[u8], after: Vec<u8>) -> Vec<u8> {
    if field(before, DEVICE_ASSIGNMENT).is_some() {
        return after;
    }
    let (mut out, mut pos) = (Vec::with_capacity(after.len()), 0);
    while pos < after.len() {
        let begin = pos;
        let Ok((number, _)) = take_field(&after, &mut pos) else { return after };
        if number != DEVICE_ASSIGNMENT {
            out.extend_from_slice(&after[begin..pos]);
        }
    }
    out
}
