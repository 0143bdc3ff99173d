//! Kernels of a plan: emitted once for each distinct source.

use crate::GpuError;
use crate::plan::{Kernel, KernelId};
use cranelift_entity::PrimaryMap;
use hashbrown::HashMap;
use hlo_ir::{InstId, Module};

/// Writes kernels. The lowering does not care in which language.
pub trait Emitter {
    /// The kernel of a fusion or of a single op: arguments are the operands' array leaves, then the result's.
    ///
    /// # Errors
    /// An op that no kernel is written for.
    fn emit(&mut self, module: &Module, inst: InstId) -> Result<Kernel, GpuError>;

    /// Pairs (operand leaf, result leaf) that may share one buffer: each thread reads the operand only where it writes.
    fn updatable(&self, module: &Module, inst: InstId) -> Vec<(usize, usize)>;
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
}

impl<'a> KernelStore<'a> {
    pub(crate) fn new(emitter: &'a mut dyn Emitter) -> KernelStore<'a> {
        KernelStore { emitter, kernels: PrimaryMap::new(), known: HashMap::new() }
    }

    pub(crate) fn emit(&mut self, module: &Module, inst: InstId) -> Result<Emitted, GpuError> {
        let kernel = self.emitter.emit(module, inst)?;
        let kernels = &mut self.kernels;
        let kernel = *self.known.entry(kernel).or_insert_with_key(|kernel| kernels.push(kernel.clone()));
        Ok(Emitted { kernel, updatable: self.emitter.updatable(module, inst) })
    }

    pub(crate) fn into_kernels(self) -> PrimaryMap<KernelId, Kernel> {
        self.kernels
    }
}
