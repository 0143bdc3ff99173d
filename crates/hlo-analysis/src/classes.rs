//! Which devices are known to hold the same value: a partition of the devices into classes.
//!
//! The lattice of the replication analysis. Top is one class (equal everywhere), bottom is one class for each device
//! (nothing known). A value that depends on two others is equal on two devices if both of those are: the *meet* is
//! the common refinement. XLA's three-level lattice (replicated, partial, unique) maps into this one.

use cranelift_entity::{PrimaryMap, entity_impl};
use hashbrown::HashMap;

/// An interned partition of the devices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Classes(u32);
entity_impl!(Classes, "classes");

/// Owner of the partitions of one analysis, with memoised meets.
#[derive(Clone, Debug)]
pub struct ClassPool {
    n_devices: usize,
    partitions: PrimaryMap<Classes, Box<[u32]>>,
    ids: HashMap<Box<[u32]>, Classes>,
    meets: HashMap<(Classes, Classes), Classes>,
    top: Classes,
    bottom: Classes,
}

impl ClassPool {
    /// A pool for partitions of `n_devices` devices.
    pub fn new(n_devices: usize) -> ClassPool {
        let mut pool = ClassPool {
            n_devices,
            partitions: PrimaryMap::new(),
            ids: HashMap::new(),
            meets: HashMap::new(),
            top: Classes(0),
            bottom: Classes(0),
        };
        pool.top = pool.by_key(|_| 0u32);
        pool.bottom = pool.by_key(|device| device);
        pool
    }

    /// Equal on all devices.
    pub fn top(&self) -> Classes {
        self.top
    }

    /// Nothing known.
    pub fn bottom(&self) -> Classes {
        self.bottom
    }

    /// Number of devices.
    pub fn n_devices(&self) -> usize {
        self.n_devices
    }

    /// The partition that puts two devices together exactly if their keys are equal.
    pub fn by_key<K: std::hash::Hash + Eq>(&mut self, key: impl Fn(usize) -> K) -> Classes {
        // Canonical form: classes are numbered by their first device.
        let mut numbers: HashMap<K, u32> = HashMap::new();
        let labels: Box<[u32]> = (0..self.n_devices)
            .map(|device| {
                let next = numbers.len() as u32;
                *numbers.entry(key(device)).or_insert(next)
            })
            .collect();
        if let Some(&id) = self.ids.get(&labels) {
            return id;
        }
        let id = self.partitions.push(labels.clone());
        self.ids.insert(labels, id);
        id
    }

    /// The class number of every device.
    pub fn labels(&self, classes: Classes) -> &[u32] {
        &self.partitions[classes]
    }

    /// The common refinement: devices stay together only if both partitions have them together.
    pub fn meet(&mut self, a: Classes, b: Classes) -> Classes {
        if a == b || b == self.top || a == self.bottom {
            return a;
        }
        if a == self.top || b == self.bottom {
            return b;
        }
        let key = (a.min(b), a.max(b));
        if let Some(&known) = self.meets.get(&key) {
            return known;
        }
        let (x, y) = (self.partitions[a].clone(), self.partitions[b].clone());
        let id = self.by_key(|d| (x[d], y[d]));
        self.meets.insert(key, id);
        id
    }

    /// The finest partition coarser than both: devices are together if a chain of equalities from either joins them.
    pub fn join(&mut self, a: Classes, b: Classes) -> Classes {
        if a == b || a == self.bottom || b == self.top {
            return b;
        }
        if b == self.bottom || a == self.top {
            return a;
        }
        let (x, y) = (self.partitions[a].clone(), self.partitions[b].clone());
        let mut root: Vec<usize> = (0..self.n_devices).collect();
        fn find(root: &mut [usize], mut d: usize) -> usize {
            while root[d] != d {
                root[d] = root[root[d]];
                d = root[d];
            }
            d
        }
        for labels in [&x, &y] {
            let mut first: HashMap<u32, usize> = HashMap::new();
            for d in 0..self.n_devices {
                let leader = *first.entry(labels[d]).or_insert(d);
                let (p, q) = (find(&mut root, leader), find(&mut root, d));
                root[p.max(q)] = p.min(q);
            }
        }
        let roots: Vec<usize> = (0..self.n_devices).map(|d| find(&mut root, d)).collect();
        self.by_key(|d| roots[d])
    }

    /// Whether all devices of `group` are in one class.
    pub fn are_equal(&self, classes: Classes, group: impl IntoIterator<Item = u32>) -> bool {
        let labels = self.labels(classes);
        let mut members = group.into_iter().map(|d| labels.get(d as usize));
        match members.next() {
            None => true,
            Some(first) => first.is_some() && members.all(|label| label == first),
        }
    }

    /// The classes as sorted lists of devices.
    pub fn as_lists(&self, classes: Classes) -> Vec<Vec<u32>> {
        let labels = self.labels(classes);
        let n = labels.iter().map(|&l| l as usize + 1).max().unwrap_or(0);
        let mut lists = vec![Vec::new(); n];
        for (device, &label) in labels.iter().enumerate() {
            lists[label as usize].push(device as u32);
        }
        lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meet_refines_and_join_coarsens() {
        let mut pool = ClassPool::new(6);
        let halves = pool.by_key(|d| d / 3);
        let parity = pool.by_key(|d| d % 2);
        let meet = pool.meet(halves, parity);
        assert_eq!(pool.as_lists(meet), [vec![0, 2], vec![1], vec![3, 5], vec![4]]);
        assert_eq!(pool.join(halves, parity), pool.top());
        assert_eq!(pool.meet(halves, pool.top()), halves);
        assert_eq!(pool.meet(pool.bottom(), halves), pool.bottom());
        assert!(pool.are_equal(halves, [3, 4, 5]));
        assert!(!pool.are_equal(halves, [2, 3]));
    }
}
