//! A table whose copies share what none of them has written to.
//!
//! A pass works on a copy of its module, and so does every way that a preset tries. Most of them write to few instructions. The table
//! is in chunks of [`CHUNK`] entries; a write copies the chunk that it touches if another table holds it too.

use cranelift_entity::EntityRef;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Entries of a chunk: a power of two.
const CHUNK: usize = 128;

/// Entries by their ids, in the order in which they were added.
#[derive(Clone, Debug)]
pub(crate) struct Chunks<K, V> {
    /// All full but the last one.
    chunks: Vec<Arc<Vec<V>>>,
    len: usize,
    keys: PhantomData<K>,
}

impl<K, V> Default for Chunks<K, V> {
    fn default() -> Chunks<K, V> {
        Chunks { chunks: Vec::new(), len: 0, keys: PhantomData }
    }
}

impl<K: EntityRef, V: Clone> Chunks<K, V> {
    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry and returns its id.
    pub(crate) fn push(&mut self, value: V) -> K {
        let id = K::new(self.len);
        if self.len.is_multiple_of(CHUNK) {
            self.chunks.push(Arc::new(Vec::with_capacity(CHUNK)));
        }
        if let Some(last) = self.chunks.last_mut() {
            Arc::make_mut(last).push(value);
        }
        self.len += 1;
        id
    }
}

impl<K: EntityRef, V> Index<K> for Chunks<K, V> {
    type Output = V;

    #[inline]
    fn index(&self, id: K) -> &V {
        &self.chunks[id.index() / CHUNK][id.index() % CHUNK]
    }
}

impl<K: EntityRef, V: Clone> IndexMut<K> for Chunks<K, V> {
    #[inline]
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut Arc::make_mut(&mut self.chunks[id.index() / CHUNK])[id.index() % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InstId;

    #[test]
    fn copies_share_what_is_not_written_to() {
        let mut one: Chunks<InstId, usize> = Chunks::default();
        let ids: Vec<InstId> = (0..3 * CHUNK + 1).map(|n| one.push(n)).collect();
        let mut other = one.clone();
        other[ids[CHUNK]] = 7;
        let new = other.push(8);
        assert_eq!((one.len(), other.len(), new), (3 * CHUNK + 1, 3 * CHUNK + 2, InstId::new(3 * CHUNK + 1)));
        assert_eq!((one[ids[CHUNK]], other[ids[CHUNK]], other[new]), (CHUNK, 7, 8));
        assert!(ids.iter().filter(|id| id.index() != CHUNK).all(|&id| one[id] == other[id] && one[id] == id.index()));
        let shared: Vec<bool> = one.chunks.iter().zip(&other.chunks).map(|(a, b)| Arc::ptr_eq(a, b)).collect();
        assert_eq!(shared, [true, false, true, false]);
    }
}
