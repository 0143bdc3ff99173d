//! Kernels of a plan: emitted once for each distinct source.

use crate::GpuError;
use crate::convolution_price::slowdown;
use crate::plan::{Kernel, KernelFacts, KernelId};
use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};
use hashbrown::HashMap;
use hlo_analysis::time::{Updates, instruction_cost};
use hlo_analysis::values::{params_of_operands, tuple_elements};
use hlo_ir::cost::Costs;
use hlo_ir::{InstId, Module, Opcode};
use hlo_mesh::Unit;

/// Writes kernels. The lowering does not care in which language.
pub trait Emitter {
    /// The kernel of a fusion or of a single op: arguments are the operands' array leaves, then the result's.
    ///
    /// # Errors
    /// An op that no kernel is written for.
    fn emit(&mut self, module: &Module, inst: InstId) -> Result<EmittedKernel, GpuError>;
}

/// A kernel, and which of its results may lie where an operand lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmittedKernel {
    /// The kernel.
    pub kernel: Kernel,
    /// Pairs (operand leaf, result leaf) that may share one buffer: an element of the operand is read only by the thread that
    /// writes the result's element in the same place, and before that.
    pub updatable: Vec<(usize, usize)>,
}

/// An emitted kernel and what may be written in place.
pub(crate) struct Emitted {
    pub(crate) kernel: KernelId,
    pub(crate) updatable: Vec<(usize, usize)>,
}

/// The plan's kernels so far.
pub(crate) struct KernelStore<'a> {
    emitter: &'a mut dyn Emitter,
    kernels: PrimaryMap<KernelId, Kernel>,
    known: HashMap<Kernel, KernelId>,
    facts: SecondaryMap<KernelId, KernelFacts>,
    costs: Costs<'a>,
}

impl<'a> KernelStore<'a> {
    pub(crate) fn new(module: &'a Module, emitter: &'a mut dyn Emitter) -> KernelStore<'a> {
        KernelStore {
            emitter,
            kernels: PrimaryMap::new(),
            known: HashMap::new(),
            facts: SecondaryMap::new(),
            costs: Costs::new(module),
        }
    }

    pub(crate) fn emit(&mut self, inst: InstId) -> Result<Emitted, GpuError> {
        let module = self.costs.module();
        let EmittedKernel { kernel, updatable } = self.emitter.emit(module, inst)?;
        let kernels = &mut self.kernels;
        let kernel = *self.known.entry(kernel).or_insert_with_key(|kernel| kernels.push(kernel.clone()));
        let facts = &mut self.facts[kernel];
        if facts.depends.is_empty() {
            // A kernel walks over all elements of its results.
            let mut cost = instruction_cost(&self.costs, inst, Updates::Rewrite);
            if let Some(conv) = convolution_of(module, inst) {
                let slowdown = slowdown(module, conv, 1);
                cost.arithmetic
                    .iter_mut()
                    .filter(|part| part.unit == Unit::Matrix)
                    .for_each(|part| part.flops *= slowdown);
            }
            *facts = KernelFacts { updatable: updatable.clone(), depends: dependencies(module, inst), cost };
        } else {
            // Equal sources may come from different instructions: what is said of the kernel must hold for all.
            facts.updatable.retain(|pair| updatable.contains(pair));
            for (known, new) in facts.depends.iter_mut().zip(dependencies(module, inst)) {
                known.extend(new);
                known.sort();
                known.dedup();
            }
        }
        let updatable = facts.updatable.clone();
        Ok(Emitted { kernel, updatable })
    }

    pub(crate) fn into_kernels(self) -> (PrimaryMap<KernelId, Kernel>, SecondaryMap<KernelId, KernelFacts>) {
        (self.kernels, self.facts)
    }
}

/// The convolution that an instruction is, or that a fusion has.
fn convolution_of(module: &Module, inst: InstId) -> Option<InstId> {
    let callee = module.called(inst).first().copied().filter(|_| module.inst(inst).opcode == Opcode::Fusion);
    let members = callee.map_or(std::slice::from_ref(&inst), |callee| module.comp(callee).insts.as_slice());
    members.iter().copied().find(|&member| module.inst(member).opcode == Opcode::Convolution)
}

/// For each leaf of an instruction's result the operands' leaves that it depends on: in a fusion those from which it can be
/// reached, else all.
fn dependencies(module: &Module, inst: InstId) -> Vec<Vec<usize>> {
    let n_arrays = |i: InstId| super::array_leaves(module.shape(i)).into_iter().flatten().count();
    let mut first = Vec::new();
    let mut n_read = 0;
    for &operand in &module.inst(inst).operands {
        first.push(n_read);
        n_read += n_arrays(operand);
    }
    let all = || vec![(0..n_read).collect(); n_arrays(inst)];
    let callee = module.called(inst).first().copied().filter(|_| module.inst(inst).opcode == Opcode::Fusion);
    let Some(comp) = callee.map(|callee| module.comp(callee)) else { return all() };
    let Some(root) = comp.root.expand() else { return all() };
    let results = tuple_elements(module, root).map_or_else(|| vec![root], <[InstId]>::to_vec);
    if results.len() != n_arrays(inst) || results.iter().any(|&result| n_arrays(result) != 1) {
        return all();
    }
    let params = params_of_operands(module, inst);
    let number: HashMap<InstId, usize> =
        params.into_iter().zip(0..).filter_map(|(param, k)| Some((param?, k))).collect();
    let from = |result: InstId| {
        let (mut seen, mut open, mut found) = (EntitySet::<InstId>::new(), vec![result], Vec::new());
        while let Some(at) = open.pop() {
            if !seen.insert(at) {
                continue;
            }
            if let Some(&k) = number.get(&at) {
                let begin = first.get(k).copied().unwrap_or(0);
                found.extend(begin..begin + n_arrays(at));
            }
            open.extend(module.inst(at).operands.iter().copied());
        }
        found.sort();
        found
    };
    results.into_iter().map(from).collect()
}
