//! From a term to its form, op by op.

use super::simplify::simplify;
use super::*;
use crate::index::quotient_and_rest;
use crate::op::{Conv, Dims, DotDims, Op};
use crate::term::{TermId, Terms};
use std::collections::BTreeMap;

impl Form {
    /// The form of a term.
    ///
    /// # Errors
    /// Borders between parts whose order is unknown, or too many products.
    pub(crate) fn of(terms: &Terms, root: TermId) -> Result<Form, Unknown> {
        let mut forms: BTreeMap<TermId, Form> = BTreeMap::new();
        for term in terms.reachable(&[root]) {
            let node = terms.node(term);
            let from = |a: &TermId| if matches!(node.op, Op::Reshape(_)) { unreshaped(terms, *a) } else { *a };
            let args: Vec<TermId> = node.args.iter().map(from).collect();
            let args: Vec<(&Form, &Dims)> = args.iter().map(|a| (&forms[a], terms.dims(*a))).collect();
            let form = build(&node.op, &args, &node.dims)?;
            if form.products.len() > MOST_PRODUCTS {
                return Err(Unknown::TooMany);
            }
            forms.insert(term, form);
        }
        Ok(forms.remove(&root).unwrap_or_default())
    }
}

/// What a reshape takes its elements from: a reshape of a reshape is one.
fn unreshaped(terms: &Terms, mut term: TermId) -> TermId {
    while matches!(terms.node(term).op, Op::Reshape(_)) {
        term = terms.node(term).args[0];
    }
    term
}

fn free(dim: usize) -> Affine {
    Affine::var(Var::Free(dim as u8))
}

fn build(op: &Op, args: &[(&Form, &Dims)], dims: &Dims) -> Result<Form, Unknown> {
    let of = |k: usize| args[k].0;
    let dim_of = |dim: &u8| usize::from(*dim);
    Ok(match op {
        Op::Input(input) => {
            let factor = Factor::Element { input: *input, index: (0..dims.len()).map(free).collect() };
            Form { products: vec![plain(vec![factor], dims)] }
        }
        Op::Dot(pairs) => dot(pairs, args[0], args[1], dims),
        Op::Conv(conv) => convolution(conv, args[0], args[1], dims),
        Op::Add => Form { products: of(0).products.iter().chain(&of(1).products).cloned().collect() },
        Op::Multiply | Op::Scale => multiply(of(0), of(1), dims),
        Op::Unary(unary) => apply(Function::Unary(*unary), &[of(0)], dims)?,
        Op::Max => apply(Function::Max, &[of(0), of(1)], dims)?,
        Op::Above => apply(Function::Above, &[of(0), of(1)], dims)?,
        Op::Transpose(order) => {
            moved(of(0), dims, &|d| free(order.iter().position(|&from| usize::from(from) == d).unwrap_or_default()))
        }
        Op::Reshape(_) => reshaped(of(0), args[0].1, dims),
        Op::Slice { dim, start, .. } => {
            moved(of(0), dims, &|d| if d == dim_of(dim) { free(d).plus(start) } else { free(d) })
        }
        Op::Pad { dim, low, .. } => {
            moved(of(0), dims, &|d| if d == dim_of(dim) { free(d).plus(&-low) } else { free(d) })
        }
        Op::Pick { dim, place } => moved(of(0), dims, &|d| match d.cmp(&dim_of(dim)) {
            std::cmp::Ordering::Less => free(d),
            std::cmp::Ordering::Equal => Affine::constant(Size::number(i64::from(*place))),
            std::cmp::Ordering::Greater => free(d - 1),
        }),
        Op::Concat { dim } => {
            let mut start = Size::default();
            let mut all = Form::default();
            for (form, arg) in args {
                let place = |d| if d == dim_of(dim) { free(d).plus(&-&start) } else { free(d) };
                all.products.extend(moved(form, dims, &place).products);
                start = &start + &arg[dim_of(dim)];
            }
            all
        }
        Op::Stack { dim } => {
            let mut all = Form::default();
            for (k, (form, _)) in args.iter().enumerate() {
                let mut part = moved(form, dims, &|d| free(if d < dim_of(dim) { d } else { d + 1 }));
                let place = Size::number(k as i64);
                let next = Size::number(k as i64 + 1);
                part.products.iter_mut().for_each(|p| p.set_range(Var::Free(*dim), place.clone(), next.clone()));
                all.products.extend(part.products);
            }
            all
        }
        Op::Broadcast(new) => {
            let old: Vec<usize> = (0..dims.len()).filter(|&d| new.iter().all(|n| dim_of(&n.0) != d)).collect();
            moved(of(0), dims, &|d| free(old[d]))
        }
        Op::Reduce(over) => reduced(of(0), args[0].1, over, dims),
    })
}

