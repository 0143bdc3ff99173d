//! What is said of devices, interned: which of them hold equal values, whose value each takes, whose values each sums.

use hashbrown::HashMap;
use std::hash::Hash;

/// Which devices hold equal values: for each device the first one that holds the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Classes(u32);

/// For each device a multiset of devices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Spread(u32);

/// Devices with how often each counts, sorted.
type Multiset = Vec<(u32, u128)>;

impl Classes {
    /// All devices hold the same.
    pub(crate) const ALL_EQUAL: Classes = Classes(0);
}

#[derive(Debug)]
struct Interner<T> {
    of_value: HashMap<T, u32>,
    values: Vec<T>,
}

impl<T: Clone + Eq + Hash> Interner<T> {
    fn new() -> Interner<T> {
        Interner { of_value: HashMap::new(), values: Vec::new() }
    }

    fn intern(&mut self, value: T) -> u32 {
        if let Some(&id) = self.of_value.get(&value) {
            return id;
        }
        let id = self.values.len() as u32;
        self.values.push(value.clone());
        self.of_value.insert(value, id);
        id
    }
}

/// All of it for a number of devices.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) n: usize,
    classes: Interner<Vec<u32>>,
    multisets: Interner<Multiset>,
    spreads: Interner<Vec<u32>>,
    joined: HashMap<(Classes, Classes), Classes>,
    own: HashMap<Classes, Spread>,
    composed: HashMap<(Spread, Spread), Spread>,
    classes_of: HashMap<Spread, Classes>,
    normalized: HashMap<(Spread, Classes), Spread>,
    /// Whether some count was beyond 128 bits. Then sums that differ may look alike.
    pub(crate) has_overflowed: bool,
}

impl Devices {
    pub(crate) fn new(n: usize) -> Devices {
        let mut devices = Devices {
            n,
            classes: Interner::new(),
            multisets: Interner::new(),
            spreads: Interner::new(),
            joined: HashMap::new(),
            own: HashMap::new(),
            composed: HashMap::new(),
            classes_of: HashMap::new(),
            normalized: HashMap::new(),
            has_overflowed: false,
        };
        devices.classes.intern(vec![0; n]);
        devices
    }

    /// Each device holds something else.
    pub(crate) fn all_different(&mut self) -> Classes {
        Classes(self.classes.intern((0..self.n as u32).collect()))
    }

    /// Devices with equal keys hold the same.
    pub(crate) fn classes_by<K: Hash + Eq>(&mut self, keys: impl IntoIterator<Item = K>) -> Classes {
        let mut first: HashMap<K, u32> = HashMap::new();
        let reps = keys.into_iter().enumerate().map(|(d, key)| *first.entry(key).or_insert(d as u32)).collect();
        Classes(self.classes.intern(reps))
    }

    /// Devices that one of the promises makes equal, in any number of steps: each promise gives equal devices equal keys.
    pub(crate) fn classes_of_promises<K: Hash + Eq + Clone>(&mut self, promises: &[Vec<K>]) -> Classes {
        let mut rep: Vec<u32> = (0..self.n as u32).collect();
        loop {
            let before = rep.clone();
            for keys in promises {
                let mut least: HashMap<K, u32> = HashMap::new();
                for (key, &r) in keys.iter().zip(&rep) {
                    let slot = least.entry(key.clone()).or_insert(r);
                    *slot = (*slot).min(r);
                }
                for (key, r) in keys.iter().zip(rep.iter_mut()) {
                    *r = least[key];
                }
            }
            if rep == before {
                return self.classes_by(rep);
            }
        }
    }

    /// The first device that holds what `device` holds.
    pub(crate) fn rep(&self, classes: Classes, device: usize) -> u32 {
        self.classes.values[classes.0 as usize][device]
    }

