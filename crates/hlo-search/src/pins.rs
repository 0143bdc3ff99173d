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
        let said: IndexMap<String, Vec<i64>> = toml::from_str(text).map_err(|error| SearchError::PinsSyntax {
            message: error.message().to_string(),
            file: Some(text.trim()).filter(|text| !text.contains(['=', '\n'])).map(str::to_string),
        })?;
        let mut pins = Pins::default();
        for (name, parts) in said {
            let value = find(program, &name)?;
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

/// The kept value that a name means: `%w`, or what the framework calls it. `COMPUTATION/%w` is the one in a computation, where its name may have
/// got a number when the module was read, and `%w#1` tells the leaves of a tuple apart.
///
/// # Errors
/// No value has the name, or several do.
pub(crate) fn find(program: &Program<'_>, name: &str) -> Result<CutId, SearchError> {
    let module = program.module;
    let kept = || program.values.keys().filter(|&id| program.values[id].is_kept && !program.values[id].is_free);
    let of_framework = |&id: &CutId| {
        let marks = module.inst(program.values[id].inst).marks.as_ref();
        marks.and_then(|marks| marks.op_name()) == Some(name)
    };
    let (place, leaf) = match name.rsplit_once('#').map(|(place, leaf)| (place, leaf.parse::<u32>())) {
        Some((place, Ok(leaf))) => (place, Some(leaf)),
        Some((_, Err(_))) | None => (name, None),
    };
    let (comp, place) = match place.rsplit_once('/') {
        Some((comp, place)) => (Some(comp.trim_start_matches('%')), place),
        None => (None, place),
    };
    let bare = place.strip_prefix('%').unwrap_or(place);
    let is_numbered = |name: &str| {
        let number = name.strip_prefix(bare).and_then(|rest| rest.strip_prefix('.'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let of_name = |takes: &dyn Fn(&str) -> bool| -> Vec<CutId> {
        let is_it = |&id: &CutId| {
            let value = &program.values[id];
            let parent = module.inst(value.inst).parent;
            takes(module.inst_name(value.inst))
                && comp.is_none_or(|comp| module.comp_name(parent) == comp)
                && leaf.is_none_or(|leaf| value.leaf == leaf)
        };
        kept().filter(is_it).collect()
    };
    let mut found = of_name(&|name| name == bare);
    if found.is_empty() {
        found = of_name(&is_numbered);
    }
    if found.is_empty() {
        found = kept().filter(of_framework).collect();
    }
    // What the framework calls a parameter, ops on it may be called too.
    let is_param = |id: &CutId| program.values[*id].is_param;
    if found.iter().filter(|id| is_param(id)).count() == 1 && comp.is_none() {
        found.retain(is_param);
    }
    match found.as_slice() {
        [] => Err(SearchError::UnknownPin { name: name.into() }),
        [only] => Ok(*only),
        several => {
            let full = |&id: &CutId| {
                let value = &program.values[id];
                let comp = module.comp_name(module.inst(value.inst).parent);
                format!("{comp}/%{}#{}", module.inst_name(value.inst), value.leaf)
            };
            Err(SearchError::SharedName { name: name.into(), places: several.iter().map(full).collect() })
        }
    }
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
