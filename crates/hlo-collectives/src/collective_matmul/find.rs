//! Collectives beside products, and which dims of the product they cut.

use crate::refusal::{CollectiveRefusal, MatmulRefusal};
use cranelift_entity::EntitySet;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::attrs::{Attrs, DotAttrs};
use hlo_ir::factors::{FactorSet, find_factors};
use hlo_ir::module::UserMap;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, InstId, Module, Opcode};
use hlo_spmd::{array, check_free};
use std::sync::Arc;

/// Devices of a group that a ring is written for.
const LARGEST_RING: usize = 16;

/// What is beside the products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An all-gather, which they read.
    Gather,
    /// A reduce-scatter of one's result.
    Scatter,
    /// An all-reduce of one's result.
    Sum,
}

const KINDS: [(Opcode, Kind); 3] =
    [(Opcode::AllGather, Kind::Gather), (Opcode::ReduceScatter, Kind::Scatter), (Opcode::AllReduce, Kind::Sum)];

/// What a product does with a dim of one of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// It is a dim of the result too.
    Free {
        /// Which.
        result: usize,
    },
    /// It is a dim of both operands and of the result.
    Batch {
        /// Of the other operand.
        other: usize,
        /// Of the result.
        result: usize,
    },
    /// It is summed over.
    Contracted {
        /// Of the other operand.
        other: usize,
    },
}

/// A product, and the operand's dim that is cut.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub dot: InstId,
    /// Which operand.
    pub side: usize,
    /// Its dim.
    pub dim: usize,
    pub role: Role,
    /// What stands between product and collective, in order.
    pub between: Vec<Between>,
}

/// A conversion, a copy or a reshape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Between {
    pub inst: InstId,
    /// The dim of its result that is cut. What reshapes a product that is all-reduced is done after the sum instead.
    pub dim: usize,
}

/// A collective that can be taken apart.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub kind: Kind,
    pub collective: InstId,
    /// One, or of a gather each that reads it.
    pub products: Vec<Product>,
    /// The dim that is gathered, scattered, or cut.
    pub dim: usize,
    /// Elements along the dim of the product's result that is cut.
    pub cut_size: i64,
    /// Whether other instructions, or the caller, need the gathered array.
    pub is_needed_whole: bool,
    /// Flat device ids.
    pub groups: Arc<[Vec<u32>]>,
    /// Of the collective's larger side.
    pub bytes: u64,
}

impl Site {
    /// What tells sites that are alike from others.
    pub(super) fn key(&self, module: &Module) -> String {
        let mut key = format!("{:?} {:?} {:?}", self.kind, module.shape(self.collective), self.groups);
        for product in &self.products {
            let instruction = module.inst(product.dot);
            let operands = instruction.operands.iter().map(|&operand| module.shape(operand));
            key += &format!(" {:?} {:?} {:?}", product.role, operands.collect::<Vec<_>>(), instruction.attrs);
        }
        key
    }

    /// What it is, in words, of so many that are alike.
    pub(super) fn text(&self, n: usize) -> String {
        let what = match self.kind {
            Kind::Gather => "gathered for a product",
            Kind::Scatter => "a product that is reduce-scattered",
            Kind::Sum => "a product that is all-reduced",
        };
        if n > 1 { format!("{what}, with {} that are alike,", n - 1) } else { what.to_string() }
    }
}

/// Finds all sites; collectives beside products that stay, and why.
pub(super) fn find_sites(module: &Module, give: &mut dyn FnMut(Site)) -> Vec<(InstId, CollectiveRefusal)> {
    let users = module.users();
    let mut refused = Vec::new();
    for comp in code_computations(module) {
        let live = module.live(comp);
        let finder = Finder { module, users: &users, pinned: pinned_by_control(module, comp) };
        for &inst in module.comp(comp).insts.iter().filter(|&&inst| live.contains(inst)) {
            match finder.site(inst) {
                Ok(None) => {}
                Ok(Some(site)) => give(site),
                Err(reason) => refused.push((inst, reason)),
            }
        }
    }
    refused
}

struct Finder<'m> {
    module: &'m Module,
    users: &'m UserMap,
    pinned: EntitySet<InstId>,
}

