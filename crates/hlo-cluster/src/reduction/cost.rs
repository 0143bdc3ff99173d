//! What a step of a program costs on a machine: by symmetry where the machine allows it, else by simulating all groups.

use crate::collective::{Algo, Collective};
use crate::reduction::class_loads::{ClassLoads, Share};
use crate::reduction::device_groups::Groups;
use crate::reduction::fast_hash::FastMap;
use crate::reduction::graph::{Edge, Graph, NO_DATA};
use crate::reduction::instruction::ReductionInstruction;
use crate::reduction::placed::{PlacedReduction, factors_above_one};
use crate::reduction::symmetric::Symmetric;
use crate::topology::Cluster;

/// Predicted times of the edges of a [`Graph`] for one matrix, one reduction and one lowering.
pub struct StepCosts<'a> {
    graph: &'a Graph,
    cluster: &'a Cluster,
    algo: Algo,
    bytes: f64,
    /// The reduction's factors above one, by level.
    factors: Vec<usize>,
    way: Way<'a>,
    known: FastMap<(u8, Collective, u32), f64>,
    /// Bounds of what is not known.
    bounds: FastMap<(u8, Collective, u32), f64>,
}

enum Way<'a> {
    Symmetry(Symmetric),
    Classes(Box<ClassLoads<'a>>),
    /// By combination of the other axes, by position: devices. Every step is simulated anew.
    Simulation(Vec<Vec<u32>>),
}

impl<'a> StepCosts<'a> {
    /// Costs of a graph whose depth is that of the reduction.
    pub fn new(graph: &'a Graph, reduction: &PlacedReduction<'a>) -> StepCosts<'a> {
        if let Some(symmetric) = Symmetric::new(reduction) {
            return StepCosts::by(graph, reduction, Way::Symmetry(symmetric));
        }
        match ClassLoads::new(reduction) {
            Some(loads) => StepCosts::by(graph, reduction, Way::Classes(Box::new(loads))),
            None => StepCosts::by_simulation(graph, reduction),
        }
    }

    /// The same, always by simulating every group.
    pub fn by_simulation(graph: &'a Graph, reduction: &PlacedReduction<'a>) -> StepCosts<'a> {
        let groups = reduction.matrix.reduction_groups(reduction.reduce, reduction.lowering);
        StepCosts::by(graph, reduction, Way::Simulation(groups))
    }

    fn by(graph: &'a Graph, reduction: &PlacedReduction<'a>, way: Way<'a>) -> StepCosts<'a> {
        let factors = factors_above_one(reduction.matrix, reduction.reduce);
        let (cluster, algo, bytes) = (reduction.cluster, reduction.algo, reduction.bytes);
        StepCosts { graph, cluster, algo, bytes, factors, way, known: FastMap::default(), bounds: FastMap::default() }
    }

    /// Predicted time of one edge in seconds.
    pub fn seconds(&mut self, edge: &Edge) -> f64 {
        let key = (edge.instruction, edge.collective, edge.share);
        if let Some(seconds) = self.known.get(&key) {
            return *seconds;
        }
        let share = self.share(edge);
        let seconds = self.step_s(self.graph.instructions[edge.instruction as usize], edge.collective, &share);
        self.known.insert(key, seconds);
        // What was found out for this edge may tell more about others.
        self.bounds.clear();
        seconds
    }

    /// Whether costs depend on the reduction's factors by level alone, not on the matrix that they come from.
    pub fn is_symmetric(&self) -> bool {
        matches!(self.way, Way::Symmetry(_))
    }

    /// At most the predicted time of one edge in seconds, and whether it is that time: what takes long to find out is not
    /// found out for it.
    pub fn bound_s(&mut self, edge: &Edge) -> (f64, bool) {
        let key = (edge.instruction, edge.collective, edge.share);
        if let Some(seconds) = self.known.get(&key) {
            return (*seconds, true);
        }
        if let Some(seconds) = self.bounds.get(&key) {
            return (*seconds, false);
        }
        let share = self.share(edge);
        let instruction = self.graph.instructions[edge.instruction as usize];
        let (seconds, is_exact) = match &mut self.way {
            Way::Classes(loads) => loads.bound_s((instruction, edge.collective, &share), self.algo, self.bytes),
            Way::Symmetry(_) | Way::Simulation(_) => (self.step_s(instruction, edge.collective, &share), true),
        };
        if is_exact { &mut self.known } else { &mut self.bounds }.insert(key, seconds);
        (seconds, is_exact)
    }

    /// Predicted time of a single all-reduce over the whole reduction, in seconds.
    pub fn all_reduce_s(&mut self) -> f64 {
        let whole =
            ReductionInstruction { slice: 0, form: crate::reduction::instruction::InstructionForm::InsideGroup };
        // No edge has this number.
        let share = Share { number: u32::MAX, weights: vec![1.0] };
        if self.factors.is_empty() { 0.0 } else { self.step_s(whole, Collective::AllReduce, &share) }
    }

    fn step_s(&mut self, instruction: ReductionInstruction, collective: Collective, share: &Share) -> f64 {
        match &mut self.way {
            Way::Symmetry(symmetric) => {
                symmetric.step_s(instruction, collective, &share.weights, self.algo, self.bytes)
            }
            Way::Classes(loads) => loads.step_s((instruction, collective, share), self.algo, self.bytes),
            Way::Simulation(devices) => {
                let (cluster, factors) = (self.cluster, &self.factors);
                let groups = Groups { cluster, numbering: devices, factors, instruction }.list().into_iter();
                let groups =
                    groups.map(|(group, class)| (group, share.weights[class])).filter(|(_, weight)| *weight > 0.0);
                self.cluster.weighted_cost(collective, &groups.collect::<Vec<_>>(), self.algo).seconds(self.bytes)
            }
        }
    }

    /// The share of the data that the groups of each class work on.
    fn share(&self, edge: &Edge) -> Share {
        let weight = |&scattered: &u8| {
            if scattered == NO_DATA {
                return 0.0;
            }
            let over = self.factors.iter().enumerate().filter(|(i, _)| scattered >> i & 1 == 1).map(|(_, f)| *f);
            1.0 / over.product::<usize>() as f64
        };
        let weights = self.graph.shares[edge.share as usize].iter().map(weight).collect();
        Share { number: edge.share, weights }
    }
}
