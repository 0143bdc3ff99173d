//! `hlo-opt compare`: runs two modules on the same inputs in the evaluator, and names the first output that differs. Beside a global program the other
//! one may be a per-device program of it.

pub(crate) mod arguments;
mod difference;
mod judge;
mod pairing;
mod sides;
mod signature;
mod text;

pub(crate) use judge::Judge;
pub(crate) use pairing::Reference;
pub(crate) use signature::{is_same_interface, note_other_tiles, output_names};
pub(crate) use text::of_verdict;

use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::input_arguments::CountArgs;
use crate::params::Said;
use crate::progress::Progress;
use crate::{Failure, exit};
use arguments::CompareArgs;
use hlo_analysis::program_kind::{ProgramDecision, decide};
use hlo_ir::Module;
use pairing::Candidate;
use std::path::Path;

/// The modules of a folder of sharded state, in the order in which they run.
const CHAIN: [&str; 3] = ["shard.hlo", "main.hlo", "unshard.hlo"];
/// What tells such a folder from one of dumps.
const MANIFEST: &str = "manifest.json";

/// Compares.
///
/// # Errors
/// Wrong usage, an invalid module, signatures that differ, or an evaluation that cannot go on.
pub(crate) fn run(args: &CompareArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let stdin = Path::new("-");
    if args.a == stdin && args.b == stdin {
        return Err(Failure::Usage("expected stdin in the place of one module, found - twice".into()));
    }
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let (source, loaded) = read_completed(&args.a, args.judge.counts, Takes::Any, console)?;
    let promises = Said::read(args.judge.inputs.replicated_params.as_deref(), console)?;
    let promises = promises.of(&source, source.whole(), &loaded, console)?;
    let Chain { name, modules, program } = read_chain(&args.b, args.judge.counts, console)?;
    progress.now("evaluating");
    let chain: Vec<&Module> = modules.iter().collect();
    let reference = Reference::beside((&loaded.module, loaded.decision()), (&chain, program))
        .map_err(|error| Failure::File(format!("`{name}` beside `{}`: {error}", source.name)))?;
    if let Err(difference) = Candidate::beside(&reference, (&chain, program)) {
        let text = format!("`{name}` has another signature than `{}`: {difference}{}", source.name, advice(&args.b));
        return Err(Failure::File(text));
    }
    let mut judge = Judge::new(&args.judge, &source.name, reference, &promises)?;
    let verdict = judge.judge(&name, (&chain, program), console)?;
    note_other_tiles(&loaded.module, &chain, console);
    console.print(of_verdict(&verdict, &args.judge, &loaded.module).as_bytes())?;
    Ok(match verdict.is_same() {
        true if verdict.is_undecided() => exit::UNKNOWN,
        true => exit::OK,
        false => exit::DIFFERENT,
    })
}

/// The modules that are compared: they run one after the other.
pub(crate) struct Chain {
    /// Their name in messages.
    pub name: String,
    pub modules: Vec<Module>,
    /// The kind of the first one.
    pub program: ProgramDecision,
}

/// What is compared: one module, or the three of a folder of sharded state.
///
/// # Errors
/// A file cannot be read, or holds no valid module.
pub(crate) fn read_chain(path: &Path, counts: CountArgs, console: &mut Console<'_>) -> Result<Chain, Failure> {
    // What the user says of the kind is said of the module that this one is compared with.
    let counts = CountArgs { program: None, ..counts };
    let files = match is_sharded_state(path) {
        true => CHAIN.iter().map(|name| path.join(name)).collect(),
        false => vec![path.to_path_buf()],
    };
    let modules = files.iter().map(|file| {
        let (_, loaded) = read_completed(file, counts, Takes::AnySilently, console)?;
        Ok((loaded.decision(), loaded.module))
    });
    let modules: Vec<(ProgramDecision, Module)> = modules.collect::<Result<_, Failure>>()?;
    let program = modules.first().map_or(decide(&Module::default(), None, None), |(program, _)| *program);
    let name = path.display().to_string();
    Ok(Chain { name, modules: modules.into_iter().map(|(_, module)| module).collect(), program })
}

/// Whether a folder holds the modules of sharded state.
fn is_sharded_state(folder: &Path) -> bool {
    CHAIN.iter().chain(&[MANIFEST]).all(|name| folder.join(name).is_file())
}

/// How a module with its state in shards is compared.
fn advice(b: &Path) -> String {
    let folder = b.parent().filter(|folder| is_sharded_state(folder));
    folder.map_or(String::new(), |folder| {
        format!("; its state is in shards: name the folder `{}` in its place, and it is converted", folder.display())
    })
}
