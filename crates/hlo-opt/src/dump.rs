//! The files of a dump folder (`--xla_dump_to`), by their names: `module_0022.jit_step.0001.PIPELINE.after_PASS.before_PASS.txt`.

use crate::console::Console;
use crate::input::{Source, load_one};
use hlo_analysis::annotations::ParamFacts;
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::{InstId, Module};
use std::path::{Path, PathBuf};

/// How the dump of what XLA's partitioner takes ends.
const PARTITIONER_INPUT: &str = ".before_spmd-partitioning.txt";

/// Gives the parameters of a module that says nothing of them what stands in the same dump folder: how XLA's partitioner was told to cut
/// them. Since jax 0.12 the partitioned module does not repeat it.
pub(crate) fn complete(source: &Source, module: &mut Module, console: &mut Console<'_>) {
    let params = module.entry().map(|entry| module.comp(entry).params.clone()).unwrap_or_default();
    let says = |&param: &InstId| {
        let attrs = ParameterAttrs::of(&module.inst(param).attrs);
        module.sharding(param).is_some() || attrs.is_some_and(|attrs| !attrs.parameter_replication.is_empty())
    };
    let is_silent = module.header.num_partitions > 1 && !params.iter().any(says);
    let Some(file) = is_silent.then(|| partitioner_input(Path::new(&source.name))).flatten() else { return };
    let shown = file.display();
    match load_one(&file, console).map_err(|_| "it is no valid module".to_string()).and_then(|sibling| {
        let facts = ParamFacts::from_sibling(&sibling, module);
        facts.map(|_| sibling).map_err(|error| error.to_string())
    }) {
        Ok(sibling) => {
            let theirs = sibling.entry().map(|entry| sibling.comp(entry).params.as_slice()).unwrap_or_default();
            for (&param, &their) in params.iter().zip(theirs) {
                if let Some(sharding) = sibling.sharding(their) {
                    module.marks_mut(param).sharding = Some(sharding.clone());
                }
            }
            console.say(&format!("note: no parameter has `sharding=` (jax 0.12); taken from {shown}\n"));
        }
        Err(why) => console.say(&format!("note: no parameter has `sharding=`, and {shown} does not help: {why}\n")),
    }
}

/// Where the same module stands as XLA's partitioner took it, in the folder of `file`.
fn partitioner_input(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_of_same_module = |other: &str| module_of(other).is_some_and(|module| name.starts_with(module));
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let found = entries.filter(|other| other.ends_with(PARTITIONER_INPUT) && other != name && is_of_same_module(other));
    found.max().map(|other| folder.join(other))
}

/// The part of a name up to the number of the pass: `module_0022.jit_step.`.
fn module_of(name: &str) -> Option<&str> {
    let is_number = |part: &str| part.len() == 4 && part.bytes().all(|b| b.is_ascii_digit());
    let mut end = 0;
    for part in name.split_inclusive('.') {
        if end > 0 && part.strip_suffix('.').is_some_and(is_number) {
            return name.get(..end);
        }
        end += part.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_of_a_name_ends_before_the_number_of_the_pass() {
        let name = "module_0022.jit_f.g.0001.spmd-partitioner.after_spmd-partitioning.before_x.txt";
        assert_eq!(module_of(name), Some("module_0022.jit_f.g."));
        assert_eq!(module_of("module_0022.jit_f.before_optimizations.txt"), None);
        assert_eq!(module_of("0001.x.txt"), None, "a number alone names no module");
    }
}
