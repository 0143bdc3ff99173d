//! What a kernel reads, writes and computes, on any machine.
//!
//! A kernel computes some instructions of one computation. Values between them stay in registers. It reads of an input
//! what its instructions touch: of a sliced or gathered array the part, of other arrays the whole. The walk goes from the
//! results back to the inputs and carries the number of elements that are needed.

use super::sort;
use crate::memory::{InPlaceUpdates, behind_views, updated_operands};
use crate::values::{entered, tuple_elements};
use hashbrown::{HashMap, HashSet};
use hlo_ir::cost::Costs;
use hlo_ir::op::{CostRule, FactorRule, Reads};
use hlo_ir::{ArrayShape, DType, InstId, Module, Opcode};
use hlo_mesh::{KernelCost, Unit};
use smallvec::SmallVec;

/// Whether an update writes its part of an array alone.
#[derive(Clone, Copy, Debug)]
pub enum Updates<'u> {
    /// A kernel writes the whole array anew.
    Rewrite,
    /// The result lies where the array lay, and only the part is written.
    InPlace,
    /// As is said for each update.
    AsFound(&'u InPlaceUpdates),
}

impl Updates<'_> {
    fn is_in_place(self, update: InstId) -> bool {
        match self {
            Updates::Rewrite => false,
            Updates::InPlace => true,
            Updates::AsFound(found) => found.is_in_place(update),
        }
    }
}

/// The cost of the kernel of one instruction: a fusion, or an operation by itself.
pub fn instruction_cost(costs: &Costs<'_>, inst: InstId, updates: Updates<'_>) -> KernelCost {
    let module = costs.module();
    let fused = entered(module, inst).filter(|_| module.inst(inst).opcode == Opcode::Fusion);
    let Some(comp) = fused.and_then(|(_, callees)| callees.first().copied()) else {
        return region_cost(costs, &[inst], &[inst], updates);
    };
    let computation = module.comp(comp);
    let Some(root) = computation.root.expand() else { return KernelCost::default() };
    let outputs = tuple_elements(module, root).unwrap_or(std::slice::from_ref(&root));
    region_cost(costs, &computation.insts, outputs, updates)
}

/// The cost of a kernel that computes `members`, which stand in text order, and gives `outputs`. Parameters are inputs even
/// if they are members.
pub fn region_cost(costs: &Costs<'_>, members: &[InstId], outputs: &[InstId], updates: Updates<'_>) -> KernelCost {
    let module = costs.module();
    let is_computed = |member: &InstId| module.inst(*member).opcode != Opcode::Parameter;
    let computed: HashSet<InstId> = members.iter().copied().filter(is_computed).collect();
    let mut walk = Walk { module, needed: HashMap::new() };
    let mut cost = KernelCost::default();
    let mut in_place: HashSet<InstId> = HashSet::new();
    for &output in outputs {
        walk.needed.insert(output, n_elems(module, output));
        let chain = find_updates(module, output, &computed, updates);
        for &(inst, ref update) in &chain {
            in_place.insert(inst);
            cost.bytes_written += update.part_bytes;
            cost.bytes_read += if update.reads_part { update.part_bytes } else { 0.0 };
        }
        if chain.is_empty() {
            cost.bytes_written += bytes(module, output);
        }
    }
    let (mut inputs, mut seen) = (Vec::new(), HashSet::new());
    for &member in members.iter().rev().filter(|&member| computed.contains(member)) {
        let share = walk.share(member);
        let instruction = module.inst(member);
        let operations = if instruction.opcode.row().cost == CostRule::Sort {
            sort::operations(module, member)
        } else {
            costs.of(member).flops as f64 * slowdown(module, member)
        };
        let flops = operations * share;
        cost.add(unit(module, member), arithmetic_dtype(module, member), flops);
        let n_kept =
            updated_operands(module, member).filter(|_| in_place.contains(&member)).map_or(0, |arrays| arrays.end);
        for (k, &operand) in instruction.operands.iter().enumerate().skip(n_kept) {
            let more = walk.needed_of_operand(member, k);
            let needed = walk.needed.entry(operand).or_insert(0.0);
            *needed = (*needed + more).min(n_elems(module, operand));
            if !computed.contains(&operand) && seen.insert(operand) {
                inputs.push(operand);
            }
        }
    }
    for input in inputs {
        cost.bytes_read += bytes(module, input) * walk.share(input);
    }
    cost
}

/// How many times longer a library takes for a product of these operands and this result than its arithmetic at best. Rows of 16-bit floats
/// that begin at odd places of memory keep it from its fast kernels: on an H100 (27 November 2026, cuBLASLt of CUDA 13.0) the products of GPT-2's
/// head, 4096 x 768 x 50257 in bf16, ran at 102 to 164 TFLOP/s, and by TF32 at 126 on the average.
pub fn product_slowdown(arrays: [&ArrayShape; 3], uses_tf32: bool) -> f64 {
    let is_odd = |array: &ArrayShape| {
        let fastest = array.physical_order().into_iter().find(|&dim| array.dims[dim] != 1);
        fastest.is_some_and(|dim| array.dims[dim] * i64::from(array.dtype.bits()) % 128 != 0)
    };
    let dtype = arrays[0].dtype;
    let slowdown = if matches!(dtype, DType::BF16 | DType::F16) {
        ODD_ROWS
    } else if dtype == DType::F32 && uses_tf32 {
        ODD_ROWS_BY_TF32
    } else {
        1.0
    };
    if arrays.into_iter().any(is_odd) { slowdown } else { 1.0 }
}

