//! Plans of texts, and plans in the evaluator.

use hlo_cluster::Cluster;
use hlo_eval::{EvalOptions, Inputs};
use hlo_ir::axes::AxisSharding;
use hlo_ir::sharding::{LeafSharding, Sharding};
use hlo_ir::tile_grid::TileGrid;
use hlo_ir::{ArrayShape, DType, Literal, Module};
use hlo_spmd::redistribution::{Redistribution, RedistributionError, RedistributionRequest, plan_redistribution};
use std::sync::Arc;

pub(crate) fn leaf(text: &str) -> LeafSharding {
    match hlo_text::parse_sharding(text) {
        Ok(Sharding::Single(leaf)) => leaf,
        Ok(Sharding::Tuple(_)) | Err(_) => panic!("{text}: expected the sharding of one array"),
    }
}

fn n_devices(from: &str, to: &str) -> usize {
    [from, to].iter().find_map(|text| leaf(text).n_listed_devices()).unwrap_or(8)
}

pub(crate) fn axes(text: &str, rank: usize, n_devices: usize) -> AxisSharding {
    leaf(text).axes(rank, n_devices).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn plan(dims: &[i64], from: &str, to: &str) -> Result<Redistribution, RedistributionError> {
    plan_on(dims, from, to, None)
}

pub(crate) fn plan_on(
    dims: &[i64],
    from: &str,
    to: &str,
    cluster: Option<&Cluster>,
) -> Result<Redistribution, RedistributionError> {
    planned(dims, (from, to), cluster, true)
}

/// A plan without pieces of tiles.
pub(crate) fn plan_by_steps(dims: &[i64], from: &str, to: &str) -> Result<Redistribution, RedistributionError> {
    planned(dims, (from, to), None, false)
}

fn planned(
    dims: &[i64],
    (from, to): (&str, &str),
    cluster: Option<&Cluster>,
    allows_pieces: bool,
) -> Result<Redistribution, RedistributionError> {
    let shape = ArrayShape::new(DType::F32, dims.iter().copied());
    let n = n_devices(from, to);
    let (source, target) = (axes(from, dims.len(), n), axes(to, dims.len(), n));
    plan_redistribution(&RedistributionRequest {
        shape: &shape,
        source: &source,
        target: &target,
        monoid: None,
        cluster,
        allows_pieces,
    })
}

/// The elements of a device's tile that belong to the array, and whether each of the tile does; row-major.
fn tile(grid: &TileGrid, dims: &[i64], device: usize) -> (Vec<i64>, Vec<Option<f32>>) {
    let (starts, _) = grid.tile_of(dims, device);
    let sizes = grid.tile_dims(dims);
    let n: i64 = sizes.iter().product();
    let element = |mut flat: i64| {
        let (mut index, mut stride, mut is_inside) = (0, 1, true);
        for dim in (0..dims.len()).rev() {
            let at = starts[dim] + flat % sizes[dim];
            flat /= sizes[dim];
            is_inside &= at < dims[dim];
            index += at * stride;
            stride *= dims[dim];
        }
        is_inside.then_some(1.0 + index as f32)
    };
    (sizes.to_vec(), (0..n).map(element).collect())
}

/// A module as text.
pub(crate) fn text(module: &Module) -> String {
    hlo_ir::print::print_module(module, &hlo_ir::print::PrintOptions::default())
}

/// The module as text, read again and verified.
pub(crate) fn reread(module: &Module) -> Module {
    let text = text(module);
    let read = hlo_text::parse_module(&text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}")).module;
    if let Err(found) = hlo_ir::verify::verify(&read) {
        panic!("{found:?}\n{text}");
    }
    read
}

/// Runs a plan on tiles of an iota, padding filled with NaN, and compares the target tiles.
pub(crate) fn ran(dims: &[i64], from: &str, to: &str, planned: &Redistribution) {
    let n = n_devices(from, to);
    let grid = |text: &str| leaf(text).tile_grid(dims.len(), n).unwrap_or_else(|| panic!("{text}: expected tiles"));
    let (source, target) = (grid(from), grid(to));
    let module = reread(&planned.to_module("reshard").unwrap_or_else(|error| panic!("{from} -> {to}: {error}")));
    let input = |device: usize| {
        let (sizes, elements) = tile(&source, dims, device);
        let elements = elements.into_iter().map(|element| element.unwrap_or(f32::NAN)).collect();
        Arc::new(Literal::from_elems(&sizes, elements).unwrap_or_else(|_| panic!("{from}: a tile")))
    };
    let inputs = Inputs { leaves: vec![(0..n).map(input).collect()] };
    let outputs = hlo_eval::run(&module, &inputs, &EvalOptions::default())
        .unwrap_or_else(|error| panic!("{from} -> {to}: {error}\n{}", text(&module)));
    for device in 0..n {
        let (sizes, expected) = tile(&target, dims, device);
        let found = &outputs.leaves[0][device];
        assert_eq!(found.dims(), sizes, "{from} -> {to}");
        let elements: &[f32] = found.elems().unwrap_or_else(|| panic!("{from} -> {to}: expected f32"));
        for (k, (found, expected)) in elements.iter().zip(&expected).enumerate() {
            let is_right = expected.is_none_or(|expected| expected == *found);
            assert!(
                is_right,
                "{from} -> {to}, device {device}, element {k}: expected {expected:?}, found {found}\n{}",
                text(&module)
            );
        }
    }
}

/// Runs a plan whose source holds partial sums: on each device the elements of its tile times the number of its place among those
/// whose sum they are, so that all of them make the elements times the sum of these numbers.
pub(crate) fn reduced(dims: &[i64], from: &str, to: &str) {
    let n = n_devices(from, to);
    let planned = plan(dims, from, to).unwrap_or_else(|error| panic!("{dims:?} {from} -> {to}: {error}"));
    assert!(planned.price.bytes >= planned.bound_bytes, "{dims:?} {from} -> {to}: {:?}", planned.price);
    let source = axes(from, dims.len(), n);
    let whole = AxisSharding { unreduced: Vec::new(), ..source.clone() };
    let (held, wanted) = (whole.to_leaf(), leaf(to));
    let grid = |leaf: &LeafSharding| leaf.tile_grid(dims.len(), n).unwrap_or_else(|| panic!("{leaf}: expected tiles"));
    let (held, wanted) = (grid(&held), grid(&wanted));
    let mut factor = vec![0.0f32; n];
    let mut n_partial = 1;
    for (position, &device) in source.mesh.devices.iter().enumerate() {
        let place = source.unreduced.iter().fold(0, |at, &part| at * part.size + source.mesh.place(position, part));
        factor[device as usize] = 1.0 + place as f32;
        n_partial = n_partial.max(place + 1);
    }
    let sum: f32 = (1..=n_partial).map(|k| k as f32).sum();
    let module = reread(&planned.to_module("reshard").unwrap_or_else(|error| panic!("{from} -> {to}: {error}")));
    let input = |device: usize| {
        let (sizes, elements) = tile(&held, dims, device);
        let elements = elements.into_iter().map(|element| element.map_or(f32::NAN, |e| e * factor[device])).collect();
        Arc::new(Literal::from_elems(&sizes, elements).unwrap_or_else(|_| panic!("{from}: a tile")))
    };
    let inputs = Inputs { leaves: vec![(0..n).map(input).collect()] };
    let outputs = hlo_eval::run(&module, &inputs, &EvalOptions::default())
        .unwrap_or_else(|error| panic!("{from} -> {to}: {error}\n{}", text(&module)));
    for device in 0..n {
        let (_, expected) = tile(&wanted, dims, device);
        let elements: &[f32] = outputs.leaves[0][device].elems().unwrap_or_else(|| panic!("{from}: expected f32"));
        for (found, expected) in elements.iter().zip(&expected) {
            let is_right = expected.is_none_or(|expected| expected * sum == *found);
            assert!(
                is_right,
                "{dims:?} {from} -> {to}, device {device}: expected {expected:?} x {sum}, found {found}\n{}",
                text(&module)
            );
        }
    }
}
