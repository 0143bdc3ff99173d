//! Elementwise ops on arrays, and what is known of them without running: integers, truth values, iotas.

// circle: an add is a sum where order does not matter, and sums look at the ops of their summands

use crate::algebra::{Rewritten, relatives};
use crate::array::Arrays;
use crate::rules::{Rule, Rules};
use crate::segment::{Coords, Dim, Region, Segment};
use crate::sum::{Summand, is_extremum};
use crate::term::{ArrayId, Head, Node, TermId, Terms, WordId};
use hashbrown::HashMap;
use hlo_ir::attrs::{Comparison, Word};
use hlo_ir::monoid::Monoid;
use hlo_ir::op::{ElementwiseRoutine, EvalRoutine, EvalRule, IntType};
use hlo_ir::{DType, Literal, NumberClass, Opcode};
use smallvec::SmallVec;
use std::rc::Rc;

/// An elementwise op with what its attributes say.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ElementwiseOp {
    pub opcode: Opcode,
    /// Element type of the result.
    pub dtype: DType,
    /// Element type of the first operand.
    pub operand_dtype: DType,
    pub comparison: Option<Comparison>,
    /// All other attributes, as text.
    pub attributes: String,
}

/// What an op does with sums of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Linear {
    /// A product: linear in each operand.
    Product,
    /// A quotient of floats: linear in the first.
    Quotient,
    /// A product within a dot.
    DotProduct,
    /// A product within a dot of which an operand is rounded, or has another type than the result: the sum of operands is
    /// rounded otherwise than the sum of products, or wraps otherwise.
    RoundedProduct,
    /// Neither.
    No,
}

impl ElementwiseOp {
    pub(crate) fn linear(&self) -> Linear {
        let is_plain = self.attributes.is_empty();
        if self.opcode == Opcode::Multiply && is_plain {
            Linear::Product
        } else if self.opcode == Opcode::Divide && !self.dtype.is_integer() && is_plain {
            Linear::Quotient
        } else if self.opcode == Opcode::Dot || self.opcode == Opcode::Convolution {
            // The attributes begin with the other operand's type, and say whether operands are rounded.
            let mut words = self.attributes.split(' ');
            let keeps = words.next() == Some(self.dtype.name()) && words.next() == Some(AS_THEY_ARE);
            if keeps && self.operand_dtype == self.dtype { Linear::DotProduct } else { Linear::RoundedProduct }
        } else {
            Linear::No
        }
    }

    /// Whether an operand may be another number, or none, before it is multiplied.
    pub(crate) fn rounds_operands(&self) -> bool {
        let is_within = self.opcode == Opcode::Dot || self.opcode == Opcode::Convolution;
        is_within && self.attributes.split(' ').nth(1) != Some(AS_THEY_ARE)
    }
}

/// Second word of the attributes of a product within a dot, if its operands are multiplied as they are.
const AS_THEY_ARE: &str = "as-they-are";

/// The attributes of a product within a dot or a convolution. What is not known to leave operands as they are counts as
/// rounding them.
pub(crate) fn product_attributes(rhs_dtype: DType, precision: &[Word], algorithm: &str) -> String {
    let is_known = |word: &Word| ["default", "high", "highest"].contains(&word.0.to_ascii_lowercase().as_str());
    let keeps = ["", "dot_f32_f32_f32", "dot_f64_f64_f64"].contains(&algorithm) && precision.iter().all(is_known);
    format!("{rhs_dtype} {} {precision:?} {algorithm}", if keeps { AS_THEY_ARE } else { "rounded" })
}

/// The ops that were met, and what they gave.
#[derive(Default)]
pub(crate) struct Elementwise {
    ops: HashMap<ElementwiseOp, WordId>,
    of_word: HashMap<WordId, Rc<ElementwiseOp>>,
    results: HashMap<(WordId, SmallVec<[ArrayId; 3]>), Option<ArrayId>>,
    pub(crate) freedom: Freedom,
}

/// What a run of the proof may do with sums. Each may do what those before it may; what is proved with less is known better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) enum Freedom {
    /// Nothing that does not hold bit for bit.
    #[default]
    Exact,
    /// Add is a sum, so that its order does not matter.
    Reassociates,
    /// Ops on indices are sums over rows, and sums of products are products of sums.
    Rows,
    /// Ops on windows are sums over their elements.
    Windows,
}

