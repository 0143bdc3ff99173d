//! The rules: every equation that the prover uses, with what it says and where it comes from.
//!
//! Rules that hold for exact numbers and not for rounded ones are used only where the others do not suffice. The code that
//! applies such a rule marks the term with it, so that a proof says modulo which rules it holds. Rules that hold bit for bit
//! are used everywhere and not marked.

use std::ops::BitOr;

/// One rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs)]
pub enum Rule {
    Movement,
    Broadcast,
    Congruence,
    Commutes,
    IntegerFolding,
    IotaShift,
    IotaMask,
    SelectByConstant,
    Negations,
    OneDrops,
    TurnedComparison,
    IntegerSums,
    RowRewritten,
    EmptySum,
    DeviceFacts,
    FromInward,
    MovedInward,
    Units,
    LoopInduction,
    LoopInvariant,
    OtherCuts,
    SumOfDevices,
    SumFlattens,
    AddIsSum,
    SumsJoin,
    IdentityDrops,
    ScalarFactor,
    SumInProduct,
    LoopSum,
    LoopStack,
    RowSums,
    WindowSums,
    ZeroProduct,
    BatchNormIsSums,
    Tiles,
}

/// What a rule says.
#[derive(Clone, Copy, Debug)]
pub struct RuleText {
    /// The rule.
    pub rule: Rule,
    /// Its name in reports.
    pub name: &'static str,
    /// The equation.
    pub statement: &'static str,
    /// Why it holds.
    pub source: &'static str,
    /// Whether it holds for rounded numbers, bit for bit.
    pub is_exact: bool,
}

