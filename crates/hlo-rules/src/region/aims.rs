//! Rewrites by what they are for.

use super::Rewrite;
use crate::op::Op;
use crate::term::{TermId, Terms};
use crate::text::{ParseError, parse_rules};

/// What rewrites are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// Fewer products: those that share an operand, those that are summed, branches.
    Join,
    /// Products of the parts of what is concatenated, and of a product of which only slices are taken.
    Split,
    /// The same products in another order.
    Reorder,
}

impl Aim {
    /// Every aim.
    pub const ALL: [Aim; 3] = [Aim::Join, Aim::Split, Aim::Reorder];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Aim::Join => "join",
            Aim::Split => "split",
            Aim::Reorder => "reorder",
        }
    }

    /// Its rewrites as text.
    fn text(self) -> &'static str {
        match self {
            Aim::Join => include_str!("join.txt"),
            Aim::Split => include_str!("split.txt"),
            Aim::Reorder => include_str!("reorder.txt"),
        }
    }
}

/// The rewrites of an aim; `entry` counts them. They are those of the generated set, kept as text because making the set takes seconds: a
/// test holds the text against the set, and what a rewrite makes of a region is proved again where it is used.
///
/// # Errors
/// The kept text is damaged: a defect of this crate.
pub fn aimed_rewrites(aim: Aim) -> Result<Vec<Rewrite>, ParseError> {
    let rules = parse_rules(aim.text())?;
    Ok(rules.into_iter().enumerate().map(|(entry, (rule, _))| Rewrite { rule, entry }).collect())
}

/// Whether a kept rewrite is there only because the set is closed: what flows back in another rule, and no rule that was enumerated.
pub fn is_backward_form(rewrite: &Rewrite) -> bool {
    include_str!("backward.txt").lines().any(|name| name == rewrite.rule.name)
}

/// What aims are told by.
struct Counts {
    n_products: usize,
    /// Concatenations that products take, and slices of what products give.
    n_around_products: usize,
    n_ops: usize,
}

impl Counts {
    fn of(terms: &Terms, side: &[TermId]) -> Counts {
        let reachable = terms.reachable(side);
        let is_product = |t: &TermId| matches!(terms.node(*t).op, Op::Dot(_) | Op::Conv(_));
        let has_product = |t: TermId| terms.reachable(&terms.node(t).args).iter().any(is_product);
        let products: Vec<TermId> = reachable.iter().copied().filter(is_product).collect();
        let is_taken = |t: TermId| products.iter().any(|&p| p != t && terms.reachable(&[p]).contains(&t));
        let is_around = |t: &TermId| match terms.node(*t).op {
            Op::Concat { .. } => is_taken(*t),
            Op::Slice { .. } => has_product(*t),
            Op::Input(_) | Op::Dot(_) | Op::Conv(_) | Op::Add | Op::Multiply | Op::Scale | Op::Unary(_) | Op::Max => {
                false
            }
            Op::Above | Op::Transpose(_) | Op::Reshape(_) | Op::Stack { .. } | Op::Pick { .. } | Op::Pad { .. } => {
                false
            }
            Op::Broadcast(_) | Op::Reduce(_) => false,
        };
        Counts {
            n_around_products: reachable.iter().filter(|t| is_around(t)).count(),
            n_ops: terms.n_ops(side),
            n_products: products.len(),
        }
    }
}

impl Rewrite {
    /// Whether it is for this aim, and has products, sums, slices and concatenations alone.
    pub fn serves(&self, aim: Aim) -> bool {
        let terms = &self.rule.terms;
        let is_plain = |op: &Op| {
            matches!(op, Op::Input(_) | Op::Dot(_) | Op::Conv(_) | Op::Add | Op::Concat { .. } | Op::Slice { .. })
        };
        let (left, right) = (Counts::of(terms, &self.rule.left), Counts::of(terms, &self.rule.right));
        self.rule.reachable().iter().all(|&t| is_plain(&terms.node(t).op))
            && match aim {
                Aim::Join => right.n_products < left.n_products,
                Aim::Split => right.n_around_products < left.n_around_products,
                Aim::Reorder => {
                    let are_all = |side: &Counts| side.n_products == side.n_ops;
                    are_all(&left) && are_all(&right) && left.n_ops == right.n_ops && left.n_ops > 1
                }
            }
    }
}
