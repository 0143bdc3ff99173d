//! Our launch plan of a module: its launches and memory, from the plan as JSON.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::Program;
use super::moved::moved;

/// The plan of a per-device module.
pub(super) fn plan(tool: &Path, module: &Path) -> Result<Program, String> {
    let plan = run(tool, module, &["--emit", "plan-json"])?;
    let plan: Value = serde_json::from_slice(&plan).map_err(|e| format!("the plan: {e}"))?;
    let lowered = run(tool, module, &[])?;
    let lowered = super::module_of(&String::from_utf8_lossy(&lowered))?;
    let bytes =
        |name: &str| plan["memory"][name].as_u64().ok_or_else(|| format!("the plan: expected its {name}, found none"));
    let insts = lowered.computations().iter().flat_map(|&comp| &lowered.comp(comp).insts);
    let known: HashSet<&str> = insts.map(|&inst| lowered.inst_name(inst)).collect();
    let copied: u64 = works(&plan["steps"])?.iter().map(|(step, n)| n * added_bytes(&plan, step, &known)).sum();
    Ok(Program {
        n_launches: works(&plan["steps"])?.iter().map(|(_, n)| n).sum(),
        moved: moved(&lowered)? + copied,
        argument: bytes("argument_bytes")?,
        output: bytes("output_bytes")?,
        alias: bytes("alias_bytes")?,
        temp: bytes("arena_bytes")?,
    })
}

fn run(tool: &Path, module: &Path, words: &[&str]) -> Result<Vec<u8>, String> {
    let output =
        Command::new(tool).arg(module).args(["--preset", "gpu", "--machine", "h100", "-q"]).args(words).output();
    let output = output.map_err(|e| format!("{}: {e}", tool.display()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find_map(|line| Some(line.split_once("error: ")?.1));
    Err(format!("refused: {}", first.unwrap_or("no message").rsplit(": ").next().unwrap_or_default().replace('|', "/")))
}

/// Bytes that a step moves which the module that is lowered does not have: a copy between buffers, or to the layout that a product wants.
fn added_bytes(plan: &Value, step: &Value, known: &HashSet<&str>) -> u64 {
    let index = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
    let bytes = |buffer: Option<usize>| buffer.and_then(|n| plan["buffers"][n]["bytes"].as_u64()).unwrap_or(0);
    match step["work"].as_str().unwrap_or_default() {
        "copy" => 2 * bytes(index(&step["from"])),
        "launch" if step["name"].as_str().is_some_and(|name| !known.contains(name)) => {
            step["arguments"].as_array().map_or(0, |all| all.iter().map(|argument| bytes(index(argument))).sum())
        }
        _ => 0,
    }
}

/// What is launched: kernels, products, copies, fills and collectives (a group is one), each with how often; of branches the one with most.
fn works(steps: &Value) -> Result<Vec<(&Value, u64)>, String> {
    let steps = steps.as_array().ok_or("the plan: expected steps, found none")?;
    let mut all = Vec::new();
    for step in steps {
        match step["work"].as_str().unwrap_or_default() {
            "while" => {
                let n_trips =
                    step["modelled_trips"].as_u64().ok_or("the plan: expected how often a loop runs, found none")?;
                all.extend(works(&step["condition"])?.into_iter().map(|(work, n)| (work, n * (n_trips + 1))));
                all.extend(works(&step["body"])?.into_iter().map(|(work, n)| (work, n * n_trips)));
            }
            "conditional" => {
                let branches = step["branches"].as_array().ok_or("the plan: expected branches, found none")?;
                let branches = branches.iter().map(works).collect::<Result<Vec<_>, _>>()?;
                all.extend(
                    branches
                        .into_iter()
                        .max_by_key(|branch| branch.iter().map(|(_, n)| n).sum::<u64>())
                        .unwrap_or_default(),
                );
            }
            "" => return Err("the plan: expected what a step does, found nothing".into()),
            _ => all.push((step, 1)),
        }
    }
    Ok(all)
}
