//! Factors: which dim of which operand goes with which dim of the result, as data, for every op.
//!
//! After Shardy's sharding rules: a *factor* is a piece of index space that an op treats alike in all tensors that
//! have it. Cutting every tensor along a [`FactorKind::PassThrough`] factor cuts the op into independent pieces; along
//! a [`FactorKind::Reduced`] one, into partial results that a reduction combines. Each dim of each operand and
//! result is covered by exactly one factor, or by a product of several, major to minor (reshape).

mod index_ops;
mod rules;
mod shape_ops;

use crate::module::{InstId, Module};
use crate::shape::{ArrayShape, Shape};
use smallvec::{SmallVec, smallvec};

/// Number of a factor in its set.
pub type FactorId = usize;

/// What cutting along a factor does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FactorKind {
    /// Pieces are independent.
    PassThrough,
    /// Pieces give partial results that the op's reduction combines.
    Reduced,
    /// Pieces need elements of their neighbours.
    Windowed,
    /// It cannot be cut.
    NeedsWhole,
}

/// One factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Factor {
    /// Number of positions.
    pub size: i64,
    /// What cutting does.
    pub kind: FactorKind,
}

/// The factors of each dim of one tensor, major to minor.
pub type TensorFactors = Vec<SmallVec<[FactorId; 2]>>;

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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoFactors(pub String);

/// The factors of `inst`.
///
/// # Errors
/// The reason that the op table gives for ops without dims to cut, or a shape that does not fit the op's attributes.
pub fn find_factors(module: &Module, inst: InstId) -> Result<FactorSet, NoFactors> {
    let instruction = module.inst(inst);
    let operands: Vec<&Shape> = instruction.operands.iter().map(|&o| module.shape(o)).collect();
    let set = rules::apply(instruction.opcode, &operands, module.shape(inst), &instruction.attrs)?;
    set.check_coverage(&operands, module.shape(inst))?;
    Ok(set)
}

impl FactorSet {
    /// The only factor of a dim, if it has just one.
    pub fn sole_factor(tensor: &TensorFactors, dim: usize) -> Option<FactorId> {
        match tensor.get(dim)?.as_slice() {
            [factor] => Some(*factor),
            _ => None,
        }
    }

    /// The dim of a tensor that a factor covers alone.
    pub fn dim_of(tensor: &TensorFactors, factor: FactorId) -> Option<usize> {
        tensor.iter().position(|f| f.as_slice() == [factor])
    }

    /// Whether a factor is anywhere in a tensor.
    pub fn mentions(tensor: &TensorFactors, factor: FactorId) -> bool {
        tensor.iter().any(|f| f.contains(&factor))
    }

    fn add(&mut self, size: i64, kind: FactorKind) -> FactorId {
        self.factors.push(Factor { size, kind });
        self.factors.len() - 1
    }

    /// Every dim's factors multiply to its size.
    fn check_coverage(&self, operands: &[&Shape], result: &Shape) -> Result<(), NoFactors> {
        let mut leaves: Vec<&Shape> = Vec::new();
        match result {
            Shape::Tuple(elements) => leaves.extend(elements),
            other => leaves.push(other),
        }
        let tensors = operands.iter().zip(&self.operands).chain(leaves.iter().zip(&self.results));
        for (shape, factors) in tensors {
            let dims = shape.as_array().map_or(&[][..], |a| &a.dims);
            let covered = factors.iter().map(|f| f.iter().fold(1i64, |n, &i| n.saturating_mul(self.factors[i].size)));
            if dims.len() != factors.len() || !dims.iter().copied().eq(covered) {
                return Err(NoFactors("shapes do not fit the op's attributes".into()));
            }
        }
        Ok(())
    }
}

/// Builds the factors of one instruction tensor by tensor.
struct FactorBuilder<'a> {
    set: FactorSet,
    operands: Vec<&'a ArrayShape>,
    results: Vec<&'a ArrayShape>,
}

impl<'a> FactorBuilder<'a> {
    /// # Errors
    /// An operand or result leaf is no array.
    fn new(operands: &[&'a Shape], result: &'a Shape) -> Result<FactorBuilder<'a>, NoFactors> {
        let array = |shape: &'a Shape| shape.as_array().ok_or_else(|| NoFactors("not an array".into()));
        let operands = operands.iter().map(|s| array(s)).collect::<Result<Vec<_>, _>>()?;
        let results = match result {
            Shape::Tuple(elements) => elements.iter().map(array).collect::<Result<Vec<_>, _>>()?,
            other => vec![array(other)?],
        };
        if operands.iter().chain(&results).any(|a| a.dynamic != 0) {
            return Err(NoFactors("dynamic dims".into()));
        }
        let set = FactorSet {
            factors: Vec::new(),
            operands: operands.iter().map(|a| vec![smallvec![]; a.rank()]).collect(),
            results: results.iter().map(|a| vec![smallvec![]; a.rank()]).collect(),
        };
        Ok(FactorBuilder { set, operands, results })
    }

    fn operand_dims(&self, operand: usize) -> Result<&'a [i64], NoFactors> {
        self.operands.get(operand).map(|a| &a.dims[..]).ok_or_else(|| NoFactors("too few operands".into()))
    }

    fn result_dims(&self) -> Result<&'a [i64], NoFactors> {
        self.results.first().map(|a| &a.dims[..]).ok_or_else(|| NoFactors("no result".into()))
    }

    fn add(&mut self, size: i64, kind: FactorKind) -> FactorId {
        self.set.add(size, kind)
    }

    /// Gives dim `dim` of operand `operand` the (next minor) factor `factor`.
    fn operand(&mut self, operand: usize, dim: usize, factor: FactorId) {
        if let Some(slot) = self.set.operands.get_mut(operand).and_then(|t| t.get_mut(dim)) {
            slot.push(factor);
        }
    }

    /// Gives dim `dim` of result leaf `leaf` the (next minor) factor `factor`.
    fn result(&mut self, leaf: usize, dim: usize, factor: FactorId) {
        if let Some(slot) = self.set.results.get_mut(leaf).and_then(|t| t.get_mut(dim)) {
            slot.push(factor);
        }
    }

    /// Every dim without a factor gets one of its own; `kind` says what cutting it would do.
    fn fill(mut self, kind: FactorKind) -> FactorSet {
        for operand in 0..self.operands.len() {
            for dim in 0..self.operands[operand].rank() {
                if self.set.operands[operand][dim].is_empty() {
                    let factor = self.add(self.operands[operand].dims[dim], kind);
                    self.operand(operand, dim, factor);
                }
            }
        }
        for leaf in 0..self.results.len() {
            for dim in 0..self.results[leaf].rank() {
                if self.set.results[leaf][dim].is_empty() {
                    let factor = self.add(self.results[leaf].dims[dim], kind);
                    self.result(leaf, dim, factor);
                }
            }
        }
        self.set
    }
}
