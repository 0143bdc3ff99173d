//! What an op costs on one device, by its plan: the roofline of arithmetic and memory traffic.
//!
//! Traffic is counted as if chains of elementwise ops ran as one kernel: a value lies in memory if what computes it or one that takes it
//! is no elementwise or shape op, if it is taken twice, or if it leaves its computation. An op reads the operands and writes the results
//! that lie in memory, at the size of a tile; of what is indexed the part. So costs of single ops add up. A launch is counted for each
//! op that writes to memory. What is fused takes an operation for each element at least, so that no plan builds more of it than is taken.
//!
//! Reference: Williams, Waterman and Patterson, *Roofline*, CACM 2009.

use crate::mesh::SearchMesh;
use crate::plans::Plan;
use crate::prices::picoseconds;
use crate::program::{CutId, OpId, Program, SearchOp, Taker};
use crate::regions::{RegionId, WayOf};
use crate::solver::Cost;
use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};
use hlo_analysis::time::{arithmetic_dtype, unit};
use hlo_ir::DType;
use hlo_ir::cost::Costs;
use hlo_ir::names::FixedHash;
use hlo_ir::op::{FactorRule, KernelForm};
use hlo_ir::{InstId, Module};
use hlo_mesh::{KernelWork, Machine, Unit};
use indexmap::{IndexMap, IndexSet};
use smallvec::SmallVec;

/// An op's work, on any mesh.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct OpWork {
    /// Arithmetic of the whole op.
    flops: f64,
    dtype: DType,
    on_matrix_units: bool,
    /// Operands that are read from memory: number, value, and which part of it is touched.
    reads: Vec<(usize, CutId, f64)>,
    /// Results that are written to memory.
    writes: Vec<(usize, CutId, f64)>,
}

fn kernel(module: &Module, inst: InstId) -> KernelForm {
    module.inst(inst).opcode.row().factors.row().kernel
}

/// A program in which each region is computed in one of its ways: the program's own, but of some regions.
#[derive(Clone, Default)]
struct Taken {
    other: SmallVec<[WayOf; 4]>,
}

impl Taken {
    fn way(&self, region: RegionId) -> u32 {
        self.other.iter().find(|one| one.region == region).map_or(0, |one| one.way)
    }

    fn runs(&self, program: &Program<'_>, op: OpId) -> bool {
        program.choices.of_op[op].is_none_or(|of| self.way(of.region) == of.way)
    }

    /// A value, or the one that a port comes from.
    fn resolved(&self, program: &Program<'_>, value: CutId) -> CutId {
        match program.choices.port(value) {
            Some(port) => self.resolved(program, port.roots[self.way(port.region) as usize]),
            None => value,
        }
    }

    /// What takes a value, also through ports.
    fn add_takers(&self, program: &Program<'_>, value: CutId, out: &mut SmallVec<[Taker; 4]>) {
        for &(taker, _) in &program.values[value].takers {
            match taker {
                Taker::Op { op, .. } if !self.runs(program, op) => {}
                Taker::Becomes(other) if program.values[other].is_port => {
                    if self.resolved(program, other) == value {
                        self.add_takers(program, other, out);
                    }
                }
                Taker::Op { .. } | Taker::Becomes(_) | Taker::Exit(_) | Taker::Replaces { .. } | Taker::Whole => {
                    out.push(taker);
                }
            }
        }
    }

    /// Whether a value lies in memory.
    fn is_in_memory(&self, program: &Program<'_>, value: CutId) -> bool {
        let value = self.resolved(program, value);
        let of_op = |op: OpId| kernel(program.module, program.ops[op].inst);
        let mut takers = SmallVec::new();
        self.add_takers(program, value, &mut takers);
        let is_taken_light = match takers.as_slice() {
            &[Taker::Op { op, .. }] => matches!(of_op(op), KernelForm::Light | KernelForm::Reduction),
            _ => false,
        };
        let is_made_light = program.values[value].producer.is_some_and(|(op, _)| of_op(op) == KernelForm::Light);
        !(program.values[value].is_free || is_made_light && is_taken_light)
    }
}

/// The values that lie in memory; those of a way of a region where it is taken.
pub(crate) fn in_memory(program: &Program<'_>) -> EntitySet<CutId> {
    let mut out = EntitySet::new();
    for id in program.values.keys() {
        let of_way = program.way_of(id).filter(|of| of.way > 0);
        let taken = Taken { other: of_way.into_iter().collect() };
        if taken.is_in_memory(program, id) {
            out.insert(id);
        }
    }
    out
}

