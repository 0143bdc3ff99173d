//! Backward forms: the transpose of each op with respect to each of its operands, and of a rule with respect to each of its inputs.
//!
//! For `left = right` with an input `x` and a cotangent `dy` of the result, what flows back to `x` is equal on both sides as well. Relu is
//! transposed into a product with `step`, max into one with its mask; both masks have no gradient.

use crate::op::{Conv, DimList, Dims, DotDims, Op, Unary, Window};
use crate::rule::Rule;
use crate::size::Size;
use crate::term::{Args, TermId, Terms};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

/// Why there is no backward form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoGradient {
    /// A rule of several results.
    SeveralResults,
    /// A grouped convolution that is itself a backward form.
    Convolution,
    /// Nothing flows back: the input stands behind masks only, or not in both sides.
    Zero,
    /// The backward forms of the sides agree wherever they were evaluated, but are not proved equal.
    Unproved,
}

/// The rule for what flows back to input `input`: the same sides' gradients, with the cotangent as a further input.
///
/// # Errors
/// Why there is none.
pub fn gradient_rule(rule: &Rule, input: u8) -> Result<Rule, NoGradient> {
    let (&[left], &[right]) = (&rule.left[..], &rule.right[..]) else { return Err(NoGradient::SeveralResults) };
    let mut new = rule.clone();
    let cotangent = new.terms.input(rule.inputs.len() as u8, rule.terms.dims(left).clone());
    let name = (0..).map(|n| if n == 0 { "dy".into() } else { format!("dy{n}") });
    new.inputs.extend(name.filter(|name: &String| !rule.inputs.contains(name)).take(1));
    let mut side = |root| gradient(&mut new.terms, root, cotangent, input)?.ok_or(NoGradient::Zero);
    let (left, right) = (side(left)?, side(right)?);
    (new.left, new.right) = (vec![left], vec![right]);
    Ok(new)
}

/// What flows back from `root` with cotangent `cotangent` to an input; `None` is zero.
fn gradient(terms: &mut Terms, root: TermId, cotangent: TermId, input: u8) -> Result<Option<TermId>, NoGradient> {
    let order = terms.reachable(&[root]);
    let mut leads: Vec<TermId> = Vec::new();
    for &term in &order {
        let node = terms.node(term);
        if node.op == Op::Input(input) || node.args.iter().any(|a| leads.contains(a)) {
            leads.push(term);
        }
    }
    let mut flows: BTreeMap<TermId, TermId> = BTreeMap::from([(root, cotangent)]);
    for &term in order.iter().rev() {
        let Some(&flow) = flows.get(&term) else { continue };
        let node = terms.node(term).clone();
        for k in (0..node.args.len()).filter(|&k| leads.contains(&node.args[k])) {
            let Some(part) = transposed(terms, &node.op, &node.args, k, flow)? else { continue };
            let arg = node.args[k];
            let sum = match flows.get(&arg) {
                Some(&before) => build(terms, Op::Add, &[before, part])?,
                None => part,
            };
            flows.insert(arg, sum);
        }
    }
    let target = order.iter().find(|&&t| terms.node(t).op == Op::Input(input));
    Ok(target.and_then(|t| flows.get(t)).copied())
}

/// The term; ops that this module builds type.
fn build(terms: &mut Terms, op: Op, args: &[TermId]) -> Result<TermId, NoGradient> {
    terms.add(op, args.iter().copied().collect()).map_err(|_| NoGradient::Convolution)
}

/// A transpose; none for dims in their own order, one for two.
fn transpose(terms: &mut Terms, term: TermId, order: DimList) -> Result<TermId, NoGradient> {
    if order.windows(2).all(|w| w[0] < w[1]) {
        return Ok(term);
    }
    let node = terms.node(term).clone();
    if let Op::Transpose(inner) = node.op {
        let both = order.iter().map(|&d| inner[usize::from(d)]).collect();
        return transpose(terms, node.args[0], both);
    }
    build(terms, Op::Transpose(order), &[term])
}

