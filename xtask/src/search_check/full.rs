//! Full-size steps (`cargo xtask make-models`), which nothing here runs: each is searched, its problem is read back and added up by a
//! program that knows nothing of the search, and the plan is partitioned and verified. What is predicted of the program of each device
//! stands beside what the plan says.
//!
//! The plan counts kernels and redistributions one after the other. So the program should take no longer: where it does, the partitioner
//! did something else than the plan says.

use std::path::{Path, PathBuf};
use std::time::Instant;

use hlo_analysis::Analyses;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::predict;
use hlo_mesh::Machine;
use hlo_tests::dumped_problem::DumpedProblem;

use super::{default_options, find_plan};
use crate::partition_check::{read_base, run_passes};

/// What devices are.
const MACHINE: &str = "h100:switch";
/// A program that is predicted to take so many times what its plan says is not the plan.
const MOST_SLOWER: f64 = 1.3;

/// Plans and partitions all files; false if something does not add up, does not partition, or is far slower than planned.
pub(super) fn run(files: &[PathBuf]) -> Result<bool, String> {
    println!("program\tdevices\tmesh\tplanned ms\tgap\tpredicted ms\tratio\tmemory GB planned\tcounted\tseconds");
    let mut wrong = Vec::new();
    for file in files {
        match one(file) {
            Ok((row, ratio)) => {
                println!("{row}");
                if ratio > MOST_SLOWER {
                    wrong.push(format!("{}: predicted to take {ratio:.2} times what the plan says", file.display()));
                }
            }
            Err(error) => wrong.push(format!("{}: {error}", file.display())),
        }
    }
    println!("{} programs, {} wrong", files.len(), wrong.len());
    wrong.iter().for_each(|wrong| println!("  wrong: {wrong}"));
    Ok(wrong.is_empty() && !files.is_empty())
}

/// The row of a file `NAME.DEVICES.hlo`, and predicted / planned time.
fn one(file: &Path) -> Result<(String, f64), String> {
    let start = Instant::now();
    let base = read_base(file)?;
    let (name, n_devices) = base.name.rsplit_once('.').ok_or("expected a name NAME.DEVICES.hlo")?;
    let n_devices: usize =
        n_devices.parse().map_err(|_| format!("expected a number of devices, found `{n_devices}`"))?;
    let mut global = base.module.clone();
    run_passes(&mut global, "inline-calls")?;
    let options = hlo_search::SearchOptions { dumps_problem: true, ..default_options(MACHINE, n_devices)? };
    let plan = find_plan(&global, &options)?;
    let problem = DumpedProblem::read(plan.problem.as_deref().ok_or("expected a problem")?)?;
    problem.check()?;
    if (plan.report.step_s * 1e12).round() as i64 != problem.cost {
        return Err(format!("the report says {} s, the problem {} ps", plan.report.step_s, problem.cost));
    }
    let mut local = plan.module;
    // The runner verifies what each pass leaves.
    run_passes(&mut local, &format!("@machine={MACHINE};spmd-partition{{price=time}},simplify-tuples,cse,dce"))?;
    let machine = Machine::parse(MACHINE, n_devices).map_err(|error| error.to_string())?;
    let frequencies = Frequencies::compute(&local, FrequencyOptions::default());
    let predicted = predict(&local, &frequencies, &machine).map_err(|error| error.to_string())?.critical_path_s;
    let counted = Analyses::default().memory(&local).peak_bytes;
    let (planned, ratio) = (plan.report.step_s, predicted / plan.report.step_s);
    let gap = 1.0 - plan.report.bound_s / planned;
    let row = format!(
        "{name}\t{n_devices}\t{}\t{:.3}\t{:.2} %\t{:.3}\t{ratio:.2}\t{:.2}\t{:.2}\t{:.1}",
        plan.report.mesh,
        planned * 1e3,
        gap * 1e2,
        predicted * 1e3,
        plan.report.peak_bytes as f64 / 1e9,
        counted as f64 / 1e9,
        start.elapsed().as_secs_f64()
    );
    Ok((row, ratio))
}
