//! What a search over meshes finds.

use crate::baselines::Baseline;
use crate::memory::PlannedPeak;
use crate::mesh::SearchMesh;
use crate::network::PlanNetwork;
use crate::solver::{Assignment, Cost, INFINITE};

/// What came of one mesh.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MeshOutcome {
    /// It was searched; the bound is its own.
    Searched,
    /// Its bound reached the best cost of other meshes.
    Bounded,
    /// The effort was used up.
    NotReached,
    /// What the user fixed cannot be cut so on it.
    Unpinnable,
}

impl MeshOutcome {
    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MeshOutcome::Searched => "searched",
            MeshOutcome::Bounded => "ended by its bound",
            MeshOutcome::NotReached => "not reached",
            MeshOutcome::Unpinnable => "cannot cut as pinned",
        }
    }
}

/// One mesh.
#[derive(Clone, Debug)]
pub(crate) struct MeshFact {
    pub mesh: SearchMesh,
    pub outcome: MeshOutcome,
    pub cost: Cost,
    pub lower_bound: Cost,
    pub n_variables: usize,
    pub n_steps: u64,
}

impl MeshFact {
    pub(crate) fn new(mesh: &SearchMesh, outcome: MeshOutcome) -> MeshFact {
        MeshFact { mesh: mesh.clone(), outcome, cost: INFINITE, lower_bound: 0, n_variables: 0, n_steps: 0 }
    }
}

/// A plan to compare with.
#[derive(Clone, Debug)]
pub(crate) struct BaselineFact {
    pub baseline: Baseline,
    pub mesh: SearchMesh,
    /// `None`: no such plan keeps the limits.
    pub cost: Option<Cost>,
}

/// Why there is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotFound {
    /// The least bytes on a device of the plans that were looked at; `None`: there was none.
    pub least_bytes: Option<u64>,
    /// Whether effort or time ended the search.
    pub was_ended: bool,
    /// No plan costs less.
    pub lower_bound: Cost,
}

/// What the search found.
pub(crate) struct Found {
    pub network: PlanNetwork,
    pub assignment: Assignment,
    pub cost: Cost,
    pub lower_bound: Cost,
    pub is_exact: bool,
    /// Whether time was over: another run may end elsewhere.
    pub was_stopped: bool,
    pub meshes: Vec<MeshFact>,
    pub baselines: Vec<BaselineFact>,
    /// What it takes on a device.
    pub peak: PlannedPeak,
}
