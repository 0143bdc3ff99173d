//! Shardings of all three generations of text, read as axes: the tiles of every device stay the same, there and back.

use hlo_ir::axes::{AxesError, AxisSharding, SubAxis, refine_together};
use hlo_ir::sharding::{LeafSharding, Sharding};
use hlo_text::parse_sharding;

fn leaf(text: &str) -> LeafSharding {
    match parse_sharding(text) {
        Ok(Sharding::Single(leaf)) => leaf,
        Ok(Sharding::Tuple(_)) | Err(_) => panic!("{text}: expected the sharding of one array"),
    }
}

fn axes(text: &str, rank: usize, n_devices: usize) -> AxisSharding {
    leaf(text).axes(rank, n_devices).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The tile of each device along each dim, counted from the axes.
fn tiles(sharding: &AxisSharding) -> Vec<Vec<i64>> {
    let mut out = vec![Vec::new(); sharding.mesh.devices.len()];
    for (position, &device) in sharding.mesh.devices.iter().enumerate() {
        let along = |parts: &Vec<SubAxis>| {
            parts.iter().fold(0, |tile, &part| tile * part.size + sharding.mesh.place(position, part))
        };
        out[device as usize] = sharding.dims.iter().map(along).collect();
    }
    out
}

/// The tile of each device as [`hlo_ir::tile_grid::TileGrid`] has it.
fn grid(leaf: &LeafSharding, rank: usize, n_devices: usize) -> Vec<Vec<i64>> {
    let grid = leaf.tile_grid(rank, n_devices).unwrap_or_else(|| panic!("{leaf}: expected tiles"));
    grid.of_device.iter().map(|tile| tile.to_vec()).collect()
}

/// Numbers that look random, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for k in (1..items.len()).rev() {
            items.swap(k, self.below(k + 1));
        }
        items
    }
}

fn list(items: &[i64]) -> String {
    items.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}

/// A sharding of an array of rank 3 in one of the generations of syntax.
fn drawn(draw: &mut Draw) -> (String, usize) {
    const MESHES: [&[i64]; 9] = [&[8], &[2, 4], &[4, 2], &[2, 2, 2], &[3, 2], &[2, 3], &[12], &[2, 2, 3], &[4, 6]];
    let mesh = MESHES[draw.below(MESHES.len())];
    let n_devices = mesh.iter().product::<i64>() as usize;
    let order = draw.shuffled((0..mesh.len()).collect());
    // Each axis falls on a dim or on none.
    let mut dims: [Vec<usize>; 4] = Default::default();
    order.iter().for_each(|&axis| dims[draw.below(4)].push(axis));
    let tiles: Vec<i64> = dims.iter().map(|axes| axes.iter().map(|&axis| mesh[axis]).product()).collect();
    let perm: Vec<i64> = dims.iter().flatten().map(|&axis| axis as i64).collect();
    let perm = if mesh.len() > 1 { format!("T({})", list(&perm)) } else { String::new() };
    let last = if draw.below(2) == 0 { "last_tile_dim_replicate" } else { "last_tile_dims={replicated}" };
    let text = match draw.below(4) {
        0 => format!("{{devices=[{}]<=[{}]{perm} {last}}}", list(&tiles), list(mesh)),
        1 => {
            // As a list, of a transposed iota or of devices in any order.
            let text = format!("{{devices=[{}]<=[{}]{perm} {last}}}", list(&tiles), list(mesh));
            let mut ids: Vec<i64> = match leaf(&text).kind {
                hlo_ir::sharding::ShardingKind::Tiled(tiling) => tiling.device_list().unwrap_or_default(),
                _ => panic!("{text}: expected tiles"),
            };
            if draw.below(2) == 0 {
                ids = draw.shuffled(ids);
            }
            format!("{{devices=[{}]{} {last}}}", list(&tiles), list(&ids))
        }
        kind => {
            let axes = mesh.iter().enumerate().map(|(k, size)| format!("'a{k}'={size}")).collect::<Vec<_>>().join(",");
            let part = |&axis: &usize| match mesh[axis] {
                4 | 8 | 12 if kind == 3 => format!("'a{axis}':(2){}", mesh[axis] / 2),
                _ => format!("'a{axis}'"),
            };
            let dim = |axes: &Vec<usize>| format!("{{{}}}", axes.iter().map(part).collect::<Vec<_>>().join(","));
            let dims = dims[..3].iter().map(dim).collect::<Vec<_>>().join(",");
            let ids = match draw.below(3) {
                0 => format!(", device_ids=({})", list(&draw.shuffled((0..n_devices as i64).collect::<Vec<_>>()))),
                1 => format!(", device_ids=([{}]{perm})", list(mesh)),
                _ => String::new(),
            };
            format!("{{mesh[{axes}]{ids}, [{dims}]}}")
        }
    };
    (text, n_devices)
}

