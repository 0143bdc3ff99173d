//! Factors: which dim of which operand goes with which dim of the result, as data, for every op.
//!
//! After Shardy's sharding rules: a *factor* is a piece of index space that an op treats alike in all tensors that
//! have it. Each dim of each operand and result is covered by exactly one factor, or by a product of several, major to
//! minor (reshape, grouped convolution). Every use of a factor has a [`FactorRole`]: what happens to that tensor if the factor
//! is cut. How the op itself changes on a shard is the subject of [`crate::localize`].

mod custom_calls;
mod index_ops;
mod rules;
mod shape_ops;
#[cfg(test)]
pub(crate) mod tests;
mod window_ops;

pub(crate) use window_ops::find_selected;

use crate::module::{CompId, InstId, Module};
use crate::monoid::Monoid;
use crate::shape::{ArrayShape, Shape};
use smallvec::{SmallVec, smallvec};

/// Number of a factor in its set.
pub type FactorId = usize;

/// What cutting a factor does to one of the tensors that have it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FactorRole {
    /// Shard `s` holds the tiles `s` of all tensors that pass the factor.
    Pass,
    /// Only operands have the factor. Shards compute partial results, which the monoid combines.
    Reduce(Monoid),
    /// Only this tensor has the factor, and any tile of it can be computed alone.
    Own,
    /// The tensor must be whole along it; the text says why.
    Whole(&'static str),
    /// The same dim as in the tensors that pass the factor, but at another offset or of another size: a shard needs rows
    /// of its neighbours.
    Shift,
}

/// One factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Factor {
    /// Number of positions; where tensors differ, in those that do not shift it.
    pub size: i64,
}

/// One tensor's use of a factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FactorUse {
    /// Which factor.
    pub factor: FactorId,
    /// What cutting it does to this tensor.
    pub role: FactorRole,
    /// Number of positions in this tensor; it differs from the factor's only for [`FactorRole::Shift`].
    pub size: i64,
}

/// The factors of each dim of one tensor, major to minor.
pub type TensorFactors = Vec<SmallVec<[FactorUse; 2]>>;

/// The factors of one instruction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FactorSet {
    /// All factors.
    pub factors: Vec<Factor>,
    /// Dims of each operand; a scalar has none.
    pub operands: Vec<TensorFactors>,
    /// Dims of each result leaf.
    pub results: Vec<TensorFactors>,
}

/// Why an instruction has no factors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoFactors {
    /// The op table's reason: the op has no dims to cut, or needs whole operands.
    OfRow(&'static str),
    /// What stands in the way in this instruction.
    OfInstruction(&'static str),
    /// The attributes or shapes are not those of the opcode; a verified module has no such instruction.
    Invalid(&'static str),
}

impl NoFactors {
    /// The reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            NoFactors::OfRow(reason) | NoFactors::OfInstruction(reason) | NoFactors::Invalid(reason) => reason,
        }
    }
}

/// The factors of `inst`.
///
/// # Errors
/// The reason that the op table gives for ops without dims to cut, or a shape that does not fit the op's attributes.
pub fn find_factors(module: &Module, inst: InstId) -> Result<FactorSet, NoFactors> {
    let instruction = module.inst(inst);
    let operands: Vec<&Shape> = instruction.operands.iter().map(|&o| module.shape(o)).collect();
    let set = rules::apply(module, instruction, &operands, module.shape(inst))?;
    set.check_coverage(&operands, module.shape(inst))?;
    Ok(set)
}

impl FactorSet {
    /// The only use of a factor by a dim, if it has just one.
    pub fn sole_use(tensor: &TensorFactors, dim: usize) -> Option<FactorUse> {
        match tensor.get(dim)?.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// The dim of a tensor that a factor covers alone.
    pub fn dim_of(tensor: &TensorFactors, factor: FactorId) -> Option<usize> {
        tensor.iter().position(|uses| matches!(uses.as_slice(), [only] if only.factor == factor))
    }

    /// A tensor's use of a factor, with its dim and its place among that dim's factors.
    pub fn find_use(tensor: &TensorFactors, factor: FactorId) -> Option<(usize, usize, FactorUse)> {
        let mut uses = tensor.iter().enumerate().flat_map(|(dim, uses)| uses.iter().enumerate().map(move |u| (dim, u)));
        uses.find(|(_, (_, one))| one.factor == factor).map(|(dim, (place, one))| (dim, place, *one))
    }

    /// Whether a factor is anywhere in a tensor.
    pub fn mentions(tensor: &TensorFactors, factor: FactorId) -> bool {
        FactorSet::find_use(tensor, factor).is_some()
    }

    /// All uses of a factor, those of operands first.
    pub fn uses(&self, factor: FactorId) -> impl Iterator<Item = FactorUse> {
        let tensors = self.operands.iter().chain(&self.results);
        tensors.flatten().flatten().filter(move |one| one.factor == factor).copied()
    }

    /// Every dim's factors multiply to its size.
    fn check_coverage(&self, operands: &[&Shape], result: &Shape) -> Result<(), NoFactors> {
        let leaves: &[Shape] = result.as_tuple().unwrap_or(std::slice::from_ref(result));
        let shapes = operands.iter().copied().chain(leaves);
        for (shape, tensor) in shapes.zip(self.operands.iter().chain(&self.results)) {
            let dims = shape.as_array().map_or(&[][..], |a| &a.dims);
            let covered = tensor.iter().map(|uses| uses.iter().fold(1i64, |n, one| n.saturating_mul(one.size)));
            if dims.len() != tensor.len() || !dims.iter().copied().eq(covered) {
                return Err(NoFactors::Invalid("shapes do not fit the op's attributes"));
            }
        }
        Ok(())
    }
}

/// Builds the factors of one instruction tensor by tensor.
struct FactorBuilder<'a> {
    module: &'a Module,
    set: FactorSet,
    operands: Vec<&'a ArrayShape>,
    results: Vec<&'a ArrayShape>,
}

