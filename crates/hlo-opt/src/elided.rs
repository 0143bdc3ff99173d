//! Where the elements are that a file leaves out of its constants (`constant({...})`).
//!
//! XLA leaves them out of the texts that it dumps, and TensorFlow out of its protos. A folder with dumps mostly has the same module in
//! another form that has them.

use crate::Failure;
use crate::dump::module_of;
use hlo_eval::EvalError;
use hlo_gpu::GpuError;
use hlo_ir::{ConstantValue, Module};
use std::path::{Path, PathBuf};

/// How a module's file is had with all elements.
const HOW: &str = "write the module with them: --xla_dump_hlo_as_proto, --xla_dump_large_constants, or print_large_constants in HloPrintOptions";
/// Larger files are not searched.
const MAX_BYTES: u64 = 1 << 30;
/// Ends of the names of dumps, behind the name of the module.
const STAGES: [&str; 3] = ["before_optimizations", "after_optimizations", "hlo_no_metadata"];

/// The advice where a constant's elements are needed, and `file` leaves them out: take the file beside it that has them, or write one.
pub(crate) fn advice(file: &Path, constant: &str) -> String {
    match sibling(file, constant) {
        Some(path) => format!("`{}` has the elements of %{constant}", path.display()),
        None => HOW.to_string(),
    }
}

/// The failure of a file that could not be evaluated.
pub(crate) fn failure(file: &str, error: &EvalError) -> Failure {
    let help = error.constant_without_elements().map(|constant| advice(Path::new(file), constant));
    Failure::File(format!("`{file}`: {error}{}", help.map(|help| format!("; {help}")).unwrap_or_default()))
}

/// The addition to the error about an instruction that cannot be lowered: advice if it is a constant without its elements.
pub(crate) fn hint(file: &Path, module: &Module, error: &GpuError) -> String {
    let GpuError::Unsupported { instruction, .. } = error else { return String::new() };
    let name = instruction.trim_start_matches('%');
    match constant(module, name).is_some_and(|value| !is_whole(value)) {
        true => format!("; {}", advice(file, name)),
        false => String::new(),
    }
}

/// The file of the same module beside `file` in which a constant of this name has its elements; of several the first by name.
fn sibling(file: &Path, constant: &str) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    let stem = stem(name);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut others: Vec<String> = entries.filter(|other| other != name && self::stem(other) == stem).collect();
    others.sort();
    others.into_iter().map(|other| folder.join(other)).find(|other| has_elements(other, constant))
}

/// The name of the module in the name of one of its files.
fn stem(name: &str) -> &str {
    if let Some(module) = module_of(name) {
        return module.trim_end_matches('.');
    }
    let mut stem = name;
    for end in [".gz", ".txt", ".pb", ".hlo"] {
        stem = stem.strip_suffix(end).unwrap_or(stem);
    }
    for stage in STAGES {
        // The stage after optimizations begins with the platform: `sm_90_gpu_after_optimizations`.
        if let Some((module, last)) = stem.rsplit_once('.')
            && last.ends_with(stage)
        {
            stem = module;
        }
    }
    stem
}

/// Whether a file is a module in which a constant of this name has its elements.
fn has_elements(file: &Path, constant: &str) -> bool {
    let is_small = std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.len() <= MAX_BYTES);
    let Some(bytes) = is_small.then(|| std::fs::read(file).ok()).flatten() else { return false };
    let Ok(bytes) = hlo_proto::unzip(bytes, MAX_BYTES) else { return false };
    let module = match hlo_proto::is_binary(&bytes) {
        true => hlo_proto::read(&bytes).map(|parsed| parsed.module).ok(),
        false => hlo_text::parse_bytes(&bytes).map(|parsed| parsed.module).ok(),
    };
    module.is_some_and(|module| self::constant(&module, constant).is_some_and(is_whole))
}

/// The value of the constant of this name.
fn constant<'m>(module: &'m Module, name: &str) -> Option<&'m ConstantValue> {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    insts.find(|&&inst| module.inst_name(inst) == name).and_then(|&inst| module.inst(inst).attrs.as_constant())
}

fn is_whole(value: &ConstantValue) -> bool {
    match value {
        ConstantValue::Array(_) => true,
        ConstantValue::Tuple(values) => values.iter().all(is_whole),
        ConstantValue::Elided => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_module_have_one_stem() {
        for name in [
            "module_0003.jit_f.before_optimizations.txt",
            "module_0003.jit_f.sm_90_gpu_after_optimizations.txt",
            "module_0003.jit_f.cpu_after_optimizations.hlo.pb",
            "module_0003.jit_f.0001.spmd-partitioner.after_x.before_y.txt",
            "module_0003.jit_f.hlo.pb",
        ] {
            assert_eq!(stem(name), "module_0003.jit_f", "{name}");
        }
        assert_ne!(stem("module_0003.jit_f.hlo.pb"), stem("module_0004.jit_f.hlo.pb"));
        assert_eq!(stem("mlp.hlo_no_metadata.txt"), stem("mlp.hlo.pb.gz"));
    }
}
