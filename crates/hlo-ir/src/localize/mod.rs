//! Local forms: what an op becomes on one shard if some of its factors are cut.
//!
//! A factor of size `n` that is cut into `k` shards has tiles of `ceil(n / k)` positions. Shard `s` holds the positions from
//! `s * tile` on; the last shards hold fewer or none, and their other positions are *padding* with any values.
//! [`localize`] gives the attributes and shapes of the op on a shard. Where that is not enough, it lists what has to be
//! done to operands before the op ([`OperandAdjust`]) and to results after it ([`ResultAdjust`]). All of it is data: the
//! same on every shard but for the shard's number.

mod attributes;
mod indices;
mod merge;
#[cfg(test)]
mod tests;
mod windows;

pub use merge::merged_attrs;

use crate::attrs::{AttrFormat, Attrs};
use crate::factors::{FactorId, FactorRole, FactorSet, FactorUse, NoFactors, TensorFactors};
use crate::module::{InstId, Instruction, Module};
use crate::monoid::Monoid;
use crate::op::FactorRule;
use crate::shape::{ArrayShape, Shape};
use std::fmt;
use windows::Moved;

/// One tensor of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tensor {
    /// An operand, by number.
    Operand(usize),
    /// A result leaf, by number.
    Result(usize),
}

/// What stands where an operand has no element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutsideValue {
    /// Any value: only padding of the result depends on it.
    Any,
    /// The identity of a monoid.
    Identity(Monoid),
    /// The value of a scalar operand.
    Operand(usize),
}

/// What a shard does to an operand before the local op.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum OperandAdjust {
    /// Shard `s` takes the rows `starts[s] ..` of the whole dim, `size` of them; rows outside the array hold `fill`.
    Halo { operand: usize, dim: usize, factor: FactorId, starts: Vec<i64>, size: i64, fill: OutsideValue },
    /// Padding holds the identity of `monoid`. The dim's index `i` is position `i / minor % tile` of the tile of a factor
    /// of `size` positions.
    Mask { operand: usize, dim: usize, factor: FactorId, minor: i64, tile: i64, size: i64, monoid: Monoid },
    /// The operand counts once: on all shards along `factors` but the first it is replaced by the identity of `monoid`.
    EnterOnce { operand: usize, factors: Vec<FactorId>, monoid: Monoid },
    /// `margin` rows of any value stand before the tile, and as many after it.
    Margin { operand: usize, dim: usize, margin: i64 },
    /// An index into the whole dim becomes one into the tile of shard `s`: it is clamped to `0 ..= max` if there is a
    /// `max`, then `s * tile` is subtracted and `add` is added. This needs a signed type that holds the whole dim.
    /// `component`: the dim of the operand that holds index vectors and the place in them; `None` for a scalar.
    ShiftIndex {
        operand: usize,
        component: Option<(usize, usize)>,
        factor: FactorId,
        max: Option<i64>,
        tile: i64,
        add: i64,
    },
}

/// What a shard does to a result of the local op.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ResultAdjust {
    /// `s * step` is added to every element on shard `s`, in numbers that hold the whole dim, and then converted.
    AddOffset { leaf: usize, factor: FactorId, step: i64 },
    /// Elements whose index, after [`OperandAdjust::ShiftIndex`], is not in `0 .. tile` become zero. `batch` pairs dims of
    /// the index operand with dims of the result.
    MaskMisses { leaf: usize, operand: usize, component: Option<(usize, usize)>, tile: i64, batch: Vec<(usize, usize)> },
    /// The dim holds a tile for each piece of the whole dim, one after the other; piece `k` ends before position `ends[k]`.
    /// Of each row of the shard's own tile, the one counts that stands in the tile of the piece that holds the position.
    PickPieces { leaf: usize, dim: usize, factor: FactorId, tile: i64, ends: Vec<i64> },
    /// On shard `s`, only the rows `starts[s] .. starts[s] + size` of the dim count.
    Crop { leaf: usize, dim: usize, factor: FactorId, starts: Vec<i64>, size: i64 },
    /// The results of all shards along `factors` are combined.
    Combine { leaf: usize, factors: Vec<FactorId>, monoid: Monoid },
}

