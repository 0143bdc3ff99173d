//! A module under audit with the analyses that checks share.

use crate::AuditOptions;
use crate::collective::{Collective, find_collectives};
use hlo_analysis::Analyses;
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::replication::Replication;
use hlo_analysis::values::{SharedCallees, Through, ValueId, Values};
use hlo_ir::{InstId, Module, Opcode};
use hlo_mesh::{Network, SizeMismatch};
use std::sync::Arc;

/// What checks read.
pub struct AuditCx<'a> {
    pub(crate) module: &'a Module,
    pub(crate) options: &'a AuditOptions,
    pub(crate) network: Network,
    pub(crate) replication: Arc<Replication>,
    pub(crate) frequencies: Arc<Frequencies>,
    pub(crate) values: Arc<Values>,
    pub(crate) collectives: Vec<Collective>,
    /// Whether the module has fusions.
    is_fused: bool,
}

impl<'a> AuditCx<'a> {
    /// Analyses the module.
    ///
    /// # Errors
    /// The machine has another number of devices than the module runs on.
    pub fn new(module: &'a Module, options: &'a AuditOptions) -> Result<AuditCx<'a>, SizeMismatch> {
        let network = options.machine.network(module.n_devices().max(1))?;
        let mut analyses = Analyses::new(options.params.clone());
        analyses.frequency_options = options.frequency;
        let frequencies = analyses.frequencies(module);
        let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
        Ok(AuditCx {
            module,
            options,
            replication: analyses.replication(module),
            values: analyses.values(module, Through::ALL, SharedCallees::Entered),
            collectives: find_collectives(module, &frequencies, &network),
            frequencies,
            network,
            is_fused: insts.any(|&inst| module.inst(inst).opcode == Opcode::Fusion),
        })
    }

    /// ``%name``.
    pub(crate) fn name(&self, inst: InstId) -> String {
        format!("%{}", self.module.inst_name(inst))
    }

    /// Names of the first few, and how many more there are.
    pub(crate) fn names(&self, insts: &[InstId]) -> String {
        const MAX_NAMED: usize = 3;
        let named: Vec<String> = insts.iter().take(MAX_NAMED).map(|&inst| self.name(inst)).collect();
        match insts.len().saturating_sub(MAX_NAMED) {
            0 => named.join(", "),
            n_more => format!("{} and {n_more} more", named.join(", ")),
        }
    }

    /// What comes out of a collective for operand `k`; none where nothing looks at it.
    pub(crate) fn result(&self, collective: &Collective, k: usize) -> Option<ValueId> {
        let n_before = if collective.rule.has_operands_in_result() { collective.n_arrays(self.module) } else { 0 };
        self.values.leaves(collective.inst).get(n_before + k)?.expand()
    }

    /// What goes into a collective as operand `k`.
    pub(crate) fn operand(&self, collective: &Collective, k: usize) -> Option<ValueId> {
        self.values.of(*self.module.inst(collective.inst).operands.get(k)?)
    }

    /// Bytes of the larger of operand `k` of a collective and what comes out for it.
    pub(crate) fn array_bytes(&self, collective: &Collective, k: usize) -> u64 {
        let operand =
            self.module.inst(collective.inst).operands.get(k).map_or(0, |&o| self.module.shape(o).size_bytes());
        let result = self.result(collective, k).and_then(|value| self.values.shape(self.module, value));
        operand.max(result.map_or(0, |shape| shape.size_bytes()))
    }

    /// A remedy in words, and the passes that do it. Passes take programs before XLA fuses them, so where fusions are, it says so.
    pub(crate) fn remedy(&self, words: &str, passes: &str) -> String {
        match self.is_fused {
            false => format!("{words}, or run `--pass '{passes}'`"),
            true => format!("{words}; `--pass '{passes}'` does it on the program before XLA fuses it"),
        }
    }

    /// Fresh analyses for a changed copy of the module.
    pub(crate) fn analyses(&self) -> Analyses {
        let mut analyses = Analyses::new(self.options.params.clone());
        analyses.frequency_options = self.options.frequency;
        analyses
    }
}
