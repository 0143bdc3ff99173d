//! A legal plan by chance, to try partitioners with: values are cut in ways that no search would choose.

use crate::network::PlanNetwork;
use crate::solver::{Assignment, INFINITE};

/// A number from 0 to one below `n`, from a seed that moves on (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
pub(crate) fn next(seed: &mut u64, n: usize) -> usize {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *seed;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) % n.max(1) as u64) as usize
}

/// A legal assignment. What cannot be brought to a variable's state makes that variable whole.
pub(crate) fn draw_assignment(network: &PlanNetwork, seed: u64) -> Assignment {
    let mut seed = seed;
    let mut states = Assignment::new();
    for costs in network.problem.variables.values() {
        let mut state = next(&mut seed, costs.len());
        while costs[state] >= INFINITE && state > 0 {
            state -= 1;
        }
        states.push(state as u32);
    }
    loop {
        let mut is_changed = false;
        for pair in &network.problem.pairs {
            let at = states[pair.rows] as usize * pair.table.n_columns + states[pair.columns] as usize;
            if pair.table.costs[at] >= INFINITE && states[pair.columns] != 0 {
                // The first state of a variable takes everything whole.
                states[pair.columns] = 0;
                is_changed = true;
            }
        }
        if !is_changed {
            return states;
        }
    }
}
