//! How much a run of a module in the evaluator takes.

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_ir::cost::Costs;
use hlo_ir::{Module, Opcode};

/// What the evaluator has to do for one run of a module on all its devices: operations and bytes.
pub fn evaluator_work(module: &Module) -> f64 {
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    let costs = Costs::new(module);
    let mut work = 0.0;
    for comp in module.post_order() {
        for &inst in &module.comp(comp).insts {
            // What these call is counted by its own frequency.
            if !matches!(module.inst(inst).opcode, Opcode::While | Opcode::Call | Opcode::Conditional) {
                let cost = costs.of(inst);
                work += frequencies.of(comp) * (cost.flops as f64 + cost.bytes() as f64);
            }
        }
    }
    work * module.n_devices() as f64
}
