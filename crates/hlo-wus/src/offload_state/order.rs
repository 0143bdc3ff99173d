//! The order of the entry with updates put together.
//!
//! A text may compute all new moments first and all new weights last; then each moment's copy on the device would live from the one to the other. Here
//! what depends on no state keeps its order, and what depends on state follows as soon as all is there that its update needs: the update of the first array
//! that is complete, then the next one's. What depends on several arrays belongs to the last of them.

use super::find::State;
use cranelift_entity::SecondaryMap;
use hlo_ir::{CompId, InstId, Module};

/// The instructions of `entry`, reordered.
pub(super) fn grouped_order(module: &Module, entry: CompId, states: &[State]) -> Vec<InstId> {
    let insts = &module.comp(entry).insts;
    let mut position: SecondaryMap<InstId, usize> = SecondaryMap::new();
    insts.iter().enumerate().for_each(|(at, &inst)| position[inst] = at);
    let mut depends: SecondaryMap<InstId, bool> = SecondaryMap::new();
    states.iter().flat_map(|state| &state.dependents).for_each(|&inst| depends[inst] = true);
    // Effects stay in the order of the text: of several, none may move past another.
    let effects = module.ordered_among_each_other(entry);
    if effects.len() > 1 && effects.iter().any(|&inst| depends[inst]) {
        return insts.clone();
    }
    // Where the last of what an update needs from outside stands.
    let ready_at = |state: &State| {
        let outside = state.dependents.iter().flat_map(|&inst| module.needed(inst)).filter(|&inst| !depends[inst]);
        outside.map(|inst| position[inst]).max().unwrap_or(0)
    };
    let mut ranked: Vec<(usize, usize, &State)> = states
        .iter()
        .map(|state| (ready_at(state), state.dependents.first().map_or(0, |&inst| position[inst]), state))
        .collect();
    ranked.sort_by_key(|&(ready, first, state)| (ready, first, state.param_number));
    // Of each dependent the last array that it depends on.
    let mut rank: SecondaryMap<InstId, usize> = SecondaryMap::new();
    for (place, (_, _, state)) in ranked.iter().enumerate() {
        state.dependents.iter().for_each(|&inst| rank[inst] = place);
    }
    let root = module.comp(entry).root.expand();
    let key = |inst: InstId| match depends[inst] {
        true => (ranked[rank[inst]].0, true, rank[inst], position[inst]),
        false if Some(inst) == root => (usize::MAX, true, usize::MAX, position[inst]),
        false => (position[inst], false, 0, position[inst]),
    };
    let mut order = insts.clone();
    order.sort_by_key(|&inst| key(inst));
    order
}
