//! Index maps: affine functions of indices with sizes as coefficients, and quotients and rests of them where a reshape splits a dim.

use crate::size::Size;
use smallvec::{SmallVec, smallvec};

/// An index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Var {
    /// Of the result, by dim.
    Free(u8),
    /// Of a sum, by the number of functions around it and its number.
    Bound(u8, u16),
}

/// What an index map is affine in.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Atom {
    Var(Var),
    /// `floor(affine / size)`.
    Quotient(Box<(Affine, Size)>),
    /// `affine mod size`.
    Rest(Box<(Affine, Size)>),
}

/// `Σ size * atom + constant`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Affine {
    /// Sorted by atom, no coefficient is zero.
    pub(crate) terms: SmallVec<[(Atom, Size); 2]>,
    pub(crate) constant: Size,
}

impl Affine {
    pub(crate) fn var(var: Var) -> Affine {
        Affine { terms: smallvec![(Atom::Var(var), Size::number(1))], constant: Size::default() }
    }

    pub(crate) fn constant(constant: Size) -> Affine {
        Affine { terms: SmallVec::new(), constant }
    }

    pub(crate) fn atom(atom: Atom) -> Affine {
        Affine { terms: smallvec![(atom, Size::number(1))], constant: Size::default() }
    }

    pub(crate) fn add(mut self, other: &Affine, times: &Size) -> Affine {
        for (atom, n) in &other.terms {
            let n = n * times;
            match self.terms.binary_search_by(|(a, _)| a.cmp(atom)) {
                Ok(at) => {
                    self.terms[at].1 = &self.terms[at].1 + &n;
                    if self.terms[at].1.is_zero() {
                        self.terms.remove(at);
                    }
                }
                Err(at) if !n.is_zero() => self.terms.insert(at, (atom.clone(), n)),
                Err(_) => {}
            }
        }
        self.constant = &self.constant + &(&other.constant * times);
        self
    }

    pub(crate) fn plus(mut self, n: &Size) -> Affine {
        self.constant = &self.constant + n;
        self
    }

    pub(crate) fn times(&self, n: &Size) -> Affine {
        Affine::default().add(self, n)
    }

    /// The variable and its coefficient, if there is nothing else but the constant and the coefficient is 1 or -1.
    pub(crate) fn as_shifted_var(&self) -> Option<(Var, bool)> {
        match self.terms.as_slice() {
            [(Atom::Var(v), n)] => match n.as_number() {
                Some(1) => Some((*v, false)),
                Some(-1) => Some((*v, true)),
                Some(_) | None => None,
            },
            _ => None,
        }
    }

    /// The coefficient of a variable that stands by itself.
    pub(crate) fn coefficient(&self, var: Var) -> Option<&Size> {
        let at = self.terms.binary_search_by(|(a, _)| a.cmp(&Atom::Var(var))).ok()?;
        Some(&self.terms[at].1)
    }

    /// Whether a variable stands anywhere in it.
    pub(crate) fn mentions(&self, var: Var) -> bool {
        self.terms.iter().any(|(atom, _)| match atom {
            Atom::Var(v) => *v == var,
            Atom::Quotient(of) | Atom::Rest(of) => of.0.mentions(var),
        })
    }

    /// Variables replaced; `range` tells the values of those that are left, first and one past the last.
    pub(crate) fn replace(&self, new: &dyn Fn(Var) -> Affine, range: &dyn Fn(Var) -> Option<(Size, Size)>) -> Affine {
        let start = Affine::constant(self.constant.clone());
        let replaced = self.terms.iter().fold(start, |sum, (atom, n)| {
            let part = match atom {
                Atom::Var(v) => new(*v),
                Atom::Quotient(of) => quotient_and_rest(&of.0.replace(new, range), &of.1, range).0,
                Atom::Rest(of) => quotient_and_rest(&of.0.replace(new, range), &of.1, range).1,
            };
            sum.add(&part, n)
        });
        replaced.rejoined()
    }

    /// `n * size * floor(e / size) + n * (e mod size)` is `n * e`.
    fn rejoined(self) -> Affine {
        for (atom, n) in &self.terms {
            let Atom::Rest(of) = atom else { continue };
            let quotient = Atom::Quotient(of.clone());
            let whole = n * &of.1;
            if self.terms.iter().any(|(a, m)| *a == quotient && *m == whole) {
                let (rest, n, of) = (Affine::atom(atom.clone()), n.clone(), of.clone());
                let without = self.add(&rest, &-&n).add(&Affine::atom(quotient), &-&whole);
                return without.add(&of.0, &n).rejoined();
            }
        }
        self
    }

    /// The least and the greatest value, as far as the ranges of its variables and the signs of coefficients show them.
    pub(crate) fn extremes(&self, range: &dyn Fn(Var) -> Option<(Size, Size)>) -> Option<(Size, Size)> {
        let (mut least, mut greatest) = (self.constant.clone(), self.constant.clone());
        for (atom, n) in &self.terms {
            let (low, high) = match atom {
                Atom::Var(v) => range(*v)?,
                Atom::Rest(of) => (Size::default(), of.1.clone()),
                Atom::Quotient(_) => return None,
            };
            let high = &high - &Size::number(1);
            let (a, b) = if n.is_never_negative() {
                (low, high)
            } else if (-n).is_never_negative() {
                (high, low)
            } else {
                return None;
            };
            least = &least + &(n * &a);
            greatest = &greatest + &(n * &b);
        }
        Some((least, greatest))
    }
}

/// `floor(e / size)` and `e mod size`, with all that `size` divides taken out.
pub(crate) fn quotient_and_rest(
    e: &Affine,
    size: &Size,
    range: &dyn Fn(Var) -> Option<(Size, Size)>,
) -> (Affine, Affine) {
    let (mut quotient, mut rest) = (Affine::default(), Affine::default());
    for (atom, n) in &e.terms {
        let (q, r) = n.divided_with_rest(size);
        quotient = quotient.add(&Affine::atom(atom.clone()), &q);
        rest = rest.add(&Affine::atom(atom.clone()), &r);
    }
    let (q, r) = e.constant.divided_with_rest(size);
    quotient = quotient.plus(&q);
    rest = rest.plus(&r);
    let is_within = rest
        .extremes(range)
        .is_some_and(|(least, greatest)| least.is_never_negative() && (&greatest + &Size::number(1)).is_at_most(size));
    if is_within {
        return (quotient, rest);
    }
    let of = Box::new((rest, size.clone()));
    (quotient.add(&Affine::atom(Atom::Quotient(of.clone())), &Size::number(1)), Affine::atom(Atom::Rest(of)))
}