/// A product of factors over all of `dims`.
fn plain(factors: Vec<Factor>, dims: &Dims) -> Product {
    let ranges = dims.iter().enumerate().map(|(d, n)| (Var::Free(d as u8), Size::default(), n.clone())).collect();
    Product { factors, guards: Vec::new(), ranges, coefficient: Size::number(1) }
}

/// A product whose free indices are those of a result of `dims`: `place` gives each old one, and `sums` are new bound ones.
fn carried(product: &Product, dims: &Dims, place: &dyn Fn(usize) -> Affine, sums: &[(Var, Size)]) -> Product {
    let mut new = plain(Vec::new(), dims);
    for (var, size) in sums {
        new.set_range(*var, Size::default(), size.clone());
    }
    new.coefficient = product.coefficient.clone();
    let mut conditions = Vec::new();
    for (var, low, high) in &product.ranges {
        match var {
            Var::Free(d) => {
                let expr = place(usize::from(*d));
                conditions.push(Guard { expr, low: low.clone(), high: high.clone() });
            }
            Var::Bound(..) => new.set_range(*var, low.clone(), high.clone()),
        }
    }
    new.factors = product.factors.clone();
    new.guards = product.guards.clone();
    let put = |v: Var| match v {
        Var::Free(d) => place(usize::from(d)),
        Var::Bound(..) => Affine::var(v),
    };
    new.replace(&put, &|_| None);
    new.guards.extend(conditions);
    new
}

/// Each product simplified; those that are nowhere are dropped.
fn tidied(products: impl IntoIterator<Item = Product>) -> Form {
    Form { products: products.into_iter().filter_map(|p| simplify(p, 0, &|_| None)).collect() }
}

fn moved(form: &Form, dims: &Dims, place: &dyn Fn(usize) -> Affine) -> Form {
    tidied(form.products.iter().map(|p| carried(p, dims, place, &[])))
}

fn reduced(form: &Form, from: &Dims, over: &[u8], dims: &Dims) -> Form {
    tidied(form.products.iter().map(|p| {
        let first = p.n_bound(0);
        let kept: Vec<usize> = (0..from.len()).filter(|&d| !over.contains(&(d as u8))).collect();
        let sum = |k: usize| Var::Bound(0, first + k as u16);
        let place = |d: usize| match over.iter().position(|&o| usize::from(o) == d) {
            Some(k) => Affine::var(sum(k)),
            None => free(kept.iter().position(|&k| k == d).unwrap_or_default()),
        };
        let sums: Vec<_> = over.iter().enumerate().map(|(k, &d)| (sum(k), from[usize::from(d)].clone())).collect();
        carried(p, dims, &place, &sums)
    }))
}

/// A product's sums numbered from `first` on.
fn renumbered(product: &Product, first: u16) -> Product {
    let mut product = product.clone();
    let later = |v: Var| match v {
        Var::Bound(0, n) => Var::Bound(0, n + first),
        Var::Bound(..) | Var::Free(_) => v,
    };
    product.ranges.iter_mut().for_each(|r| r.0 = later(r.0));
    product.ranges.sort();
    product.replace(&|v| Affine::var(later(v)), &|_| None);
    product
}

/// The product of two products over the same free indices, with sums of distinct numbers.
fn joined(a: Product, b: Product) -> Product {
    let mut both = a;
    both.factors.extend(b.factors);
    both.guards.extend(b.guards);
    both.coefficient = &both.coefficient * &b.coefficient;
    for (var, low, high) in b.ranges {
        match range_of(&both.ranges, var) {
            Some(_) => both.guards.push(Guard { expr: Affine::var(var), low, high }),
            None => both.set_range(var, low, high),
        }
    }
    both
}

fn multiply(a: &Form, b: &Form, dims: &Dims) -> Form {
    let pairs = a.products.iter().flat_map(|p| b.products.iter().map(move |q| (p, q)));
    tidied(pairs.map(|(p, q)| {
        let q = renumbered(q, p.n_bound(0));
        // A scalar has no free indices: it gets those of the result.
        joined(p.clone(), carried(&q, dims, &free, &[]))
    }))
}