/// An op on one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalForm {
    /// Its attributes.
    pub attrs: Attrs,
    /// Shapes of its operands, after `before`.
    pub operands: Vec<ArrayShape>,
    /// Shapes of its result leaves, before `after`.
    pub results: Vec<ArrayShape>,
    /// What is done to operands, in this order.
    pub before: Vec<OperandAdjust>,
    /// What is done to results, in this order.
    pub after: Vec<ResultAdjust>,
}

/// Why an op has no local form for some cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum CannotCut {
    /// The op has no factors.
    NoFactors(NoFactors),
    /// Not one number of shards, of 1 or more, for each factor.
    NotOneCutForEachFactor,
    /// This tensor must be whole along the factor.
    Whole { tensor: Tensor, factor: FactorId, reason: &'static str },
    /// Shards do not begin at the same phase of a dilation, so that no one program serves them all.
    Misaligned { factor: FactorId },
    /// The factor does not divide, and padding cannot be masked without an effect on other elements.
    Uneven { factor: FactorId },
    /// The element type of an operand has no identity of the monoid.
    NoIdentity { operand: usize, monoid: Monoid },
    /// Attributes of this format do not change with a shape, or not in a known way.
    NoLocalAttributes(AttrFormat),
}

impl fmt::Display for CannotCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CannotCut::NoFactors(why) => f.write_str(why.reason()),
            CannotCut::NotOneCutForEachFactor => f.write_str("expected a number of shards for each factor"),
            CannotCut::Whole { tensor: Tensor::Operand(k), reason, .. } => write!(f, "operand {k} is whole: {reason}"),
            CannotCut::Whole { tensor: Tensor::Result(k), reason, .. } => write!(f, "result {k} is whole: {reason}"),
            CannotCut::Misaligned { factor } => write!(f, "tiles of factor {factor} begin at different phases"),
            CannotCut::Uneven { factor } => write!(f, "factor {factor} does not divide"),
            CannotCut::NoIdentity { operand, monoid } => write!(f, "operand {operand} has no identity of {monoid:?}"),
            CannotCut::NoLocalAttributes(format) => write!(f, "attributes {format:?} have no local form"),
        }
    }
}

/// The form of `inst` on a shard: factor `i` of `set`, which are the instruction's factors, is cut into `n_shards[i]`.
///
/// # Errors
/// Why there is none.
pub fn localize(module: &Module, inst: InstId, set: &FactorSet, n_shards: &[i64]) -> Result<LocalForm, CannotCut> {
    if n_shards.len() != set.factors.len() || n_shards.iter().any(|&n| n < 1) {
        return Err(CannotCut::NotOneCutForEachFactor);
    }
    let mut local = Localizer::new(module, inst, set, n_shards)?;
    match local.instruction.opcode.row().factors {
        FactorRule::Structural(reason) | FactorRule::Whole(reason) => {
            return Err(CannotCut::NoFactors(NoFactors::OfRow(reason)));
        }
        FactorRule::Elementwise
        | FactorRule::Broadcast
        | FactorRule::Reshape
        | FactorRule::Bitcast
        | FactorRule::BitcastConvert
        | FactorRule::Transpose
        | FactorRule::Sort
        | FactorRule::Cholesky
        | FactorRule::TriangularSolve
        | FactorRule::Fft
        | FactorRule::BatchNorm
        | FactorRule::CustomCall => {}
        FactorRule::Slice => local.slice()?,
        FactorRule::Reverse => local.reverse(),
        FactorRule::Pad => local.pad()?,
        FactorRule::Concatenate => local.concatenate(),
        FactorRule::Iota => local.iota(),
        FactorRule::Dot => local.mask(0..2),
        FactorRule::Reduce => {
            let n = local.operands.len() / 2;
            local.mask(0..n);
            local.enter_once(n..2 * n, 0);
        }
        FactorRule::Convolution => local.convolution()?,
        FactorRule::ReduceWindow => local.reduce_window()?,
        FactorRule::SelectAndScatter => local.select_and_scatter()?,
        FactorRule::DynamicSlice => local.dynamic_slice(),
        FactorRule::DynamicUpdateSlice => local.dynamic_update_slice(),
        FactorRule::Gather => local.gather(),
        FactorRule::Scatter => local.scatter(),
    }
    local.combine();
    local.finish()
}

