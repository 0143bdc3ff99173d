//! A table of the instructions of one computation.
//!
//! Instructions are numbered over the whole module. A plain [`SecondaryMap`](cranelift_entity::SecondaryMap) reaches from the
//! first number to the largest in use, so one for each of many computations takes quadratic time. This table begins at the
//! computation's first number. The few instructions that edits have added far behind the others go into a hash table.

use crate::module::{CompId, InstId, Module};
use cranelift_entity::EntityRef;
use hashbrown::HashMap;
use std::ops::{Index, IndexMut};

/// A value for each instruction of one computation; a default for those that were never written. Making and filling one is
/// linear in the computation.
#[derive(Clone, Debug)]
pub struct InstMap<V> {
    first: usize,
    /// From the first to the last instruction; 0 where that is too far.
    n_near: usize,
    max_near: usize,
    near: Vec<V>,
    far: HashMap<InstId, V>,
    default: V,
}

impl<V: Clone + Default> InstMap<V> {
    /// An empty table for the instructions of `comp`.
    pub fn of(module: &Module, comp: CompId) -> InstMap<V> {
        let insts = &module.comp(comp).insts;
        let (first, last) =
            insts.iter().fold((usize::MAX, 0), |(first, last), inst| (first.min(inst.index()), last.max(inst.index())));
        let first = if insts.is_empty() { 0 } else { first };
        let max_near = 2 * insts.len() + 16;
        let n_near = Some(last.saturating_sub(first) + 1).filter(|&n| n <= max_near).unwrap_or(0);
        InstMap { first, n_near, max_near, near: Vec::new(), far: HashMap::new(), default: V::default() }
    }

    /// Makes room for the near one at `idx`.
    #[cold]
    fn grow(&mut self, idx: usize) {
        // Most tables are filled to their computation's end. What edits have added since comes in few steps.
        let n = if idx < self.n_near { self.n_near } else { (idx + 1 + idx / 8).min(self.max_near) };
        self.near.resize(n, V::default());
    }

    /// Its place among the near ones.
    #[inline]
    fn near_idx(&self, inst: InstId) -> Option<usize> {
        inst.index().checked_sub(self.first).filter(|&idx| idx < self.max_near)
    }
}

impl<V: Clone + Default> Index<InstId> for InstMap<V> {
    type Output = V;

    #[inline]
    fn index(&self, inst: InstId) -> &V {
        let found = match self.near_idx(inst) {
            Some(idx) => self.near.get(idx),
            None => self.far.get(&inst),
        };
        found.unwrap_or(&self.default)
    }
}

impl<V: Clone + Default> IndexMut<InstId> for InstMap<V> {
    #[inline]
    fn index_mut(&mut self, inst: InstId) -> &mut V {
        match self.near_idx(inst) {
            Some(idx) => {
                if idx >= self.near.len() {
                    self.grow(idx);
                }
                &mut self.near[idx]
            }
            None => self.far.entry(inst).or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::Builder;
    use crate::{DType, Literal, Scalar};

    #[test]
    fn near_and_far_instructions_have_values_of_their_own() {
        let mut module = Module::new("m");
        let few = module.names.fresh("few");
        let few = module.add_computation(few);
        let many = module.names.fresh("many");
        let many = module.add_computation(many);
        let constant = |module: &mut Module, comp| {
            Builder::new(module, comp).constant("c", Literal::scalar(DType::S32, Scalar::Int(1)))
        };
        let first = constant(&mut module, few);
        let others: Vec<InstId> = (0..100).map(|_| constant(&mut module, many)).collect();
        let last = constant(&mut module, few);
        let mut map: InstMap<u32> = InstMap::of(&module, few);
        map[first] = 1;
        map[last] = 2;
        assert_eq!((map[first], map[last], map[others[0]], map[others[99]]), (1, 2, 0, 0));
        assert!(map.near.len() + map.far.len() <= 3);
    }
}
