//! What can be computed in parts, from a collective outwards.

use cranelift_entity::EntitySet;
use hlo_analysis::code::pinned_by_control;
use hlo_ir::attrs::Attrs;
use hlo_ir::factors::{FactorRole, FactorSet, TensorFactors, find_factors};
use hlo_ir::localize::localize;
use hlo_ir::module::UserMap;
use hlo_ir::monoid::Monoid;
use hlo_ir::op::{CollectiveForm, CollectiveRule, CollectiveSource, FactorRule, Flow};
use hlo_ir::{InstId, Module, Opcode};
use hlo_spmd::{array, check_free};
use indexmap::IndexMap;

/// How an instruction is computed on a part of its result.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The dim of its result that is cut.
    pub dim: usize,
    /// The dim of each operand that is cut; `None`: it takes the whole operand.
    pub operands: Vec<Option<usize>>,
    /// Its attributes on a part.
    pub attrs: Attrs,
}

/// Instructions of one computation that are computed in parts.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// How many parts.
    pub n: usize,
    /// The collective where the region begins.
    pub seed: InstId,
    /// The dim of its result that is cut.
    pub dim: usize,
    pub members: IndexMap<InstId, Member>,
    /// What is no member, but is a sum over the parts of its operands: these dims of the operands are cut.
    pub sums: IndexMap<InstId, Vec<Option<usize>>>,
}

impl Region {
    /// Its collectives.
    pub(super) fn collectives<'a>(&'a self, module: &'a Module) -> impl Iterator<Item = InstId> + 'a {
        self.members.keys().copied().filter(|&inst| is_collective(module, inst))
    }
}

/// Whether an instruction is a collective of one array that can be done in parts.
pub(super) fn is_collective(module: &Module, inst: InstId) -> bool {
    use CollectiveSource::{Members, Pair, Reduction};
    let instruction = module.inst(inst);
    let is_kind = |rule: CollectiveRule| {
        rule.form == CollectiveForm::Synchronous && matches!(rule.source, Reduction | Members | Pair)
    };
    instruction.opcode.row().collective.is_some_and(is_kind)
        && instruction.operands.len() == 1
        && array(module, inst).is_some()
}

/// What regions of one computation are grown in.
pub(super) struct Surroundings<'m> {
    module: &'m Module,
    users: UserMap,
    pinned: EntitySet<InstId>,
    live: EntitySet<InstId>,
}

impl<'m> Surroundings<'m> {
    /// Of an instruction.
    pub(super) fn of(module: &'m Module, inst: InstId) -> Surroundings<'m> {
        let comp = module.inst(inst).parent;
        Surroundings { module, users: module.users(), pinned: pinned_by_control(module, comp), live: module.live(comp) }
    }
}

/// The region that begins at `seed`, cut in `n` parts along a dim of its result; none if the seed cannot be cut so.
pub(super) fn find_region(around: &Surroundings<'_>, seed: InstId, dim: usize, n: usize) -> Option<Region> {
    let Surroundings { module, users, live, .. } = around;
    let grower = Grower { module, pinned: &around.pinned, n };
    let mut region = Region { n, seed, dim, members: IndexMap::new(), sums: IndexMap::new() };
    region.members.insert(seed, grower.member(seed, dim)?);
    let mut next = 0;
    while let Some((&inst, member)) = region.members.get_index(next) {
        next += 1;
        let (dim, cut) = (member.dim, member.operands.clone());
        let mut around: Vec<(InstId, usize)> = Vec::new();
        let operands = module.inst(inst).operands.iter().copied();
        around.extend(operands.zip(cut).filter_map(|(operand, dim)| Some((operand, dim?))));
        for &user in users[inst].iter().filter(|&&user| live.contains(user)) {
            match grower.through(user, inst, dim) {
                Some(Through::To(dim)) => around.push((user, dim)),
                Some(Through::Summed(operands)) => {
                    region.sums.insert(user, operands);
                }
                None => {}
            }
        }
        for (other, dim) in around {
            if !region.members.contains_key(&other)
                && let Some(member) = grower.member(other, dim)
            {
                region.members.insert(other, member);
            }
        }
    }
    let Region { members, sums, .. } = &mut region;
    // A sum of parts needs the parts of all operands that are cut.
    sums.retain(|inst, operands| {
        let of = module.inst(*inst).operands.iter().zip(operands.iter());
        !members.contains_key(inst)
            && of.into_iter().all(|(o, dim)| dim.is_none_or(|dim| members.get(o).is_some_and(|m| m.dim == dim)))
    });
    Some(region)
}

/// Where a dim of an operand goes.
enum Through {
    /// To this dim of the result.
    To(usize),
    /// The result is the sum over it; the dims of all operands that are cut.
    Summed(Vec<Option<usize>>),
}

struct Grower<'m> {
    module: &'m Module,
    pinned: &'m EntitySet<InstId>,
    n: usize,
}

