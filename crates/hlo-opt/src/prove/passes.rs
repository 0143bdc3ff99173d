//! `--check=prove`: runs passes once more, one by one, and proves of each that changed the module that it changed no result.

use crate::compare::{is_same_interface, output_names};
use crate::progress::Progress;
use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::program_kind::ProgramDecision;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::Target;
use hlo_pass::report::Artifact;
use hlo_pass::runner::{BoundPass, RunError, RunOptions, run_pipeline};
use hlo_prove::{Error, Options, Proof, Rules, Verdict, prove_chain};
use std::fmt::Write;

/// What is known of the passes.
#[derive(Default)]
pub(crate) struct Checked {
    /// A line for each pass that changed the module.
    pub text: String,
    /// Of how many no proof was found.
    pub n_unknown: usize,
}

/// Runs `passes`, each for its target, on `module`, which they made `result` of, and proves each. A pass that brings state into shards changes the
/// signature; it and what follows are proved with the modules that it made for the way there and back around them.
///
/// # Errors
/// A pass fails that did not fail before, or the passes made another module this time.
pub(crate) fn prove_passes(
    mut module: Module,
    mut analyses: Analyses,
    result: &Module,
    passes: &[(&BoundPass, Target)],
    progress: &Progress,
) -> Result<Checked, String> {
    let facts = analyses.params.clone();
    let mut checked = Checked::default();
    // Once a pass has changed the signature: the module before it, and the way there and back.
    let mut whole: Option<(Module, ProgramDecision)> = None;
    let (mut shard, mut unshard): (Option<Module>, Option<Module>) = (None, None);
    for (pass, target) in passes {
        let (before, kind_before) = (module.clone(), analyses.program_kind(&module));
        let for_target = RunOptions { target: Some(target), ..RunOptions::default() };
        let summary = run_pipeline(&mut module, &mut analyses, std::slice::from_ref(*pass), for_target);
        let summary = summary
            .map_err(|RunError { pass, .. }| format!("--check=prove: pass `{pass}` fails when it runs again"))?;
        let Some(report) = summary.reports.into_iter().next().filter(|report| report.changed) else { continue };
        for (name, artifact) in report.files {
            match (name.as_str(), artifact) {
                ("shard.hlo", Artifact::Module(found)) => shard = Some(*found),
                ("unshard.hlo", Artifact::Module(found)) => unshard = Some(*found),
                (_, Artifact::Module(_) | Artifact::Text(_)) => {}
            }
        }
        if whole.is_none() && (shard.is_some() || unshard.is_some()) {
            whole = Some((before.clone(), kind_before));
        }
        progress.now(&format!("proving {}", pass.name));
        let (source, kind) = whole.as_ref().map_or((&before, kind_before), |(source, kind)| (source, *kind));
        let chain: Vec<&Module> = shard.iter().chain([&module]).chain(&unshard).collect();
        let is_global = kind.has_tiles_in(&analyses.program_kind(&module), is_same_interface(source, &chain));
        let proof = prove_chain(source, &chain, &Options { is_global, ..options(source, &facts) });
        checked.n_unknown += usize::from(!proof.as_ref().is_ok_and(Proof::is_proved));
        checked.text.push_str(&line(pass.name, &proof, source));
    }
    if checked.text.is_empty() {
        checked.text.push_str("no pass changes the module: nothing is to be proved\n");
    }
    let text = |module: &Module| print_module(module, &PrintOptions::default());
    match text(&module) == text(result) {
        true => Ok(checked),
        false => Err("--check=prove: the passes make another module when they run again".into()),
    }
}

/// What the user says of the entry's leaves.
pub(super) fn options(module: &Module, facts: &ParamFacts) -> Options {
    let entry = module.entry().map(|entry| module.comp(entry).params.clone()).unwrap_or_default();
    let n_leaves = entry.iter().map(|&param| module.shape(param).n_leaves()).sum();
    Options { inputs: (0..n_leaves).map(|leaf| facts.leaf(leaf).cloned()).collect(), ..Options::default() }
}

