//! The problem of a mesh and its solution as JSON, so that others can check what is claimed.
//!
//! `variables`: what each decides, the names of its states, their costs in picoseconds (`null`: not allowed). `pairs`: two variables and a
//! table; `tables`: rows of costs. The cost of an assignment is the sum of its entries. `constraints`: for moments at which memory matters, the
//! limit in bytes and by variable the bytes of each state; their sum must not exceed the limit. The bound is one of assignments that
//! keep them.

use crate::found::Found;
use crate::network::{Decides, PlanNetwork};
use crate::plans::AxisUse;
use crate::program::Program;
use crate::solver::{Constraint, Cost, INFINITE, PairTable, VarId};
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct ProblemDump {
    mesh: Vec<i64>,
    unit: &'static str,
    bound: Cost,
    cost: Cost,
    variables: Vec<VariableDump>,
    pairs: Vec<(u32, u32, usize)>,
    tables: Vec<Vec<Vec<Option<Cost>>>>,
    constraints: Vec<ConstraintDump>,
    assignment: Vec<u32>,
}

#[derive(Serialize)]
struct ConstraintDump {
    limit: u64,
    terms: Vec<(u32, Vec<u64>)>,
}

#[derive(Serialize)]
struct VariableDump {
    decides: String,
    states: Vec<String>,
    costs: Vec<Option<Cost>>,
}

/// The problem of the mesh of a plan.
pub(crate) fn dump_problem(program: &Program<'_>, found: &Found) -> String {
    let network = &found.network;
    let mut tables: IndexMap<usize, Arc<PairTable>, FixedHash> = IndexMap::default();
    let mut pairs = Vec::new();
    for pair in &network.problem.pairs {
        let entry = tables.entry(Arc::as_ptr(&pair.table) as usize);
        let at = entry.index();
        entry.or_insert_with(|| pair.table.clone());
        pairs.push((pair.rows.as_u32(), pair.columns.as_u32(), at));
    }
    let finite = |&cost: &Cost| (cost < INFINITE).then_some(cost);
    let rows = |table: &Arc<PairTable>| {
        table.costs.chunks(table.n_columns.max(1)).map(|row| row.iter().map(finite).collect()).collect()
    };
    let constraint = |constraint: &Constraint| ConstraintDump {
        limit: constraint.limit,
        terms: constraint.terms.iter().map(|(var, bytes)| (var.as_u32(), bytes.to_vec())).collect(),
    };
    let dump = ProblemDump {
        mesh: network.mesh.sizes.to_vec(),
        unit: "picoseconds",
        bound: found.lower_bound,
        cost: found.cost,
        variables: network
            .decides
            .iter()
            .map(|(var, decides)| VariableDump {
                decides: describe(program, *decides),
                states: states_of(network, *decides),
                costs: network.problem.variables[var].iter().map(finite).collect(),
            })
            .collect(),
        pairs,
        tables: tables.values().map(rows).collect(),
        constraints: network.problem.constraints.iter().map(constraint).collect(),
        assignment: found.assignment.values().copied().collect(),
    };
    serde_json::to_string(&dump).unwrap_or_default()
}

/// What a variable decides, in words.
pub(crate) fn describe(program: &Program<'_>, decides: Decides) -> String {
    let module = program.module;
    match decides {
        Decides::Plan(op) => {
            let inst = program.ops[op].inst;
            format!("plan of %{} ({})", module.inst_name(inst), module.inst(inst).opcode.name())
        }
        Decides::Kept(value) => format!("state of %{}", module.inst_name(program.values[value].inst)),
        Decides::AtRegion(region, value) => {
            let inst = module.inst_name(program.values[value].inst);
            format!("state of %{inst} at the {}", describe(program, Decides::Way(region)))
        }
        Decides::Way(region) => {
            let ports = program.choices.ports_of(region).take(2);
            let of =
                ports.filter_map(|port| port.roots.first()).map(|&root| module.inst_name(program.values[root].inst));
            format!("way of %{}", of.collect::<Vec<_>>().join(", %"))
        }
    }
}

/// The states of a variable, in words.
pub(crate) fn states_of(network: &PlanNetwork, decides: Decides) -> Vec<String> {
    let of_use = |one: &AxisUse| match one {
        AxisUse::Repeats => "repeats".to_string(),
        AxisUse::Cuts(factor) => format!("factor {factor}"),
        AxisUse::PassesSums(_) => "sums".to_string(),
    };
    let off = |var: Option<VarId>| var.and_then(|var| network.off(var)).map(|_| "off".to_string());
    match decides {
        Decides::Plan(op) => {
            let text = |plan: &crate::plans::Plan| plan.uses.iter().map(of_use).collect::<Vec<_>>().join(", ");
            network.plans[op].iter().map(text).chain(off(network.var_of_op[op].expand())).collect()
        }
        Decides::Kept(value) => {
            let states = network.states[value].iter().map(|state| state.describe(&network.mesh));
            states.chain(off(network.var_of_value[value].expand())).collect()
        }
        Decides::AtRegion(region, value) => {
            let ways = states_of(network, Decides::Way(region));
            let states = network.states[value].iter().map(|state| state.describe(&network.mesh));
            states.flat_map(|state| ways.iter().map(move |way| format!("{state} with {way}"))).collect()
        }
        Decides::Way(region) => {
            let n_ways = network.var_of_region[region].expand().map_or(0, |var| network.problem.variables[var].len());
            (0..n_ways).map(|way| way.to_string()).collect()
        }
    }
}
