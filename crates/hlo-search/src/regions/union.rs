//! One program with all ways of its regions beside each other, and what says which instruction belongs to which way.

use super::ways::RegionWays;
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use hlo_ir::attrs::{Attrs, CustomAttrs, QuotedText};
use hlo_ir::edit::Builder;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_rules::bridge::add_alternative;

/// A region of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RegionId(u32);
entity_impl!(RegionId, "region");

/// A way of a region; the program's own is number 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct WayOf {
    pub region: RegionId,
    pub way: u32,
}

/// Which instructions are ways of regions; nothing in a program as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnionMarks {
    /// By region, how many ways it has.
    pub n_ways: PrimaryMap<RegionId, u32>,
    /// The way that an instruction is part of.
    pub way_of: SecondaryMap<InstId, Option<WayOf>>,
    /// Ports: an instruction that stands for a result of a region, and takes the value of each way.
    pub port_of: SecondaryMap<InstId, Option<RegionId>>,
}

/// A program with ports.
#[derive(Clone)]
pub(super) struct Union {
    pub module: Module,
    pub marks: UnionMarks,
}

/// The target of the calls that ports are.
const PORT: &str = "hlo_opt.port";

/// Writes all ways of regions beside each other. Regions of which the ways cannot stand beside those of others are left out; `true`
/// for those that are in it.
pub(super) fn write_union(module: &Module, regions: &[RegionWays]) -> (Union, Vec<bool>) {
    let empty =
        || Writer { union: Union { module: module.clone(), marks: UnionMarks::default() }, ports: SecondaryMap::new() };
    let mut all = empty();
    let are_added = regions.iter().map(|region| add_region(&mut all.union, &mut all.ports, region).is_some());
    let are_added: Vec<bool> = are_added.collect();
    if all.is_ordered() {
        return (all.union, are_added);
    }
    // Ways of some regions need each other: one region after the other, those that close a circle are left out.
    let (mut some, mut is_in) = (empty(), Vec::with_capacity(regions.len()));
    for region in regions {
        let mut more = some.clone();
        let is_added = add_region(&mut more.union, &mut more.ports, region).is_some() && more.is_ordered();
        if is_added {
            some = more;
        }
        is_in.push(is_added);
    }
    (some.union, is_in)
}

/// A union as it is written, and the port of each result.
#[derive(Clone)]
struct Writer {
    union: Union,
    ports: SecondaryMap<InstId, PackedOption<InstId>>,
}

impl Writer {
    /// Puts every computation in order; false if an instruction needs itself.
    fn is_ordered(&mut self) -> bool {
        let comps = self.union.module.computations().to_vec();
        comps.into_iter().all(|comp| self.union.module.restore_order(comp).is_ok())
    }
}

fn add_region(
    union: &mut Union,
    ports: &mut SecondaryMap<InstId, PackedOption<InstId>>,
    ways: &RegionWays,
) -> Option<()> {
    let (mut region, module) = (ways.region.clone(), &mut union.module);
    // What another region gives comes through its port.
    region.inputs.iter_mut().for_each(|input| *input = ports[*input].expand().unwrap_or(*input));
    let region = &region;
    let before = module.comp(region.comp).insts.len();
    let mut values: Vec<Vec<InstId>> = vec![region.outputs.iter().map(|output| output.0).collect()];
    let mut ends = vec![before];
    for way in &ways.ways {
        let mut roots = add_alternative(module, region, &ways.terms, &way.roots).ok()?;
        for k in 0..roots.len() {
            // A value that is there already, or is two results, becomes a value of this way by a copy.
            if region.inputs.contains(&roots[k]) || roots[..k].contains(&roots[k]) {
                let shape = module.shape(roots[k]).clone();
                roots[k] = Builder::new(module, region.comp).add("copy", Opcode::Copy, shape, [roots[k]], Attrs::Plain);
            }
        }
        values.push(roots);
        ends.push(module.comp(region.comp).insts.len());
    }
    let id = union.marks.n_ways.push(values.len() as u32);
    for &inst in &ways.insts {
        union.marks.way_of[inst] = Some(WayOf { region: id, way: 0 });
    }
    for way in 1..values.len() {
        for &inst in &module.comp(region.comp).insts[ends[way - 1]..ends[way]] {
            union.marks.way_of[inst] = Some(WayOf { region: id, way: way as u32 });
        }
    }
    for (k, &output) in values[0].iter().enumerate() {
        let takers = takers_outside(module, region.comp, output, before, &ways.insts);
        let shape = module.shape(output).clone();
        let attrs = CustomAttrs { custom_call_target: QuotedText(PORT.into()), ..CustomAttrs::default() };
        let of_ways = values.iter().map(|of_way| of_way[k]);
        let port = Builder::new(module, region.comp).add("port", Opcode::CustomCall, shape, of_ways, attrs);
        union.marks.port_of[port] = Some(id);
        ports[output] = Some(port).into();
        for taker in takers {
            module.map_operands(taker, |operand| if operand == output { port } else { operand });
        }
        if module.comp(region.comp).root.expand() == Some(output) {
            module.comp_mut(region.comp).root = Some(port).into();
        }
    }
    Some(())
}

/// What takes a value of a region outside of it: of the program as it was, or of other regions' ways.
fn takers_outside(module: &Module, comp: CompId, value: InstId, before: usize, own: &[InstId]) -> Vec<InstId> {
    let there = &module.comp(comp).insts[..before];
    let takes = |inst: &InstId| module.inst(*inst).operands.contains(&value) && !own.contains(inst);
    there.iter().copied().filter(takes).collect()
}
