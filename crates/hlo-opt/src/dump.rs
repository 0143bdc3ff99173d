//! The files of a dump folder (`--xla_dump_to`), by their names: `module_0022.jit_step.0001.PIPELINE.after_PASS.before_PASS.txt`.

use hlo_analysis::program_kind::DumpStage;
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

/// When XLA dumped a module, by the file's name: before its partitioner, or after it. `None` for other names, and for
/// dumps from in between, of which the name does not say on which side of the partitioner they are.
pub(crate) fn stage_of(file: &Path) -> Option<DumpStage> {
    let name = file.file_name()?.to_str()?;
    let name = name.strip_suffix(".gz").unwrap_or(name);
    let stem = ENDINGS.iter().find_map(|end| name.strip_suffix(end))?;
    if BEFORE.iter().any(|end| stem.ends_with(end)) {
        return Some(DumpStage::BeforePartitioner);
    }
    let is_after = stem.contains(AFTER_PARTITIONER) || stem.ends_with(AFTER_ALL);
    is_after.then_some(DumpStage::AfterPartitioner)
}

/// How names of dumps end, as text and as a proto.
const ENDINGS: [&str; 4] = [".txt", ".hlo.pb", ".pb", ".hlo"];

/// How names without these end, of dumps from before the partitioner.
const BEFORE: [&str; 2] = ["before_optimizations", ".before_spmd-partitioning"];

/// The part of a dump's name that says it was written right behind the partitioner.
const AFTER_PARTITIONER: &str = ".after_spmd-partitioning.";

/// How names of dumps from after all passes end.
const AFTER_ALL: &str = "after_optimizations";

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

    #[test]
    fn a_name_says_on_which_side_of_the_partitioner_a_dump_is() {
        for (name, stage) in [
            ("module_0022.jit_f.before_optimizations.txt", Some(DumpStage::BeforePartitioner)),
            ("module_0022.jit_f.before_optimizations.hlo.pb", Some(DumpStage::BeforePartitioner)),
            ("jit_f_before_optimizations.txt.gz", Some(DumpStage::BeforePartitioner)),
            (
                "module_0022.jit_f.0000.spmd-partitioner.after_shardy-xla.before_spmd-partitioning.txt",
                Some(DumpStage::BeforePartitioner),
            ),
            (
                "module_0022.jit_f.0001.spmd-partitioner.after_spmd-partitioning.before_dce.txt",
                Some(DumpStage::AfterPartitioner),
            ),
            ("module_0022.jit_f.cpu_after_optimizations.txt", Some(DumpStage::AfterPartitioner)),
            ("module_0022.jit_f.0009.simplification.after_dce.before_cse.txt", None),
            ("step.hlo", None),
            ("before_optimizations", None),
        ] {
            assert_eq!(stage_of(Path::new(name)), stage, "{name}");
        }
    }
}