/// See [`product_slowdown`].
const ODD_ROWS: f64 = 6.0;
/// The same for f32 that is rounded to TF32.
const ODD_ROWS_BY_TF32: f64 = 4.0;

fn slowdown(module: &Module, inst: InstId) -> f64 {
    let node = module.inst(inst);
    let array = |inst: InstId| module.shape(inst).as_array();
    let &[lhs, rhs] = node.operands.as_slice() else { return 1.0 };
    match (node.opcode.row().cost == CostRule::Dot, array(lhs), array(rhs), array(inst)) {
        (true, Some(lhs), Some(rhs), Some(out)) => product_slowdown([lhs, rhs, out], false),
        _ => 1.0,
    }
}

/// The type in which an instruction computes: a comparison computes in the type of what it compares.
pub fn arithmetic_dtype(module: &Module, inst: InstId) -> DType {
    let dtype = |inst: InstId| module.shape(inst).as_array().map(|array| array.dtype);
    let first = module.inst(inst).operands.first().and_then(|&operand| dtype(operand));
    if unit(module, inst) == Unit::Matrix {
        return first.unwrap_or(DType::F32);
    }
    dtype(inst).filter(|&d| d != DType::Pred).or(first).unwrap_or(DType::F32)
}

/// Which units do an instruction's arithmetic.
pub fn unit(module: &Module, inst: InstId) -> Unit {
    match module.inst(inst).opcode.row().cost {
        CostRule::Dot | CostRule::Convolution => Unit::Matrix,
        CostRule::Free
        | CostRule::Moves
        | CostRule::PerElement(_)
        | CostRule::Reduce
        | CostRule::Scatter
        | CostRule::Window
        | CostRule::Sort
        | CostRule::Cholesky
        | CostRule::TriangularSolve
        | CostRule::Fft
        | CostRule::Called(_)
        | CostRule::Communication
        | CostRule::Unknown(_) => Unit::Vector,
    }
}

/// What an update of parts of arrays moves.
struct PartialUpdate {
    /// Bytes of the parts.
    part_bytes: f64,
    /// Whether it reads the old elements of the parts.
    reads_part: bool,
}

/// The updates in place, one after the other, by which a kernel that computes `computed` makes `output` of an array that it is
/// given; none if it makes the array itself or writes it anew.
fn find_updates(
    module: &Module,
    output: InstId,
    computed: &HashSet<InstId>,
    updates: Updates<'_>,
) -> SmallVec<[(InstId, PartialUpdate); 1]> {
    let (mut chain, mut at) = (SmallVec::new(), output);
    while let Some(arrays) = updated_operands(module, at).filter(|_| updates.is_in_place(at)) {
        let operands = &module.inst(at).operands;
        // After the arrays: the part and where it goes, or the places and then the parts.
        let (parts, reads_part) = match module.inst(at).opcode.row().factors == FactorRule::Scatter {
            true => (operands.get(arrays.end + 1..), true),
            false => (operands.get(1..2), false),
        };
        let part_bytes = parts.unwrap_or_default().iter().map(|&part| bytes(module, part)).sum();
        chain.push((at, PartialUpdate { part_bytes, reads_part }));
        match operands.get(arrays).unwrap_or_default() {
            &[array] if computed.contains(&behind_views(module, array)) => at = behind_views(module, array),
            [_] => return chain,
            arrays if arrays.iter().any(|array| computed.contains(array)) => return SmallVec::new(),
            _ => return chain,
        }
    }
    SmallVec::new()
}

fn n_elems(module: &Module, inst: InstId) -> f64 {
    module.shape(inst).as_array().map_or(1.0, |array| array.n_elems() as f64)
}

fn bytes(module: &Module, inst: InstId) -> f64 {
    module.shape(inst).memory_bytes() as f64
}

struct Walk<'m> {
    module: &'m Module,
    /// Elements of each value that are needed.
    needed: HashMap<InstId, f64>,
}

impl Walk<'_> {
    fn needed(&self, inst: InstId) -> f64 {
        self.needed.get(&inst).copied().unwrap_or(0.0)
    }

    /// Which part of a value is needed, from 0 to 1. Tuples are needed whole.
    fn share(&self, inst: InstId) -> f64 {
        let all = n_elems(self.module, inst);
        if all == 0.0 { 0.0 } else { (self.needed(inst) / all).min(1.0) }
    }

    /// Elements of operand `k` that the needed elements of `inst` are computed from.
    fn needed_of_operand(&self, inst: InstId, k: usize) -> f64 {
        let (module, needed) = (self.module, self.needed(inst));
        let Some(&operand) = module.inst(inst).operands.get(k) else { return 0.0 };
        let (all, share) = (n_elems(module, operand), self.share(inst));
        match module.inst(inst).opcode.row().factors.row().reads {
            Reads::Picks | Reads::LooksUp if k == 0 => needed.min(all),
            Reads::Share | Reads::LooksUp => all * share,
            // What the update covers is not read.
            Reads::Around if k == 0 => {
                let part = module.inst(inst).operands.get(1).map_or(0.0, |&part| n_elems(module, part));
                (all - part).max(0.0) * share
            }
            Reads::Picks | Reads::Around | Reads::Whole => all,
        }
    }
}
