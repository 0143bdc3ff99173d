//! Finds the all-reduces whose results an update may be computed from on shards.

use cranelift_entity::EntitySet;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{CompId, InstId, Module, Opcode};

/// An all-reduce that a reduce-scatter can replace.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The all-reduce.
    pub all_reduce: InstId,
    /// The computation that holds it.
    pub comp: CompId,
    /// Its groups of flat device ids, equal in size, members in the order of their shards.
    pub groups: Vec<Vec<u32>>,
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
    let mut reachable: EntitySet<CompId> = EntitySet::new();
    module.post_order().into_iter().for_each(|comp| {
        reachable.insert(comp);
    });
    for &comp in module.computations().iter().filter(|&&c| reachable.contains(c)) {
        for &inst in &module.comp(comp).insts {
            let opcode = module.inst(inst).opcode;
            if opcode == Opcode::AllReduceStart {
                left.push(Left { all_reduce: inst, reason: "asynchronous: run the pass before scheduling".into() });
            } else if opcode == Opcode::AllReduce {
                match check_all_reduce(module, inst, min_bytes) {
                    Ok(groups) => found.push(Gradient { all_reduce: inst, comp, groups }),
                    Err(reason) => left.push(Left { all_reduce: inst, reason }),
                }
            }
        }
    }
    (found, left)
}

/// The all-reduce's groups of flat device ids.
///
/// # Errors
/// Why it cannot be scattered.
fn check_all_reduce(module: &Module, inst: InstId, min_bytes: u64) -> Result<Vec<Vec<u32>>, String> {
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
    let groups = module.device_groups(inst)?;
    match groups.uniform_size() {
        None => return Err("its groups differ in size".into()),
        Some(0 | 1) => return Err("its groups have one device each: nothing is summed".into()),
        Some(size) if size * groups.groups.len() != n_devices => {
            return Err(format!(
                "expected groups that hold all {n_devices} devices, found {}",
                size * groups.groups.len()
            ));
        }
        Some(_) => {}
    }
    let reducer = module.called(inst).first().and_then(|&c| find_monoid(module, c));
    if reducer != Some(Monoid::Add) {
        return Err("its reducer is not a plain add".into());
    }
    if array.size_bytes() < min_bytes {
        return Err(format!("{} bytes, below min-bytes={min_bytes}", array.size_bytes()));
    }
    Ok(groups.groups)
}
