//! `--machine`: one name for what the devices are and how they are linked.

use crate::arguments::MachineArgs;
use crate::{Failure, descriptions, registry};
use hlo_analysis::time::{DEFAULT_DEVICE, Machine};
use hlo_cluster::NamedMachine;
use hlo_pass::options::OptionInfo;
use hlo_pass::pipeline::{OptionValue, PassCall};
use hlo_run::first_card_model;

/// The options that a machine sets.
const CLUSTER: &str = "cluster";
const DEVICE: &str = "device";

/// The machine of this computer.
const AUTO: &str = "auto";

/// What `--machine` named, for a module of a certain size.
pub(crate) struct Chosen {
    /// As the user wrote it.
    pub name: String,
    machine: NamedMachine,
}

impl Chosen {
    /// The machine that an option names, with as many devices as the module wants.
    ///
    /// # Errors
    /// No machine has this name or this number of nodes; for `auto`, no driver or an unknown card.
    pub(crate) fn find(name: &str, n_devices: usize) -> Result<Chosen, Failure> {
        let found = if name == AUTO { of_this_computer()? } else { name };
        let n_devices = u32::try_from(n_devices).unwrap_or(u32::MAX);
        let machine = NamedMachine::find(found, n_devices).map_err(|e| Failure::Usage(format!("--machine: {e}")))?;
        Ok(Chosen { name: name.into(), machine })
    }

    /// The machine that an option names, to see whether everything else that was said fits it.
    ///
    /// # Errors
    /// As [`Chosen::find`].
    pub(crate) fn of_any_size(name: &str) -> Result<Chosen, Failure> {
        let n_nodes = name.split_once(':').and_then(|(_, n)| n.trim().parse().ok());
        Chosen::find(name, n_nodes.unwrap_or(1))
    }

    /// The options with those of the machine, where `known` has them and nothing is said.
    pub(crate) fn fill(&self, options: &mut Vec<(String, OptionValue)>, known: &[OptionInfo]) {
        let values = [(CLUSTER, self.machine.cluster.to_toml()), (DEVICE, self.machine.device.to_string())];
        for (name, value) in values {
            let is_taken = known.iter().any(|option| option.name == name);
            if is_taken && options.iter().all(|(given, _)| given != name) {
                options.push((name.into(), OptionValue::Text(value)));
            }
        }
    }

    /// The calls with the machine's options, of those that their passes have.
    pub(crate) fn fill_calls(&self, calls: &mut [PassCall]) {
        let passes = registry::passes();
        for call in calls {
            let name = call.name.replace('_', "-");
            let options = passes.iter().find(|pass| pass.name == name).map_or([].as_slice(), |pass| pass.options);
            self.fill(&mut call.options, options);
        }
    }

    /// The machine.
    pub(crate) fn machine(&self) -> Result<Machine, Failure> {
        Ok(Machine::new(Some(self.machine.cluster.clone()), descriptions::device(self.machine.device)?))
    }
}

/// The machine for a module on `n_devices` devices: a cluster and a device that are named for themselves, else those of the machine
/// that is named, else one switch with devices of the default kind.
///
/// # Errors
/// A wrong name, or a description that cannot be read.
pub(crate) fn machine(args: &MachineArgs, n_devices: usize) -> Result<Machine, Failure> {
    let named = args.machine.as_deref().map(|name| Chosen::find(name, n_devices)?.machine()).transpose()?;
    let cluster = args.cluster.as_deref().filter(|cluster| !cluster.is_empty());
    let cluster = match cluster {
        Some(cluster) => Some(descriptions::cluster(cluster)?),
        None => named.as_ref().and_then(|named| named.cluster().cloned()),
    };
    let device = match (&args.device, &named) {
        (Some(device), _) => descriptions::device(device)?,
        (None, Some(named)) => named.device().clone(),
        (None, None) => descriptions::device(DEFAULT_DEVICE)?,
    };
    Ok(Machine::new(cluster, device))
}

/// The machine whose devices this computer's first card is.
fn of_this_computer() -> Result<&'static str, Failure> {
    let names = || NamedMachine::names().collect::<Vec<_>>().join(", ");
    let model = first_card_model()
        .map_err(|error| Failure::Usage(format!("--machine auto: {error}; or name one of {}", names())))?;
    NamedMachine::of_model(&model).ok_or_else(|| {
        Failure::Usage(format!("--machine auto: expected a card of one of {}, found `{model}`", names()))
    })
}