/// What flows back to operand `k` of `op(args)` from `flow`.
fn transposed(terms: &mut Terms, op: &Op, args: &Args, k: usize, flow: TermId) -> Result<Option<TermId>, NoGradient> {
    let dims: Dims = terms.dims(args[k]).clone();
    let result = match op {
        Op::Input(_) | Op::Above => return Ok(None),
        Op::Dot(pairs) => dot(terms, pairs, args, k, flow)?,
        Op::Conv(conv) => convolution(terms, conv, args, k, flow)?,
        Op::Add => flow,
        Op::Multiply => build(terms, Op::Multiply, &[flow, args[1 - k]])?,
        Op::Scale if k == 0 => build(terms, Op::Scale, &[flow, args[1]])?,
        Op::Scale => {
            let product = build(terms, Op::Multiply, &[flow, args[0]])?;
            let n = terms.dims(args[0]).len();
            if n == 0 { product } else { build(terms, Op::Reduce((0..n as u8).collect()), &[product])? }
        }
        Op::Unary(Unary::Step) => return Ok(None),
        Op::Unary(unary) => {
            let mask = match unary {
                Unary::Relu | Unary::Step => Unary::Step,
                Unary::Exp => Unary::Exp,
            };
            let mask = build(terms, Op::Unary(mask), &[args[0]])?;
            build(terms, Op::Multiply, &[flow, mask])?
        }
        Op::Max => {
            let mask = build(terms, Op::Above, &[args[k], args[1 - k]])?;
            build(terms, Op::Multiply, &[flow, mask])?
        }
        Op::Transpose(order) => {
            let place = |d: usize| order.iter().position(|&o| usize::from(o) == d).unwrap_or_default() as u8;
            transpose(terms, flow, (0..order.len()).map(place).collect())?
        }
        Op::Reshape(_) => build(terms, Op::Reshape(dims), &[flow])?,
        Op::Slice { dim, start, size } => {
            let high = &(&dims[usize::from(*dim)] - start) - size;
            build(terms, Op::Pad { dim: *dim, low: start.clone(), high }, &[flow])?
        }
        Op::Concat { dim } => {
            let size = |a: &TermId| terms.dims(*a)[usize::from(*dim)].clone();
            let start = args[..k].iter().map(size).fold(Size::default(), |sum, n| &sum + &n);
            build(terms, Op::Slice { dim: *dim, start, size: dims[usize::from(*dim)].clone() }, &[flow])?
        }
        Op::Stack { dim } => build(terms, Op::Pick { dim: *dim, place: k as u8 }, &[flow])?,
        Op::Pick { dim, place } => {
            let row = build(terms, Op::Broadcast(smallvec![(*dim, Size::number(1))]), &[flow])?;
            let low = Size::number(i64::from(*place));
            let high = &(&dims[usize::from(*dim)] - &low) - &Size::number(1);
            build(terms, Op::Pad { dim: *dim, low, high }, &[row])?
        }
        Op::Pad { dim, low, .. } => {
            let size = dims[usize::from(*dim)].clone();
            build(terms, Op::Slice { dim: *dim, start: low.clone(), size }, &[flow])?
        }
        Op::Broadcast(new) => build(terms, Op::Reduce(new.iter().map(|n| n.0).collect()), &[flow])?,
        Op::Reduce(over) => {
            let new = over.iter().map(|&d| (d, dims[usize::from(d)].clone())).collect();
            build(terms, Op::Broadcast(new), &[flow])?
        }
    };
    Ok(Some(result))
}

/// `dx = dot(dy, w)`, `dw = dot(x, dy)`, over the dims of the operand that stays, with the result's dims put in the operand's order.
fn dot(terms: &mut Terms, pairs: &DotDims, args: &Args, k: usize, flow: TermId) -> Result<TermId, NoGradient> {
    let ranks = [0, 1].map(|i| terms.dims(args[i]).len());
    let (left, right) = (pairs.left_free(ranks[0]), pairs.right_free(ranks[1]));
    let (n_batch, n_left) = (pairs.batch.len(), left.len());
    // Pairs of summed dims by their dim in the operand that stays, with it first or second.
    let inner = |is_right: bool| -> Vec<u8> {
        let turned = |pair: &(u8, u8)| if is_right { (pair.1, pair.0) } else { *pair };
        let mut pairs: Vec<(u8, u8)> = pairs.contract.iter().map(turned).collect();
        pairs.sort();
        pairs.into_iter().map(|pair| pair.1).collect()
    };
    let numbered = |dims: &DimList, start: usize| -> Vec<(u8, u8)> {
        dims.iter().enumerate().map(|(i, &d)| (d, (start + i) as u8)).collect()
    };
    // The dims of the new product, as dims of the operand.
    let (product, owner): (TermId, Vec<u8>) = if k == 0 {
        let batch = pairs.batch.iter().enumerate().map(|(i, pair)| (i as u8, pair.1)).collect();
        let contract = numbered(&right, n_batch + n_left).into_iter().map(|(d, at)| (at, d)).collect();
        let product = build(terms, Op::Dot(DotDims { batch, contract }), &[flow, args[1]])?;
        let own = pairs.batch.iter().map(|pair| pair.0).chain(left.iter().copied());
        (product, own.chain(inner(true)).collect())
    } else {
        let batch = pairs.batch.iter().enumerate().map(|(i, pair)| (pair.0, i as u8)).collect();
        let contract = numbered(&left, n_batch).into_iter().collect();
        let product = build(terms, Op::Dot(DotDims { batch, contract }), &[args[0], flow])?;
        let own = pairs.batch.iter().map(|pair| pair.1);
        let own = own.chain(inner(false)).chain(right.iter().copied());
        (product, own.collect())
    };
    let place = |d: usize| owner.iter().position(|&o| usize::from(o) == d).unwrap_or_default() as u8;
    transpose(terms, product, (0..owner.len()).map(place).collect())
}

