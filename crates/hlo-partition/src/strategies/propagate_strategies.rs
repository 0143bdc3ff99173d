//! Spread the strategies of a file from the operators that it names to all others, and print a sharding on every instruction.
//!
//! Before, with a file that gives `%y` the strategy `[[4, 1], [1, 1]]` on 4 devices:
//! ```text
//! %y = f32[8,16] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ROOT %z = f32[8,16] tanh(%y)
//! ```
//! after:
//! ```text
//! %y = f32[8,16] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[4,1]<=[4]}
//! ROOT %z = f32[8,16] tanh(%y), sharding={devices=[4,1]<=[4]}
//! ```
//! The sample `ir-samples/passes/propagate-strategies/chain.hlo` runs this.
//!
//! **Why.** A user of MindSpore names the strategies of key operators; those of all others follow.
//!
//! **Algorithm.** The module `spread`: breadth first, the candidate without redistribution, else the one of least cost.
//!
//! **What it does not do**, **requires**, **ensures**, **errors**: as `apply-strategies`.
//!
//! **References.** *Automatic Parallel Strategy Search*, MindSpore's design documents, "Sharding Strategy Propagation Algorithm". We differ
//! in one candidate more: a neighbour's layout as it is, though no strategy gives it.

use super::apply_strategies::{DEVICES, FILE, read_file};
use super::configure::{choose_configured, configure};
use super::file::StrategyFile;
use super::operators::OperatorGraph;
use super::prepared::{Prepared, explain, why_unchanged};
use super::spread::Spread;
use super::write::Decided;
use hlo_ir::Module;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "propagate-strategies",
    help: "spread the strategies of a file from the operators that it names to all others (as MindSpore does)",
    options: &[FILE, DEVICES],
    build: |options| Ok(Box::new(PropagateStrategies { file: read_file(options)? })),
};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct PropagateStrategies {
    file: StrategyFile,
}

impl Pass for PropagateStrategies {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        if let Some(why) = why_unchanged(module, cx.analyses) {
            cx.report.unchanged_because = Some(why);
            return Ok(Changed::No);
        }
        let file = &self.file;
        let prepared = Prepared::new(module)?;
        let operators = OperatorGraph::new(&prepared.before, &prepared.graph, file.depth);
        let (configured, mesh) = configure(&prepared.graph, &operators, file)?;
        let mut spread = Spread::new(&prepared.graph, &operators, &mesh);
        choose_configured((&mut spread, &prepared.before), &configured, file)?;
        spread.run();
        for (k, &id) in spread.order.iter().enumerate() {
            let why = if k < configured.len() { "from the file" } else { "spread from its neighbours" };
            if k < configured.len() || !operators.operators[id].kind.is_light() {
                cx.report.decisions.extend(explain(&prepared, (&spread, &operators, &mesh), id, why));
            }
        }
        cx.report.count("operators", operators.operators.len() as u64);
        cx.report.count("configured", configured.len() as u64);
        spread.counts.tell(cx.report);
        let decided = Decided::new(&spread, &operators);
        prepared.finish(module, decided, &mesh, cx)
    }
}
