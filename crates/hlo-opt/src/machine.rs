//! `--machine` and `--device`: names for what the devices are and how they are linked.

use crate::arguments::MachineArgs;
use crate::{Failure, descriptions, registry};
use hlo_cluster::{Cluster, NamedMachine};
use hlo_mesh::{DEFAULT_DEVICE, Machine};
use hlo_pass::options::OptionInfo;
use hlo_pass::pipeline::{OptionValue, PassCall};
use hlo_run::first_card_model;

/// The options that a machine sets.
const CLUSTER: &str = "cluster";
const DEVICE: &str = "device";

/// The machine of this computer.
const AUTO: &str = "auto";

/// What `--machine` and `--device` named, for a module of a certain size.
pub(crate) struct Chosen {
    /// The options, as the user wrote them.
    pub words: String,
    cluster: Option<Cluster>,
    /// A name, or the text of a description.
    device: Option<String>,
}

impl Chosen {
    /// The machine and the device that options name, with as many devices as the module wants; none where there are no options.
    ///
    /// # Errors
    /// No machine has this name or this number of nodes; for `auto`, no driver or an unknown card; a wrong device.
    pub(crate) fn find(
        machine: Option<&str>,
        device: Option<&str>,
        n_devices: usize,
    ) -> Result<Option<Chosen>, Failure> {
        let named = machine.map(|name| named(name, n_devices)).transpose()?;
        let device_text = device.map(descriptions::device_text).transpose()?;
        if named.is_none() && device.is_none() {
            return Ok(None);
        }
        let options = [("--machine", machine), ("--device", device)];
        let words = options.iter().filter_map(|(option, value)| value.map(|value| format!("{option} {value} ")));
        Ok(Some(Chosen {
            words: words.collect(),
            device: device_text.or(named.as_ref().map(|named| named.device.to_string())),
            cluster: named.map(|named| named.cluster),
        }))
    }

    /// What the options about a machine say, for passes that price by it.
    ///
    /// # Errors
    /// As [`machine`].
    pub(crate) fn of_args(args: &MachineArgs, n_devices: usize) -> Result<Chosen, Failure> {
        let named = args.machine.as_deref().map(|name| named(name, n_devices)).transpose()?;
        let device = args.device.as_deref().map(descriptions::device_text).transpose()?;
        let device = device.unwrap_or_else(|| named.map_or(DEFAULT_DEVICE, |named| named.device).to_string());
        let cluster = machine(args, n_devices)?.cluster().cloned();
        Ok(Chosen { words: String::new(), cluster, device: Some(device) })
    }

    /// As [`Chosen::find`] for a module of some size, to see whether everything else that was said fits.
    ///
    /// # Errors
    /// As [`Chosen::find`].
    pub(crate) fn of_any_size(machine: Option<&str>, device: Option<&str>) -> Result<Option<Chosen>, Failure> {
        let n_nodes = machine.and_then(|name| name.split_once(':')).and_then(|(_, n)| n.trim().parse().ok());
        Chosen::find(machine, device, n_nodes.unwrap_or(1))
    }

    /// The options with those of the machine, where `known` has them and nothing is said.
    pub(crate) fn fill(&self, options: &mut Vec<(String, OptionValue)>, known: &[OptionInfo]) {
        let values = [(CLUSTER, self.cluster.as_ref().map(Cluster::to_toml)), (DEVICE, self.device.clone())];
        for (name, value) in values {
            let is_taken = known.iter().any(|option| option.name == name);
            if let Some(value) = value.filter(|_| is_taken && options.iter().all(|(given, _)| given != name)) {
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
}

/// The machine of a name with so many devices.
fn named(name: &str, n_devices: usize) -> Result<NamedMachine, Failure> {
    let found = if name == AUTO { of_this_computer()? } else { name };
    let n_devices = u32::try_from(n_devices).unwrap_or(u32::MAX);
    NamedMachine::find(found, n_devices).map_err(|e| Failure::Usage(format!("--machine: {e}")))
}

/// The machine for a module on `n_devices` devices: a cluster and a device that are named for themselves, else those of the machine
/// that is named, else one switch with devices of the default kind.
///
/// # Errors
/// A wrong name, or a description that cannot be read.
pub(crate) fn machine(args: &MachineArgs, n_devices: usize) -> Result<Machine, Failure> {
    let named = args.machine.as_deref().map(|name| named(name, n_devices)).transpose()?;
    let cluster = args.cluster.as_deref().filter(|cluster| !cluster.is_empty());
    let device = args.device.as_deref().or(named.as_ref().map(|named| named.device)).unwrap_or(DEFAULT_DEVICE);
    let cluster = match cluster {
        Some(cluster) => Some(descriptions::cluster(cluster)?),
        None => named.as_ref().map(|named| named.cluster.clone()),
    };
    Ok(Machine::new(cluster, descriptions::device(device)?))
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
