//! `--layouts`: random layouts of a program's dims on random meshes, some with names of the user's, some found automatically. A layout that
//! cuts two dims of one parameter along one axis must be refused; what is not refused must give what the global program gives.

use hlo_ir::Module;
use hlo_partition::{DimFact, find_dims};
use hlo_tests::random_module::Rng;

/// A way to lay a program out.
pub(super) struct RandomLayout {
    pub pipeline: String,
    /// Whether it is illegal for certain.
    pub must_be_refused: bool,
    pub n_devices: usize,
}

/// A layout of a program; `None` where it has no dims.
pub(super) fn random_layout(module: &Module, rng: &mut Rng) -> Option<RandomLayout> {
    let axes = random_axes(rng);
    let names = random_names(&find_dims(module, "").ok()?, rng);
    let dims = find_dims(module, &names).ok()?;
    let is_even = rng.one_in(2);
    let cuts = |dim: &&DimFact, size: usize| !is_even || dim.size % size as i64 == 0;
    let (mut layout, mut must_be_refused) = (String::new(), false);
    if rng.one_in(8) {
        layout.push_str("auto");
    } else if let (true, Some((one, other))) = (rng.one_in(5), two_dims_of_a_parameter(&dims)) {
        // One axis for both, where it is no error of another kind.
        let fits = |(_, size): &&(String, usize)| [&one, &other].iter().all(|dim| dim.size % *size as i64 == 0);
        let (axis, _) = axes.iter().find(fits)?;
        layout = format!("{}:{axis};{}:{axis}", one.name, other.name);
        must_be_refused = true;
    } else {
        let mut said: Vec<String> = Vec::new();
        for (axis, size) in &axes {
            for dim in dims.iter().filter(|dim| cuts(dim, *size)) {
                let is_said = said.iter().any(|pair| pair.starts_with(&format!("{}:", dim.name)));
                if rng.one_in(3) && !is_said {
                    said.push(format!("{}:{axis}", dim.name));
                }
            }
        }
        layout = said.join(";");
    }
    let mesh: Vec<String> = axes.iter().map(|(name, size)| format!("{name}:{size}")).collect();
    let compute = if rng.one_in(2) { "as-cut" } else { "cheapest" };
    let pipeline = format!(
        "inline-calls,assign-mesh-layout{{names='{names}',mesh='{}',layout='{layout}',even={is_even}}},\
         spmd-partition{{compute={compute}}},cse,dce",
        mesh.join(",")
    );
    Some(RandomLayout { pipeline, must_be_refused, n_devices: axes.iter().map(|(_, size)| size).product() })
}

/// One to three axes, 2 to 12 devices in all.
fn random_axes(rng: &mut Rng) -> Vec<(String, usize)> {
    let mut out = Vec::new();
    let mut left = super::MOST_DEVICES;
    for name in ["rows", "cols", "planes"] {
        if left >= 2 && (out.is_empty() || rng.one_in(2)) {
            let size = 2 + rng.below(left.min(6) - 1);
            out.push((name.to_string(), size));
            left /= size;
        }
    }
    out
}

/// Lines for some classes, by their first places.
fn random_names(dims: &[DimFact], rng: &mut Rng) -> String {
    let mut lines = Vec::new();
    for (number, dim) in dims.iter().enumerate() {
        if let (true, Some(first)) = (rng.one_in(3), dim.params.first()) {
            lines.push(format!("named{number} = {}", first.place));
        }
    }
    lines.join("; ")
}

/// Two classes that one array parameter has, each as the whole of a dim.
fn two_dims_of_a_parameter(dims: &[DimFact]) -> Option<(DimFact, DimFact)> {
    // `%x:0` is a dim of an array and no minor part: nothing can keep it whole.
    let params = |dim: &DimFact| -> Vec<String> {
        let whole = dim.params.iter().filter(|place| !place.place.contains('/'));
        let split = whole.filter_map(|place| place.place.split_once(':'));
        split.filter(|(_, dim)| !dim.contains('.')).map(|(name, _)| name.to_string()).collect()
    };
    for (at, one) in dims.iter().enumerate() {
        for other in &dims[..at] {
            if params(one).iter().any(|name| params(other).contains(name)) {
                return Some((one.clone(), other.clone()));
            }
        }
    }
    None
}
