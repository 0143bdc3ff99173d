//! Fusions, fixed before the cut: connected ops of one format and computation, which a backend computes in one
//! kernel; and what bounds the time of each.
//!
//! By the roofline a kernel takes its launch and the longer of its arithmetic and its memory traffic. Which of the two is longer
//! is decided here, on whole arrays: on shards both shrink alike, so it stays the same where all of a fusion is cut. The cut
//! then prices the one that binds. The launch is paid in either form.

use crate::machine::Times;
use crate::tables::{IndexMap, IndexSet};
use hlo_analysis::time::arithmetic_dtype;
use hlo_ir::cost::Costs;
use hlo_ir::{CompId, InstId, Module};

/// The fusions of one format.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fusions {
    number: IndexMap<InstId, u32>,
    all: Vec<Fusion>,
}

/// One fusion.
#[derive(Clone, Debug)]
pub(crate) struct Fusion {
    /// The computation that holds it.
    pub comp: CompId,
    /// Time of its arithmetic on whole arrays, in picoseconds.
    pub arithmetic_ps: f64,
    /// Bytes of whole arrays with a format that it reads and writes.
    pub whole_bytes: u64,
}

impl Fusion {
    /// Whether arithmetic takes longer than memory traffic.
    pub(crate) fn is_bound_by_arithmetic(&self, times: &Times) -> bool {
        self.arithmetic_ps > times.memory_ps(self.whole_bytes as f64)
    }
}

impl Fusions {
    /// The fusions that `ops` form, joined along operands; bytes are yet to be counted.
    pub(crate) fn find(module: &Module, ops: &IndexSet<InstId>, costs: &Costs<'_>, times: &Times) -> Fusions {
        let mut parent: Vec<usize> = (0..ops.len()).collect();
        for (i, &inst) in ops.iter().enumerate() {
            for operand in &module.inst(inst).operands {
                if let Some(j) = ops.get_index_of(operand) {
                    let (a, b) = (root(&mut parent, i), root(&mut parent, j));
                    parent[a.max(b)] = a.min(b);
                }
            }
        }
        let mut fusions = Fusions::default();
        let mut numbers: IndexMap<usize, u32> = IndexMap::default();
        for (i, &inst) in ops.iter().enumerate() {
            let next = numbers.len() as u32;
            let number = *numbers.entry(root(&mut parent, i)).or_insert(next);
            if number == next {
                let comp = module.inst(inst).parent;
                fusions.all.push(Fusion { comp, arithmetic_ps: 0.0, whole_bytes: 0 });
            }
            fusions.all[number as usize].arithmetic_ps += arithmetic_ps(module, inst, costs, times);
            fusions.number.insert(inst, number);
        }
        fusions
    }

    /// The number of an op's fusion.
    pub(crate) fn of(&self, inst: InstId) -> Option<u32> {
        self.number.get(&inst).copied()
    }

    /// A fusion by its number.
    pub(crate) fn get(&self, number: u32) -> &Fusion {
        &self.all[number as usize]
    }

    /// All fusions.
    pub(crate) fn all(&self) -> &[Fusion] {
        &self.all
    }

    /// All ops and the numbers of their fusions.
    pub(crate) fn ops(&self) -> impl Iterator<Item = (InstId, u32)> {
        self.number.iter().map(|(&inst, &number)| (inst, number))
    }

    /// Counts the bytes of a whole array that the fusion reads or writes.
    pub(crate) fn add_bytes(&mut self, number: u32, bytes: u64) {
        self.all[number as usize].whole_bytes += bytes;
    }
}

fn root(parent: &mut [usize], mut x: usize) -> usize {
    while parent[x] != x {
        parent[x] = parent[parent[x]];
        x = parent[x];
    }
    x
}

/// Time of an op's arithmetic on whole arrays, in picoseconds.
pub(crate) fn arithmetic_ps(module: &Module, inst: InstId, costs: &Costs<'_>, times: &Times) -> f64 {
    times.arithmetic_ps(costs.of(inst).flops as f64, arithmetic_dtype(module, inst))
}
