//! Modules that may be broken: the verifier says yes or no, and every analysis takes what it says yes to.
//!
//! A case is HLO text. Header lines `// edit: KIND I J` change the module after it is read, in ways that no text can say.

use super::headers;
use cranelift_entity::EntityRef;
use hlo_analysis::Analyses;
use hlo_analysis::counts::find_counts;
use hlo_analysis::memory::peak_memory;
use hlo_analysis::time::predict;
use hlo_analysis::traffic::Traffic;
use hlo_analysis::values::{SharedCallees, Through};
use hlo_ir::{InstId, Module, Opcode};
use hlo_mesh::Machine;

/// More devices than this are not analyzed: facts are kept for each.
const MAX_DEVICES: usize = 1024;

pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
    let Ok(parsed) = hlo_text::parse_module(text) else { return Ok(()) };
    let mut module = parsed.module;
    for edit in headers(text, "edit").take(16) {
        apply(&mut module, edit);
    }
    if hlo_ir::verify::verify(&module).is_err() {
        return Ok(());
    }
    analyze(&module);
    Ok(())
}

fn analyze(module: &Module) {
    let _ = find_counts(module);
    peak_memory(module);
    if module.n_devices() > MAX_DEVICES {
        return;
    }
    let mut analyses = Analyses::default();
    analyses.replication(module);
    let frequencies = analyses.frequencies(module);
    for through in [Through::TUPLES, Through::MARKERS, Through::COPIES, Through::ASYNC_HALVES, Through::ALL] {
        for shared in [SharedCallees::Opaque, SharedCallees::Entered] {
            analyses.values(module, through, shared);
        }
    }
    Traffic::find(module, &frequencies);
    if let Ok(machine) = Machine::unnamed() {
        let _ = predict(module, &frequencies, &machine);
    }
}

/// Changes a module as a line says: a word, and numbers that are taken modulo what there is.
fn apply(module: &mut Module, edit: &str) {
    let mut words = edit.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let mut number = || words.next().and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
    let (first, second) = (number(), number());
    let n_insts = module.n_inst_slots();
    if n_insts == 0 {
        return;
    }
    let (inst, other) = (InstId::new(first % n_insts), InstId::new(second % n_insts));
    let comp = module.inst(inst).parent;
    let n_operands = module.inst(inst).operands.len();
    match kind {
        "operand" if n_operands > 0 => module.inst_mut(inst).operands[second % n_operands] = other,
        "add-operand" => module.inst_mut(inst).operands.push(other),
        "drop-operand" if n_operands > 0 => {
            module.inst_mut(inst).operands.remove(second % n_operands);
        }
        "shape" => module.inst_mut(inst).shape = module.inst(other).shape,
        "opcode" => module.inst_mut(inst).opcode = Opcode::ALL[second % Opcode::ALL.len()],
        "attributes" => module.inst_mut(inst).attrs = module.inst(other).attrs.clone(),
        "marks" => module.inst_mut(inst).marks = module.inst(other).marks.clone(),
        "root" => module.comp_mut(comp).root = other.into(),
        "no-root" => module.comp_mut(comp).root = None.into(),
        "swap" => {
            let insts = &mut module.comp_mut(comp).insts;
            let n = insts.len().max(1);
            insts.swap(first % n, second % n);
        }
        "name" => module.inst_mut(inst).name = module.inst(other).name,
        "entry" => {
            let comp = module.inst(other).parent;
            module.set_entry(comp);
        }
        _ => {}
    }
}