    pub(crate) fn join(&mut self, a: Classes, b: Classes) -> Classes {
        if a == b || b == Classes::ALL_EQUAL {
            return a;
        }
        if a == Classes::ALL_EQUAL {
            return b;
        }
        let key = (a.min(b), a.max(b));
        if let Some(&joined) = self.joined.get(&key) {
            return joined;
        }
        let (x, y) = (&self.classes.values[a.0 as usize], &self.classes.values[b.0 as usize]);
        let pairs: Vec<(u32, u32)> = x.iter().copied().zip(y.iter().copied()).collect();
        let joined = self.classes_by(pairs);
        self.joined.insert(key, joined);
        joined
    }

    /// Each device for itself.
    pub(crate) fn own(&mut self, classes: Classes) -> Spread {
        if let Some(&own) = self.own.get(&classes) {
            return own;
        }
        let reps = self.classes.values[classes.0 as usize].clone();
        let own = self.spread(reps.into_iter().map(|rep| vec![(rep, 1)]));
        self.own.insert(classes, own);
        own
    }

    /// For each device the devices of its list, which has a number.
    pub(crate) fn spread_of_lists(&mut self, lists: &[Vec<u32>], list_idx: impl Fn(usize) -> usize) -> Spread {
        let mut ids = Vec::with_capacity(lists.len());
        for list in lists {
            let mut list = list.clone();
            list.sort();
            ids.push(
                self.multisets.intern(count(list.into_iter().map(|device| (device, 1)), &mut self.has_overflowed)),
            );
        }
        Spread(self.spreads.intern((0..self.n).map(|device| ids[list_idx(device)]).collect()))
    }

    /// For each device the devices whose values of these classes it takes.
    #[cfg(test)]
    pub(crate) fn spread_of(&mut self, classes: Classes, members: &[Vec<u32>]) -> Spread {
        let sets: Vec<Multiset> = members
            .iter()
            .map(|list| {
                let mut reps: Vec<u32> = list.iter().map(|&d| self.rep(classes, d as usize)).collect();
                reps.sort();
                count(reps.into_iter().map(|rep| (rep, 1)), &mut false)
            })
            .collect();
        self.spread(sets)
    }

    fn spread(&mut self, sets: impl IntoIterator<Item = Multiset>) -> Spread {
        let ids = sets.into_iter().map(|set| self.multisets.intern(set)).collect();
        Spread(self.spreads.intern(ids))
    }

    /// The sum over `outer` of what sums over `inner`.
    pub(crate) fn compose(&mut self, outer: Spread, inner: Spread) -> Spread {
        if let Some(&composed) = self.composed.get(&(outer, inner)) {
            return composed;
        }
        let (a, b) = (self.spreads.values[outer.0 as usize].clone(), self.spreads.values[inner.0 as usize].clone());
        let mut of_set: HashMap<u32, u32> = HashMap::new();
        let mut ids = Vec::with_capacity(self.n);
        for set in a {
            let id = match of_set.get(&set) {
                Some(&id) => id,
                None => {
                    let mut all: Multiset = Vec::new();
                    for &(device, times) in &self.multisets.values[set as usize] {
                        let inner = &self.multisets.values[b[device as usize] as usize];
                        all.extend(inner.iter().map(|&(d, n)| (d, times_or_most(n, times, &mut self.has_overflowed))));
                    }
                    all.sort();
                    let id = self.multisets.intern(count(all, &mut self.has_overflowed));
                    of_set.insert(set, id);
                    id
                }
            };
            ids.push(id);
        }
        let composed = Spread(self.spreads.intern(ids));
        self.composed.insert((outer, inner), composed);
        composed
    }

    /// The spread with the first of equal devices in the place of each.
    pub(crate) fn normalize(&mut self, spread: Spread, classes: Classes) -> Spread {
        if let Some(&known) = self.normalized.get(&(spread, classes)) {
            return known;
        }
        let own = self.own(classes);
        let normalized = self.compose(spread, own);
        self.normalized.insert((spread, classes), normalized);
        normalized
    }

    /// Every count times `k`; the idempotent sums count each device once.
    pub(crate) fn scaled(&mut self, spread: Spread, k: u128, is_idempotent: bool) -> Spread {
        let ids = self.spreads.values[spread.0 as usize].clone();
        let sets: Vec<Multiset> = ids
            .iter()
            .map(|&id| {
                let set = &self.multisets.values[id as usize];
                let mut scaled = |n| times_or_most(n, k, &mut self.has_overflowed);
                set.iter().map(|&(d, n)| (d, if is_idempotent { 1 } else { scaled(n) })).collect()
            })
            .collect();
        self.spread(sets)
    }

