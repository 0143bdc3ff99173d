//! `hlo-opt plan zero`: what a data-parallel step would take with its state whole or in shards, on several numbers of devices. The
//! module stays as it is.

use super::arguments::{ZeroArgs, ZeroEmit};
use super::parallel::run_passes;
use super::zero_row::{Row, Table, size_text};
use super::{retarget, time_text, zero_page, zero_picture};
use crate::baseline::predict_compiled;
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::machine;
use crate::{Failure, exit, presets};
use hlo_analysis::Analyses;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::memory::memory_sizes;
use hlo_analysis::traffic::Traffic;
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_mesh::Machine;
use hlo_pass::MEMORY_LIMIT_RULE;
use hlo_pass::Target;
use hlo_pass::fastest::Ways;
use hlo_pass::runner::{RunError, RunOptions, run_pipeline};
use std::fmt::Write;

/// What makes the program of one device of a global one: the cheaper of both orders of propagation, which no way of a preset is.
const PARTITION: &str = "inline-calls,expand-batch-norms,propagate-shardings,spmd-partition,simplify-tuples,cse,dce";

/// The most devices that are modelled.
const MOST_DEVICES: usize = 4096;

/// Prints the table.
///
/// # Errors
/// An invalid input or machine, or a module that is not for several devices.
pub(crate) fn plan(args: &ZeroArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let (source, loaded) = read_completed(&args.file, args.counts, Takes::Any, console)?;
    let mut module = loaded.module.clone();
    let own = module.n_devices();
    let has_color = console.has_color;
    let failed = |diagnostic: Diagnostic| {
        Failure::Diagnostics(source.render(source.whole(), Some(&loaded), vec![diagnostic], has_color))
    };
    if own < 2 {
        return Err(failed(about_zero(
            "expected a step for several devices, found one device: say how it is cut (hlo-opt plan parallel writes the shardings)"
                .into(),
        )));
    }
    if loaded.decision().is_global() {
        run_passes(&mut module, loaded.known_program(), PARTITION).map_err(failed)?;
        console.say("note: a global program: the table is of what this project's partitioner makes of it\n");
    }
    let counts = if args.devices.is_empty() { vec![own] } else { args.devices.clone() };
    if let Some(wrong) = counts.iter().find(|&&n| !(2..=MOST_DEVICES).contains(&n)) {
        return Err(Failure::Usage(format!("--devices: expected 2 to {MOST_DEVICES}, found {wrong}")));
    }
    let (mut rows, mut left_out) = (Vec::new(), None);
    for &n_devices in &counts {
        let on = match retarget::on_devices(&module, n_devices) {
            Ok(module) => module,
            Err(why) => {
                left_out = Some(why);
                continue;
            }
        };
        let machine = machine::machine(&args.machine, n_devices)?;
        let limit = args.memory_limit.unwrap_or(machine.device().memory_bytes);
        let ways = ways_on(args, n_devices, limit)?;
        rows.extend(rows_of(&on, &ways, &machine, (own, limit)).map_err(failed)?);
    }
    if rows.is_empty() {
        let why = left_out.unwrap_or_default();
        return Err(failed(about_zero(why)));
    }
    let machine = machine::machine(&args.machine, rows[0].n_devices)?;
    let memory_bytes = args.memory_limit.unwrap_or(machine.device().memory_bytes);
    // The machine of each row has its own number of nodes.
    let name = args.machine.machine.clone().unwrap_or_else(|| machine.to_string());
    let table = Table { machine: name, memory_bytes, left_out, rows: &rows };
    let title = format!("{}: a step on {}", args.file.display(), table.machine);
    match args.emit {
        ZeroEmit::Text => console.print(text(&args.file.display().to_string(), &table).as_bytes()),
        ZeroEmit::Json => console.print_json(&table),
        ZeroEmit::Svg => console.print(zero_picture::svg(&title, &rows, memory_bytes).as_bytes()),
        ZeroEmit::Html => {
            let picture = zero_picture::svg(&title, &rows, memory_bytes);
            let page = zero_page::page(&title, &args.file.display().to_string(), &table, &picture);
            console.print(page.as_bytes())
        }
    }?;
    Ok(exit::OK)
}

fn about_zero(message: String) -> Diagnostic {
    Diagnostic::about("zero", Entity::Module, message)
}

/// The ways to each form, on so many devices.
fn ways_on(args: &ZeroArgs, n_devices: usize, memory_bytes: f64) -> Result<Ways, Failure> {
    let machine = machine::machine(&args.machine, n_devices)?;
    let memory_limit = Some(memory_bytes as u64);
    presets::zero_ways(Target { machine, frequency: FrequencyOptions::default(), memory_limit })
}