/// Whether an op may put its result where the operand lay that it takes last.
pub(crate) fn runs_in_place(module: &Module, inst: InstId) -> bool {
    match kernel(module, inst) {
        KernelForm::Light | KernelForm::Updates => true,
        KernelForm::Reduction | KernelForm::Heavy | KernelForm::Picks => false,
    }
}

impl OpWork {
    /// The work of an op.
    fn of(program: &Program<'_>, op: &SearchOp, costs: &Costs<'_>, is_in_memory: impl Fn(CutId) -> bool) -> OpWork {
        let module = program.module;
        let kernel = kernel(module, op.inst);
        let bytes = |value: CutId| program.values[value].bytes();
        let of_results: f64 = op.results.iter().filter_map(|value| value.expand()).map(bytes).sum();
        let second = op.operands.last().and_then(|value| value.expand()).map_or(0.0, bytes);
        let update = match module.inst(op.inst).opcode.row().factors == FactorRule::Scatter {
            true => second,
            false => op.operands.get(1).and_then(|value| value.expand()).map_or(0.0, bytes),
        };
        let part = |touched: f64, whole: f64| if whole > 0.0 { (touched / whole).min(1.0) } else { 0.0 };
        let mut reads: Vec<(usize, CutId, f64)> = Vec::new();
        for (k, value) in op.operands.iter().enumerate() {
            let Some(value) = value.expand().filter(|&value| is_in_memory(value)) else { continue };
            let touched = match (kernel, k) {
                (KernelForm::Picks, 0) => part(of_results, bytes(value)),
                (KernelForm::Updates, 0) => 0.0,
                (
                    KernelForm::Light
                    | KernelForm::Reduction
                    | KernelForm::Heavy
                    | KernelForm::Picks
                    | KernelForm::Updates,
                    _,
                ) => 1.0,
            };
            if !reads.iter().any(|(_, known, _)| *known == value) {
                reads.push((k, value, touched));
            }
        }
        let touched = |value: CutId| if kernel == KernelForm::Updates { part(2.0 * update, bytes(value)) } else { 1.0 };
        let written = op.results.iter().enumerate().filter_map(|(k, value)| Some((k, value.expand()?)));
        let writes = written.filter(|(_, value)| is_in_memory(*value)).map(|(k, v)| (k, v, touched(v))).collect();
        let on_matrix_units = unit(module, op.inst) == Unit::Matrix;
        let dtype = arithmetic_dtype(module, op.inst);
        let of_elements = if kernel == KernelForm::Light { of_results / result_elem_bytes(program, op) } else { 0.0 };
        let flops = (costs.of(op.inst).flops as f64).max(of_elements);
        OpWork { flops, dtype, on_matrix_units, reads, writes }
    }

    /// Arithmetic of the whole op.
    pub(crate) fn flops(&self) -> f64 {
        self.flops
    }

    /// The cost of one run by this plan, in picoseconds.
    pub(crate) fn cost(
        &self,
        values: &PrimaryMap<CutId, crate::program::CutValue>,
        mesh: &SearchMesh,
        machine: &Machine,
        plan: &Plan,
    ) -> Cost {
        let tile = |state: Option<&crate::state::State>, value: CutId| {
            let value = &values[value];
            state.map_or(0.0, |state| state.tile_elems(mesh, &value.dims)) * value.elem_bytes
        };
        let read: f64 = self.reads.iter().map(|&(k, value, part)| part * tile(plan.operands.get(k), value)).sum();
        let written: f64 = self.writes.iter().map(|&(k, value, part)| part * tile(plan.results.get(k), value)).sum();
        self.run(machine, read + written, plan.share)
    }

    /// The cost of one run by a device that has so many bytes of each value and does this share of the arithmetic, in picoseconds.
    pub(crate) fn cost_of(&self, machine: &Machine, bytes: impl Fn(CutId) -> f64, share: f64) -> Cost {
        let touched = self.reads.iter().chain(&self.writes).map(|&(_, value, part)| part * bytes(value));
        self.run(machine, touched.sum(), share)
    }

    fn run(&self, machine: &Machine, bytes: f64, share: f64) -> Cost {
        let flops = self.flops * share;
        let arithmetic_s = match self.on_matrix_units {
            true => machine.matrix_s(flops, self.dtype, false),
            false => machine.vector_s(flops, self.dtype),
        };
        let work = KernelWork { bytes, arithmetic_s };
        let launch_s = if self.writes.is_empty() { machine.launch_s() } else { 0.0 };
        picoseconds(machine.kernel_s(work) - launch_s)
    }
}

