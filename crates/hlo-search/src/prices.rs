//! What it costs to bring a value from one state to another.
//!
//! A closed form, because a search asks for some hundred thousand pairs of states: slices first, which cost nothing; then partial
//! sums, several axes by one reduce-scatter and one all-reduce; then axes that go from dim to dim, by one all-to-all; then what is
//! gathered, by one all-gather. Axes that stay on a dim behind one that comes or goes there lie elsewhere in the target's tiles: they are
//! gathered and cut again. Where the gathered and the sliced axes have equally many places, tiles can go from device to device by one
//! permute instead. The planner of [`hlo_spmd::redistribution`] finds such steps and better ones; a test compares the two.
//!
//! Seconds are those of the exact groups of devices on the machine's links.

use crate::mesh::{AxisSet, MOST_AXES, SearchMesh, axes_of};
use crate::solver::{Cost, INFINITE};
use crate::state::{Place, State};
use hlo_analysis::time::Network;
use hlo_cluster::{Collective, CollectiveCost};
use hlo_ir::Opcode;

/// What devices do together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exchange {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Permute,
}

const EXCHANGES: [Exchange; 5] =
    [Exchange::AllReduce, Exchange::ReduceScatter, Exchange::AllGather, Exchange::AllToAll, Exchange::Permute];

impl Exchange {
    /// The opcode that does it.
    pub(crate) fn opcode(self) -> &'static str {
        match self {
            Exchange::AllReduce => Opcode::AllReduce,
            Exchange::ReduceScatter => Opcode::ReduceScatter,
            Exchange::AllGather => Opcode::AllGather,
            Exchange::AllToAll => Opcode::AllToAll,
            Exchange::Permute => Opcode::CollectivePermute,
        }
        .name()
    }
}

/// Prices on one mesh.
pub(crate) struct Prices<'a> {
    pub mesh: &'a SearchMesh,
    /// By exchange and set of axes.
    costs: Vec<Vec<CollectiveCost>>,
}

/// The steps between two states of a value, with what each moves.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Steps {
    /// Axes of a reduce-scatter, and bytes of the partial tile.
    pub scattered: (AxisSet, f64),
    /// Axes of an all-reduce, and bytes of the partial tile.
    pub reduced: (AxisSet, f64),
    /// Axes of an all-to-all, and bytes of the tile.
    pub moved: (AxisSet, f64),
    /// Axes of an all-gather, and bytes of the gathered tile.
    pub gathered: (AxisSet, f64),
    /// Axes of a permute in the place of the all-gather, and bytes of the tile.
    pub permuted: (AxisSet, f64),
}

impl Steps {
    /// The exchanges in turn, each with its axes and bytes.
    pub(crate) fn each(&self) -> [(Exchange, (AxisSet, f64)); 5] {
        [
            (Exchange::ReduceScatter, self.scattered),
            (Exchange::AllReduce, self.reduced),
            (Exchange::AllToAll, self.moved),
            (Exchange::AllGather, self.gathered),
            (Exchange::Permute, self.permuted),
        ]
    }
}

