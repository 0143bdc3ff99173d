//! What a module needs besides its text: how many devices there are, and how its parameters are cut.

use crate::Failure;
use crate::arguments::CountArgs;
use crate::console::Console;
use crate::dump::{is_before_partitioner, partitioner_input};
use crate::input::{Loaded, Part, Source, load_one};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::counts::{CountsError, find_counts};
use hlo_audit::find_global_mark;
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::{InstId, Module};
use std::path::Path;

impl CountArgs {
    /// Whether the user says any of them.
    pub(crate) fn is_any(self) -> bool {
        self.num_partitions.is_some() || self.num_replicas.is_some()
    }
}

/// Reads, parses, verifies and completes the one module of a file.
///
/// # Errors
/// The file cannot be read or is no valid module; or as [`complete`].
pub(crate) fn read_completed(
    file: &Path,
    counts: CountArgs,
    console: &mut Console<'_>,
) -> Result<(Source, Loaded), Failure> {
    let source = Source::read(file, console)?;
    let mut loaded = source.load(source.whole(), console.has_color)?;
    complete(&source, source.whole(), &mut loaded, counts, console)?;
    Ok((source, loaded))
}

/// As [`read_completed`], for a command that takes global programs as well.
///
/// # Errors
/// As [`read_completed`].
pub(crate) fn read_completed_of_any_kind(
    file: &Path,
    counts: CountArgs,
    console: &mut Console<'_>,
) -> Result<(Source, Loaded), Failure> {
    let source = Source::read(file, console)?;
    let mut loaded = source.load(source.whole(), console.has_color)?;
    complete_unsaid(&source, source.whole(), &mut loaded, counts, console)?;
    Ok((source, loaded))
}

/// Puts into the module's header and parameters what its text leaves out, and says where that comes from. Says of a global program
/// how it becomes one of each device.
///
/// # Errors
/// The flags contradict the header; the collectives contradict each other; or the module is not valid on so many devices.
pub(crate) fn complete(
    source: &Source,
    part: Part<'_>,
    loaded: &mut Loaded,
    counts: CountArgs,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    complete_unsaid(source, part, loaded, counts, console)?;
    tell_global(source, &loaded.module, console);
    Ok(())
}

/// As [`complete`], for what takes global programs as well: nothing is said of them.
///
/// # Errors
/// As [`complete`].
pub(crate) fn complete_unsaid(
    source: &Source,
    part: Part<'_>,
    loaded: &mut Loaded,
    counts: CountArgs,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let had = (loaded.module.header.replica_count, loaded.module.header.num_partitions);
    set_counts(source, &mut loaded.module, counts, console)?;
    if had != (loaded.module.header.replica_count, loaded.module.header.num_partitions) {
        source.verify(part, loaded, console.has_color)?;
    }
    take_shardings(source, &mut loaded.module, console);
    Ok(())
}

/// Says of a module from before XLA's partitioner what makes the program of each device of it.
fn tell_global(source: &Source, module: &Module, console: &mut Console<'_>) {
    let is_input = module.header.num_partitions > 1 && is_before_partitioner(Path::new(&source.name));
    if is_input || find_global_mark(module).is_some() {
        console.say(
            "note: a global program, from before a partitioner: --preset auto-spmd writes the program of each device; or take the dump \
             after XLA's partitioner (--xla_dump_hlo_pass_re=spmd.*)\n",
        );
    }
}

/// The counts that the user says, or that the collectives say.
fn set_counts(
    source: &Source,
    module: &mut Module,
    counts: CountArgs,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let header = &mut module.header;
    for (flag, said, known) in [
        ("--num-partitions", counts.num_partitions, &mut header.num_partitions),
        ("--num-replicas", counts.num_replicas, &mut header.replica_count),
    ] {
        let Some(said) = said else { continue };
        if *known > 1 && *known != said {
            return Err(Failure::Usage(format!("{flag} {said}: the header of `{}` says {known}", source.name)));
        }
        *known = said;
    }
    if counts.is_any() {
        return Ok(());
    }
    let advice = "say them with --num-partitions or --num-replicas";
    match find_counts(module) {
        Ok(Some(found)) => {
            let name = module.inst_name(found.from);
            let counts = [(found.replicas, "replicas"), (found.partitions, "partitions")];
            let counts = counts.iter().filter(|(n, _)| *n > 1).map(|(n, what)| format!("{n} {what}"));
            let counts = counts.collect::<Vec<_>>().join(" of ");
            console.say(&format!("note: the header has no counts; {counts}, by the groups of `%{name}`\n"));
            (module.header.replica_count, module.header.num_partitions) = (found.replicas, found.partitions);
            Ok(())
        }
        Ok(None) => Ok(()),
        Err(error @ CountsError::Unnamed(_)) => {
            console.say(&format!("note: {error}: taken as one device; {advice}\n"));
            Ok(())
        }
        Err(error @ CountsError::Contradicting { .. }) => {
            Err(Failure::Diagnostics(format!("error: {}: {error}; {advice}\n", source.name)))
        }
    }
}

/// Gives the parameters of a module that says nothing of them what stands in the same dump folder: how XLA's partitioner was told to cut
/// them. Since jax 0.12 the partitioned module does not repeat it.
fn take_shardings(source: &Source, module: &mut Module, console: &mut Console<'_>) {
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
