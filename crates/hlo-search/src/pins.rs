//! What the user fixes: into how many parts some values are cut, dim by dim.

use crate::error::SearchError;
use crate::network::PlanNetwork;
use crate::program::{CutId, Program};
use crate::solver::VarId;
use crate::state::State;
use cranelift_entity::SecondaryMap;

use indexmap::IndexMap;

/// The parts of each dim of some values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pins {
    of: Vec<(CutId, Vec<i64>)>,
}

impl Pins {
    /// Reads TOML whose keys are names of instructions (`"%w"`) or what the framework calls parameters (`"params['w']"`), and whose values
    /// are numbers of parts: `[1, 4]`. Values in the way of chains of ops have no state of their own and cannot be pinned.
    ///
    /// # Errors
    /// The text is no such TOML, names nothing, or has another number of dims.
    pub(crate) fn read(program: &Program<'_>, text: &str) -> Result<Pins, SearchError> {
        let said: IndexMap<String, Vec<i64>> =
            toml::from_str(text).map_err(|error| SearchError::PinsSyntax { message: error.message().to_string() })?;
        let mut pins = Pins::default();
        for (name, parts) in said {
            let Some(value) = find(program, &name) else {
                return Err(SearchError::UnknownPin { name });
            };
            let rank = program.values[value].dims.len();
            if parts.len() != rank || parts.iter().any(|&n| n < 1) {
                return Err(SearchError::PinParts { name, rank, parts });
            }
            pins.of.push((value, parts));
        }
        Ok(pins)
    }

    /// Forbids all other states; false where a mesh has none that the pins allow.
    pub(crate) fn apply(&self, program: &Program<'_>, network: &mut PlanNetwork) -> bool {
        let mut is_possible = true;
        for (value, parts) in &self.of {
            let Some(var) = network.var_of_value[*value].expand() else { continue };
            let n_dims = program.values[*value].dims.len();
            let cuts = |state: &State| {
                state.partial(&network.mesh) == 0
                    && (0..n_dims).all(|dim| network.mesh.n_places(state.cutting(&network.mesh, dim)) == parts[dim])
            };
            let allowed: Vec<bool> = network.states[*value].iter().map(cuts).collect();
            is_possible &= allowed.contains(&true);
            forbid(network, var, &allowed);
        }
        is_possible
    }
}

fn forbid(network: &mut PlanNetwork, var: VarId, allowed: &[bool]) {
    for (cost, is_allowed) in network.problem.variables[var].iter_mut().zip(allowed) {
        if !is_allowed {
            *cost = crate::solver::INFINITE;
        }
    }
}

/// The kept value that a name means.
pub(crate) fn find(program: &Program<'_>, name: &str) -> Option<CutId> {
    let bare = name.strip_prefix('%').unwrap_or(name);
    let module = program.module;
    let is_named = |&id: &CutId| {
        let value = &program.values[id];
        let framework = module.inst(value.inst).marks.as_ref().and_then(|marks| marks.op_name());
        module.inst_name(value.inst) == bare || framework == Some(name)
    };
    program.values.keys().filter(|&id| program.values[id].is_kept && !program.values[id].is_free).find(is_named)
}

/// Which states each variable may have so that values are cut as another plan of the same program says.
pub(crate) fn like_given(
    program: &Program<'_>,
    network: &PlanNetwork,
    given: &SecondaryMap<CutId, Option<hlo_ir::axes::AxisSharding>>,
) -> SecondaryMap<VarId, Vec<bool>> {
    let mut allowed: SecondaryMap<VarId, Vec<bool>> = SecondaryMap::new();
    let mut known: IndexMap<(hlo_ir::axes::AxisSharding, State), bool> = IndexMap::new();
    for (id, value) in &program.values {
        let Some(wanted) = &given[id] else { continue };
        let rank = value.dims.len();
        let mut fits = |state: State| {
            let state = state.resolved(&network.mesh);
            *known
                .entry((wanted.clone(), state))
                .or_insert_with(|| state.axis_sharding(&network.mesh, rank).has_tiles_of(wanted))
        };
        let (var, states): (Option<VarId>, Vec<bool>) = match (network.var_of_value[id].expand(), value.producer) {
            (Some(var), _) => (Some(var), network.states[id].iter().map(|&state| fits(state)).collect()),
            (None, Some((op, k))) => {
                let plans = network.plans[op].iter().map(|plan| fits(plan.results[k as usize])).collect();
                (network.var_of_op[op].expand(), plans)
            }
            (None, None) => (None, Vec::new()),
        };
        if let Some(var) = var.filter(|_| states.contains(&true)) {
            allowed[var] = states;
        }
    }
    allowed
}