impl<'a> Prices<'a> {
    /// The prices of a mesh on these links.
    pub(crate) fn new(mesh: &'a SearchMesh, network: &Network) -> Prices<'a> {
        debug_assert!(mesh.n_axes() <= MOST_AXES);
        let of_axes = |exchange: Exchange, axes: AxisSet| {
            let groups = mesh.groups(axes);
            match exchange {
                Exchange::AllReduce => network.collective(Collective::AllReduce, &groups),
                Exchange::ReduceScatter => network.collective(Collective::ReduceScatter, &groups),
                Exchange::AllGather => network.collective(Collective::AllGather, &groups),
                Exchange::AllToAll => network.all_to_all(&groups),
                Exchange::Permute => {
                    let next = |group: &Vec<u32>| group.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
                    network.permute(&groups.iter().flat_map(next).collect::<Vec<_>>())
                }
            }
        };
        let sets = 1u8 << mesh.n_axes();
        let costs = EXCHANGES.iter().map(|&exchange| (0..sets).map(|axes| of_axes(exchange, axes)).collect()).collect();
        Prices { mesh, costs }
    }

    fn seconds(&self, exchange: Exchange, (axes, bytes): (AxisSet, f64)) -> f64 {
        if self.mesh.n_places(axes) <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        self.costs[exchange as usize][usize::from(axes)].seconds(bytes)
    }

    /// Seconds of these steps.
    pub(crate) fn steps_s(&self, steps: &Steps) -> f64 {
        steps.each().into_iter().map(|(exchange, moved)| self.seconds(exchange, moved)).sum()
    }

    /// Bytes that a device sends in an exchange, as [`hlo_analysis::traffic`] counts them.
    pub(crate) fn sent_bytes(&self, exchange: Exchange, (axes, bytes): (AxisSet, f64)) -> f64 {
        let n = self.mesh.n_places(axes) as f64;
        if n <= 1.0 {
            return 0.0;
        }
        let others = (n - 1.0) / n;
        match exchange {
            Exchange::AllReduce => 2.0 * others * bytes,
            Exchange::ReduceScatter | Exchange::AllGather | Exchange::AllToAll => others * bytes,
            Exchange::Permute => bytes,
        }
    }

    /// The cost of bringing an array of `dims` with elements of `elem_bytes` from one state to another, in picoseconds.
    pub(crate) fn redistribution(&self, dims: &[i64], elem_bytes: f64, from: State, to: State) -> Cost {
        if from == to {
            return 0;
        }
        self.find_steps(dims, elem_bytes, from, to).map_or(INFINITE, |steps| picoseconds(self.steps_s(&steps)))
    }

    /// The steps from one state to another; `None` where there are none: nobody splits a whole value into a sum.
    pub(crate) fn find_steps(&self, dims: &[i64], elem_bytes: f64, from: State, to: State) -> Option<Steps> {
        let mesh = self.mesh;
        let (mut scattered, mut reduced, mut sliced): (AxisSet, AxisSet, AxisSet) = (0, 0, 0);
        for axis in 0..mesh.n_axes() {
            match (from.place(axis), to.place(axis)) {
                (Place::Partial, Place::Whole) => reduced |= 1 << axis,
                (Place::Partial, Place::Dim(_)) => scattered |= 1 << axis,
                (Place::Whole | Place::Dim(_), Place::Partial) => return None,
                (Place::Whole, Place::Dim(_)) => sliced |= 1 << axis,
                (Place::Whole, Place::Whole) | (Place::Partial, Place::Partial) | (Place::Dim(_), _) => {}
            }
        }
        let conflicts = self.conflicts(from, to);
        // What comes to a dim before axes that lie there only comes when these were gathered.
        let early = sliced & !conflicts;
        let with = |state: State, axes: AxisSet| axes_of(axes).fold(state, |s, axis| s.with(axis, to.place(axis)));
        let bytes = |state: State| state.tile_elems(mesh, dims) * elem_bytes;
        let mut steps = Steps::default();
        let mut at = with(from, early);
        // A scatter to a dim whose order is in conflict is a sum and a slice.
        let (scattered, reduced) = (scattered & !conflicts, reduced | (scattered & conflicts));
        if scattered != 0 {
            steps.scattered = (scattered, bytes(at));
            at = with(at, scattered);
        }
        if reduced != 0 {
            steps.reduced = (reduced, bytes(at));
            at = axes_of(reduced).fold(at, |s, axis| s.with(axis, Place::Whole));
        }
        let (mut moved, mut gathered): (AxisSet, AxisSet) = (0, 0);
        for axis in 0..mesh.n_axes() {
            if let Place::Dim(dim) = at.place(axis)
                && (to.place(axis) != Place::Dim(dim) || conflicts & (1 << axis) != 0)
            {
                let goes_on = matches!(to.place(axis), Place::Dim(_)) && conflicts & (1 << axis) == 0;
                *(if goes_on { &mut moved } else { &mut gathered }) |= 1 << axis;
            }
        }
        if moved != 0 {
            steps.moved = (moved, bytes(at));
            at = with(at, moved);
        }
        if gathered != 0 {
            let cut_again = to.cut(mesh) & !at.cut(mesh) | to.cut(mesh) & gathered;
            if cut_again != 0 && mesh.n_places(cut_again) == mesh.n_places(gathered) {
                let permuted = (gathered | cut_again, bytes(at));
                let whole = axes_of(gathered).fold(at, |s, axis| s.with(axis, Place::Whole));
                if self.seconds(Exchange::Permute, permuted)
                    < self.seconds(Exchange::AllGather, (gathered, bytes(whole)))
                {
                    steps.permuted = permuted;
                    return Some(steps);
                }
            }
            at = axes_of(gathered).fold(at, |s, axis| s.with(axis, Place::Whole));
            steps.gathered = (gathered, bytes(at));
        }
        Some(steps)
    }

    /// Axes that cannot come, go or stay as they are, because on their dim the order of axes would be another one on the way: for each
    /// dim, those of the source and of the target behind the first axis that only one of them has.
    fn conflicts(&self, from: State, to: State) -> AxisSet {
        let mut out = 0;
        let most = self.mesh.n_axes();
        for axis in 0..most {
            let Place::Dim(dim) = to.place(axis) else { continue };
            let lies_there = from.place(axis) == Place::Dim(dim);
            for minor in (axis + 1..most).filter(|&minor| !lies_there && from.place(minor) == Place::Dim(dim)) {
                // It comes before one that lies there: after that one is gathered, if not both change dims at once.
                let goes_too = matches!((from.place(axis), to.place(minor)), (Place::Dim(_), Place::Dim(_)));
                if to.place(minor) == Place::Dim(dim) {
                    out |= 1 << axis | 1 << minor;
                } else if !goes_too {
                    out |= 1 << axis;
                }
            }
            for major in 0..axis {
                let leaves = from.place(major) == Place::Dim(dim) && to.place(major) != Place::Dim(dim);
                if lies_there && leaves {
                    out |= 1 << axis;
                }
            }
        }
        out
    }
}

/// Seconds as picoseconds, at most [`INFINITE`].
pub(crate) fn picoseconds(seconds: f64) -> Cost {
    let most = INFINITE as f64;
    (seconds * 1e12).round().min(most) as Cost
}
