//! Where the dim of a value that was gathered goes, through ops that treat its parts alike.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::follow::{MAX_STEPS, depends_on_device_id, only_moves};
use hashbrown::HashSet;
use hlo_analysis::values::{Origin, User, ValueId};
use hlo_ir::factors::{FactorRole, FactorSet, FactorUse, find_factors};
use hlo_ir::op::FactorRule;
use hlo_ir::{InstId, Opcode};

/// Where all uses of a gathered array end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ends {
    /// Ops that compute each part of the dim by itself, or sums over it: not those that only move or change single elements.
    pub(crate) works: Vec<InstId>,
    /// Ops that sum, count or take statistics over the dim.
    pub(crate) sums: Vec<InstId>,
    /// Slices along the dim, each of which begins where the device's number says.
    pub(crate) slices: Vec<InstId>,
}

/// A gathered array of which the parts along the dim are used by themselves or summed, and nothing else.
pub(crate) struct GatheredParts<'a> {
    pub(crate) gather: &'a Collective,
    /// The size of the gathered array.
    pub(crate) bytes: u64,
    pub(crate) dim: usize,
    pub(crate) ends: Ends,
}

/// The all-gathers whose parts end so.
pub(crate) fn gathered_parts<'a>(cx: &'a AuditCx<'_>) -> impl Iterator<Item = GatheredParts<'a>> {
    let gathers = cx.collectives.iter().filter(|c| c.is_all_gather() && !c.is_of_one_device());
    let arrays = gathers.flat_map(|gather| (0..gather.n_arrays(cx.module)).map(move |k| (gather, k)));
    arrays.filter_map(move |(gather, k)| {
        let (bytes, dim) = (cx.array_bytes(gather, k), gather.dim?);
        let n_parts = gather.members.groups.iter().map(Vec::len).max()?;
        let is_large = bytes >= SMALL_BYTES;
        let ends = is_large.then(|| find_ends(cx, (cx.result(gather, k)?, dim), n_parts as i64)).flatten()?;
        Some(GatheredParts { gather, bytes, dim, ends })
    })
}

/// The ends of a dim that lies in `n_parts` parts; none where anything takes the dim otherwise.
fn find_ends(cx: &AuditCx<'_>, start: (ValueId, usize), n_parts: i64) -> Option<Ends> {
    let mut ends = Ends::default();
    let mut open = vec![start];
    let mut seen: HashSet<(ValueId, usize)> = HashSet::from_iter([start]);
    while let Some((value, dim)) = open.pop() {
        if cx.values.uses[value].is_empty() || seen.len() > MAX_STEPS {
            return None;
        }
        for one in &cx.values.uses[value] {
            let next = match one.user {
                User::Exit(_) | User::Opaque(_) => return None,
                User::Becomes(next) => {
                    let is_handed_on =
                        cx.values.values[next].origin != Origin::Carry && cx.values.sources[next].len() == 1;
                    is_handed_on.then(|| vec![(next, dim)])?
                }
                User::Op { inst, operand } => ends.through(cx, inst, (operand as usize, dim), n_parts)?,
            };
            open.extend(next.into_iter().filter(|&next| seen.insert(next)));
        }
    }
    Some(ends)
}

impl Ends {
    /// Where an op takes the dim of an operand; none if it needs the dim whole.
    fn through(
        &mut self,
        cx: &AuditCx<'_>,
        inst: InstId,
        (operand, dim): (usize, usize),
        n_parts: i64,
    ) -> Option<Vec<(ValueId, usize)>> {
        let instruction = cx.module.inst(inst);
        let leaf = |k: usize| cx.values.leaves(inst).get(k).and_then(|leaf| leaf.expand());
        if instruction.opcode == Opcode::DynamicSlice && operand == 0 && is_own_part(cx, inst, dim, n_parts) {
            self.slices.push(inst);
            return Some(Vec::new());
        }
        if instruction.opcode.row().factors == FactorRule::BatchNorm && operand == 0 {
            let is_statistic = cx.module.shape(inst).as_tuple().is_some();
            if is_statistic {
                self.sums.push(inst);
                return Some(leaf(0).map(|value| (value, dim)).into_iter().collect());
            }
        }
        let factors = find_factors(cx.module, inst).ok()?;
        let major = *factors.operands.get(operand)?.get(dim)?.first()?;
        if major.size % n_parts != 0 {
            return None;
        }
        match major.role {
            FactorRole::Reduce(_) => {
                // A product sums over a dim of both operands: the other one may be whole along it, as are activations beside weights. A
                // lookup that is cut so finds nothing on most devices.
                if instruction.opcode != Opcode::Reduce {
                    return None;
                }
                self.sums.push(inst);
                Some(Vec::new())
            }
            FactorRole::Pass => {
                if !only_moves(cx, inst) && !instruction.opcode.is_elementwise() {
                    self.works.push(inst);
                }
                let is_major = |uses: &[FactorUse]| uses.first().is_some_and(|one| one.factor == major.factor);
                let results = factors.results.iter().enumerate().map(|(k, tensor)| {
                    let dim = tensor.iter().position(|uses| is_major(uses));
                    // A factor that a result lacks is used up in it; one that is no major part of a dim lies elsewhere.
                    match dim {
                        Some(dim) => Some(leaf(k).map(|value| (value, dim))),
                        None => (!FactorSet::mentions(tensor, major.factor)).then_some(None),
                    }
                });
                let results: Vec<Option<(ValueId, usize)>> = results.collect::<Option<_>>()?;
                Some(results.into_iter().flatten().collect())
            }
            FactorRole::Own | FactorRole::Whole(_) | FactorRole::Shift => None,
        }
    }
}

/// Whether a slice takes one part along the dim, where the device's number says.
fn is_own_part(cx: &AuditCx<'_>, slice: InstId, dim: usize, n_parts: i64) -> bool {
    let operands = &cx.module.inst(slice).operands;
    let size = |inst: InstId| cx.module.shape(inst).as_array().and_then(|array| array.dims.get(dim).copied());
    let Some((whole, part)) = operands.first().and_then(|&whole| Some((size(whole)?, size(slice)?))) else {
        return false;
    };
    part * n_parts == whole && operands.get(dim + 1).is_some_and(|&start| depends_on_device_id(cx, start))
}
