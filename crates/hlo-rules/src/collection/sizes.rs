//! Sizes of a rule's inputs, found from what its ops take: equations between sums of unknowns, solved where one side is a multiple of one
//! unknown.

use crate::size::{Size, Sym};

/// Most unknowns: [`Sym`] counts to 128.
const MOST: usize = 127;

/// Unknowns, each free or equal to a size made of others.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    bound: Vec<Option<Size>>,
}

impl Sizes {
    /// A new unknown, if there may be one more.
    pub(super) fn fresh(&mut self) -> Option<Size> {
        (self.bound.len() < MOST).then(|| {
            self.bound.push(None);
            Size::unknown(Sym::size(self.bound.len() as u8 - 1))
        })
    }

    /// A name for each unknown.
    pub(super) fn names(&self) -> Vec<String> {
        (0..self.bound.len()).map(|n| format!("n{n}")).collect()
    }

    /// A size with all that is known put in.
    pub(super) fn resolved(&self, size: &Size) -> Size {
        let mut size = size.clone();
        while size.unknowns().iter().any(|sym| self.bound[sym.number()].is_some()) {
            size = size.replace(&|sym| self.bound[sym.number()].clone().unwrap_or_else(|| Size::unknown(sym)));
        }
        size
    }

    /// Makes sizes equal, one by one: false if they cannot be.
    pub(super) fn are_equal(&mut self, left: &[Size], right: &[Size]) -> bool {
        left.iter().zip(right).all(|(a, b)| self.unify(a, b))
    }

    /// A size divided by a number; its unknowns become multiples of the number where they have to.
    pub(super) fn divided(&mut self, size: &Size, n: i64) -> Option<Size> {
        let size = self.resolved(size);
        if let Some(quotient) = size.divided_by(n) {
            return Some(quotient);
        }
        for sym in size.unknowns() {
            let fresh = self.fresh()?;
            self.bound[sym.number()] = Some(&fresh * &Size::number(n));
        }
        self.resolved(&size).divided_by(n)
    }

    fn unify(&mut self, a: &Size, b: &Size) -> bool {
        let (a, b) = (self.resolved(a), self.resolved(b));
        if a == b {
            return true;
        }
        self.bind(&a, &b) || self.bind(&b, &a)
    }

    /// Solves `one = other` where `one` is a multiple of an unknown that `other` does not have.
    fn bind(&mut self, one: &Size, other: &Size) -> bool {
        let [sym] = one.unknowns()[..] else { return false };
        let n = one.parts()[0].1;
        let is_multiple = *one == &Size::unknown(sym) * &Size::number(n);
        if !is_multiple || other.unknowns().contains(&sym) {
            return false;
        }
        match self.divided(other, n) {
            Some(quotient) => {
                self.bound[sym.number()] = Some(quotient);
                true
            }
            None => false,
        }
    }
}
