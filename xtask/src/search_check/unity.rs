//! Full-size steps of Unity's models beside Unity's own search ([`hlo_tests::unity_ref`]), in one run: what each takes, and what its plan costs.
//!
//! Unity's plan is priced by our costs: its cuts of weights and of the results of layers are pins, and all else (the backward pass, moments,
//! the layout of the mesh) is chosen as well as it can be. So the price is at most what Unity's plan would take. Plans with branches beside each other
//! on parts of the machine, and those that no mesh can say, are told apart.

use std::path::PathBuf;
use std::time::Instant;

use hlo_ir::{InstId, Module, Opcode};
use hlo_mesh::Machine;
use hlo_search::{Algebra, SearchOptions};
use hlo_tests::unity_ref::{Budget, Found, UnityMachine, UnityOptions, model, search};

use super::{default_options, find_plan};
use crate::partition_check::{read_base, run_passes};

/// A GPU of Summit; its peaks for f32, and 5 µs a launch.
const DEVICE: &str = "[device]\nname = \"v100-summit\"\nmemory_bytes_per_s = 0.9e12\nmemory_bytes = 32e9\nlaunch_s = 5e-6\n\
                      [device.flops_per_s]\nf64 = 7.8e12\nf32 = 15.7e12\nf16 = 125e12\n";
/// GPUs of a node of Summit.
const GPUS_PER_NODE: usize = 6;

/// Nodes of Summit: 50 GB/s between the GPUs of a node, 12.5 GB/s out of it, 2 µs a hop.
fn summit(n_devices: usize) -> Result<Machine, String> {
    if !n_devices.is_multiple_of(GPUS_PER_NODE) {
        return Err(format!("expected a multiple of {GPUS_PER_NODE} GPUs, found {n_devices}"));
    }
    let level = |name: &str, count: usize, rate: f64| {
        format!("[[level]]\nname = \"{name}\"\ncount = {count}\ngbytes_per_s = {rate}\nlatency_us = 2\n")
    };
    let n_nodes = n_devices / GPUS_PER_NODE;
    let nodes = if n_nodes > 1 { level("node", n_nodes, 12.5) } else { String::new() };
    let cluster = format!("name = \"summit\"\nlaunch_us = 0\n{nodes}{}{DEVICE}", level("gpu", GPUS_PER_NODE, 50.0));
    Machine::parse(&cluster, n_devices).map_err(|error| error.to_string())
}

/// Prints a row for each file `MODEL.GPUS.hlo` that is one of Unity's models; false if ours costs more than Unity's, or there is none.
pub(super) fn run(files: &[PathBuf], budget: Budget) -> Result<bool, String> {
    println!(
        "{} pops, alpha {}; ms a step by the search's own costs, by ours (Unity's plan completed in the best way), and of our plan\n\
         model\tGPUs\tUnity, own\tUnity, ours\tour plan\tratio\tbeside\tsplit\tpops\tcandidates\tcache hits\tUnity s\tours s\ttimes as fast",
        budget.n_pops, budget.alpha
    );
    let (mut n_rows, mut wrong) = (0, Vec::new());
    for file in files {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let Some((name, n_gpus)) = stem.split_once('.') else { continue };
        let Ok(n_gpus) = n_gpus.parse::<usize>() else { continue };
        let Some(graph) = model(name, n_gpus as i64) else { continue };
        let machine = summit(n_gpus)?;
        let start = Instant::now();
        let of_unity = UnityMachine::new(&machine, n_gpus)?;
        let options = UnityOptions { budget, ..UnityOptions::default() };
        let found = search(&graph, &of_unity, options);
        let unity_s = start.elapsed().as_secs_f64();
        // The step has its concatenations, so what is priced is the plan with them.
        let as_it_is = match found.n_split_concats {
            0 => found.clone(),
            _ => search(&graph, &of_unity, UnityOptions { splits_concats: false, ..options }),
        };

        let mut global = read_base(file)?.module;
        run_passes(&mut global, "inline-calls")?;
        let options =
            SearchOptions { machine, most_axes: 2, algebra: Algebra::None, ..default_options("h100", n_gpus)? };
        let start = Instant::now();
        let ours = find_plan(&global, &options)?.report.step_s;
        let ours_s = start.elapsed().as_secs_f64();
        let priced = price(&global, &as_it_is, &options);
        let counts = found.counts;
        let said = match &priced {
            Ok(priced) => {
                if *priced < ours * (1.0 - 1e-9) {
                    wrong
                        .push(format!("{}: Unity's plan takes {priced} s by our costs, ours {ours} s", file.display()));
                }
                format!("{:.3}\t{:.3}\t{:.3}", priced * 1e3, ours * 1e3, priced / ours)
            }
            Err(error) => format!("({error})\t{:.3}\t", ours * 1e3),
        };
        println!(
            "{name}\t{n_gpus}\t{:.3}\t{said}\t{}\t{}\t{}\t{}\t{:.1} %\t{unity_s:.2}\t{ours_s:.2}\t{:.1}",
            found.time as f64 / 1e9,
            found.n_beside,
            found.n_split_concats,
            counts.n_pops,
            counts.n_candidates,
            1e2 * counts.n_cache_hits as f64 / counts.n_lookups.max(1) as f64,
            unity_s / ours_s
        );
        n_rows += 1;
    }
    wrong.iter().for_each(|wrong| println!("  wrong: {wrong}"));
    Ok(wrong.is_empty() && n_rows > 0)
}

