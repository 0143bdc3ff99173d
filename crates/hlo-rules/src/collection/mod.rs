//! Collections of rules as TASO (Jia et al. 2019) and FlexFlow (Unger et al. 2022) write them, read as rules that can be checked.
//!
//! A collection is JSON: each rule has two graphs of ops, `srcOp` and `dstOp`, and says which results of the one are which of the other.
//! Tensors have three dims: replicas, rows, features. In what they compute, the parallel ops are ops on data: `OP_PARTITION` and
//! `OP_COMBINE` keep all elements, `OP_REPLICATE` writes so many copies behind one another along a dim, `OP_REDUCE` adds so many parts of
//! a dim. `OP_LINEAR` multiplies rows of `[r, m, k]` with rows of a weight `[r, n, k]` into `[r, m, n]`; its parameter `PM_ACTI` is 0, or 2 for a
//! ReLU behind it. `OP_SPLIT` takes what was joined along its dim apart where it was joined, else in the middle.

mod format;
mod sizes;

use crate::op::{DotDims, Op, TypeError, Unary};
use crate::rule::Rule;
use crate::size::Size;
use crate::term::{Args, TermId};
use crate::text::ParseError;
use format::{Operator, Stated};
use sizes::Sizes;
use smallvec::smallvec;
use std::collections::BTreeMap;

/// Dims of every tensor.
const RANK: usize = 3;
/// Most ops of a side, and the most that its copies make of a tensor: what is larger is no rule that a search would try.
const MOST_OPS: usize = 16;
const MOST_COPIES: i64 = 512;

/// A rule of a collection.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its name.
    pub name: String,
    /// What it is about: the ops of both sides that compute, parallel ops left out.
    pub family: String,
    /// The rule as ours, or why it is none.
    pub rule: Result<Rule, Unread>,
}

impl Published {
    /// Whether both sides compute the same terms once cuts are left out: it only places a program in another way.
    pub fn is_placement(&self) -> bool {
        self.rule.as_ref().is_ok_and(|rule| rule.left == rule.right)
    }
}

/// Why a rule of a collection is no rule of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unread {
    /// An op that is not known.
    Op(String),
    /// A parameter that an op needs is missing, or has a value that is not known.
    Parameter {
        /// The op.
        op: String,
        /// The parameter.
        key: &'static str,
    },
    /// An op takes what stands behind it, or a result that its operand does not have.
    Operand(String),
    /// No sizes of the inputs suit both sides.
    Shapes(String),
    /// It has more ops, inputs or copies than are read.
    TooLarge,
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unread::Op(op) => write!(f, "expected an op that is known, found {op}"),
            Unread::Parameter { op, key } => write!(f, "{op}: expected a parameter {key} of a value that is known"),
            Unread::Operand(op) => write!(f, "{op}: expected operands that stand before it"),
            Unread::Shapes(op) => write!(f, "{op}: no sizes of the inputs suit both sides"),
            Unread::TooLarge => write!(
                f,
                "expected at most {MOST_OPS} ops a side, some forty inputs, and {MOST_COPIES} copies of a tensor, found more"
            ),
        }
    }
}

impl std::error::Error for Unread {}

/// The rules of a collection.
///
/// # Errors
/// The first place at which the text is no collection.
pub fn read_collection(text: &str) -> Result<Vec<Published>, ParseError> {
    let stated = format::parse(text)?;
    Ok(stated
        .iter()
        .map(|one| Published { name: one.name.clone(), family: one.family(), rule: read_rule(one) })
        .collect())
}

/// Dims of a tensor, and for each dim the size of the first part if it was joined of two.
#[derive(Clone, Debug)]
struct Tensor {
    dims: [Size; RANK],
    first_parts: [Option<Size>; RANK],
}

/// A tensor by the number of its op and of the op's result; inputs have negative numbers.
type Tensors<T> = BTreeMap<(i64, usize), T>;

