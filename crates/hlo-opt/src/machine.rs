//! The target of passes as the command line says it: `--machine`, `--unknown-trip-count`, `--memory-limit`, or settings
//! in front of a pipeline.

use crate::target_arguments::{MachineArgs, TargetArgs};
use crate::{Failure, descriptions};
use hlo_cluster::Cluster;
use hlo_mesh::{Machine, MachineName};
use hlo_pass::pipeline::Pipeline;
use hlo_pass::{Target, TargetSpec};
use hlo_run::first_card_model;

/// The machine of this computer.
const AUTO: &str = "auto";

/// The target as options and pipelines say it.
pub(crate) struct TargetText {
    spec: TargetSpec,
    /// The options that say it, as the user wrote them, with a blank behind each.
    pub words: String,
}

impl TargetText {
    /// Joins the options with the settings of pipelines.
    ///
    /// # Errors
    /// A wrong value, a file that cannot be read, or two machines, counts or limits.
    pub(crate) fn of(args: &TargetArgs, pipelines: &[Pipeline]) -> Result<TargetText, Failure> {
        let usage = |error: String| Failure::Usage(format!("--pass: {error}"));
        let mut spec = TargetSpec {
            machine: args.machine.as_deref().map(name).transpose()?,
            unknown_trip_count: args.unknown_trip_count,
            memory_limit: args.memory_limit,
        };
        let mut given: Vec<(&str, String)> = Vec::new();
        given.extend(args.machine.as_ref().map(|text| ("machine", text.clone())));
        given.extend(args.unknown_trip_count.map(|count| ("unknown-trip-count", count.to_string())));
        given.extend(args.memory_limit.map(|bytes| ("memory-limit", bytes.to_string())));
        for pipeline in pipelines {
            let mut of_pipeline = TargetSpec::default();
            for (setting, value) in &pipeline.settings {
                let text = descriptions::text_of(value)?;
                of_pipeline.set(setting, &text).map_err(|error| usage(error.to_string()))?;
                given.push((setting, value.clone()));
            }
            spec = spec.and(of_pipeline).ok_or_else(|| {
                usage("two settings of the target differ: say it once, by an option or in front of one pipeline".into())
            })?;
        }
        given.dedup();
        let words = given.iter().map(|(option, value)| match value.contains(['[', ' ', ';']) {
            true => format!("--{option} '{value}' "),
            false => format!("--{option} {value} "),
        });
        let words = words.collect();
        Ok(TargetText { spec, words })
    }

    /// The target of a module on so many devices.
    ///
    /// # Errors
    /// The machine cannot have so many devices.
    pub(crate) fn target(&self, n_devices: usize) -> Result<Target, Failure> {
        self.spec.target(n_devices).map_err(|error| Failure::Usage(format!("--machine: {error}")))
    }

    /// The target of a module of some size, to see whether everything else that was said fits.
    ///
    /// # Errors
    /// As [`TargetText::target`].
    pub(crate) fn target_of_any_size(&self) -> Result<Target, Failure> {
        let n_nodes = self.spec.machine.as_ref().and_then(MachineName::n_nodes);
        self.target(n_nodes.unwrap_or(1) as usize)
    }
}

/// A machine as a user writes it.
///
/// # Errors
/// No machine has this name; a file that cannot be read or is no description; for `auto`, no driver or an unknown card.
fn name(text: &str) -> Result<MachineName, Failure> {
    let described = descriptions::text_of(text)?;
    let found = if described == AUTO { of_this_computer()?.to_string() } else { described };
    MachineName::parse(&found).map_err(|error| match descriptions::is_file(text) {
        true => Failure::File(format!("`{text}`: {error}")),
        false => Failure::Usage(format!("--machine: {error}")),
    })
}

/// The machine that a command is told, for a module on `n_devices` devices; without one, devices of the default kind at
/// one switch.
///
/// # Errors
/// A wrong name, or a description that cannot be read.
pub(crate) fn machine(args: &MachineArgs, n_devices: usize) -> Result<Machine, Failure> {
    let machine = match &args.machine {
        Some(text) => Machine::named(&name(text)?, n_devices),
        None => Machine::unnamed(),
    };
    machine.map_err(|error| Failure::Usage(format!("--machine: {error}")))
}

/// The links of a machine, with `n_devices` devices where its name leaves that open.
///
/// # Errors
/// As [`machine`].
pub(crate) fn cluster(text: &str, n_devices: usize) -> Result<Cluster, Failure> {
    let machine = Machine::named(&name(text)?, n_devices);
    let machine = machine.map_err(|error| Failure::Usage(format!("--machine: {error}")))?;
    match machine.cluster() {
        Some(cluster) => Ok(cluster.clone()),
        None => {
            let network = machine.network(n_devices).map_err(|error| Failure::Usage(format!("--machine: {error}")))?;
            Ok(network.cluster().clone())
        }
    }
}

/// The machine whose devices this computer's first card is.
fn of_this_computer() -> Result<&'static str, Failure> {
    let names = || MachineName::of_nodes().collect::<Vec<_>>().join(", ");
    let model = first_card_model()
        .map_err(|error| Failure::Usage(format!("--machine auto: {error}; or name one of {}", names())))?;
    MachineName::of_model(&model).ok_or_else(|| {
        Failure::Usage(format!("--machine auto: expected a card of one of {}, found `{model}`", names()))
    })
}
