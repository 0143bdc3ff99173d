//! Equations of elementwise ops that hold bit for bit for all numbers: what an op on such operands is without it, or as another op.
//!
//! What is not here holds for some numbers alone: `x + 0` and `-(x - y)` give zeros of another sign, `x - x`, `x * 0` and `x / x` are no
//! numbers where x is none, and `not(x < y)` is true where one of the floats is none.

// circle: a rewritten op is applied as any other op is, which begins with rewriting it

use crate::elementwise::{Elementwise, ElementwiseOp};
use crate::segment::{Coords, Dim, Region, Segment};
use crate::term::{Head, Node, Place, TermId, Terms, WordId};
use hlo_ir::attrs::Comparison;
use hlo_ir::literal::Scalar;
use hlo_ir::op::IntType;
use hlo_ir::{DType, NumberClass, Opcode};
use smallvec::SmallVec;

/// What an op on terms is.
pub(crate) enum Rewritten {
    /// One of its operands, or what that was made of.
    Operand(Segment),
    /// Another op, or the same on other terms.
    Op(WordId, SmallVec<[TermId; 3]>, Region),
}

/// The ops that another one may become.
pub(crate) fn relatives(op: &ElementwiseOp) -> SmallVec<[ElementwiseOp; 2]> {
    let mut out = SmallVec::new();
    if let Some(comparison) = op.comparison {
        out.push(ElementwiseOp { comparison: Some(comparison.swapped()), ..op.clone() });
        out.push(ElementwiseOp { comparison: Some(opposite(comparison)), ..op.clone() });
    } else if op.opcode == Opcode::Add {
        out.push(ElementwiseOp { opcode: Opcode::Subtract, ..op.clone() });
    } else if op.opcode == Opcode::Subtract {
        out.push(ElementwiseOp { opcode: Opcode::Add, ..op.clone() });
    }
    out
}

/// The comparison that is true where this one is false, of numbers of which none is a NaN.
fn opposite(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Eq => Comparison::Ne,
        Comparison::Ne => Comparison::Eq,
        Comparison::Ge => Comparison::Lt,
        Comparison::Gt => Comparison::Le,
        Comparison::Le => Comparison::Gt,
        Comparison::Lt => Comparison::Ge,
    }
}

impl Elementwise {
    /// The op on terms at the coordinates of a region in a form that programs with equal values have in common, if that is another one.
    pub(crate) fn rewritten(
        &self,
        terms: &mut Terms,
        (word, op): (WordId, &ElementwiseOp),
        operands: &[TermId],
        region: &Region,
    ) -> Option<Rewritten> {
        if !self.may_be_rewritten(terms, op, operands) {
            return None;
        }
        let places = places_of(terms, operands, region);
        let one = match places.as_slice() {
            [a, b] if op.opcode == Opcode::Multiply && is_one(terms, a) => Some(b.clone()),
            [a, b] if [Opcode::Multiply, Opcode::Divide].contains(&op.opcode) && is_one(terms, b) => Some(a.clone()),
            [a] if [Opcode::Negate, Opcode::Not].contains(&op.opcode) => self.operand_of(terms, a, op.opcode),
            _ => None,
        };
        if let Some(place) = one {
            return Some(Rewritten::Operand(segment_at(&place, region)));
        }
        match places.as_slice() {
            [a, b] if op.opcode == Opcode::Compare => self.turned(terms, op, [a, b], region),
            [a] if op.opcode == Opcode::Not => self.opposite_of(terms, a, region),
            [p, a, b] if op.opcode == Opcode::Select => {
                let p = self.operand_of(terms, p, Opcode::Not)?;
                Some(op_at(word, &[&p, b, a], region))
            }
            [a, b] if [Opcode::Add, Opcode::Subtract].contains(&op.opcode) => {
                self.signed(terms, op, [a, b], region).or_else(|| self.shifted_twice(terms, op, [a, b], region))
            }
            all if op.opcode == Opcode::DynamicUpdateSlice => self.written_again(terms, word, all, region),
            _ => None,
        }
    }

    /// Whether a look at the operands does not rule out that the op is another one: most ops are as they are.
    fn may_be_rewritten(&self, terms: &Terms, op: &ElementwiseOp, operands: &[TermId]) -> bool {
        let is_number = |&term: &TermId| matches!(terms.node(term), Node::Constant(_));
        let of = |term: TermId| match terms.node(term) {
            Node::Apply(Head::Elementwise(word), _) => self.op(*word).map(|op| op.opcode),
            _ => None,
        };
        if op.opcode == Opcode::Multiply || op.opcode == Opcode::Divide {
            operands.iter().any(is_number)
        } else if op.opcode == Opcode::Add || op.opcode == Opcode::Subtract {
            let is_negated = |&term: &TermId| of(term) == Some(Opcode::Negate);
            !self.reassociates() && (operands.iter().any(is_negated) || operands.iter().any(is_number))
        } else if op.opcode == Opcode::Select {
            operands.first().is_some_and(|&p| of(p) == Some(Opcode::Not))
        } else {
            [Opcode::Negate, Opcode::Not, Opcode::Compare, Opcode::DynamicUpdateSlice].contains(&op.opcode)
        }
    }

