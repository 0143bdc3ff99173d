//! Find the parallel plan of least modelled time for a global program, and print a sharding on every value that it decides.
//!
//! Before:
//! ```text
//! ROOT %y = f32[1024,4096] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after, with `devices=2`: the rows of `%x` are cut.
//! ```text
//! ROOT %y = f32[1024,4096] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,1]<=[2]}
//! ```
//!
//! **Why.** Nobody has to say how a program is cut, and the report says how far from the best the plan can be.
//!
//! **What it does not do.** It does not write the program of each device: `spmd-partition` does, or XLA's partitioner. Of
//! algebra it makes branches that are alike one (`algebra=`). Dims of which a shard needs rows of its neighbours (windows, slices, pads) stay whole. Pipelines are no part of it.
//!
//! **Algorithm.** For each mesh (an ordered factorization of the devices) the program is a factor graph: a variable for each op, whose
//! states say which axis cuts which factor of the op, and one for each value that is taken twice or more, whose states say how it is
//! kept. Work of ops is unary, redistributions are pairs. The solver finds an assignment and a lower bound. See the modules
//! `program`, `plans`, `network`, `prices`, `work`, `search` and `solver`.
//!
//! **Requires** a global program without annotations of shardings. **Ensures** the same results; the header has the number of devices.
//! **Errors**: `search` about a program that has manual regions, and machines of another size; the module is then as it was.
//!
//! References: Unger et al., *Unity*, OSDI 2022; Kolmogorov, *Convergent Tree-Reweighted Message Passing*, TPAMI 2006.

use crate::plan_parallel::{Asked, Searched, plan_parallel};
use crate::search_options::{OPTIONS, SearchOptions};
use hlo_analysis::Preserved;
use hlo_ir::Module;
use hlo_pass::options::Options;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo, Target};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "search-parallelization",
    help: "find the parallel plan of least modelled time for a global program, with a bound that says how far from the best it is",
    options: OPTIONS,
    build: |options| {
        SearchOptions::of(options, &Target::unnamed()?)?;
        Ok(Box::new(SearchParallelization { options: options.clone() }))
    },
};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct SearchParallelization {
    /// Options that were read once: no value is wrong for any target.
    options: Options,
}

impl Pass for SearchParallelization {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let deadline = cx.deadline;
        let options = SearchOptions::of(&self.options, cx.target)?;
        let asked = Asked { options: &options, given: None, is_over: &|| deadline.is_over(), progress: &|_| {} };
        let plan = match plan_parallel(module, &asked, cx.analyses.frequency_options)? {
            Searched::Nothing(why) => {
                cx.report.unchanged_because = Some(why);
                return Ok(Changed::No);
            }
            Searched::Plan(plan) => plan,
        };
        let entry = module.entry().map_or(String::new(), |entry| module.comp_name(entry).to_string());
        plan.report.tell(&options.plan, &entry, cx.report);
        *module = plan.module;
        Ok(Changed::Yes(Preserved::NONE))
    }
}
