//! Whether two modules take the same arrays and give the same ones.

use crate::console::Console;
use hlo_eval::{entry_leaves, result_leaves};
use hlo_ir::op::Opcode;
use hlo_ir::sharding::LeafSharding;
use hlo_ir::{ArrayShape, Module, Shape};

/// Returns whether `chain`, which runs one module after the other, takes and gives arrays of the shapes of those of
/// `a`.
pub(crate) fn is_same_interface(a: &Module, chain: &[&Module]) -> bool {
    difference(a, chain).is_none()
}

/// The first difference between the signatures of `a` and of `chain`, which runs one module after the other; `None` if they agree.
pub(super) fn difference(a: &Module, chain: &[&Module]) -> Option<String> {
    let (first, last) = (chain.first()?, chain.last()?);
    if let Some(other) = chain.iter().find(|other| other.n_devices() != a.n_devices()) {
        let (expected, found) = (a.n_devices(), other.n_devices());
        return Some(format!("expected {expected} devices, found {found}; --num-partitions says how many both run on"));
    }
    let params = |module: &Module| entry_leaves(module).into_iter().map(|leaf| leaf.shape).collect::<Vec<_>>();
    in_leaves("input", &params(a), &params(first))
        .or_else(|| in_leaves("output", &result_leaves(a), &result_leaves(last)))
        .or_else(|| {
            let mut pairs = chain.windows(2);
            pairs.find_map(|pair| in_leaves("array between modules", &result_leaves(pair[0]), &params(pair[1])))
        })
}

fn in_leaves(what: &str, a: &[ArrayShape], b: &[ArrayShape]) -> Option<String> {
    let same = |(a, b): &(&ArrayShape, &ArrayShape)| a.dtype == b.dtype && a.dims == b.dims;
    if let Some(i) = a.iter().zip(b).position(|pair| !same(&pair)) {
        return Some(format!("{what} {i}: expected {}, found {}", shown(&a[i]), shown(&b[i])));
    }
    (a.len() != b.len()).then(|| format!("expected {} {what} leaves, found {}", a.len(), b.len()))
}

/// A type and its dims.
pub(super) fn shown(shape: &ArrayShape) -> String {
    let dims: Vec<String> = shape.dims.iter().map(i64::to_string).collect();
    format!("{}[{}]", shape.dtype, dims.join(","))
}

/// The first input or output of which `a` and `chain`, which runs one module after the other, say that devices hold other tiles: equal
/// arrays on each device are then other whole values for who calls them. `None` if there is none, or one of the two says nothing.
fn other_tiles(a: &Module, chain: &[&Module]) -> Option<String> {
    let (first, last) = (chain.first()?, chain.last()?);
    let n_devices = a.n_devices();
    if n_devices == 1 || first.n_devices() != n_devices {
        return None;
    }
    let inputs = |module: &Module| entry_leaves(module).into_iter().map(|leaf| leaf.sharding).collect::<Vec<_>>();
    let outputs = |module: &Module| {
        let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
        let sharding = |leaf: usize| module.sharding(root?)?.leaf(leaf).cloned();
        (0..result_leaves(module).len()).map(sharding).collect::<Vec<_>>()
    };
    let tiles =
        |said: &LeafSharding, rank: usize| said.tile_grid(rank, n_devices).map(|grid| (grid.tiles, grid.of_device));
    let differ = |what: &str, shapes: Vec<ArrayShape>, a: Vec<Option<LeafSharding>>, b: Vec<Option<LeafSharding>>| {
        let mut pairs = shapes.iter().zip(a.iter().zip(&b)).enumerate();
        pairs.find_map(|(leaf, (shape, (a, b)))| {
            let (a, b) = (a.as_ref()?, b.as_ref()?);
            let unlike = tiles(a, shape.rank())? != tiles(b, shape.rank())?;
            unlike.then(|| format!("{what} {leaf}: sharding={a}, then sharding={b}"))
        })
    };
    let shapes = entry_leaves(a).into_iter().map(|leaf| leaf.shape).collect();
    differ("input", shapes, inputs(a), inputs(first))
        .or_else(|| differ("output", result_leaves(a), outputs(a), outputs(last)))
}

/// Says what [`other_tiles`] finds.
pub(crate) fn note_other_tiles(a: &Module, chain: &[&Module], console: &mut Console<'_>) {
    if let Some(first) = other_tiles(a, chain) {
        console.say(&format!(
            "note: the modules say that devices hold other tiles of {first}; only each device's arrays are compared\n"
        ));
    }
}

/// What computes each output leaf: the instruction, and its `op_name` where there is one.
pub(crate) fn output_names(module: &Module) -> Vec<String> {
    let mut names = Vec::new();
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
    let Some(root) = root else { return names };
    let parts = match module.inst(root).opcode == Opcode::Tuple {
        true => module.inst(root).operands.to_vec(),
        false => vec![root],
    };
    for part in parts {
        let marks = module.inst(part).marks.as_deref();
        let name = match marks.and_then(|marks| marks.op_name()) {
            Some(op_name) => format!("%{}, {op_name}", module.inst_name(part)),
            None => format!("%{}", module.inst_name(part)),
        };
        module.shape(part).for_each_leaf(&mut |_, shape| {
            if let Shape::Array(_) = shape {
                names.push(name.clone());
            }
        });
    }
    names
}
