//! Whether a reducer of (value, index) pairs is an argmax or an argmin. It is read off the instructions, never off the name.
//!
//! The reducer is run on symbols: its comparisons see only how the two values compare and how the two indices compare, so
//! that a few cases say all that it does. JAX prints such a reducer as
//! ```text
//! gt = pred[] compare(x, y), direction=GT
//! ne = pred[] compare(x, x), direction=NE
//! keeps_x = pred[] or(gt, ne)
//! value = f32[] select(keeps_x, x, y)
//! eq = pred[] compare(x, y), direction=EQ
//! lt = pred[] compare(i, j), direction=LT
//! tie = pred[] and(eq, lt)
//! keeps_i = pred[] or(keeps_x, tie)
//! index = s32[] select(keeps_i, i, j)
//! ```

use crate::attrs::{Attrs, Comparison};
use crate::dtype::NumberClass;
use crate::module::{CompId, InstId, Module};
use crate::op::Opcode;

/// A reducer that keeps the better of two (value, index) pairs, the lower index where values are equal, and the first NaN.
///
/// In which parentheses pairs are combined makes no difference, and neither does a pair that takes part several times. The
/// order makes one: of several NaNs the first is kept, and of -0 and 0, which are equal, the one that
/// [`ArgExtremum::keeps_first_of_equal`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArgExtremum {
    /// Whether larger values are better.
    pub is_largest: bool,
    /// Whether of equal values the first is kept; the index is the lower one in any case.
    pub keeps_first_of_equal: bool,
    /// Whether values are floats: only then the order of pairs matters.
    pub is_float: bool,
}

/// How two values, or two indices, compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    Less,
    Equal,
    Greater,
    FirstIsNan,
    SecondIsNan,
    BothAreNan,
}

/// Which of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    First,
    Second,
}

/// What an instruction of the reducer gives in one case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Symbol {
    Truth(bool),
    Value(Side),
    Index(Side),
}

/// A case: how values compare, and how indices do.
#[derive(Clone, Copy, Debug)]
struct Case {
    values: Relation,
    indices: Relation,
}

const ORDERED: [Relation; 3] = [Relation::Less, Relation::Equal, Relation::Greater];
const NAN: [Relation; 3] = [Relation::FirstIsNan, Relation::SecondIsNan, Relation::BothAreNan];

/// The argmax or argmin that a computation of (value, index, value, index) is; `None` for any other computation.
pub fn find_arg_extremum(module: &Module, comp: CompId) -> Option<ArgExtremum> {
    let &[x, i, y, j] = module.comp(comp).params.as_slice() else { return None };
    let class = |inst: InstId| module.shape(inst).as_array().map(|array| array.dtype.class());
    let root = module.inst(module.comp(comp).root.expand()?);
    let (Opcode::Tuple, &[value, index]) = (root.opcode, root.operands.as_slice()) else { return None };
    let is_index = matches!(class(i)?, NumberClass::Signed | NumberClass::Unsigned);
    if !is_index || class(x)? == NumberClass::Complex || class(x) != class(y) || class(i) != class(j) {
        return None;
    }
    let is_float = class(x)? == NumberClass::Float;
    let kept = |values: Relation, indices: Relation| {
        let case = Case { values, indices };
        let run = |inst| evaluate(module, [x, i, y, j], inst, case, 0);
        let (Symbol::Value(value), Symbol::Index(index)) = (run(value)?, run(index)?) else { return None };
        Some((value, index))
    };
    let (of_greater, _) = kept(Relation::Greater, Relation::Less)?;
    let (of_equal, _) = kept(Relation::Equal, Relation::Less)?;
    let is_largest = of_greater == Side::First;
    let nan = if is_float { NAN.as_slice() } else { &[] };
    for &values in ORDERED.iter().chain(nan) {
        let expected = match values {
            Relation::Greater => of_greater,
            Relation::Less if is_largest => Side::Second,
            Relation::Less | Relation::FirstIsNan | Relation::BothAreNan => Side::First,
            Relation::SecondIsNan => Side::Second,
            Relation::Equal => of_equal,
        };
        for indices in ORDERED {
            let (value, index) = kept(values, indices)?;
            // Of equal values the lower index is kept.
            let expected_index = if values != Relation::Equal {
                expected
            } else if indices == Relation::Less {
                Side::First
            } else {
                Side::Second
            };
            if value != expected || index != expected_index && indices != Relation::Equal {
                return None;
            }
        }
    }
    Some(ArgExtremum { is_largest, keeps_first_of_equal: of_equal == Side::First, is_float })
}