/// The verdict on a pass, and of an unknown one the first output that is open.
fn line(pass: &str, proof: &Result<Proof, Error>, source: &Module) -> String {
    let proof = match proof {
        Ok(proof) => proof,
        Err(error) => {
            return format!(
                "{pass}: UNKNOWN, the pass changes the signature ({error}); `hlo-opt prove BEFORE FOLDER` proves the whole\n"
            );
        }
    };
    let verdict = if proof.is_proved() { "proved" } else { "UNKNOWN" };
    let mut out = format!("{pass}: {verdict}, {} of {} outputs", proof.n_proved(), proof.outputs.len());
    let used = proof.outputs.iter().fold(Rules::NONE, |rules, output| rules | output.modulo);
    let rules: Vec<&str> = used.iter().map(|rule| rule.name).collect();
    out.push_str(&match (proof.n_proved(), rules.as_slice()) {
        (0, _) => String::new(),
        (_, []) => ", bit for bit".into(),
        (_, rules) => format!(", modulo rounding ({})", rules.join(", ")),
    });
    out.push('\n');
    if let Some(open) = proof.outputs.iter().find(|output| output.verdict == Verdict::Unknown) {
        let name = output_names(source).get(open.leaf).map_or(String::new(), |name| format!(" ({name})"));
        let difference = open.difference.as_deref().unwrap_or("no reason is known");
        let _ = writeln!(out, "  output {}{name}: {difference}", open.leaf);
    }
    if let Some(difference) = &proof.effects.difference {
        let _ = writeln!(out, "  effects: {difference}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_pass::options::Options as PassOptions;
    use hlo_pass::pipeline::parse_pipeline;
    use hlo_pass::{BuiltPass, Changed, Pass, PassCx, PassError, PassInfo};

    const STEP: &str = "HloModule m, num_partitions=2\n\nENTRY %main {\n  %x = f32[4] parameter(0)\n  \
                        %two = f32[4] add(%x, %x)\n  ROOT %r = (f32[4], f32[4]) tuple(%x, %two)\n}\n";

    /// Makes the second output the first.
    struct Wrong;

    impl Pass for Wrong {
        fn run(&self, module: &mut Module, _: &mut PassCx<'_>) -> Result<Changed, PassError> {
            let wrong = hlo_text::parse_module(&STEP.replace("add", "multiply")).expect("a module");
            *module = wrong.module;
            Ok(Changed::Yes(hlo_analysis::Preserved::NONE))
        }
    }

    fn build(_: &PassOptions) -> BuiltPass {
        Ok(Box::new(Wrong))
    }

    const WRONG: PassInfo = PassInfo { name: "wrong", help: "", options: &[], build };

    #[test]
    fn a_pass_that_changes_a_result_is_unknown_with_the_first_output() {
        let module = hlo_text::parse_module(STEP).expect("a module").module;
        let passes = hlo_pass::runner::bind(&parse_pipeline("wrong").expect("a pipeline"), &[&WRONG]).expect("a pass");
        let target = || Target::unnamed().expect("a target");
        let passes: Vec<(&BoundPass, Target)> = passes.iter().map(|pass| (pass, target())).collect();
        let wrong = hlo_text::parse_module(&STEP.replace("add", "multiply")).expect("a module").module;
        let progress = Progress::start(false);
        let prove = |result: &Module| prove_passes(module.clone(), Analyses::default(), result, &passes, &progress);
        let checked = prove(&wrong).expect("it runs");
        assert_eq!(checked.n_unknown, 1);
        assert!(checked.text.starts_with("wrong: UNKNOWN, 1 of 2 outputs, bit for bit\n  output 1 (%two): device 0"));
        assert!(prove(&module).is_err());
    }
}
