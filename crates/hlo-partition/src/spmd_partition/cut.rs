//! Which atoms cut which factors of an instruction, and how its tensors are cut then.

use crate::mesh::ModuleMesh;
use crate::sharding::{ArraySharding, AtomList};
use hlo_ir::factors::{FactorId, FactorRole, FactorSet, FactorUse, TensorFactors};
use smallvec::SmallVec;

/// The atoms that cut each factor of an instruction, major to minor.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct FactorCut {
    pub lists: Vec<AtomList>,
}

impl FactorCut {
    /// Nothing is cut.
    pub(super) fn none(n_factors: usize) -> FactorCut {
        FactorCut { lists: vec![AtomList::new(); n_factors] }
    }

    /// Into how many shards each factor is cut.
    pub(super) fn n_shards(&self, mesh: &ModuleMesh) -> Vec<i64> {
        self.lists.iter().map(|atoms| mesh.n_places(atoms)).collect()
    }

    /// How a tensor is cut; `None` if it must be whole along a factor that is cut, or if its tiles would not be runs of rows.
    pub(super) fn tensor(&self, mesh: &ModuleMesh, tensor: &TensorFactors) -> Option<ArraySharding> {
        let dims = tensor.iter().map(|uses| self.dim(mesh, uses)).collect::<Option<_>>()?;
        Some(ArraySharding { dims, partial: AtomList::new() })
    }

    /// The atoms of a dim. Where it is a product of factors, a minor one is cut only if the major ones are cut into single
    /// positions, and all cuts are even.
    fn dim(&self, mesh: &ModuleMesh, uses: &[FactorUse]) -> Option<AtomList> {
        let mut out = AtomList::new();
        let n_shards = |one: &FactorUse| self.lists.get(one.factor).map_or(1, |list| mesh.n_places(list));
        let is_product = uses.iter().filter(|one| one.size > 1 || n_shards(one) > 1).count() > 1;
        let mut is_cut_through = true;
        for one in uses {
            let list = self.lists.get(one.factor)?;
            let n = mesh.n_places(list);
            if n > 1 {
                let is_even = !is_product || one.size % n == 0;
                if matches!(one.role, FactorRole::Whole(_)) || !is_cut_through || !is_even {
                    return None;
                }
                out.extend(list.iter().copied());
            }
            is_cut_through &= n == one.size;
        }
        Some(out)
    }

    /// The atoms along which results are partial: those that cut reduced factors.
    pub(super) fn reduced(&self, set: &FactorSet) -> AtomList {
        let is_reduced = |factor: FactorId| set.uses(factor).any(|one| matches!(one.role, FactorRole::Reduce(_)));
        let lists = self.lists.iter().enumerate().filter(|(factor, _)| is_reduced(*factor));
        let mut atoms: AtomList = lists.flat_map(|(_, list)| list.iter().copied()).collect();
        atoms.sort();
        atoms
    }
}

/// By which atoms a sharding of a tensor cuts each of its factors. Where a dim is a product of factors, its atoms go to the major
/// factor as long as they divide it; what finds no place is left out.
pub(super) fn lists_of(
    mesh: &ModuleMesh,
    tensor: &TensorFactors,
    sharding: &ArraySharding,
) -> SmallVec<[(FactorId, AtomList); 4]> {
    let mut out = SmallVec::new();
    for (uses, atoms) in tensor.iter().zip(&sharding.dims) {
        if atoms.is_empty() {
            continue;
        }
        if let [only] = uses.as_slice() {
            out.push((only.factor, atoms.clone()));
            continue;
        }
        let mut left = atoms.as_slice();
        for one in uses {
            let (mut list, mut size) = (AtomList::new(), one.size);
            while let Some((&atom, rest)) = left.split_first() {
                if size % mesh.size(atom) != 0 || size == 1 {
                    break;
                }
                size /= mesh.size(atom);
                list.push(atom);
                left = rest;
            }
            if !list.is_empty() {
                out.push((one.factor, list));
            }
            if size > 1 {
                break;
            }
        }
    }
    out
}
