//! What an instruction is, names aside, as numbers that can be compared between modules.

use cranelift_entity::SecondaryMap;
use hlo_ir::attrs::{Attrs, FieldMut, Marks};
use hlo_ir::print::canonical;
use hlo_ir::{CompId, InstId, Module, Opcode, ShapeId, TextForm};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Numbers of a module's instructions and computations.
pub(super) struct Keys {
    /// What an instruction does: opcode, shape, attributes and marks; not its operands, nor what it calls.
    pub own: SecondaryMap<InstId, u64>,
    /// The value of an instruction: `own`, what it calls, and the same of all operands and of what must run before it.
    pub value: SecondaryMap<InstId, u64>,
    /// What a computation is: all its instructions.
    pub comp: SecondaryMap<CompId, u64>,
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Keys {
    /// Numbers everything, in XLA's normal forms of attributes and annotations; linear in the module.
    pub(super) fn of(module: &Module) -> Keys {
        let module = &canonical(module, TextForm::Long);
        let mut keys = Keys { own: SecondaryMap::new(), value: SecondaryMap::new(), comp: SecondaryMap::new() };
        let mut shapes: SecondaryMap<ShapeId, u64> = SecondaryMap::new();
        let n_sharing = sharing(module);
        for comp in module.callees_first(module.computations()) {
            let mut all: Vec<u64> = Vec::with_capacity(module.comp(comp).insts.len());
            for &inst in &module.comp(comp).insts {
                let instruction = module.inst(inst);
                let called: Vec<u64> = module.called(inst).iter().map(|&callee| keys.comp[callee]).collect();
                let mut shape = |id: ShapeId| {
                    if shapes[id] == 0 {
                        let mut filled = module.shapes.get(id).clone();
                        filled.fill_layouts();
                        shapes[id] = hash(filled) | 1;
                    }
                    shapes[id]
                };
                let attrs = attributes(&instruction.attrs, &n_sharing, &mut shape);
                let marks = marks(instruction.marks.as_deref().unwrap_or(&Marks::default()));
                keys.own[inst] = hash((instruction.opcode, shape(instruction.shape), attrs, marks));
                let operands: Vec<u64> = instruction.operands.iter().map(|&operand| keys.value[operand]).collect();
                let before = instruction.marks.as_deref().map_or(&[][..], |marks| &marks.control_predecessors);
                let mut before: Vec<u64> = before.iter().map(|&inst| keys.value[inst]).collect();
                before.sort();
                keys.value[inst] = hash((keys.own[inst], called, operands, before));
                all.push(keys.value[inst]);
            }
            let root = module.comp(comp).root.expand().map(|root| keys.value[root]);
            all.sort();
            keys.comp[comp] = hash((root, all, &module.comp(comp).execution_thread));
        }
        keys
    }
}

/// For each channel, how many instructions of each opcode use it.
type Sharing = HashMap<i64, BTreeMap<Opcode, i64>>;

/// Counts the instructions at the ends of each channel. The number is only a name, but which ends meet is not.
fn sharing(module: &Module) -> Sharing {
    let mut sharing = Sharing::new();
    for inst in module.computations().iter().flat_map(|&comp| module.comp(comp).insts.iter().copied()) {
        // Collectives do not meet by their numbers, and some programs give one number to several.
        let is_apart = matches!(module.inst(inst).attrs, Attrs::Plain | Attrs::Constant(_));
        if is_apart || module.inst(inst).opcode.row().collective.is_some() {
            continue;
        }
        let mut attrs = module.inst(inst).attrs.clone();
        if let Some((_, FieldMut::OptInt(Some(channel)))) = attrs.field_mut("channel_id") {
            *sharing.entry(*channel).or_default().entry(module.inst(inst).opcode).or_default() += 1;
        }
    }
    sharing
}

/// The attributes without what is only a name: computations, numbers of channels and of shapes.
fn attributes(attrs: &Attrs, sharing: &Sharing, shape: &mut dyn FnMut(ShapeId) -> u64) -> u64 {
    if let Attrs::Plain | Attrs::Constant(_) = attrs {
        return hash(attrs);
    }
    let mut attrs = attrs.clone();
    let mut shapes: Vec<u64> = Vec::new();
    attrs.for_each_field_mut(&mut |field| {
        if let FieldMut::Shape(Some(id)) = field {
            shapes.push(shape(*id));
            *id = ShapeId::from_u32(0);
        } else if let FieldMut::Shapes(Some(ids)) = field {
            shapes.extend(ids.iter().map(|&id| shape(id)));
            ids.clear();
        }
    });
    attrs.for_each_comp_mut(&mut |comp| *comp = CompId::from_u32(0));
    let mut others: Vec<(&Opcode, &i64)> = Vec::new();
    if let Some((_, FieldMut::OptInt(channel))) = attrs.field_mut("channel_id") {
        others.extend(channel.and_then(|channel| sharing.get(&channel)).into_iter().flatten());
        *channel = channel.map(|_| 0);
    }
    hash((attrs, shapes, others))
}

fn marks(marks: &Marks) -> u64 {
    let Marks { sharding, frontend_attributes, backend_config, result_accuracy, .. } = marks;
    hash((sharding, frontend_attributes, backend_config, result_accuracy))
}
