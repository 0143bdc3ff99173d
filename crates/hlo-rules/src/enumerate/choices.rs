//! The ops that a signature allows on the terms at hand.

use super::Signature;
use crate::op::{Conv, Dims, DotDims, Op, Unary, Window};
use crate::size::Size;
use crate::term::{Args, TermId, Terms};
use smallvec::smallvec;

/// The highest rank of a term that is built on.
const MOST_RANK: usize = 3;

/// All ops on `terms` that type, in a fixed order.
pub(super) fn choices(signature: &Signature, store: &Terms, terms: &[TermId]) -> Vec<(Op, Args)> {
    let mut all: Vec<(Op, Args)> = Vec::new();
    let dims = |t: TermId| store.dims(t);
    for name in &signature.ops {
        for &a in terms {
            for op in of_one(signature, name, dims(a)) {
                all.push((op, smallvec![a]));
            }
            for &b in terms {
                for op in of_two(signature, name, (a, dims(a)), (b, dims(b))) {
                    all.push((op, smallvec![a, b]));
                }
            }
        }
    }
    all
}

fn is_stack(size: &Size) -> bool {
    size.as_number() == Some(2)
}

fn of_one(signature: &Signature, name: &str, a: &Dims) -> Vec<Op> {
    let each = || 0..a.len() as u8;
    match name {
        "relu" if !a.is_empty() => vec![Op::Unary(Unary::Relu)],
        "exp" if !a.is_empty() => vec![Op::Unary(Unary::Exp)],
        "transpose" if a.len() == 2 => vec![Op::Transpose(smallvec![1, 0])],
        "slice" => each().flat_map(|dim| parts(dim, &a[usize::from(dim)])).collect(),
        "pick" => each()
            .filter(|&dim| is_stack(&a[usize::from(dim)]))
            .flat_map(|dim| [0, 1].map(|place| Op::Pick { dim, place }))
            .collect(),
        "pad" => {
            let pad = |dim| move |(low, high): &(Size, Size)| Op::Pad { dim, low: low.clone(), high: high.clone() };
            // Other dims say the same of other orders of dims.
            each().last().into_iter().flat_map(|dim| signature.pads.iter().map(pad(dim))).collect()
        }
        "broadcast" if a.len() < MOST_RANK => {
            signature.new.iter().map(|n| Op::Broadcast(smallvec![(0, n.clone())])).collect()
        }
        "reduce" => each().map(|dim| Op::Reduce(smallvec![dim])).collect(),
        "reshape" => merges(a),
        _ => Vec::new(),
    }
}

/// The parts of a dim whose size is a sum: each name, from the names before it.
fn parts(dim: u8, size: &Size) -> Vec<Op> {
    let names = size.unknowns();
    if names.len() < 2 {
        return Vec::new();
    }
    let mut start = Size::default();
    let mut all = Vec::new();
    for name in names {
        let part = Size::unknown(name);
        if !name.is_amount() {
            all.push(Op::Slice { dim, start: start.clone(), size: part.clone() });
        }
        start = &start + &part;
    }
    // What a padding left in the middle: amounts on both sides.
    if let [low, .., high] = &size.unknowns().iter().copied().filter(|n| n.is_amount()).collect::<Vec<_>>()[..] {
        let middle = &(size - &Size::unknown(*low)) - &Size::unknown(*high);
        all.push(Op::Slice { dim, start: Size::unknown(*low), size: middle });
    }
    all
}

/// Neighbouring dims as one, and a dim that is a product as two.
fn merges(a: &Dims) -> Vec<Op> {
    let mut all = Vec::new();
    for d in 0..a.len() {
        let around =
            |middle: &[Size], n: usize| -> Dims { a[..d].iter().chain(middle).chain(&a[d + n..]).cloned().collect() };
        if d + 1 < a.len() {
            all.push(Op::Reshape(around(&[&a[d] * &a[d + 1]], 2)));
        }
        if let ([m, n], true) = (a[d].unknowns().as_slice(), a[d].parts().len() == 1) {
            all.push(Op::Reshape(around(&[Size::unknown(*m), Size::unknown(*n)], 1)));
        }
    }
    all
}

fn of_two(signature: &Signature, name: &str, (a, a_dims): (TermId, &Dims), (b, b_dims): (TermId, &Dims)) -> Vec<Op> {
    let is_alike = a_dims == b_dims;
    let n = a_dims.len();
    match name {
        // The order of operands says nothing new.
        "add" if is_alike && a <= b => vec![Op::Add],
        "multiply" if is_alike && a <= b && n > 0 => vec![Op::Multiply],
        "max" if is_alike && a < b && n > 0 => vec![Op::Max],
        "scale" if b_dims.is_empty() => vec![Op::Scale],
        "dot" => dots(a_dims, b_dims, Batch::None),
        "batch-dot" => dots(a_dims, b_dims, Batch::Stacked),
        "batched-dot" => dots(a_dims, b_dims, Batch::First),
        "conv" => convolutions(signature, 1),
        "grouped-conv" => convolutions(signature, 2),
        "concat" if a != b && n == b_dims.len() => (0..n)
            .filter(|&d| (0..n).all(|e| e == d || a_dims[e] == b_dims[e]))
            .map(|d| Op::Concat { dim: d as u8 })
            .collect(),
        "stack" if a != b && is_alike && n < MOST_RANK => vec![Op::Stack { dim: 0 }],
        _ => Vec::new(),
    }
}

/// The batch dims of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Batch {
    None,
    /// A pair of stacked dims.
    Stacked,
    /// The first dims, of any size.
    First,
}

/// Products that sum over one pair of dims.
fn dots(a: &Dims, b: &Dims, batch: Batch) -> Vec<Op> {
    let pairs = || (0..a.len()).flat_map(|i| (0..b.len()).map(move |j| (i, j))).filter(|&(i, j)| a[i] == b[j]);
    let mut all = Vec::new();
    for (i, j) in pairs().filter(|&(i, _)| !is_stack(&a[i])) {
        let contract = smallvec![(i as u8, j as u8)];
        let mut add = |batch| all.push(Op::Dot(DotDims { batch, contract: smallvec::SmallVec::clone(&contract) }));
        match batch {
            Batch::None if a.len() + b.len() <= 2 + MOST_RANK => add(smallvec![]),
            Batch::None => {}
            Batch::Stacked => {
                pairs().filter(|&(p, _)| is_stack(&a[p])).for_each(|(p, q)| add(smallvec![(p as u8, q as u8)]));
            }
            Batch::First if i > 0 && j > 0 && a[0] == b[0] => add(smallvec![(0, 0)]),
            Batch::First => {}
        }
    }
    all
}

fn convolutions(signature: &Signature, feature_groups: u8) -> Vec<Op> {
    let conv = |[stride, low, base, dilation, out]: &[Size; 5]| {
        let [stride, low, base, dilation, out] = [stride, low, base, dilation, out].map(Clone::clone);
        let windows = smallvec![Window { stride, low, base, dilation, out, is_reversed: false }];
        Op::Conv(Box::new(Conv { windows, feature_groups, batch_groups: 1 }))
    };
    signature.windows.iter().map(conv).collect()
}
