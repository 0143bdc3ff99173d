//! The machine that passes price for: how they are told, and what a module takes on it.

use crate::options::{OptionInfo, OptionKind, Options};
use crate::{PassCx, PassError};
use hlo_analysis::time::predict;
use hlo_ir::Module;
use hlo_ir::diag::Entity;
use hlo_mesh::{DEFAULT_DEVICE, Machine, MachineError};

/// How the devices are wired.
pub const CLUSTER: OptionInfo = OptionInfo {
    name: "cluster",
    kind: OptionKind::Text,
    default: "",
    help: "how the devices are wired, for predicted times: [(node,2),(gpu,8)] or a shipped name; empty: one switch",
};

/// What every device is.
pub const DEVICE: OptionInfo = OptionInfo {
    name: "device",
    kind: OptionKind::Text,
    default: DEFAULT_DEVICE,
    help: "the device, for predicted times: h200, a100, v100, tpuv3",
};

/// The machine of the options [`CLUSTER`] and [`DEVICE`].
///
/// # Errors
/// A cluster or a device that is none.
pub fn machine_of(options: &Options) -> Result<Machine, MachineError> {
    Machine::from_args(options.text(CLUSTER.name), options.text(DEVICE.name))
}

impl PassCx<'_> {
    /// The predicted time of a module, in seconds.
    ///
    /// # Errors
    /// The machine has another number of devices than the module.
    pub fn predicted_s(&mut self, module: &Module, machine: &Machine) -> Result<f64, PassError> {
        let frequencies = self.analyses.frequencies(module);
        let time = predict(module, &frequencies, machine);
        let time = time.map_err(|error| PassError::about("machine-size", Entity::Module, error.to_string()))?;
        Ok(time.critical_path_s)
    }
}
