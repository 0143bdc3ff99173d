//! Draws random pairs of shardings on five meshes, plans them, and writes what `cargo xtask reshard-check` compares:
//! `redistribution_pairs FOLDER PAIRS MODULES`, pairs for each mesh, and how many of these as modules too. Prints the sums.

#[path = "../tests/redistribution/pairs.rs"]
mod pairs;

use hlo_ir::axes::AxisSharding;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::sharding::Sharding;
use hlo_ir::{ArrayShape, DType};
use hlo_spmd::redistribution::{Redistribution, RedistributionRequest, plan_redistribution};
use pairs::{Draw, MESHES, drawn_pair};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

/// Meshes, and dims that are no multiple of their tiles.
const UNEVEN: [(&[i64], &[i64]); 2] = [(&[4, 2], &[10, 7, 3]), (&[3, 2], &[7, 11])];

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, n_pairs, n_modules] = words.as_slice() else {
        return Err("expected FOLDER PAIRS MODULES".into());
    };
    let (folder, n_pairs, n_modules) = (Path::new(folder), n_pairs.parse()?, n_modules.parse()?);
    std::fs::create_dir_all(folder)?;
    let mut groups = Vec::new();
    for (mesh, dims) in MESHES {
        groups.push(group(folder, (mesh, dims), n_pairs, n_modules)?);
    }
    // XLA cuts arguments evenly only, so these only run.
    for (mesh, dims) in UNEVEN {
        groups.push(group(folder, (mesh, dims), n_modules, n_modules)?);
    }
    std::fs::write(folder.join("pairs.json"), format!("[{}]\n", groups.join(",\n")))?;
    Ok(())
}

fn axes(text: &str, rank: usize, n_devices: usize) -> Result<AxisSharding, Box<dyn Error>> {
    match hlo_text::parse_sharding(text) {
        Ok(Sharding::Single(leaf)) => Ok(leaf.axes(rank, n_devices)?),
        Ok(Sharding::Tuple(_)) | Err(_) => Err(format!("{text}: expected the sharding of one array").into()),
    }
}

/// The pairs of one mesh as JSON.
fn group(
    folder: &Path,
    (mesh, dims): (&[i64], &[i64]),
    n_pairs: usize,
    n_modules: usize,
) -> Result<String, Box<dyn Error>> {
    let n_devices = mesh.iter().product::<i64>() as usize;
    let shape = ArrayShape::new(DType::F32, dims.iter().copied());
    let mut draw = Draw(1000 + mesh.iter().fold(7, |seed, &size| seed * 31 + size as u64));
    let (mut sums, mut listed, mut planning) = ([0u64; 3], Vec::new(), 0.0);
    let mut greedy = [0u64; 4];
    let is_even = MESHES.contains(&(mesh, dims));
    let name = mesh.iter().map(i64::to_string).collect::<Vec<_>>().join("x") + if is_even { "" } else { " uneven" };
    let mut atoms = String::new();
    while listed.len() < n_pairs {
        let (from, to) = drawn_pair(&mut draw, mesh, dims.len());
        let (source, target) = (axes(&from, dims.len(), n_devices)?, axes(&to, dims.len(), n_devices)?);
        let began = Instant::now();
        let request = RedistributionRequest {
            shape: &shape,
            source: &source,
            target: &target,
            monoid: None,
            cluster: None,
            allows_pieces: true,
        };
        let plan = plan_redistribution(&request)?;
        if plan.bound_bytes == 0 {
            continue;
        }
        planning += began.elapsed().as_secs_f64();
        let steps = plan.without_pieces.unwrap_or(plan.price);
        for (sum, bytes) in sums.iter_mut().zip([plan.bound_bytes, steps.bytes, plan.price.bytes]) {
            *sum += bytes;
        }
        for (k, price) in [plan.greedy.mindspore, plan.greedy.shardy].into_iter().enumerate() {
            if let Some(price) = price {
                greedy[2 * k] += price.bytes;
                greedy[2 * k + 1] += plan.price.bytes;
            }
        }
        atoms = plan.axes.iter().map(|(letter, size)| format!("[\"{letter}\", {size}]")).collect::<Vec<_>>().join(", ");
        let module = format!("{}-{}.hlo", name.replace(' ', "-"), listed.len());
        let has_module = listed.len() < n_modules;
        if has_module {
            std::fs::write(folder.join(&module), print_module(&plan.to_module("reshard")?, &PrintOptions::default()))?;
        }
        listed.push(pair(&plan, steps.bytes, [&source, &target], has_module.then_some(module)));
    }
    let [bound, steps, plans] = sums;
    println!(
        "{name}: {n_pairs} pairs, bound {bound} B; steps {steps} B, {:.4} of the bound; plans {plans} B; {:.2} ms to plan a pair",
        steps as f64 / bound as f64,
        planning * 1e3 / n_pairs as f64
    );
    let [mindspore, beside_mindspore, shardy, beside_shardy] = greedy;
    println!(
        "  greedy, where they apply: as MindSpore {mindspore} B (plans {beside_mindspore} B), as Shardy {shardy} B (plans \
         {beside_shardy} B)"
    );
    let dims = dims.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    Ok(format!(
        "{{\"mesh\": \"{name}\", \"only_run\": {}, \"axes\": [{atoms}], \"dims\": [{dims}], \"pairs\": [\n{}]}}",
        !is_even,
        listed.join(",\n")
    ))
}

/// One pair as JSON: the letters of the axes of each dim, ours in bytes, and the file of the module.
fn pair(plan: &Redistribution, steps: u64, ends: [&AxisSharding; 2], module: Option<String>) -> String {
    let mut out = String::from("{");
    let refined = hlo_ir::axes::refine_together([ends[0], ends[1]]);
    for (name, end) in ["from", "to"].iter().zip(refined.iter().flatten()) {
        let dim = |axes: &Vec<hlo_ir::axes::SubAxis>| {
            let letters = axes.iter().filter_map(|part| plan.axes.get(part.axis));
            format!("[{}]", letters.map(|(letter, _)| format!("\"{letter}\"")).collect::<Vec<_>>().join(", "))
        };
        let _ = write!(out, "\"{name}\": [{}], ", end.dims.iter().map(dim).collect::<Vec<_>>().join(", "));
    }
    let module = module.map_or("null".to_string(), |module| format!("\"{module}\""));
    let shardy = plan.greedy.shardy.map_or("null".to_string(), |price| price.bytes.to_string());
    let (bound, plan) = (plan.bound_bytes, plan.price.bytes);
    let _ = write!(
        out,
        "\"bound\": {bound}, \"steps\": {steps}, \"plan\": {plan}, \"shardy\": {shardy}, \"module\": {module}}}"
    );
    out
}
