//! Which computations an instruction runs, and which operands become their parameters.

use cranelift_entity::SecondaryMap;
use hlo_ir::op::CalleeEntry;
use hlo_ir::{CompId, InstId, Module};
use smallvec::SmallVec;

/// A place where an instruction names a computation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CallSite {
    /// The instruction.
    pub inst: InstId,
    /// Which of the computations that it names, in the order of [`Module::called`].
    pub slot: u32,
}

impl CallSite {
    /// Where a loop enters its body.
    pub fn of_body(inst: InstId) -> CallSite {
        CallSite { inst, slot: CalleeEntry::BODY as u32 }
    }
}

/// The call sites of each computation: calls, fusions, loops, conditionals, and also reducers and asynchronous ops.
#[derive(Clone, Debug, Default)]
pub struct CallSites {
    of: SecondaryMap<CompId, SmallVec<[CallSite; 1]>>,
}

impl CallSites {
    /// The call sites in the instructions of `comps`, in that order.
    pub fn find(module: &Module, comps: impl IntoIterator<Item = CompId>) -> CallSites {
        CallSites::of_insts(module, comps.into_iter().flat_map(|comp| module.comp(comp).insts.iter().copied()))
    }

    /// The call sites in these instructions, in that order.
    pub fn of_insts(module: &Module, insts: impl IntoIterator<Item = InstId>) -> CallSites {
        let mut sites = CallSites { of: SecondaryMap::with_capacity(module.n_comp_slots()) };
        insts.into_iter().for_each(|inst| sites.add_inst(module, inst));
        sites
    }

    /// Adds the call sites in the instructions of `comp`.
    pub fn add(&mut self, module: &Module, comp: CompId) {
        for &inst in &module.comp(comp).insts {
            self.add_inst(module, inst);
        }
    }

    fn add_inst(&mut self, module: &Module, inst: InstId) {
        for (slot, callee) in (0..).zip(module.called(inst)) {
            self.of[callee].push(CallSite { inst, slot });
        }
    }

    /// The call sites of a computation.
    pub fn of(&self, comp: CompId) -> &[CallSite] {
        &self.of[comp]
    }
}

/// The computations that an instruction runs with its operands as arguments, and how. `None` where it runs none so: a
/// reduction gives its reducer other arguments.
pub fn entered(module: &Module, inst: InstId) -> Option<(CalleeEntry, SmallVec<[CompId; 2]>)> {
    let entry = module.inst(inst).opcode.row().flow.entry()?;
    Some((entry, module.called(inst))).filter(|(_, callees)| !callees.is_empty())
}

/// Which operand a call site gives for parameter `number`.
pub fn argument_idx(module: &Module, site: CallSite, number: usize) -> Option<usize> {
    let instruction = module.inst(site.inst);
    let operand_idx = instruction.opcode.row().flow.entry()?.operand(site.slot as usize, number);
    Some(operand_idx).filter(|&idx| idx < instruction.operands.len())
}

/// The operand that a call site gives for parameter `number`.
pub fn argument(module: &Module, site: CallSite, number: usize) -> Option<InstId> {
    module.inst(site.inst).operands.get(argument_idx(module, site, number)?).copied()
}

/// The parameters of the computation `callee` with the operands that a call site gives for them.
pub fn arguments(module: &Module, site: CallSite, callee: CompId) -> impl Iterator<Item = (InstId, InstId)> + use<'_> {
    let params = module.comp(callee).params.iter().enumerate();
    params.filter_map(move |(number, &param)| Some((param, argument(module, site, number)?)))
}

/// For each operand the parameter that it becomes, the condition's for a loop's. `None` for the selector of a conditional and
/// for operands of an instruction that enters nothing.
pub fn params_of_operands(module: &Module, inst: InstId) -> SmallVec<[Option<InstId>; 2]> {
    let mut params: SmallVec<[Option<InstId>; 2]> = SmallVec::from_elem(None, module.inst(inst).operands.len());
    for (slot, callee) in (0..).zip(entered(module, inst).map(|(_, callees)| callees).unwrap_or_default()) {
        for (number, &param) in module.comp(callee).params.iter().enumerate() {
            if let Some(idx) = argument_idx(module, CallSite { inst, slot }, number) {
                params[idx].get_or_insert(param);
            }
        }
    }
    params
}

/// Condition and body of a loop; `None` for other instructions.
pub fn condition_and_body(module: &Module, inst: InstId) -> Option<(CompId, CompId)> {
    match entered(module, inst)? {
        (CalleeEntry::Loop, callees) => Some((*callees.first()?, *callees.get(CalleeEntry::BODY)?)),
        (CalleeEntry::Call | CalleeEntry::Branches, _) => None,
    }
}
