//! How the threads of a team join the parts of a reduction.

use super::emitter::{Emitter, ScopeKind, Value};
use super::team::Team;
use crate::GpuError;

/// Writes `accumulators = f(accumulators, others)` for given others.
pub(super) type Combine<'a> = &'a mut dyn FnMut(&mut Emitter<'_>, &[Value]) -> Result<(), GpuError>;

/// Writes the code that joins every thread's accumulators, so that all threads of the team have the whole.
/// `combine` writes `accumulators = f(accumulators, others)`.
pub(super) fn join(
    team: Team,
    e: &mut Emitter<'_>,
    accumulators: &[(Value, &'static str)],
    combine: Combine<'_>,
) -> Result<(), GpuError> {
    join_in(team, e, None, accumulators, combine)
}

/// As [`join`], of one accumulator in a table of shared memory that is large enough and that nobody uses.
pub(super) fn join_in(
    team: Team,
    e: &mut Emitter<'_>,
    table: Option<&str>,
    accumulators: &[(Value, &'static str)],
    combine: Combine<'_>,
) -> Result<(), GpuError> {
    e.is_cooperative |= team != Team::Thread;
    match team {
        Team::Thread => Ok(()),
        Team::Warp => join_warp(e, accumulators, combine),
        Team::Block(n) => {
            join_warp(e, accumulators, combine)?;
            let n_warps = n / 32;
            let writers = Some("threadIdx.x % 32 == 0");
            join_shared(e, table, accumulators, n_warps, "threadIdx.x / 32", 1, "0", writers, combine)
        }
        Team::Column(n) => join_shared(e, table, accumulators, n, "threadIdx.x", 32, "threadIdx.x % 32", None, combine),
    }
}

fn join_warp(
    e: &mut Emitter<'_>,
    accumulators: &[(Value, &'static str)],
    combine: Combine<'_>,
) -> Result<(), GpuError> {
    e.scope(ScopeKind::Loop, "for (int distance = 16; distance > 0; distance /= 2)".to_string(), |e| {
        let others: Vec<Value> = accumulators
            .iter()
            .map(|(value, held)| e.constant(held, &format!("hlo::shuffle_down({}, distance)", value.text)))
            .collect();
        combine(e, &others)
    })?;
    for (value, _) in accumulators {
        e.line(format!("{0} = hlo::shuffle({0}, 0);", value.text));
    }
    Ok(())
}

/// Through shared memory: `n` parts, written at `slot`, read at `first + part × stride` in order.
#[allow(clippy::too_many_arguments)] // One line of numbers for each of the two callers above.
fn join_shared(
    e: &mut Emitter<'_>,
    given: Option<&str>,
    accumulators: &[(Value, &'static str)],
    n: u32,
    slot: &str,
    stride: u32,
    first: &str,
    writers: Option<&str>,
    combine: Combine<'_>,
) -> Result<(), GpuError> {
    let mut tables = Vec::new();
    for (value, held) in accumulators {
        let table = e.fresh("s");
        e.line(match given {
            Some(given) => format!("{held}* const {table} = ({held}*){given};"),
            None => format!("__shared__ {held} {table}[{}];", n * stride),
        });
        let store = format!("{table}[{slot}] = {};", value.text);
        e.line(match writers {
            Some(condition) => format!("if ({condition}) {store}"),
            None => store,
        });
        tables.push(table);
    }
    e.line("__syncthreads();");
    for ((value, _), table) in accumulators.iter().zip(&tables) {
        e.line(format!("{} = {table}[{first}];", value.text));
    }
    e.scope(ScopeKind::Loop, format!("for (int part = 1; part < {n}; ++part)"), |e| {
        let others: Vec<Value> = accumulators
            .iter()
            .zip(&tables)
            .map(|((_, held), table)| e.constant(held, &format!("{table}[{first} + part * {stride}]")))
            .collect();
        combine(e, &others)
    })?;
    e.line("__syncthreads();");
    Ok(())
}
