//! XLA's own passes, proved: of the modules before and after each pass that deals with collectives or shardings. Where XLA's combiner
//! changed a module, the baseline that figures are compared with must have as many collectives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use hlo_cluster::XlaCombiner;
use hlo_collectives::combine_as_xla;
use hlo_ir::{Module, Opcode};
use hlo_opt::library::OpenModule;

use crate::prove_check::proof::{on_a_large_stack, prove};
use crate::{wheel, workspace};

/// What came of one pass.
#[derive(Default)]
struct Row {
    n_pairs: usize,
    n_proved: usize,
    n_outputs: usize,
    n_exact: usize,
}

/// The module after one pass and before the next one that was asked for.
struct Dump {
    number: u32,
    after: String,
    before: String,
    file: PathBuf,
}

/// The names of all training scripts.
pub(super) fn scripts(python: &Path) -> Result<Vec<String>, String> {
    let mut list = wheel::command(python);
    list.arg(wheel::package_dir().join("tests/dump_passes.py"));
    let listed = list.output().map_err(|e| format!("{}: {e}", python.display()))?;
    match listed.status.success() {
        true => Ok(String::from_utf8_lossy(&listed.stdout).lines().map(String::from).collect()),
        false => Err(String::from_utf8_lossy(&listed.stderr).into_owned()),
    }
}

/// Compiles the scripts and proves every pass that changed a module; false if one is not proved.
pub(super) fn run(python: &Path, scripts: &[String]) -> Result<bool, String> {
    let root = workspace::target_dir().join("xla-passes");
    let _ = fs::remove_dir_all(&root);
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let (mut unproved, mut counts) = (Vec::new(), Vec::new());
    for script in scripts {
        let folder = root.join(script);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut dump = wheel::command(python);
        dump.arg(wheel::package_dir().join("tests/dump_passes.py")).arg(script).arg(&folder);
        if !wheel::succeeds(&mut dump)? {
            return Err(format!("{script}: XLA did not compile it"));
        }
        for (module, dumps) in dumps_of(&folder)? {
            for pair in dumps.windows(2).filter(|pair| pair[0].before == pair[1].after) {
                prove_pair(script, &module, pair, &mut rows, &mut unproved)?;
                counts.extend(combined(script, pair)?);
            }
        }
    }
    println!("\nCollectives where XLA's combiner changed a module, by XLA and by the baseline of our figures:\n");
    println!("| script | kind | before | XLA | baseline |\n|---|---|--:|--:|--:|");
    for Combined { script, op, before, by_xla, by_us, .. } in &counts {
        println!("| {script} | {op} | {before} | {by_xla} | {by_us} |");
    }
    if counts.is_empty() {
        return Err("XLA's combiner changed no module: the baseline was not checked".into());
    }
    // XLA also combines gathers and scatters of several dims; the baseline has one more for each further dim.
    let is_counted =
        counts.iter().all(|count| (count.by_xla..=count.by_xla + count.n_more_dims).contains(&count.by_us));
    println!("\nXLA's passes on {} scripts, proved:\n", scripts.len());
    println!("| pass | changed modules | proved | outputs | bit for bit |\n|---|--:|--:|--:|--:|");
    let mut all = Row::default();
    for (pass, row) in &rows {
        println!("| {pass} | {} | {} | {} | {} |", row.n_pairs, row.n_proved, row.n_outputs, row.n_exact);
        all.n_pairs += row.n_pairs;
        all.n_proved += row.n_proved;
    }
    println!("\n{} of {} changed modules proved", all.n_proved, all.n_pairs);
    unproved.iter().for_each(|text| println!("{text}"));
    if all.n_pairs == 0 {
        return Err("no pass changed a module: nothing was proved".into());
    }
    Ok(unproved.is_empty() && is_counted)
}

/// How many collectives of a kind a module has.
struct Combined {
    script: String,
    op: Opcode,
    before: usize,
    by_xla: usize,
    by_us: usize,
    /// Dims, beyond the first, along which collectives of this kind gather or scatter.
    n_more_dims: usize,
}

