//! `--emit dot`: instructions and what they take, as a graph for Graphviz.
//!
//! With `--around` it is what is at most so many steps away from one instruction, towards operands and towards users; dashed edges
//! leave the part that is shown.

use crate::Failure;
use hlo_ir::infer::ShapeText;
use hlo_ir::op::Effects;
use hlo_ir::{CompId, InstId, Module};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

/// Nodes of a graph that a person can look at, and a layout ends with.
const MAX_NODES: usize = 2000;

/// Characters of a shape in a node.
const MAX_SHAPE: usize = 60;

/// The graph of the entry, or of what lies around an instruction.
///
/// # Errors
/// No instruction has this name, or the graph is too large.
pub(crate) fn dot(module: &Module, around: Option<&str>, depth: u32) -> Result<String, Failure> {
    let (comp, shown) = match around {
        Some(name) => {
            let name = name.trim_start_matches('%');
            let all = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
            let Some(&center) = all.into_iter().find(|&&inst| module.inst_name(inst) == name) else {
                return Err(Failure::Usage(format!("--around: expected an instruction of the module, found `{name}`")));
            };
            (module.inst(center).parent, neighbours(module, center, depth))
        }
        None => {
            let Some(entry) = module.entry() else {
                return Err(Failure::Usage("expected an ENTRY, found none".into()));
            };
            (entry, module.comp(entry).insts.iter().map(|&inst| (inst, 1)).collect())
        }
    };
    if shown.len() > MAX_NODES {
        let n = shown.len();
        return Err(Failure::Usage(format!(
            "--emit dot: expected at most {MAX_NODES} instructions, found {n}: show a part with --around %NAME --depth N"
        )));
    }
    Ok(drawn(module, comp, &shown))
}

/// Instructions of the same computation that are at most `depth` steps away, with their distance.
fn neighbours(module: &Module, center: InstId, depth: u32) -> HashMap<InstId, u32> {
    let mut users: HashMap<InstId, Vec<InstId>> = HashMap::new();
    for &inst in &module.comp(module.inst(center).parent).insts {
        for &operand in &module.inst(inst).operands {
            users.entry(operand).or_default().push(inst);
        }
    }
    let mut found = HashMap::from([(center, 0)]);
    let mut queue = VecDeque::from([center]);
    while let Some(inst) = queue.pop_front() {
        let distance = found[&inst];
        if distance == depth {
            continue;
        }
        let next = module.inst(inst).operands.iter().chain(users.get(&inst).into_iter().flatten());
        for &other in next {
            if let std::collections::hash_map::Entry::Vacant(slot) = found.entry(other) {
                slot.insert(distance + 1);
                queue.push_back(other);
            }
        }
    }
    found
}

fn drawn(module: &Module, comp: CompId, shown: &HashMap<InstId, u32>) -> String {
    let mut out = format!("digraph {} {{\n", quoted(module.comp_name(comp)));
    out += "  rankdir=TB;\n  node [shape=box, style=filled, fillcolor=white, fontname=\"Helvetica\", fontsize=10];\n";
    let root = module.comp(comp).root.expand();
    let (mut nodes, mut edges) = (String::new(), String::new());
    for &inst in &module.comp(comp).insts {
        let name = quoted(module.inst_name(inst));
        let is_shown = shown.contains_key(&inst);
        let mut n_hidden = 0;
        for &operand in &module.inst(inst).operands {
            match (shown.contains_key(&operand), is_shown) {
                (true, true) => {
                    let _ = writeln!(edges, "  {} -> {name};", quoted(module.inst_name(operand)));
                }
                (false, true) => n_hidden += 1,
                (true, false) | (false, false) => {}
            }
        }
        if !is_shown {
            continue;
        }
        if n_hidden > 0 {
            let _ = writeln!(edges, "  {} [shape=plaintext, label=\"{n_hidden} more\"];", more(inst));
            let _ = writeln!(edges, "  {} -> {name} [style=dashed];", more(inst));
        }
        let row = module.inst(inst).opcode.row();
        let color = if shown[&inst] == 0 {
            ", fillcolor=\"#ffd54f\""
        } else if row.effects == Effects::Communicates {
            ", fillcolor=\"#ef9a9a\""
        } else if module.inst(inst).operands.is_empty() {
            ", fillcolor=\"#cfd8dc\""
        } else {
            ""
        };
        let bold = if root == Some(inst) { ", penwidth=3" } else { "" };
        let called: Vec<String> =
            module.called(inst).iter().map(|&comp| format!("%{}", module.comp_name(comp))).collect();
        let called = if called.is_empty() { String::new() } else { format!("\n{}", called.join(" ")) };
        let shape: String = ShapeText(module.shape(inst)).to_string();
        let short: String = match shape.char_indices().nth(MAX_SHAPE) {
            Some((end, _)) => format!("{}…", &shape[..end]),
            None => shape,
        };
        let label = quoted(&format!("%{}\n{} {short}{called}", module.inst_name(inst), row.name));
        let _ = writeln!(nodes, "  {name} [label={label}{color}{bold}];");
    }
    out + &nodes + &edges + "}\n"
}

/// The node for operands that are not shown.
fn more(inst: InstId) -> String {
    format!("more_{}", inst.as_u32())
}

/// A string of the DOT language.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