impl Elementwise {
    pub(crate) fn new(freedom: Freedom) -> Elementwise {
        Elementwise { freedom, ..Elementwise::default() }
    }

    pub(crate) fn reassociates(&self) -> bool {
        self.freedom >= Freedom::Reassociates
    }

    /// The op's word.
    pub(crate) fn word(&mut self, terms: &mut Terms, op: ElementwiseOp) -> WordId {
        if let Some(&word) = self.ops.get(&op) {
            return word;
        }
        let text = format!(
            "{} {} {}{}{}",
            op.opcode,
            op.dtype,
            op.operand_dtype,
            op.comparison.map_or("", |c| c.name()),
            op.attributes
        );
        let word = terms.word(&text);
        if commutes(op.opcode) {
            terms.note_commutative(word);
        }
        self.ops.insert(op.clone(), word);
        let relatives = relatives(&op);
        self.of_word.insert(word, Rc::new(op));
        for op in relatives {
            self.word(terms, op);
        }
        word
    }

    /// The word of an op that was met before.
    pub(crate) fn known_word(&self, op: &ElementwiseOp) -> Option<WordId> {
        self.ops.get(op).copied()
    }

    pub(crate) fn op(&self, word: WordId) -> Option<&ElementwiseOp> {
        self.of_word.get(&word).map(|op| &**op)
    }

    /// The op on arrays of `n_elems` elements each. `None` if its parts are too many.
    pub(crate) fn apply(
        &mut self,
        arrays: &mut Arrays,
        word: WordId,
        operands: SmallVec<[ArrayId; 3]>,
        n_elems: i64,
    ) -> Option<ArrayId> {
        let key = (word, operands);
        if let Some(&known) = self.results.get(&key) {
            return known;
        }
        let result = self.apply_anew(arrays, word, &key.1, n_elems);
        self.results.insert(key, result);
        result
    }

    fn apply_anew(&mut self, arrays: &mut Arrays, word: WordId, operands: &[ArrayId], n_elems: i64) -> Option<ArrayId> {
        let op = self.of_word.get(&word)?.clone();
        let mut out = Vec::new();
        for (terms, region) in arrays.align(operands, n_elems)? {
            self.apply_region(arrays, word, &op, &terms, &region, &mut out);
        }
        Some(arrays.intern(out))
    }

    /// The op on one region.
    pub(crate) fn apply_region(
        &self,
        arrays: &mut Arrays,
        word: WordId,
        op: &ElementwiseOp,
        operands: &[TermId],
        region: &Region,
        out: &mut Vec<Segment>,
    ) {
        let terms = &mut arrays.terms;
        if let Some(value) = fold(terms, op, operands) {
            let mut segment = terms.splat(value, 1);
            segment.region = places(region);
            out.push(segment);
            return;
        }
        match self.rewritten(terms, (word, op), operands, region) {
            Some(Rewritten::Operand(segment)) => return out.push(segment),
            Some(Rewritten::Op(word, operands, region)) => {
                let Some(op) = self.of_word.get(&word).cloned() else { return };
                return self.apply_region(arrays, word, &op, &operands, &region, out);
            }
            None => {}
        }
        if self.simplify(terms, op, operands, region, out) {
            return;
        }
        let mut args: SmallVec<[(TermId, usize); 3]> = SmallVec::new();
        let mut from = 1;
        for &term in operands {
            args.push((term, from));
            from += terms.rank(term);
        }
        if let (Some(monoid), true) = (self.sum_of(terms, op, operands), self.reassociates()) {
            let summands = args.iter().map(|&(term, from)| Summand::own(terms, term, region, from)).collect();
            let segment = self.sum(terms, monoid, op.dtype, region, summands);
            let rule = if monoid == Monoid::Add { Rule::AddIsSum } else { Rule::SumFlattens };
            terms.mark(segment.term, Rules::of(rule));
            out.push(segment);
            return;
        }
        if commutes(op.opcode) {
            args.sort_by(|a, b| {
                let key = |&(term, from): &(TermId, usize)| (term, &region.at[from..from + terms.rank(term)]);
                key(a).cmp(&key(b))
            });
        }
        let args: SmallVec<[_; 3]> = args.iter().map(|&(term, from)| (term, Terms::NO_EXTRA, from)).collect();
        out.push(terms.apply(Head::Elementwise(word), &args, region));
    }

