//! What a target begins with: small samples, and the words of the language as a dictionary.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hlo_ir::{DType, Opcode};
use hlo_proto::Kept;

use crate::workspace;

/// What the cases of a target are.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// HLO text.
    Text,
    /// HloModuleProtos.
    Proto,
    /// Something that no sample is.
    None,
}

/// Longer samples are no seeds: short cases run fast.
const MAX_SEED_BYTES: usize = 4096;

/// Words of headers and shapes that no table has.
const WORDS: [&str; 16] = [
    "HloModule",
    "ENTRY",
    "ROOT",
    "replica_count=",
    "num_partitions=",
    "entry_computation_layout=",
    "input_output_alias=",
    "is_scheduled=true",
    "sharding={replicated}",
    "sharding={devices=[2,1]<=[2]}",
    "metadata={op_name=\"",
    "backend_config={",
    "frontend_attributes={",
    "control-predecessors={",
    "{1,0:T(8,128)}",
    "[2,2]<=[4]T(1,0)",
];

/// Writes the seeds into `folder`, and the dictionary beside it.
pub(super) fn write(kind: Kind, folder: &Path, max_bytes: usize) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(fail)?;
    let mut files = Vec::new();
    collect(&workspace::root().join("ir-samples"), &mut files)?;
    files.sort();
    for (number, file) in files.iter().enumerate() {
        let is_text = file.extension().is_some_and(|extension| extension == "hlo");
        let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let seed = match (kind, is_text) {
            (Kind::Text, true) => Some(bytes),
            (Kind::Proto, false) => Some(bytes),
            (Kind::Proto, true) => as_proto(&bytes),
            (Kind::Text, false) | (Kind::None, _) => None,
        };
        if let Some(seed) = seed.filter(|seed| seed.len() <= MAX_SEED_BYTES.min(max_bytes)) {
            fs::write(folder.join(format!("seed-{number}")), seed).map_err(fail)?;
        }
    }
    match kind {
        Kind::Text => fs::write(folder.with_extension("dict"), dictionary()).map_err(fail),
        Kind::Proto | Kind::None => Ok(()),
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "hlo" || extension == "pb") {
            files.push(path);
        }
    }
    Ok(())
}

fn as_proto(text: &[u8]) -> Option<Vec<u8>> {
    let module = hlo_text::parse_bytes(text).ok()?.module;
    Some(hlo_proto::write(&module, &Kept::default()).bytes)
}

/// Opcodes, element types and keys of attributes, as libFuzzer reads them.
fn dictionary() -> String {
    let opcodes = Opcode::ALL.iter().map(|op| format!("{}(", op.name()));
    let types = DType::ALL.iter().map(|dtype| format!("{}[", dtype.name()));
    let fields = Opcode::ALL.iter().flat_map(|op| op.row().format.fields()).map(|(key, _)| format!("{key}="));
    let words = WORDS.iter().map(|word| word.to_string());
    let all: BTreeSet<String> = opcodes.chain(types).chain(fields).chain(words).collect();
    let line = |word: &String| format!("\"{}\"\n", word.replace('\\', "\\\\").replace('"', "\\\""));
    all.iter().map(line).collect()
}
