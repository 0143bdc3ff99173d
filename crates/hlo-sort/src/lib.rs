//! Sorting of slices by code that all element types share.
//!
//! The standard library compiles its sorts once per element type and order, some 6 KB each: a tenth of the program was sorts of lists
//! that are short or sorted once. [`SharedSort`] sorts positions instead, by one function, and moves the elements then. Sorts that take a
//! measurable part of a run keep the standard library's.

use std::cmp::Ordering;

/// Lists up to this length are sorted by insertion, in place: most are that short.
const FEW: usize = 8;

/// Stable sorts: elements that compare equal keep their order.
pub trait SharedSort<T> {
    /// Sorts from the least element to the greatest.
    fn shared_sort(&mut self)
    where
        T: Ord;

    /// Sorts by an order of the caller's.
    fn shared_sort_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// Sorts by a key, which is made anew for each comparison.
    fn shared_sort_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);
}

impl<T> SharedSort<T> for [T] {
    fn shared_sort(&mut self)
    where
        T: Ord,
    {
        self.shared_sort_by(T::cmp);
    }

    fn shared_sort_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        if self.len() <= FEW {
            for end in 1..self.len() {
                let mut at = end;
                while at > 0 && compare(&self[at - 1], &self[at]) == Ordering::Greater {
                    self.swap(at - 1, at);
                    at -= 1;
                }
            }
            return;
        }
        let order = order_of(self.len(), &mut |a, b| compare(&self[a], &self[b]));
        move_into(order, &mut |a, b| self.swap(a, b));
    }

    fn shared_sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.shared_sort_by(|a, b| key(a).cmp(&key(b)));
    }
}

/// For each place of the sorted list, the position of its element now.
#[inline(never)]
fn order_of(count: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| compare(a, b));
    order
}

/// Brings each element to its place by exchanges, one cycle of the order after another.
#[inline(never)]
fn move_into(mut order: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for start in 0..order.len() {
        let mut place = start;
        loop {
            let from = std::mem::replace(&mut order[place], place);
            if from == start {
                break;
            }
            swap(place, from);
            place = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SharedSort;
    use std::cmp::Reverse;

    /// Numbers that look drawn: a linear congruential generator (Knuth's MMIX constants).
    fn drawn(count: usize, most: u64, seed: u64) -> Vec<(u64, usize)> {
        let mut state = seed;
        (0..count)
            .map(|place| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % most, place)
            })
            .collect()
    }

    #[test]
    fn sorts_as_the_standard_library_and_keeps_equal_elements_in_order() {
        for count in (0..40).chain([100, 1000, 4097]) {
            for most in [1, 2, 7, 1 << 30] {
                let given = drawn(count, most, count as u64 + most);
                let (mut ours, mut theirs) = (given.clone(), given.clone());
                ours.shared_sort_by_key(|pair| pair.0);
                theirs.sort_by_key(|pair| pair.0);
                assert_eq!(ours, theirs, "{count} elements below {most}");
                ours.shared_sort_by(|a, b| b.0.cmp(&a.0));
                theirs.sort_by_key(|pair| Reverse(pair.0));
                assert_eq!(ours, theirs, "{count} elements below {most}, from the greatest");
                ours.shared_sort();
                theirs.sort_unstable();
                assert_eq!(ours, theirs, "{count} elements below {most}, by both fields");
            }
        }
    }

    #[test]
    fn elements_need_not_be_copied() {
        let mut words: Vec<String> = drawn(50, 1000, 3).iter().map(|pair| pair.0.to_string()).collect();
        let mut sorted = words.clone();
        words.shared_sort();
        sorted.sort();
        assert_eq!(words, sorted);
    }
}