    /// The sum that an op is, where order does not matter; of maxima and minima only where an operand is one already.
    fn sum_of(&self, terms: &Terms, op: &ElementwiseOp, operands: &[TermId]) -> Option<Monoid> {
        let is_number = !matches!(op.dtype.class(), NumberClass::Pred);
        if op.opcode == Opcode::Add && is_number {
            return Some(Monoid::Add);
        }
        let of_sum = |&term: &TermId| match terms.node(term) {
            Node::Apply(Head::Sum(monoid, dtype), _) => {
                (monoid.opcode() == op.opcode && *dtype == op.dtype && is_extremum(*monoid)).then_some(*monoid)
            }
            _ => None,
        };
        operands.iter().find_map(of_sum)
    }

    /// Segments for what needs no new term.
    fn simplify(
        &self,
        terms: &mut Terms,
        op: &ElementwiseOp,
        operands: &[TermId],
        region: &Region,
        out: &mut Vec<Segment>,
    ) -> bool {
        let starts: SmallVec<[usize; 3]> = operands
            .iter()
            .scan(1, |from, &term| {
                let start = *from;
                *from += terms.rank(term);
                Some(start)
            })
            .collect();
        let pick = |terms: &Terms, k: usize| restricted(terms, operands[k], region, starts[k]);
        if op.opcode == Opcode::Convert && op.dtype == op.operand_dtype {
            out.push(pick(terms, 0));
            return true;
        }
        if op.opcode == Opcode::Select {
            let &[condition, a, b] = operands else { return false };
            let chosen = match terms.as_integer(condition) {
                Some(0) => pick(terms, 2),
                Some(_) => pick(terms, 1),
                None if a == b && pick(terms, 1) == pick(terms, 2) => pick(terms, 1),
                None => {
                    let [condition, a, b] = [0, 1, 2].map(|k| pick(terms, k));
                    match self.masked_rows(terms, [&condition, &a, &b], &places(region)) {
                        Some(rows) => rows,
                        None => return false,
                    }
                }
            };
            out.push(chosen);
            return true;
        }
        let is_iota = |terms: &Terms, term: TermId| matches!(terms.node(term), Node::Iota(_));
        if op.opcode == Opcode::Convert && operands.first().is_some_and(|&a| is_iota(terms, a)) {
            let segment = pick(terms, 0);
            let holds = op.dtype.is_integer() && holds_range(op.operand_dtype, &segment.region);
            if holds && holds_range(op.dtype, &segment.region) {
                out.push(Segment { term: terms.iota(op.dtype), region: segment.region });
                return true;
            }
            return false;
        }
        let &[a, b] = operands else { return false };
        let is_sum = op.opcode == Opcode::Add || op.opcode == Opcode::Subtract;
        if is_sum && op.dtype.is_integer() && terms.as_integer(b) == Some(0) {
            out.push(pick(terms, 0));
            return true;
        }
        if op.comparison.is_some()
            && let Some(segment) = self.shifted_comparison(terms, op, [&pick(terms, 0), &pick(terms, 1)])
        {
            out.push(segment);
            return true;
        }
        // An iota and a number, in either order.
        let (k, number) = match (is_iota(terms, a), is_iota(terms, b)) {
            (true, false) => (0, terms.as_integer(b)),
            (false, true) => (1, terms.as_integer(a)),
            (_, _) => return false,
        };
        let (Some(number), segment) = (number, pick(terms, k)) else { return false };
        if !holds_range(op.operand_dtype, &segment.region) {
            return false;
        }
        if op.opcode == Opcode::Compare {
            let Some(comparison) = op.comparison else { return false };
            let comparison = if k == 0 { comparison } else { comparison.swapped() };
            return mask(terms, &segment.region, comparison, number, out);
        }
        let shifted = if op.opcode == Opcode::Subtract && k == 1 { None } else { shifted(segment, op, number) };
        out.extend(shifted.iter().cloned());
        shifted.is_some()
    }
}

