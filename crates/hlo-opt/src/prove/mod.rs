//! `hlo-opt prove`: a static proof that a module gives what another one gives; where none is found, the evaluator tries to
//! refute it.

pub(crate) mod arguments;
pub(crate) mod passes;
mod smaller;
mod text;

use crate::compare::{Chain, Judge, Reference, is_same_interface, note_other_tiles, of_verdict, read_chain};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::output::{expect_no_input, write_whole};
use crate::params::Said;
use crate::progress::Progress;
use crate::{Failure, exit};
use arguments::{ProofFormat, ProveArgs};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::program_kind::ProgramDecision;
use hlo_ir::Module;
use hlo_prove::{Options, certify, prove_chain};
use std::path::Path;
use std::time::Instant;

/// What is known after the proof and the evaluation.
pub(crate) enum Outcome {
    Proved,
    /// What the evaluator saw.
    Refuted(String),
    /// Why the evaluator did not decide.
    Unknown(String),
}

/// What the evaluator says of modules of which no proof was found.
///
/// # Errors
/// The inputs that the user names cannot be read.
fn evaluated(
    args: &ProveArgs,
    (source, before, kind): (&str, &Module, ProgramDecision),
    (name, chain, after): (&str, &[&Module], ProgramDecision),
    promises: &ParamFacts,
    deadline: Option<Instant>,
    console: &mut Console<'_>,
) -> Result<Outcome, Failure> {
    let unknown = |why: &str| Outcome::Unknown(format!("the evaluator cannot tell: {}", why.trim_end()));
    let reference = match Reference::beside((before, kind), (chain, after)) {
        Ok(reference) => reference,
        Err(error) => return Ok(unknown(&error.to_string())),
    };
    let judge = Judge::new(&args.judge, source, reference, promises)?;
    judge.check_inputs(console)?;
    Ok(match judge.until(deadline).judge(name, (chain, after), console) {
        Ok(verdict) if verdict.is_undecided() => {
            Outcome::Unknown(format!("in the evaluator too much is NaN: {}", of_verdict(&verdict, &args.judge, before)))
        }
        Ok(verdict) if verdict.is_same() => {
            Outcome::Unknown("in the evaluator the results are the same on the inputs that were drawn".into())
        }
        Ok(verdict) => Outcome::Refuted(of_verdict(&verdict, &args.judge, before)),
        Err(Failure::File(why) | Failure::Usage(why) | Failure::Diagnostics(why)) => unknown(&why),
    })
}

/// Proves.
///
/// # Errors
/// Wrong usage, an invalid module, or modules with different signatures.
pub(crate) fn run(args: &ProveArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let stdin = Path::new("-");
    if args.before == stdin && args.after == stdin {
        return Err(Failure::Usage("expected stdin in the place of one module, found - twice".into()));
    }
    expect_no_input("--certificate", args.certificate.as_ref(), &[&args.before, &args.after])?;
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let (source, loaded) = read_completed(&args.before, args.judge.counts, Takes::Any, console)?;
    let said = Said::read(args.judge.inputs.replicated_params.as_deref(), console)?;
    let facts = said.of(&source, source.whole(), &loaded, console)?;
    let Chain { name, modules, program: after } = read_chain(&args.after, args.judge.counts, console)?;
    let chain: Vec<&Module> = modules.iter().collect();
    progress.now("proving");
    let deadline = args.judge.timeout.and_then(|time| Instant::now().checked_add(time));
    let kind = loaded.decision();
    let is_global = kind.has_tiles_in(&after, is_same_interface(&loaded.module, &chain));
    let options = Options { deadline, is_global, ..passes::options(&loaded.module, &facts) };
    let proved = match args.certificate {
        Some(_) => certify(&loaded.module, &chain, &options).map(|(proof, certificate)| (proof, Some(certificate))),
        None => prove_chain(&loaded.module, &chain, &options).map(|proof| (proof, None)),
    };
    let (proof, certificate) =
        proved.map_err(|error| Failure::File(format!("`{name}` and `{}`: {error}", source.name)))?;
    if let (Some(path), Some(certificate)) = (&args.certificate, certificate) {
        write_whole(path, certificate.to_string().as_bytes())?;
    }
    let outcome = if proof.is_proved() {
        Outcome::Proved
    } else if proof.is_out_of_time {
        let seconds = args.judge.timeout.unwrap_or_default().as_secs_f64();
        Outcome::Unknown(format!("the proof was given up after {seconds} s (--timeout)"))
    } else if proof.has_proved_outputs() {
        Outcome::Unknown(
            "the outputs are proved, and the effects are not; the evaluator has no host that would see them".into(),
        )
    } else if args.no_eval {
        Outcome::Unknown("it was not run (--no-eval)".into())
    } else {
        progress.now("evaluating");
        let (source, whole) = (source.name.as_str(), &loaded.module);
        let smaller = smaller::find_smaller(args, &proof, whole, &chain);
        let seen = smaller.and_then(|pair| {
            smaller::difference(args, (source, whole), (&name, &pair), (&proof, &options, &facts), deadline, console)
        });
        if seen.is_some() {
            progress.now("evaluating at full size: the modules differ on a smaller shape");
        }
        match (evaluated(args, (source, whole, kind), (&name, &chain, after), &facts, deadline, console)?, seen) {
            (Outcome::Unknown(why), Some(seen)) => Outcome::Unknown(format!("{why}; they differ {}", seen.trim_end())),
            (outcome, _) => outcome,
        }
    };
    note_other_tiles(&loaded.module, &chain, console);
    let shown = match args.report {
        ProofFormat::Text => text::of_proof(&proof, &outcome, &loaded.module, args.explain),
        ProofFormat::Json => text::json(&proof, &outcome, &loaded.module)?,
    };
    console.print(shown.as_bytes())?;
    Ok(match outcome {
        Outcome::Proved => exit::OK,
        Outcome::Refuted(_) => exit::DIFFERENT,
        Outcome::Unknown(_) => exit::UNKNOWN,
    })
}
