//! The symbolic form of a term: each element of its result as a sum of products of elements of inputs at affine index maps.
//!
//! A product has a range for each index of the result and for each index that it sums over, and guards where a condition lies on more
//! than one index (the padding of a convolution). Functions of which nothing is known stand in products as factors, with forms as
//! arguments. Sizes stay unknowns, so that equal forms prove a rule for all sizes.

mod build;
mod canonical;
mod equal;
mod simplify;

pub(crate) use equal::{Proof, prove_equal};

use crate::index::{Affine, Atom, Var};
use crate::op::Unary;
use crate::size::Size;

/// `low <= expr < high`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Guard {
    expr: Affine,
    low: Size,
    high: Size,
}

/// A function of which nothing is known but its value at zero, and that max takes its arguments in either order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Function {
    Unary(Unary),
    Max,
    Above,
}

/// One factor of a product.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Factor {
    /// An element of an input.
    Element { input: u8, index: Vec<Affine> },
    /// A function of forms, whose own sums are numbered one level deeper.
    Function { function: Function, args: Vec<Form> },
}

/// The values of an index: first, and one past the last.
type Range = (Var, Size, Size);

/// A sum of products over the ranges of its bound indices, for the ranges of the free ones.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Product {
    factors: Vec<Factor>,
    guards: Vec<Guard>,
    /// Sorted by index.
    ranges: Vec<Range>,
    coefficient: Size,
}

/// A sum of products.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Form {
    products: Vec<Product>,
}

/// Why nothing is proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unknown {
    /// Two borders of which neither is proved to come first.
    Order,
    /// More products than are looked at.
    TooMany,
}

const MOST_PRODUCTS: usize = 512;

/// Ranges of indices that are bound further out.
type Outer<'a> = &'a dyn Fn(Var) -> Option<(Size, Size)>;

fn range_of(ranges: &[Range], var: Var) -> Option<(Size, Size)> {
    let at = ranges.binary_search_by(|r| r.0.cmp(&var)).ok()?;
    Some((ranges[at].1.clone(), ranges[at].2.clone()))
}

impl Product {
    fn set_range(&mut self, var: Var, low: Size, high: Size) {
        match self.ranges.binary_search_by(|r| r.0.cmp(&var)) {
            Ok(at) => self.ranges[at] = (var, low, high),
            Err(at) => self.ranges.insert(at, (var, low, high)),
        }
    }

    fn remove_range(&mut self, var: Var) -> Option<Range> {
        let at = self.ranges.binary_search_by(|r| r.0.cmp(&var)).ok()?;
        Some(self.ranges.remove(at))
    }

    /// Number of sums of level `level`, as one more than the largest number.
    fn n_bound(&self, level: u8) -> u16 {
        let number = |r: &Range| match r.0 {
            Var::Bound(l, n) if l == level => Some(n + 1),
            Var::Bound(..) | Var::Free(_) => None,
        };
        self.ranges.iter().filter_map(number).max().unwrap_or(0)
    }

    /// Indices replaced in factors and guards; ranges stay.
    fn replace(&mut self, new: &dyn Fn(Var) -> Affine, outer: Outer<'_>) {
        let Product { factors, guards, ranges, .. } = self;
        let range = |v: Var| range_of(ranges, v).or_else(|| outer(v));
        for factor in factors {
            factor.replace(new, &range);
        }
        for guard in guards {
            guard.expr = guard.expr.replace(new, &range);
        }
    }

    /// Every index in the factors and guards, in the order in which they stand there.
    fn visit(&self, see: &mut dyn FnMut(Var)) {
        self.factors.iter().for_each(|f| f.visit(see));
        self.guards.iter().for_each(|g| visit_affine(&g.expr, see));
    }
}

impl Factor {
    fn replace(&mut self, new: &dyn Fn(Var) -> Affine, range: Outer<'_>) {
        match self {
            Factor::Element { index, .. } => index.iter_mut().for_each(|e| *e = e.replace(new, range)),
            Factor::Function { args, .. } => {
                let products = args.iter_mut().flat_map(|form| &mut form.products);
                products.for_each(|product| product.replace(new, range));
            }
        }
    }

    fn visit(&self, see: &mut dyn FnMut(Var)) {
        match self {
            Factor::Element { index, .. } => index.iter().for_each(|e| visit_affine(e, see)),
            Factor::Function { args, .. } => {
                args.iter().flat_map(|form| &form.products).for_each(|product| product.visit(see));
            }
        }
    }
}

fn visit_affine(e: &Affine, see: &mut dyn FnMut(Var)) {
    for (atom, _) in &e.terms {
        match atom {
            Atom::Var(v) => see(*v),
            Atom::Quotient(of) | Atom::Rest(of) => visit_affine(&of.0, see),
        }
    }
}

/// All sums of a form one level deeper, as it becomes the argument of a function.
fn deepen(form: &mut Form) {
    for product in &mut form.products {
        let deeper = |v: Var| match v {
            Var::Bound(level, n) => Var::Bound(level + 1, n),
            Var::Free(_) => v,
        };
        product.ranges.iter_mut().for_each(|r| r.0 = deeper(r.0));
        product.ranges.sort();
        for factor in &mut product.factors {
            match factor {
                Factor::Element { index, .. } => {
                    index.iter_mut().for_each(|e| *e = e.replace(&|v| Affine::var(deeper(v)), &|_| None));
                }
                Factor::Function { args, .. } => args.iter_mut().for_each(deepen),
            }
        }
        for guard in &mut product.guards {
            guard.expr = guard.expr.replace(&|v| Affine::var(deeper(v)), &|_| None);
        }
    }
}
