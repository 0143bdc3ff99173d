//! What a layout costs: the collectives of the program of each device, its time on a machine, and its memory.

use super::layout::NamedMesh;
use crate::error::PartitionError;
use crate::prices::Price;
use crate::sharding::Atom;
use crate::spmd_partition::{ComputeRule, partition};
use hlo_analysis::code::code_computations;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::memory::memory_sizes;
use hlo_analysis::time::{ModuleTime, predict};
use hlo_ir::diag::Entity;
use hlo_ir::names::FixedHash;
use hlo_ir::{InstId, Module};
use hlo_mesh::Machine;
use hlo_pass::Deadline;
use indexmap::IndexMap;

/// What a device exchanges in one way, in one run of the program.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Exchanged {
    pub n_collectives: f64,
    /// Elements and bytes that a device puts in.
    pub n_elems: f64,
    pub bytes: f64,
}

/// What the program of each device costs.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    /// By opcode, and the axes along which devices differ that exchange.
    pub exchanged: IndexMap<(String, String), Exchanged, FixedHash>,
    pub time: ModuleTime,
    pub peak_bytes: u64,
}

impl Forecast {
    /// Partitions a program whose values all have a sharding, and looks at what comes out.
    ///
    /// # Errors
    /// What cannot be partitioned; a machine of another number of devices; the time is over.
    pub(crate) fn of(
        mut module: Module,
        mesh: &NamedMesh,
        (machine, rule): (&Machine, ComputeRule),
        options: FrequencyOptions,
        deadline: Deadline,
    ) -> Result<Forecast, PartitionError> {
        partition(&mut module, (Price::Bytes { launch: 1 }, machine), rule, deadline)?;
        let frequencies = Frequencies::compute(&module, options);
        let time = predict(&module, &frequencies, machine)
            .map_err(|error| PartitionError::about("machine", Entity::Module, error.to_string()))?;
        let mut exchanged: IndexMap<(String, String), Exchanged, FixedHash> = IndexMap::default();
        let groups = axis_groups(mesh);
        for comp in code_computations(&module) {
            let often = frequencies.of(comp).max(0.0);
            for &inst in &module.comp(comp).insts {
                if module.inst(inst).opcode.row().collective.is_none() {
                    continue;
                }
                let key = (module.inst(inst).opcode.name().to_string(), axes_between(&module, inst, &groups));
                let sum = exchanged.entry(key).or_default();
                sum.n_collectives += often;
                for &operand in &module.inst(inst).operands {
                    let n_elems = module.shape(operand).as_array().map_or(0, |array| array.dims.iter().product());
                    sum.n_elems += often * n_elems as f64;
                    sum.bytes += often * module.shape(operand).memory_bytes() as f64;
                }
            }
        }
        exchanged.sort_keys();
        Ok(Forecast { exchanged, time, peak_bytes: memory_sizes(&module).peak_bytes })
    }
}

/// The groups of devices that differ along some axes, by the axes' names; fewer axes first.
fn axis_groups(mesh: &NamedMesh) -> Vec<(String, Vec<Vec<u32>>)> {
    let n_axes = mesh.axes.len().min(MOST_NAMED_AXES);
    let mut sets: Vec<u32> = (1..1u32 << n_axes).collect();
    sets.sort_by_key(|set| set.count_ones());
    let named = sets.into_iter().map(|set| {
        let axes: Vec<usize> = (0..n_axes).filter(|axis| set >> axis & 1 == 1).collect();
        let atoms: Vec<Atom> = axes.iter().flat_map(|&axis| mesh.atoms[axis].iter().copied()).collect();
        let names: Vec<&str> = axes.iter().map(|&axis| mesh.axes[axis].name.as_str()).collect();
        let groups = mesh.mesh.groups(&atoms).into_iter();
        (names.join("+"), sorted(groups.map(|group| group.into_iter().map(|id| id as u32).collect()).collect()))
    });
    named.collect()
}

/// Groups along more axes are not told by name.
const MOST_NAMED_AXES: usize = 6;

fn axes_between(module: &Module, inst: InstId, known: &[(String, Vec<Vec<u32>>)]) -> String {
    let Ok(groups) = module.device_groups(inst) else { return "pairs".to_string() };
    let groups = sorted(groups.groups);
    known.iter().find(|(_, of)| *of == groups).map_or_else(|| "parts of axes".to_string(), |(name, _)| name.clone())
}

/// Groups and members in ascending order.
fn sorted(mut groups: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    groups.iter_mut().for_each(|group| group.sort());
    groups.sort();
    groups
}
