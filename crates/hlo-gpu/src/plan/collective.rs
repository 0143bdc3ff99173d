//! Collectives of a plan, as NCCL has them: contiguous buffers, parts in the order of the group.
//!
//! A kind is what is left of the op table's [`hlo_ir::op::CollectiveRule`] once dims are laid out: whether inputs are
//! reduced, and whether each member receives its part or all. What several inputs give lies one after the other.

use super::{BufferId, CommunicatorId};

/// Calls of one collective on one communicator, issued together.
#[derive(Clone, Debug)]
pub struct CollectiveCall {
    /// Which collective.
    pub kind: CollectiveKind,
    /// Between which devices.
    pub communicator: CommunicatorId,
    /// Input and output of each call. Equal buffers: in place.
    pub calls: Vec<(BufferId, BufferId)>,
}

/// A collective on contiguous buffers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CollectiveKind {
    /// Each member of a group receives from all members.
    Groups {
        /// How the members' inputs become one; `None` where they stay side by side.
        reduction: Option<Reduction>,
        /// Member `k` receives the `k`-th part of each input or of their reduction, not the whole.
        scatters: bool,
    },
    /// A device's input goes to other devices' outputs: pairs (source, target) of flat ids, each target once. The output of
    /// those that are no target is zero.
    Pairs(Vec<(u32, u32)>),
}

/// How elements are reduced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Product,
    Min,
    Max,
}

impl CollectiveKind {
    /// Its reduction, if it has one.
    pub const fn reduction(&self) -> Option<Reduction> {
        match self {
            CollectiveKind::Groups { reduction, .. } => *reduction,
            CollectiveKind::Pairs(_) => None,
        }
    }

    /// Its pairs of source and target, if it has no groups.
    pub fn pairs(&self) -> Option<&[(u32, u32)]> {
        match self {
            CollectiveKind::Pairs(pairs) => Some(pairs),
            CollectiveKind::Groups { .. } => None,
        }
    }

    /// Whether each element of the output depends only on elements at its own place. Then the output may be the input,
    /// and groups may differ in size.
    pub const fn is_elementwise(&self) -> bool {
        match self {
            CollectiveKind::Groups { reduction, scatters } => reduction.is_some() && !*scatters,
            CollectiveKind::Pairs(_) => false,
        }
    }

    /// Bytes of the output in a group of `n` devices; `None` where parts would be uneven, or there are too many bytes.
    pub fn output_bytes(&self, input_bytes: u64, n: u64) -> Option<u64> {
        let CollectiveKind::Groups { reduction, scatters } = self else { return Some(input_bytes) };
        let from_each = match (scatters, input_bytes.checked_rem(n)) {
            (true, Some(0)) => input_bytes / n,
            (true, _) => return None,
            (false, _) => input_bytes,
        };
        if reduction.is_some() { Some(from_each) } else { from_each.checked_mul(n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_have_parts_of_all_inputs_or_of_their_reduction() {
        let bytes = |reduction, scatters, n| CollectiveKind::Groups { reduction, scatters }.output_bytes(12, n);
        let sum = Some(Reduction::Sum);
        assert_eq!((bytes(sum, false, 3), bytes(sum, true, 3)), (Some(12), Some(4)));
        assert_eq!((bytes(None, false, 3), bytes(None, true, 3)), (Some(36), Some(12)));
        assert_eq!((bytes(sum, true, 5), bytes(None, true, 0)), (None, None));
        assert_eq!(CollectiveKind::Pairs(vec![(0, 1)]).output_bytes(12, 5), Some(12));
    }
}
