//! Layouts in which products take their arrays as they lie.
//!
//! ```text
//! %h = bf16[8,4,128,1024]{3,2,1,0} multiply(%gate, %up)        of 8 x 128 tokens, for each of 4 experts
//! %dw = bf16[4,1024,256] dot(%h, %dy), lhs_batch_dims={1}, lhs_contracting_dims={0,2}, …
//! ```
//! Images and positions are summed over, and no one stride goes over both, so `%h` would be copied to the order `{3,2,0,1}` for the product. In
//! that order the products and the arithmetic that make `%h` can write it as well.

use super::classes::Classes;
use super::{is_free, ties, transposed_at};
use crate::lower::dot::{find_gemm, relaid_choices};
use crate::plan::has_library_types;
use cranelift_entity::SecondaryMap;
use hashbrown::{HashMap, HashSet};
use hlo_ir::attrs::Attrs;
use hlo_ir::op::FactorRule;
use hlo_ir::{ArrayShape, CompId, Dims, InstId, Layout, Module};

/// What memory moves in the time of a launch, about: a copy takes one.
const LAUNCH_BYTES: u64 = 4 << 20;
/// Instructions that are looked at for all classes of a computation, at most.
const MOST_LOOKED_AT: usize = 1 << 18;

/// Shapes of a computation's values: new ones, and those that the module has.
pub(super) type NewShapes = HashMap<InstId, ArrayShape>;

/// Bytes that the copies of a dot's arrays move, each of them read and written, and what else moves in the time of their launches.
pub(super) fn copied_at(module: &Module, inst: InstId, shape_of: &dyn Fn(InstId) -> Option<ArrayShape>) -> u64 {
    let Some((attrs, arrays)) = product(module, inst, shape_of) else { return 0 };
    let [lhs, rhs, out] = &arrays;
    if find_gemm(attrs, lhs, rhs, out).is_some() {
        return 0;
    }
    let copied = relaid_choices(attrs, &arrays).into_iter().map(|relaid| {
        let n = relaid.arrays.iter().flatten().count() as u64;
        relaid.bytes().saturating_mul(2).saturating_add(n * LAUNCH_BYTES)
    });
    copied.min().unwrap_or(0)
}

/// A dot of types that the library multiplies: its attributes and arrays.
fn product<'m>(
    module: &'m Module,
    inst: InstId,
    shape_of: &dyn Fn(InstId) -> Option<ArrayShape>,
) -> Option<(&'m hlo_ir::attrs::DotAttrs, [ArrayShape; 3])> {
    let node = module.inst(inst);
    let (Attrs::Dot(attrs), &[lhs, rhs]) = (&node.attrs, node.operands.as_slice()) else { return None };
    let arrays = [shape_of(lhs)?, shape_of(rhs)?, shape_of(inst)?];
    has_library_types(arrays[0].dtype, arrays[1].dtype, arrays[2].dtype).then_some((attrs, arrays))
}

/// Lets classes lie as products want them, where fewer bytes are copied and transposed then. Returns how many were changed.
pub(super) fn relay(module: &Module, comp: CompId, classes: &Classes, new: &mut NewShapes) -> u64 {
    let insts = &module.comp(comp).insts;
    let copied = |inst: InstId, new: &NewShapes| copied_at(module, inst, &|inst| shape_in(module, &[new], inst));
    let misfits: Vec<InstId> = insts.iter().copied().filter(|&inst| copied(inst, new) > 0).collect();
    if misfits.is_empty() {
        return 0;
    }
    let relaying = Relaying::new(module, comp, classes);
    let (mut n_changed, mut n_looked_at) = (0, 0);
    // What gained nothing gains nothing again before something else has changed: many products read one value.
    let mut tried: HashSet<Vec<(InstId, Dims)>> = HashSet::new();
    for inst in misfits {
        let Some((attrs, arrays)) = product(module, inst, &|inst| shape_in(module, &[new], inst)) else { continue };
        let &[lhs, rhs] = module.inst(inst).operands.as_slice() else { continue };
        let mut best: Option<(u64, NewShapes)> = None;
        for relaid in relaid_choices(attrs, &arrays) {
            let wanted =
                [lhs, rhs, inst].into_iter().zip(relaid.arrays).filter_map(|(inst, shape)| Some((inst, shape?)));
            let Some(trial) = relaying.trial(wanted) else { continue };
            if n_looked_at > MOST_LOOKED_AT || !tried.insert(relaying.orders_of(&trial)) {
                continue;
            }
            let affected = relaying.affected(&trial);
            n_looked_at += affected.len();
            let cost = |shapes: &[&NewShapes]| -> u64 {
                let shape_of = |inst: InstId| shape_in(module, shapes, inst);
                let of = |&inst: &InstId| transposed_at(module, inst, &shape_of) + copied_at(module, inst, &shape_of);
                affected.iter().map(of).sum()
            };
            let gain = cost(&[new]).saturating_sub(cost(&[&trial, new]));
            if gain > 0 && best.as_ref().is_none_or(|(most, _)| gain > *most) {
                best = Some((gain, trial));
            }
        }
        if let Some((_, trial)) = best {
            new.extend(trial);
            n_changed += 1;
            tried.clear();
        }
    }
    n_changed
}