/// The part of a region that belongs to one of its terms.
fn restricted(terms: &Terms, term: TermId, region: &Region, from: usize) -> Segment {
    let rank = terms.rank(term);
    let pick = |coords: &Coords| {
        let mut out = Coords::with_capacity(1 + rank);
        out.push(coords[0]);
        out.extend_from_slice(&coords[from..from + rank]);
        out
    };
    let dims = region.dims.iter().map(|d| Dim { n: d.n, step: pick(&d.step) }).collect();
    Segment { term, region: Region { at: pick(&region.at), dims } }
}

/// The places of a region alone.
pub(crate) fn places(region: &Region) -> Region {
    let first = |coords: &Coords| Coords::from_slice(&coords[..1]);
    let dims = region.dims.iter().map(|d| Dim { n: d.n, step: first(&d.step) });
    Region { at: first(&region.at), dims: dims.collect() }
}

/// The least and the greatest coordinate 1 of a region.
fn range(region: &Region) -> Option<(i64, i64)> {
    range_of(region.at[1], region.dims.iter().map(|d| (d.step[1], d.n)))
}

/// The least and the greatest number of an iota that begins at `start` and has these steps so many times; `None` if one of them is
/// beyond 64 bits: it would wrap around.
pub(crate) fn range_of(start: i64, steps: impl Iterator<Item = (i64, i64)>) -> Option<(i64, i64)> {
    let (mut low, mut high) = (start, start);
    for (step, n) in steps {
        let end = step.checked_mul(n.checked_sub(1)?.max(0))?;
        low = low.checked_add(end.min(0))?;
        high = high.checked_add(end.max(0))?;
    }
    Some((low, high))
}

fn holds_range(dtype: DType, region: &Region) -> bool {
    range(region).is_some_and(|(low, high)| holds(dtype, low) && holds(dtype, high))
}

/// Whether an integer type has a number.
pub(crate) fn holds(dtype: DType, number: i64) -> bool {
    int_type(dtype)
        .is_some_and(|int| hlo_ir::float::scalar_fn::wrap(number, int) == number && (number >= 0 || int.is_signed))
}

/// The integer type of a dtype; unsigned 64-bit numbers above the signed range are not folded.
fn int_type(dtype: DType) -> Option<IntType> {
    let is_signed = match dtype.class() {
        NumberClass::Signed => true,
        NumberClass::Unsigned => false,
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => return None,
    };
    Some(IntType { bits: dtype.bits(), is_signed })
}

/// An iota with a number added to it or multiplied by it.
fn shifted(mut segment: Segment, op: &ElementwiseOp, c: i64) -> Option<Segment> {
    let region = &mut segment.region;
    let at = region.at[1];
    if op.opcode == Opcode::Add {
        region.at[1] = at.checked_add(c)?;
    } else if op.opcode == Opcode::Subtract {
        region.at[1] = at.checked_sub(c)?;
    } else if op.opcode == Opcode::Multiply {
        region.at[1] = at.checked_mul(c)?;
        for dim in &mut region.dims {
            dim.step[1] = dim.step[1].checked_mul(c)?;
        }
    } else {
        return None;
    }
    holds_range(op.dtype, region).then_some(segment)
}

/// Where the coordinate of an iota compares so with a number.
fn mask(terms: &mut Terms, region: &Region, comparison: Comparison, c: i64, out: &mut Vec<Segment>) -> bool {
    let mut region = region.clone();
    region.normalize();
    let mut moving = (0..region.dims.len()).filter(|&k| region.dims[k].step[1] != 0);
    let (along, None) = (moving.next(), moving.next()) else { return false };
    let holds = |x: i64| match comparison {
        Comparison::Eq => x == c,
        Comparison::Ne => x != c,
        Comparison::Ge => x >= c,
        Comparison::Gt => x > c,
        Comparison::Le => x <= c,
        Comparison::Lt => x < c,
    };
    let (n, step) = along.map_or((1, 0), |k| (region.dims[k].n, region.dims[k].step[1]));
    // The answer changes at most where the coordinate passes c.
    let gap = i128::from(c) - i128::from(region.at[1]);
    let near = if step == 0 { 0 } else { gap.div_euclid(i128::from(step)) };
    let near = near.clamp(-2, i128::from(n)) as i64;
    let mut cuts: Vec<i64> = (near - 1..=near + 2).filter(|&i| i > 0 && i < n).collect();
    cuts.insert(0, 0);
    cuts.push(n);
    for pair in cuts.windows(2) {
        let value = terms.scalar(DType::Pred, hlo_ir::Scalar::Pred(holds(region.at[1] + pair[0] * step)));
        let mut part = places(&region);
        if let Some(k) = along {
            part.at[0] += pair[0] * part.dims[k].step[0];
            part.dims[k].n = pair[1] - pair[0];
        }
        out.push(Segment { term: value, region: part });
    }
    true
}

