//! What a step of a program costs on a machine: by symmetry where the machine allows it, else by simulating all groups.

use crate::collective::{Algo, Collective};
use crate::reduction::class_loads::ClassLoads;
use crate::reduction::fast_hash::FastMap;
use crate::reduction::graph::{Edge, Graph, NO_DATA};
use crate::reduction::instruction::Instruction;
use crate::reduction::matrix::{Lowering, Matrix};
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
}

enum Way<'a> {
    Symmetry(Symmetric),
    /// By combination of the other axes, by position: devices; and what is known of the links.
    Classes(Vec<Vec<u32>>, Box<ClassLoads<'a>>),
    /// The same, every step anew.
    Simulation(Vec<Vec<u32>>),
}

/// One reduction on one machine.
#[derive(Clone, Copy)]
pub struct Reduction<'a> {
    /// The machine; its levels must be those of the matrix.
    pub cluster: &'a Cluster,
    /// The placement.
    pub matrix: &'a Matrix,
    /// The axes that are reduced together.
    pub reduce: &'a [usize],
    /// How positions are numbered.
    pub lowering: Lowering,
    /// Bytes on each device.
    pub bytes: f64,
    /// The algorithm of every step.
    pub algo: Algo,
}

impl<'a> StepCosts<'a> {
    /// Costs of a graph whose depth is that of the reduction.
    pub fn new(graph: &'a Graph, reduction: &Reduction<'a>) -> StepCosts<'a> {
        let groups = || reduction.matrix.reduction_groups(reduction.reduce, reduction.lowering);
        let way = match (Symmetric::new(reduction), ClassLoads::new(reduction.cluster, reduction.algo)) {
            (Some(symmetric), _) => Way::Symmetry(symmetric),
            (None, Some(loads)) => Way::Classes(groups(), Box::new(loads)),
            (None, None) => Way::Simulation(groups()),
        };
        StepCosts::by(graph, reduction, way)
    }

    /// The same, always by simulating every group.
    pub fn by_simulation(graph: &'a Graph, reduction: &Reduction<'a>) -> StepCosts<'a> {
        let groups = reduction.matrix.reduction_groups(reduction.reduce, reduction.lowering);
        StepCosts::by(graph, reduction, Way::Simulation(groups))
    }

    fn by(graph: &'a Graph, reduction: &Reduction<'a>, way: Way<'a>) -> StepCosts<'a> {
        let factors = factors_above_one(reduction.matrix, reduction.reduce);
        let (cluster, algo, bytes) = (reduction.cluster, reduction.algo, reduction.bytes);
        StepCosts { graph, cluster, algo, bytes, factors, way, known: FastMap::default() }
    }

    /// Predicted time of one edge in seconds.
    pub fn seconds(&mut self, edge: &Edge) -> f64 {
        let key = (edge.instruction, edge.collective, edge.share);
        if let Some(seconds) = self.known.get(&key) {
            return *seconds;
        }
        let instruction = self.graph.instructions[edge.instruction as usize];
        let share = &self.graph.shares[edge.share as usize];
        let seconds = self.step_s(instruction, edge.collective, share);
        self.known.insert(key, seconds);
        seconds
    }

    /// Predicted time of a single all-reduce over the whole reduction, in seconds.
    pub fn all_reduce_s(&mut self) -> f64 {
        let whole = Instruction { slice: 0, form: crate::reduction::instruction::Form::InsideGroup };
        if self.factors.is_empty() { 0.0 } else { self.step_s(whole, Collective::AllReduce, &[0]) }
    }

    fn step_s(&mut self, instruction: Instruction, collective: Collective, share: &[u8]) -> f64 {
        let weights: Vec<f64> = share.iter().map(|&scattered| self.weight(scattered)).collect();
        match &mut self.way {
            Way::Symmetry(symmetric) => symmetric.step_s(instruction, collective, &weights, self.algo, self.bytes),
            Way::Classes(devices, loads) => {
                let factors = &self.factors;
                let n = factors[instruction.taking_part(factors.len())].iter().product();
                let mut groups = || device_groups(instruction, factors, devices);
                loads.step_s((instruction, collective, n), &weights, (self.algo, self.bytes), &mut groups)
            }
            Way::Simulation(devices) => {
                let groups = device_groups(instruction, &self.factors, devices).into_iter();
                let groups = groups.map(|(group, class)| (group, weights[class])).filter(|(_, weight)| *weight > 0.0);
                self.cluster.weighted_cost(collective, &groups.collect::<Vec<_>>(), self.algo).seconds(self.bytes)
            }
        }
    }

    /// The share of the data that a group works on.
    fn weight(&self, scattered: u8) -> f64 {
        if scattered == NO_DATA {
            return 0.0;
        }
        let over = self.factors.iter().enumerate().filter(|(i, _)| scattered >> i & 1 == 1).map(|(_, f)| *f);
        1.0 / over.product::<usize>() as f64
    }
}

/// The reduction's factors above one, outermost level first.
pub fn factors_above_one(matrix: &Matrix, reduce: &[usize]) -> Vec<usize> {
    matrix.reduction_factors(reduce).into_iter().map(|f| f as usize).filter(|f| *f > 1).collect()
}

/// The groups of an instruction as devices, each with its class.
fn device_groups(instruction: Instruction, factors: &[usize], devices: &[Vec<u32>]) -> Vec<(Vec<u32>, usize)> {
    let positions = groups_with_class(instruction, factors);
    let of = |all: &Vec<u32>| -> Vec<(Vec<u32>, usize)> {
        positions.iter().map(|(group, class)| (group.iter().map(|p| all[*p]).collect(), *class)).collect()
    };
    devices.iter().flat_map(of).collect()
}

/// The groups of an instruction with the number that each has on factors of two: there a place is the first or not.
fn groups_with_class(instruction: Instruction, factors: &[usize]) -> Vec<(Vec<usize>, usize)> {
    let range = instruction.taking_part(factors.len());
    let (outer, inner) = (&factors[..range.start], &factors[range.end..]);
    let class_of = |mut index: usize, factors: &[usize]| {
        let mut class = 0;
        for (bit, f) in factors.iter().rev().enumerate() {
            class |= usize::from(!index.is_multiple_of(*f)) << bit;
            index /= f;
        }
        class
    };
    let n_inner: usize = inner.iter().product();
    let groups = instruction.groups(factors).into_iter().enumerate();
    groups
        .map(|(g, group)| (group, class_of(g / n_inner, outer) << inner.len() | class_of(g % n_inner, inner)))
        .collect()
}
