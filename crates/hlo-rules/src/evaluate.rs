//! Values of terms on concrete sizes: each op as the shortest loop that is obviously right.

use crate::numbers::Numbers;
use crate::op::{Conv, DotDims, Op};
use crate::size::Size;
use crate::term::{TermId, Terms};
use std::collections::BTreeMap;

/// An array in row-major order.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Array<N> {
    /// Sizes of its dims.
    pub(crate) dims: Vec<usize>,
    /// Its elements.
    pub(crate) elems: Vec<N>,
}

/// Elements between neighbours along each dim.
fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for d in (1..dims.len()).rev() {
        strides[d - 1] = strides[d] * dims[d];
    }
    strides
}

/// The offsets of all indices over dims given as `(size, stride)`, major to minor.
fn offsets(dims: impl IntoIterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut all = vec![0];
    for (size, stride) in dims {
        all = all.iter().flat_map(|&at| (0..size).map(move |i| at + i * stride)).collect();
    }
    all
}

/// All indices below `dims`, major to minor.
fn indices(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let n: usize = dims.iter().product();
    let steps = strides(dims);
    (0..n).map(move |at| dims.iter().zip(&steps).map(|(&size, &step)| at / step % size).collect())
}

/// Gives an input by its number and dims.
pub(crate) type Input<'a, N> = dyn Fn(u8, &[usize]) -> Array<N> + 'a;

/// A function of two numbers.
type Binary<'a, N> = dyn Fn(&N, &N) -> N + 'a;

/// The values of `roots`, where unknown `s` of a size is `sizes[s.number()]` and input `i` is `input(i, dims)`.
pub(crate) fn evaluate<A: Numbers>(
    numbers: &A,
    terms: &Terms,
    roots: &[TermId],
    sizes: &[i64],
    input: &Input<'_, A::N>,
) -> Vec<Array<A::N>> {
    let mut values: BTreeMap<TermId, Array<A::N>> = BTreeMap::new();
    for term in terms.reachable(roots) {
        let node = terms.node(term);
        let dims: Vec<usize> = node.dims.iter().map(|d| d.at(sizes) as usize).collect();
        let value = match &node.op {
            Op::Input(number) => input(*number, &dims),
            op => {
                let args: Vec<&Array<A::N>> = node.args.iter().map(|a| &values[a]).collect();
                apply(numbers, op, &args, dims, sizes)
            }
        };
        values.insert(term, value);
    }
    roots.iter().map(|r| values[r].clone()).collect()
}

/// What `op` gives of `args`; `dims` are those of its result. Shapes are those that inference accepts.
pub(crate) fn apply<A: Numbers>(
    numbers: &A,
    op: &Op,
    args: &[&Array<A::N>],
    dims: Vec<usize>,
    sizes: &[i64],
) -> Array<A::N> {
    let at = |size: &Size| size.at(sizes);
    let both = |f: &Binary<'_, A::N>| {
        let elems = args[0].elems.iter().zip(&args[1].elems).map(|(a, b)| f(a, b)).collect();
        Array { dims: args[0].dims.clone(), elems }
    };
    match op {
        Op::Input(_) => Array { elems: Vec::new(), dims },
        Op::Dot(pairs) => dot(numbers, pairs, args[0], args[1], dims),
        Op::Conv(conv) => convolution(numbers, conv, args[0], args[1], dims, sizes),
        Op::Add => both(&|a, b| numbers.add(a, b)),
        Op::Multiply => both(&|a, b| numbers.multiply(a, b)),
        Op::Max => both(&|a, b| numbers.max(a, b)),
        Op::Above => both(&|a, b| numbers.above(a, b)),
        Op::Scale => {
            let elems = args[0].elems.iter().map(|a| numbers.multiply(a, &args[1].elems[0])).collect();
            Array { dims, elems }
        }
        Op::Unary(unary) => Array { dims, elems: args[0].elems.iter().map(|a| numbers.unary(*unary, a)).collect() },
        Op::Transpose(order) => {
            let steps = strides(&args[0].dims);
            let from = offsets(dims.iter().zip(order).map(|(&n, &d)| (n, steps[usize::from(d)])));
            taken(args[0], dims, from)
        }
        Op::Reshape(_) => Array { dims, elems: args[0].elems.clone() },
        Op::Slice { dim, start, .. } => {
            let steps = strides(&args[0].dims);
            let first = at(start) as usize * steps[usize::from(*dim)];
            let from = offsets(dims.iter().copied().zip(steps));
            taken(args[0], dims, from.into_iter().map(|o| o + first))
        }
        Op::Pick { dim, place } => {
            let mut steps = strides(&args[0].dims);
            let first = usize::from(*place) * steps.remove(usize::from(*dim));
            let from = offsets(dims.iter().copied().zip(steps));
            taken(args[0], dims, from.into_iter().map(|o| o + first))
        }
        Op::Concat { dim } => joined(args, dims, usize::from(*dim), |a| a.dims[usize::from(*dim)]),
        Op::Stack { dim } => joined(args, dims, usize::from(*dim), |_| 1),
        Op::Pad { dim, low, .. } => {
            let steps = strides(&dims);
            let first = at(low) as usize * steps[usize::from(*dim)];
            let mut elems = vec![numbers.zero(); dims.iter().product()];
            let to = offsets(args[0].dims.iter().copied().zip(steps));
            to.iter().zip(&args[0].elems).for_each(|(o, a)| elems[o + first] = a.clone());
            Array { dims, elems }
        }
        Op::Broadcast(new) => {
            let mut steps = strides(&args[0].dims);
            new.iter().for_each(|(dim, _)| steps.insert(usize::from(*dim), 0));
            let from = offsets(dims.iter().copied().zip(steps));
            taken(args[0], dims, from)
        }
        Op::Reduce(over) => {
            let steps = strides(&args[0].dims);
            let part = |is_over: bool| {
                let wanted = move |d: &usize| over.contains(&(*d as u8)) == is_over;
                offsets((0..args[0].dims.len()).filter(wanted).map(|d| (args[0].dims[d], steps[d])).collect::<Vec<_>>())
            };
            let (kept, summed) = (part(false), part(true));
            let sum = |o: &usize| numbers.sum(&mut summed.iter().map(|s| &args[0].elems[o + s]));
            Array { dims, elems: kept.iter().map(sum).collect() }
        }
    }
}

