//! Sizes of dims as polynomials over named unknowns, and what can be proved of their signs.

use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};

/// An unknown of a rule: a size, which is at least one, or an amount (a padding), which may be zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Sym(u8);

const AMOUNT: u8 = 0x80;

impl Sym {
    /// The size numbered `number`, below 128.
    pub fn size(number: u8) -> Sym {
        Sym(number & !AMOUNT)
    }

    /// The amount numbered `number`, below 128.
    pub fn amount(number: u8) -> Sym {
        Sym(number | AMOUNT)
    }

    /// The number among the unknowns of its rule.
    pub fn number(self) -> usize {
        usize::from(self.0 & !AMOUNT)
    }

    /// Whether it may be zero.
    pub fn is_amount(self) -> bool {
        self.0 & AMOUNT != 0
    }

    fn least(self) -> i64 {
        i64::from(!self.is_amount())
    }
}

/// Unknowns multiplied together, sorted.
pub(crate) type Monomial = SmallVec<[Sym; 4]>;

/// A polynomial with whole coefficients over unknowns: `k1 + k2`, `2*c`, `h - 1`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Size {
    /// Sorted by monomial, no coefficient is zero.
    terms: SmallVec<[(Monomial, i64); 2]>,
}

impl Size {
    /// A number.
    pub fn number(n: i64) -> Size {
        if n == 0 { Size::default() } else { Size { terms: smallvec![(Monomial::new(), n)] } }
    }

    /// One unknown.
    pub fn unknown(sym: Sym) -> Size {
        Size { terms: smallvec![(smallvec![sym], 1)] }
    }

