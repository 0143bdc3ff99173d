//! The files of a dump folder (`--xla_dump_to`), by their names: `module_0022.jit_step.0001.PIPELINE.after_PASS.before_PASS.txt`.

use std::path::{Path, PathBuf};

/// How the dump of what XLA's partitioner takes ends.
const PARTITIONER_INPUT: &str = ".before_spmd-partitioning.txt";

/// Where the same module stands as XLA's partitioner took it, in the folder of `file`.
pub(crate) fn partitioner_input(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_of_same_module = |other: &str| module_of(other).is_some_and(|module| name.starts_with(module));
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let found = entries.filter(|other| other.ends_with(PARTITIONER_INPUT) && other != name && is_of_same_module(other));
    found.max().map(|other| folder.join(other))
}

/// Whether a file is named as a dump from before XLA's partitioner.
pub(crate) fn is_before_partitioner(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(PARTITIONER_INPUT) || name.ends_with(".before_optimizations.txt")
}

/// The part of a name up to the number of the pass: `module_0022.jit_step.`.
pub(crate) fn module_of(name: &str) -> Option<&str> {
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