/// What Unity's plan takes by our costs, in seconds.
fn price(global: &Module, found: &Found, options: &SearchOptions) -> Result<f64, String> {
    let mut pins: Vec<(String, String)> = Vec::new();
    for (name, parts) in &found.weights {
        pins.push((format!("%{}", parameter(name)), said(parts)));
    }
    for (name, parts) in &found.results {
        let value = kept_result(global, name, parts.len()).map(|value| format!("%{}", global.inst_name(value)));
        // The sum of two layers is kept for both.
        if let Some(value) = value.filter(|value| !pins.iter().any(|(known, _)| known == value)) {
            pins.push((value, said(parts)));
        }
    }
    let mut last = String::new();
    for most_axes in [2, 3] {
        let mut pins = pins.clone();
        loop {
            let text = pins.iter().map(|(name, parts)| format!("\"{name}\" = {parts}\n")).collect();
            let plan = find_plan(global, &SearchOptions { pins: text, most_axes, ..options.clone() });
            match plan {
                Ok(plan) => return Ok(plan.report.step_s),
                Err(error) => last = error,
            }
            // A value in a chain of ops has no state of its own: its pin is left out.
            let n_pins = pins.len();
            pins.retain(|(name, _)| name.starts_with("%weights") || !last.contains(name.as_str()));
            if pins.len() == n_pins {
                break;
            }
        }
    }
    Err(last)
}

/// What JAX calls the parameter of a weight.
fn parameter(weight: &str) -> String {
    format!("weights__{weight}__")
}

fn said(parts: &[u16]) -> String {
    format!("{parts:?}")
}

/// The value that the backward pass keeps of the layer with this weight: its product, or what one elementwise op after the other makes of it.
fn kept_result(module: &Module, weight: &str, rank: usize) -> Option<InstId> {
    let entry = module.entry()?;
    let insts = || module.comp(entry).insts.iter().copied();
    let name = parameter(weight);
    let is_weight = |&inst: &InstId| {
        let is_parameter = module.inst(inst).opcode == Opcode::Parameter;
        // A number may follow.
        is_parameter && module.inst_name(inst).split('.').next() == Some(&name)
    };
    let users = module.users();
    let weight = insts().find(is_weight)?;
    let is_product =
        |inst: InstId| matches!(module.inst(inst).opcode, Opcode::Dot | Opcode::Convolution | Opcode::Gather);
    let mut at = insts().find(|&inst| is_product(inst) && users[weight].contains(&inst))?;
    loop {
        let takers = &users[at];
        let dims = module.shape(at).as_array()?.dims.len();
        match takers.as_slice() {
            [only] if dims == rank => at = *only,
            _ => return (dims == rank).then_some(at),
        }
        if is_product(at) {
            return None;
        }
    }
}