fn read_rule(stated: &Stated) -> Result<Rule, Unread> {
    if stated.outputs.is_empty() {
        return Err(Unread::Operand("mappedOutput".into()));
    }
    let mut sizes = Sizes::default();
    let mut inputs = Tensors::new();
    for side in stated.sides() {
        if side.len() > MOST_OPS || n_copies(side)? > MOST_COPIES {
            return Err(Unread::TooLarge);
        }
        for key in side.iter().flat_map(|op| &op.inputs).filter(|key| key.0 < 0) {
            if !inputs.contains_key(key) {
                let mut fresh = || sizes.fresh().ok_or(Unread::TooLarge);
                let dims = [fresh()?, fresh()?, fresh()?];
                inputs.insert(*key, Tensor { dims, first_parts: [None, None, None] });
            }
        }
    }
    let mut tensors = Vec::new();
    for side in stated.sides() {
        tensors.push(infer(side, &inputs, &mut sizes)?);
    }
    for &(source, target) in &stated.outputs {
        let pair = (tensors[0].get(&source), tensors[1].get(&target));
        let (Some(a), Some(b)) = pair else { return Err(Unread::Operand("mappedOutput".into())) };
        if !sizes.are_equal(&a.dims, &b.dims) {
            return Err(Unread::Shapes("mappedOutput".into()));
        }
    }
    let mut rule = Rule { name: stated.name.clone(), unknowns: sizes.names(), ..Rule::default() };
    let mut terms = Tensors::new();
    for (number, (&key, tensor)) in inputs.iter().enumerate() {
        let dims = tensor.dims.iter().map(|size| sizes.resolved(size)).collect();
        rule.inputs.push(format!("x{}", key.0.unsigned_abs()));
        terms.insert(key, rule.terms.input(number as u8, dims));
    }
    let unsuited = |_: TypeError| Unread::Shapes("operands".into());
    let mut sides = Vec::new();
    for (side, tensors) in stated.sides().into_iter().zip(&tensors) {
        let mut own = terms.clone();
        for (at, op) in side.iter().enumerate() {
            let results = build(op, &own, tensors, &sizes, &mut rule).map_err(unsuited)?;
            own.extend(results.into_iter().enumerate().map(|(n, term)| ((at as i64, n), term)));
        }
        sides.push(own);
    }
    rule.left = stated.outputs.iter().map(|pair| sides[0][&pair.0]).collect();
    rule.right = stated.outputs.iter().map(|pair| sides[1][&pair.1]).collect();
    rule.compacted().map_err(unsuited)
}

/// How many times as large as an input a tensor of a side is at most.
fn n_copies(side: &[Operator]) -> Result<i64, Unread> {
    let mut n: i64 = 1;
    for op in side {
        n = n.saturating_mul(match op.kind()? {
            Kind::Replicate { n: degree, .. } | Kind::Reduce { n: degree, .. } => degree,
            Kind::Concat { .. } => op.inputs.len() as i64,
            Kind::Keep | Kind::Relu | Kind::Add | Kind::Multiply | Kind::Linear { .. } | Kind::Split { .. } => 1,
        });
    }
    Ok(n)
}

/// The tensors of a side; sizes of inputs become such that its ops take them.
fn infer(side: &[Operator], inputs: &Tensors<Tensor>, sizes: &mut Sizes) -> Result<Tensors<Tensor>, Unread> {
    let mut all = inputs.clone();
    for (at, op) in side.iter().enumerate() {
        let found: Option<Vec<Tensor>> = op.inputs.iter().map(|key| all.get(key).cloned()).collect();
        let operands = found.ok_or_else(|| Unread::Operand(op.name.clone()))?;
        let results = results_of(op, &operands, sizes)?;
        all.extend(results.into_iter().enumerate().map(|(n, tensor)| ((at as i64, n), tensor)));
    }
    Ok(all)
}