impl Finder<'_> {
    /// The site of a collective; none if no product is beside it.
    fn site(&self, inst: InstId) -> Result<Option<Site>, CollectiveRefusal> {
        let module = self.module;
        let opcode = module.inst(inst).opcode;
        let Some(&(_, kind)) = KINDS.iter().find(|(of, _)| *of == opcode) else { return Ok(None) };
        let (&[operand], Some(result)) = (module.inst(inst).operands.as_slice(), array(module, inst)) else {
            return Ok(None);
        };
        let Some(view) = module.inst(inst).attrs.collective() else { return Ok(None) };
        let dim = view.dimensions.first().and_then(|&dim| usize::try_from(dim).ok());
        let (products, is_needed_whole) = match (kind, dim) {
            (Kind::Gather, Some(dim)) => self.readers(inst, dim),
            (Kind::Scatter, Some(dim)) => (self.made_by(operand, Some(dim)).into_iter().collect(), false),
            (Kind::Sum, _) => (self.made_by(operand, None).into_iter().collect::<Vec<Product>>(), false),
            (Kind::Gather | Kind::Scatter, None) => return Ok(None),
        };
        let Some(first) = products.first() else { return Ok(None) };
        check_free(module, inst, &self.pinned)?;
        if kind != Kind::Gather && view.to_apply.and_then(|comp| find_monoid(module, comp)) != Some(Monoid::Add) {
            return Err(MatmulRefusal::NoSum.into());
        }
        let groups = module.device_groups(inst).map_err(CollectiveRefusal::Groups)?;
        let Some(n) = groups.uniform_size() else { return Err(CollectiveRefusal::UnevenGroups) };
        let is_ring = kind != Kind::Sum;
        if n < 2 {
            return Err(CollectiveRefusal::LoneDevices);
        }
        if is_ring && n > LARGEST_RING {
            return Err(MatmulRefusal::LongRing { n, most: LARGEST_RING }.into());
        }
        if is_ring && module.header.replica_count > 1 && module.header.num_partitions > 1 {
            return Err(MatmulRefusal::ReplicasAndPartitions.into());
        }
        let cut = match (kind, first.role) {
            (Kind::Sum, Role::Free { result } | Role::Batch { result, .. }) => result,
            _ => dim.unwrap_or(0),
        };
        let whole = if kind == Kind::Sum { array(module, first.dot) } else { Some(result) };
        let cut_size = whole.and_then(|whole| whole.dims.get(cut)).copied().unwrap_or(0);
        let bytes = module.shape(inst).size_bytes().max(module.shape(operand).size_bytes());
        let groups = groups.groups.into();
        Ok(Some(Site { kind, collective: inst, products, dim: cut, cut_size, is_needed_whole, groups, bytes }))
    }

    /// The products that read a gathered array, and whether something else does.
    fn readers(&self, gather: InstId, dim: usize) -> (Vec<Product>, bool) {
        let is_root = |inst: InstId| self.module.comp(self.module.inst(inst).parent).root.expand() == Some(inst);
        let (mut products, mut is_needed_whole) = (Vec::new(), is_root(gather));
        for &user in &self.users[gather] {
            let mut between = Vec::new();
            let (mut at, mut read, mut dim) = (user, gather, dim);
            while self.is_passed(at) && self.users[at].len() == 1 && !is_root(at) {
                let Some(to) = self.dim_after(at, dim) else { break };
                between.push(Between { inst: at, dim: to });
                (read, at, dim) = (at, self.users[at][0], to);
            }
            match self.product(at, read, dim) {
                Some((side, role)) => products.push(Product { dot: at, side, dim, role, between }),
                None => is_needed_whole = true,
            }
        }
        // A product that reads it on both sides needs it whole.
        let all: Vec<InstId> = products.iter().map(|product: &Product| product.dot).collect();
        products.retain(|product| all.iter().filter(|&&dot| dot == product.dot).count() == 1);
        is_needed_whole |= products.len() < all.len();
        (products, is_needed_whole)
    }

    /// Whether `at` is a product that reads `operand` once, and what it does with its dim.
    fn product(&self, at: InstId, operand: InstId, dim: usize) -> Option<(usize, Role)> {
        let attrs = self.free_dot(at)?;
        let [lhs, rhs] = *self.module.inst(at).operands.as_slice() else { return None };
        let side = if lhs == operand { 0 } else { 1 };
        if lhs == rhs {
            return None;
        }
        Some((side, role(attrs, self.ranks(at)?, side, dim)))
    }

    /// The product whose result, converted perhaps, a collective takes and nothing else; cut along `dim`, or where its parts are largest
    /// runs of memory.
    fn made_by(&self, operand: InstId, dim: Option<usize>) -> Option<Product> {
        let is_sum = dim.is_none();
        let mut between = Vec::new();
        let (mut at, mut dim) = (operand, dim);
        loop {
            if self.users[at].len() != 1 || self.module.comp(self.module.inst(at).parent).root.expand() == Some(at) {
                return None;
            }
            if !self.is_passed(at) {
                break;
            }
            between.push(Between { inst: at, dim: dim.unwrap_or(0) });
            dim = match dim {
                Some(dim) => Some(self.dim_before(at, dim)?),
                None => None,
            };
            at = *self.module.inst(at).operands.first()?;
        }
        between.reverse();
        let attrs = self.free_dot(at)?;
        let ranks = self.ranks(at)?;
        let result = array(self.module, at)?;
        let slowest = || result.minor_to_major().iter().rev().map(|&d| d as usize).find(|&d| result.dims[d] > 1);
        let dim = dim.or_else(slowest)?;
        if is_sum {
            between.iter_mut().for_each(|between| between.dim = dim);
        }
        let (side, own) = operand_dim(attrs, ranks, dim)?;
        Some(Product { dot: at, side, dim: own, role: role(attrs, ranks, side, own), between })
    }

    fn free_dot(&self, at: InstId) -> Option<&DotAttrs> {
        let instruction = self.module.inst(at);
        let Attrs::Dot(attrs) = &instruction.attrs else { return None };
        let is_free = instruction.opcode == Opcode::Dot && check_free(self.module, at, &self.pinned).is_ok();
        let is_static = instruction.operands.iter().chain([&at]).all(|&i| array(self.module, i).is_some_and(is_static));
        (is_free && is_static).then_some(attrs)
    }

    fn ranks(&self, dot: InstId) -> Option<[usize; 2]> {
        let [lhs, rhs] = *self.module.inst(dot).operands.as_slice() else { return None };
        Some([array(self.module, lhs)?.rank(), array(self.module, rhs)?.rank()])
    }

    /// A conversion, copy or reshape that nothing holds where it is.
    fn is_passed(&self, inst: InstId) -> bool {
        let is_one = [Opcode::Convert, Opcode::Copy, Opcode::Reshape].contains(&self.module.inst(inst).opcode);
        is_one && check_free(self.module, inst, &self.pinned) == Ok(())
    }

    /// The dim of its result that has the elements of a dim of its operand, and no others.
    fn dim_after(&self, inst: InstId, dim: usize) -> Option<usize> {
        let set = find_factors(self.module, inst).ok()?;
        let factor = FactorSet::sole_use(set.operands.first()?, dim)?.factor;
        FactorSet::dim_of(set.results.first()?, factor)
    }

    /// The dim of its operand that has the elements of a dim of its result, and no others.
    fn dim_before(&self, inst: InstId, dim: usize) -> Option<usize> {
        let set = find_factors(self.module, inst).ok()?;
        let factor = FactorSet::sole_use(set.results.first()?, dim)?.factor;
        FactorSet::dim_of(set.operands.first()?, factor)
    }
}