    /// The number that it is, if it has no unknown.
    pub fn as_number(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [(monomial, n)] if monomial.is_empty() => Some(*n),
            _ => None,
        }
    }

    /// The unknown that it is, if it is one alone.
    pub fn as_unknown(&self) -> Option<Sym> {
        match self.terms.as_slice() {
            [(monomial, 1)] if monomial.len() == 1 => Some(monomial[0]),
            _ => None,
        }
    }

    /// Whether it is zero for all sizes.
    pub fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    /// The parts of the sum, sorted: unknowns multiplied together, and how often.
    pub(crate) fn parts(&self) -> &[(Monomial, i64)] {
        &self.terms
    }

    /// Its value where unknown `s` has `values[s.number()]`.
    pub fn at(&self, values: &[i64]) -> i64 {
        let value = |s: &Sym| values.get(s.number()).copied().unwrap_or(0);
        self.terms.iter().map(|(monomial, n)| monomial.iter().map(value).product::<i64>() * n).sum()
    }

    /// Every unknown replaced.
    pub fn replace(&self, new: &dyn Fn(Sym) -> Size) -> Size {
        let product =
            |(monomial, n): &(Monomial, i64)| monomial.iter().fold(Size::number(*n), |product, &s| &product * &new(s));
        self.terms.iter().map(product).fold(Size::default(), |sum, part| &sum + &part)
    }

    /// The unknowns, each once, in order.
    pub fn unknowns(&self) -> Vec<Sym> {
        let mut all: Vec<Sym> = self.terms.iter().flat_map(|(monomial, _)| monomial.iter().copied()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Whether it is zero or more for all values of its unknowns: every coefficient is, once each unknown is written as
    /// its least value and a rest. `false` says that this shows nothing.
    pub fn is_never_negative(&self) -> bool {
        if let Some(n) = self.as_number() {
            return n >= 0;
        }
        self.replace(&|s| &Size::unknown(s) + &Size::number(s.least())).terms.iter().all(|&(_, n)| n >= 0)
    }

    /// Whether `self <= other` for all values of the unknowns, as far as signs show it.
    pub fn is_at_most(&self, other: &Size) -> bool {
        self == other || (other - self).is_never_negative()
    }

    /// The quotient by a number, if every coefficient has it as a factor.
    pub fn divided_by(&self, n: i64) -> Option<Size> {
        let divisible = n != 0 && self.terms.iter().all(|&(_, c)| c % n == 0);
        divisible.then(|| Size { terms: self.terms.iter().map(|(m, c)| (m.clone(), c / n)).collect() })
    }

    /// `(q, r)` with `self = q * divisor + r`, where `q` has every part that a divisor of one part divides.
    pub(crate) fn divided_with_rest(&self, divisor: &Size) -> (Size, Size) {
        let [(by, n)] = divisor.terms.as_slice() else { return (Size::default(), self.clone()) };
        let (mut quotient, mut rest) = (Size::default(), Size::default());
        for (monomial, c) in &self.terms {
            match without(monomial, by).filter(|_| c % n == 0) {
                Some(left) => quotient.add_part(left, c / n),
                None => rest.add_part(monomial.clone(), *c),
            }
        }
        (quotient, rest)
    }

    fn add_part(&mut self, monomial: Monomial, n: i64) {
        match self.terms.binary_search_by(|(m, _)| m.cmp(&monomial)) {
            Ok(at) => {
                self.terms[at].1 += n;
                if self.terms[at].1 == 0 {
                    self.terms.remove(at);
                }
            }
            Err(at) if n != 0 => self.terms.insert(at, (monomial, n)),
            Err(_) => {}
        }
    }
}

/// The monomial without the unknowns of another that it has as a factor.
fn without(monomial: &Monomial, factor: &Monomial) -> Option<Monomial> {
    let mut left = monomial.clone();
    for sym in factor {
        let at = left.iter().position(|s| s == sym)?;
        left.remove(at);
    }
    Some(left)
}

impl Add for &Size {
    type Output = Size;
    fn add(self, other: &Size) -> Size {
        let mut sum = self.clone();
        other.terms.iter().for_each(|(m, n)| sum.add_part(m.clone(), *n));
        sum
    }
}

impl Neg for &Size {
    type Output = Size;
    fn neg(self) -> Size {
        Size { terms: self.terms.iter().map(|(m, n)| (m.clone(), -n)).collect() }
    }
}

impl Sub for &Size {
    type Output = Size;
    fn sub(self, other: &Size) -> Size {
        self + &-other
    }
}

impl Mul for &Size {
    type Output = Size;
    fn mul(self, other: &Size) -> Size {
        let mut product = Size::default();
        for (a, n) in &self.terms {
            for (b, m) in &other.terms {
                let mut both: Monomial = a.iter().chain(b).copied().collect();
                both.sort();
                product.add_part(both, n * m);
            }
        }
        product
    }
}

impl From<i64> for Size {
    fn from(n: i64) -> Size {
        Size::number(n)
    }
}

/// A size with the names of its unknowns.
pub(crate) struct SizeText<'a>(pub(crate) &'a Size, pub(crate) &'a [String]);

impl fmt::Display for SizeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SizeText(size, names) = self;
        if size.is_zero() {
            return f.write_str("0");
        }
        // Numbers stand last, as people write them.
        let parts = size.parts();
        let ordered = parts.iter().filter(|p| !p.0.is_empty()).chain(parts.iter().filter(|p| p.0.is_empty()));
        for (i, (monomial, n)) in ordered.enumerate() {
            match (i, *n < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let (count, named) = (n.unsigned_abs(), monomial.iter().map(|s| names[s.number()].as_str()));
            let factors: Vec<&str> = named.collect();
            match (count, factors.is_empty()) {
                (_, true) => write!(f, "{count}")?,
                (1, false) => write!(f, "{}", factors.join("*"))?,
                (_, false) => write!(f, "{count}*{}", factors.join("*"))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_and_signs() {
        let [k, l] = [0, 1].map(|n| Size::unknown(Sym::size(n)));
        let p = Size::unknown(Sym::amount(2));
        let sum = &k + &l;
        assert_eq!(sum.at(&[3, 4, 0]), 7);
        assert_eq!(&sum - &l, k);
        assert_eq!((&sum * &sum).at(&[3, 4, 0]), 49);
        assert!(k.is_at_most(&sum) && !sum.is_at_most(&k));
        assert!(Size::number(2).is_at_most(&sum) && !Size::number(3).is_at_most(&sum));
        assert!(p.is_never_negative() && !Size::number(1).is_at_most(&p));
        assert!(!k.is_at_most(&l) && !l.is_at_most(&k), "nothing is known of two unknowns");
        assert_eq!((&k * &l).divided_with_rest(&l), (k.clone(), Size::default()));
        assert_eq!((&(&k * &l) + &k).divided_with_rest(&l), (k.clone(), k.clone()));
        let names = ["k", "l", "p"].map(String::from);
        assert_eq!(SizeText(&(&(&k * &Size::number(2)) - &Size::number(1)), &names).to_string(), "2*k - 1");
    }
}