/// Instructions that are followed at most; far beyond what such a reducer has.
const MAX_DEPTH: usize = 16;

/// What `inst` gives in a case; `None` for what has no place in such a reducer.
fn evaluate(module: &Module, params: [InstId; 4], inst: InstId, case: Case, depth: usize) -> Option<Symbol> {
    if let Some(number) = params.iter().position(|&param| param == inst) {
        let side = if number < 2 { Side::First } else { Side::Second };
        return Some(if number % 2 == 0 { Symbol::Value(side) } else { Symbol::Index(side) });
    }
    if depth > MAX_DEPTH {
        return None;
    }
    let instruction = module.inst(inst);
    let operand = |k: usize| evaluate(module, params, *instruction.operands.get(k)?, case, depth + 1);
    let truth = |k: usize| match operand(k)? {
        Symbol::Truth(truth) => Some(truth),
        Symbol::Value(_) | Symbol::Index(_) => None,
    };
    let opcode = instruction.opcode;
    if opcode == Opcode::Copy {
        operand(0)
    } else if opcode == Opcode::Not {
        Some(Symbol::Truth(!truth(0)?))
    } else if opcode == Opcode::And {
        Some(Symbol::Truth(truth(0)? & truth(1)?))
    } else if opcode == Opcode::Or {
        Some(Symbol::Truth(truth(0)? | truth(1)?))
    } else if opcode == Opcode::Xor {
        Some(Symbol::Truth(truth(0)? ^ truth(1)?))
    } else if opcode == Opcode::Select {
        operand(if truth(0)? { 1 } else { 2 })
    } else if let (Opcode::Compare, Attrs::Compare(attrs)) = (opcode, &instruction.attrs) {
        let relation = relation(operand(0)?, operand(1)?, case)?;
        (attrs.order.0 != "TOTALORDER").then(|| Symbol::Truth(holds(attrs.direction, relation)))
    } else if opcode == Opcode::Minimum || opcode == Opcode::Maximum {
        // Of values these would have to say what becomes of NaN and -0.
        let (first @ Symbol::Index(_), second @ Symbol::Index(_)) = (operand(0)?, operand(1)?) else { return None };
        let wanted = if opcode == Opcode::Minimum { Relation::Less } else { Relation::Greater };
        Some(if relation(first, second, case)? == wanted { first } else { second })
    } else {
        // Any other operation makes values of its own.
        None
    }
}

/// How two symbols of one kind compare.
fn relation(first: Symbol, second: Symbol, case: Case) -> Option<Relation> {
    let (known, first, second) = match (first, second) {
        (Symbol::Value(first), Symbol::Value(second)) => (case.values, first, second),
        (Symbol::Index(first), Symbol::Index(second)) => (case.indices, first, second),
        (Symbol::Truth(_) | Symbol::Value(_) | Symbol::Index(_), _) => return None,
    };
    let is_nan = |side: Side| match side {
        Side::First => matches!(known, Relation::FirstIsNan | Relation::BothAreNan),
        Side::Second => matches!(known, Relation::SecondIsNan | Relation::BothAreNan),
    };
    Some(match (is_nan(first), is_nan(second)) {
        (true, true) => Relation::BothAreNan,
        (true, false) => Relation::FirstIsNan,
        (false, true) => Relation::SecondIsNan,
        (false, false) if first == second => Relation::Equal,
        (false, false) => match (first, known) {
            (Side::First, known) => known,
            (Side::Second, Relation::Less) => Relation::Greater,
            (Side::Second, Relation::Greater) => Relation::Less,
            (Side::Second, other) => other,
        },
    })
}

/// Whether a comparison holds; with a NaN only "not equal" does.
fn holds(direction: Comparison, relation: Relation) -> bool {
    let is_nan = NAN.contains(&relation);
    match direction {
        Comparison::Eq => relation == Relation::Equal,
        Comparison::Ne => relation != Relation::Equal,
        Comparison::Ge => !is_nan && relation != Relation::Less,
        Comparison::Gt => relation == Relation::Greater,
        Comparison::Le => !is_nan && relation != Relation::Greater,
        Comparison::Lt => relation == Relation::Less,
    }
}
