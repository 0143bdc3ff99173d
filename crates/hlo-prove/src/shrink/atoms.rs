//! What dims are made of: atoms, each of which is made smaller by one divisor.
//!
//! A dim is a product of atoms, major to minor. Dims that an op treats alike have the same atoms; where one of them is split by
//! a reshape or over devices, all are. Atoms of different sizes may share a divisor: a dim and a slice of it do.

use hashbrown::HashMap;

/// A dim, or a part of one. A dim of size 1 is one that is never split.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Atom(u32);

#[derive(Clone, Debug)]
enum State {
    /// It is this one.
    Same(Atom),
    /// It is these, major to minor.
    Parts(Vec<Atom>),
    Leaf,
}

#[derive(Clone, Debug)]
struct Entry {
    size: i64,
    state: State,
    /// It keeps its size.
    is_fixed: bool,
}

/// All atoms, and what is known of their divisors.
#[derive(Debug, Default)]
pub(super) struct Atoms {
    entries: Vec<Entry>,
    /// Leaves with one divisor; once no atom is split any more.
    partner: HashMap<Atom, Atom>,
    /// Numbers that the divisor of a leaf divides, besides its size.
    bounds: HashMap<Atom, i64>,
    /// Numbers that the product of the divisors divides.
    products: Vec<(Vec<Atom>, i64)>,
}

/// The divisor of each leaf.
pub(super) struct Divisors(HashMap<Atom, i64>);

impl Atoms {
    pub(super) fn new_atom(&mut self, size: i64) -> Atom {
        self.entries.push(Entry { size, state: State::Leaf, is_fixed: size <= 1 });
        Atom(self.entries.len() as u32 - 1)
    }

    /// A part that keeps its size, as one that is cut over devices.
    pub(super) fn new_fixed(&mut self, size: i64) -> Atom {
        let atom = self.new_atom(size);
        self.fix(&[atom]);
        atom
    }

    fn entry(&self, atom: Atom) -> &Entry {
        &self.entries[atom.0 as usize]
    }

    pub(super) fn size(&self, atom: Atom) -> i64 {
        self.entry(atom).size
    }

    fn first_same(&mut self, atom: Atom) -> Atom {
        let mut first = atom;
        while let State::Same(next) = self.entry(first).state {
            first = next;
        }
        let mut on_the_way = atom;
        while let State::Same(next) = self.entry(on_the_way).state {
            self.entries[on_the_way.0 as usize].state = State::Same(first);
            on_the_way = next;
        }
        first
    }

    /// The atoms that these are made of and that are not split, those of size 1 left out.
    pub(super) fn leaves(&mut self, atoms: &[Atom]) -> Vec<Atom> {
        let mut open: Vec<Atom> = atoms.iter().rev().copied().collect();
        let mut leaves = Vec::with_capacity(atoms.len());
        while let Some(atom) = open.pop() {
            let atom = self.first_same(atom);
            match &self.entry(atom).state {
                State::Parts(parts) => open.extend(parts.iter().rev().copied()),
                State::Same(_) => {}
                State::Leaf if self.size(atom) == 1 => {}
                State::Leaf => leaves.push(atom),
            }
        }
        leaves
    }

    /// Keeps their sizes.
    pub(super) fn fix(&mut self, atoms: &[Atom]) {
        for leaf in self.leaves(atoms) {
            self.entries[leaf.0 as usize].is_fixed = true;
        }
    }

    /// Two dims that are one index space.
    pub(super) fn unify(&mut self, a: &[Atom], b: &[Atom]) {
        let (mut a, mut b) = (self.leaves(a), self.leaves(b));
        a.reverse();
        b.reverse();
        loop {
            let (x, y) = match (a.pop(), b.pop()) {
                (Some(x), Some(y)) => (x, y),
                (None, None) => return,
                (Some(rest), None) | (None, Some(rest)) => {
                    a.push(rest);
                    break;
                }
            };
            // A leaf that stands twice in one dim may have been split or joined on the way.
            if self.leaves(&[x]) != [x] || self.leaves(&[y]) != [y] {
                a.extend(self.leaves(&[x]).into_iter().rev());
                b.extend(self.leaves(&[y]).into_iter().rev());
                continue;
            }
            let (n, m) = (self.size(x), self.size(y));
            if n == m {
                self.join(x, y);
            } else if n > m && n % m == 0 {
                self.split(x, m);
                a.push(x);
                b.push(y);
                a = expanded(self, a);
            } else if m > n && m % n == 0 {
                self.split(y, n);
                a.push(x);
                b.push(y);
                b = expanded(self, b);
            } else {
                a.push(x);
                b.push(y);
                break;
            }
        }
        self.fix(&a);
        self.fix(&b);
    }

    fn join(&mut self, x: Atom, y: Atom) {
        if x != y {
            let is_fixed = self.entry(x).is_fixed || self.entry(y).is_fixed;
            self.entries[x.0 as usize].is_fixed = is_fixed;
            self.entries[y.0 as usize].state = State::Same(x);
        }
    }

    /// Splits a leaf into a major part of `major` and the rest.
    fn split(&mut self, leaf: Atom, major: i64) {
        let Entry { size, is_fixed, .. } = *self.entry(leaf);
        let parts = vec![self.new_atom(major), self.new_atom(size / major)];
        if is_fixed {
            self.fix(&parts);
        }
        self.entries[leaf.0 as usize].state = State::Parts(parts);
    }

    /// The leaf whose divisor stands for this one's.
    fn representative(&self, leaf: Atom) -> Atom {
        let mut leaf = leaf;
        while let Some(&next) = self.partner.get(&leaf) {
            leaf = next;
        }
        leaf
    }