fn taken<N: Clone>(a: &Array<N>, dims: Vec<usize>, from: impl IntoIterator<Item = usize>) -> Array<N> {
    Array { dims, elems: from.into_iter().map(|o| a.elems[o].clone()).collect() }
}

/// Arrays one after the other along dim `dim` of the result, of which each takes `extent` places.
fn joined<N: Clone>(args: &[&Array<N>], dims: Vec<usize>, dim: usize, extent: impl Fn(&Array<N>) -> usize) -> Array<N> {
    let after: usize = dims[dim + 1..].iter().product();
    let before: usize = dims[..dim].iter().product();
    let mut elems = Vec::with_capacity(before * dims[dim] * after);
    for row in 0..before {
        for a in args {
            let run = extent(a) * after;
            elems.extend_from_slice(&a.elems[row * run..][..run]);
        }
    }
    Array { dims, elems }
}

fn dot<A: Numbers>(numbers: &A, pairs: &DotDims, a: &Array<A::N>, b: &Array<A::N>, dims: Vec<usize>) -> Array<A::N> {
    let (left, right) = (strides(&a.dims), strides(&b.dims));
    let of = |array: &Array<A::N>, steps: &[usize], which: &mut dyn Iterator<Item = u8>| {
        offsets(which.map(|d| (array.dims[usize::from(d)], steps[usize::from(d)])).collect::<Vec<_>>())
    };
    let batch =
        [of(a, &left, &mut pairs.batch.iter().map(|p| p.0)), of(b, &right, &mut pairs.batch.iter().map(|p| p.1))];
    let inner =
        [of(a, &left, &mut pairs.contract.iter().map(|p| p.0)), of(b, &right, &mut pairs.contract.iter().map(|p| p.1))];
    let rows = of(a, &left, &mut pairs.left_free(a.dims.len()).into_iter());
    let columns = of(b, &right, &mut pairs.right_free(b.dims.len()).into_iter());
    let mut elems = Vec::with_capacity(dims.iter().product());
    for (ab, bb) in batch[0].iter().zip(&batch[1]) {
        for i in &rows {
            for j in &columns {
                let mut places = inner[0].iter().zip(&inner[1]).map(|(k, l)| (ab + i + k, bb + j + l));
                elems.push(numbers.sum_of_products(&a.elems, &b.elems, &mut places));
            }
        }
    }
    Array { dims, elems }
}

/// The input place that output place `o` and kernel place `k` of one spatial dim meet.
fn met(window: &[i64; 4], is_reversed: bool, kernel: usize, input: usize, o: usize, k: usize) -> Option<usize> {
    let [stride, low, base, dilation] = *window;
    let k = if is_reversed { kernel - 1 - k } else { k };
    let at = stride * o as i64 + dilation * k as i64 - low;
    (at >= 0 && at % base == 0 && at / base < input as i64).then_some((at / base) as usize)
}

fn convolution<A: Numbers>(
    numbers: &A,
    conv: &Conv,
    x: &Array<A::N>,
    w: &Array<A::N>,
    dims: Vec<usize>,
    sizes: &[i64],
) -> Array<A::N> {
    let (x_steps, w_steps) = (strides(&x.dims), strides(&w.dims));
    let windows: Vec<[i64; 4]> =
        conv.windows.iter().map(|n| [&n.stride, &n.low, &n.base, &n.dilation].map(|s| s.at(sizes))).collect();
    let (features, batches) = (usize::from(conv.feature_groups), usize::from(conv.batch_groups));
    let per_group = w.dims[0] / (features * batches);
    let mut elems = Vec::with_capacity(dims.iter().product());
    for out in indices(&dims) {
        let group = out[1] / per_group;
        let n = if batches > 1 { group * dims[0] + out[0] } else { out[0] };
        let first_feature = if features > 1 { group * w.dims[1] } else { 0 };
        let mut places = Vec::new();
        for c in 0..w.dims[1] {
            for kernel in indices(&w.dims[2..]) {
                let mut at = (n * x_steps[0] + (first_feature + c) * x_steps[1], out[1] * w_steps[0] + c * w_steps[1]);
                let is_met = windows.iter().enumerate().all(|(s, window)| {
                    let (size, input) = (w.dims[s + 2], x.dims[s + 2]);
                    let place = met(window, conv.windows[s].is_reversed, size, input, out[s + 2], kernel[s]);
                    at.0 += place.unwrap_or(0) * x_steps[s + 2];
                    at.1 += kernel[s] * w_steps[s + 2];
                    place.is_some()
                });
                if is_met {
                    places.push(at);
                }
            }
        }
        elems.push(numbers.sum_of_products(&x.elems, &w.elems, &mut places.into_iter()));
    }
    Array { dims, elems }
}
