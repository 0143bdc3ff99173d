//! Random pairs of shardings.

/// Meshes, and the dims of the array that is cut over them.
pub(crate) const MESHES: [(&[i64], &[i64]); 5] = [
    (&[2, 2, 2], &[16, 16, 16]),
    (&[4, 2], &[16, 16, 16]),
    (&[8], &[16, 16, 16]),
    (&[3, 2], &[12, 12, 12]),
    (&[2, 2, 2, 2], &[16, 16, 16]),
];

/// Numbers that look random, the same in every run.
pub(crate) struct Draw(pub u64);

impl Draw {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    pub(crate) fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for k in (1..items.len()).rev() {
            items.swap(k, self.below(k + 1));
        }
        items
    }
}

/// The prime axes of a mesh as parts of its axes: `'a0':(2)2`.
fn atoms(mesh: &[i64]) -> Vec<String> {
    let mut out = Vec::new();
    for (axis, &size) in mesh.iter().enumerate() {
        let (mut before, mut left) = (1, size);
        while left > 1 {
            let prime = (2..=left).find(|p| left % p == 0).unwrap_or(left);
            out.push(format!("'a{axis}':({before}){prime}"));
            before *= prime;
            left /= prime;
        }
    }
    out
}

/// A sharding in which each prime axis falls on a dim or on none, and their order on a dim is random.
pub(crate) fn drawn_sharding(draw: &mut Draw, mesh: &[i64], rank: usize) -> String {
    let mut dims = vec![Vec::new(); rank + 1];
    for atom in draw.shuffled(atoms(mesh)) {
        dims[draw.below(rank + 1)].push(atom);
    }
    let axes = mesh.iter().enumerate().map(|(k, size)| format!("'a{k}'={size}")).collect::<Vec<_>>().join(",");
    let dims: Vec<String> = dims[..rank].iter().map(|atoms| format!("{{{}}}", atoms.join(","))).collect();
    format!("{{mesh[{axes}], [{}]}}", dims.join(","))
}

pub(crate) fn drawn_pair(draw: &mut Draw, mesh: &[i64], rank: usize) -> (String, String) {
    (drawn_sharding(draw, mesh, rank), drawn_sharding(draw, mesh, rank))
}