/// The counts before and after a combiner of XLA's that changed a module; `None` for every other pair.
fn combined(script: &str, pair: &[Dump]) -> Result<Option<Combined>, String> {
    let [before, after] = pair else { return Ok(None) };
    let kind = after.after.strip_suffix("-combiner").map(|kind| kind.trim_start_matches("gpu-"));
    let Some(op) = kind.and_then(Opcode::from_name) else { return Ok(None) };
    let read = |dump: &Dump| OpenModule::read(&dump.file, &[]).map_err(|failure| format!("{failure:?}"));
    let (module, theirs) = (read(before)?.0, read(after)?.0);
    let n_of = |module: &Module| {
        let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
        insts.filter(|&&inst| module.inst(inst).opcode == op).count()
    };
    let insts = module.module().computations().iter().flat_map(|&comp| &module.module().comp(comp).insts);
    let of_kind = insts.map(|&inst| module.module().inst(inst)).filter(|inst| inst.opcode == op);
    let dims: BTreeSet<Option<usize>> =
        of_kind.map(|inst| inst.attrs.collective().and_then(|view| view.dim())).collect();
    let ours = combine_as_xla(module.module(), &XlaCombiner::default());
    let (before, by_xla) = (n_of(module.module()), n_of(theirs.module()));
    let by_us = n_of(ours.as_ref().unwrap_or(module.module()));
    Ok((before != by_xla).then(|| Combined {
        script: script.to_string(),
        op,
        before,
        by_xla,
        by_us,
        n_more_dims: dims.len().saturating_sub(1),
    }))
}

fn prove_pair(
    script: &str,
    module: &str,
    pair: &[Dump],
    rows: &mut BTreeMap<String, Row>,
    unproved: &mut Vec<String>,
) -> Result<(), String> {
    let [before, after] = pair else { return Ok(()) };
    let texts =
        [before, after].map(|dump| fs::read_to_string(&dump.file).map_err(|e| format!("{}: {e}", dump.file.display())));
    let [a, b] = texts;
    let (a, b) = (a?, b?);
    let body = |text: &str| text.split_once('\n').map(|(_, body)| body.to_string());
    if body(&a) == body(&b) {
        return Ok(());
    }
    let files = [before.file.clone(), after.file.clone()];
    let outcome = on_a_large_stack(move || {
        let open = |file: &Path| OpenModule::read(file, &[]).map_err(|failure| format!("{failure:?}"));
        let (before, after) = (open(&files[0])?.0, open(&files[1])?.0);
        Ok(prove(before.module(), after.module()))
    })?;
    let row = rows.entry(after.after.clone()).or_default();
    row.n_pairs += 1;
    match outcome {
        Ok(proved) => {
            row.n_outputs += proved.proof.outputs.len();
            row.n_exact += proved.proof.n_exact();
            if proved.proof.is_proved() {
                row.n_proved += 1;
                return Ok(());
            }
            let first = proved.proof.outputs.iter().find_map(|output| output.difference.clone()).unwrap_or_default();
            unproved.push(format!("{script}, {module}, {}: {first}", after.after));
        }
        Err(reason) => unproved.push(format!("{script}, {module}, {}: {reason}", after.after)),
    }
    Ok(())
}

/// The dumps of each module of several devices, in the order of the passes.
fn dumps_of(folder: &Path) -> Result<BTreeMap<String, Vec<Dump>>, String> {
    let mut modules: BTreeMap<String, Vec<Dump>> = BTreeMap::new();
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let file = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        if let Some((module, dump)) = dump_of(&name, &file) {
            modules.entry(module).or_default().push(dump);
        }
    }
    modules.values_mut().for_each(|dumps| dumps.sort_by_key(|dump| dump.number));
    Ok(modules)
}

/// The parts of `MODULE.NUMBER.PIPELINE.after_PASS.before_PASS.txt`.
fn dump_of(name: &str, file: &Path) -> Option<(String, Dump)> {
    let (rest, before) = name.strip_suffix(".txt")?.rsplit_once(".before_")?;
    let (rest, after) = rest.rsplit_once(".after_")?;
    let (rest, _pipeline) = rest.rsplit_once('.')?;
    let (module, number) = rest.rsplit_once('.')?;
    let dump =
        Dump { number: number.parse().ok()?, after: after.to_string(), before: before.to_string(), file: file.into() };
    Some((module.to_string(), dump))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_dumps_have_four_parts() {
        let name = "module_0001.jit_step.0018.collective-optimizations.after_all-reduce-reassociate.before_dce.txt";
        let (module, dump) = dump_of(name, Path::new(name)).unwrap();
        assert_eq!(module, "module_0001.jit_step");
        assert_eq!((dump.number, dump.after.as_str(), dump.before.as_str()), (18, "all-reduce-reassociate", "dce"));
        assert!(dump_of("module_0001.jit_step.before_optimizations.txt", Path::new("")).is_none());
    }
}
