//! Finds the all-reduces whose results an update may be computed from on shards.

use crate::error::GradientRefusal;
use cranelift_entity::EntitySet;
use hlo_analysis::replication::Replication;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{CompId, InstId, Module, Opcode};
use std::collections::BTreeMap;

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

impl Gradient {
    /// The groups of devices that hold the same sum: more than those that add it up where others repeat their work. Its own groups,
    /// unless all of the others are of one size.
    pub fn holders(&self, replication: &Replication) -> Vec<Vec<u32>> {
        let mut of_class: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let classes = replication.classes(self.all_reduce, 0).unwrap_or_default();
        for (device, &class) in (0..).zip(classes) {
            of_class.entry(class).or_default().push(device);
        }
        let own = self.groups.first().map_or(0, Vec::len);
        let holders: Vec<Vec<u32>> = of_class.into_values().collect();
        let size = holders.first().map_or(0, Vec::len);
        let is_wider = size > own && size.is_multiple_of(own) && holders.iter().all(|group| group.len() == size);
        if is_wider { holders } else { self.groups.clone() }
    }
}

/// An all-reduce that stays, and why.
#[derive(Clone, Debug)]
pub struct LeftGradient {
    /// The all-reduce.
    pub all_reduce: InstId,
    /// Why.
    pub reason: GradientRefusal,
}

/// All all-reduces reachable from the entry: those that can be scattered, and those that cannot, with the reason.
pub fn find_gradients(module: &Module, min_bytes: u64) -> (Vec<Gradient>, Vec<LeftGradient>) {
    let (mut found, mut left) = (Vec::new(), Vec::new());
    let mut reachable: EntitySet<CompId> = EntitySet::new();
    module.post_order().into_iter().for_each(|comp| {
        reachable.insert(comp);
    });
    for &comp in module.computations().iter().filter(|&&c| reachable.contains(c)) {
        for &inst in &module.comp(comp).insts {
            let opcode = module.inst(inst).opcode;
            if opcode == Opcode::AllReduceStart {
                left.push(LeftGradient { all_reduce: inst, reason: GradientRefusal::Asynchronous });
            } else if opcode == Opcode::AllReduce {
                match check_all_reduce(module, inst, min_bytes) {
                    Ok(groups) => found.push(Gradient { all_reduce: inst, comp, groups }),
                    Err(reason) => left.push(LeftGradient { all_reduce: inst, reason }),
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
fn check_all_reduce(module: &Module, inst: InstId, min_bytes: u64) -> Result<Vec<Vec<u32>>, GradientRefusal> {
    let Some(array) = module.shape(inst).as_array() else {
        return Err(GradientRefusal::ReducesTuple);
    };
    if array.rank() == 0 {
        return Err(GradientRefusal::Scalar);
    }
    if array.dynamic != 0 {
        return Err(GradientRefusal::DynamicDims);
    }
    let n_devices = module.n_devices();
    if n_devices < 2 {
        return Err(GradientRefusal::OneDevice);
    }
    let groups = module.device_groups(inst).map_err(GradientRefusal::Groups)?;
    match groups.uniform_size() {
        None => return Err(GradientRefusal::UnevenGroups),
        Some(0 | 1) => return Err(GradientRefusal::LoneDevices),
        Some(size) if size * groups.groups.len() != n_devices => {
            return Err(GradientRefusal::MissingDevices { n_devices, n_held: size * groups.groups.len() });
        }
        Some(_) => {}
    }
    let reducer = module.called(inst).first().and_then(|&c| find_monoid(module, c));
    if reducer != Some(Monoid::Add) {
        return Err(GradientRefusal::NoAdd);
    }
    if array.size_bytes() < min_bytes {
        return Err(GradientRefusal::Small { bytes: array.size_bytes(), min_bytes });
    }
    Ok(groups.groups)
}