    /// What a term is the negation of. Numbers of f8e8m0fnu have no sign: what is negated is no number any more.
    fn operand_of(&self, terms: &Terms, place: &Place, opcode: Opcode) -> Option<Place> {
        let Node::Apply(Head::Elementwise(word), args) = terms.node(place.term) else { return None };
        let op = self.op(*word)?;
        let is_it = op.opcode == opcode && (opcode != Opcode::Negate || op.dtype != DType::F8E8M0FNU);
        let [arg] = args.as_slice() else { return None };
        is_it.then(|| place.of(arg))
    }

    /// Comparisons look from less to more, at numbers from what is compared with them, and from iotas at others.
    fn turned(&self, terms: &Terms, op: &ElementwiseOp, [a, b]: [&Place; 2], region: &Region) -> Option<Rewritten> {
        let is_number = |place: &Place| terms.as_constant(place.term).is_some();
        let is_iota = |place: &Place| matches!(terms.node(place.term), Node::Iota(_));
        let is_turned = match (is_number(a), is_number(b), is_iota(a), is_iota(b)) {
            (true, false, _, _) => true,
            (_, true, _, _) | (_, _, true, _) => false,
            (_, _, _, true) => true,
            (_, _, _, _) => matches!(op.comparison?, Comparison::Gt | Comparison::Ge),
        };
        let turned = ElementwiseOp { comparison: Some(op.comparison?.swapped()), ..op.clone() };
        let word = self.known_word(&turned).filter(|_| is_turned)?;
        Some(op_at(word, &[b, a], region))
    }

    /// Not of a comparison that says by itself when it is false.
    fn opposite_of(&self, terms: &Terms, place: &Place, region: &Region) -> Option<Rewritten> {
        let Node::Apply(Head::Elementwise(word), args) = terms.node(place.term) else { return None };
        let op = self.op(*word)?;
        let comparison = op.comparison?;
        let is_equality = matches!(comparison, Comparison::Eq | Comparison::Ne);
        if !is_equality && !op.operand_dtype.is_integer() {
            return None;
        }
        let [a, b] = args.as_slice() else { return None };
        let word = self.known_word(&ElementwiseOp { comparison: Some(opposite(comparison)), ..op.clone() })?;
        Some(op_at(word, &[&place.of(a), &place.of(b)], region))
    }

    /// A sum with a negated number, or a difference.
    fn signed(&self, terms: &Terms, op: &ElementwiseOp, [a, b]: [&Place; 2], region: &Region) -> Option<Rewritten> {
        let negated = |place: &Place| self.operand_of(terms, place, Opcode::Negate);
        let is_sum = op.opcode == Opcode::Add;
        let other = if is_sum { Opcode::Subtract } else { Opcode::Add };
        let word = self.known_word(&ElementwiseOp { opcode: other, ..op.clone() })?;
        match (negated(a), negated(b)) {
            (None, Some(y)) => Some(op_at(word, &[a, &y], region)),
            (Some(_), Some(y)) if !is_sum => Some(op_at(word, &[a, &y], region)),
            (Some(x), None) if is_sum => Some(op_at(word, &[b, &x], region)),
            (Some(_) | None, _) => None,
        }
    }

    /// An integer with numbers added to it, as it is with one number above zero added or subtracted.
    fn shifted_twice(
        &self,
        terms: &mut Terms,
        op: &ElementwiseOp,
        [a, b]: [&Place; 2],
        region: &Region,
    ) -> Option<Rewritten> {
        let bits = op.dtype.bits();
        if !op.dtype.is_integer() || !op.attributes.is_empty() || bits >= 64 {
            return None;
        }
        let wrap = |number: i64, is_signed| hlo_ir::float::scalar_fn::wrap(number, IntType { bits, is_signed });
        let (mut x, mut by) = offset(terms, op, a, b)?;
        let mut is_nested = false;
        while let Some((y, more)) = self.offset_of(terms, &x, op) {
            (x, by, is_nested) = (y, by + more, true);
        }
        let by = wrap(by, true);
        if by == 0 {
            return Some(Rewritten::Operand(segment_at(&x, region)));
        }
        // The least number is its own opposite.
        let is_sum = by > 0 || wrap(-by, true) == by;
        let opcode = if is_sum { Opcode::Add } else { Opcode::Subtract };
        if !is_nested && op.opcode == opcode {
            return None;
        }
        let is_signed = op.dtype.class() == NumberClass::Signed;
        let number = terms.integer(op.dtype, wrap(if is_sum { by } else { -by }, is_signed));
        let number = Place { term: number, at: Coords::new(), steps: vec![Coords::new(); region.dims.len()] };
        let word = self.known_word(&ElementwiseOp { opcode, ..op.clone() })?;
        Some(op_at(word, &[&x, &number], region))
    }

