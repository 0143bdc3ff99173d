//! Certificates of what is proved, checked by the second checker.

use std::path::{Path, PathBuf};
use std::time::Instant;

use hlo_ir::Module;
use hlo_opt::library::OpenModule;
use hlo_prove::{Options, Proof};
use hlo_tests::certificate::{Checked, check};

use super::Program;
use super::pipelines::{open, pipelines};

/// Checks the certificate of every module and pipeline; false if an output that is proved does not follow from it.
pub(super) fn run(programs: &[Program], seed: u64) -> Result<bool, String> {
    println!("{:>13} {:>10} {:>8} {:>9}  module, pipeline", "outputs held", "equations", "dropped", "ms");
    let (mut n_held, mut n_proved, mut n_equations, mut n_modules, mut n_whole) = (0, 0, 0, 0, 0);
    for program in programs {
        let Some(before) = open(program)? else { continue };
        for pipeline in pipelines(before.module().n_devices()) {
            let name = format!("{}, {}", program.name(), pipeline.name);
            let after = pipeline.after(&before)?;
            let start = Instant::now();
            let checked = certified(before.module(), after.module(), seed).map_err(|e| format!("{name}: {e}"))?;
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let n = checked.held.len() + checked.failed.len();
            let counts = format!("{} of {n}", checked.held.len());
            println!("{counts:>13} {:>10} {:>8} {ms:>9.1}  {name}", checked.n_held, checked.dropped.len());
            for (leaf, reason) in &checked.failed {
                println!("{:>13} output {leaf}: {reason}", "");
            }
            if !checked.failed.is_empty() {
                checked.dropped.iter().take(N_SHOWN).for_each(|reason| println!("{:>13} dropped: {reason}", ""));
            }
            n_modules += 1;
            n_whole += usize::from(checked.failed.is_empty());
            n_held += checked.held.len();
            n_proved += n;
            n_equations += checked.n_held;
        }
    }
    println!(
        "certificates: {n_whole} of {n_modules} modules whole, {n_held} of {n_proved} proved outputs, {n_equations} equations hold"
    );
    Ok(n_held == n_proved)
}

/// How many elements the check of one certificate may compute.
pub(super) const WORK: usize = 400_000_000;
/// How many dropped equations are shown of a module.
const N_SHOWN: usize = 5;

fn certified(before: &Module, after: &Module, seed: u64) -> Result<Checked, String> {
    let (_, text) = certificate(before, after)?;
    check(vec![before, after], &text, seed, WORK)
}

/// A proof and the text of its certificate.
pub(super) fn certificate(before: &Module, after: &Module) -> Result<(Proof, String), String> {
    let certified = hlo_prove::certify(before, &[after], &Options::default());
    let (proof, certificate) = certified.map_err(|e| e.to_string())?;
    Ok((proof, certificate.to_string()))
}

/// Checks one certificate of two modules, or of one and the modules that run after one another.
pub(super) fn check_file(certificate: &Path, files: &[PathBuf], seed: u64) -> Result<bool, String> {
    let text = std::fs::read_to_string(certificate).map_err(|e| format!("{}: {e}", certificate.display()))?;
    let read = |file: &PathBuf| OpenModule::read(file, &[]).map_err(|failure| format!("{failure:?}"));
    let modules = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let checked = check(modules.iter().map(|(module, _)| module.module()).collect(), &text, seed, WORK)?;
    println!("{} equations hold, {} do not follow", checked.n_held, checked.dropped.len());
    checked.dropped.iter().for_each(|reason| println!("    {reason}"));
    println!("{} of {} outputs follow", checked.held.len(), checked.held.len() + checked.failed.len());
    checked.failed.iter().for_each(|(leaf, reason)| println!("    output {leaf}: {reason}"));
    Ok(checked.failed.is_empty())
}
