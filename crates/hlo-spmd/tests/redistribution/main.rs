//! Redistribution plans: every plan runs in the evaluator on tiles of an iota, and gives the target's tiles.

mod cases;
mod large;
mod pairs;
mod run;
mod uneven;

use pairs::{Draw, MESHES, drawn_pair};
use run::{plan, ran};

/// Random pairs of a mesh: the sums of bounds, of the cheapest steps, and of the plans.
struct Sums {
    bound: u64,
    steps: u64,
    plans: u64,
    mindspore: u64,
    shardy: u64,
}

fn sums_of(mesh: &[i64], dims: &[i64], n_pairs: usize) -> Sums {
    let mut draw = Draw(11 + mesh.len() as u64 * 100 + mesh[0] as u64);
    let mut sums = Sums { bound: 0, steps: 0, plans: 0, mindspore: 0, shardy: 0 };
    let mut n = 0;
    while n < n_pairs {
        let (from, to) = drawn_pair(&mut draw, mesh, dims.len());
        let planned = plan(dims, &from, &to).unwrap_or_else(|error| panic!("{from} -> {to}: {error}"));
        if planned.bound_bytes == 0 {
            continue;
        }
        n += 1;
        let steps = planned.without_pieces.unwrap_or_else(|| panic!("{from} -> {to}: expected steps"));
        assert!(planned.price.bytes >= planned.bound_bytes && steps.bytes >= planned.bound_bytes, "{from} -> {to}");
        let n_elems = |tile: &[i64]| tile.iter().product::<i64>();
        let most = n_elems(&planned.source_tile).max(n_elems(&planned.target_tile));
        assert!(planned.steps.iter().all(|step| n_elems(&step.tile) <= most), "{from} -> {to}: {:?}", planned.steps);
        sums.bound += planned.bound_bytes;
        sums.steps += steps.bytes;
        sums.plans += planned.price.bytes;
        sums.mindspore += planned.greedy.mindspore.map_or(0, |price| price.bytes);
        sums.shardy += planned.greedy.shardy.map_or(0, |price| price.bytes);
        ran(dims, &from, &to, &planned);
    }
    sums
}

#[test]
fn random_pairs_come_near_the_bound_with_steps_and_to_it_with_pieces() {
    for (mesh, dims) in MESHES {
        let sums = sums_of(mesh, dims, 250);
        let ratio = sums.steps as f64 / sums.bound as f64;
        println!(
            "{mesh:?}: bound {} steps {} ({ratio:.4}) plans {} mindspore {} shardy {}",
            sums.bound, sums.steps, sums.plans, sums.mindspore, sums.shardy
        );
        assert!(ratio <= 1.08, "{mesh:?}: {ratio}");
        assert_eq!(sums.plans, sums.bound, "{mesh:?}");
    }
}
