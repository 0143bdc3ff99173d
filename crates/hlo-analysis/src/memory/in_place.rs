//! What shares memory: results that are another view of an operand, and operands whose memory a result may take over.

use crate::fusion::column_sum;
use crate::values::{LeafRun, Through, handed_on, hands_on, tuple_elements};
use hlo_ir::attrs::Attrs;
use hlo_ir::memory_space::leaves_on_host;
use hlo_ir::op::FactorRule;
use hlo_ir::view::is_view;
use hlo_ir::{CompId, InstId, InstMap, Module};
use smallvec::SmallVec;

/// The leaves of operands that the result is, under another name or shape, at no cost; `None` where the instruction does
/// something.
pub(super) fn viewed(module: &Module, inst: InstId) -> Option<SmallVec<[LeafRun; 2]>> {
    if hands_on(module, inst, Through::MARKERS) || is_dropped_copy(module, inst) {
        return Some(handed_on(module, inst, Through::COPIES));
    }
    let run = LeafRun::of_first_operand(module, inst)?;
    is_view(module, inst).then(|| SmallVec::from_elem(run, 1))
}

/// Whether an instruction is a copy that XLA will drop: it keeps the layout, and the module is not scheduled yet.
fn is_dropped_copy(module: &Module, inst: InstId) -> bool {
    let operand = module.inst(inst).operands.first();
    !module.header.is_scheduled
        && hands_on(module, inst, Through::COPIES)
        && operand.is_some_and(|&operand| keeps_layout(module, inst, operand))
}

/// Whether a value needs no memory because each use makes it anew: in a module that XLA has not scheduled yet, broadcasts and
/// iotas, which it fuses into their users.
pub(super) fn is_rebuilt(module: &Module, inst: InstId) -> bool {
    let factors = module.inst(inst).opcode.row().factors;
    !module.header.is_scheduled && matches!(factors, FactorRule::Broadcast | FactorRule::Iota)
}

/// Whether a copy keeps the layout and the memory, so that the copy may be the operand itself where that dies.
fn keeps_layout(module: &Module, inst: InstId, operand: InstId) -> bool {
    // The first leaf of the halves of an asynchronous copy is what it writes.
    let is_on_host = |inst: InstId| leaves_on_host(module, inst).first().copied();
    is_on_host(inst) == is_on_host(operand)
        && match (module.shape(operand).as_array(), module.shape(inst).as_array()) {
            (Some(from), Some(to)) => from.long_dims_major_to_minor() == to.long_dims_major_to_minor(),
            (None, _) | (_, None) => true,
        }
}

/// For each operand, whether a result of the same size may be written over it as it is read.
pub(super) fn overwritable(module: &Module, inst: InstId) -> Vec<bool> {
    let instruction = module.inst(inst);
    let n = instruction.operands.len();
    let only = |chosen: std::ops::Range<usize>| (0..n).map(|i| chosen.contains(&i)).collect::<Vec<bool>>();
    let row = instruction.opcode.row();
    if let Attrs::Fusion(attrs) = &instruction.attrs {
        let mut result = attrs.calls.map_or_else(|| only(0..0), |comp| overwritable_params(module, comp));
        result.resize(n, false);
        for alias in &attrs.output_to_operand_aliasing {
            mark(&mut result, alias.operand);
        }
        return result;
    }
    if let Attrs::Custom(attrs) = &instruction.attrs {
        let mut result = only(0..0);
        attrs.output_to_operand_aliasing.iter().for_each(|alias| mark(&mut result, alias.operand));
        return result;
    }
    if hands_on(module, inst, Through::COPIES) {
        return (0..n).map(|i| i == 0 && keeps_layout(module, inst, instruction.operands[i])).collect();
    }
    only(if row.factors == FactorRule::Elementwise { 0..n } else { row.shape.overwritten_operands(n) })
}

fn mark(flags: &mut [bool], operand: i64) {
    if let Some(flag) = usize::try_from(operand).ok().and_then(|i| flags.get_mut(i)) {
        *flag = true;
    }
}

/// For each parameter of a fused computation, whether every result element needs only its element at the same place:
/// then the fusion may write over it. One walk from the root: what an op reads elsewhere than at the place it writes is
/// not overwritable, and neither is anything that goes into it. A sum of columns among the results is of elements that the same threads
/// compute.
fn overwritable_params(module: &Module, comp: CompId) -> Vec<bool> {
    let mut read_elsewhere: InstMap<bool> = InstMap::of(module, comp);
    let root = module.comp(comp).root.expand();
    let results = root.and_then(|root| tuple_elements(module, root)).unwrap_or_default();
    let is_sum = |inst: InstId| results.contains(&inst) && column_sum(module, inst).is_some();
    for &inst in module.comp(comp).insts.iter().rev() {
        let instruction = module.inst(inst);
        let row = instruction.opcode.row();
        let is_handed_on = hands_on(module, inst, Through::COPIES) || viewed(module, inst).is_some();
        let is_handed_on = is_handed_on || is_sum(inst);
        let is_in_place = |i: usize| is_handed_on || row.factors.reads_where_it_writes(i);
        let is_bad = read_elsewhere[inst];
        for (i, &operand) in instruction.operands.iter().enumerate() {
            if is_bad || !is_in_place(i) {
                read_elsewhere[operand] = true;
            }
        }
    }
    // A sum lies over no operand, of however many bytes.
    let of_sums: Vec<u64> =
        results.iter().filter(|&&inst| is_sum(inst)).map(|&inst| module.shape(inst).memory_bytes()).collect();
    let may_be_sum = |param: InstId| of_sums.contains(&module.shape(param).memory_bytes());
    module.comp(comp).params.iter().map(|&param| !read_elsewhere[param] && !may_be_sum(param)).collect()
}
