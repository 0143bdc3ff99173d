//! `cargo xtask coverage FILES`: how much of the work that all devices repeat the sharded update does in shards.
//!
//! `W` is the sum of trip count × result elements over elementwise instructions whose result is proven equal on the devices
//! that sum a gradient. Scalars are left out, and what is computed from constants and broadcast scalars alone. Coverage is
//! `1 − W(after) / W(before)`: before is the module with calls inlined, common subexpressions merged and dead code removed; after is
//! `main.hlo` of the sharded interface with every update forced, cleaned up likewise. A value computed both whole and in shards
//! counts as whole. Dots are counted apart, in flops. `--whole` lists what is still whole, the most elements first;
//! `--replicated-params` is what `hlo-opt` takes.

use std::path::{Path, PathBuf};
use std::process::Command;

use hlo_analysis::Analyses;
use hlo_analysis::annotations::{ParamFacts, entry_leaves};
use hlo_ir::cost::Costs;
use hlo_ir::op::FactorRule;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_spmd::is_rebuilt;
use hlo_wus::find_gradients;

use crate::arguments::{Arguments, Word, unknown};
use crate::time_check::succeeded;
use crate::workspace;

const CLEAN: &str = "inline-calls,simplify-tuples,cse,dce";
const SHARD: &str = "inline-calls,simplify-tuples,hoist-invariants,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
                     fold-all-reduce-of-all-reduce,sink-all-reduce,flatten-update,all-reduce-to-reduce-scatter,\
                     hoist-conversions,shard-weight-update{state=auto,profit=always,min-bytes=0},\
                     distribute-matrix-updates{profit=always},inline-calls,cse,dce";

/// What all devices of a group compute alike in one step.
#[derive(Clone, Default)]
struct Repeated {
    elements: f64,
    dot_flops: f64,
    /// Elements and text of each instruction that is counted.
    instructions: Vec<(f64, String)>,
}

/// Prints a line for each file: false if one cannot be measured.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut files, mut tool, mut lists_whole, mut spec) = (Vec::<PathBuf>::new(), None, false, String::new());
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--hlo-opt" => tool = Some(arguments.value(&flag)?.into()),
            Word::Flag(flag) if flag == "--replicated-params" => spec = arguments.value(&flag)?,
            Word::Flag(flag) if flag == "--whole" => lists_whole = true,
            Word::Flag(word) => return Err(unknown("coverage", &word)),
            Word::Plain(file) => files.push(file.into()),
        }
    }
    if files.is_empty() {
        return Err("expected files of per-device modules, found none".into());
    }
    let tool = tool.map_or_else(workspace::build_tool, Ok)?;
    println!(
        "{:>14} {:>14} {:>9} {:>14} {:>14}  module",
        "elements", "in shards", "coverage", "dot flops", "still whole"
    );
    let mut is_well = true;
    for file in &files {
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        match measure(&tool, file, &spec) {
            Ok((before, mut after)) => {
                let covered = before.elements - after.elements;
                let share = match before.elements > 0.0 {
                    true => format!("{:.1} %", 100.0 * covered / before.elements),
                    false => "nothing".into(),
                };
                let flops = format!("{:>14.4e} {:>14.4e}", before.dot_flops, after.dot_flops);
                println!("{:>14.4e} {covered:>14.4e} {share:>9} {flops}  {name}", before.elements);
                after.instructions.sort_by(|a, b| b.0.total_cmp(&a.0));
                for (elements, text) in after.instructions.iter().filter(|_| lists_whole) {
                    println!("{:>14} {elements:>14.4e} {text}", "still whole");
                }
            }
            Err(reason) => {
                is_well = false;
                println!("{name}: {}", reason.lines().next().unwrap_or_default());
            }
        }
    }
    Ok(is_well)
}

/// What is repeated before and after.
fn measure(tool: &Path, file: &Path, spec: &str) -> Result<(Repeated, Repeated), String> {
    let place = workspace::target_dir().join("coverage");
    // The directory of an earlier run would be written into.
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    let (clean, parts) = (place.join("clean.hlo"), place.join("parts"));
    succeeded(Command::new(tool).arg(file).args(["--pass", CLEAN, "-o"]).arg(&clean).output(), tool)?;
    let mut shard = Command::new(tool);
    shard.arg(file).args(["--pass", SHARD, "-o"]).arg(&parts);
    if !spec.is_empty() {
        shard.args(["--replicated-params", spec]);
    }
    succeeded(shard.output(), tool)?;
    let (before, after) = (read(&clean)?, read(&parts.join("main.hlo"))?);
    let (gradients, _) = find_gradients(&before, 0);
    let mut groups: Vec<Vec<Vec<u32>>> = gradients.into_iter().map(|gradient| gradient.groups).collect();
    groups.sort();
    groups.dedup();
    let facts = ParamFacts::parse(spec, &before).map_err(|e| e.to_string())?;
    let mut left = facts.clone();
    for (number, (old, new)) in entry_leaves(&before).iter().zip(entry_leaves(&after)).enumerate() {
        // What is said of a leaf does not hold for its shards.
        if before.shape(old.param) != after.shape(new.param) {
            left.forget(number);
        }
    }
    Ok((repeated(&before, facts, &groups), repeated(&after, left, &groups)))
}

fn read(file: &Path) -> Result<Module, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let parsed = hlo_text::parse_module(&text).map_err(|e| format!("{}: {e:?}", file.display()))?;
    Ok(parsed.module)
}

fn repeated(module: &Module, params: ParamFacts, groups: &[Vec<Vec<u32>>]) -> Repeated {
    let mut analyses = Analyses::default();
    analyses.params = params;
    let (frequencies, replication) = (analyses.frequencies(module), analyses.replication(module));
    let costs = Costs::new(module);
    let is_equal = |inst: InstId| groups.iter().any(|groups| replication.is_equal_within(inst, 0, groups));
    let mut sum = Repeated::default();
    for comp in stepwise(module) {
        let trips = frequencies.of(comp);
        for &inst in &module.comp(comp).insts {
            let instruction = module.inst(inst);
            let Some(array) = module.shape(inst).as_array().filter(|array| array.rank() > 0) else { continue };
            if !is_equal(inst) {
                continue;
            }
            if instruction.opcode == Opcode::Dot {
                sum.dot_flops += trips * costs.of(inst).flops as f64;
            }
            let is_elementwise = instruction.opcode.row().factors == FactorRule::Elementwise;
            let is_from_nothing = instruction.operands.iter().all(|&operand| is_rebuilt(module, operand));
            if is_elementwise && !is_from_nothing && instruction.opcode != Opcode::Copy {
                let elements = trips * array.n_elems() as f64;
                let (opcode, name) = (instruction.opcode, module.inst_name(inst));
                sum.elements += elements;
                sum.instructions.push((elements, format!("{opcode} %{name} of %{}", module.comp_name(comp))));
            }
        }
    }
    sum
}

/// Computations whose instructions run one by one: the entry, and the bodies of loops and branches.
fn stepwise(module: &Module) -> Vec<CompId> {
    let mut found: Vec<CompId> = module.entry().into_iter().collect();
    let mut next = 0;
    while let Some(&comp) = found.get(next) {
        next += 1;
        for &inst in &module.comp(comp).insts {
            let is_entered = matches!(module.inst(inst).opcode, Opcode::While | Opcode::Conditional | Opcode::Call);
            if is_entered {
                let new = module.called(inst).into_iter().filter(|callee| !found.contains(callee)).collect::<Vec<_>>();
                found.extend(new);
            }
        }
    }
    found
}
