//! On which devices bytes are equal: a label gives each device a number, and devices with equal numbers hold equal bytes.

use hashbrown::HashMap;
use std::rc::Rc;

/// A label; equal ones are one number.
pub(super) type LabelId = u32;

/// All labels met so far.
pub(super) struct Labels {
    known: Vec<Rc<[u32]>>,
    ids: HashMap<Rc<[u32]>, LabelId>,
    joined: HashMap<(LabelId, LabelId), LabelId>,
}

impl Labels {
    /// Equal on all devices.
    pub(super) const EQUAL: LabelId = 0;
    /// Nothing is known to be equal.
    pub(super) const UNIQUE: LabelId = 1;

    pub(super) fn new(n_devices: u32) -> Labels {
        let mut labels = Labels { known: Vec::new(), ids: HashMap::new(), joined: HashMap::new() };
        labels.known.extend([vec![0; n_devices as usize].into(), (0..n_devices).collect()]);
        for (id, label) in labels.known.iter().enumerate().rev() {
            labels.ids.insert(label.clone(), id as LabelId);
        }
        labels
    }

    /// Whether all devices hold equal bytes.
    pub(super) fn is_equal(&self, label: LabelId) -> bool {
        self.known.get(label as usize).is_some_and(|numbers| numbers.iter().all(|&n| n == 0))
    }

    /// The label of something that is a function of keys.
    pub(super) fn by_key<K: std::hash::Hash + Eq>(&mut self, keys: impl Iterator<Item = K>) -> LabelId {
        let mut numbers: HashMap<K, u32> = HashMap::new();
        let label: Rc<[u32]> = keys
            .map(|key| {
                let next = numbers.len() as u32;
                *numbers.entry(key).or_insert(next)
            })
            .collect();
        let known = &mut self.known;
        *self.ids.entry(label).or_insert_with_key(|label| {
            known.push(label.clone());
            known.len() as LabelId - 1
        })
    }

    /// The label of what is computed from both.
    pub(super) fn join(&mut self, a: LabelId, b: LabelId) -> LabelId {
        let (a, b) = (a.min(b), a.max(b));
        if a == b || b == Labels::UNIQUE && a == Labels::EQUAL {
            return b;
        }
        if let Some(&joined) = self.joined.get(&(a, b)) {
            return joined;
        }
        let (Some(x), Some(y)) = (self.known.get(a as usize).cloned(), self.known.get(b as usize).cloned()) else {
            return Labels::UNIQUE;
        };
        let joined = self.by_key(x.iter().zip(y.iter()));
        self.joined.insert((a, b), joined);
        joined
    }

    /// The label of what each group computes from its members' values, in the order of the group; of which each member gets its own part
    /// if it `scatters`.
    pub(super) fn of_groups(&mut self, label: LabelId, groups: &[Vec<u32>], scatters: bool) -> LabelId {
        let Some(numbers) = self.known.get(label as usize).cloned() else { return Labels::UNIQUE };
        let mut keys: Vec<Vec<u32>> = (0..numbers.len() as u32).map(|device| vec![u32::MAX, device]).collect();
        for group in groups {
            let members: Vec<u32> = group.iter().filter_map(|&d| numbers.get(d as usize).copied()).collect();
            for (place, &device) in (0..).zip(group) {
                if let Some(key) = keys.get_mut(device as usize) {
                    key.clone_from(&members);
                    key.extend(scatters.then_some(place));
                }
            }
        }
        self.by_key(keys.into_iter())
    }

    /// The label of what targets get of their sources, and others as zeros.
    pub(super) fn of_pairs(&mut self, label: LabelId, pairs: &[(u32, u32)]) -> LabelId {
        let Some(numbers) = self.known.get(label as usize).cloned() else { return Labels::UNIQUE };
        let mut keys: Vec<Option<u32>> = vec![None; numbers.len()];
        for &(source, target) in pairs {
            if let (Some(key), Some(&number)) = (keys.get_mut(target as usize), numbers.get(source as usize)) {
                *key = Some(number);
            }
        }
        self.by_key(keys.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_rows_and_then_columns_are_equal_everywhere() {
        let mut labels = Labels::new(4);
        let rows = labels.of_groups(Labels::UNIQUE, &[vec![0, 1], vec![2, 3]], false);
        assert!(!labels.is_equal(rows));
        let all = labels.of_groups(rows, &[vec![0, 2], vec![1, 3]], false);
        assert!(labels.is_equal(all));
        assert_eq!(labels.join(rows, Labels::EQUAL), rows);
        let columns = labels.of_groups(Labels::UNIQUE, &[vec![0, 2], vec![1, 3]], false);
        assert_eq!(labels.join(rows, columns), Labels::UNIQUE);
        // Groups of which one has other members than the next are not equal, whatever they hold.
        let lone = labels.of_groups(Labels::EQUAL, &[vec![0, 1], vec![2]], false);
        assert!(!labels.is_equal(lone));
    }

    #[test]
    fn parts_are_equal_at_equal_places_of_groups_that_hold_the_same() {
        let mut labels = Labels::new(4);
        let alone = [vec![0], vec![1], vec![2], vec![3]];
        let kept = labels.of_groups(Labels::EQUAL, &alone, true);
        assert!(labels.is_equal(kept));
        assert_eq!(labels.of_groups(Labels::UNIQUE, &alone, true), Labels::UNIQUE);
        let parts = labels.of_groups(Labels::EQUAL, &[vec![0, 1], vec![2, 3]], true);
        assert!(!labels.is_equal(parts));
        assert_eq!(parts, labels.of_groups(Labels::UNIQUE, &[vec![0, 2], vec![1, 3]], false));
        assert_eq!(labels.of_groups(Labels::EQUAL, &[vec![0, 1, 2, 3]], true), Labels::UNIQUE);
    }

    #[test]
    fn permutes_give_what_sources_hold_and_zeros_elsewhere() {
        let mut labels = Labels::new(4);
        let of_nobody = labels.of_pairs(Labels::UNIQUE, &[]);
        assert!(labels.is_equal(of_nobody));
        let around = [(0, 1), (1, 2), (2, 3), (3, 0)];
        let all = labels.of_pairs(Labels::EQUAL, &around);
        assert!(labels.is_equal(all));
        assert_eq!(labels.of_pairs(Labels::UNIQUE, &around), Labels::UNIQUE);
        let some = labels.of_pairs(Labels::EQUAL, &around[..3]);
        assert!(!labels.is_equal(some));
    }
}