    /// What a term is with a number added to it, and the number, if it is so by an op of this type.
    fn offset_of(&self, terms: &Terms, place: &Place, like: &ElementwiseOp) -> Option<(Place, i64)> {
        let Node::Apply(Head::Elementwise(word), args) = terms.node(place.term) else { return None };
        let op = self.op(*word)?;
        let is_alike = op.dtype == like.dtype && op.operand_dtype == like.operand_dtype && op.attributes.is_empty();
        let [a, b] = args.as_slice() else { return None };
        offset(terms, op, &place.of(a), &place.of(b)).filter(|_| is_alike)
    }

    /// A row that is written where one was written before: what was there counts no more.
    fn written_again(&self, terms: &mut Terms, word: WordId, operands: &[Place], region: &Region) -> Option<Rewritten> {
        let (before, own) = operands.split_last()?;
        let Node::Apply(Head::Elementwise(inner), args) = terms.node(before.term).clone() else { return None };
        if inner != word || args.len() != operands.len() {
            return None;
        }
        // All but the row and what was there say where.
        let n_where = own.len() - 1;
        for (place, arg) in own[..n_where].iter().zip(&args) {
            if !terms.is_same(place, &before.of(arg), &mut MAX_STEPS.clone()) {
                return None;
            }
        }
        let before = before.of(args.last()?);
        let all: Vec<&Place> = own.iter().chain([&before]).collect();
        Some(op_at(word, &all, region))
    }
}

/// How many steps a comparison of terms takes at most.
const MAX_STEPS: usize = 200;

/// Which operand of a sum or difference has a number added, and which number.
fn offset(terms: &Terms, op: &ElementwiseOp, a: &Place, b: &Place) -> Option<(Place, i64)> {
    let number = |place: &Place| terms.as_integer(place.term);
    match (number(a), number(b)) {
        (None, Some(by)) if op.opcode == Opcode::Add => Some((a.clone(), by)),
        (None, Some(by)) if op.opcode == Opcode::Subtract => Some((a.clone(), -by)),
        (Some(by), None) if op.opcode == Opcode::Add => Some((b.clone(), by)),
        (Some(_) | None, _) => None,
    }
}

/// Whether a term is the number one.
fn is_one(terms: &Terms, place: &Place) -> bool {
    match terms.as_constant(place.term).and_then(|literal| literal.get(0)) {
        Some(Scalar::Float(value)) => value == 1.0,
        Some(Scalar::Int(value)) => value == 1,
        Some(Scalar::Uint(value)) => value == 1,
        // A product with a complex one is no number where a part is infinite.
        Some(Scalar::Pred(_) | Scalar::Complex(..)) | None => false,
    }
}

/// The terms of a region, each with its coordinates.
fn places_of(terms: &Terms, operands: &[TermId], region: &Region) -> SmallVec<[Place; 3]> {
    let mut from = 1;
    operands
        .iter()
        .map(|&term| {
            let coords = from..from + terms.rank(term);
            from = coords.end;
            Place {
                term,
                at: Coords::from_slice(&region.at[coords.clone()]),
                steps: region.dims.iter().map(|d| Coords::from_slice(&d.step[coords.clone()])).collect(),
            }
        })
        .collect()
}

/// An op on terms at these coordinates, at the places of a region.
fn op_at(word: WordId, operands: &[&Place], region: &Region) -> Rewritten {
    let mut all = crate::elementwise::places(region);
    for place in operands {
        all.at.extend_from_slice(&place.at);
        for (dim, step) in all.dims.iter_mut().zip(&place.steps) {
            dim.step.extend_from_slice(step);
        }
    }
    Rewritten::Op(word, operands.iter().map(|place| place.term).collect(), all)
}

/// A term at these coordinates, at the places of a region.
fn segment_at(place: &Place, region: &Region) -> Segment {
    let join = |at: i64, coords: &Coords| std::iter::once(at).chain(coords.iter().copied()).collect();
    let dims = region.dims.iter().zip(&place.steps);
    Segment {
        term: place.term,
        region: Region {
            at: join(region.at[0], &place.at),
            dims: dims.map(|(d, step)| Dim { n: d.n, step: join(d.step[0], step) }).collect(),
        },
    }
}
