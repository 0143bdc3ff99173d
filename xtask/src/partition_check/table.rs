//! `partition-check --table`: the predicted time of a step by each way to find out how it is cut, on 8, 64 and 512 devices: MindSpore's
//! double-recursive search in both orders, dynamic programming, the preset `auto-spmd` and Shardy's order alone from data-parallel
//! annotations.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::predict;
use hlo_ir::Module;
use hlo_ir::axes::{AxisMesh, AxisSharding, SubAxis};
use hlo_ir::sharding::Sharding;
use hlo_mesh::Machine;

use super::{keep, run_passes, run_tool};
use crate::workspace;

/// What follows a search.
const PARTITION: &str = "spmd-partition{price=time},simplify-tuples,cse,dce";

const N_DEVICES: [usize; 3] = [8, 64, 512];

/// Prints the table: false if a program is not partitioned. Without files, those of the samples.
pub(super) fn run_table(files: &[PathBuf]) -> Result<bool, String> {
    let machine = Machine::unnamed().map_err(|error| error.to_string())?;
    let folder = workspace::target_dir().join("partition-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let samples =
        ["mlp", "gpt", "conv"].map(|name| workspace::root().join(format!("ir-samples/strategies/{name}.hlo")));
    let files = if files.is_empty() { &samples[..] } else { files };
    println!("predicted time of a step, us; h200, one switch");
    println!(
        "{:<10} {:>7} {:>16} {:>16} {:>12} {:>12} {:>14}",
        "program", "devices", "double-recursive", "order=weight", "algo=dp", "auto-spmd", "data parallel"
    );
    let mut is_complete = true;
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let parsed = hlo_text::parse_module(&text).map_err(|_| format!("{}: expected a module", file.display()))?;
        for n in N_DEVICES {
            let searched = |options: &str| {
                let mut module = parsed.module.clone();
                run_passes(&mut module, &format!("search-strategies{{devices={n},{options}}},{PARTITION}"))?;
                time_us(&module, &machine)
            };
            let mut annotated = parsed.module.clone();
            annotate_batch(&mut annotated, n);
            let by_preset = || preset(&annotated, &folder, &machine);
            let data_parallel = || {
                let mut module = annotated.clone();
                run_passes(&mut module, &format!("propagate-shardings{{order=shardy}},{PARTITION}"))?;
                time_us(&module, &machine)
            };
            let columns = [
                searched("order=topological"),
                searched("order=weight"),
                searched("algo=dp,price=time"),
                by_preset(),
                data_parallel(),
            ];
            is_complete &= columns.iter().all(Result::is_ok);
            let told = columns.map(|column| column.map_or_else(|error| error, |us| format!("{us:.0}")));
            let [a, b, c, d, e] = told;
            println!("{name:<10} {n:>7} {a:>16} {b:>16} {c:>12} {d:>12} {e:>14}");
        }
    }
    Ok(is_complete)
}

fn time_us(module: &Module, machine: &Machine) -> Result<f64, String> {
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    let time = predict(module, &frequencies, machine).map_err(|error| error.to_string())?;
    Ok(time.critical_path_s * 1e6)
}

/// What `auto-spmd` makes of an annotated program.
fn preset(module: &Module, folder: &Path, machine: &Machine) -> Result<f64, String> {
    let file = keep(folder, "table", module, "global")?;
    let out = folder.join("table.local.hlo");
    let words =
        [file.as_os_str().to_owned(), "--preset".into(), "auto-spmd".into(), "-o".into(), out.as_os_str().into()];
    let (code, said) = run_tool(words.map(OsString::from));
    if code != 0 {
        return Err(said);
    }
    let text = std::fs::read_to_string(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let parsed = hlo_text::parse_module(&text).map_err(|_| format!("{}: expected a module", out.display()))?;
    time_us(&parsed.module, machine)
}

/// Cuts what a step takes beside its state, its last two parameters, along the batch, and nothing else.
fn annotate_batch(module: &mut Module, n_devices: usize) {
    let Some(entry) = module.entry() else { return };
    let params = module.comp(entry).params.clone();
    let first_data = params.len().saturating_sub(2);
    for (k, param) in params.into_iter().enumerate() {
        let Some(rank) = module.shape(param).as_array().map(|array| array.rank()) else { continue };
        let mut sharding = AxisSharding::replicated(AxisMesh::line(n_devices), rank);
        if let Some(batch) = sharding.dims.first_mut().filter(|_| k >= first_data) {
            batch.push(SubAxis { axis: 0, pre: 1, size: n_devices as i64 });
        }
        module.marks_mut(param).sharding = Some(Sharding::Single(sharding.to_leaf()));
    }
}
