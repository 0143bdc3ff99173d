//! Finds the all-reduces whose results an update may be computed from on shards.

use hlo_analysis::reducers::{Reducer, find_reducer};
use hlo_ir::groups::DeviceGroups;
use hlo_ir::{CompId, InstId, Module, Opcode};

/// An all-reduce that a reduce-scatter can replace.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The all-reduce.
    pub all_reduce: InstId,
    /// The computation that holds it.
    pub comp: CompId,
    /// Its one group: all devices, in the order of their shards.
    pub members: Vec<u32>,
}

/// An all-reduce that stays, and why.
#[derive(Clone, Debug)]
pub struct Left {
    /// The all-reduce.
    pub all_reduce: InstId,
    /// Why.
    pub reason: String,
}

/// All all-reduces reachable from the entry: those that can be scattered, and those that cannot, with the reason.
pub fn find_gradients(module: &Module, min_bytes: u64) -> (Vec<Gradient>, Vec<Left>) {
    let (mut found, mut left) = (Vec::new(), Vec::new());
    let reachable = module.post_order();
    for &comp in module.computations().iter().filter(|c| reachable.contains(c)) {
        for &inst in &module.comp(comp).insts {
            let opcode = module.inst(inst).opcode;
            if opcode == Opcode::AllReduceStart {
                left.push(Left { all_reduce: inst, reason: "asynchronous: run the pass before scheduling".into() });
            } else if opcode == Opcode::AllReduce {
                match check_all_reduce(module, inst, min_bytes) {
                    Ok(groups) => found.push(Gradient { all_reduce: inst, comp, members: groups }),
                    Err(reason) => left.push(Left { all_reduce: inst, reason }),
                }
            }
        }
    }
    (found, left)
}

/// The members of the all-reduce's one group.
///
/// # Errors
/// Why it cannot be scattered.
fn check_all_reduce(module: &Module, inst: InstId, min_bytes: u64) -> Result<Vec<u32>, String> {
    let Some(array) = module.shape(inst).as_array() else {
        return Err("reduces a tuple; this form of the pass takes array all-reduces".into());
    };
    if array.rank() == 0 {
        return Err("a scalar".into());
    }
    if array.dynamic != 0 {
        return Err("has dynamic dims".into());
    }
    let n_devices = module.n_devices();
    if n_devices < 2 {
        return Err("the module runs on one device".into());
    }
    let DeviceGroups { groups } = module.device_groups(inst)?;
    let [members] = groups.as_slice() else {
        return Err(format!(
            "reduces over {} groups; this form of the pass takes one group of all {n_devices} devices",
            groups.len()
        ));
    };
    if members.len() != n_devices {
        return Err(format!("expected a group of all {n_devices} devices, found {}", members.len()));
    }
    let reducer = module.called(inst).first().and_then(|&c| find_reducer(module, c));
    if reducer != Some(Reducer::Add) {
        return Err("its reducer is not a plain add".into());
    }
    if array.size_bytes() < min_bytes {
        return Err(format!("{} bytes, below min-bytes={min_bytes}", array.size_bytes()));
    }
    Ok(members.clone())
}