fn commutes(opcode: Opcode) -> bool {
    [Opcode::Add, Opcode::Multiply, Opcode::Maximum, Opcode::Minimum, Opcode::And, Opcode::Or, Opcode::Xor]
        .contains(&opcode)
}

/// Whether a float is an integer, exactly.
fn is_number(x: f64, number: i64) -> bool {
    x.is_finite() && x.fract() == 0.0 && x as i128 == i128::from(number)
}

/// The value of an op on known integers and truth values.
fn fold(terms: &mut Terms, op: &ElementwiseOp, operands: &[TermId]) -> Option<TermId> {
    if operands.is_empty() {
        return None;
    }
    let is_integer = |dtype: DType| dtype.is_integer() || dtype.class() == NumberClass::Pred;
    if op.opcode == Opcode::Convert && is_integer(op.operand_dtype) && op.dtype.class() == NumberClass::Float {
        // A number that the type does not have is rounded otherwise by way of another type: it stays a conversion.
        let number = terms.as_integer(*operands.first()?)?;
        let literal = terms.as_constant(*operands.first()?)?.convert(op.dtype);
        let is_held = matches!(literal.get(0), Some(hlo_ir::Scalar::Float(x)) if is_number(x, number));
        return is_held.then(|| terms.constant(literal));
    }
    if !is_integer(op.dtype) || !is_integer(op.operand_dtype) {
        return None;
    }
    let x: Option<SmallVec<[i64; 3]>> = operands.iter().map(|&term| terms.as_integer(term)).collect();
    let x = x?;
    let value = match op.opcode.row().eval {
        EvalRule::Unary(fns) => match int_type(op.operand_dtype) {
            Some(int) => (fns.int?)(x[0], int),
            None => i64::from((fns.pred?)(x[0] != 0)),
        },
        EvalRule::Binary(fns) => match int_type(op.operand_dtype) {
            Some(int) => (fns.int?)(x[0], *x.get(1)?, int),
            None => i64::from((fns.pred?)(x[0] != 0, *x.get(1)? != 0)),
        },
        EvalRule::Routine(EvalRoutine::Elementwise(routine)) => match routine {
            ElementwiseRoutine::Compare => {
                let (a, b) = (x[0], *x.get(1)?);
                i64::from(match op.comparison? {
                    Comparison::Eq => a == b,
                    Comparison::Ne => a != b,
                    Comparison::Ge => a >= b,
                    Comparison::Gt => a > b,
                    Comparison::Le => a <= b,
                    Comparison::Lt => a < b,
                })
            }
            ElementwiseRoutine::Select => x[if x[0] != 0 { 1 } else { 2 }],
            ElementwiseRoutine::Clamp => x[1].max(x[0]).min(x[2]),
            ElementwiseRoutine::Convert => match int_type(op.dtype) {
                Some(int) => hlo_ir::float::scalar_fn::wrap(x[0], int),
                None => i64::from(x[0] != 0),
            },
            ElementwiseRoutine::Abs
            | ElementwiseRoutine::IsFinite
            | ElementwiseRoutine::Complex
            | ElementwiseRoutine::Real
            | ElementwiseRoutine::Imag
            | ElementwiseRoutine::BitcastConvert
            | ElementwiseRoutine::StochasticConvert
            | ElementwiseRoutine::ReducePrecision => return None,
        },
        EvalRule::Routine(
            EvalRoutine::Parameter
            | EvalRoutine::Constant
            | EvalRoutine::Shaping(_)
            | EvalRoutine::OneArray(_)
            | EvalRoutine::SeveralArrays(_)
            | EvalRoutine::Structure(_)
            | EvalRoutine::Lockstep(_),
        )
        | EvalRule::NotEvaluated(_) => return None,
    };
    let literal = Literal::scalar(op.dtype, hlo_ir::Scalar::Int(value));
    Some(terms.constant(literal))
}