/// The rows of one number of devices. Of the ways to a form the fastest one that fits counts, else the fastest one.
fn rows_of(
    module: &Module,
    ways: &Ways,
    machine: &Machine,
    (own, limit): (usize, f64),
) -> Result<Vec<Row>, Diagnostic> {
    let mut made: Vec<Module> = Vec::with_capacity(ways.ways.len());
    let mut rows: Vec<Row> = Vec::new();
    for way in &ways.ways {
        let mut result = way.after.map_or(module, |before| &made[before]).clone();
        let mut analyses = Analyses::default();
        let target = ways.target_of(way);
        let options = RunOptions { target: Some(&target), ..RunOptions::default() };
        let outcome = run_pipeline(&mut result, &mut analyses, &way.passes, options);
        let is_within = match outcome {
            // Nothing fits, as the other rows say.
            Err(error) if error.diagnostics.iter().any(|diagnostic| diagnostic.rule == MEMORY_LIMIT_RULE) => false,
            Err(error) => return Err(first(error)),
            Ok(_) => true,
        };
        if is_within && !way.is_reference {
            let mut row = row_of(&result, way.name, machine, target.frequency, own);
            row.fits = row.peak_bytes as f64 <= limit;
            match rows.iter_mut().find(|known| known.form == way.name) {
                Some(known) if rank(&row) < rank(known) => *known = row,
                Some(_) => {}
                None => rows.push(row),
            }
        }
        made.push(result);
    }
    // What one form gives, `auto` may take too.
    let best = rows.iter().min_by(|a, b| rank(a).0.cmp(&rank(b).0).then(rank(a).1.total_cmp(&rank(b).1))).cloned();
    if let (Some(best), Some(auto)) = (best, rows.iter_mut().find(|row| row.form == AUTO)) {
        *auto = Row { form: AUTO, ..best };
    }
    let best = rows.iter().filter(|row| row.fits).map(|row| row.step_s).fold(f64::INFINITY, f64::min);
    if let Some(row) = rows.iter_mut().rev().find(|row| row.fits && row.step_s <= best) {
        row.is_best = true;
    }
    Ok(rows)
}

/// What is better: what fits and is fast, else what takes little.
fn rank(row: &Row) -> (bool, f64) {
    (!row.fits, if row.fits { row.step_s } else { row.peak_bytes as f64 })
}

/// The form that takes whatever is best.
const AUTO: &str = "auto";

fn first(error: RunError) -> Diagnostic {
    error.diagnostics.into_iter().next().unwrap_or_else(|| about_zero("a pass stopped".into()))
}

fn row_of(
    module: &Module,
    form: &'static str,
    machine: &Machine,
    frequency_options: FrequencyOptions,
    own: usize,
) -> Row {
    let frequencies = Frequencies::compute(module, frequency_options);
    let memory = memory_sizes(module);
    let n_devices = module.n_devices();
    Row {
        n_devices,
        is_modelled: n_devices != own,
        form,
        n_shards: n_shards(module),
        argument_bytes: memory.argument_bytes,
        temp_bytes: memory.temp_bytes,
        peak_bytes: memory.peak_bytes,
        sent_bytes: Traffic::find(module, &frequencies).sent_bytes,
        step_s: predict_compiled(module, frequency_options, machine).map_or(f64::INFINITY, |time| time.critical_path_s),
        fits: false,
        is_best: false,
    }
}

/// The size of the groups that scatter and gather most bytes.
fn n_shards(module: &Module) -> usize {
    let mut bytes_of: Vec<(usize, u64)> = Vec::new();
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        let scatters = module.inst(inst).opcode.row().collective.is_some_and(|rule| rule.scatters || rule.gathers);
        let groups = scatters.then(|| module.device_groups(inst).ok()).flatten();
        let Some(size) = groups.and_then(|groups| groups.uniform_size()) else { continue };
        let bytes = module.shape(inst).size_bytes();
        match bytes_of.iter_mut().find(|(known, _)| *known == size) {
            Some((_, sum)) => *sum += bytes,
            None => bytes_of.push((size, bytes)),
        }
    }
    bytes_of.into_iter().max_by_key(|&(size, bytes)| (bytes, size)).map_or(1, |(size, _)| size)
}

/// The table for people.
fn text(file: &str, table: &Table<'_>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{file}: a step on {}, {} a device", table.machine, size_text(table.memory_bytes));
    let _ = writeln!(
        out,
        "  {:>7}  {:<11} {:>6}  {:>11} {:>11} {:>11}  {:>11}  {:>12}",
        "devices", "form", "shards", "arguments", "temporaries", "peak", "sent", "step"
    );
    let mut last = 0;
    for row in table.rows {
        let devices = match row.n_devices == last {
            true => String::new(),
            false => format!("{}{}", row.n_devices, if row.is_modelled { "*" } else { "" }),
        };
        last = row.n_devices;
        let mib = |bytes: f64| format!("{:.1} MiB", bytes / (1u64 << 20) as f64);
        let note = match (row.is_best, row.fits) {
            (true, _) => "  <- fastest that fits",
            (false, false) => "  does not fit",
            (false, true) => "",
        };
        let _ = writeln!(
            out,
            "  {devices:>7}  {:<11} {:>6}  {:>11} {:>11} {:>11}  {:>11}  {:>12}{note}",
            row.form,
            row.n_shards,
            mib(row.argument_bytes as f64),
            mib(row.temp_bytes as f64),
            mib(row.peak_bytes as f64),
            mib(row.sent_bytes),
            time_text(row.step_s)
        );
    }
    for note in table.notes() {
        let _ = writeln!(out, "{note}");
    }
    out
}