/// Bytes of an element of what an op gives.
fn result_elem_bytes(program: &Program<'_>, op: &SearchOp) -> f64 {
    let first = op.results.iter().find_map(|value| value.expand());
    first.map_or(1.0, |value| program.values[value].elem_bytes.max(0.125))
}

/// The work of ops.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    /// By op; of an op of a region's way, where that way is taken and other regions are as they were.
    pub of_op: SecondaryMap<OpId, Option<OpWork>>,
    /// Ops whose work depends on how regions around them are computed.
    pub by_way: Vec<WorkByWay>,
}

/// The work of an op by the ways of regions around it.
#[derive(Clone, Debug)]
pub(crate) struct WorkByWay {
    pub op: OpId,
    /// The regions, and how many ways each has.
    pub regions: Vec<(RegionId, u32)>,
    /// For each combination of ways, those of the first region going slowest, its work.
    pub works: Vec<OpWork>,
}

/// The work of every op.
pub(crate) fn find_work(program: &Program<'_>) -> Work {
    let (costs, memory) = (Costs::new(program.module), in_memory(program));
    let mut work = Work::default();
    for (id, op) in &program.ops {
        work.of_op[id] = Some(match program.choices.of_op[id].filter(|of| of.way > 0) {
            None => OpWork::of(program, op, &costs, |value| memory.contains(value)),
            Some(of) => work_with(program, &costs, id, &[of]),
        });
    }
    for (op, regions) in find_neighbours(program) {
        work.by_way.extend(work_by_way(program, &costs, op, &regions));
    }
    work
}

/// The work of an op where these ways are taken, and of other regions the program's own.
fn work_with(program: &Program<'_>, costs: &Costs<'_>, op: OpId, ways: &[WayOf]) -> OpWork {
    let taken = Taken { other: ways.iter().copied().collect() };
    OpWork::of(program, &program.ops[op], costs, |value| taken.is_in_memory(program, value))
}

/// Ops around regions: those that compute what ways take, and those that take what stands in the memory with that or comes from a port.
fn find_neighbours(program: &Program<'_>) -> IndexMap<OpId, Vec<RegionId>, FixedHash> {
    let mut all: IndexMap<OpId, Vec<RegionId>, FixedHash> = IndexMap::default();
    for region in program.choices.n_ways.keys() {
        let mut touched: IndexSet<CutId, FixedHash> = IndexSet::default();
        touched.extend(program.choices.ports_of(region).map(|port| port.value));
        for &op in program.choices.ops_of(region) {
            touched.extend(program.ops[op].operands.iter().filter_map(|value| value.expand()));
        }
        let mut around: IndexSet<OpId, FixedHash> = IndexSet::default();
        for &value in &touched {
            let takers = program.values[value].takers.iter().filter_map(|(taker, _)| taker.op());
            around.extend(program.makers(value).into_iter().chain(takers));
        }
        let is_own = |op: OpId| program.choices.of_op[op].is_some_and(|of| of.region == region);
        around.iter().filter(|&&op| !is_own(op)).for_each(|&op| all.entry(op).or_default().push(region));
    }
    all
}

/// The most combinations of ways that the work of one op is asked for.
const MOST_COMBINATIONS: usize = 256;

/// The work of an op by the ways of the regions around it; `None` if it is the same with all of them.
fn work_by_way(program: &Program<'_>, costs: &Costs<'_>, op: OpId, around: &[RegionId]) -> Option<WorkByWay> {
    let own = program.choices.of_op[op].filter(|of| of.way > 0);
    let mut regions: Vec<(RegionId, u32)> = Vec::new();
    let mut combinations: Vec<SmallVec<[WayOf; 4]>> = vec![own.into_iter().collect()];
    for &region in around {
        let n_ways = program.choices.n_ways[region];
        if combinations.len() * n_ways as usize > MOST_COMBINATIONS {
            break;
        }
        regions.push((region, n_ways));
        let with_ways = |known: SmallVec<[WayOf; 4]>| {
            (0..n_ways).map(move |way| known.iter().copied().chain([WayOf { region, way }]).collect())
        };
        combinations = combinations.into_iter().flat_map(with_ways).collect();
    }
    let works: Vec<OpWork> = combinations.iter().map(|ways| work_with(program, costs, op, ways)).collect();
    works.iter().any(|work| *work != works[0]).then_some(WorkByWay { op, regions, works })
}