/// A local form in the making.
struct Localizer<'a> {
    module: &'a Module,
    instruction: &'a Instruction,
    set: &'a FactorSet,
    n_shards: &'a [i64],
    /// Shapes of the whole operands.
    whole: Vec<&'a ArrayShape>,
    operands: Vec<ArrayShape>,
    results: Vec<ArrayShape>,
    /// By place in the op's window, or by dim for ops that list all dims: what a cut changes.
    moved: Vec<Option<Moved>>,
    before: Vec<OperandAdjust>,
    after: Vec<ResultAdjust>,
}

impl<'a> Localizer<'a> {
    fn new(
        module: &'a Module,
        inst: InstId,
        set: &'a FactorSet,
        n_shards: &'a [i64],
    ) -> Result<Localizer<'a>, CannotCut> {
        let instruction = module.inst(inst);
        let not_an_array = CannotCut::NoFactors(NoFactors::OfInstruction("not an array"));
        let array = |shape: &'a Shape| shape.as_array().ok_or(not_an_array);
        let whole = instruction.operands.iter().map(|&o| array(module.shape(o))).collect::<Result<Vec<_>, _>>()?;
        let result = module.shape(inst);
        let leaves = result.as_tuple().unwrap_or(std::slice::from_ref(result));
        let leaves = leaves.iter().map(array).collect::<Result<Vec<_>, _>>()?;
        let mut local = Localizer {
            module,
            instruction,
            set,
            n_shards,
            whole,
            operands: Vec::new(),
            results: Vec::new(),
            moved: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
        };
        for (k, (shape, tensor)) in local.whole.iter().zip(&set.operands).enumerate() {
            local.operands.push(local.tile_shape(Tensor::Operand(k), shape, tensor)?);
        }
        for (k, (shape, tensor)) in leaves.iter().zip(&set.results).enumerate() {
            local.results.push(local.tile_shape(Tensor::Result(k), shape, tensor)?);
        }
        Ok(local)
    }

    /// The shape of a tile; dims that shift get theirs from the op's rule.
    fn tile_shape(&self, at: Tensor, shape: &ArrayShape, tensor: &TensorFactors) -> Result<ArrayShape, CannotCut> {
        let mut shape = shape.clone();
        for (size, uses) in shape.dims.iter_mut().zip(tensor) {
            for one in uses {
                if let (FactorRole::Whole(reason), true) = (one.role, self.is_cut(one.factor)) {
                    return Err(CannotCut::Whole { tensor: at, factor: one.factor, reason });
                }
            }
            *size = uses.iter().map(|one| self.tile(one.factor, one.size)).product();
        }
        Ok(shape)
    }

    fn is_cut(&self, factor: FactorId) -> bool {
        self.n_shards[factor] > 1
    }

    /// Positions of a shard along `factor`, of `size` in all.
    fn tile(&self, factor: FactorId, size: i64) -> i64 {
        let n = self.n_shards[factor];
        size / n + i64::from(size % n != 0)
    }

    /// The factor of a result dim that is cut and that the dim has alone: its number and its tile.
    fn cut_result(&self, dim: usize) -> Option<(FactorId, i64)> {
        let one = FactorSet::sole_use(self.set.results.first()?, dim)?;
        self.is_cut(one.factor).then(|| (one.factor, self.tile(one.factor, one.size)))
    }

    /// The use of a factor that is cut, of an operand's dim that has it alone.
    fn cut_operand(&self, operand: usize, dim: usize) -> Option<FactorUse> {
        let one = FactorSet::sole_use(self.set.operands.get(operand)?, dim)?;
        self.is_cut(one.factor).then_some(one)
    }

    /// The reduced factors that are cut.
    fn reduced(&self) -> Vec<FactorId> {
        let is_reduced = |factor: &FactorId| self.set.uses(*factor).any(|u| matches!(u.role, FactorRole::Reduce(_)));
        (0..self.set.factors.len()).filter(|f| self.is_cut(*f)).filter(is_reduced).collect()
    }

    /// Whether some shard has padding.
    fn has_padding(&self) -> bool {
        self.set.factors.iter().zip(self.n_shards).any(|(factor, n)| factor.size % n != 0)
    }

    /// Masks the padding of the operands given along the factors that they reduce.
    fn mask(&mut self, operands: std::ops::Range<usize>) {
        for operand in operands {
            let Some(tensor) = self.set.operands.get(operand) else { continue };
            for (dim, uses) in tensor.iter().enumerate() {
                for (place, one) in uses.iter().enumerate() {
                    let FactorRole::Reduce(monoid) = one.role else { continue };
                    let (factor, size) = (one.factor, one.size);
                    if size % self.n_shards[factor] != 0 {
                        let minor = uses[place + 1..].iter().map(|one| self.tile(one.factor, one.size)).product();
                        let tile = self.tile(factor, size);
                        let mask = OperandAdjust::Mask { operand, dim, factor, minor, tile, size, monoid };
                        self.before.push(mask);
                    }
                }
            }
        }
    }

    /// The operands given count once; each has the monoid that the operand `like`, or one as many places later, reduces by.
    fn enter_once(&mut self, operands: std::ops::Range<usize>, like: usize) {
        let factors = self.reduced();
        for (k, operand) in operands.enumerate() {
            if let Some(monoid) = self.monoid(like + k, &factors) {
                self.before.push(OperandAdjust::EnterOnce { operand, factors: factors.clone(), monoid });
            }
        }
    }

    /// By what an operand's partial results along one of `factors` are combined.
    fn monoid(&self, operand: usize, factors: &[FactorId]) -> Option<Monoid> {
        let uses = self.set.operands.get(operand)?.iter().flatten();
        uses.filter(|one| factors.contains(&one.factor)).find_map(|one| match one.role {
            FactorRole::Reduce(monoid) => Some(monoid),
            FactorRole::Pass | FactorRole::Own | FactorRole::Whole(_) | FactorRole::Shift => None,
        })
    }

    /// Combines every result along the reduced factors that are cut.
    fn combine(&mut self) {
        let factors = self.reduced();
        if factors.is_empty() {
            return;
        }
        // The last operands that reduce them hold, one for each result, what is combined.
        let operands: Vec<Monoid> = (0..self.operands.len()).filter_map(|k| self.monoid(k, &factors)).collect();
        let first = operands.len().saturating_sub(self.results.len());
        for (leaf, &monoid) in operands[first..].iter().enumerate() {
            self.after.push(ResultAdjust::Combine { leaf, factors: factors.clone(), monoid });
        }
    }

    /// A tile of iota counts from its shard's offset.
    fn iota(&mut self) {
        let Attrs::Iota(iota) = &self.instruction.attrs else { return };
        if let Some((factor, step)) = self.cut_result(iota.iota_dimension as usize) {
            self.after.push(ResultAdjust::AddOffset { leaf: 0, factor, step });
        }
    }

    fn finish(self) -> Result<LocalForm, CannotCut> {
        let identity = |operand: usize, monoid: Monoid| match self.whole.get(operand).map(|a| a.dtype) {
            Some(dtype) if monoid.identity(dtype).is_some() => Ok(()),
            Some(_) | None => Err(CannotCut::NoIdentity { operand, monoid }),
        };
        for adjust in &self.before {
            match *adjust {
                OperandAdjust::Halo { operand, fill: OutsideValue::Identity(monoid), .. }
                | OperandAdjust::Mask { operand, monoid, .. }
                | OperandAdjust::EnterOnce { operand, monoid, .. } => identity(operand, monoid)?,
                OperandAdjust::Halo { fill: OutsideValue::Any | OutsideValue::Operand(_), .. }
                | OperandAdjust::Margin { .. }
                | OperandAdjust::ShiftIndex { .. } => {}
            }
        }
        let attrs = self.local_attrs()?;
        Ok(LocalForm { attrs, operands: self.operands, results: self.results, before: self.before, after: self.after })
    }
}