fn dot(pairs: &DotDims, (a, a_dims): (&Form, &Dims), (b, b_dims): (&Form, &Dims), dims: &Dims) -> Form {
    let (n_batch, left, right) = (pairs.batch.len(), pairs.left_free(a_dims.len()), pairs.right_free(b_dims.len()));
    let all = a.products.iter().flat_map(|p| b.products.iter().map(move |q| (p, q)));
    tidied(all.map(|(p, q)| {
        let q = renumbered(q, p.n_bound(0));
        let first = p.n_bound(0).max(q.n_bound(0));
        let sum = |k: usize| Var::Bound(0, first + k as u16);
        let place = |d: u8, own: &[u8], start: usize, side: &dyn Fn(&(u8, u8)) -> u8| {
            if let Some(k) = pairs.batch.iter().position(|pair| side(pair) == d) {
                return free(k);
            }
            match pairs.contract.iter().position(|pair| side(pair) == d) {
                Some(k) => Affine::var(sum(k)),
                None => free(start + own.iter().position(|&o| o == d).unwrap_or_default()),
            }
        };
        let sizes = pairs.contract.iter().enumerate();
        let sums: Vec<_> = sizes.map(|(k, pair)| (sum(k), a_dims[usize::from(pair.0)].clone())).collect();
        let p = carried(p, dims, &|d| place(d as u8, &left, n_batch, &|pair| pair.0), &sums);
        let q = carried(&q, dims, &|d| place(d as u8, &right, n_batch + left.len(), &|pair| pair.1), &sums);
        joined(p, q)
    }))
}

fn convolution(conv: &Conv, (x, x_dims): (&Form, &Dims), (w, w_dims): (&Form, &Dims), dims: &Dims) -> Form {
    let (features, batches) = (i64::from(conv.feature_groups), i64::from(conv.batch_groups));
    let n_groups = features * batches;
    let per_group = w_dims[0].divided_by(n_groups).unwrap_or_default();
    let mut products = Vec::new();
    for (p, q) in x.products.iter().flat_map(|p| w.products.iter().map(move |q| (p, q))) {
        let q = renumbered(q, p.n_bound(0));
        let first = p.n_bound(0).max(q.n_bound(0));
        for group in 0..n_groups {
            let sums = ConvSums::new(conv, first, x_dims, w_dims);
            let start = |on: bool, size: &Size| if on { size * &Size::number(group) } else { Size::default() };
            let x_place = |d: usize| match d {
                0 => free(0).plus(&start(batches > 1, &dims[0])),
                1 => Affine::var(sums.feature).plus(&start(features > 1, &w_dims[1])),
                _ => sums.input_place(conv, d - 2, w_dims),
            };
            let w_place = |d: usize| match d {
                0 => free(1),
                1 => Affine::var(sums.feature),
                _ => Affine::var(sums.kernel[d - 2]),
            };
            let p = carried(p, dims, &x_place, &sums.ranges);
            let mut both = joined(p, carried(&q, dims, &w_place, &sums.ranges));
            both.guards.extend(sums.equations(conv, w_dims));
            let (low, high) = (&per_group * &Size::number(group), &per_group * &Size::number(group + 1));
            both.guards.push(Guard { expr: free(1), low, high });
            products.push(both);
        }
    }
    tidied(products)
}

/// The indices that a convolution sums over.
struct ConvSums {
    feature: Var,
    kernel: Vec<Var>,
    /// The input's place, where its dilation makes it a sum with an equation.
    place: Vec<Option<Var>>,
    ranges: Vec<(Var, Size)>,
}

impl ConvSums {
    fn new(conv: &Conv, first: u16, x_dims: &Dims, w_dims: &Dims) -> ConvSums {
        let n = conv.windows.len();
        let var = |k: usize| Var::Bound(0, first + k as u16);
        let is_dilated = |s: &usize| conv.windows[*s].base.as_number() != Some(1);
        let feature = var(0);
        let kernel: Vec<Var> = (0..n).map(|s| var(1 + s)).collect();
        let place: Vec<Option<Var>> = (0..n).map(|s| is_dilated(&s).then(|| var(1 + n + s))).collect();
        let mut ranges = vec![(feature, w_dims[1].clone())];
        ranges.extend(kernel.iter().zip(&w_dims[2..]).map(|(v, size)| (*v, size.clone())));
        ranges.extend(place.iter().zip(&x_dims[2..]).filter_map(|(v, size)| v.map(|v| (v, size.clone()))));
        ConvSums { feature, kernel, place, ranges }
    }

