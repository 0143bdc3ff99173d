//! The dims that an op gives, from those of its operands.

use crate::op::{Conv, DimList, Dims, DotDims, Op, TypeError};
use crate::size::Size;
use smallvec::SmallVec;

/// The dims of `op` on operands of `args` dims.
///
/// # Errors
/// The op does not take such operands.
pub(crate) fn infer(op: &Op, args: &[&Dims]) -> Result<Dims, TypeError> {
    let fail = |expected: &'static str| TypeError { op: op.name(), expected };
    let checked = |holds: bool, expected| if holds { Ok(()) } else { Err(fail(expected)) };
    let one = || if let [a] = args { Ok(*a) } else { Err(fail("one operand")) };
    let two = || if let [a, b] = args { Ok((*a, *b)) } else { Err(fail("two operands")) };
    let dim_of = |dims: &Dims, dim: u8| dims.get(usize::from(dim)).cloned().ok_or_else(|| fail("a dim of the operand"));
    match op {
        Op::Input(_) => Err(fail("dims that are stated")),
        Op::Dot(dims) => {
            let (a, b) = two()?;
            dot(dims, a, b).ok_or_else(|| fail("pairs of distinct dims of equal sizes"))
        }
        Op::Conv(conv) => {
            let (x, w) = two()?;
            convolution(conv, x, w).ok_or_else(|| fail("[n, c, spatial] and [f, c, spatial] that fit the groups"))
        }
        Op::Add | Op::Multiply | Op::Max | Op::Above => {
            let (a, b) = two()?;
            checked(a == b, "operands of equal dims")?;
            Ok(a.clone())
        }
        Op::Scale => {
            let (a, b) = two()?;
            checked(b.is_empty(), "a scalar as second operand")?;
            Ok(a.clone())
        }
        Op::Unary(_) => Ok(one()?.clone()),
        Op::Transpose(order) => {
            let a = one()?;
            checked(is_order(order, a.len()), "each dim of the operand once")?;
            Ok(order.iter().map(|&d| a[usize::from(d)].clone()).collect())
        }
        Op::Reshape(dims) => {
            let product = |dims: &Dims| dims.iter().fold(Size::number(1), |n, d| &n * d);
            checked(product(one()?) == product(dims), "as many elements as the operand has")?;
            Ok(dims.clone())
        }
        Op::Slice { dim, start, size } => {
            let a = one()?;
            let whole = dim_of(a, *dim)?;
            let is_within = start.is_never_negative() && (start + size).is_at_most(&whole);
            checked(is_within && Size::number(1).is_at_most(size), "a range within the dim")?;
            Ok(with_dim(a, *dim, size.clone()))
        }
        Op::Concat { dim } => {
            let (first, rest) = args.split_first().ok_or_else(|| fail("an operand"))?;
            let mut whole = dim_of(first, *dim)?;
            for a in rest {
                whole = &whole + &dim_of(a, *dim)?;
                let agree = a.len() == first.len() && (0..a.len()).all(|d| d == usize::from(*dim) || a[d] == first[d]);
                checked(agree, "operands that agree in the other dims")?;
            }
            Ok(with_dim(first, *dim, whole))
        }
        Op::Stack { dim } => {
            let (first, rest) = args.split_first().ok_or_else(|| fail("an operand"))?;
            checked(rest.iter().all(|a| a == first), "operands of equal dims")?;
            checked(usize::from(*dim) <= first.len(), "a dim of the result")?;
            let mut dims = (*first).clone();
            dims.insert(usize::from(*dim), Size::number(args.len() as i64));
            Ok(dims)
        }
        Op::Pick { dim, place } => {
            let a = one()?;
            let whole = dim_of(a, *dim)?;
            checked(Size::number(i64::from(*place) + 1).is_at_most(&whole), "a place of the dim")?;
            let mut dims = a.clone();
            dims.remove(usize::from(*dim));
            Ok(dims)
        }
        Op::Pad { dim, low, high } => {
            let a = one()?;
            let whole = dim_of(a, *dim)?;
            checked(low.is_never_negative() && high.is_never_negative(), "paddings of zero or more")?;
            Ok(with_dim(a, *dim, &(&whole + low) + high))
        }
        Op::Broadcast(new) => {
            let mut dims = one()?.clone();
            let ascending = new.windows(2).all(|w| w[0].0 < w[1].0);
            checked(ascending && !new.is_empty(), "new dims in ascending order")?;
            for (dim, size) in new {
                checked(usize::from(*dim) <= dims.len(), "dims of the result")?;
                checked(Size::number(1).is_at_most(size), "sizes of one or more")?;
                dims.insert(usize::from(*dim), size.clone());
            }
            Ok(dims)
        }
        Op::Reduce(over) => {
            let a = one()?;
            let ascending = over.windows(2).all(|w| w[0] < w[1]) && over.iter().all(|&d| usize::from(d) < a.len());
            checked(ascending && !over.is_empty(), "dims of the operand in ascending order")?;
            Ok((0..a.len()).filter(|&d| !over.contains(&(d as u8))).map(|d| a[d].clone()).collect())
        }
    }
}

fn with_dim(dims: &Dims, dim: u8, size: Size) -> Dims {
    let mut dims = dims.clone();
    dims[usize::from(dim)] = size;
    dims
}

/// Whether a list has each dim below `rank` once.
pub(crate) fn is_order(order: &DimList, rank: usize) -> bool {
    order.len() == rank && (0..rank).all(|d| order.contains(&(d as u8)))
}

fn dot(dims: &DotDims, a: &Dims, b: &Dims) -> Option<Dims> {
    let mut taken: (SmallVec<[u8; 4]>, SmallVec<[u8; 4]>) = Default::default();
    for &(l, r) in dims.batch.iter().chain(&dims.contract) {
        if a.get(usize::from(l))? != b.get(usize::from(r))? || taken.0.contains(&l) || taken.1.contains(&r) {
            return None;
        }
        taken.0.push(l);
        taken.1.push(r);
    }
    let batch = dims.batch.iter().map(|pair| a[usize::from(pair.0)].clone());
    let left = dims.left_free(a.len()).into_iter().map(|d| a[usize::from(d)].clone());
    let right = dims.right_free(b.len()).into_iter().map(|d| b[usize::from(d)].clone());
    Some(batch.chain(left).chain(right).collect())
}

fn convolution(conv: &Conv, x: &Dims, w: &Dims) -> Option<Dims> {
    let rank = conv.windows.len() + 2;
    let (groups, batch_groups) = (i64::from(conv.feature_groups), i64::from(conv.batch_groups));
    let per_group = x.get(1)?.divided_by(groups)?;
    if x.len() != rank || w.len() != rank || w[1] != per_group || (groups > 1 && batch_groups > 1) {
        return None;
    }
    w[0].divided_by(groups * batch_groups)?;
    let positive = |n: &Size| Size::number(1).is_at_most(n);
    let is_sound = |n: &crate::op::Window| [&n.stride, &n.base, &n.dilation, &n.out].into_iter().all(positive);
    if !conv.windows.iter().all(is_sound) {
        return None;
    }
    let spatial = conv.windows.iter().map(|w| w.out.clone());
    Some([x[0].divided_by(batch_groups)?, w[0].clone()].into_iter().chain(spatial).collect())
}
