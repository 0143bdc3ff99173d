//! Which instructions make a region: products that could be joined, taken apart, or done in another order.

use crate::independent::by_rank;
use crate::rewritable::{may_lie_otherwise, says_nothing_beside, seen_layouts};
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_ir::attrs::{ConvAttrs, DotAttrs};
use hlo_ir::names::FixedHash;
use hlo_ir::{CompId, Dims, InstId, Module, NumberClass, Opcode};
use hlo_rules::region::Aim;
use indexmap::IndexMap;

/// Instructions, and what may be made of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    pub comp: CompId,
    pub insts: Vec<InstId>,
    pub aim: Aim,
}

/// The most instructions of a region.
const MOST_INSTS: usize = 32;
/// The most products of one operand that are looked at together.
const MOST_SHARING: usize = 6;

/// The regions of a computation; no instruction is in two of them.
pub(super) fn candidates(module: &Module, comp: CompId) -> Vec<Candidate> {
    let mut finder = Finder::new(module, comp);
    let mut found: Vec<Candidate> = Vec::new();
    let wanted = [
        (Aim::Split, finder.around_concatenations()),
        (Aim::Split, finder.under_slices()),
        (Aim::Join, finder.sharing()),
        (Aim::Join, finder.summed()),
        (Aim::Reorder, finder.chains()),
    ];
    for (aim, seeds) in wanted {
        for insts in seeds {
            let is_free = |inst: &InstId| finder.is_usable.contains(*inst) && !finder.is_taken.contains(*inst);
            if insts.len() > 1 && insts.len() <= MOST_INSTS && insts.iter().all(is_free) {
                finder.is_taken.extend(insts.iter().copied());
                found.push(Candidate { comp, insts, aim });
            }
        }
    }
    found
}

struct Finder<'m> {
    module: &'m Module,
    comp: CompId,
    /// Instructions that something needs, in order.
    insts: Vec<InstId>,
    users: SecondaryMap<InstId, Vec<InstId>>,
    is_usable: EntitySet<InstId>,
    is_taken: EntitySet<InstId>,
}

/// What products of one operand have to agree in: which operand it is, and what they do to its dims.
type Use = (InstId, usize, Dims, Dims);

impl<'m> Finder<'m> {
    fn new(module: &'m Module, comp: CompId) -> Finder<'m> {
        let (live, seen) = (module.live(comp), seen_layouts(module, comp));
        let insts: Vec<InstId> = module.comp(comp).insts.iter().copied().filter(|&i| live.contains(i)).collect();
        let mut users: SecondaryMap<InstId, Vec<InstId>> = SecondaryMap::new();
        let mut is_usable = EntitySet::new();
        for &inst in &insts {
            for &operand in &module.inst(inst).operands {
                if users[operand].last() != Some(&inst) {
                    users[operand].push(inst);
                }
            }
            let marks = module.inst(inst).marks.as_ref();
            let is_float = module.shape(inst).as_array().is_some_and(|a| a.dtype.class() == NumberClass::Float);
            if is_float
                && may_lie_otherwise(module, inst, &seen)
                && says_nothing_beside(module, inst)
                && marks.is_none_or(|marks| marks.frontend_attributes.is_empty())
            {
                is_usable.insert(inst);
            }
        }
        Finder { module, comp, insts, users, is_usable, is_taken: EntitySet::new() }
    }

    fn is(&self, inst: InstId, opcode: Opcode) -> bool {
        self.module.inst(inst).opcode == opcode
    }

    fn is_product(&self, inst: InstId) -> bool {
        self.is(inst, Opcode::Dot) || self.is(inst, Opcode::Convolution)
    }

    fn of(&self, opcode: Opcode) -> impl Iterator<Item = InstId> + '_ {
        self.insts.iter().copied().filter(move |&inst| self.is(inst, opcode))
    }

    /// Concatenations with the products that take them, transposed or not.
    fn around_concatenations(&self) -> Vec<Vec<InstId>> {
        let around = |concatenation: InstId| {
            let mut insts = vec![concatenation];
            for &user in &self.users[concatenation] {
                match self.users[user].as_slice() {
                    &[product] if self.is(user, Opcode::Transpose) && self.is_product(product) => {
                        insts.extend([user, product]);
                    }
                    _ if self.is_product(user) => insts.push(user),
                    _ => {}
                }
            }
            insts
        };
        self.of(Opcode::Concatenate).map(around).collect()
    }

    /// Products of which only slices are taken.
    fn under_slices(&self) -> Vec<Vec<InstId>> {
        let products = self.insts.iter().copied().filter(|&inst| self.is_product(inst));
        let with_slices = |product: InstId| {
            let users = &self.users[product];
            let is_cut = users.len() > 1 && users.iter().all(|&user| self.is(user, Opcode::Slice));
            is_cut.then(|| std::iter::once(product).chain(users.iter().copied()).collect())
        };
        products.filter_map(with_slices).collect()
    }

    /// Products of one operand that contract the same dims of it and do not need each other.
    fn sharing(&self) -> Vec<Vec<InstId>> {
        let mut uses: IndexMap<Use, Vec<InstId>, FixedHash> = IndexMap::default();
        for &inst in &self.insts {
            for k in 0..2 {
                if let Some(one) = self.use_of(inst, k) {
                    uses.entry(one).or_default().push(inst);
                }
            }
        }
        let mut all = Vec::new();
        for products in uses.into_values().filter(|products| products.len() > 1) {
            for alike in by_rank(self.module, self.comp, &products) {
                all.extend(alike.chunks(MOST_SHARING).map(<[InstId]>::to_vec));
            }
        }
        all
    }

    fn use_of(&self, inst: InstId, k: usize) -> Option<Use> {
        let node = self.module.inst(inst);
        let operand = *node.operands.get(k)?;
        if let Some(dot) = DotAttrs::of(&node.attrs).filter(|_| node.opcode == Opcode::Dot) {
            let [contracted, batch] = match k {
                0 => [&dot.lhs_contracting_dims, &dot.lhs_batch_dims],
                _ => [&dot.rhs_contracting_dims, &dot.rhs_batch_dims],
            };
            return Some((operand, k, contracted.iter().copied().collect(), batch.iter().copied().collect()));
        }
        let conv = ConvAttrs::of(&node.attrs).filter(|_| node.opcode == Opcode::Convolution && k == 0)?;
        let labels = &conv.dim_labels;
        let spatial: Dims = labels.input_spatial.iter().copied().collect();
        Some((operand, 2, Dims::from_slice(&[labels.input_feature, labels.input_batch]), spatial))
    }

    /// Sums of two products that nothing else takes.
    fn summed(&self) -> Vec<Vec<InstId>> {
        let is_own = |sum: InstId, operand: InstId| self.is_product(operand) && self.users[operand] == [sum];
        let sum_of = |sum: InstId| {
            let [a, b] = self.module.inst(sum).operands[..] else { return None };
            (a != b && is_own(sum, a) && is_own(sum, b)).then(|| vec![a, b, sum])
        };
        self.of(Opcode::Add).filter_map(sum_of).collect()
    }

    /// Products of products that nothing else takes.
    fn chains(&self) -> Vec<Vec<InstId>> {
        let chain = |last: InstId| {
            let operands = &self.module.inst(last).operands;
            let first = operands.iter().copied().find(|&o| self.is(o, Opcode::Dot) && self.users[o] == [last]);
            first.map(|first| vec![first, last])
        };
        self.of(Opcode::Dot).filter_map(chain).collect()
    }
}