#[test]
fn random_shardings_keep_their_tiles_there_and_back() {
    let mut draw = Draw(1);
    let mut n_in_device_order = 0;
    for _ in 0..3000 {
        let (text, n_devices) = drawn(&mut draw);
        let written = leaf(&text);
        let expected = grid(&written, 3, n_devices);
        let read = axes(&text, 3, n_devices);
        assert_eq!(tiles(&read), expected, "{text}\n{read:?}");
        let counted: Vec<Vec<i64>> = read.tile_of_device().iter().map(|tile| tile.to_vec()).collect();
        assert_eq!(counted, expected, "{text}");
        let back = read.to_leaf().to_string();
        assert!(axes(&back, 3, n_devices).has_tiles_of(&read), "{text}\n{back}");
        assert_eq!(grid(&leaf(&back), 3, n_devices), expected, "{text}\n{back}");
        let names: Vec<String> = ["x", "y", "z"].map(String::from).to_vec();
        let named = hlo_ir::sharding::ShardingKind::Named(Box::new(read.to_named(&names)));
        let named = LeafSharding::new(named).to_string();
        assert_eq!(grid(&leaf(&named), 3, n_devices), expected, "{text}\n{named}");
        n_in_device_order += usize::from(read.mesh.is_iota());
    }
    assert!(n_in_device_order > 1500, "{n_in_device_order}");
}

#[test]
fn pairs_refine_to_prime_axes_with_the_same_tiles() {
    let mut draw = Draw(7);
    let (mut n_refined, mut n_apart) = (0, 0);
    while n_refined < 500 {
        let ((a, n_a), (b, n_b)) = (drawn(&mut draw), drawn(&mut draw));
        if n_a != n_b {
            continue;
        }
        let (a, b) = (axes(&a, 3, n_a), axes(&b, 3, n_a));
        let Some(refined) = refine_together([&a, &b]) else {
            n_apart += 1;
            continue;
        };
        n_refined += 1;
        assert_eq!(a.has_tiles_of(&b), tiles(&a) == tiles(&b) && a.tiles() == b.tiles());
        assert_eq!(refined[0].mesh, refined[1].mesh);
        for (before, after) in [&a, &b].into_iter().zip(&refined) {
            assert_eq!(tiles(before), tiles(after), "{before:?}\n{after:?}");
            assert!(after.parts().all(|part| part.pre == 1 && after.mesh.sizes[part.axis] == part.size));
        }
    }
    assert!(n_apart > 0);
}

#[test]
fn texts_as_xla_prints_them() {
    let again = |text: &str, rank| axes(text, rank, 8).to_leaf().to_string();
    assert_eq!(
        again("{devices=[2,2,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}", 2),
        "{devices=[2,2,2]<=[4,2]T(1,0) last_tile_dim_replicate}"
    );
    assert_eq!(again("{devices=[1,1,8]<=[8] last_tile_dim_replicate}", 2), "{replicated}");
    assert_eq!(again("{devices=[2,4]0,4,1,5,2,6,3,7}", 2), "{devices=[2,4]<=[2,4]T(1,0)}");
    assert_eq!(again("{devices=[2,4]0,2,1,3,4,5,6,7}", 2), "{devices=[2,4]0,2,1,3,4,5,6,7}");
    assert_eq!(
        again("{devices=[1,2,4]<=[8] last_tile_dims={replicated, manual}}", 1),
        "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual, replicated}}"
    );
}

#[test]
fn axes_of_an_iota_and_their_parts() {
    let parts = |text: &str| {
        let read = axes(text, 2, 8);
        let dims: Vec<Vec<(usize, i64, i64)>> =
            read.dims.iter().map(|parts| parts.iter().map(|p| (p.axis, p.pre, p.size)).collect()).collect();
        (read.mesh.sizes, dims)
    };
    assert_eq!(parts("{devices=[4,2]<=[2,4]T(1,0)}"), (vec![2, 4], vec![vec![(1, 1, 4)], vec![(0, 1, 2)]]));
    assert_eq!(parts("{devices=[2,4]<=[8]}"), (vec![8], vec![vec![(0, 1, 2)], vec![(0, 2, 4)]]));
    assert_eq!(
        parts("{mesh['a'=2,'b'=4], [{'b':(2)2,'a'}, {}]}"),
        (vec![2, 4], vec![vec![(1, 2, 2), (0, 1, 2)], vec![]])
    );
}

#[test]
fn what_is_no_mesh_is_named() {
    let error = |text: &str| leaf(text).axes(2, 8).expect_err(text).to_string();
    let cases = [
        ("{maximal device=1}", "sharding: expected axes or tiles, found one device that holds everything"),
        ("{unknown}", "sharding: expected axes or tiles, found one that claims nothing"),
        ("{devices=[8]<=[8]}", "sharding: expected one entry for each of 2 dims, found 1"),
        ("{devices=[2,2]<=[4]}", "sharding: expected 8 devices, found 4"),
        ("{devices=[2,4]0,1,2}", "sharding: expected a device for each tile of [2, 4], found 3 devices"),
        ("{devices=[2,4]0,1,2,3,4,5,6,6}", "sharding: expected each of the devices 0 to 7 once, found 6"),
        ("{mesh['a'=8], [{'a'},{'a'}]}", "axis 'a':(1)8: expected each part of an axis once, found parts that overlap"),
    ];
    for (text, expected) in cases {
        assert_eq!(error(text), expected, "{text}");
    }
    assert_eq!(leaf("{devices=[8]<=[8]}").axes(2, 8), Err(AxesError::Rank { expected: 2, found: 1 }));
}
