//! Meshes of devices: ordered axes, whose product is the number of devices. Device ids count row-major, the first axis slowest.

use hlo_ir::axes::AxisMesh;
use smallvec::SmallVec;

/// The most axes of a mesh that is searched.
pub(crate) const MOST_AXES: usize = 3;

/// Axes of a mesh as bits: bit `a` is axis `a`.
pub(crate) type AxisSet = u8;

/// An ordered mesh; no axis has size 1.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SearchMesh {
    /// Sizes of the axes, slowest first.
    pub sizes: SmallVec<[i64; 4]>,
}

impl SearchMesh {
    /// Number of axes.
    pub(crate) fn n_axes(&self) -> usize {
        self.sizes.len()
    }

    /// Number of devices.
    pub(crate) fn n_devices(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// Size of an axis.
    pub(crate) fn size(&self, axis: usize) -> i64 {
        self.sizes.get(axis).copied().unwrap_or(1)
    }

    /// Number of places along these axes.
    pub(crate) fn n_places(&self, axes: AxisSet) -> i64 {
        // Asked for each pair of states.
        let of_axis = |(axis, size): (usize, &i64)| if axes & (1 << axis) == 0 { 1 } else { *size };
        self.sizes.iter().enumerate().map(of_axis).product()
    }

    /// The groups of devices that differ only along these axes.
    pub(crate) fn groups(&self, axes: AxisSet) -> Vec<Vec<u32>> {
        let n_members = self.n_places(axes).max(1) as usize;
        let n_devices = self.n_devices();
        let mut groups = vec![Vec::with_capacity(n_members); (n_devices as usize) / n_members];
        for device in 0..n_devices {
            let (mut rest, mut group, mut weight) = (device, 0, 1);
            for axis in (0..self.n_axes()).rev() {
                let place = rest % self.size(axis);
                rest /= self.size(axis);
                if axes & (1 << axis) == 0 {
                    group += place * weight;
                    weight *= self.size(axis);
                }
            }
            groups[group as usize].push(device as u32);
        }
        groups
    }

    /// The mesh as shardings name it.
    pub(crate) fn axis_mesh(&self) -> AxisMesh {
        AxisMesh { sizes: self.sizes.to_vec(), devices: (0..self.n_devices() as u32).collect() }
    }

    /// In words: `4 x 6`.
    pub(crate) fn describe(&self) -> String {
        match self.sizes.is_empty() {
            true => "1".into(),
            false => self.sizes.iter().map(i64::to_string).collect::<Vec<_>>().join(" x "),
        }
    }
}

/// The axes of a set, ascending.
pub(crate) fn axes_of(axes: AxisSet) -> impl Iterator<Item = usize> {
    (0..8).filter(move |axis| axes & (1 << axis) != 0)
}

/// All ordered meshes of so many devices with at most `most_axes` axes, those with fewer axes first.
pub(crate) fn factorizations(n_devices: i64, most_axes: usize) -> Vec<SearchMesh> {
    (1..=most_axes).flat_map(|n_axes| factorizations_of(n_devices, n_axes)).collect()
}

/// All ordered meshes of so many devices with so many axes.
pub(crate) fn factorizations_of(n_devices: i64, n_axes: usize) -> Vec<SearchMesh> {
    let mut all = Vec::new();
    add_factorizations(n_devices, n_axes, &mut SmallVec::new(), &mut all);
    all
}

fn add_factorizations(left: i64, n_axes: usize, sizes: &mut SmallVec<[i64; 4]>, all: &mut Vec<SearchMesh>) {
    if n_axes == 1 {
        if left > 1 {
            sizes.push(left);
            all.push(SearchMesh { sizes: sizes.clone() });
            sizes.pop();
        }
        return;
    }
    for size in (2..=left / 2).filter(|size| left % size == 0) {
        sizes.push(size);
        add_factorizations(left / size, n_axes - 1, sizes, all);
        sizes.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn meshes_are_all_ordered_factorizations() {
        let texts = |n, k| factorizations(n, k).iter().map(SearchMesh::describe).collect::<Vec<_>>();
        assert_eq!(texts(6, 3), ["6", "2 x 3", "3 x 2"]);
        assert_eq!(texts(8, 3), ["8", "2 x 4", "4 x 2", "2 x 2 x 2"]);
        assert_eq!(factorizations(192, 3).len(), 1 + 12 + 45);
    }

    #[test]
    fn groups_differ_along_their_axes() {
        let mesh = SearchMesh { sizes: smallvec![2, 3] };
        assert_eq!(mesh.groups(0b01), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(mesh.groups(0b10), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(mesh.groups(0b11), [[0, 1, 2, 3, 4, 5]]);
        assert_eq!(mesh.groups(0).len(), 6);
    }
}
