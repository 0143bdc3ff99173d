//! Structure: computations, their order, operands, names, parameters.

use super::Verifier;
use crate::attrs::{Attrs, FieldRef, Presence};
use crate::infer::ArityText;
use crate::module::{CompId, InstId, Module};
use crate::names::Name;
use crate::op::Opcode;
use cranelift_entity::EntityRef;

/// Marks for what was met, by arena index.
struct Seen {
    /// Number of the computation (from 1) in which an instruction was met.
    insts: Vec<u32>,
    comps: Vec<bool>,
    inst_names: Vec<bool>,
    comp_names: Vec<bool>,
}

pub(super) fn check(cx: &mut Verifier<'_>) {
    let module = cx.module;
    let mut seen = Seen {
        insts: vec![0; module.n_inst_slots()],
        comps: vec![false; module.n_comp_slots()],
        inst_names: vec![false; module.names.len()],
        comp_names: vec![false; module.names.len()],
    };
    for (order, &comp) in module.computations().iter().enumerate() {
        check_computation(cx, &mut seen, order as u32 + 1, comp);
        if std::mem::replace(&mut seen.comps[comp.index()], true) {
            cx.at_comp("called-computation", comp, "a computation once in the module", "it twice");
        }
        if is_taken(&mut seen.comp_names, module.comp(comp).name) {
            cx.at_comp("unique-names", comp, "a name of its own", "another computation of this name");
        }
        if cx.is_full() {
            return;
        }
    }
    match module.entry() {
        Some(entry) if seen.comps[entry.index()] => {}
        Some(_) | None => cx.at_module("entry-computation", "an entry computation", "none"),
    }
}

fn is_taken(names: &mut [bool], name: Name) -> bool {
    match names.get_mut(name.index()) {
        Some(slot) => std::mem::replace(slot, true),
        None => true,
    }
}

fn check_computation(cx: &mut Verifier<'_>, seen: &mut Seen, order: u32, id: CompId) {
    let module = cx.module;
    let comp = module.comp(id);
    let mut n_params = 0usize;
    for &inst in &comp.insts {
        let node = module.inst(inst);
        if node.parent != id || std::mem::replace(&mut seen.insts[inst.index()], order) != 0 {
            cx.at_inst(
                "instruction-parent",
                inst,
                "one place, in the list of its parent",
                "another computation or place",
            );
        }
        if is_taken(&mut seen.inst_names, node.name) {
            cx.at_inst("unique-names", inst, "a name of its own", "another instruction of this name");
        }
        // The instruction itself was marked above, so one that is its own operand would pass: compare ids too.
        for &operand in &node.operands {
            if operand == inst || seen.insts.get(operand.index()) != Some(&order) {
                let found = name_or_number(module, operand);
                cx.at_inst("operand-order", inst, "operands of its computation, before it", found);
            }
        }
        for &before in node.control_predecessors() {
            if before == inst || seen.insts.get(before.index()) != Some(&order) {
                let found = name_or_number(module, before);
                cx.at_inst("control-order", inst, "control predecessors of its computation, before it", found);
            }
        }
        check_row(cx, inst);
        check_callees(cx, seen, inst);
        n_params += usize::from(node.opcode == Opcode::Parameter);
    }
    check_params(cx, id, n_params);
    match comp.root.expand() {
        Some(root) if seen.insts.get(root.index()) == Some(&order) => {}
        Some(_) | None => cx.at_comp("computation-root", id, "a root among its instructions", "none"),
    }
}

fn name_or_number(module: &Module, inst: InstId) -> String {
    if inst.index() < module.n_inst_slots() {
        format!("`%{}`", module.inst_name(inst))
    } else {
        format!("instruction number {}", inst.index())
    }
}

fn check_row(cx: &mut Verifier<'_>, inst: InstId) {
    let node = cx.module.inst(inst);
    let row = node.opcode.row();
    if !row.arity.accepts(node.operands.len()) {
        cx.at_inst("operand-count", inst, ArityText(row.arity), node.operands.len());
    }
    if node.attrs.format() != row.format {
        cx.at_inst("attribute-format", inst, format_args!("attributes of {}", row.name), "those of another opcode");
    }
}

fn check_callees(cx: &mut Verifier<'_>, seen: &Seen, inst: InstId) {
    let module = cx.module;
    let node = module.inst(inst);
    if !node.attrs.format().names_comps() {
        return;
    }
    node.attrs.for_each_field(&mut |key, presence, field| {
        let check = |cx: &mut Verifier<'_>, comp: CompId| match seen.comps.get(comp.index()) {
            Some(true) if module.entry() == Some(comp) => {
                cx.at_inst("entry-computation", inst, "no call of the entry computation", key);
            }
            Some(true) => {}
            Some(false) | None => {
                cx.at_inst(
                    "called-computation",
                    inst,
                    format_args!("{key} listed before its caller"),
                    "it later or not at all",
                );
            }
        };
        match field {
            FieldRef::Comp(Some(comp)) => check(cx, *comp),
            FieldRef::Comp(None) if presence == Presence::Required => {
                cx.at_inst("called-computation", inst, format_args!("a computation as {key}"), "none");
            }
            FieldRef::Comps(comps) => comps.iter().for_each(|&c| check(cx, c)),
            _ => {}
        }
    });
}

fn check_params(cx: &mut Verifier<'_>, comp: CompId, n_params: usize) {
    let module = cx.module;
    let params = &module.comp(comp).params;
    let is_right = params.len() == n_params
        && params.iter().enumerate().all(|(i, &p)| {
            p.index() < module.n_inst_slots()
                && module.inst(p).parent == comp
                && matches!(&module.inst(p).attrs, Attrs::Parameter(a) if a.number == i as i64)
        });
    if !is_right {
        let found = format!("{} listed of {n_params}", params.len());
        cx.at_comp("parameter-numbers", comp, "parameters numbered from 0 without gaps", found);
    }
}