    /// `stride * o + dilation * k - low`.
    fn dilated_place(&self, conv: &Conv, s: usize, w_dims: &Dims) -> Affine {
        let window = &conv.windows[s];
        let k = Affine::var(self.kernel[s]);
        let last = &w_dims[s + 2] - &Size::number(1);
        let k = if window.is_reversed { Affine::constant(last).add(&k, &Size::number(-1)) } else { k };
        free(s + 2).times(&window.stride).add(&k, &window.dilation).plus(&-&window.low)
    }

    fn input_place(&self, conv: &Conv, s: usize, w_dims: &Dims) -> Affine {
        self.place[s].map_or_else(|| self.dilated_place(conv, s, w_dims), Affine::var)
    }

    fn equations(&self, conv: &Conv, w_dims: &Dims) -> Vec<Guard> {
        let dilated = self.place.iter().enumerate().filter_map(|(s, v)| Some((s, (*v)?)));
        let equation = |(s, v): (usize, Var)| Guard {
            expr: self.dilated_place(conv, s, w_dims).add(&Affine::var(v), &-&conv.windows[s].base),
            low: Size::default(),
            high: Size::number(1),
        };
        dilated.map(equation).collect()
    }
}

/// Dims that agree stay; each other run of dims is one number, which is taken apart.
fn reshaped(form: &Form, from: &Dims, to: &Dims) -> Form {
    let ranges = |v: Var| match v {
        Var::Free(d) => to.get(usize::from(d)).map(|n| (Size::default(), n.clone())),
        Var::Bound(..) => None,
    };
    let one = Size::number(1);
    let mut places = vec![Affine::default(); from.len()];
    let (mut i, mut j) = (0, 0);
    while i < from.len() {
        let (first_i, first_j) = (i, j);
        let (mut a, mut b) = (from[i].clone(), one.clone());
        i += 1;
        while a != b {
            if j < to.len() && (i == from.len() || !a.is_at_most(&b)) {
                b = &b * &to[j];
                j += 1;
            } else if i < from.len() {
                a = &a * &from[i];
                i += 1;
            } else {
                break;
            }
        }
        let mut number = Affine::default();
        for d in first_j..j {
            number = number.times(&to[d]).add(&free(d), &one);
        }
        for d in (first_i..i).rev() {
            let (quotient, rest) = quotient_and_rest(&number, &from[d], &ranges);
            places[d] = if d == first_i { number.clone() } else { rest };
            number = quotient;
        }
    }
    moved(form, to, &|d| places[d].clone())
}

/// A function of forms: one product for each cell between the borders of their parts, in which each part is there or not.
fn apply(function: Function, args: &[&Form], dims: &Dims) -> Result<Form, Unknown> {
    let all: Vec<&Product> = args.iter().flat_map(|form| &form.products).collect();
    let vars: Vec<Var> = (0..dims.len()).map(|d| Var::Free(d as u8)).collect();
    let start: Vec<Range> = vars.iter().zip(dims).map(|(v, n)| (*v, Size::default(), n.clone())).collect();
    let borders = equal::borders(&vars, all.iter().map(|p| &p.ranges).chain([&start]))?;
    let mut products = Vec::new();
    for cell in equal::cells(&borders) {
        let within = |p: &Product| equal::covers(&p.ranges, &cell);
        let mut inner: Vec<Form> = Vec::new();
        for form in args {
            let products = form.products.iter().filter(|p| within(p)).cloned().map(|mut p| {
                p.ranges.retain(|r| matches!(r.0, Var::Bound(..)));
                p
            });
            let mut form = Form { products: products.collect() };
            deepen(&mut form);
            inner.push(form);
        }
        let is_zero = inner.iter().all(|form| form.products.is_empty());
        let (coefficient, factors) = match (is_zero, function) {
            (true, Function::Unary(unary)) => (Size::number(unary.at_zero()), Vec::new()),
            (true, Function::Max | Function::Above) => (Size::default(), Vec::new()),
            (false, _) => (Size::number(1), vec![Factor::Function { function, args: inner }]),
        };
        products.push(Product { factors, guards: Vec::new(), ranges: cell, coefficient });
    }
    Ok(tidied(products))
}
