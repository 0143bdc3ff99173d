//! Find strategies for all operators of a global program, and print a sharding on every instruction.
//!
//! Before:
//! ```text
//! ROOT %y = f32[1024,4096] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after, with `devices=8`: three halvings, of rows, of columns, and of rows again:
//! ```text
//! ROOT %y = f32[1024,4096] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[4,2]<=[8]}
//! ```
//! The sample `ir-samples/passes/search-strategies/worked.hlo` runs this.
//!
//! **Why.** Nobody has to say how a program is cut.
//!
//! **Algorithm.** `algo=double-recursive`: the module `double_recursive`; then the strategies found spread to operators without a rule of cost
//! as in `propagate-strategies`. `algo=dp`: the module `dynamic_programming`, for any number of devices. Near-linear in operators.
//!
//! **What it does not do**, **requires**, **ensures**: as `apply-strategies`. With `write=true` the strategies stand beside the module, in
//! `strategies.toml`, which `apply-strategies` reads. **Errors**: a number of devices that is no power of two, without `algo=dp`.
//!
//! **References.** *Automatic Parallel Strategy Search*, MindSpore's design documents, "Double Recursive Strategy Search Algorithm".

use super::double_recursive::{Halving, Halvings, Search, SearchOrder};
use super::dynamic_programming::Program;
use super::layouts::{Assignment, DeviceMatrix, common_mesh, n_named};
use super::operators::{OperatorGraph, OperatorId};
use super::prepared::{Prepared, explain, why_unchanged};
use super::spread::Spread;
use super::write::Decided;
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::prices::{PRICE, Price};
use hlo_ir::Module;
use hlo_ir::diag::Entity;
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{Artifact, Decision, LateText};
use hlo_pass::{Changed, Deadline, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "search-strategies",
    help: "find a strategy for every operator (MindSpore's double-recursive search, or by dynamic programming)",
    options: OPTIONS,
    build: |options| Ok(Box::new(SearchStrategies::new(options, Price::new(options, LAUNCH_BYTES))?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo { name: "devices", kind: OptionKind::Int, default: "8", help: "number of devices" },
    OptionInfo {
        name: "algo",
        kind: OptionKind::Word(&["double-recursive", "dp"]),
        default: "double-recursive",
        help: "double-recursive: for powers of two; dp: dynamic programming, for any number",
    },
    OptionInfo {
        name: "order",
        kind: OptionKind::Word(&["topological", "weight"]),
        default: "topological",
        help: "double-recursive: operators from the last one, or the heaviest first",
    },
    OptionInfo {
        name: "depth",
        kind: OptionKind::Int,
        default: "0",
        help: "how many parts of op_name the instructions of an operator share; 0: every instruction is an operator",
    },
    OptionInfo {
        name: "write",
        kind: OptionKind::Bool,
        default: "false",
        help: "write strategies.toml beside the module: -o names a directory",
    },
    PRICE,
];

/// What a collective costs beside its bytes where `algo=dp` counts bytes: some 2 µs of a link of 450 GB/s.
const LAUNCH_BYTES: i64 = 1 << 20;

/// The most devices that are searched for.
const MOST_DEVICES: i64 = 1 << 16;

/// How the search goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    DoubleRecursive(SearchOrder),
    DynamicProgramming,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct SearchStrategies {
    n_devices: i64,
    algorithm: Algorithm,
    depth: usize,
    writes: bool,
    price: Price,
}

impl SearchStrategies {
    fn new(options: &Options, price: Price) -> Result<SearchStrategies, PartitionError> {
        let n_devices = options.int("devices");
        let wrong = |text: String| PartitionError::about("option", Entity::Module, text);
        if !(2..=MOST_DEVICES).contains(&n_devices) {
            return Err(wrong(format!("option `devices`: expected 2 to {MOST_DEVICES}, found {n_devices}")));
        }
        let algorithm = match (options.text("algo"), options.text("order")) {
            ("dp", _) => Algorithm::DynamicProgramming,
            (_, "weight") => Algorithm::DoubleRecursive(SearchOrder::Weight),
            (_, _) => Algorithm::DoubleRecursive(SearchOrder::Topological),
        };
        if algorithm != Algorithm::DynamicProgramming && !n_devices.unsigned_abs().is_power_of_two() {
            return Err(wrong(format!(
                "option `devices`: expected a power of two, which the double-recursive search halves, found {n_devices}; algo=dp takes any number"
            )));
        }
        let depth = options.int("depth").max(0) as usize;
        Ok(SearchStrategies { n_devices, algorithm, depth, writes: options.flag("write"), price })
    }
}

impl Pass for SearchStrategies {
    fn writes_files(&self) -> bool {
        self.writes
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        if let Some(why) = why_unchanged(module, cx.analyses) {
            cx.report.unchanged_because = Some(why);
            return Ok(Changed::No);
        }
        let prepared = Prepared::new(module)?;
        let operators = OperatorGraph::new(&prepared.before, &prepared.graph, self.depth);
        let mesh = common_mesh(self.n_devices, &[])
            .map_err(|_| PassError::about("strategy", Entity::Module, "expected a mesh of prime axes"))?;
        let mut spread = Spread::new(&prepared.graph, &operators, &mesh);
        let decisions = match self.algorithm {
            Algorithm::DoubleRecursive(order) => double_recursive(&prepared, &mut spread, order, cx.deadline)?,
            Algorithm::DynamicProgramming => {
                let prices = self.price.of_devices(&cx.target.machine, self.n_devices as usize)?;
                let program = Program {
                    module: &prepared.before,
                    graph: &prepared.graph,
                    operators: &operators,
                    mesh: &mesh,
                    prices: &prices,
                    deadline: cx.deadline,
                };
                let found = program.search().map_err(PassError::from)?;
                found.values.into_iter().for_each(|(value, layout)| spread.fix(value, layout));
                let mut decisions = Vec::new();
                for (id, assignment, cost) in found.operators {
                    spread.choose(id, assignment);
                    if !operators.operators[id].kind.is_light() {
                        let why = format!("its own cost is {cost:.3e}, that of all {:.3e}", found.choices.cost);
                        decisions.extend(explain(&prepared, (&spread, &operators, &mesh), id, &why));
                    }
                }
                cx.report.count("fixed", found.choices.n_fixed as u64);
                decisions
            }
        };
        cx.report.decisions.extend(decisions);
        cx.report.count("operators", operators.operators.len() as u64);
        spread.counts.tell(cx.report);
        if self.writes {
            let text = prepared.file(&spread, &operators, self.depth).print();
            let text = Artifact::Text(LateText::new(move || text.clone()));
            cx.report.files.push(("strategies.toml".into(), text));
        }
        let decided = Decided::new(&spread, &operators);
        prepared.finish(module, decided, &mesh, cx)
    }
}

/// Halves all operators that have a rule of cost, and spreads that to the others. Gives what to tell.
fn double_recursive(
    prepared: &Prepared,
    spread: &mut Spread<'_>,
    order: SearchOrder,
    deadline: Deadline,
) -> Result<Vec<Decision>, PartitionError> {
    let (operators, mesh) = (spread.operators, spread.mesh);
    let search = Search { module: &prepared.before, graph: &prepared.graph, operators, deadline };
    let found = search.run(mesh.sizes().len(), order)?;
    for &id in &found.order {
        spread.choose(id, matrix_of(spread, &found, id)?);
    }
    spread.run();
    let heavy = found.order.iter().filter(|&&id| !operators.operators[id].kind.is_light());
    let told = heavy.filter_map(|&id| {
        let rounds: Vec<String> = found.rounds[id].iter().map(describe_round).collect();
        explain(prepared, (spread, operators, mesh), id, &rounds.join("; "))
    });
    Ok(told.collect())
}

/// The layout of an operator's cuts.
fn matrix_of(spread: &Spread<'_>, found: &Halvings, id: OperatorId) -> Result<Assignment, PartitionError> {
    let operator = &spread.operators.operators[id];
    let mesh: &ModuleMesh = spread.mesh;
    let cuts = found.cuts[id].get(..n_named(operator)).unwrap_or_default();
    let matrix = DeviceMatrix::of_cuts(cuts, operator.classes.len(), mesh.n_devices() as i64, false);
    matrix.assignment(mesh).ok_or_else(|| {
        let text = format!("operator `{}`: expected cuts on the mesh, found {cuts:?}", operator.name);
        PartitionError::about("strategy", Entity::Inst(operator.inst), text)
    })
}

fn describe_round(round: &Option<Halving>) -> String {
    match round {
        None => "nothing even is left".into(),
        Some(Halving { class, cost, runner_up: None }) => format!("class {class} at {cost}"),
        Some(Halving { class, cost, runner_up: Some((other, more)) }) => {
            format!("class {class} at {cost}, class {other} would be {more}")
        }
    }
}
