//! Properties of all ops with one factor rule: a row for each rule, a column for each property.
//!
//! Passes and prices ask a column. A new rule gets its row here, and few matches elsewhere. A test over all samples of
//! ops (`tests/factor_rows.rs`) holds `reach`, `reads`, `places`, `is_one_to_one`, `sees_layouts` and `linear` to the
//! evaluator. The others say what kernels and passes can do, and the tests of these show it.

use super::FactorRule;

/// The columns of a factor rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FactorRow {
    /// The form of a kernel for the op.
    pub kernel: KernelForm,
    /// How many elements of the result are computed from one element of an operand.
    pub reach: Reach,
    /// The part of an operand that is read for a part of the result.
    pub reads: Reads,
    /// Which operands have their dims in the places of the result's.
    pub places: DimPlaces,
    /// Whether each element of the result is computed from one element of each operand that is no scalar, each of them
    /// once.
    pub is_one_to_one: bool,
    /// Whether the result depends on how operands lie in memory, or the op is opaque.
    pub sees_layouts: bool,
    /// Whether a kernel of our own may write the result in any layout.
    pub writes_any_layout: bool,
    /// Whether ops on several operands of the same dims can be one op on their stack.
    pub stacks: Stacks,
    /// In which sets of operands the op is linear.
    pub linear: Linear,
}

/// The form of a kernel for an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelForm {
    /// Each thread computes an element of the result; the op can be part of another kernel.
    Light,
    /// Takes values out of registers, and leaves its result in memory.
    Reduction,
    /// Reads of its first operand what its result holds.
    Picks,
    /// Writes into its first operand, in place, what another one holds.
    Updates,
    /// A kernel of its own.
    Heavy,
}

/// How many elements of the result are computed from one element of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// One at most, of the first operand, at the same place.
    Same,
    /// One at most, of the first operand.
    Once,
    /// One at most, of any operand.
    OnceAny,
    /// Several, of the first operand.
    Often,
    /// It is not said.
    Open,
}

/// The part of an operand that is read for a part of the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// The share of it that the part is of the result.
    Share,
    /// As many elements of the first operand as the part has; others whole.
    Picks,
    /// As many elements of the first operand as the part has; the share of others.
    LooksUp,
    /// The share of those elements of the first operand that the second one does not cover; others whole.
    Around,
    /// All of it, or nothing is known.
    Whole,
}

/// Which operands have their dims in the places of the result's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DimPlaces {
    /// All that have the result's rank.
    All,
    /// The first.
    First,
    /// The first, in another order, which the attributes say.
    Permuted,
    /// None.
    New,
}

/// Whether ops on several operands of the same dims can be one op on their stack, with one dim more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stacks {
    /// With all operands stacked.
    All,
    /// With the first operand stacked; the others have to be the same.
    First,
    /// There is no such form.
    Never,
}

/// In which sets of operands an op is linear: f(a + b) = f(a) + f(b) in these, with the others held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linear {
    /// As the op's formula says.
    ByFormula,
    /// In each operand for itself.
    Each,
    /// In all operands together.
    Together,
    /// In none, or only with some called computation or some value of another operand.
    Never,
}

/// A rule of which nothing more is known.
const OPAQUE: FactorRow = FactorRow {
    kernel: KernelForm::Heavy,
    reach: Reach::Open,
    reads: Reads::Whole,
    places: DimPlaces::New,
    is_one_to_one: false,
    sees_layouts: true,
    writes_any_layout: false,
    stacks: Stacks::Never,
    linear: Linear::Never,
};

/// A kernel of its own whose result depends on elements and their places alone.
const OWN: FactorRow = FactorRow { sees_layouts: false, ..OPAQUE };

/// Elements in other places, each thread computing one of the result.
const MOVED: FactorRow =
    FactorRow { kernel: KernelForm::Light, reach: Reach::Once, reads: Reads::Share, is_one_to_one: true, ..OWN };

impl FactorRule {
    /// The rule's columns.
    pub const fn row(self) -> FactorRow {
        use {DimPlaces as P, KernelForm as W, Linear as L, Reach as R, Stacks as S};
        match self {
            FactorRule::Elementwise => FactorRow {
                reach: R::Same,
                places: P::All,
                writes_any_layout: true,
                stacks: S::All,
                linear: L::ByFormula,
                ..MOVED
            },
            FactorRule::Broadcast => FactorRow {
                reach: R::Often,
                is_one_to_one: false,
                writes_any_layout: true,
                stacks: S::All,
                linear: L::Each,
                ..MOVED
            },
            FactorRule::Reshape => FactorRow { stacks: S::All, linear: L::Each, ..MOVED },
            FactorRule::Bitcast => FactorRow { sees_layouts: true, ..MOVED },
            FactorRule::BitcastConvert => FactorRow { reach: R::Same, sees_layouts: true, ..MOVED },
            FactorRule::Transpose => {
                FactorRow { places: P::Permuted, writes_any_layout: true, stacks: S::All, linear: L::Each, ..MOVED }
            }
            FactorRule::Reverse => FactorRow { places: P::First, writes_any_layout: true, stacks: S::All, ..MOVED },
            FactorRule::Slice => FactorRow {
                reads: Reads::Picks,
                places: P::First,
                is_one_to_one: false,
                writes_any_layout: true,
                stacks: S::All,
                linear: L::Each,
                ..MOVED
            },
            FactorRule::DynamicSlice => FactorRow {
                kernel: W::Picks,
                reads: Reads::Picks,
                places: P::First,
                is_one_to_one: false,
                writes_any_layout: true,
                ..MOVED
            },
            FactorRule::DynamicUpdateSlice => {
                FactorRow { kernel: W::Updates, reach: R::Same, reads: Reads::Around, places: P::First, ..OWN }
            }
            FactorRule::Pad => {
                FactorRow { places: P::First, is_one_to_one: false, writes_any_layout: true, stacks: S::First, ..MOVED }
            }
            FactorRule::Concatenate => FactorRow {
                reach: R::OnceAny,
                places: P::All,
                is_one_to_one: false,
                writes_any_layout: true,
                stacks: S::All,
                linear: L::Together,
                ..MOVED
            },
            FactorRule::Iota => FactorRow { kernel: W::Light, writes_any_layout: true, ..OWN },
            FactorRule::Dot => FactorRow { writes_any_layout: true, stacks: S::All, linear: L::Each, ..OWN },
            FactorRule::Convolution => FactorRow { linear: L::Each, ..OWN },
            FactorRule::Reduce => {
                FactorRow { kernel: W::Reduction, reach: R::Once, reads: Reads::Share, stacks: S::First, ..OWN }
            }
            FactorRule::Gather => FactorRow { kernel: W::Picks, reach: R::Often, reads: Reads::LooksUp, ..OWN },
            FactorRule::Scatter => FactorRow { kernel: W::Updates, ..OWN },
            FactorRule::ReduceWindow | FactorRule::SelectAndScatter => OWN,
            FactorRule::Sort
            | FactorRule::Cholesky
            | FactorRule::TriangularSolve
            | FactorRule::Fft
            | FactorRule::BatchNorm
            | FactorRule::CustomCall
            | FactorRule::Structural(_)
            | FactorRule::Whole(_) => OPAQUE,
        }
    }
}
