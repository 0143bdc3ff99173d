//! What a module needs besides its text: how many devices there are, and how its parameters are cut.

use crate::Failure;
use crate::arguments::CountArgs;
use crate::console::Console;
use crate::dump::{partitioner_input, stage_of};
use crate::input::{Loaded, Part, Source, load_one};
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::counts::{CountsError, find_counts};
use hlo_analysis::program_kind::{DumpStage, ProgramDecision, ProgramKind, decide};
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::devices::find_n_devices;
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_ir::{InstId, Module};
use std::path::Path;

impl CountArgs {
    /// Whether the user says any of them.
    pub(crate) fn is_any(self) -> bool {
        self.num_partitions.is_some() || self.num_replicas.is_some()
    }
}

/// The kinds of modules that a command takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    /// The program of each device; of a global one it says that its figures are those of whole values.
    PerDevice,
    /// The program of each device alone: a global one is refused afterwards.
    PerDeviceAlone,
    /// The program of all devices together, or of one.
    Global,
    /// The program of each device, or of all devices together.
    Any,
    /// As `Any`; nothing is said of what the module is taken for.
    AnySilently,
}

/// Reads, parses, verifies and completes the one module of a file.
///
/// # Errors
/// The file cannot be read or is no valid module; or as [`complete`].
pub(crate) fn read_completed(
    file: &Path,
    counts: CountArgs,
    takes: Takes,
    console: &mut Console<'_>,
) -> Result<(Source, Loaded), Failure> {
    let side = if takes == Takes::Global { DumpStage::BeforePartitioner } else { DumpStage::AfterPartitioner };
    let source = Source::read(file, side, console)?;
    let mut loaded = source.load(source.whole(), console.has_color)?;
    complete(&source, source.whole(), &mut loaded, (counts, takes), console)?;
    Ok((source, loaded))
}

/// Puts into the module's header and parameters what its text leaves out, says where that comes from, and decides what
/// the module is a program of. Says so where a reader may not expect it, or where the command is about the other kind.
///
/// # Errors
/// The flags contradict the header; the collectives contradict each other; or the module is not valid on so many devices.
pub(crate) fn complete(
    source: &Source,
    part: Part<'_>,
    loaded: &mut Loaded,
    (counts, takes): (CountArgs, Takes),
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    let had = (loaded.module.header.replica_count, loaded.module.header.num_partitions);
    let decide = |module: &Module| decide(module, counts.program.map(Into::into), stage_of(Path::new(&source.name)));
    set_counts(source, &mut loaded.module, (counts, &decide), console)?;
    if had != (loaded.module.header.replica_count, loaded.module.header.num_partitions) {
        source.verify(part, loaded, console.has_color)?;
    }
    let decision = decide(&loaded.module);
    loaded.program = Some(decision);
    tell(&loaded.module, decision, takes, console);
    if !decision.is_global() {
        take_shardings(source, &mut loaded.module, console);
    }
    Ok(())
}

/// Says what the module is taken for, in a line.
fn tell(module: &Module, decision: ProgramDecision, takes: Takes, console: &mut Console<'_>) {
    let reason = decision.reason(module);
    match (decision.kind, takes) {
        (_, Takes::AnySilently) => {}
        (ProgramKind::Global, Takes::PerDevice) => console.say(&format!(
            "note: {GLOBAL} ({reason}), so its figures are those of whole values: {PARTITION_FIRST}; --program per-device if it is \
             partitioned\n"
        )),
        (ProgramKind::Global, Takes::Any) if decision.is_surprising() => {
            console.say(&format!("note: {GLOBAL}: {reason}; --program per-device if it is partitioned\n"));
        }
        (ProgramKind::PerDevice, Takes::PerDevice | Takes::PerDeviceAlone | Takes::Any | Takes::Global) if decision.is_surprising() => {
            console.say(&format!("note: taken as the program of each device: {reason}; --program global if its values are whole\n"));
        }
        (ProgramKind::OneDevice | ProgramKind::PerDevice, _) | (ProgramKind::Global, Takes::PerDeviceAlone | Takes::Any | Takes::Global) => {}
    }
}

/// How messages call a module from before a partitioner.
pub(crate) const GLOBAL: &str = "a global program, from before a partitioner";

/// The advice that leads from a global program to that of each device.
pub(crate) const PARTITION_FIRST: &str = "--preset auto-spmd writes the program of each device, and XLA dumps its own with \
                                          --xla_dump_hlo_pass_re=spmd.*";

/// The error of a command that takes the program of each device alone, for a global one.
pub(crate) fn refuse_global(source: &Source, part: Part<'_>, loaded: &Loaded, has_color: bool) -> Result<(), Failure> {
    let decision = loaded.decision();
    if !decision.is_global() {
        return Ok(());
    }
    let message = format!("expected the program of each device, found {GLOBAL}: {}", decision.reason(&loaded.module));
    let help = format!("{PARTITION_FIRST}; --program per-device if it is partitioned");
    let entity = decision.inst().map_or(Entity::Module, Entity::Inst);
    let diagnostic = Diagnostic::about("global-program", entity, message).with_help(help);
    Err(Failure::Diagnostics(source.render(part, Some(loaded), vec![diagnostic], has_color)))
}

/// The error of a command that takes global programs alone, for the program of each device.
pub(crate) fn refuse_per_device(
    source: &Source,
    part: Part<'_>,
    loaded: &Loaded,
    has_color: bool,
) -> Result<(), Failure> {
    let decision = loaded.decision();
    if decision.kind != ProgramKind::PerDevice {
        return Ok(());
    }
    let reason = decision.reason(&loaded.module);
    let message = format!("expected a global program, from before a partitioner, found that of each device: {reason}");
    let help = "dump the module before XLA's partitioner (--xla_dump_hlo_pass_re=spmd.*); --program global if its values are whole";
    let entity = decision.inst().map_or(Entity::Module, Entity::Inst);
    let diagnostic = Diagnostic::about("per-device-program", entity, message).with_help(help);
    Err(Failure::Diagnostics(source.render(part, Some(loaded), vec![diagnostic], has_color)))
}

/// The counts that the user says, or that the collectives say, or in the program of each device the annotations.
fn set_counts(
    source: &Source,
    module: &mut Module,
    (counts, decide): (CountArgs, &dyn Fn(&Module) -> ProgramDecision),
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
    let found = find_counts(module);
    let n_annotated = find_n_devices(module);
    if matches!(found, Ok(None) | Err(CountsError::Unnamed(_)))
        && module.n_devices() == 1
        && n_annotated > 1
        && decide(module).kind == ProgramKind::PerDevice
    {
        console.say(&format!("note: the header has no counts; {n_annotated} partitions, by `sharding=`\n"));
        module.header.num_partitions = n_annotated as i64;
        return Ok(());
    }
    match found {
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