impl Grower<'_> {
    /// How an instruction is computed on a part of its result along `dim`; `None` if it cannot.
    fn member(&self, inst: InstId, dim: usize) -> Option<Member> {
        let module = self.module;
        let size = *array(module, inst)?.dims.get(dim)?;
        if size < self.n as i64 || size % self.n as i64 != 0 || !self.is_free(inst) {
            return None;
        }
        if is_collective(module, inst) {
            let named = module.inst(inst).attrs.collective()?.dimensions;
            let attrs = module.inst(inst).attrs.clone();
            return (!named.contains(&(dim as i64))).then(|| Member { dim, operands: vec![Some(dim)], attrs });
        }
        let set = self.factors(inst)?;
        let [result] = set.results.as_slice() else { return None };
        // What a broadcast repeats is the same in each part.
        let is_broadcast = module.inst(inst).opcode.row().factors == FactorRule::Broadcast;
        let repeated = || slowest(result, dim, FactorRole::Own).filter(|_| is_broadcast);
        let factor = slowest(result, dim, FactorRole::Pass).or_else(repeated)?;
        let (operands, attrs) = self.cut(inst, &set, factor)?;
        Some(Member { dim, operands, attrs })
    }

    /// The dims of operands that are cut with a factor, and the attributes on a part.
    fn cut(&self, inst: InstId, set: &FactorSet, factor: usize) -> Option<(Vec<Option<usize>>, Attrs)> {
        let operands = self.operands_with(set, factor)?;
        let cuts: Vec<i64> = (0..set.factors.len()).map(|f| if f == factor { self.n as i64 } else { 1 }).collect();
        let form = localize(self.module, inst, set, &cuts).ok()?;
        (form.before.is_empty() && form.after.is_empty()).then_some((operands, form.attrs))
    }

    /// Where the dim of an operand goes in `user`.
    fn through(&self, user: InstId, operand: InstId, dim: usize) -> Option<Through> {
        if !self.is_free(user) {
            return None;
        }
        if is_collective(self.module, user) {
            return Some(Through::To(dim));
        }
        let set = self.factors(user)?;
        let [result] = set.results.as_slice() else { return None };
        let k = self.module.inst(user).operands.iter().position(|&o| o == operand)?;
        let of = set.operands.get(k)?;
        if let Some(factor) = slowest(of, dim, FactorRole::Pass) {
            return Some(Through::To(FactorSet::find_use(result, factor).filter(|found| found.1 == 0)?.0));
        }
        let factor = slowest(of, dim, FactorRole::Reduce(Monoid::Add))?;
        // A product alone: another sum has an initial value, which parts would add several times.
        let is_product = self.module.inst(user).opcode == Opcode::Dot;
        self.operands_with(&set, factor).filter(|_| is_product).map(Through::Summed)
    }

    /// The dim of each operand that a factor cuts; `None` if the number of parts does not divide it, or it is no slowest factor.
    fn operands_with(&self, set: &FactorSet, factor: usize) -> Option<Vec<Option<usize>>> {
        if set.factors.get(factor)?.size % self.n as i64 != 0 {
            return None;
        }
        let dims = set.operands.iter().map(|operand| match FactorSet::find_use(operand, factor) {
            Some((dim, 0, _)) => Some(Some(dim)),
            Some(_) => None,
            None => Some(None),
        });
        dims.collect()
    }

    fn factors(&self, inst: InstId) -> Option<FactorSet> {
        let is_plain = matches!(self.module.inst(inst).opcode.row().flow, Flow::All | Flow::Identity);
        find_factors(self.module, inst).ok().filter(|_| is_plain)
    }

    /// Whether nobody asked for an instruction to stay as it is.
    fn is_free(&self, inst: InstId) -> bool {
        let is_static = array(self.module, inst).is_some_and(|shape| shape.dynamic == 0);
        is_static && !self.module.must_stay(inst) && check_free(self.module, inst, self.pinned).is_ok()
    }
}

/// The slowest factor of a dim, if it has this role.
fn slowest(tensor: &TensorFactors, dim: usize, role: FactorRole) -> Option<usize> {
    tensor.get(dim)?.first().filter(|one| one.role == role).map(|one| one.factor)
}