    /// Makes two leaves smaller by one divisor. No atom is split after this.
    pub(super) fn share_divisor(&mut self, a: Atom, b: Atom) {
        let (a, b) = (self.representative(a), self.representative(b));
        if a != b {
            self.partner.insert(b, a);
        }
    }

    /// The divisor of a leaf divides `number`.
    pub(super) fn bound(&mut self, leaf: Atom, number: i64) {
        let known = self.bounds.entry(leaf).or_insert(0);
        *known = gcd(*known, number);
    }

    /// The product of the divisors of these divides `number`.
    pub(super) fn bound_product(&mut self, atoms: &[Atom], number: i64) {
        let leaves = self.leaves(atoms);
        self.products.push((leaves, number));
    }

    pub(super) fn is_free(&self, leaf: Atom) -> bool {
        !self.entry(leaf).is_fixed
    }

    /// The largest divisors that all allow; an atom of two positions or more keeps two.
    pub(super) fn solve(&mut self) -> Divisors {
        let mut classes: HashMap<Atom, (i64, i64)> = HashMap::new();
        for k in 0..self.entries.len() {
            let atom = Atom(k as u32);
            let Entry { size, state: State::Leaf, is_fixed } = self.entries[k] else { continue };
            if size <= 1 {
                continue;
            }
            let number = if is_fixed { 1 } else { gcd(size, self.bounds.get(&atom).copied().unwrap_or(0)) };
            let class = classes.entry(self.representative(atom)).or_insert((0, i64::MAX));
            *class = (gcd(class.0, number), class.1.min(size));
        }
        let mut divisors: HashMap<Atom, i64> =
            classes.iter().map(|(&leaf, &(common, least))| (leaf, largest_divisor(common, least / 2))).collect();
        for (leaves, number) in std::mem::take(&mut self.products) {
            let leaves: Vec<Atom> = leaves.into_iter().map(|leaf| self.representative(leaf)).collect();
            loop {
                let product = leaves.iter().map(|leaf| divisors.get(leaf).copied().unwrap_or(1)).product::<i64>();
                let most = leaves.iter().max_by_key(|leaf| divisors.get(*leaf).copied().unwrap_or(1));
                let Some(most) = most.filter(|_| number % product != 0) else { break };
                let Some(divisor) = divisors.get_mut(most) else { break };
                *divisor /= smallest_factor(*divisor);
            }
        }
        let all = (0..self.entries.len()).map(|k| Atom(k as u32));
        Divisors(all.map(|atom| (atom, divisors.get(&self.representative(atom)).copied().unwrap_or(1))).collect())
    }

    /// By what a product of atoms is divided.
    pub(super) fn divisor(&mut self, atoms: &[Atom], divisors: &Divisors) -> i64 {
        self.leaves(atoms).iter().map(|leaf| divisors.0.get(leaf).copied().unwrap_or(1)).product()
    }
}

impl Divisors {
    /// Whether some dim becomes smaller.
    pub(super) fn is_any(&self) -> bool {
        self.0.values().any(|&divisor| divisor > 1)
    }
}

/// The last of a list that is read from its end, with what it was split into.
fn expanded(atoms: &mut Atoms, mut list: Vec<Atom>) -> Vec<Atom> {
    if let Some(last) = list.pop() {
        list.extend(atoms.leaves(&[last]).into_iter().rev());
    }
    list
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.saturating_abs(), b.saturating_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The largest divisor of `number` that is at most `most`, 1 if none is.
fn largest_divisor(number: i64, most: i64) -> i64 {
    let mut best = 1;
    let mut k = 1;
    while k <= number / k {
        if number % k == 0 {
            best = [k, number / k].into_iter().filter(|&d| d <= most).fold(best, i64::max);
        }
        k += 1;
    }
    best
}

fn smallest_factor(number: i64) -> i64 {
    (2..=number).take_while(|k| k * k <= number).find(|k| number % k == 0).unwrap_or(number.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dim_that_is_split_twice_has_the_parts_of_both() {
        let mut atoms = Atoms::default();
        let (dim, heads, of_head) = (atoms.new_atom(128), atoms.new_atom(4), atoms.new_atom(32));
        atoms.unify(&[dim], &[heads, of_head]);
        let (devices, shard) = (atoms.new_fixed(8), atoms.new_atom(16));
        atoms.unify(&[dim], &[devices, shard]);
        let sizes: Vec<i64> = atoms.leaves(&[dim]).iter().map(|&leaf| atoms.size(leaf)).collect();
        assert_eq!(sizes, [4, 2, 16]);
        let divisors = atoms.solve();
        assert_eq!((atoms.divisor(&[dim], &divisors), atoms.divisor(&[of_head], &divisors)), (8, 8));
        assert_eq!(atoms.divisor(&[devices], &divisors), 1);
    }

    #[test]
    fn dims_that_do_not_fit_keep_their_sizes() {
        let mut atoms = Atoms::default();
        let (a, b, c, d) = (atoms.new_atom(6), atoms.new_atom(4), atoms.new_atom(4), atoms.new_atom(6));
        atoms.unify(&[a, b], &[c, d]);
        assert!(!atoms.solve().is_any());
    }

    #[test]
    fn one_divisor_serves_all_that_share_it_and_divides_what_it_must() {
        let mut atoms = Atoms::default();
        let (whole, part) = (atoms.new_atom(96), atoms.new_atom(24));
        atoms.share_divisor(whole, part);
        let divisors = atoms.solve();
        assert_eq!((atoms.divisor(&[whole], &divisors), atoms.divisor(&[part], &divisors)), (12, 12));
        atoms.bound(part, 8);
        atoms.bound_product(&[whole], 36);
        let divisors = atoms.solve();
        assert_eq!((atoms.divisor(&[whole], &divisors), atoms.divisor(&[part], &divisors)), (4, 4));
    }
}