/// All rules.
pub const RULES: &[RuleText] = &[
    RuleText {
        rule: Rule::Movement,
        name: "movement",
        statement: "slice, reshape, transpose, reverse, pad, concatenate, bitcast, dynamic-slice and -update at a known place: element i of the result is element f(i) of an operand",
        source: "https://openxla.org/xla/operation_semantics",
        is_exact: true,
    },
    RuleText {
        rule: Rule::Broadcast,
        name: "broadcast",
        statement: "broadcast(x)[i] = x[the dims of i that x has]",
        source: "https://openxla.org/xla/operation_semantics#broadcast",
        is_exact: true,
    },
    RuleText {
        rule: Rule::Congruence,
        name: "congruence",
        statement: "equal ops with equal attributes on equal operands give equal results",
        source: "ops without effects are functions",
        is_exact: true,
    },
    RuleText {
        rule: Rule::Commutes,
        name: "commutes",
        statement: "op(a, b) = op(b, a) for add, multiply, maximum, minimum, and, or, xor",
        source: "IEEE 754-2019, 5.4.1 and 9.6; which of two NaNs is given is not promised by XLA",
        is_exact: true,
    },
    RuleText {
        rule: Rule::IntegerFolding,
        name: "integer-folding",
        statement: "an op on known integers or truth values is its value, wrapped to the type",
        source: "two's complement; the functions of the op table",
        is_exact: true,
    },
    RuleText {
        rule: Rule::IotaShift,
        name: "iota-shift",
        statement: "iota[i] + c = iota[i + c] and iota[i] * c = iota[c * i], where no element leaves the type's range",
        source: "iota[i] = i",
        is_exact: true,
    },
    RuleText {
        rule: Rule::IotaMask,
        name: "iota-mask",
        statement: "compare(iota[i], c) is true where i compares so with c",
        source: "iota[i] = i",
        is_exact: true,
    },
    RuleText {
        rule: Rule::SelectByConstant,
        name: "select-by-constant",
        statement: "select(true, a, b) = a, select(false, a, b) = b, select(p, a, a) = a; a conditional by a known number gives what that branch gives, the last one if there is none of that number",
        source: "https://openxla.org/xla/operation_semantics#select, #conditional",
        is_exact: true,
    },
    RuleText {
        rule: Rule::Negations,
        name: "negations",
        statement: "-(-x) = x, x + (-y) = x - y, x - (-y) = x + y, not(not(p)) = p, select(not(p), a, b) = select(p, b, a), not(a = b) = (a != b), and of integers not(a < b) = (a >= b) and the like",
        source: "IEEE 754-2019, 5.4.1, 5.5.1 and 5.11; two's complement",
        is_exact: true,
    },
    RuleText {
        rule: Rule::OneDrops,
        name: "one-drops",
        statement: "x * 1 = x, x / 1 = x, of real numbers",
        source: "IEEE 754-2019, 5.4.1",
        is_exact: true,
    },
    RuleText {
        rule: Rule::TurnedComparison,
        name: "turned-comparison",
        statement: "(a < b) = (b > a), (a <= b) = (b >= a)",
        source: "IEEE 754-2019, 5.11",
        is_exact: true,
    },
    RuleText {
        rule: Rule::IntegerSums,
        name: "integer-sums",
        statement: "(x + c) + d = x + (c + d) and x - c = x + (-c) for integers, wrapped to the type",
        source: "two's complement",
        is_exact: true,
    },
    RuleText {
        rule: Rule::RowRewritten,
        name: "row-rewritten",
        statement: "of two dynamic-update-slices of one row at one place the last counts",
        source: "https://openxla.org/xla/operation_semantics#dynamicupdateslice",
        is_exact: true,
    },
    RuleText {
        rule: Rule::EmptySum,
        name: "empty-sum",
        statement: "a reduction over no elements is its initial value",
        source: "https://openxla.org/xla/operation_semantics#reduce",
        is_exact: true,
    },
    RuleText {
        rule: Rule::DeviceFacts,
        name: "device-facts",
        statement: "partition-id and replica-id are known on each device; devices with one tile of an input hold equal inputs",
        source: "sharding= of entry parameters, https://openxla.org/xla/operation_semantics#partitionid",
        is_exact: true,
    },
    RuleText {
        rule: Rule::FromInward,
        name: "from-inward",
        statement: "(op(a, b) on device d) = op(a on device d, b on device d)",
        source: "ops without effects are functions",
        is_exact: true,
    },
    RuleText {
        rule: Rule::MovedInward,
        name: "moved-inward",
        statement: "op(a, b)[i + k] = op(a[i + k], b[i + k])",
        source: "elementwise ops and sums act on each coordinate by itself",
        is_exact: true,
    },
    RuleText {
        rule: Rule::Units,
        name: "units",
        statement: "a gather, sort, convolution, … gives at each position of the dims that it passes a function of its operands at that position; over dims that it reduces it is the sum of such functions",
        source: "the factors of the op table, each tested there against the whole op",
        is_exact: true,
    },
    RuleText {
        rule: Rule::LoopInduction,
        name: "loop-induction",
        statement: "two loops whose carried values are parts of one another at the start, and after each iteration if before it, with equal conditions: so they are at the end",
        source: "induction over the iterations",
        is_exact: true,
    },
    RuleText {
        rule: Rule::LoopInvariant,
        name: "loop-invariant",
        statement: "a carried value that each iteration passes on is what it was at the start",
        source: "induction over the iterations",
        is_exact: true,
    },
    RuleText {
        rule: Rule::OtherCuts,
        name: "other-cuts",
        statement: "while c(s): s = f(s) is the same from f(s) on if c(s) holds at the start, and with f(f(s)) in the place of f(s) if it runs an even number of times; g(s) starts as g of the start and becomes g(f(s)); loops that count from one number to another run as often as they count",
        source: "induction over the iterations",
        is_exact: true,
    },
    RuleText {
        rule: Rule::SumOfDevices,
        name: "sum-of-devices",
        statement: "all-reduce and reduce-scatter give the sum over the group's devices, in no particular order",
        source: "https://openxla.org/xla/operation_semantics#allreduce",
        is_exact: true,
    },
    RuleText {
        rule: Rule::SumFlattens,
        name: "sum-flattens",
        statement: "a sum of sums is one sum over all summands; likewise a maximum of maxima, and so on",
        source: "associativity of exact numbers",
        is_exact: false,
    },
    RuleText {
        rule: Rule::AddIsSum,
        name: "add-is-sum",
        statement: "a + b is the sum of a and b, in any order with other summands",
        source: "associativity of exact numbers",
        is_exact: false,
    },
    RuleText {
        rule: Rule::SumsJoin,
        name: "sums-join",
        statement: "the sum over i < m and the sum over m <= i < n are the sum over i < n",
        source: "associativity of exact numbers",
        is_exact: false,
    },
    RuleText {
        rule: Rule::IdentityDrops,
        name: "identity-drops",
        statement: "x + 0 = x within a sum of several; likewise maximum, minimum, and, or with their identities",
        source: "identities of the ops; -0 + 0 = 0 is the exception",
        is_exact: false,
    },
    RuleText {
        rule: Rule::ScalarFactor,
        name: "scalar-factor",
        statement: "the sum of c * x is c times the sum of x, and the sum of x / c the sum of x divided by c, for a scalar c that is equal on all devices, finite and not zero",
        source: "distributivity of exact numbers",
        is_exact: false,
    },
    RuleText {
        rule: Rule::SumInProduct,
        name: "sum-in-product",
        statement: "the sum over devices of x * w is the sum of x, times w, for a w that is equal on all devices, finite and not zero; likewise products within a dot",
        source: "distributivity of exact numbers",
        is_exact: false,
    },
    RuleText {
        rule: Rule::LoopSum,
        name: "loop-sum",
        statement: "a carried value to which each iteration adds x is its start plus the sum of x over the iterations; sums over iterations and over devices may change places",
        source: "associativity of exact numbers",
        is_exact: false,
    },
    RuleText {
        rule: Rule::LoopStack,
        name: "loop-stack",
        statement: "zeros into which each iteration writes the sum of x over devices, at a row that is equal on them, are the sum over devices of zeros into which x is written",
        source: "writing rows is linear",
        is_exact: false,
    },
    RuleText {
        rule: Rule::RowSums,
        name: "row-sums",
        statement: "gather(x, c)[i] = Σ_r select(r = clamp(c[i]), x[r], 0), a scatter that adds is x[r] + Σ_i select(r = c[i], u[i], 0), and select(low <= c <= high, Σ_r select(r = clamp(c - low, 0..high - low), x[r], 0), 0) = Σ_r select(r + low = c, x[r], 0)",
        source: "https://openxla.org/xla/operation_semantics#gather, #scatter: indices are clamped, updates out of bounds are left out, in no particular order",
        is_exact: false,
    },
    RuleText {
        rule: Rule::WindowSums,
        name: "window-sums",
        statement: "a convolution is the sum of products over the elements of the window that are no padding, and the input features; a window reduction likewise",
        source: "https://openxla.org/xla/operation_semantics#convwithgeneralpadding_convolution, #reducewindow",
        is_exact: false,
    },
    RuleText {
        rule: Rule::ZeroProduct,
        name: "zero-product",
        statement: "x * 0 = 0 within a sum, for a finite x",
        source: "numbers that are finite",
        is_exact: false,
    },
    RuleText {
        rule: Rule::BatchNormIsSums,
        name: "batch-norm-is-sums",
        statement: "a batch norm in training is (x - mean) / sqrt(variance + epsilon) * scale + offset, with the mean and the variance of each feature; its gradients are those of that",
        source: "Ioffe and Szegedy 2015, Batch Normalization, section 3",
        is_exact: false,
    },
    RuleText {
        rule: Rule::Tiles,
        name: "tiles",
        statement: "a device's tile of a value begins at its position times ceil(size / tiles) along each dim; a manual region takes tiles and gives the value that they make",
        source: "sharding= and Shardy's attributes, https://openxla.org/shardy/sharding_representation",
        is_exact: true,
    },
];

/// A set of rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rules(u64);

impl Rules {
    /// No rule.
    pub const NONE: Rules = Rules(0);

    /// One rule.
    pub const fn of(rule: Rule) -> Rules {
        Rules(1 << rule as u64)
    }

    /// Whether the rule is in the set.
    pub const fn has(self, rule: Rule) -> bool {
        self.0 >> rule as u64 & 1 == 1
    }

    /// The rules of the set, in the table's order.
    pub fn iter(self) -> impl Iterator<Item = &'static RuleText> {
        RULES.iter().filter(move |text| self.has(text.rule))
    }

    /// Those that hold for exact numbers alone.
    pub fn inexact(self) -> Rules {
        self.iter().filter(|text| !text.is_exact).fold(Rules::NONE, |rules, text| rules | Rules::of(text.rule))
    }
}

impl BitOr for Rules {
    type Output = Rules;
    fn bitor(self, other: Rules) -> Rules {
        Rules(self.0 | other.0)
    }
}
