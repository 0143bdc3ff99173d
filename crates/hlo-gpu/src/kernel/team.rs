//! Threads that compute one element of the result together.

/// Before a loop whose rounds are dealt out to a team: several rounds' loads are under way before the first is used.
pub(super) const UNROLLED: &str = "#pragma unroll 4";
/// The same for teams of a column, of which few blocks run at a time.
const UNROLLED_COLUMN: &str = "#pragma unroll 8";

/// Which threads of a block share an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Team {
    /// One alone.
    Thread,
    /// The 32 lanes of a warp.
    Warp,
    /// All threads of the block, of which there are this many.
    Block(u32),
    /// Those with the same column: a block has 32 columns and this many threads for each.
    Column(u32),
}

impl Team {
    /// Threads of a team.
    pub(super) fn n_parts(self) -> i64 {
        match self {
            Team::Thread => 1,
            Team::Warp => 32,
            Team::Block(n) | Team::Column(n) => i64::from(n),
        }
    }

    /// Before a loop over the elements that a reduction shares out among the team.
    pub(super) fn unrolled(self) -> &'static str {
        match self {
            Team::Thread | Team::Warp | Team::Block(_) => UNROLLED,
            Team::Column(_) => UNROLLED_COLUMN,
        }
    }

    /// Threads of a block.
    pub(super) fn block(self) -> u32 {
        match self {
            Team::Thread | Team::Warp => 256,
            Team::Block(n) => n,
            Team::Column(n) => 32 * n,
        }
    }

    /// Elements that a block computes at a time.
    pub(super) fn elems_of_block(self) -> u32 {
        match self {
            Team::Thread => 256,
            Team::Warp => 8,
            Team::Block(_) => 1,
            Team::Column(_) => 32,
        }
    }

    /// The element among those of its block, for each thread.
    pub(super) fn element(self) -> &'static str {
        match self {
            Team::Thread => "threadIdx.x",
            Team::Warp => "(threadIdx.x / 32)",
            Team::Block(_) => "0",
            Team::Column(_) => "(threadIdx.x % 32)",
        }
    }

    /// The number of a thread in its team.
    pub(super) fn part(self) -> &'static str {
        match self {
            Team::Thread => "0",
            Team::Warp => "(threadIdx.x % 32)",
            Team::Block(_) => "threadIdx.x",
            Team::Column(_) => "(threadIdx.x / 32)",
        }
    }

    /// Whether the threads of a team stay together inside a branch on values that depend on the element.
    pub(super) fn may_meet_in_branches(self) -> bool {
        match self {
            Team::Thread | Team::Warp | Team::Block(_) => true,
            Team::Column(_) => false,
        }
    }
}