impl<'a> FactorBuilder<'a> {
    /// # Errors
    /// An operand or result leaf is no array, or has dynamic dims.
    fn new(module: &'a Module, operands: &[&'a Shape], result: &'a Shape) -> Result<FactorBuilder<'a>, NoFactors> {
        let array = |shape: &'a Shape| shape.as_array().ok_or(NoFactors::OfInstruction("not an array"));
        let operands = operands.iter().map(|s| array(s)).collect::<Result<Vec<_>, _>>()?;
        let leaves = result.as_tuple().unwrap_or(std::slice::from_ref(result));
        let results = leaves.iter().map(array).collect::<Result<Vec<_>, _>>()?;
        if operands.iter().chain(&results).any(|a| a.dynamic != 0) {
            return Err(NoFactors::OfInstruction("dynamic dims"));
        }
        let set = FactorSet {
            factors: Vec::new(),
            operands: operands.iter().map(|a| vec![smallvec![]; a.rank()]).collect(),
            results: results.iter().map(|a| vec![smallvec![]; a.rank()]).collect(),
        };
        Ok(FactorBuilder { module, set, operands, results })
    }

    fn operand_dims(&self, operand: usize) -> Result<&'a [i64], NoFactors> {
        self.operands.get(operand).map(|a| &a.dims[..]).ok_or(NoFactors::Invalid("too few operands"))
    }

    fn result_dims(&self) -> Result<&'a [i64], NoFactors> {
        self.results.first().map(|a| &a.dims[..]).ok_or(NoFactors::Invalid("no result"))
    }

    /// The reductions of a reducer of `n` arrays.
    fn monoids(&self, reducer: Option<CompId>, n: usize) -> Option<Vec<Monoid>> {
        crate::monoid::find_monoids(self.module, reducer?, n)
    }

    fn add(&mut self, size: i64) -> FactorId {
        self.set.factors.push(Factor { size });
        self.set.factors.len() - 1
    }

    /// Gives dim `dim` of operand `operand` the (next minor) factor `factor`.
    fn operand(&mut self, operand: usize, dim: usize, factor: FactorId, role: FactorRole) {
        let size = match role {
            FactorRole::Shift => self.operands.get(operand).and_then(|a| a.dims.get(dim)).copied().unwrap_or(0),
            FactorRole::Pass | FactorRole::Reduce(_) | FactorRole::Own | FactorRole::Whole(_) => {
                self.set.factors[factor].size
            }
        };
        if let Some(slot) = self.set.operands.get_mut(operand).and_then(|t| t.get_mut(dim)) {
            slot.push(FactorUse { factor, role, size });
        }
    }

    /// Gives dim `dim` of result leaf `leaf` the (next minor) factor `factor`.
    fn result(&mut self, leaf: usize, dim: usize, factor: FactorId, role: FactorRole) {
        let size = self.set.factors[factor].size;
        if let Some(slot) = self.set.results.get_mut(leaf).and_then(|t| t.get_mut(dim)) {
            slot.push(FactorUse { factor, role, size });
        }
    }

    /// A factor of `size` that passes through the dims given of operands, and through dim `to` of every result leaf.
    fn pass(&mut self, size: i64, operands: &[(usize, usize)], to: usize) {
        let factor = self.add(size);
        operands.iter().for_each(|&(operand, dim)| self.operand(operand, dim, factor, FactorRole::Pass));
        (0..self.results.len()).for_each(|leaf| self.result(leaf, to, factor, FactorRole::Pass));
    }

    /// A factor that passes through dim `dim` of the operands given and of every result leaf.
    fn pass_dim(&mut self, size: i64, operands: std::ops::Range<usize>, dim: usize) {
        let operands: Vec<_> = operands.map(|operand| (operand, dim)).collect();
        self.pass(size, &operands, dim);
    }

    /// Every dim without a factor gets one of its own, in this role.
    fn fill(mut self, role: FactorRole) -> FactorSet {
        for operand in 0..self.operands.len() {
            for dim in 0..self.operands[operand].rank() {
                if self.set.operands[operand][dim].is_empty() {
                    let factor = self.add(self.operands[operand].dims[dim]);
                    self.operand(operand, dim, factor, role);
                }
            }
        }
        for leaf in 0..self.results.len() {
            for dim in 0..self.results[leaf].rank() {
                if self.set.results[leaf][dim].is_empty() {
                    let factor = self.add(self.results[leaf].dims[dim]);
                    self.result(leaf, dim, factor, role);
                }
            }
        }
        self.set
    }
}