fn is_static(shape: &ArrayShape) -> bool {
    shape.dynamic == 0
}

/// The other operand's attributes come second.
fn lists(attrs: &DotAttrs, side: usize) -> [[&[i64]; 2]; 2] {
    let lhs = [attrs.lhs_batch_dims.as_slice(), attrs.lhs_contracting_dims.as_slice()];
    let rhs = [attrs.rhs_batch_dims.as_slice(), attrs.rhs_contracting_dims.as_slice()];
    if side == 0 { [lhs, rhs] } else { [rhs, lhs] }
}

/// What a product does with a dim of an operand.
fn role(attrs: &DotAttrs, ranks: [usize; 2], side: usize, dim: usize) -> Role {
    let [[batch, contracted], [other_batch, other_contracted]] = lists(attrs, side);
    let place = |list: &[i64]| list.iter().position(|&d| d == dim as i64);
    if let Some(i) = place(batch) {
        return Role::Batch { other: other_batch[i] as usize, result: i };
    }
    if let Some(i) = place(contracted) {
        return Role::Contracted { other: other_contracted[i] as usize };
    }
    let before = (0..dim as i64).filter(|d| !batch.contains(d) && !contracted.contains(d)).count();
    let first = if side == 0 { 0 } else { ranks[0] - attrs.lhs_batch_dims.len() - attrs.lhs_contracting_dims.len() };
    Role::Free { result: batch.len() + first + before }
}

/// The operand that has a dim of the result, and which of its dims that is.
fn operand_dim(attrs: &DotAttrs, ranks: [usize; 2], result: usize) -> Option<(usize, usize)> {
    for side in 0..2 {
        let is_it = |&dim: &usize| match role(attrs, ranks, side, dim) {
            Role::Free { result: found } | Role::Batch { result: found, .. } => found == result,
            Role::Contracted { .. } => false,
        };
        if let Some(dim) = (0..ranks[side]).find(is_it) {
            return Some((side, dim));
        }
    }
    None
}