fn convolution(terms: &mut Terms, conv: &Conv, args: &Args, k: usize, flow: TermId) -> Result<TermId, NoGradient> {
    if conv.batch_groups > 1 {
        return Err(NoGradient::Convolution);
    }
    let spatial: Vec<(Size, Size)> = {
        let (x, w) = (terms.dims(args[0]), terms.dims(args[1]));
        x[2..].iter().cloned().zip(w[2..].iter().cloned()).collect()
    };
    // `dilation * (kernel - 1) - low`: the padding of the convolution that goes the other way.
    let other_low = |w: &Window, kernel: &Size| &(&w.dilation * &(kernel - &Size::number(1))) - &w.low;
    let windows = conv.windows.iter().zip(&spatial);
    if k == 0 {
        let windows = windows.map(|(w, (input, kernel))| Window {
            stride: w.base.clone(),
            low: other_low(w, kernel),
            base: w.stride.clone(),
            dilation: w.dilation.clone(),
            out: input.clone(),
            is_reversed: !w.is_reversed,
        });
        let back = Conv { windows: windows.collect(), ..conv.clone() };
        let kernel = swapped_kernel(terms, args[1], conv.feature_groups)?;
        return build(terms, Op::Conv(Box::new(back)), &[flow, kernel]);
    }
    let [is_forward, is_reversed] = [false, true].map(|r| conv.windows.iter().all(|w| w.is_reversed == r));
    let (image, kernel) = (swap(terms, args[0])?, swap(terms, flow)?);
    if is_forward {
        let windows = windows.map(|(w, (_, kernel))| Window {
            stride: w.dilation.clone(),
            low: w.low.clone(),
            base: w.base.clone(),
            dilation: w.stride.clone(),
            out: kernel.clone(),
            is_reversed: false,
        });
        let back = Conv { windows: windows.collect(), feature_groups: 1, batch_groups: conv.feature_groups };
        let product = build(terms, Op::Conv(Box::new(back)), &[image, kernel])?;
        swap(terms, product)
    } else if is_reversed && conv.feature_groups == 1 {
        let windows = windows.map(|(w, (_, kernel))| Window {
            stride: w.dilation.clone(),
            low: other_low(w, kernel),
            base: w.stride.clone(),
            dilation: w.base.clone(),
            out: kernel.clone(),
            is_reversed: false,
        });
        let back = Conv { windows: windows.collect(), feature_groups: 1, batch_groups: 1 };
        build(terms, Op::Conv(Box::new(back)), &[kernel, image])
    } else {
        Err(NoGradient::Convolution)
    }
}

/// The first two dims exchanged.
fn swap(terms: &mut Terms, term: TermId) -> Result<TermId, NoGradient> {
    let rank = terms.dims(term).len() as u8;
    transpose(terms, term, [1, 0].into_iter().chain(2..rank).collect())
}

/// A kernel `[groups * f, c, …]` as `[groups * c, f, …]`; what was swapped already is swapped back.
fn swapped_kernel(terms: &mut Terms, kernel: TermId, groups: u8) -> Result<TermId, NoGradient> {
    if groups == 1 {
        return swap(terms, kernel);
    }
    let mut source = kernel;
    for _ in 0..3 {
        source = terms.node(source).args.first().copied().unwrap_or(source);
    }
    if source != kernel && build_swapped_kernel(terms, source, groups) == Ok(kernel) {
        return Ok(source);
    }
    build_swapped_kernel(terms, kernel, groups)
}

fn build_swapped_kernel(terms: &mut Terms, kernel: TermId, groups: u8) -> Result<TermId, NoGradient> {
    let dims = terms.dims(kernel).clone();
    if dims.len() < 3 {
        return Err(NoGradient::Convolution);
    }
    let n = Size::number(i64::from(groups));
    let per_group = dims[0].divided_by(i64::from(groups)).ok_or(NoGradient::Convolution)?;
    let rest = &dims[2..];
    let apart: Dims = [n.clone(), per_group.clone(), dims[1].clone()].into_iter().chain(rest.iter().cloned()).collect();
    let apart = build(terms, Op::Reshape(apart), &[kernel])?;
    let order: SmallVec<[u8; 4]> = [0, 2, 1].into_iter().chain(3..dims.len() as u8 + 1).collect();
    let turned = transpose(terms, apart, order)?;
    let whole: Dims = [&n * &dims[1], per_group].into_iter().chain(rest.iter().cloned()).collect();
    build(terms, Op::Reshape(whole), &[turned])
}
