//! `hlo-opt plan`: how to place parallelism on a machine, how to reduce on it, how to cut an array otherwise, how to cut a
//! whole training step, what state in shards would take, and which algebraic rules hold.

pub(crate) mod arguments;
mod parallel;
pub(crate) mod placement;
pub(crate) mod plot;
pub(crate) mod reduction;
pub(crate) mod reshard;
mod reshard_picture;
mod retarget;
mod rules;
mod zero;
mod zero_page;
mod zero_picture;
mod zero_row;

use crate::console::Console;
use crate::{Failure, exit};
use arguments::{MachineArgs, PlanCommand};
use hlo_cluster::ClusterError;
use hlo_cluster::reduction::Request;

/// Prints the plan that was asked for.
///
/// # Errors
/// A wrong description of the machine, or axes that do not fit it.
pub(crate) fn run(command: &PlanCommand, console: &mut Console<'_>) -> Result<u8, Failure> {
    match command {
        PlanCommand::Placement(args) => placement::plan(args, console)?,
        PlanCommand::Reduction(args) => reduction::plan(args, console)?,
        PlanCommand::Reshard(args) => reshard::plan(args, console)?,
        PlanCommand::Parallel(args) => return parallel::plan(args, console),
        PlanCommand::Zero(args) => return zero::plan(args, console),
        PlanCommand::Rules(args) => return rules::plan(args, console),
    }
    Ok(exit::OK)
}

/// The request for one reduction.
fn request(machine: &MachineArgs, reduce: &[usize]) -> Request {
    Request {
        reduce: reduce.to_vec(),
        bytes: machine.bytes,
        algo: machine.algo.into(),
        lowering: machine.lowering.lowering(),
        max_size: machine.max_size,
    }
}

/// What does not fit is a matter of the command line.
fn usage(error: ClusterError) -> Failure {
    Failure::Usage(error.to_string())
}

/// `[[1,4],[4,4]]`.
fn matrix_text(rows: &[Vec<u32>]) -> String {
    let row = |row: &Vec<u32>| format!("[{}]", row.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
    format!("[{}]", rows.iter().map(row).collect::<Vec<_>>().join(","))
}

/// Seconds with a unit that leaves few zeros.
fn time_text(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.3} us", s * 1e6),
    }
}

/// A line about the machine, and one about the blocks that are planned over where its entities differ.
fn machine_text(cluster: &hlo_cluster::Cluster, levels: &[u32], machine: &MachineArgs) -> String {
    let is_even = cluster.hierarchy().is_some();
    let names = cluster.levels().iter().zip(levels).map(|(level, n)| match is_even {
        true => format!("{n} {}", level.name),
        false => n.to_string(),
    });
    let axes = machine.axes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let note = if is_even { "" } else { " (counts differ: equal blocks within the entities)" };
    format!(
        "{}: {}{note}; {} devices; axes {axes}; {} bytes per device\n",
        cluster.name(),
        names.collect::<Vec<_>>().join(" x "),
        cluster.n_devices(),
        machine.bytes
    )
}