fn shape_in(module: &Module, shapes: &[&NewShapes], inst: InstId) -> Option<ArrayShape> {
    let new = shapes.iter().find_map(|shapes| shapes.get(&inst));
    new.or_else(|| module.shape(inst).as_array()).cloned()
}

/// The classes of a computation, and who reads their members.
struct Relaying<'a> {
    module: &'a Module,
    classes: &'a Classes,
    /// By leader; none where something wants the layout as it is.
    members: HashMap<InstId, Vec<InstId>>,
    users: SecondaryMap<InstId, Vec<InstId>>,
}

impl<'a> Relaying<'a> {
    fn new(module: &'a Module, comp: CompId, classes: &'a Classes) -> Relaying<'a> {
        let insts = &module.comp(comp).insts;
        let mut users: SecondaryMap<InstId, Vec<InstId>> = SecondaryMap::new();
        for &inst in insts {
            module.inst(inst).operands.iter().for_each(|&operand| users[operand].push(inst));
        }
        let mut members: HashMap<InstId, Vec<InstId>> = HashMap::new();
        for &inst in insts.iter().filter(|&&inst| is_free(module, inst)) {
            members.entry(classes.leader(inst)).or_default().push(inst);
        }
        let root = module.comp(comp).root.expand();
        let may_change = |inst: &InstId| {
            Some(*inst) != root && users[*inst].iter().all(|&user| takes_any_layout(module, user, *inst))
        };
        members.retain(|_, members| members.iter().all(may_change));
        Relaying { module, classes, members, users }
    }

    /// New shapes of the classes of values that are to have these shapes; `None` where one may not change, or two want what cannot be.
    fn trial(&self, wanted: impl Iterator<Item = (InstId, ArrayShape)>) -> Option<NewShapes> {
        let wanted: Vec<(InstId, ArrayShape)> = wanted.collect();
        let mut trial = NewShapes::new();
        for (inst, shape) in wanted.iter().filter(|(inst, _)| is_free(self.module, *inst)) {
            for &member in self.members.get(&self.classes.leader(*inst))? {
                let order = self.classes.order_beside(member, *inst, shape.minor_to_major());
                let found = self.module.shape(member).as_array()?;
                trial.insert(member, ArrayShape { layout: Some(Box::new(Layout::new(order))), ..found.clone() });
            }
        }
        let is_met = |(inst, shape): &(InstId, ArrayShape)| trial.get(inst).is_some_and(|new| new.is_same_order(shape));
        (!trial.is_empty() && wanted.iter().all(is_met)).then_some(trial)
    }

    /// The new orders of the leaders of changed classes.
    fn orders_of(&self, trial: &NewShapes) -> Vec<(InstId, Dims)> {
        let leaders = trial.keys().copied().filter(|&inst| self.classes.leader(inst) == inst);
        let mut orders: Vec<(InstId, Dims)> = leaders.map(|leader| (leader, trial[&leader].minor_to_major())).collect();
        orders.sort_by_key(|&(leader, _)| leader);
        orders
    }

    /// The members of changed classes and what reads them, in the order of ids.
    fn affected(&self, trial: &NewShapes) -> Vec<InstId> {
        let mut affected: Vec<InstId> = trial.keys().copied().collect();
        affected.extend(trial.keys().flat_map(|&member| self.users[member].iter().copied()));
        affected.sort();
        affected.dedup();
        affected
    }
}

/// Whether what an instruction wants of an operand's layout is counted: a product, what is tied to it, or a reshape.
fn takes_any_layout(module: &Module, user: InstId, operand: InstId) -> bool {
    let node = module.inst(user);
    let factors = node.opcode.row().factors;
    let slots = || node.operands.iter().enumerate().filter(|&(_, &other)| other == operand).map(|(slot, _)| slot);
    let is_tied = || {
        let ties = ties(module, user);
        slots().all(|slot| ties.iter().any(|&(tied, _)| tied == slot))
    };
    factors == FactorRule::Dot || factors == FactorRule::Reshape || is_tied()
}
