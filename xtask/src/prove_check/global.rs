//! Global programs beside what XLA's partitioner made of them.

use std::path::Path;

use hlo_ir::Module;
use hlo_opt::library::OpenModule;
use hlo_prove::Verdict;

use super::Program;
use super::proof::prove;
use crate::workspace;

/// Outputs that are not proved, with the reason: file, number of the output.
const KNOWN_UNKNOWNS: [(&str, usize, &str); 4] = [
    ("conv_spatial_sgd.unopt.hlo", 0, SELECTED),
    ("conv_spatial_sgd.unopt.hlo", 1, WINDOWS),
    ("conv_spatial_sgd.unopt_gspmd.hlo", 0, SELECTED),
    ("conv_spatial_sgd.unopt_gspmd.hlo", 1, WINDOWS),
];
const SELECTED: &str = "a select-and-scatter whose windows reach over the cut";
const WINDOWS: &str =
    "a product of two layers of windows over cut rows: their sums part into more than are joined again";

/// A global program and the program of one device among several.
pub(super) struct GlobalPair {
    pub(super) name: String,
    pub(super) global: Module,
    pub(super) local: Module,
}

/// The pairs among the samples: `NAME.unopt.hlo` beside `NAME.hlo`, `NAME.unopt_gspmd.hlo` beside `NAME.spmd_gspmd.hlo`.
///
/// # Errors
/// A folder or a file cannot be read.
pub(super) fn pairs(only: &[String]) -> Result<Vec<GlobalPair>, String> {
    let mut out = Vec::new();
    for folder in ["ir-samples/programs", "ir-samples/global"] {
        let folder = workspace::root().join(folder);
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let names =
            entries.map(|entry| Ok(entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned()));
        let mut names: Vec<String> = names.collect::<Result<_, String>>()?;
        names.sort();
        for name in names {
            let local = match (name.strip_suffix(".unopt.hlo"), name.strip_suffix(".unopt_gspmd.hlo")) {
                (Some(stem), _) => format!("{stem}.hlo"),
                (None, Some(stem)) => format!("{stem}.spmd_gspmd.hlo"),
                (None, None) => continue,
            };
            let local = folder.join(local);
            if local.is_file() && (only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))) {
                out.push(GlobalPair { global: read(&folder.join(&name))?, local: read(&local)?, name });
            }
        }
    }
    Ok(out)
}

fn read(file: &Path) -> Result<Module, String> {
    let (module, _) = OpenModule::read(file, &[]).map_err(|failure| format!("{failure:?}"))?;
    Ok(module.module().clone())
}

/// Proves every pair; the number of outputs that are neither proved nor known to be unknown.
///
/// # Errors
/// A sample cannot be read.
pub(super) fn run(only: &[String]) -> Result<usize, String> {
    let (mut n_bad, mut n_whole, mut n_outputs, mut n_proved, mut n_exact) = (0, 0, 0, 0, 0);
    let pairs = pairs(only)?;
    for pair in &pairs {
        let proved = match prove(&pair.global, &pair.local) {
            Ok(proved) => proved,
            Err(reason) => {
                println!("{}: {reason}", pair.name);
                n_bad += 1;
                continue;
            }
        };
        let proof = &proved.proof;
        n_whole += usize::from(proof.is_proved());
        n_outputs += proof.outputs.len();
        n_proved += proof.n_proved();
        n_exact += proof.n_exact();
        let counts = format!("{} of {}", proof.n_proved(), proof.outputs.len());
        println!("{:>9} {counts:>13} {:>9.1}  {:<34} XLA's partitioner", "global", proved.ms, pair.name);
        for output in proof.outputs.iter().filter(|output| output.verdict != Verdict::Proved) {
            let known = KNOWN_UNKNOWNS.iter().find(|(file, leaf, _)| (*file, *leaf) == (&pair.name, output.leaf));
            n_bad += usize::from(known.is_none());
            let reason = known.map(|(.., reason)| format!("known: {reason}")).or(output.difference.clone());
            println!("{:>9} {:>13} output {}: {}", "", "", output.leaf, reason.unwrap_or_default());
        }
    }
    println!(
        "global programs beside XLA's partitioned ones: {n_whole} of {} proved whole, {n_proved} of {n_outputs} outputs, {n_exact} of them bit for bit",
        pairs.len()
    );
    Ok(n_bad)
}

impl Program {
    /// Whether a list of parts of names, if there is one, has a part of the program's name.
    pub(super) fn is_among(&self, only: &[String]) -> bool {
        only.is_empty() || only.iter().any(|part| self.name().contains(part.as_str()))
    }
}