fn results_of(op: &Operator, operands: &[Tensor], sizes: &mut Sizes) -> Result<Vec<Tensor>, Unread> {
    let unsuited = || Unread::Shapes(op.name.clone());
    let mut result = operands.first().cloned().ok_or_else(|| Unread::Operand(op.name.clone()))?;
    let second = operands.get(1);
    match op.kind()? {
        Kind::Keep | Kind::Relu => {}
        Kind::Replicate { dim, n } => {
            result.dims[dim] = &result.dims[dim] * &Size::number(n);
            result.first_parts[dim] = None;
        }
        Kind::Reduce { dim, n } => {
            result.dims[dim] = sizes.divided(&result.dims[dim], n).ok_or_else(unsuited)?;
            result.first_parts[dim] = None;
        }
        Kind::Add | Kind::Multiply => {
            let second = second.ok_or_else(unsuited)?;
            if !sizes.are_equal(&result.dims, &second.dims) {
                return Err(unsuited());
            }
            let parts = result.first_parts.iter_mut().zip(&second.first_parts);
            parts.for_each(|(own, other)| *own = own.take().or_else(|| other.clone()));
        }
        Kind::Linear { .. } => {
            let weight = second.ok_or_else(unsuited)?;
            for dim in [0, 2] {
                if !sizes.are_equal(&result.dims[dim..=dim], &weight.dims[dim..=dim]) {
                    return Err(unsuited());
                }
            }
            result.dims[2] = weight.dims[1].clone();
            result.first_parts[2] = weight.first_parts[1].clone();
        }
        Kind::Concat { dim } => {
            result.first_parts[dim] = second.filter(|_| operands.len() == 2).map(|_| result.dims[dim].clone());
            for operand in &operands[1..] {
                for other in (0..RANK).filter(|&other| other != dim) {
                    if !sizes.are_equal(&result.dims[other..=other], &operand.dims[other..=other]) {
                        return Err(unsuited());
                    }
                }
                result.dims[dim] = &result.dims[dim] + &operand.dims[dim];
            }
        }
        Kind::Split { dim } => {
            let first = match result.first_parts[dim].take() {
                Some(first) => first,
                None => sizes.divided(&result.dims[dim], 2).ok_or_else(unsuited)?,
            };
            let mut rest = result.clone();
            rest.dims[dim] = &result.dims[dim] - &first;
            result.dims[dim] = first;
            return Ok(vec![result, rest]);
        }
    }
    Ok(vec![result])
}

/// The terms of an op's results.
fn build(
    op: &Operator,
    terms: &Tensors<TermId>,
    tensors: &Tensors<Tensor>,
    sizes: &Sizes,
    rule: &mut Rule,
) -> Result<Vec<TermId>, TypeError> {
    let no_operand = TypeError { op: "collection", expected: "operands that stand before their op" };
    let args: Option<Args> = op.inputs.iter().map(|key| terms.get(key).copied()).collect();
    let args = args.ok_or_else(|| no_operand.clone())?;
    let dims =
        tensors.get(&op.inputs[0]).ok_or_else(|| no_operand.clone())?.dims.each_ref().map(|size| sizes.resolved(size));
    let kind = op.kind().map_err(|_| no_operand)?;
    let part = |dim: usize, start: Size, size: Size| Op::Slice { dim: dim as u8, start, size };
    let relu = Op::Unary(Unary::Relu);
    let result = match kind {
        Kind::Keep => args[0],
        Kind::Replicate { dim, n } => {
            rule.terms.add(Op::Concat { dim: dim as u8 }, std::iter::repeat_n(args[0], n as usize).collect())?
        }
        Kind::Reduce { dim, n } => {
            let size = dims[dim].divided_by(n).unwrap_or_default();
            let mut sum = None;
            for k in 0..n {
                let one = rule.terms.add(part(dim, &size * &Size::number(k), size.clone()), smallvec![args[0]])?;
                sum = Some(match sum {
                    Some(sum) => rule.terms.add(Op::Add, smallvec![sum, one])?,
                    None => one,
                });
            }
            sum.unwrap_or(args[0])
        }
        Kind::Relu => rule.terms.add(relu, args)?,
        Kind::Add => rule.terms.add(Op::Add, args)?,
        Kind::Multiply => rule.terms.add(Op::Multiply, args)?,
        Kind::Concat { dim } => rule.terms.add(Op::Concat { dim: dim as u8 }, args)?,
        Kind::Linear { has_relu } => {
            let pairs = DotDims { batch: smallvec![(0, 0)], contract: smallvec![(2, 2)] };
            let product = rule.terms.add(Op::Dot(pairs), args)?;
            if has_relu { rule.terms.add(relu, smallvec![product])? } else { product }
        }
        Kind::Split { dim } => {
            let first = tensors[&op.inputs[0]].first_parts[dim].as_ref().map(|first| sizes.resolved(first));
            let first = first.unwrap_or_else(|| dims[dim].divided_by(2).unwrap_or_default());
            let rest = &dims[dim] - &first;
            let parts = [part(dim, Size::default(), first.clone()), part(dim, first, rest)];
            return parts.into_iter().map(|one| rule.terms.add(one, args.clone())).collect();
        }
    };
    Ok(vec![result])
}

/// What an op does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// All elements stay; devices hold others of them.
    Keep,
    Replicate {
        dim: usize,
        n: i64,
    },
    Reduce {
        dim: usize,
        n: i64,
    },
    Relu,
    Add,
    Multiply,
    Linear {
        has_relu: bool,
    },
    Concat {
        dim: usize,
    },
    Split {
        dim: usize,
    },
}
