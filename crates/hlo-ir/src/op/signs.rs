//! The column on signs: which operands must be positive for the result to be a number, and which results cannot be negative.
//!
//! Inputs are drawn by it: a second moment that Adam takes the root of must not be negative, or half of the results are NaN and hide
//! every other difference.

/// The operands on which a real op is defined, and the sign of its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signs {
    /// An operand and the values of it for which the result is a number; `None` if any value is.
    pub domain: Option<(usize, Domain)>,
    /// The sign of the result.
    pub result: ResultSign,
}

/// Values for which an op gives a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Above zero: roots, logarithms, bases of powers.
    Positive,
    /// Not zero: divisors.
    NotZero,
    /// Between zero and one: inverse sines and their like.
    Fraction,
}

/// The sign of a real op's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultSign {
    /// Nothing follows from the operands' signs.
    Any,
    /// The result is never negative, whatever the operands are.
    NotNegative,
    /// The result is not negative if no operand of its element type is. The op moves, scales or adds values.
    Kept,
    /// As [`ResultSign::Kept`]; a product of a value with itself is never negative.
    Product,
    /// The result is not negative if the first operand is a positive constant that exceeds the second.
    Difference,
    /// The result is not negative if one of the operands is not.
    AnyOperand,
}

impl Signs {
    /// Any operand gives a number, and nothing is known of its sign.
    pub const UNKNOWN: Signs = Signs { domain: None, result: ResultSign::Any };
    /// Any operand gives a number, which has the operands' sign.
    pub const KEPT: Signs = Signs::of(ResultSign::Kept);
    /// Any operand gives a number that is not negative.
    pub const NOT_NEGATIVE: Signs = Signs::of(ResultSign::NotNegative);

    /// Any operand gives a number of this sign.
    pub const fn of(result: ResultSign) -> Signs {
        Signs { domain: None, result }
    }

    /// The same of an op whose `operand` must lie in `domain`.
    pub const fn on(self, operand: usize, domain: Domain) -> Signs {
        Signs { domain: Some((operand, domain)), ..self }
    }
}
