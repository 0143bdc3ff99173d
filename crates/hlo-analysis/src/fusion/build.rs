//! Write groups as `fusion` instructions.

use super::edges::is_reduce;
use super::members::Group;
use hashbrown::{HashMap, HashSet};
use hlo_ir::attrs::{Attrs, FusionAttrs, ParameterAttrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape, ShapeId};

/// Replaces the members of each group by a fusion. Returns these, in the order of the groups; the leaves of each are the group's outputs.
/// What waits for a member by a control dependency waits for its fusion.
///
/// # Errors
/// An instruction on a cycle, which the groups must not make.
pub fn build_fusions(module: &mut Module, comp: CompId, groups: &[Group]) -> Result<Vec<InstId>, InstId> {
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let before = module.comp(comp).insts.clone();
    // Where the last member of a group stood, the fusion and its results stand.
    let mut at: HashMap<InstId, Vec<InstId>> = HashMap::new();
    let mut fusion_of: HashMap<InstId, InstId> = HashMap::new();
    let mut renamed: HashMap<InstId, InstId> = HashMap::new();
    let (mut made_computations, mut fusions) = (Vec::new(), Vec::new());
    for group in groups {
        let (fused, made) = build_one(module, comp, group, &mut renamed);
        made_computations.push(fused);
        if let (Some(&fusion), Some(&last)) = (made.first(), group.members.last()) {
            fusions.push(fusion);
            at.insert(last, made);
            fusion_of.extend(group.members.iter().map(|&member| (member, fusion)));
        }
    }
    let mut order = Vec::new();
    for inst in before {
        order.extend(at.remove(&inst).into_iter().flatten());
        if !fusion_of.contains_key(&inst) {
            order.push(inst);
        }
    }
    for &inst in &order {
        for operand in &mut module.inst_mut(inst).operands {
            if let Some(&new) = renamed.get(operand) {
                *operand = new;
            }
        }
        if !module.inst(inst).control_predecessors().is_empty() {
            let waits = &mut module.marks_mut(inst).control_predecessors;
            let mut seen = HashSet::new();
            waits.iter_mut().for_each(|member| *member = fusion_of.get(member).copied().unwrap_or(*member));
            waits.retain(|&predecessor| seen.insert(predecessor));
        }
    }
    if let Some(root) = module.comp(comp).root.expand()
        && let Some(&new) = renamed.get(&root)
    {
        module.comp_mut(comp).root = Some(new).into();
    }
    module.comp_mut(comp).insts = order;
    // What was only repeated inside fusions is dead now.
    module.remove_dead(comp);
    // They are the last of all so far.
    let mut computations = module.computations().to_vec();
    computations.truncate(computations.len() - made_computations.len());
    let place = computations.iter().position(|&other| other == comp).unwrap_or(0);
    computations.splice(place..place, made_computations);
    module.set_computation_order(computations);
    module.restore_order(comp)?;
    Ok(fusions)
}

/// Makes the computation of a group and the fusion with its results, the fusion first; these are the last instructions of `comp`.
fn build_one(
    module: &mut Module,
    comp: CompId,
    group: &Group,
    renamed: &mut HashMap<InstId, InstId>,
) -> (CompId, Vec<InstId>) {
    let hint = group.outputs.first().map_or("fused".to_string(), |&o| module.inst_name(o).to_string());
    let name = module.names.fresh(&format!("fused_{hint}"));
    let fused = module.add_computation(name);
    let mut inside: HashMap<InstId, InstId> = HashMap::new();
    for (number, &input) in group.inputs.iter().enumerate() {
        let shape = module.shape(input).clone();
        let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
        let param = Builder::new(module, fused).add("p", Opcode::Parameter, shape, [], attrs);
        inside.insert(input, param);
    }
    // Values that are computed again for several members are computed once.
    let mut known: HashMap<(Opcode, ShapeId, Vec<InstId>), Vec<InstId>> = HashMap::new();
    for &member in &group.all {
        let mut instruction = module.inst(member).clone();
        let base = module.inst_name(member).to_string();
        instruction.operands.iter_mut().for_each(|o| *o = inside.get(o).copied().unwrap_or(*o));
        let key = (instruction.opcode, instruction.shape, instruction.operands.to_vec());
        let alike = known.entry(key).or_default();
        let is_pure = instruction.opcode.is_pure()
            && (instruction.opcode.is_elementwise() || instruction.opcode == Opcode::Broadcast);
        if let Some(&same) = alike.iter().find(|&&other| is_pure && module.inst(other).attrs == instruction.attrs) {
            inside.insert(member, same);
            continue;
        }
        instruction.name = module.names.fresh(&base);
        instruction.parent = fused;
        let inst = module.add_instruction(instruction);
        alike.push(inst);
        // Shardings say where whole values lie, and these have no place.
        module.forget_sharding(inst);
        inside.insert(member, inst);
    }
    let results: Vec<InstId> = group.outputs.iter().filter_map(|o| inside.get(o).copied()).collect();
    let shapes: Vec<Shape> = results.iter().map(|&r| module.shape(r).clone()).collect();
    let has_reduce = group.members.iter().any(|&m| is_reduce(module, m));
    let kind = if has_reduce { "kInput" } else { "kLoop" };
    let attrs = FusionAttrs { kind: kind.into(), calls: Some(fused), ..FusionAttrs::default() };
    let inputs: Vec<InstId> = group.inputs.clone();
    let mut made = Vec::new();
    if let ([result], [shape], [output]) = (results.as_slice(), shapes.as_slice(), group.outputs.as_slice()) {
        module.comp_mut(fused).root = Some(*result).into();
        let fusion =
            Builder::new(module, comp).add(&format!("fusion_{hint}"), Opcode::Fusion, shape.clone(), inputs, attrs);
        renamed.insert(*output, fusion);
        made.push(fusion);
        return (fused, made);
    }
    let tuple = Shape::Tuple(shapes.clone());
    let root = Builder::new(module, fused).add("results", Opcode::Tuple, tuple.clone(), results, Attrs::Plain);
    module.comp_mut(fused).root = Some(root).into();
    let fusion = Builder::new(module, comp).add(&format!("fusion_{hint}"), Opcode::Fusion, tuple, inputs, attrs);
    made.push(fusion);
    for (k, (&output, shape)) in group.outputs.iter().zip(shapes).enumerate() {
        let base = module.inst_name(output).to_string();
        let index = TupleIndexAttrs { index: k as i64 };
        let leaf = Builder::new(module, comp).add(&base, Opcode::GetTupleElement, shape, [fusion], index);
        renamed.insert(output, leaf);
        made.push(leaf);
    }
    (fused, made)
}