    /// Both together; the idempotent sums count each device once.
    pub(crate) fn add(&mut self, a: Spread, b: Spread, is_idempotent: bool) -> Spread {
        let (x, y) = (self.spreads.values[a.0 as usize].clone(), self.spreads.values[b.0 as usize].clone());
        let mut sets = Vec::with_capacity(self.n);
        for (p, q) in x.into_iter().zip(y) {
            let (p, q) = (&self.multisets.values[p as usize], &self.multisets.values[q as usize]);
            let mut all: Multiset = p.iter().chain(q).copied().collect();
            all.sort();
            let mut set = count(all, &mut self.has_overflowed);
            if is_idempotent {
                set.iter_mut().for_each(|(_, n)| *n = 1);
            }
            sets.push(set);
        }
        self.spread(sets)
    }

    /// Which devices have the same multiset.
    pub(crate) fn classes_of(&mut self, spread: Spread) -> Classes {
        if let Some(&classes) = self.classes_of.get(&spread) {
            return classes;
        }
        let ids = self.spreads.values[spread.0 as usize].clone();
        let classes = self.classes_by(ids);
        self.classes_of.insert(spread, classes);
        classes
    }

    /// What a device sums, for people.
    pub(crate) fn members(&self, spread: Spread, device: usize) -> &[(u32, u128)] {
        &self.multisets.values[self.spreads.values[spread.0 as usize][device] as usize]
    }
}

/// The product, or the most if it is beyond 128 bits.
fn times_or_most(n: u128, times: u128, has_overflowed: &mut bool) -> u128 {
    let product = n.checked_mul(times);
    *has_overflowed |= product.is_none();
    product.unwrap_or(u128::MAX)
}

/// Adds up the counts of equal devices that stand side by side.
fn count(sorted: impl IntoIterator<Item = (u32, u128)>, has_overflowed: &mut bool) -> Multiset {
    let mut out: Multiset = Vec::new();
    for (device, n) in sorted {
        match out.last_mut() {
            Some(last) if last.0 == device => {
                let sum = last.1.checked_add(n);
                *has_overflowed |= sum.is_none();
                last.1 = sum.unwrap_or(u128::MAX);
            }
            Some(_) | None => out.push((device, n)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_in_two_stages_are_one_sum() {
        let mut devices = Devices::new(4);
        let all = devices.all_different();
        let rows = devices.spread_of(all, &[vec![0, 1], vec![0, 1], vec![2, 3], vec![2, 3]]);
        let columns = devices.spread_of(all, &[vec![0, 2], vec![1, 3], vec![0, 2], vec![1, 3]]);
        let everyone =
            devices.spread_of(all, &[vec![0, 1, 2, 3], vec![3, 2, 1, 0], vec![0, 1, 2, 3], vec![0, 1, 2, 3]]);
        assert_eq!(devices.compose(columns, rows), everyone);
        assert_ne!(devices.compose(rows, rows), everyone);
        let classes = devices.classes_of(rows);
        assert_eq!((0..4).map(|d| devices.rep(classes, d)).collect::<Vec<_>>(), [0, 0, 2, 2]);
        assert_eq!(devices.classes_of(everyone), Classes::ALL_EQUAL);
    }

    #[test]
    fn equal_devices_are_one() {
        let mut devices = Devices::new(4);
        let halves = devices.classes_by([0, 0, 1, 1]);
        let own = devices.own(halves);
        let first = devices.spread_of(halves, &[vec![1], vec![0], vec![3], vec![2]]);
        assert_eq!(own, first);
        let twice = devices.spread_of(halves, &[vec![0, 1], vec![0, 1], vec![2, 3], vec![2, 3]]);
        assert_eq!(devices.scaled(own, 2, false), twice);
        assert_eq!(devices.scaled(twice, 1, true), own);
    }
}
