//! Small changes of a module that mostly change what it computes: a list of kinds, each a function of one instruction.
//!
//! A kind applies where its function says so; that what comes of it is a valid module is for the verifier to say.

mod attributes;
mod edges;
mod numbers;
mod partition;
mod wiring;

use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{InstId, Module, Opcode};
use hlo_tests::random_module::Rng;

/// Changes an instruction. Whether it did.
pub(crate) type Edit = fn(&mut Module, InstId, &mut Rng) -> bool;

/// All kinds.
pub(crate) const EDITS: &[(&str, Edit)] = &[
    ("groups: members exchanged", attributes::exchange_members),
    ("groups: in halves", attributes::halve_groups),
    ("groups: two made one", attributes::merge_groups),
    ("groups: another order within", attributes::reorder_group),
    ("permute: pairs", attributes::turn_pairs),
    ("collective: dim", attributes::other_collective_dim),
    ("slice: start", attributes::move_slice),
    ("pad: low and high", attributes::move_padding),
    ("compare: direction", attributes::other_comparison),
    ("iota: dim", attributes::other_iota_dim),
    ("transpose, broadcast, reverse: dims", attributes::exchange_dims),
    ("reduce: dims", attributes::other_reduced_dim),
    ("dot: contracted dim", attributes::other_contracted_dim),
    ("tuple element: another", attributes::other_element),
    ("gather, scatter: dims", attributes::other_gathered_dim),
    ("constant: scalar", numbers::other_scalar),
    ("constant: two of a table exchanged", numbers::exchange_in_table),
    ("constant: one of a table", numbers::other_in_table),
    ("trip count", numbers::other_trip_count),
    ("op: a sibling", numbers::sibling),
    ("reducer", numbers::other_reducer),
    ("through a narrower type", numbers::narrow),
    ("negated condition", numbers::negate),
    ("device id: zero", numbers::no_device_id),
    ("one added", numbers::add_one),
    ("operands exchanged", wiring::exchange_operands),
    ("summands of a row exchanged", wiring::exchange_parts),
    ("tuple: elements exchanged", wiring::exchange_elements),
    ("an operand left out", wiring::leave_out),
    ("clamp: bounds", wiring::exchange_bounds),
    ("operand: another value", wiring::other_operand),
    ("operand: another parameter", wiring::other_parameter),
    ("select: branches", wiring::exchange_branches),
    ("conditional: branches", wiring::exchange_computations),
    ("transposed", wiring::transpose),
    ("rotated", wiring::rotate),
    ("a sum left out", wiring::leave_out_collective),
    ("an update left out", wiring::leave_out_update),
    ("constant: at an end of its type", edges::edge_scalar),
    ("constant: a table that begins so", edges::unlike_splat),
    ("the first element everywhere", edges::first_everywhere),
    ("a part twice", edges::repeat_part),
    ("index: shifted, out of bounds", edges::shift_index),
    ("loop: another start", edges::other_start),
    ("collective: channel, ids", edges::other_mode),
    ("bitcast to another layout", edges::other_layout),
    ("halo: none", partition::drop_halo),
    ("bound of a mask: off by one", partition::shift_bound),
    ("groups: along another axis", partition::other_axis),
    ("reduce-scatter: along another dim", partition::scatter_elsewhere),
    ("reduce: initial value twice", partition::init_twice),
    ("select: one branch always", partition::always),
];

/// A change that was made.
pub(crate) struct Made {
    pub(crate) module: Module,
    pub(crate) kind: &'static str,
    /// The instruction that was changed.
    pub(crate) place: String,
}

/// A module with one change of a kind, at a random place; `None` where it applies nowhere or makes no valid module.
pub(crate) fn edited(module: &Module, kind: usize, rng: &mut Rng) -> Option<Made> {
    let (name, edit) = EDITS.get(kind)?;
    let places = places(module);
    for _ in 0..ATTEMPTS {
        let mut changed = module.clone();
        // Where a kind applies is rare: try some places for each attempt.
        let mut place = None;
        for _ in 0..PLACES.min(places.len()) {
            let inst = *rng.pick(&places);
            if edit(&mut changed, inst, rng) {
                place = Some(inst);
                break;
            }
            // What does not apply may have changed something on the way.
            changed.clone_from(module);
        }
        let inst = place?;
        let comp = changed.inst(inst).parent;
        let is_valid = changed.restore_order(comp).is_ok() && hlo_ir::verify::verify(&changed).is_ok();
        if is_valid && text(&changed) != text(module) {
            let place = format!("%{} ({})", module.inst_name(inst), module.inst(inst).opcode.name());
            return Some(Made { module: changed, kind: name, place });
        }
    }
    None
}

const ATTEMPTS: usize = 4;
const PLACES: usize = 200;

fn text(module: &Module) -> String {
    print_module(module, &PrintOptions::default())
}

/// The instructions that something depends on, of all computations that the entry reaches.
fn places(module: &Module) -> Vec<InstId> {
    let Some(entry) = module.entry() else { return Vec::new() };
    let mut places = Vec::new();
    for comp in module.callees_first(&[entry]) {
        let live = module.live(comp);
        places.extend(module.comp(comp).insts.iter().copied().filter(|&inst| live.contains(inst)));
    }
    places
}

/// Whether two values have one type and the same dims.
fn is_alike(module: &Module, a: InstId, b: InstId) -> bool {
    match (module.shape(a).as_array(), module.shape(b).as_array()) {
        (Some(a), Some(b)) => a.dtype == b.dtype && a.dims == b.dims,
        (_, _) => module.inst(a).shape == module.inst(b).shape,
    }
}

/// Puts another value in the place of a value, but for the instructions made since the computation had `n_before`.
fn replace(module: &mut Module, old: InstId, new: InstId, n_before: usize) {
    let comp = module.inst(old).parent;
    let made: Vec<InstId> = module.comp(comp).insts.get(n_before..).unwrap_or_default().to_vec();
    module.replace_all_uses(old, new);
    for inst in made {
        for operand in &mut module.inst_mut(inst).operands {
            if *operand == new {
                *operand = old;
            }
        }
    }
}

fn opcode(module: &Module, inst: InstId) -> Opcode {
    module.inst(inst).opcode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_valid_and_change_something() {
        let mut made = vec![0; EDITS.len()];
        for seed in 0..60 {
            let source = hlo_tests::training_step::training_step(seed, 8).text;
            let module = hlo_text::parse_module(&source).unwrap().module;
            for (kind, n_made) in made.iter_mut().enumerate() {
                if let Some(edit) = edited(&module, kind, &mut Rng::new(seed)) {
                    assert_ne!(text(&module), text(&edit.module), "{}", edit.kind);
                    *n_made += 1;
                }
            }
        }
        assert!(made.iter().filter(|&&n| n > 0).count() >= 20, "{made:?}");
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        let mut names: Vec<&str> = EDITS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EDITS.len());
    }
}
