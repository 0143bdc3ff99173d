//! Cut the operators of a global program as a file of strategies says, and print a sharding on every instruction.
//!
//! Before, with `file` the text of a file that gives `%y` the strategy `[[2, 1], [1, 4]]` on 8 devices:
//! ```text
//! %x = f32[8,4] parameter(0)
//! %w = f32[4,16] parameter(1)
//! ROOT %y = f32[8,16] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after:
//! ```text
//! %x = f32[8,4] parameter(0), sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
//! %w = f32[4,16] parameter(1), sharding={devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}
//! ROOT %y = f32[8,16] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,4]<=[8]}
//! ```
//! The sample `ir-samples/passes/apply-strategies/matmul.hlo` runs this.
//!
//! **Why.** MindSpore's users say how each operator is cut; what is between operators follows.
//!
//! **What it does.** An operator's inputs and results get the layouts that device matrix and tensor maps say. A value has the layout
//! in which its operator gives it, a parameter the one in which the first named operator takes it; where another layout is taken, a `copy`
//! stands, which the partitioner makes a redistribution. The report tells of each what MindSpore's greedy redistribution and our
//! planner's receive. Values that no named operator touches are cut by propagation in Shardy's order. A gradient is a product over the
//! dims along which the batch is cut, so that the partitioner sums it over these (MindSpore's mirror operators).
//!
//! **What it does not do.** The program's own annotations are dropped, manual regions refused.
//!
//! **Requires** a verified global program. **Ensures** the same results. **Errors**: `strategy`, with operator, input, dim, expected and found.
//!
//! **References.** *Automatic Parallel Strategy Search*, MindSpore's design documents, "Sharding Strategy" and "Tensor Arrangement".

use super::configure::{choose_configured, configure};
use super::file::StrategyFile;
use super::operators::OperatorGraph;
use super::prepared::{Prepared, explain, why_unchanged};
use super::spread::Spread;
use super::write::Decided;
use crate::error::PartitionError;
use hlo_ir::Module;
use hlo_ir::diag::Entity;
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "apply-strategies",
    help: "cut operators as a file of strategies says (as MindSpore does), and print a sharding on every instruction",
    options: &[FILE, DEVICES],
    build: |options| Ok(Box::new(ApplyStrategies { file: read_file(options)? })),
};

/// The option that names a file of strategies; the command line puts its text in place of the name.
pub(super) const FILE: OptionInfo =
    OptionInfo { name: "file", kind: OptionKind::Text, default: "", help: "a TOML file of strategies" };

/// The option that says how many devices there are.
pub(super) const DEVICES: OptionInfo = OptionInfo {
    name: "devices",
    kind: OptionKind::Int,
    default: "0",
    help: "number of devices; 0: the file of strategies says it",
};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct ApplyStrategies {
    file: StrategyFile,
}

/// Reads the file of strategies that options name.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read_file(options: &Options) -> Result<StrategyFile, PartitionError> {
    StrategyFile::parse(options.text(FILE.name), options.int(DEVICES.name))
        .map_err(|text| PartitionError::about("strategy", Entity::Module, text))
}

impl Pass for ApplyStrategies {
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
        for one in &configured {
            let matrix = format!("from the file, on the device matrix {:?}", one.matrix.sizes);
            let decision = explain(&prepared, (&spread, &operators, &mesh), one.id, &matrix);
            cx.report.decisions.extend(decision);
        }
        cx.report.count("operators", operators.operators.len() as u64);
        cx.report.count("configured", configured.len() as u64);
        let decided = Decided::new(&spread, &operators);
        prepared.finish(module, decided, &mesh, cx)
    }
}
