//! The search under a memory limit that estimates may miss.

use crate::found::{Found, NotFound};
use crate::program::Program;
use crate::search::{SearchLimits, search};
use hlo_mesh::{Machine, Network};

/// Shares of the memory limit that are tried where no plan is found within it: what is counted of a plan is an estimate, and a search that
/// has to take less may end within the limit. The first one is tried too where the search leaves a gap: fewer plans are left to look at.
const TIGHTER: [f64; 3] = [0.95, 0.88, 0.8];

/// The best plan within the limits. Where none is found but under a tighter limit, there is no bound.
pub(crate) fn search_within(
    program: &Program<'_>,
    machine: &Machine,
    links: &Network,
    limits: &SearchLimits<'_>,
) -> Result<Found, NotFound> {
    let mut found = search(program, machine, links.clone(), limits);
    let Some(limit) = limits.memory_limit else { return found };
    for (round, share) in TIGHTER.into_iter().enumerate() {
        let is_open = match &found {
            Ok(plan) => round == 0 && !plan.is_exact,
            // Where even the least plan takes much more, trying is of no use.
            Err(none) => none.least_bytes.is_some_and(|least| least as f64 <= MOST_ABOVE * limit as f64),
        };
        if !is_open || (limits.is_over)() {
            break;
        }
        let tighter = SearchLimits { memory_limit: Some((limit as f64 * share) as u64), ..limits.clone() };
        found = match (search(program, machine, links.clone(), &tighter), found) {
            (Ok(plan), Ok(known)) if plan.cost < known.cost => {
                let lower_bound = known.lower_bound.min(plan.cost);
                Ok(Found { lower_bound, is_exact: false, baselines: known.baselines, meshes: known.meshes, ..plan })
            }
            (Ok(_) | Err(_), Ok(known)) => Ok(known),
            (Ok(plan), Err(_)) => Ok(Found { lower_bound: 0, is_exact: false, ..plan }),
            (Err(less), Err(none)) => {
                let least_bytes = less.least_bytes.into_iter().chain(none.least_bytes).min();
                Err(NotFound { least_bytes, ..none })
            }
        };
    }
    found
}

/// How far above the limit the least plan may be for tighter limits to be tried.
const MOST_ABOVE: f64 = 1.2;
